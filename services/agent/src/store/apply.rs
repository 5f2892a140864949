//! Empties the journal: bytes of committed partial writes go home, records to the table, and the tail moves.
//!
//! The order, and why (invariant 3 of the store):
//! 1. The group in memory is made durable: what is applied must be what the journal says.
//! 2. Bytes and records are written, in any order, and synced. A crash before that finds all of them in the journal, and
//!    applies them again.
//! 3. The head is written and synced. Only then is the space in front of the tail used again.
//!
//! Room, in parts of the ring, of which there are sixteen: when 8 are used the next change waits until less are. Until then
//! a group may have come, of 1 part, and as much be skipped at the ring's end; one more group may be gathered already; and
//! pending writes that are in the way of the tail are written again, 1 part before the tail has passed as much. That is 12.
//! Pending writes take 4 at most, so that most of what the tail passes needs not be written again. So to commit, to abort,
//! to discard and to apply never fails for want of room.

use bytes::Bytes;

use super::{Pending, Place, Recent, Store, Weak, change::Change, flush::neighbours};
use crate::{disk, layout::Layout, record::Record, refusal::Refusal};

/// Pending writes take at most so many parts of the ring.
pub(super) const PENDING_PARTS: u64 = 4;

/// Most units that are applied at once while others wait for room: a fraction of a second on a slow disk.
const STEP_UNITS_MAX: usize = 256;

impl Store {
    /// Applies what was committed before the last call, a step at most; whoever calls does it a few times a second.
    /// Returns whether there is more.
    pub(crate) fn apply_due(&mut self) -> Result<bool, Refusal> {
        if self.layout.is_none() {
            return Ok(false);
        }
        let due = std::mem::replace(&mut self.due, self.journal.end());
        let units = self.oldest(Some(due), STEP_UNITS_MAX);
        if units.is_empty() {
            return Ok(false);
        }
        let more = units.len() == STEP_UNITS_MAX;
        self.apply_units(units)?;
        if more {
            self.due = due;
        }
        Ok(more)
    }

    /// Whether changes have to wait until some are applied.
    pub(super) fn needs_room(&self) -> bool {
        self.journal.used_bytes() > self.journal.ring_bytes() / 2 || self.recent.len() >= super::RECENT_MAX
    }

    /// Applies until changes need not wait, or nothing more can be done about it.
    pub(super) fn make_room(&mut self) -> Result<(), Refusal> {
        loop {
            let used = self.journal.used_bytes();
            let more = self.apply_step()?;
            if !self.needs_room() || !more && self.journal.used_bytes() >= used {
                return Ok(());
            }
        }
    }

    /// Applies the oldest units. Returns whether there are more.
    pub(super) fn apply_step(&mut self) -> Result<bool, Refusal> {
        let units = self.oldest(None, STEP_UNITS_MAX);
        let more = units.len() == STEP_UNITS_MAX;
        self.apply_units(units)?;
        Ok(more)
    }

    /// Units with something to apply, oldest first; with a limit, only those that changed before it. A fresh write that is
    /// pending waits: it will replace the record.
    fn oldest(&self, before: Option<Place>, units_max: usize) -> Vec<u64> {
        let is_fresh = |pending: &Pending| pending.base.is_none();
        let ready = |(unit, recent): (&u64, &Recent)| {
            let since = recent.changed.as_ref()?.since;
            let waits =
                recent.pending.as_ref().is_some_and(is_fresh) || before.is_some_and(|before| since >= before);
            (!waits).then_some((since, *unit))
        };
        let mut units: Vec<_> = self.recent.iter().filter_map(ready).collect();
        if units.len() > units_max {
            units.select_nth_unstable(units_max);
            units.truncate(units_max);
        }
        let mut units: Vec<_> = units.into_iter().map(|(_, unit)| unit).collect();
        units.sort_unstable();
        units
    }

    fn apply_units(&mut self, units: Vec<u64>) -> Result<(), Refusal> {
        let Some(layout) = self.layout else { return Ok(()) };
        self.stage_pending_again(&units)?;
        if !self.is_weak(Weak::AppliedBeforeCommit) {
            self.flush()?;
        }
        if self.is_weak(Weak::TableBeforeData) {
            self.write_records(&units)?;
            self.sync_disk()?;
            self.move_tail(&units)?;
            self.sync_disk()?;
            self.write_redo(&layout, &units)?;
        } else {
            self.write_redo(&layout, &units)?;
            self.write_records(&units)?;
            self.sync_disk()?;
            self.move_tail(&units)?;
            self.sync_disk()?;
        }
        self.counters.applied_units += units.len() as u64;
        for unit in units {
            if let Some(recent) = self.recent.get_mut(&unit) {
                recent.changed = None;
                if recent.pending.is_none() {
                    self.recent.remove(&unit);
                }
            }
        }
        Ok(())
    }

    /// Writes the bytes of committed partial writes home, neighbours by one call.
    fn write_redo(&mut self, layout: &Layout, units: &[u64]) -> Result<(), Refusal> {
        let mut pieces: Vec<(u64, Bytes)> = Vec::new();
        for unit in units {
            let Some(changed) = self.recent.get(unit).and_then(|recent| recent.changed.as_ref()) else {
                continue;
            };
            let place =
                |(sector, bytes): (&usize, &Bytes)| (layout.sector_offset(*unit, *sector), bytes.clone());
            pieces.extend(changed.redo.iter().map(place));
        }
        let mut rest = pieces.as_slice();
        while !rest.is_empty() {
            let (run, others) =
                rest.split_at(neighbours(rest.iter().map(|(offset, bytes)| (*offset, bytes))));
            rest = others;
            if let Err(error) = self.write_run(run[0].0, run.iter().map(|(_, bytes)| bytes)) {
                if disk::is_full(&error) {
                    // Its space was taken at the prepare; a file system that cannot do that tells now. It stays in the
                    // journal until there is room.
                    self.counters.disk_errors += 1;
                    return Err(Refusal::Full);
                }
                return Err(self.fail("writing", &error));
            }
        }
        Ok(())
    }

    fn write_records(&mut self, units: &[u64]) -> Result<(), Refusal> {
        let Some(table) = &mut self.table else { return Ok(()) };
        let changed = |unit: &u64| self.recent.get(unit)?.changed.as_ref();
        let records: Vec<&Record> = units.iter().filter_map(changed).map(|changed| &changed.record).collect();
        match table.write(&mut *self.disk, &records) {
            Ok(()) => Ok(()),
            Err(error) => Err(self.fail("writing the table", &error)),
        }
    }

    /// Moves the tail to what is needed once `applied` are at home.
    fn move_tail(&mut self, applied: &[u64]) -> Result<(), Refusal> {
        let needed = |(unit, recent): (&u64, &Recent)| {
            let changed = recent.changed.as_ref().filter(|_| applied.binary_search(unit).is_err());
            let changed = changed.map(|changed| changed.since);
            changed.into_iter().chain(recent.pending.as_ref().map(|pending| pending.since)).min()
        };
        let needed = self.recent.iter().filter_map(needed).min();
        let (disk_id, totals) = (self.superblock.disk_id, self.totals);
        match self.journal.move_tail(&mut *self.disk, disk_id, needed, totals) {
            Ok(()) => Ok(()),
            Err(error) => Err(self.fail("writing the head of the journal", &error)),
        }
    }

    /// Puts pending writes into the journal again that alone keep the tail where it is: those that are older than whatever
    /// else is needed once `applied` are home. A part of the ring at a time: the tail passes as much, at least, before the
    /// next.
    fn stage_pending_again(&mut self, applied: &[u64]) -> Result<(), Refusal> {
        let (part, end) = (self.journal.part_bytes(), self.journal.end());
        if self.journal.used_bytes() <= PENDING_PARTS * part {
            return Ok(());
        }
        let others = self.recent.iter().filter(|(unit, recent)| {
            let is_fresh = recent.pending.as_ref().is_some_and(|pending| pending.base.is_none());
            !is_fresh && applied.binary_search(unit).is_err()
        });
        let others = others.filter_map(|(_, recent)| recent.changed.as_ref()).map(|changed| changed.since);
        let oldest_other = others.min().unwrap_or(end);
        let old = |(unit, recent): (&u64, &Recent)| {
            let pending = recent.pending.as_ref()?;
            let holds = pending.since < oldest_other && pending.since.0 + PENDING_PARTS / 2 * part < end.0;
            holds.then_some((pending.since, *unit, pending.bytes))
        };
        let mut old: Vec<_> = self.recent.iter().filter_map(old).collect();
        old.sort_unstable();
        let mut staged = 0;
        for (_, unit, bytes) in old {
            staged += bytes;
            if staged > part {
                break;
            }
            if !self.fits_in_group(bytes) {
                self.flush()?;
            }
            self.stage_again(unit);
        }
        Ok(())
    }

    fn stage_again(&mut self, unit: u64) {
        let since = self.staging_place();
        let Some(recent) = self.recent.get_mut(&unit) else { return };
        let Some(pending) = &mut recent.pending else { return };
        pending.since = since;
        let (participants, record) = (pending.participants, pending.record.clone());
        let change = match pending.base {
            Some(base) => Change::PreparedOver { base, participants, redo: pending.redo_bits(), record },
            None => {
                // The unit is empty but for it, which the same change says.
                if let Some(changed) = &mut recent.changed {
                    changed.since = since;
                }
                Change::PreparedFresh { participants, record }
            }
        };
        self.stage(&change);
    }
}
