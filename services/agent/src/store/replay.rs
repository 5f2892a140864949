//! What a start finds: makes the changes of the journal again, in order (A8). Takes as long as the journal is, whatever the
//! disk's length and however it was stopped.
//!
//! A crash keeps or loses every write since the last sync, in any combination and in pieces of 512 bytes. What was synced
//! are all groups but the last, and the bytes that they put home. So
//! - a last group that is not whole, or whose data is not, was never answered: it is taken off;
//! - a fresh write of the last group whose bytes are not all at home was never prepared: its unit is empty; a rebuild of
//!   which that is true leaves the unit damaged;
//! - in any other group, data that does not match its checksum is rot: the write stays pending, for it may have been
//!   acknowledged, and those sectors are lost until they are repaired from the other shards.
//!
//! The tail may have passed the first changes of a unit: then it was applied after its last one, and what is left does no
//! harm. A change that brings the whole record is the state; one that needs an earlier one which is gone - a commit of what
//! is not pending, a write over a base that is not what was said before - tells that the table is newer than what was said.

use bytes::Bytes;
use stripeset_stripe::{SECTOR_BYTES, Version, bits::Bits, checksum};

use super::{
    OpenError, Pending, Redo, Store, Weak,
    change::Change,
    flush::change_bytes,
    journal::{Group, Journal, Place},
    table::Table,
};
use crate::{
    layout::Layout,
    record::{Record, State},
};

impl Store {
    /// Opens the table, and makes the changes of the journal again.
    pub(super) fn replay(&mut self, layout: Layout) -> Result<(), OpenError> {
        let disk_id = self.superblock.disk_id;
        let (journal, totals) = Journal::open(&mut *self.disk, disk_id, &layout)?;
        (self.journal, self.totals) = (journal, totals);
        let mut last: Option<Group> = None;
        while let Some(group) = self.journal.next(&mut *self.disk, disk_id, &layout)? {
            if let Some(before) = last.replace(group) {
                self.totals = before.totals;
                self.take_in_group(&layout, before, false);
            }
        }
        // Every floor in the table is known now, and with it what stands for those in a damaged page.
        self.table = Some(Table::open(&mut *self.disk, disk_id, layout, self.totals.newest)?);
        let entered = last.map_or_else(Vec::new, |last| self.take_in_last(&layout, last));
        // What a process left that was killed may be in the disk's cache alone; the next group comes after it.
        self.journal.clear_end(&mut *self.disk, disk_id)?;
        self.disk.sync()?;
        self.drop_torn(&layout, entered);
        self.flush().map_err(std::io::Error::other)?;
        self.due = self.journal.end();
        let (pending, used) = (self.pending_writes, self.totals.used);
        let (groups, journal_bytes) = (self.journal.groups(), self.journal.used_bytes());
        tracing::info!(units = layout.units(), used, pending, groups, journal_bytes, "disk opened");
        Ok(())
    }

    /// Takes in the last group if it is whole. Returns the records of units whose bytes it put home.
    fn take_in_last(&mut self, layout: &Layout, last: Group) -> Vec<Record> {
        if !last.data_is_whole() && !self.is_weak(Weak::TornGroupBelieved) {
            tracing::info!("the last group of the journal was never whole");
            self.journal.drop_last(&last);
            return Vec::new();
        }
        let entering = |change: &Change| match change {
            // One that was pending before is there again only for the tail's sake: its bytes were home long ago.
            Change::PreparedFresh { record, .. } => self
                .pending_of(record.unit)
                .is_none_or(|pending| pending.record.version != record.version)
                .then(|| record.clone()),
            Change::Replaced(record) if record.state == State::Committed => Some(record.clone()),
            _ => None,
        };
        let entered = last.changes.iter().filter_map(entering).collect();
        self.totals = last.totals;
        self.take_in_group(layout, last, true);
        entered
    }

    /// Empties units whose fresh writes were never whole; those of rebuilds are damaged.
    fn drop_torn(&mut self, layout: &Layout, entered: Vec<Record>) {
        if self.is_weak(Weak::FreshBelieved) {
            return;
        }
        for record in entered {
            let unit = record.unit;
            let recent = self.recent.get(&unit);
            let pending =
                recent.and_then(|recent| recent.pending.as_ref()).map(|pending| pending.record.version);
            let changed =
                recent.and_then(|recent| recent.changed.as_ref()).map(|changed| changed.record.token);
            let is_rebuilt = !record.token.is_none();
            let stands =
                if is_rebuilt { changed == Some(record.token) } else { pending == Some(record.version) };
            if !stands || self.is_home(layout, &record) {
                continue;
            }
            tracing::info!(unit, version = %record.version, "bytes of the last group never came home");
            let state = if is_rebuilt { State::Damaged } else { State::Empty };
            let floor = self.record(unit).map_or(record.floor, |now| now.floor.max(record.floor));
            self.replace(Record::bare(state, unit, layout.unit_sectors(), floor));
        }
    }

    /// Whether all bytes of a record are at home.
    fn is_home(&mut self, layout: &Layout, record: &Record) -> bool {
        let sectors = 0..layout.unit_sectors();
        let (errors, lost) = (self.counters, record.body.lost.clone());
        let fetched = self.fetch(layout, record, &sectors);
        let outcome = self.compare(sectors, &record.body, fetched);
        // What a crash left half done is no damage.
        self.counters = errors;
        outcome.bad == lost
    }

    fn take_in_group(&mut self, layout: &Layout, group: Group, is_last: bool) {
        let Group { place, changes, mut data, .. } = group;
        for change in changes {
            let bytes = match &change {
                Change::PreparedOver { redo, .. } => data.split_to(redo.count() * SECTOR_BYTES),
                _ => Bytes::new(),
            };
            self.take_in(layout, place, change, bytes, is_last);
        }
    }

    /// This version is what is committed: if the journal said another, it did so before the table was written.
    fn believe_table_unless(&mut self, unit: u64, committed: Version) {
        let Some(recent) = self.recent.get_mut(&unit) else { return };
        if recent.changed.as_ref().is_some_and(|changed| changed.record.committed() != committed) {
            recent.changed = None;
        }
        if recent.changed.is_none() && recent.pending.is_none() {
            self.recent.remove(&unit);
        }
    }

    /// Makes one change again.
    fn take_in(&mut self, layout: &Layout, place: Place, change: Change, data: Bytes, is_last: bool) {
        let sectors = change.redo_sectors();
        let bytes = change_bytes(&change, sectors);
        match change {
            Change::PreparedFresh { participants, record } => {
                let redo = Redo::new();
                let pending = Pending { record, base: None, participants, redo, since: place, bytes };
                self.enter_fresh(layout, pending);
            }
            Change::PreparedOver { base, participants, redo, mut record } => {
                let redo = redo_from(&redo, &data, &mut record, is_last);
                let decided =
                    self.pending_of(record.unit).is_some_and(|pending| pending.record.version == base);
                if decided {
                    self.commit_in_memory(record.unit);
                }
                self.believe_table_unless(record.unit, base);
                let pending = Pending { record, base: Some(base), participants, redo, since: place, bytes };
                self.set_pending(pending);
            }
            Change::Committed { unit, version } => {
                if self.pending_of(unit).is_some_and(|pending| pending.record.version == version) {
                    self.commit_in_memory(unit);
                }
                self.believe_table_unless(unit, version);
            }
            Change::Replaced(record) => self.replace_in_memory(record, place),
            Change::Raised { aborted, record } => self.raise_in_memory(aborted, record, place),
        }
    }
}

/// The sectors of a partial write with their bytes. Those that rotted are lost.
fn redo_from(bits: &Bits, data: &Bytes, record: &mut Record, is_last: bool) -> Redo {
    let mut redo = Redo::new();
    for (index, sector) in bits.iter_ones().enumerate() {
        let bytes = data.slice(index * SECTOR_BYTES..(index + 1) * SECTOR_BYTES);
        if checksum::of_sector(&bytes) != record.body.checksums[sector] && !is_last {
            tracing::error!(
                unit = record.unit,
                sector,
                "a sector of a pending write is damaged in the journal"
            );
            record.body.lost.set(sector, true);
        } else {
            redo.insert(sector, bytes);
        }
    }
    redo
}

impl Group {
    /// Whether all bytes of its partial writes match their checksums.
    fn data_is_whole(&self) -> bool {
        let mut sectors = self.data.chunks_exact(SECTOR_BYTES);
        let mut whole = true;
        for change in &self.changes {
            let Change::PreparedOver { redo, record, .. } = change else { continue };
            for (sector, bytes) in redo.iter_ones().zip(&mut sectors) {
                whole &= checksum::of_sector(bytes) == record.body.checksums[sector]
                    || record.body.lost.get(sector);
            }
        }
        whole
    }
}
