//! What is asked of a store while power may be lost: scripts, one for each thing that can go wrong, and random histories.

use super::{model::Step, *};

/// Units that the histories write to.
pub(super) const UNITS: usize = 6;

/// Something that happens to a store.
#[derive(Clone, Debug)]
pub(super) enum Event {
    /// One group: operations that share a sync.
    Group(Vec<(usize, Step)>),
    /// The journal is emptied.
    Apply,
    /// As a clock does: what was committed before the last tick goes home.
    Tick,
}

/// A history by name. Power is lost only after the first events, which bring the disk to where it gets interesting.
pub(super) struct History {
    pub(super) name: String,
    pub(super) events: Vec<Event>,
    pub(super) calm: usize,
}

fn one(unit: usize, step: Step) -> Event {
    Event::Group(vec![(unit, step)])
}

fn group(steps: impl IntoIterator<Item = (usize, Step)>) -> Event {
    Event::Group(steps.into_iter().collect())
}

fn fresh(version: u64) -> Step {
    Step::Fresh { version, first: 0, fills: vec![version as u8; SECTORS] }
}

fn over(version: u64, base: u64) -> Step {
    Step::Over { version, base, first: 1, fills: vec![version as u8; 2] }
}

fn whole(version: u64, base: u64) -> Step {
    Step::Over { version, base, first: 0, fills: vec![version as u8; SECTORS] }
}

fn commit(version: u64) -> Step {
    Step::Commit { version }
}

fn abort(version: u64) -> Step {
    Step::Abort { version }
}

fn discard(version: u64) -> Step {
    Step::Discard { version }
}

fn rebuild(token: u64, version: u64) -> Step {
    Step::Rebuild { token, version, first: 0, fills: vec![token as u8; 3], lost: 3 }
}

/// Scripts for each rule, and for what the journal has to cope with.
pub(super) fn scripts() -> Vec<History> {
    let mut all = Vec::new();
    let mut script = |name: &str, calm: usize, events: Vec<Event>| {
        all.push(History { name: name.to_owned(), events, calm });
    };
    script(
        "fresh, commit, partial, commit",
        0,
        vec![
            one(0, fresh(2)),
            one(0, commit(2)),
            one(0, over(3, 2)),
            one(0, commit(3)),
            Event::Apply,
            one(0, over(4, 3)),
            one(0, commit(4)),
            Event::Tick,
            Event::Tick,
        ],
    );
    script(
        "bases that pend",
        0,
        vec![
            one(0, fresh(2)),
            one(0, over(3, 2)),
            one(0, over(4, 3)),
            Event::Apply,
            group([(0, commit(4)), (0, over(5, 4)), (0, over(6, 5))]),
            one(0, commit(6)),
            Event::Apply,
        ],
    );
    script(
        "aborts",
        0,
        vec![
            one(0, fresh(2)),
            one(0, abort(2)),
            one(0, fresh(3)),
            group([(0, commit(3)), (0, over(4, 3))]),
            group([(0, abort(4)), (1, abort(9))]),
            Event::Apply,
            one(0, over(5, 3)),
            one(0, abort(8)),
            Event::Apply,
            group([(0, commit(5)), (1, fresh(10))]),
        ],
    );
    script(
        "discards",
        0,
        vec![
            group([(0, fresh(2)), (1, fresh(3))]),
            group([(0, commit(2)), (1, commit(3))]),
            group([(0, over(4, 2)), (1, discard(5))]),
            one(0, discard(6)),
            Event::Apply,
            group([(0, fresh(7)), (1, discard(8)), (1, fresh(9))]),
        ],
    );
    script(
        "rebuilds",
        0,
        vec![
            group([(0, fresh(2)), (1, fresh(3))]),
            group([(0, commit(2)), (1, over(4, 3))]),
            one(0, rebuild(8, 2)),
            Event::Apply,
            one(1, rebuild(9, 4)),
            one(0, over(10, 2)),
            group([(0, commit(10)), (1, rebuild(11, 4))]),
            Event::Apply,
        ],
    );
    for (name, newer) in [("fresh", fresh(9)), ("discard", discard(9)), ("rebuild", rebuild(9, 4))] {
        script(
            &format!("{name} over redo that is not home"),
            3,
            vec![
                one(0, fresh(2)),
                group([(0, commit(2)), (1, fresh(3))]),
                Event::Apply,
                one(0, over(4, 2)),
                one(0, commit(4)),
                group([(1, commit(3)), (0, newer.clone())]),
                one(0, commit(9)),
                Event::Apply,
                one(1, over(10, 3)),
            ],
        );
    }
    script(
        "late duplicates",
        2,
        vec![
            group([(0, fresh(2)), (1, fresh(3))]),
            group([(0, commit(2)), (1, commit(3))]),
            group([(0, over(8, 2)), (1, discard(9))]),
            group([(0, fresh(2)), (1, fresh(3)), (0, discard(7)), (1, abort(4))]),
            group([(0, over(8, 2)), (1, commit(3)), (0, rebuild(5, 4))]),
            one(0, commit(8)),
            group([(0, commit(8)), (0, abort(8)), (0, commit(2))]),
            Event::Apply,
        ],
    );
    script(
        "pairs of stripes",
        0,
        vec![
            group((0..UNITS).map(|unit| (unit, fresh(2 + unit as u64)))),
            group((0..UNITS).map(|unit| (unit, commit(2 + unit as u64)))),
            group([
                (0, over(10, 2)),
                (1, over(11, 3)),
                (2, fresh(12)),
                (3, discard(13)),
                (4, rebuild(14, 6)),
                (5, abort(15)),
            ]),
            Event::Apply,
            group([
                (0, commit(10)),
                (1, abort(11)),
                (2, commit(12)),
                (3, fresh(16)),
                (4, over(17, 6)),
                (5, over(18, 7)),
            ]),
            Event::Apply,
        ],
    );
    script("a journal that is applied while it is written to", UNITS + 1, {
        let mut events: Vec<_> = (0..UNITS).map(|unit| one(unit, fresh(2))).collect();
        events.push(group((0..UNITS).map(|unit| (unit, commit(2)))));
        for round in 0..3 {
            let version = |unit: usize| 10 + 10 * round + unit as u64;
            let base = |unit: usize| if round == 0 { 2 } else { version(unit) - 10 };
            events.push(group((0..UNITS).map(|unit| (unit, over(version(unit), base(unit))))));
            events.push(group((0..UNITS).map(|unit| (unit, commit(version(unit))))));
            events.push(Event::Tick);
            events.push(one(0, abort(version(0) + 5)));
            events.push(Event::Tick);
        }
        events
    });
    all.push(wrap());
    all.push(full());
    all
}

/// So many groups that the ring begins again, with one write that pends all the time.
fn wrap() -> History {
    let mut events = vec![one(5, fresh(2)), one(5, over(3, 2)), one(0, fresh(2))];
    for version in 3..=26 {
        events.push(one(0, whole(version, version - 1)));
    }
    let calm = events.len() - 6;
    events.extend([one(1, fresh(40)), Event::Apply, one(0, commit(26)), one(1, over(41, 40))]);
    History { name: "the ring begins again".to_owned(), events, calm }
}

/// As many pending writes as the journal takes, and then whatever has to work all the same.
fn full() -> History {
    let mut events: Vec<_> = (0..UNITS).map(|unit| one(unit, fresh(2))).collect();
    events.push(group((0..UNITS).map(|unit| (unit, commit(2)))));
    events.extend((0..UNITS).map(|unit| one(unit, whole(3 + unit as u64, 2))));
    let calm = events.len() - 1;
    events.extend([
        one(0, commit(3)),
        one(1, abort(4)),
        one(2, discard(30)),
        Event::Apply,
        one(4, whole(31, 2)),
        group([(5, fresh(32)), (3, commit(6))]),
        Event::Apply,
    ]);
    History { name: "a journal full of pending writes".to_owned(), events, calm }
}

/// A history as a coordinator would make it: mostly orderly.
pub(super) fn random(seed: u64) -> History {
    let dice = &mut Dice(seed.wrapping_mul(0x9e37_79b9) | 1);
    let mut units = vec![model::ModelUnit::default(); 3];
    let mut version = 1;
    let mut events = Vec::new();
    for _ in 0..12 {
        let mut steps = Vec::new();
        for _ in 0..=dice.roll() % 3 {
            let unit = (dice.roll() % units.len() as u64) as usize;
            version += 1;
            let step = next_step(dice, &units[unit], version);
            units[unit].apply(&step);
            steps.push((unit, step));
        }
        events.push(Event::Group(steps));
        match dice.roll() % 6 {
            0 => events.push(Event::Apply),
            1 => events.push(Event::Tick),
            _ => {}
        }
    }
    History { name: format!("seed {seed}"), events, calm: 0 }
}

fn next_step(dice: &mut Dice, unit: &model::ModelUnit, version: u64) -> Step {
    let first = (dice.roll() % SECTORS as u64) as usize;
    let count = 1 + (dice.roll() % (SECTORS - first) as u64) as usize;
    // A byte that tells the version: no two writes put the same one into a sector.
    let fills = vec![version as u8; count];
    let newest = unit.pending_version().max(unit.committed_version());
    match dice.roll() % 12 {
        0 => Step::Discard { version },
        1 => Step::Rebuild { token: version, version: version - 1, first, fills, lost: SECTORS },
        2 | 3 => Step::Fresh { version, first, fills },
        4 => Step::Abort { version: if dice.roll().is_multiple_of(2) { version } else { newest.max(1) } },
        5 | 6 if unit.pending.is_some() => Step::Commit { version: newest },
        _ if newest > 0 => Step::Over { version, base: newest, first, fills },
        _ => Step::Fresh { version, first, fills },
    }
}
