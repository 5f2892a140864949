//! The store beside a plain model of it: random operations and restarts, the same answers and the same state.
//!
//! The model is the rules in the fewest words: a unit is a committed and a pending content, and a floor.

use proptest::{collection::vec, prelude::*};

use super::*;

/// What a unit holds at one version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Content {
    pub(super) version: u64,
    pub(super) sectors: Vec<Sector>,
}

/// A pending write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ModelPending {
    pub(super) content: Content,
    pub(super) fresh: bool,
}

/// A unit as the protocol describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ModelUnit {
    pub(super) committed: Option<Content>,
    pub(super) pending: Option<ModelPending>,
    pub(super) floor: u64,
    /// Token and version of the rebuild that the committed content is from.
    pub(super) rebuilt: Option<(u64, u64)>,
}

/// An operation on one unit, in the words of the model.
#[derive(Clone, Debug)]
pub(super) enum Step {
    Fresh { version: u64, first: usize, fills: Vec<u8> },
    Over { version: u64, base: u64, first: usize, fills: Vec<u8> },
    Commit { version: u64 },
    Abort { version: u64 },
    Discard { version: u64 },
    Rebuild { token: u64, version: u64, first: usize, fills: Vec<u8>, lost: usize },
}

/// What the store should answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Done,
    BelowFloor,
    Busy,
    Mismatch,
}

const LOST: [&[u8]; SECTORS + 1] = [&[1], &[2], &[4], &[8], &[]];

impl Step {
    pub(super) fn operation(&self, unit: u64) -> Operation {
        match self {
            Step::Fresh { version, first, fills } => fresh(unit, *version, vec![run(*first, fills)]),
            Step::Over { version, base, first, fills } => {
                over(unit, *version, *base, vec![run(*first, fills)])
            }
            Step::Commit { version } => commit(unit, *version),
            Step::Abort { version } => abort(unit, *version),
            Step::Discard { version } => discard(unit, *version),
            Step::Rebuild { token, version, first, fills, lost } => {
                rebuild(unit, *token, *version, vec![run(*first, fills)], LOST[*lost])
            }
        }
    }
}

fn entered(mut sectors: Vec<Sector>, first: usize, fills: &[u8]) -> Vec<Sector> {
    for (index, fill) in fills.iter().enumerate() {
        sectors[first + index] = Fill(*fill);
    }
    sectors
}

impl ModelUnit {
    pub(super) fn committed_version(&self) -> u64 {
        self.committed.as_ref().map_or(0, |content| content.version)
    }

    pub(super) fn pending_version(&self) -> u64 {
        self.pending.as_ref().map_or(0, |pending| pending.content.version)
    }

    /// Commits what is pending.
    pub(super) fn settle(&mut self) {
        if let Some(pending) = self.pending.take() {
            self.committed = Some(pending.content);
            self.rebuilt = None;
        }
    }

    pub(super) fn apply(&mut self, step: &Step) -> Answer {
        match step {
            Step::Fresh { version, .. } | Step::Over { version, .. }
                if *version == self.pending_version() => {}
            Step::Fresh { version, .. } | Step::Over { version, .. } if *version <= self.floor => {
                let done = *version == self.committed_version();
                return if done { Answer::Done } else { Answer::BelowFloor };
            }
            Step::Fresh { version, first, fills } => {
                let sectors = entered(vec![NeverWritten; SECTORS], *first, fills);
                let content = Content { version: *version, sectors };
                *self = ModelUnit { floor: *version, ..ModelUnit::default() };
                self.pending = Some(ModelPending { content, fresh: true });
            }
            Step::Over { version, base, first, fills } => {
                match self.pending_version() {
                    0 => {}
                    pending if pending == *base => self.settle(),
                    _ => return Answer::Busy,
                }
                let Some(content) = self.committed.as_ref().filter(|content| content.version == *base) else {
                    return Answer::Mismatch;
                };
                let sectors = entered(content.sectors.clone(), *first, fills);
                let content = Content { version: *version, sectors };
                self.pending = Some(ModelPending { content, fresh: false });
                self.floor = *version;
            }
            Step::Commit { version } if *version == self.pending_version() => self.settle(),
            Step::Commit { .. } => {}
            Step::Abort { version } => {
                if *version == self.pending_version() {
                    self.pending = None;
                }
                self.floor = self.floor.max(*version);
            }
            Step::Discard { version } if *version <= self.floor => return Answer::BelowFloor,
            Step::Discard { version } => *self = ModelUnit { floor: *version, ..ModelUnit::default() },
            Step::Rebuild { token, version, .. } if *token <= self.floor => {
                let repeated = *token == self.floor && self.rebuilt == Some((*token, *version));
                return if repeated { Answer::Done } else { Answer::BelowFloor };
            }
            Step::Rebuild { token, version, first, fills, lost } => {
                let mut sectors = entered(vec![NeverWritten; SECTORS], *first, fills);
                if *lost < SECTORS {
                    sectors[*lost] = Bad;
                }
                let (committed, rebuilt) =
                    (Some(Content { version: *version, sectors }), Some((*token, *version)));
                *self = ModelUnit { committed, pending: None, floor: *token, rebuilt };
            }
        }
        Answer::Done
    }
}

pub(super) fn answer_of(outcome: &Result<Outcome, Refusal>) -> Answer {
    match outcome {
        Ok(_) => Answer::Done,
        Err(Refusal::BelowFloor { .. }) => Answer::BelowFloor,
        Err(Refusal::Busy { .. }) => Answer::Busy,
        Err(Refusal::VersionMismatch { .. } | Refusal::Empty { .. }) => Answer::Mismatch,
        Err(other) => panic!("{other}"),
    }
}

/// What the store shows of a unit, in the words of the model.
pub(super) fn observed(rig: &mut Rig, unit: u64) -> ModelUnit {
    let view = rig.store.view(unit).unwrap();
    let mut content = |version: Version| {
        (!version.is_none()).then(|| {
            let (found, sectors) = rig.read(unit, version.sequence).unwrap();
            assert_eq!(found, version.sequence);
            Content { version: found, sectors }
        })
    };
    let committed = content(view.committed);
    let pending = content(view.pending);
    let fresh = rig.store.pending_of(unit).is_some_and(|pending| pending.base.is_none());
    ModelUnit {
        pending: pending.map(|content| ModelPending { content, fresh }),
        committed,
        floor: view.floor.sequence,
        rebuilt: None,
    }
}

/// Fills for a run that starts at a sector, and fits.
fn fills() -> impl Strategy<Value = (usize, Vec<u8>)> {
    (0..SECTORS).prop_flat_map(|first| (Just(first), vec(1_u8..=255, 1..=SECTORS - first)))
}

/// A step near what the unit holds: versions are offsets from its floor, so that all answers are common.
#[derive(Clone, Debug)]
enum Choice {
    Write { fresh: bool, ahead: i64, base: u8, first: usize, fills: Vec<u8> },
    Commit { exact: bool },
    Abort { exact: bool, ahead: i64 },
    Discard { ahead: i64 },
    Rebuild { ahead: i64, behind: u64, first: usize, fills: Vec<u8>, lost: usize },
    Restart,
}

fn choice() -> impl Strategy<Value = Choice> {
    prop_oneof![
        8 => (prop::bool::weighted(0.3), -1_i64..3, 0_u8..8, fills())
            .prop_map(|(fresh, ahead, base, (first, fills))| Choice::Write { fresh, ahead, base, first, fills }),
        4 => prop::bool::weighted(0.9).prop_map(|exact| Choice::Commit { exact }),
        2 => (any::<bool>(), 0_i64..3).prop_map(|(exact, ahead)| Choice::Abort { exact, ahead }),
        1 => (-1_i64..3).prop_map(|ahead| Choice::Discard { ahead }),
        1 => (-1_i64..3, 0_u64..3, fills(), 0..=SECTORS).prop_map(|(ahead, behind, (first, fills), lost)| {
            let lost = if (first..first + fills.len()).contains(&lost) { SECTORS } else { lost };
            Choice::Rebuild { ahead, behind, first, fills, lost }
        }),
        1 => Just(Choice::Restart),
    ]
}

impl Choice {
    fn step(self, unit: &ModelUnit) -> Option<Step> {
        let ahead = |ahead: i64| unit.floor.saturating_add_signed(ahead).max(1);
        let pending = unit.pending_version().max(1);
        Some(match self {
            Choice::Restart => return None,
            Choice::Write { fresh: true, ahead: by, first, fills, .. } => {
                Step::Fresh { version: ahead(by), first, fills }
            }
            Choice::Write { ahead: by, base, first, fills, .. } => {
                let base = match base {
                    0 => unit.floor,
                    1 => unit.committed_version(),
                    _ => unit.pending_version().max(unit.committed_version()),
                };
                Step::Over { version: ahead(by), base, first, fills }
            }
            Choice::Commit { exact: true } => Step::Commit { version: pending },
            Choice::Commit { exact: false } => Step::Commit { version: pending + 1 },
            Choice::Abort { exact: true, .. } => Step::Abort { version: pending },
            Choice::Abort { ahead: by, .. } => Step::Abort { version: ahead(by) },
            Choice::Discard { ahead: by } => Step::Discard { version: ahead(by) },
            Choice::Rebuild { ahead: by, behind, first, fills, lost } => {
                let token = ahead(by);
                Step::Rebuild { token, version: token.saturating_sub(behind).max(1), first, fills, lost }
            }
        })
    }
}

proptest! {
    #[test]
    fn the_store_does_what_the_model_does(choices in vec((0_u64..3, choice()), 1..60)) {
        let mut rig = Rig::new();
        let mut units = vec![ModelUnit::default(); 3];
        for (unit, choice) in choices {
            let model = &mut units[unit as usize];
            let Some(step) = choice.step(model) else {
                // What a kill may take back - commits since the last group - is for the crash tests.
                rig.pending();
                rig.restart();
                continue;
            };
            let outcome = rig.ask(step.operation(unit));
            let expected = model.apply(&step);
            prop_assert_eq!(answer_of(&outcome), expected, "{:?}", step);
            let seen = observed(&mut rig, unit);
            let known = ModelUnit { rebuilt: None, ..model.clone() };
            prop_assert_eq!(seen, known, "after {:?}", step);
        }
        rig.apply();
        rig.restart();
        for (unit, model) in units.into_iter().enumerate() {
            let seen = observed(&mut rig, unit as u64);
            prop_assert_eq!(seen, ModelUnit { rebuilt: None, ..model });
        }
    }
}
