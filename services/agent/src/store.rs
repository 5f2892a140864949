//! The store: one disk's units under the agent's rules (A0 to A8 of the protocol). Synchronous, one owner, no clock.
//!
//! This file decides who may ask (disk, epoch), when what was done is durable, and what happens when the disk fails.
//! First phases are in [`prepare`], what follows them in [`settle`], reads in [`read`], what a start finds in [`replay`],
//! how the journal is emptied in [`apply`], inspection in [`inspect`]; [`change`], [`journal`] and [`table`] know the disk's bytes.
//!
//! Every change of a unit is a record in the journal. A group of operations is gathered in memory, written as one group
//! of the journal by [`Store::sync`], and answered then: before that nothing an operation changed may be told to anyone.
//! Later the changes are applied: bytes of partial writes go home, records go to the table.
//!
//! Invariants:
//! 1. Nothing is changed for another disk's UUID (A0) or another epoch than the disk's (A1).
//! 2. The floor of a unit never falls, and nothing at or below it is prepared (A2, A2f, A7).
//! 3. What is at home and in the table, changed by what the journal holds from its tail on, in order, is the state that
//!    was answered last. Nothing is applied before the journal that says so is durable, and the tail passes nothing before
//!    what was applied is.
//! 4. A unit has at most one pending write, and that is in the journal (A2, A2f).
//! 5. Once a write or a sync has failed nothing is written any more, and nothing is reported as done: pages that the
//!    kernel could not write may be gone although a later sync succeeds.
//! 6. Memory is bounded by the ring, [`RECENT_MAX`], and what the table keeps, whatever the disk's length.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
};

use bytes::Bytes;
use stripeset_stripe::{Epoch, Version, bits::Bits, label::Label};
use thiserror::Error;
use uuid::Uuid;

use crate::{
    disk::{self, Disk, Traffic},
    label::{self, LabelError},
    layout::{Layout, NoRoom, UNIT_SECTORS_MAX},
    operation::{Operation, Outcome, PendingWrite},
    record::{Record, State},
    refusal::Refusal,
    superblock::{Superblock, SuperblockError},
};

mod apply;
mod change;
mod flush;
pub(crate) mod inspect;
pub(crate) mod journal;
mod prepare;
mod read;
mod replay;
mod settle;
mod table;
pub(crate) mod tamper;
mod weakness;

use flush::Staging;
use journal::{Journal, JournalError, Place, Totals};
use table::Table;
pub(crate) use table::VERSIONS_IN_PAGE;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use table::{seal_directory_page, try_directory_page};
use weakness::Weak;

/// Most writes that may be pending on a disk: a Fence lists them all in one message, at less than 200 bytes each.
pub(crate) const PENDING_MAX: usize = 16 * 1024;

/// Most units whose newest record is not in the table yet; each takes about 1 KiB of memory.
pub(crate) const RECENT_MAX: usize = 2 * PENDING_MAX;

/// What was done since the store was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counters {
    pub(crate) prepares: u64,
    pub(crate) reads: u64,
    pub(crate) checksum_errors: u64,
    pub(crate) disk_errors: u64,
    pub(crate) refusals: u64,
    pub(crate) groups: u64,
    pub(crate) applied_units: u64,
}

/// A unit of which the journal knows more than table and home.
#[derive(Debug, Default)]
struct Recent {
    changed: Option<Changed>,
    pending: Option<Pending>,
}

/// A state that is not at home, or not in the table.
#[derive(Debug)]
struct Changed {
    record: Record,
    /// Bytes of the sectors that have to go home.
    redo: Redo,
    /// Nothing older in the journal is needed for it.
    since: Place,
}

/// Sectors and their bytes, which the journal holds too.
type Redo = BTreeMap<usize, Bytes>;

/// A write that was neither committed nor aborted.
#[derive(Debug)]
struct Pending {
    /// As the unit will be.
    record: Record,
    /// `None` if fresh.
    base: Option<Version>,
    participants: u32,
    redo: Redo,
    /// Nothing older in the journal is needed for it.
    since: Place,
    /// Bytes that it takes in the journal.
    bytes: u64,
}

/// One disk.
pub(crate) struct Store {
    disk: Box<dyn Disk>,
    superblock: Superblock,
    /// `None` while the disk is blank; then there is no table, and everything below is empty.
    layout: Option<Layout>,
    table: Option<Table>,
    journal: Journal,
    staging: Staging,
    recent: BTreeMap<u64, Recent>,
    pending_writes: usize,
    /// Bytes of pending writes in the journal.
    pending_bytes: u64,
    totals: Totals,
    /// What changed before this place is applied by the next [`Store::apply_due`].
    due: Place,
    /// Units whose bytes found no space when the group was written; told by the next sync.
    full: BTreeSet<u64>,
    counters: Counters,
    /// Why nothing is written any more.
    failure: Option<String>,
    #[cfg(test)]
    weakness: Option<Weak>,
}

/// Why a disk cannot be opened.
#[derive(Debug, Error)]
pub(crate) enum OpenError {
    #[error(transparent)]
    Superblock(#[from] SuperblockError),
    #[error("the disk has {bytes} bytes, it was formatted with {formatted}")]
    LengthChanged { bytes: u64, formatted: u64 },
    #[error("the label is not one that the disk can have: {0}")]
    Label(#[from] LabelError),
    #[error("the label does not fit the disk: {0}")]
    Layout(#[from] NoRoom),
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error("the disk cannot be read or written")]
    Io(#[from] io::Error),
}

/// Why a disk cannot join an array.
#[derive(Debug, Error)]
pub(crate) enum JoinError {
    #[error("the request is for disk {given}, this is disk {own}")]
    WrongDisk { given: Uuid, own: Uuid },
    #[error("the disk belongs to array {array} as member {member}; only a blank disk can join")]
    NotBlank { array: Uuid, member: usize },
    #[error(transparent)]
    Label(#[from] LabelError),
    #[error(transparent)]
    Layout(#[from] NoRoom),
    #[error("no space for the journal on the disk; make room")]
    Full,
    #[error("the disk failed: {0}")]
    DiskFailed(String),
}

impl Store {
    /// Writes the superblocks of a blank disk.
    pub(crate) fn format(disk: &mut dyn Disk, disk_id: Uuid) -> io::Result<()> {
        Superblock::blank(disk_id, disk.bytes()).write(disk)
    }

    /// Opens a formatted disk, and brings it to the state that it had told of when it stopped.
    pub(crate) fn open(disk: Box<dyn Disk>) -> Result<Store, OpenError> {
        let mut store = Store::open_superblock(disk)?;
        if let Some(layout) = store.layout {
            store.replay(layout)?;
        }
        Ok(store)
    }

    fn open_superblock(mut disk: Box<dyn Disk>) -> Result<Store, OpenError> {
        let (superblock, copies_agree) = Superblock::read(&mut *disk)?;
        if superblock.disk_bytes != disk.bytes() {
            let (bytes, formatted) = (disk.bytes(), superblock.disk_bytes);
            return Err(OpenError::LengthChanged { bytes, formatted });
        }
        if !copies_agree {
            superblock.write(&mut *disk)?;
        }
        let mut layout = None;
        if let Some(label) = &superblock.label {
            label::check(label, superblock.disk_id)?;
            let shape = label::shape(label);
            layout = Some(Layout::new(disk.bytes(), label.unit_bytes, label.slice_bytes, shape)?);
        }
        Ok(Store {
            disk,
            superblock,
            layout,
            table: None,
            journal: Journal::none(),
            staging: Staging::default(),
            recent: BTreeMap::new(),
            pending_writes: 0,
            pending_bytes: 0,
            totals: Totals::default(),
            due: Place::default(),
            full: BTreeSet::new(),
            counters: Counters::default(),
            failure: None,
            #[cfg(test)]
            weakness: None,
        })
    }

    /// Makes the blank disk a member of an array, durably: journal and table are written out, then the label. Returns the
    /// slices that fit.
    pub(crate) fn join(&mut self, disk_id: Uuid, label: Label) -> Result<u64, JoinError> {
        let own = self.superblock.disk_id;
        if disk_id != own {
            return Err(JoinError::WrongDisk { given: disk_id, own });
        }
        if let Some(label) = &self.superblock.label {
            let member = label.member_of(own).unwrap_or_default();
            return Err(JoinError::NotBlank { array: label.array_id, member });
        }
        label::check(&label, own)?;
        let shape = label::shape(&label);
        let layout = Layout::new(self.disk.bytes(), label.unit_bytes, label.slice_bytes, shape)?;
        if let Some(failure) = &self.failure {
            return Err(JoinError::DiskFailed(failure.clone()));
        }
        if let Err(error) = self.write_out(&layout) {
            self.counters.disk_errors += 1;
            let full = disk::is_full(&error);
            return Err(if full { JoinError::Full } else { JoinError::DiskFailed(error.to_string()) });
        }
        let (generation, label) = (self.superblock.generation + 1, Some(label));
        // Whoever fenced it before did not see this label.
        let fenced_by = self.superblock.fenced_by.last().copied().into_iter().collect();
        let superblock = Superblock { generation, label, fenced_by, ..self.superblock.clone() };
        self.change_superblock(superblock).map_err(|refusal| JoinError::DiskFailed(refusal.to_string()))?;
        self.layout = Some(layout);
        self.replay(layout).map_err(|error| JoinError::DiskFailed(error.to_string()))?;
        Ok(layout.slices())
    }

    /// Space for them is taken now, and initialised: a write that found none later would have to be refused, and with it
    /// those that make room.
    fn write_out(&mut self, layout: &Layout) -> io::Result<()> {
        let (disk, disk_id) = (&mut *self.disk, self.superblock.disk_id);
        let range = layout.written_out();
        disk.zero(range.start, range.end - range.start)?;
        Table::format(disk, disk_id, layout)?;
        Journal::format(disk, disk_id)?;
        disk.sync()
    }

    /// Makes the disk refuse every lower epoch, durably (A1), and lists what is pending. `folder` names the state folder of
    /// the coordinator.
    pub(crate) fn fence(&mut self, epoch: Epoch, folder: Uuid) -> Result<Vec<PendingWrite>, Refusal> {
        let own = self.superblock.epoch;
        if epoch.number == 0 {
            return Err(Refusal::Invalid("epoch 0: epochs start at 1".to_owned()));
        }
        if epoch < own {
            return Err(Refusal::Fenced { given: epoch, own });
        }
        // What is listed, or not listed any more, must not be otherwise after a loss of power.
        self.flush()?;
        if epoch > own {
            let generation = self.superblock.generation + 1;
            let mut superblock = Superblock { generation, epoch, ..self.superblock.clone() };
            superblock.note_fencer(folder);
            self.change_superblock(superblock)?;
        }
        Ok(self.pending())
    }

    /// Takes a revision of the label, durably. The disk never goes back to an older one.
    pub(crate) fn set_label(&mut self, label: Label) -> Result<(), Refusal> {
        let own = self.superblock.label.as_ref().ok_or(Refusal::Blank)?;
        let same_array = (own.array_id, own.unit_bytes, own.slice_bytes, label::shape(own))
            == (label.array_id, label.unit_bytes, label.slice_bytes, label::shape(&label));
        if !same_array {
            return Err(Refusal::Invalid(format!("the disk is laid out for array {}", own.array_id)));
        }
        if let Err(error) = label::check(&label, self.superblock.disk_id) {
            return Err(Refusal::Invalid(error.to_string()));
        }
        if label.revision < own.revision || label.revision == own.revision && label != *own {
            let (given, own) = (label.revision, own.revision);
            return Err(Refusal::OlderLabel { given, own });
        }
        if label.revision == own.revision {
            return Ok(());
        }
        let generation = self.superblock.generation + 1;
        let fenced_by = self.superblock.fenced_by.last().copied().into_iter().collect();
        let superblock = Superblock { generation, label: Some(label), fenced_by, ..self.superblock.clone() };
        self.change_superblock(superblock)
    }

    /// Everything pending, in the order of units.
    pub(crate) fn pending(&self) -> Vec<PendingWrite> {
        let listed = |(unit, recent): (&u64, &Recent)| {
            let pending = recent.pending.as_ref()?;
            Some(PendingWrite {
                unit: *unit,
                identity: pending.record.identity,
                version: pending.record.version,
                fresh: pending.base.is_none(),
                participants: pending.participants,
            })
        };
        self.recent.iter().filter_map(listed).collect()
    }

    fn change_superblock(&mut self, superblock: Superblock) -> Result<(), Refusal> {
        self.check_failure()?;
        if let Err(error) = superblock.write(&mut *self.disk) {
            return Err(self.fail("writing the superblock", &error));
        }
        self.superblock = superblock;
        Ok(())
    }

    /// Refuses requests for another disk (A0) or of another epoch (A1).
    pub(crate) fn check(&self, disk_id: Uuid, epoch: Epoch) -> Result<(), Refusal> {
        let own = &self.superblock;
        if disk_id != own.disk_id {
            return Err(Refusal::WrongDisk { given: disk_id, own: own.disk_id });
        }
        match epoch.cmp(&own.epoch) {
            std::cmp::Ordering::Less => Err(Refusal::Fenced { given: epoch, own: own.epoch }),
            std::cmp::Ordering::Greater => Err(Refusal::NotFenced { given: epoch, own: own.epoch }),
            std::cmp::Ordering::Equal => Ok(()),
        }
    }

    /// Carries out one operation. What it changed is durable, and may be told, only after [`Store::sync`].
    pub(crate) fn carry_out(&mut self, operation: Operation) -> Result<Outcome, Refusal> {
        let outcome = match operation {
            Operation::Prepare(prepare) => self.prepare(prepare).map(|()| Outcome::Done),
            Operation::Commit(writes) => self.commit(&writes).map(|()| Outcome::Done),
            Operation::Abort(writes) => self.abort(&writes).map(|()| Outcome::Done),
            Operation::Read(read) => self.read(&read).map(Outcome::Read),
            Operation::Discard(writes) => self.discard(&writes).map(|()| Outcome::Done),
            Operation::Rebuild(rebuild) => self.rebuild(rebuild).map(Outcome::Rebuilt),
            Operation::SetLabel(label) => self.set_label(*label).map(|()| Outcome::Done),
        };
        self.counters.refusals += u64::from(outcome.is_err());
        outcome
    }

    /// Counts a request that was refused before it came to [`Store::carry_out`].
    pub(crate) fn count_refusal(&mut self) {
        self.counters.refusals += 1;
    }

    /// Makes everything carried out so far durable, commits apart (nobody is misled by one that a crash takes back: it is
    /// pending then, and whoever asks decides the same). Returns the units whose bytes found no space: their operations
    /// were not carried out.
    pub(crate) fn sync(&mut self) -> Result<BTreeSet<u64>, Refusal> {
        self.check_failure()?;
        if self.staging.must_be_durable() {
            self.flush()?;
        }
        Ok(std::mem::take(&mut self.full))
    }

    /// Makes even commits durable, and applies what it can while `go_on` says so: before the disk is closed. What is left
    /// the next start finds in the journal.
    pub(crate) fn close(&mut self, mut go_on: impl FnMut() -> bool) -> Result<(), Refusal> {
        if self.layout.is_none() {
            return Ok(());
        }
        self.flush()?;
        while go_on() && self.apply_step()? {}
        Ok(())
    }

    /// Why nothing is written any more, if so.
    pub(crate) fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// The superblock.
    pub(crate) fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// The layout, once joined.
    pub(crate) fn layout(&self) -> Option<Layout> {
        self.layout
    }

    /// Bytes in units that hold something.
    pub(crate) fn used_bytes(&self) -> u64 {
        self.layout.map_or(0, |layout| self.totals.used * layout.unit_bytes() as u64)
    }

    /// What was done since the store was opened.
    pub(crate) fn counters(&self) -> Counters {
        self.counters
    }

    /// What went to and from the disk since it was opened.
    pub(crate) fn traffic(&self) -> Traffic {
        self.disk.traffic()
    }

    /// The record of a unit as it is committed, with the floor that it has now.
    fn record(&mut self, unit: u64) -> Result<Record, Refusal> {
        let (Some(table), Some(layout)) = (&mut self.table, self.layout) else { return Err(Refusal::Blank) };
        let recent = self.recent.get(&unit);
        let mut record = match recent.and_then(|recent| recent.changed.as_ref()) {
            Some(changed) => changed.record.clone(),
            None => table.record(&mut *self.disk, unit).unwrap_or_else(|error| {
                self.counters.disk_errors += 1;
                tracing::warn!(unit, %error, "a record cannot be read");
                Record::bare(State::Damaged, unit, layout.unit_sectors(), table.newest_near(unit))
            }),
        };
        if let Some(pending) = recent.and_then(|recent| recent.pending.as_ref()) {
            record.floor = record.floor.max(pending.record.floor);
        }
        Ok(record)
    }

    /// The pending write of a unit.
    fn pending_of(&self, unit: u64) -> Option<&Pending> {
        self.recent.get(&unit)?.pending.as_ref()
    }

    /// The layout, if units may be written.
    fn writable(&self) -> Result<Layout, Refusal> {
        self.check_failure()?;
        self.layout.ok_or(Refusal::Blank)
    }

    fn check_failure(&self) -> Result<(), Refusal> {
        match &self.failure {
            Some(failure) => Err(Refusal::DiskFailed(failure.clone())),
            None => Ok(()),
        }
    }

    fn check_unit(layout: &Layout, unit: u64) -> Result<(), Refusal> {
        if unit < layout.units() {
            return Ok(());
        }
        Err(Refusal::Invalid(format!("unit {unit}: the disk has {} units", layout.units())))
    }

    /// Nothing is written after this (invariant 5).
    fn fail(&mut self, doing: &str, error: &io::Error) -> Refusal {
        self.counters.disk_errors += 1;
        let failure = format!("{doing}: {error}");
        tracing::error!(%failure, disk_id = %self.superblock.disk_id, "the disk failed; it takes no more writes");
        self.failure = Some(failure.clone());
        Refusal::DiskFailed(failure)
    }
}

impl Pending {
    /// The sectors whose bytes the journal has.
    fn redo_bits(&self) -> Bits {
        let mut bits = Bits::new(UNIT_SECTORS_MAX);
        self.redo.keys().for_each(|sector| bits.set(*sector, true));
        bits
    }
}

impl Record {
    /// Whether the unit holds something.
    fn holds(&self) -> bool {
        self.state != State::Empty
    }
}

#[cfg(test)]
mod tests;
