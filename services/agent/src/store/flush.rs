//! Gathers the changes of a group of operations, and makes them durable: bytes that go straight home, then one group of
//! the journal, then one sync for all.
//!
//! Decides what may share a group. A unit whose bytes are on their way home is not touched again before they are there:
//! the next operation on it begins a new group.

use std::{collections::BTreeSet, io};

use bytes::Bytes;
use stripeset_stripe::SECTOR_BYTES;

use super::{Place, Store, change::Change, journal::Staged};
use crate::{
    disk::{self, BLOCK_BYTES, Buffer},
    layout::Layout,
    operation::Run,
    record::{Record, State},
    refusal::Refusal,
};

/// Most bytes of neighbouring sectors that are written by one call.
const WRITE_BYTES_MAX: usize = 1024 * 1024;

/// A group that is being gathered.
#[derive(Default)]
pub(super) struct Staging {
    group: Staged,
    /// Bytes that go straight home: where, of which unit.
    home: Vec<(u64, u64, Bytes)>,
    /// Units with bytes on their way home.
    entered: BTreeSet<u64>,
    /// Units with a prepare in the group: it has to be durable before it is committed.
    prepared: BTreeSet<u64>,
    /// Units that became empty: their space is given back once that is durable.
    emptied: BTreeSet<u64>,
    /// Something in it has to be durable before it is answered.
    urgent: bool,
    buffer: Buffer,
}

impl Staging {
    pub(super) fn must_be_durable(&self) -> bool {
        self.urgent
    }

    fn clear(&mut self) {
        self.home.clear();
        self.entered.clear();
        self.prepared.clear();
        self.urgent = false;
    }
}

impl Store {
    /// Makes room in group, journal and memory for a change with so many bytes; and ends the group if the unit's bytes are
    /// still on their way home.
    pub(super) fn reserve(&mut self, unit: u64, bytes: u64) -> Result<(), Refusal> {
        if self.is_entering(unit) || !self.fits_in_group(bytes) {
            self.flush()?;
        }
        if self.needs_room() {
            self.make_room()?;
        }
        Ok(())
    }

    /// Whether a change of so many bytes may share the group.
    pub(super) fn fits_in_group(&self, bytes: u64) -> bool {
        self.staging.group.bytes() + bytes + BLOCK_BYTES as u64 <= self.journal.part_bytes()
    }

    /// Ends the group if a prepare of the unit is in it.
    pub(super) fn make_prepare_durable(&mut self, unit: u64) -> Result<(), Refusal> {
        if self.staging.prepared.contains(&unit) { self.flush() } else { Ok(()) }
    }

    /// Whether reads of the unit would see what is not at home yet.
    pub(super) fn is_entering(&self, unit: u64) -> bool {
        self.staging.entered.contains(&unit)
    }

    /// Adds a change to the group.
    pub(super) fn stage(&mut self, change: &Change) {
        let (disk_id, urgent) = (self.superblock.disk_id, !matches!(change, Change::Committed { .. }));
        self.staging.urgent |= urgent;
        if let Some(floor) = change.floor() {
            self.totals.newest = self.totals.newest.max(floor);
        }
        match change {
            Change::PreparedFresh { record, .. } | Change::PreparedOver { record, .. } => {
                self.staging.prepared.insert(record.unit);
                self.staging.emptied.remove(&record.unit);
            }
            Change::Replaced(record) if record.state == State::Empty => {
                self.staging.emptied.insert(record.unit);
            }
            Change::Replaced(record) => {
                self.staging.emptied.remove(&record.unit);
            }
            Change::Raised { .. } | Change::Committed { .. } => {}
        }
        let redo = match change {
            Change::PreparedOver { record, .. } => self
                .recent
                .get(&record.unit)
                .and_then(|recent| recent.pending.as_ref())
                .map(|pending| &pending.redo),
            _ => None,
        };
        let redo = redo.into_iter().flat_map(|redo| redo.values().cloned());
        self.staging.group.push(disk_id, change, redo);
    }

    /// Adds bytes that go straight home.
    pub(super) fn stage_home(&mut self, layout: &Layout, unit: u64, runs: Vec<Run>) {
        self.staging.entered.insert(unit);
        for run in runs {
            self.staging.home.push((layout.sector_offset(unit, run.first_sector), unit, run.data));
        }
    }

    /// The space of the unit is given back once what was staged is durable.
    pub(super) fn give_back(&mut self, unit: u64) {
        self.staging.emptied.insert(unit);
    }

    /// Where a change that is staged now will be in the journal, at the earliest.
    pub(super) fn staging_place(&self) -> Place {
        self.journal.end()
    }

    /// Writes the group, and makes it durable.
    pub(super) fn flush(&mut self) -> Result<(), Refusal> {
        self.check_failure()?;
        if self.staging.group.is_empty() {
            return Ok(());
        }
        self.write_home()?;
        let (disk_id, totals) = (self.superblock.disk_id, self.totals);
        if let Err(error) = self.journal.write(&mut *self.disk, disk_id, &mut self.staging.group, totals) {
            return Err(self.fail("writing the journal", &error));
        }
        self.sync_disk()?;
        self.counters.groups += 1;
        self.staging.clear();
        for unit in std::mem::take(&mut self.staging.emptied) {
            self.discard_bytes(unit);
        }
        Ok(())
    }

    /// Writes the bytes that go straight home, neighbours by one call. Units that find no space are emptied again.
    fn write_home(&mut self) -> Result<(), Refusal> {
        let mut home = std::mem::take(&mut self.staging.home);
        home.sort_by_key(|(offset, _, _)| *offset);
        let mut rest = home.as_slice();
        while !rest.is_empty() {
            let (run, others) =
                rest.split_at(neighbours(rest.iter().map(|(offset, _, bytes)| (*offset, bytes))));
            rest = others;
            match self.write_run(run[0].0, run.iter().map(|(_, _, bytes)| bytes)) {
                Ok(()) => {}
                Err(error) if disk::is_full(&error) => {
                    self.counters.disk_errors += 1;
                    for unit in run.iter().map(|(_, unit, _)| *unit).collect::<BTreeSet<_>>() {
                        self.undo_entry(unit);
                    }
                }
                Err(error) => return Err(self.fail("writing", &error)),
            }
        }
        home.clear();
        self.staging.home = home;
        Ok(())
    }

    /// The bytes of a unit found no space. Its stripe was empty (or its shard being rebuilt), so nothing is lost that
    /// anyone needs; but bytes may have changed under the record that it had.
    fn undo_entry(&mut self, unit: u64) {
        let Some(layout) = self.layout else { return };
        let recent = self.recent.get(&unit);
        let (state, floor) = match recent.map(|recent| (&recent.pending, &recent.changed)) {
            Some((Some(pending), _)) => (State::Empty, pending.record.floor),
            Some((None, Some(changed))) => (State::Damaged, changed.record.floor),
            Some((None, None)) | None => return,
        };
        self.full.insert(unit);
        self.replace(Record::bare(state, unit, layout.unit_sectors(), floor));
    }

    /// Writes neighbouring sectors by one call.
    pub(super) fn write_run<'a>(
        &mut self,
        offset: u64,
        pieces: impl Iterator<Item = &'a Bytes> + Clone,
    ) -> io::Result<()> {
        let buffer = &mut self.staging.buffer;
        buffer.resize(pieces.clone().map(Bytes::len).sum());
        let mut at = 0;
        for bytes in pieces {
            buffer[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        }
        self.disk.write(offset, buffer)
    }

    pub(super) fn sync_disk(&mut self) -> Result<(), Refusal> {
        if self.is_weak(super::Weak::SyncSkipped) {
            return Ok(());
        }
        match self.disk.sync() {
            Ok(()) => Ok(()),
            Err(error) => Err(self.fail("syncing", &error)),
        }
    }

    /// Gives the bytes of a unit back if it is still empty.
    fn discard_bytes(&mut self, unit: u64) {
        let Some(layout) = self.layout else { return };
        let recent = self.recent.get(&unit);
        let in_use = recent.is_some_and(|recent| {
            recent.pending.is_some() || recent.changed.as_ref().is_some_and(|changed| changed.record.holds())
        });
        if in_use {
            return;
        }
        if let Err(error) = self.disk.discard(layout.sector_offset(unit, 0), layout.unit_bytes() as u64) {
            // Space is given back later, when the unit is used again.
            tracing::debug!(unit, %error, "a range could not be given back");
        }
    }
}

/// How many of the pieces at the start lie one behind the other, up to the length of one write.
pub(super) fn neighbours<'a>(pieces: impl Iterator<Item = (u64, &'a Bytes)>) -> usize {
    let (mut count, mut length, mut next) = (0, 0, None);
    for (offset, bytes) in pieces {
        let joins = next.is_none_or(|next| next == offset) && length + bytes.len() <= WRITE_BYTES_MAX;
        if count > 0 && !joins {
            break;
        }
        count += 1;
        length += bytes.len();
        next = Some(offset + bytes.len() as u64);
    }
    count
}

/// Bytes that a change takes in its group, with so many sectors of data.
pub(super) fn change_bytes(change: &Change, sectors: usize) -> u64 {
    (change.encoded_bytes() + sectors * SECTOR_BYTES) as u64
}
