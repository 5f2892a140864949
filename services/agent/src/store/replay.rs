//! What a start finds: scans the records, decides what each journal slot still means (A8), and drops fresh writes that
//! were never whole.
//!
//! A crash keeps or loses every write since the last sync, in any combination and in pieces of 512 bytes. So, for a unit
//! with record H at home, a slot with a whole record and whole bytes, of version v over base b, is
//! - **void** if v is not above the floor in H: it was applied, aborted, or overtaken by a fresh write, a discard or a
//!   rebuild (invariant 3 of the store);
//! - but **applied again** if v is what H says is committed: H may be there and the bytes not. The slot has them;
//! - **decided** if another slot of the unit has it as its base: a coordinator writes over decided versions only. It goes
//!   home, in order, before the other one is looked at;
//! - else **pending**. One whose base is neither committed nor in a slot was never told of, and is void.
//!
//! If H is damaged (or gone) its floor is unknown, and the newest whole slot is pending: to forget a write that may have been
//! acknowledged is worse than to ask a coordinator again about one that was settled.
//!
//! A fresh record in H whose bytes are not all there was never prepared, unless it is the base of a slot.

use std::{collections::BTreeMap, io};

use stripeset_stripe::{SECTOR_BYTES, Version, checksum};

use super::{OpenError, Pending, Store, UnitState, access::redo_bytes, committed};
use crate::{
    layout::Layout,
    record::{Body, Found, HEAD_BYTES, Head, Record, State},
    refusal::Refusal,
};

/// A slot whose record and bytes are whole.
struct Candidate {
    slot: u32,
    head: Head,
    body: Body,
}

impl Store {
    /// Fills index, pending writes and slots from the disk, and settles what needs no coordinator.
    pub(super) fn replay(&mut self, layout: Layout) -> Result<(), OpenError> {
        let mut fresh = BTreeMap::new();
        let mut damaged = Vec::new();
        let mut newest = self.scan_units(&layout, &mut fresh, &mut damaged)?;
        for (unit, candidates) in self.scan_slots(&layout) {
            newest = candidates.iter().map(|candidate| candidate.head.floor).fold(newest, Version::max);
            self.settle_slots(&layout, unit, candidates, &mut fresh).map_err(into_io)?;
        }
        for (unit, head) in fresh {
            self.settle_fresh(&layout, unit, head).map_err(into_io)?;
        }
        // Nothing is known of these; the newest version on the disk is a floor that no late request gets below.
        for unit in damaged {
            self.index.raise(unit, newest);
        }
        self.sync().map_err(into_io)?;
        let (pending, (slots_used, _)) = (self.pending.len(), self.slots());
        tracing::info!(units = layout.units(), used = self.index.used(), pending, slots_used, "disk opened");
        Ok(())
    }

    /// Reads the head of every unit. Returns the highest version met.
    fn scan_units(
        &mut self,
        layout: &Layout,
        fresh: &mut BTreeMap<u64, Head>,
        damaged: &mut Vec<u64>,
    ) -> io::Result<Version> {
        let mut newest = Version::NONE;
        let mut unit = 0;
        while unit < layout.units() {
            // Holes of a sparse file are units that were never written.
            let offset = layout.record_offset(unit);
            match self.disk.data_from(offset)? {
                None => break,
                Some(data) if data > offset => {
                    unit = layout.unit_from(data.next_multiple_of(SECTOR_BYTES as u64)).max(unit + 1);
                    continue;
                }
                Some(_) => {}
            }
            match self.read_head(layout, unit).unwrap_or(Found::Damaged) {
                Found::Blank => {}
                Found::Whole(head) => {
                    newest = newest.max(head.floor);
                    self.index.set(unit, UnitState::of(head.state), head.floor);
                    if head.state == State::Fresh {
                        fresh.insert(unit, head);
                    }
                }
                Found::Damaged => {
                    tracing::error!(unit, "the record of a unit is damaged");
                    self.index.set(unit, UnitState::Damaged, Version::NONE);
                    damaged.push(unit);
                }
            }
            unit += 1;
        }
        Ok(newest)
    }

    /// Reads all slots that may still mean something, by unit and in the order of their versions.
    fn scan_slots(&mut self, layout: &Layout) -> BTreeMap<u64, Vec<Candidate>> {
        let mut found: BTreeMap<u64, Vec<Candidate>> = BTreeMap::new();
        for slot in 0..layout.slots() {
            // A slot that cannot be read holds nothing that can be used.
            let Ok(bytes) = self.read_whole(layout.slot_offset(slot), HEAD_BYTES) else { continue };
            let Found::Whole(head) = Head::decode(&bytes, self.superblock.disk_id) else { continue };
            if head.state != State::Redo || head.unit >= layout.units() || self.is_void(layout, &head) {
                continue;
            }
            if let Some(candidate) = self.whole_slot(layout, slot) {
                found.entry(candidate.head.unit).or_default().push(candidate);
            }
        }
        for candidates in found.values_mut() {
            candidates.sort_by_key(|candidate| candidate.head.version);
        }
        found
    }

    /// Whether a slot's version is settled, and its bytes are home, by the unit's own record.
    fn is_void(&mut self, layout: &Layout, slot: &Head) -> bool {
        match self.read_head(layout, slot.unit) {
            Ok(Found::Whole(home)) => slot.version <= home.floor && !is_committed_by(&home, slot),
            Ok(Found::Blank | Found::Damaged) | Err(_) => false,
        }
    }

    /// A slot's record, if it and all bytes of its redo are whole: otherwise the write was never prepared.
    fn whole_slot(&mut self, layout: &Layout, slot: u32) -> Option<Candidate> {
        let (found, bytes) = self.read_slot(layout, slot).ok()?;
        let Found::Whole(Record { head, body }) = found else { return None };
        let mut sectors = head.redo.iter_ones().zip(redo_bytes(layout, &bytes));
        let whole = sectors.all(|(sector, bytes)| checksum::of_sector(bytes) == body.checksums[sector]);
        drop(sectors);
        whole.then_some(Candidate { slot, head, body })
    }

    /// Decides what the slots of one unit mean. `candidates` are in the order of their versions.
    fn settle_slots(
        &mut self,
        layout: &Layout,
        unit: u64,
        mut candidates: Vec<Candidate>,
        fresh: &mut BTreeMap<u64, Head>,
    ) -> Result<(), Refusal> {
        let home = self.read_head(layout, unit).unwrap_or(Found::Damaged);
        if let Found::Whole(home) = &home
            && let Some(place) =
                candidates.iter().position(|candidate| is_committed_by(home, &candidate.head))
        {
            let applied = candidates.remove(place);
            if !self.is_home(layout, unit, &applied) {
                self.apply_slot(layout, unit, applied.slot, home.floor)?;
                self.dirty = true;
            }
        }
        let mut chain = chain(&home, candidates);
        let Some(last) = chain.pop() else { return Ok(()) };
        if let Some(first) = chain.first().or(Some(&last))
            && let Some(head) = fresh.remove(&unit)
        {
            if head.version == first.head.base {
                let decided = Head { state: State::Committed, ..head };
                self.write_head(layout.record_offset(unit), &decided)?;
                self.index.set(unit, UnitState::Committed, decided.floor);
                self.dirty = true;
            } else {
                fresh.insert(unit, head);
            }
        }
        for decided in chain {
            let floor = self.index.floor(unit).max(decided.head.floor);
            let state = self.apply_slot(layout, unit, decided.slot, floor)?;
            self.index.set(unit, state, floor);
            self.dirty = true;
        }
        self.index.raise(unit, last.head.floor);
        self.slots.occupy(last.slot);
        self.pending
            .insert(unit, Pending { head: last.head, slot: Some(last.slot), prepared_at: self.syncs });
        Ok(())
    }

    /// Whether the bytes of an applied slot, and the record that describes them, are at home.
    fn is_home(&mut self, layout: &Layout, unit: u64, applied: &Candidate) -> bool {
        let sectors = 0..layout.unit_sectors();
        let Ok((Found::Whole(record), fetched)) = self.fetch_home(layout, unit, &sectors) else {
            return false;
        };
        let errors = self.counters.checksum_errors;
        let outcome = self.compare(sectors, &record.body, fetched);
        // What a crash left half done is no damage.
        self.counters.checksum_errors = errors;
        record.body.checksums == applied.body.checksums
            && applied.head.redo.iter_ones().all(|sector| !outcome.bad.get(sector))
    }

    /// Keeps a fresh write if all its bytes are there, else empties the unit.
    fn settle_fresh(&mut self, layout: &Layout, unit: u64, head: Head) -> Result<(), Refusal> {
        let sectors = 0..layout.unit_sectors();
        let whole = match self.fetch_home(layout, unit, &sectors) {
            Ok((Found::Whole(record), fetched)) => {
                let errors = self.counters.checksum_errors;
                let outcome = self.compare(sectors, &record.body, fetched);
                self.counters.checksum_errors = errors;
                outcome.bad.none()
            }
            Ok((Found::Blank | Found::Damaged, _)) | Err(_) => false,
        };
        if whole {
            self.pending.insert(unit, Pending { head, slot: None, prepared_at: self.syncs });
            return Ok(());
        }
        tracing::info!(unit, version = %head.version, "a fresh write was never whole: the unit is empty");
        self.write_head(layout.record_offset(unit), &Head::bare(State::Empty, unit, head.floor))?;
        self.index.set(unit, UnitState::Empty, head.floor);
        self.dirty = true;
        Ok(())
    }
}

/// Whether a record at home says that the write in a slot is what is committed. One that a rebuild brought is not the
/// slot's, although it has the same version.
fn is_committed_by(home: &Head, slot: &Head) -> bool {
    home.committed() == slot.version && !home.rebuilt
}

/// The slots that lead, each the base of the next, from what is at home to the newest that can be reached. Those that
/// are in no such chain are void.
fn chain(home: &Found<Head>, mut candidates: Vec<Candidate>) -> Vec<Candidate> {
    let (known, at_home) = match home {
        Found::Whole(head) if head.state == State::Fresh => (true, head.version),
        Found::Whole(head) => (head.state != State::Damaged, committed(home)),
        // Something was committed before anything could be prepared over it: a blank record is a lost one.
        Found::Blank | Found::Damaged => (false, Version::NONE),
    };
    while let Some(last) = candidates.pop() {
        let mut base = last.head.base;
        let mut reversed = vec![last];
        while base != at_home
            && let Some(place) = candidates.iter().position(|candidate| candidate.head.version == base)
        {
            let decided = candidates.remove(place);
            base = decided.head.base;
            reversed.push(decided);
        }
        if base == at_home || !known {
            reversed.reverse();
            return reversed;
        }
    }
    Vec::new()
}

fn into_io(refusal: Refusal) -> io::Error {
    io::Error::other(refusal)
}
