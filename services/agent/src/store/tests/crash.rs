//! Power lost at every operation of the disk, with every outcome within bounds and a sample beyond.
//!
//! What has to hold afterwards, for each unit:
//! - its state is the one that was answered last, or one that an operation which was not answered leads to; a commit alone
//!   may be taken back, until something else was answered;
//! - where an operation that was not answered puts bytes straight home, sectors of what was there may be bad, or the unit
//!   damaged - never other bytes, and never in the new version;
//! - the floor is not below what was answered;
//! - a second loss of power changes nothing, and the next fresh write enters.
//!
//! The checker is checked: stores that are broken on purpose have to fail.

use std::{
    io::Write,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::{AtomicU64, Ordering},
};

use super::{
    histories::{Event, History, UNITS, random, scripts},
    model::{Answer, Content, ModelUnit, Step, answer_of, observed},
    *,
};

/// Outcomes beyond the bounds that are sampled at each operation.
const SAMPLES: usize = 24;

/// Random histories of a run of the tests. `STRIPESET_CRASH_SEEDS=1000` tries so many, `STRIPESET_CRASH_SEED=77` that one.
const SEEDS: u64 = 64;

/// Crashes that a run of the tests has to try.
const CRASHES_MIN: u64 = 100_000;

/// The states that a unit may be in after a crash: the first was answered, the others are those since.
#[derive(Clone)]
struct Allowed {
    states: Vec<ModelUnit>,
    /// Bytes at home may have been replaced since.
    replaced: bool,
    /// Something other than a commit happened since.
    answer_binds: bool,
}

impl Allowed {
    fn settled(unit: ModelUnit) -> Allowed {
        Allowed { states: vec![unit], replaced: false, answer_binds: false }
    }

    fn now(&self) -> &ModelUnit {
        self.states.last().unwrap()
    }

    /// Takes in what a step leads to, if the store answered as the model does, or refused for want of room.
    fn apply(&mut self, step: &Step, outcome: &Result<Outcome, Refusal>) -> Result<(), String> {
        let before = self.now().clone();
        let mut unit = before.clone();
        let expected = unit.apply(step);
        if matches!(outcome, Err(Refusal::Limit { .. })) {
            return Ok(());
        }
        let answer = answer_of(outcome);
        if answer != expected {
            return Err(format!("{step:?} was answered {answer:?}, the model says {expected:?}"));
        }
        if answer != Answer::Done {
            return Ok(());
        }
        if matches!(step, Step::Over { base, .. } if *base == before.pending_version() && unit != before) {
            // The base may be there without the write over it.
            let mut between = before.clone();
            between.settle();
            self.states.push(between);
        }
        self.answer_binds |= unit != before && !matches!(step, Step::Commit { .. });
        self.replaced |= unit != before && matches!(step, Step::Fresh { .. } | Step::Rebuild { .. });
        self.states.push(unit);
        Ok(())
    }

    /// What was done so far was answered.
    fn answered(&mut self, durable: bool) {
        if durable || self.answer_binds {
            *self = Allowed::settled(self.now().clone());
        }
    }

    fn check(&self, seen: &Seen, fills: &Fills, unit: usize) -> Result<(), String> {
        let floors = self.states.iter().any(|state| state.floor == seen.floor());
        if !floors {
            return Err(format!("floor {} is that of none of {:?}", seen.floor(), self.states));
        }
        let seen = match seen {
            Seen::Damaged { .. } if self.replaced => return Ok(()),
            Seen::Damaged { .. } => return Err("damaged".to_owned()),
            Seen::Unit(seen) => seen,
        };
        let is = |state: &ModelUnit| ModelUnit { rebuilt: None, floor: seen.floor, ..state.clone() } == *seen;
        if self.states.iter().any(is) {
            return Ok(());
        }
        if !self.replaced {
            return Err(format!("{seen:?} is none of {:?}", self.states));
        }
        let contents = seen.committed.iter().chain(seen.pending.iter().map(|pending| &pending.content));
        contents.into_iter().try_for_each(|content| self.check_replaced(content, fills, unit))
    }

    /// Of what was there before, sectors may be bad while new bytes come; no sector has another version's, and what is new
    /// is whole.
    fn check_replaced(&self, content: &Content, fills: &Fills, unit: usize) -> Result<(), String> {
        let old = &self.states[0];
        let is_old = content.version == old.committed_version() || content.version == old.pending_version();
        for (sector, found) in content.sectors.iter().enumerate() {
            let allowed = *found == Bad && is_old || fills.contains(&(unit, content.version, sector, *found));
            if !allowed {
                return Err(format!("version {} has {found:?} in sector {sector}", content.version));
            }
        }
        Ok(())
    }
}

/// What a unit shows.
enum Seen {
    Unit(ModelUnit),
    Damaged { floor: u64 },
}

impl Seen {
    fn floor(&self) -> u64 {
        match self {
            Seen::Unit(unit) => unit.floor,
            Seen::Damaged { floor } => *floor,
        }
    }
}

/// What each sector of each version of each unit is.
pub(super) type Fills = BTreeSet<(usize, u64, usize, Sector)>;

pub(super) fn fills_of(events: &[Event]) -> Fills {
    let mut units = vec![ModelUnit::default(); UNITS];
    let mut fills = Fills::new();
    let groups =
        events.iter().filter_map(|event| if let Event::Group(steps) = event { Some(steps) } else { None });
    for (unit, step) in groups.flatten() {
        units[*unit].apply(step);
        let ModelUnit { committed, pending, .. } = &units[*unit];
        for content in committed.iter().chain(pending.iter().map(|pending| &pending.content)) {
            let sectors = content.sectors.iter().enumerate();
            fills.extend(sectors.map(|(sector, found)| (*unit, content.version, sector, *found)));
        }
    }
    fills
}

/// Runs events until the disk loses power, or to their end. Returns what is allowed then.
fn run(rig: &mut Rig, events: &[Event]) -> Result<Vec<Allowed>, String> {
    let mut allowed = vec![Allowed::settled(ModelUnit::default()); UNITS];
    for event in events {
        let went_on = match event {
            Event::Group(steps) => run_group(rig, steps, &mut allowed)?,
            Event::Apply => rig.store.close(|| true).is_ok(),
            Event::Tick => rig.store.apply_due().is_ok(),
        };
        if !went_on {
            break;
        }
    }
    Ok(allowed)
}

/// Whether the disk still has power.
fn run_group(rig: &mut Rig, steps: &[(usize, Step)], allowed: &mut [Allowed]) -> Result<bool, String> {
    for (unit, step) in steps {
        let groups = rig.store.counters().groups;
        let outcome = rig.store.carry_out(step.operation(*unit as u64));
        if rig.store.counters().groups > groups {
            // It began a new group: what came before is durable.
            allowed.iter_mut().for_each(|unit| unit.answered(true));
        }
        if matches!(outcome, Err(Refusal::DiskFailed(_))) {
            // It may have been done in part, and the ones before it too.
            let expected = allowed[*unit].now().clone().apply(step);
            let done = if expected == Answer::Done { Ok(Outcome::Done) } else { outcome };
            if done.is_ok() {
                allowed[*unit].apply(step, &done)?;
            }
            return Ok(false);
        }
        allowed[*unit].apply(step, &outcome)?;
    }
    let groups = rig.store.counters().groups;
    if rig.store.sync().is_err() {
        return Ok(false);
    }
    let durable = rig.store.counters().groups > groups;
    allowed.iter_mut().for_each(|unit| unit.answered(durable));
    Ok(true)
}

fn seen(rig: &mut Rig, unit: usize) -> Seen {
    let view = rig.store.view(unit as u64).unwrap();
    if view.state == inspect::ViewState::Damaged {
        return Seen::Damaged { floor: view.floor.sequence };
    }
    Seen::Unit(observed(rig, unit as u64))
}

/// Checks one outcome of a crash.
fn check_outcome(
    disk: SimulatedDisk,
    weak: Option<Weak>,
    allowed: &[Allowed],
    fills: &Fills,
) -> Result<(), String> {
    let mut rig = Rig::open_weak(disk, weak).map_err(|error| error.to_string())?;
    for round in ["", "after another loss of power, "] {
        for (unit, allowed) in allowed.iter().enumerate() {
            let seen = seen(&mut rig, unit);
            allowed.check(&seen, fills, unit).map_err(|why| format!("{round}unit {unit}: {why}"))?;
        }
        let holds = |unit: &u64| rig.store.view(*unit).unwrap().state != inspect::ViewState::Empty;
        let holding = (0..UNITS as u64).filter(holds).count() as u64;
        let counted = rig.store.totals.used;
        if counted != holding {
            return Err(format!("{round}{counted} units are counted, {holding} hold something"));
        }
        let lost = rig.disk.after_power_loss(&mut Dice(0));
        rig = Rig::open_weak(lost, weak).map_err(|error| error.to_string())?;
    }
    for unit in 0..UNITS as u64 {
        let entered = rig.ask(fresh(unit, 1000 + unit, vec![super::run(0, &[255; 4])]));
        entered.map_err(|refusal| format!("a fresh write does not enter unit {unit}: {refusal}"))?;
    }
    Ok(())
}

/// Loses power at every operation of a history. Returns how many outcomes were tried.
fn crash_everywhere(history: &History, weak: Option<Weak>) -> Result<u64, String> {
    let blank = Rig::new().disk;
    let fills = fills_of(&history.events);
    let start = |events: &[Event]| -> Result<u64, String> {
        let mut rig = Rig::open_weak(blank.after_restart(), weak).map_err(|error| error.to_string())?;
        run(&mut rig, events)?;
        Ok(rig.disk.operations())
    };
    let (first, end) = (start(&history.events[..history.calm])?, start(&history.events)?);
    let mut tried = 0;
    for operation in first + 1..=end {
        let mut rig = Rig::open_weak(blank.after_restart(), weak).map_err(|error| error.to_string())?;
        rig.disk.lose_power_at(operation);
        let allowed = run(&mut rig, &history.events)?;
        let outcomes = rig.disk.crash_outcomes(&mut Dice(operation | 1), SAMPLES);
        for (number, outcome) in outcomes.into_iter().enumerate() {
            let place = |why: String| {
                format!("power lost at operation {operation} of {end}, outcome {number}: {why}")
            };
            check_outcome(outcome, weak, &allowed, &fills).map_err(place)?;
            tried += 1;
        }
    }
    Ok(tried)
}

/// A store whose assertions hold is no less broken if a test's do not.
fn find_fault(history: &History, weak: Option<Weak>) -> Result<u64, String> {
    let caught = catch_unwind(AssertUnwindSafe(|| crash_everywhere(history, weak)));
    caught.unwrap_or_else(|_| Err("an assertion failed".to_owned()))
}

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn power_may_be_lost_at_every_operation() {
    let one = setting("STRIPESET_CRASH_SEED");
    let seeds = setting("STRIPESET_CRASH_SEEDS").unwrap_or(SEEDS);
    let mut histories = if one.is_none() { scripts() } else { Vec::new() };
    histories.extend(one.map_or(1..seeds + 1, |seed| seed..seed + 1).map(random));
    let (next, tried) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(history) = histories.get(next.fetch_add(1, Ordering::Relaxed) as usize) {
                    match crash_everywhere(history, None) {
                        Ok(outcomes) => tried.fetch_add(outcomes, Ordering::Relaxed),
                        Err(why) => panic!(
                            "{}: {why}\n{:#?}\nRepeat a seed with: STRIPESET_CRASH_SEED=<seed> cargo test -p stripeset-agent power_may_be_lost",
                            history.name, history.events
                        ),
                    };
                }
            });
        }
    });
    let tried = tried.into_inner();
    // Past the capture of the test's output: the count is a part of the result.
    writeln!(io::stderr(), "{tried} crashes in {} histories", histories.len()).unwrap();
    assert!(one.is_some() || tried >= CRASHES_MIN, "{tried} crashes");
}

#[test]
fn the_checker_sees_every_broken_store_fail() {
    let broken = [
        Weak::SyncSkipped,
        Weak::TableBeforeData,
        Weak::FloorNotPersisted,
        Weak::ChecksumNotVerified,
        Weak::RedoOverFresh,
        Weak::FreshBelieved,
        Weak::TornGroupBelieved,
        Weak::AppliedBeforeCommit,
    ];
    for weak in broken {
        let mut histories = scripts().into_iter().chain((1..20).map(random));
        let found = histories.find_map(|history| {
            let why = find_fault(&history, Some(weak)).err()?;
            Some(format!("{}: {why}", history.name))
        });
        let Some(why) = found else { panic!("a store with {weak:?} passes") };
        println!("{weak:?}: {why:.300}");
    }
}
