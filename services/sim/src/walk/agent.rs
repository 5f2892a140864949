//! One agent and its disk, under the rules A0 to A8.
//!
//! Decides what a message does to a disk, and what a crash leaves. When messages come, and when an agent crashes, `world`
//! decides.

use stripeset_stripe::{Epoch, Version, label::Label};
use uuid::Uuid;

use super::{Broken, Cell, Counts, Rule, STRIPES, VERTICALS, VERTICALS_MAX, Vector};
use crate::dice::Dice;

/// Journal records that are kept after they were applied.
const APPLIED_KEPT: usize = 4;

/// What is on a medium that was given back, or torn.
const JUNK: Cell = [u32::MAX; super::DATA_MAX];

/// New cells, by vertical.
pub type Cells = [Option<Cell>; VERTICALS_MAX];

/// A write that is neither committed nor aborted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pending {
    /// Its version.
    pub version: Version,
    /// What it stands on; nothing if it is fresh.
    pub base: Version,
    /// It enters an empty stripe.
    pub fresh: bool,
    /// One bit for each shard that takes part.
    pub participants: u32,
    /// What it writes here.
    pub cells: Cells,
    /// What each shard should have afterwards.
    pub vector: Vector,
}

#[derive(Clone, Copy, Debug)]
struct Redo {
    version: Version,
    cells: Cells,
}

/// A commit that was not synced: a crash may take it back.
#[derive(Clone, Copy, Debug)]
struct Unsynced {
    committed: Version,
    vector: Vector,
    checksums: [Cell; VERTICALS_MAX],
    pending: Pending,
}

/// One shard on its disk.
#[derive(Clone, Debug)]
pub struct Unit {
    /// Its committed version.
    pub committed: Version,
    /// What each shard of the stripe should have.
    pub vector: Vector,
    /// The write that is pending.
    pub pending: Option<Pending>,
    /// Highest version that was ever prepared, aborted or committed here.
    pub floor: Version,
    verticals: usize,
    home: [Cell; VERTICALS_MAX],
    /// What the cells should be: their checksums.
    checksums: [Cell; VERTICALS_MAX],
    redo: Vec<Redo>,
    /// What was applied or dropped, and still stands in the journal.
    applied: Vec<Redo>,
    unsynced: Option<Unsynced>,
}

impl Unit {
    fn blank(verticals: usize) -> Unit {
        Unit {
            committed: Version::NONE,
            vector: [Version::NONE; super::MEMBERS_MAX],
            pending: None,
            floor: Version::NONE,
            verticals,
            home: [[0; super::DATA_MAX]; VERTICALS_MAX],
            checksums: [[0; super::DATA_MAX]; VERTICALS_MAX],
            redo: Vec::new(),
            applied: Vec::new(),
            unsynced: None,
        }
    }

    /// What the committed state has in a vertical.
    pub fn cell(&self, vertical: usize) -> Cell {
        let redo = self.redo.iter().rev().find_map(|redo| redo.cells[vertical]);
        redo.unwrap_or(self.home[vertical])
    }

    /// Whether that is what its checksum says.
    pub fn is_good(&self, vertical: usize) -> bool {
        self.cell(vertical) == self.checksums[vertical]
    }

    /// What is home in a vertical.
    pub fn home(&self, vertical: usize) -> Cell {
        self.home[vertical]
    }

    /// What is pending becomes the committed state.
    pub fn commit(&mut self) {
        let Some(pending) = self.pending.take() else { return };
        let (committed, vector, checksums) = (self.committed, self.vector, self.checksums);
        self.unsynced = Some(Unsynced { committed, vector, checksums, pending });
        (self.committed, self.vector) = (pending.version, pending.vector);
        for (checksum, cell) in self.checksums.iter_mut().zip(pending.cells) {
            *checksum = cell.unwrap_or(*checksum);
        }
        if !pending.fresh {
            self.redo.push(Redo { version: pending.version, cells: pending.cells });
        }
    }

    fn drop_redo(&mut self) {
        self.applied.append(&mut self.redo);
    }

    /// The oldest redo goes home.
    pub fn apply_one(&mut self) {
        if self.redo.is_empty() {
            return;
        }
        self.unsynced = None;
        let redo = self.redo.remove(0);
        self.put_home(redo.cells);
        self.applied.push(redo);
        if self.applied.len() > APPLIED_KEPT {
            self.applied.remove(0);
        }
    }

    fn put_home(&mut self, cells: Cells) {
        for (home, cell) in self.home.iter_mut().zip(cells) {
            *home = cell.unwrap_or(*home);
        }
    }

    fn crash(&mut self, dice: &mut Dice, broken: Broken) {
        let forgets = dice.of_thousand(500);
        if let Some(unsynced) = self.unsynced.take()
            && forgets
            && self.pending.is_none()
        {
            self.redo.retain(|redo| redo.version != unsynced.pending.version);
            (self.committed, self.vector) = (unsynced.committed, unsynced.vector);
            self.checksums = unsynced.checksums;
            self.pending = Some(unsynced.pending);
        }
        if broken.lacks(Rule::RedoOverNewer) {
            let mut all = self.applied.clone();
            all.extend(&self.redo);
            all.sort_by_key(|redo| redo.version);
            all.into_iter().for_each(|redo| self.put_home(redo.cells));
            self.drop_redo();
        } else if broken.lacks(Rule::OnlyNewestApplied) {
            if let Some(newest) = self.redo.pop() {
                self.put_home(newest.cells);
                self.drop_redo();
            }
        } else if forgets {
            while !self.redo.is_empty() {
                self.apply_one();
            }
        }
        // A fresh record whose bytes are not home was never prepared.
        let torn = |pending: &Pending| {
            pending.fresh
                && (0..self.verticals).any(|at| pending.cells[at].is_some_and(|c| c != self.home[at]))
        };
        if self.pending.as_ref().is_some_and(torn) && !broken.lacks(Rule::TornFreshBelieved) {
            self.pending = None;
        }
    }
}

/// What a coordinator asks of a disk, of one stripe or of all.
#[derive(Clone, Debug)]
pub enum Ask {
    /// Fence.
    Fence,
    /// First phase of a write.
    Prepare(usize, Box<Pending>),
    /// A decided write.
    Commit(usize, Version),
    /// A write that is taken back.
    Abort(usize, Version),
    /// An empty stripe.
    Discard(usize, Version),
    /// A shard replaced whole, under a token.
    Rebuild {
        /// The stripe.
        stripe: usize,
        /// The token of this attempt.
        token: Version,
        /// The version it has afterwards.
        committed: Version,
        /// What each shard should have.
        vector: Vector,
        /// What it has.
        cells: [Cell; VERTICALS_MAX],
    },
    /// A revision of the label.
    SetLabel(Box<Label>),
}

/// What a disk answers.
#[derive(Clone, Debug)]
pub enum Answer {
    /// Fenced: the disk, who fenced it since it took its label, its label, and its units.
    Fenced(Box<FencedDisk>),
    /// Prepared.
    Prepared(usize, Version),
    /// Committed, or nothing to commit.
    Committed(usize, Version),
    /// Aborted.
    Aborted(usize, Version),
    /// Rebuilt, or discarded, under this token.
    Replaced(usize, Version),
    /// The label was taken.
    Labelled(stripeset_stripe::label::Revision),
}

/// What a fenced disk shows.
#[derive(Clone, Debug)]
pub struct FencedDisk {
    /// Its UUID.
    pub disk_id: Uuid,
    /// See [`Agent::fenced_by`].
    pub fenced_by: Vec<Uuid>,
    /// Its label.
    pub label: Option<Label>,
    /// Its shards.
    pub units: [Unit; STRIPES],
}

/// Who asks.
#[derive(Clone, Copy, Debug)]
pub struct Sender {
    /// Epoch of the coordinator.
    pub epoch: Epoch,
    /// Its state folder.
    pub folder: Uuid,
    /// The disk that is meant.
    pub disk_id: Uuid,
}

/// An agent.
#[derive(Clone, Debug)]
pub struct Agent {
    /// UUID of its disk.
    pub disk_id: Uuid,
    /// Highest epoch it was fenced for.
    pub epoch: Epoch,
    /// State folders from which it was fenced since it took its label.
    pub fenced_by: Vec<Uuid>,
    /// Its label.
    pub label: Option<Label>,
    /// Its shards.
    pub units: [Unit; STRIPES],
    /// Its disk is gone.
    pub lost: bool,
    /// It does not answer.
    pub down: bool,
}

impl Agent {
    /// An agent on a blank disk, with or without a label.
    pub fn new(disk_id: Uuid, label: Option<Label>, fenced_by: Vec<Uuid>) -> Agent {
        let units = VERTICALS.map(Unit::blank);
        Agent { disk_id, epoch: Epoch::default(), fenced_by, label, units, lost: false, down: false }
    }

    /// It crashes, and comes back with what its disk has.
    pub fn crash(&mut self, dice: &mut Dice, broken: Broken, counts: &mut Counts) {
        counts.crashes += 1;
        self.units.iter_mut().for_each(|unit| unit.crash(dice, broken));
    }

    /// Carries a message out; what it answers, if it does. `mended`: nothing tears any more.
    pub fn handle(
        &mut self,
        sender: Sender,
        ask: Ask,
        mended: bool,
        (dice, broken, counts): (&mut Dice, Broken, &mut Counts),
    ) -> Option<Answer> {
        if let Ask::Fence = ask {
            return self.fence(sender);
        }
        if sender.disk_id != self.disk_id {
            return None;
        }
        let unchecked = broken.lacks(Rule::NoEpochCheck)
            || broken.lacks(Rule::LabelWithoutEpoch) && matches!(ask, Ask::SetLabel(_));
        if sender.epoch != self.epoch && !unchecked {
            counts.fenced += 1;
            return None;
        }
        match ask {
            Ask::Fence => None,
            Ask::Prepare(stripe, pending) if pending.fresh => {
                let tears = !mended && dice.of_thousand(40);
                self.prepare_fresh(stripe, *pending, tears, (dice, broken, counts))
            }
            Ask::Prepare(stripe, pending) => self.prepare(stripe, *pending, counts),
            Ask::Commit(stripe, version) => {
                let unit = &mut self.units[stripe];
                if unit.pending.is_some_and(|pending| pending.version == version) {
                    unit.commit();
                }
                Some(Answer::Committed(stripe, version))
            }
            Ask::Abort(stripe, version) => {
                let unit = &mut self.units[stripe];
                unit.pending = unit.pending.take().filter(|pending| pending.version != version);
                unit.floor = unit.floor.max(version);
                unit.unsynced = None;
                Some(Answer::Aborted(stripe, version))
            }
            Ask::Discard(stripe, version) => {
                let unit = &mut self.units[stripe];
                if version <= unit.floor && !broken.lacks(Rule::DiscardWithoutFloor) {
                    counts.below_floor += 1;
                    return None;
                }
                unit.floor = unit.floor.max(version);
                (unit.pending, unit.unsynced) = (None, None);
                unit.drop_redo();
                unit.home = [JUNK; VERTICALS_MAX];
                counts.discards += 1;
                Some(Answer::Replaced(stripe, version))
            }
            Ask::Rebuild { stripe, token, committed, vector, cells } => {
                let unit = &mut self.units[stripe];
                if unit.floor > token {
                    counts.below_floor += 1;
                    return None;
                }
                (unit.committed, unit.vector) = (committed, vector);
                (unit.home, unit.checksums) = (cells, cells);
                (unit.pending, unit.unsynced) = (None, None);
                if !broken.lacks(Rule::RebuildKeepsRedo) {
                    unit.drop_redo();
                }
                unit.floor = token;
                counts.rebuilt += 1;
                Some(Answer::Replaced(stripe, token))
            }
            Ask::SetLabel(label) => self.set_label(*label, sender.folder, broken),
        }
    }

    fn fence(&mut self, sender: Sender) -> Option<Answer> {
        if sender.epoch < self.epoch {
            return None;
        }
        self.epoch = sender.epoch;
        self.fenced_by.retain(|folder| *folder != sender.folder);
        self.fenced_by.push(sender.folder);
        self.units.iter_mut().for_each(|unit| unit.unsynced = None);
        Some(Answer::Fenced(Box::new(FencedDisk {
            disk_id: self.disk_id,
            fenced_by: self.fenced_by.clone(),
            label: self.label.clone(),
            units: self.units.clone(),
        })))
    }

    fn set_label(&mut self, label: Label, folder: Uuid, broken: Broken) -> Option<Answer> {
        let revision = label.revision;
        let own = self.label.as_ref().map(|label| label.revision);
        if own > Some(revision) && !broken.lacks(Rule::OlderLabelTaken) {
            return None;
        }
        if own != Some(revision) {
            self.fenced_by = vec![folder];
        }
        self.label = Some(label);
        Some(Answer::Labelled(revision))
    }

    fn prepare(&mut self, stripe: usize, new: Pending, counts: &mut Counts) -> Option<Answer> {
        let unit = &mut self.units[stripe];
        let answer = Some(Answer::Prepared(stripe, new.version));
        if unit.has(new.version) {
            return answer;
        }
        if new.version <= unit.floor {
            counts.below_floor += 1;
            return None;
        }
        // A base is always decided.
        if unit.pending.is_some_and(|pending| pending.version == new.base) {
            unit.commit();
        }
        if unit.pending.is_some() || unit.committed != new.base {
            return None;
        }
        unit.unsynced = None;
        unit.floor = new.version;
        unit.pending = Some(new);
        answer
    }

    fn prepare_fresh(
        &mut self,
        stripe: usize,
        new: Pending,
        tears: bool,
        (dice, broken, counts): (&mut Dice, Broken, &mut Counts),
    ) -> Option<Answer> {
        let unit = &mut self.units[stripe];
        let answer = Some(Answer::Prepared(stripe, new.version));
        if unit.has(new.version) {
            return answer;
        }
        if new.version <= unit.floor && !broken.lacks(Rule::FreshWithoutFloor) {
            counts.below_floor += 1;
            return None;
        }
        if tears {
            // It crashes before the one sync: any part of it may have reached the disk.
            for vertical in 0..unit.verticals {
                let Some(cell) = new.cells[vertical] else { continue };
                match dice.below(3) {
                    0 => {}
                    1 => unit.home[vertical] = cell,
                    _ => unit.home[vertical] = JUNK,
                }
            }
            if dice.below(3) > 0 {
                (unit.pending, unit.unsynced) = (None, None);
                unit.drop_redo();
            }
            if dice.below(3) > 0 {
                unit.floor = new.version;
                (unit.pending, unit.unsynced) = (Some(new), None);
                unit.drop_redo();
            }
            counts.torn += 1;
            self.crash(dice, broken, counts);
            return None;
        }
        if unit.pending.is_some() && broken.lacks(Rule::FreshKeepsPending) {
            return None;
        }
        unit.unsynced = None;
        if !broken.lacks(Rule::FreshKeepsRedo) {
            unit.drop_redo();
        }
        unit.put_home(new.cells);
        unit.floor = unit.floor.max(new.version);
        unit.pending = Some(new);
        answer
    }
}

impl Unit {
    fn has(&self, version: Version) -> bool {
        self.committed == version || self.pending.is_some_and(|pending| pending.version == version)
    }
}
