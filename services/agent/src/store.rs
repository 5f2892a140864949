//! The store: one disk's units under the agent's rules (A0 to A8 of the protocol). Synchronous, one owner, no clock.
//!
//! This file decides who may ask (disk, epoch), when what was done is durable, and what happens when the disk fails.
//! First phases are in [`prepare`], what follows them in [`settle`], reads in [`read`], what a start finds in [`replay`],
//! inspection in [`inspect`], the way to the disk in [`access`].
//!
//! Callers carry out a group of operations, then [`Store::sync`] once, then answer. Before the sync nothing that an
//! operation changed may be told to anyone.
//!
//! Invariants:
//! 1. Nothing is changed for another disk's UUID (A0) or another epoch than the disk's (A1).
//! 2. The floor of a unit never falls, and nothing at or below it is prepared (A2, A2f, A7).
//! 3. On disk, a journal slot counts exactly while its version is above the floor in its unit's own record; it is used
//!    again only after a sync that made such a floor durable (A3, A8).
//! 4. A unit has at most one pending write; fresh ones are at home, others in a slot (A2, A2f).
//! 5. Once a write or a sync has failed nothing is written any more, and nothing is reported as done: pages that the
//!    kernel could not write may be gone although a later sync succeeds.

use std::{collections::BTreeMap, io};

use stripeset_stripe::{Epoch, Version};
use thiserror::Error;
use uuid::Uuid;

use crate::{
    disk::{self, Disk, Traffic},
    label::{Label, LabelError},
    layout::{Layout, NoRoom},
    operation::{Operation, Outcome, PendingWrite},
    record::{Found, Head},
    refusal::Refusal,
    superblock::{Superblock, SuperblockError},
};

mod access;
mod index;
pub(crate) mod inspect;
mod prepare;
mod read;
mod replay;
mod settle;
mod slots;

use index::Index;
pub(crate) use index::UnitState;
use slots::Slots;

/// Most writes that may be pending on a disk: a Fence lists them all in one message, at less than 200 bytes each.
pub(crate) const PENDING_MAX: usize = 16 * 1024;

/// What was done since the store was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counters {
    pub(crate) prepares: u64,
    pub(crate) reads: u64,
    pub(crate) checksum_errors: u64,
    pub(crate) disk_errors: u64,
    pub(crate) refusals: u64,
}

/// A write that was neither committed nor aborted.
#[derive(Clone, Debug)]
struct Pending {
    /// Of the record at home if fresh, else of the record in the slot.
    head: Head,
    /// `None` if fresh.
    slot: Option<u32>,
    /// Successful syncs before it was prepared: it is durable once there was another.
    prepared_at: u64,
}

/// One disk.
pub(crate) struct Store {
    disk: Box<dyn Disk>,
    superblock: Superblock,
    /// `None` while the disk is blank; then everything below is empty.
    layout: Option<Layout>,
    index: Index,
    /// By unit.
    pending: BTreeMap<u64, Pending>,
    slots: Slots,
    counters: Counters,
    /// Something was written that the next sync has to make durable before anyone is told.
    dirty: bool,
    /// Successful syncs so far.
    syncs: u64,
    /// Why nothing is written any more.
    failure: Option<String>,
    /// Record being encoded; kept for its memory.
    record_bytes: Vec<u8>,
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
    #[error("the disk cannot be read or written")]
    Io(#[from] io::Error),
}

/// Why a disk cannot join an array.
#[derive(Debug, Error)]
pub(crate) enum JoinError {
    #[error("the request is for disk {given}, this is disk {own}")]
    WrongDisk { given: Uuid, own: Uuid },
    #[error("the disk belongs to array {array} as member {member}; only a blank disk can join")]
    NotBlank { array: Uuid, member: u32 },
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
    pub(crate) fn open(mut disk: Box<dyn Disk>) -> Result<Store, OpenError> {
        let (superblock, copies_agree) = Superblock::read(&mut *disk)?;
        if superblock.disk_bytes != disk.bytes() {
            let (bytes, formatted) = (disk.bytes(), superblock.disk_bytes);
            return Err(OpenError::LengthChanged { bytes, formatted });
        }
        if !copies_agree {
            superblock.write(&mut *disk)?;
        }
        let mut store = Store::blank(disk, superblock);
        if let Some(label) = &store.superblock.label {
            label.check(store.superblock.disk_id)?;
            let layout = Layout::new(store.disk.bytes(), label.unit_bytes, label.slice_bytes)?;
            store.lay_out(layout);
            store.replay(layout)?;
        }
        Ok(store)
    }

    fn blank(disk: Box<dyn Disk>, superblock: Superblock) -> Store {
        Store {
            disk,
            superblock,
            layout: None,
            index: Index::new(0),
            pending: BTreeMap::new(),
            slots: Slots::new(0),
            counters: Counters::default(),
            dirty: false,
            syncs: 0,
            failure: None,
            record_bytes: Vec::new(),
        }
    }

    fn lay_out(&mut self, layout: Layout) {
        self.layout = Some(layout);
        self.index = Index::new(layout.units());
        self.slots = Slots::new(layout.slots());
    }

    /// Makes the blank disk a member of an array, durably. Returns the slices that fit.
    pub(crate) fn join(&mut self, disk_id: Uuid, label: Label) -> Result<u64, JoinError> {
        let own = self.superblock.disk_id;
        if disk_id != own {
            return Err(JoinError::WrongDisk { given: disk_id, own });
        }
        if let Some(label) = &self.superblock.label {
            return Err(JoinError::NotBlank { array: label.array_id, member: label.member });
        }
        label.check(own)?;
        let layout = Layout::new(self.disk.bytes(), label.unit_bytes, label.slice_bytes)?;
        if let Some(failure) = &self.failure {
            return Err(JoinError::DiskFailed(failure.clone()));
        }
        // Space for the journal is taken now: a partial write that found none later would have to be refused, and with
        // it the writes that make room.
        let journal = layout.journal();
        if let Err(error) = self.disk.allocate(journal.start, journal.end - journal.start) {
            self.counters.disk_errors += 1;
            let full = disk::is_full(&error);
            return Err(if full { JoinError::Full } else { JoinError::DiskFailed(error.to_string()) });
        }
        let (generation, label) = (self.superblock.generation + 1, Some(label));
        let superblock = Superblock { generation, label, ..self.superblock.clone() };
        self.change_superblock(superblock).map_err(|refusal| JoinError::DiskFailed(refusal.to_string()))?;
        self.lay_out(layout);
        Ok(layout.slices())
    }

    /// Makes the disk refuse every lower epoch, durably (A1), and lists what is pending.
    pub(crate) fn fence(&mut self, epoch: Epoch) -> Result<Vec<PendingWrite>, Refusal> {
        let own = self.superblock.epoch;
        if epoch.number == 0 {
            return Err(Refusal::Invalid("epoch 0: epochs start at 1".to_owned()));
        }
        if epoch < own {
            return Err(Refusal::Fenced { given: epoch, own });
        }
        if let Some(failure) = &self.failure {
            return Err(Refusal::DiskFailed(failure.clone()));
        }
        if epoch > own {
            let generation = self.superblock.generation + 1;
            self.change_superblock(Superblock { generation, epoch, ..self.superblock.clone() })?;
        }
        // What is listed must not be forgotten by a loss of power after it was listed.
        self.dirty = true;
        self.sync()?;
        Ok(self.pending.iter().map(|(unit, pending)| pending.listed(*unit)).collect())
    }

    fn change_superblock(&mut self, superblock: Superblock) -> Result<(), Refusal> {
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

    /// Carries out one operation. What it changed is durable only after [`Store::sync`].
    pub(crate) fn carry_out(&mut self, operation: Operation) -> Result<Outcome, Refusal> {
        let outcome = match operation {
            Operation::Prepare(prepare) => self.prepare(prepare).map(|()| Outcome::Done),
            Operation::Commit(writes) => self.commit(&writes).map(|()| Outcome::Done),
            Operation::Abort(writes) => self.abort(&writes).map(|()| Outcome::Done),
            Operation::Read(read) => self.read(&read).map(Outcome::Read),
            Operation::Discard(writes) => self.discard(&writes).map(|()| Outcome::Done),
            Operation::Rebuild(rebuild) => self.rebuild(rebuild).map(Outcome::Rebuilt),
        };
        self.counters.refusals += u64::from(outcome.is_err());
        outcome
    }

    /// Counts a request that was refused before it came to [`Store::carry_out`].
    pub(crate) fn count_refusal(&mut self) {
        self.counters.refusals += 1;
    }

    /// Makes everything carried out so far durable. Does nothing if there is nothing that has to be.
    pub(crate) fn sync(&mut self) -> Result<(), Refusal> {
        if let Some(failure) = &self.failure {
            return Err(Refusal::DiskFailed(failure.clone()));
        }
        if !self.dirty {
            return Ok(());
        }
        if let Err(error) = self.disk.sync() {
            return Err(self.fail("syncing", &error));
        }
        self.dirty = false;
        self.syncs += 1;
        // Only now is what the slots held durable at home (invariant 3).
        self.slots.synced();
        Ok(())
    }

    /// Makes even that durable which need not be, before the disk is closed: commits of fresh writes.
    pub(crate) fn sync_all(&mut self) -> Result<(), Refusal> {
        self.dirty = true;
        self.sync()
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
        self.layout.map_or(0, |layout| self.index.used() * layout.unit_bytes() as u64)
    }

    /// What was done since the store was opened.
    pub(crate) fn counters(&self) -> Counters {
        self.counters
    }

    /// What went to and from the disk since it was opened.
    pub(crate) fn traffic(&self) -> Traffic {
        self.disk.traffic()
    }

    /// Writes pending now.
    pub(crate) fn pending_writes(&self) -> usize {
        self.pending.len()
    }

    /// Journal slots in use, and in all.
    pub(crate) fn slots(&self) -> (u32, u32) {
        (self.slots.used(), self.slots.count())
    }

    /// The layout, if units may be written.
    fn writable(&self) -> Result<Layout, Refusal> {
        match &self.failure {
            Some(failure) => Err(Refusal::DiskFailed(failure.clone())),
            None => self.layout.ok_or(Refusal::Blank),
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
    fn listed(&self, unit: u64) -> PendingWrite {
        PendingWrite {
            unit,
            identity: self.head.identity,
            version: self.head.version,
            fresh: self.slot.is_none(),
            participants: self.head.participants,
        }
    }

    /// Where the record of the write is.
    fn offset(&self, layout: &Layout, unit: u64) -> u64 {
        match self.slot {
            Some(slot) => layout.slot_offset(slot),
            None => layout.record_offset(unit),
        }
    }
}

/// Version of what is committed in a record at home.
fn committed(found: &Found<Head>) -> Version {
    if let Found::Whole(head) = found { head.committed() } else { Version::NONE }
}

#[cfg(test)]
mod tests;
