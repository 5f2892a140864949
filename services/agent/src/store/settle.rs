//! What becomes of a unit after the first phase: commit and abort (A3), discard (A7), rebuild (A5).
//!
//! Nothing here waits for a sync, so everything between two syncs may be kept or lost in any combination, and
//! [`super::replay`] copes with each. Two orders matter: a prepare is durable before its commit begins, and a slot is
//! used again only after a sync (`Slots::give_back`).

use stripeset_stripe::{Version, bits::Bits, checksum};

use super::{Pending, Store, UnitState, access::redo_bytes, prepare::check_shape};
use crate::{
    layout::{Layout, UNIT_SECTORS_MAX},
    operation::{Rebuild, UnitVersion},
    record::{Body, Found, Head, Record, State},
    refusal::Refusal,
};

impl Store {
    /// Makes the pending ones of the writes given the committed state of their units.
    pub(super) fn commit(&mut self, writes: &[UnitVersion]) -> Result<(), Refusal> {
        let layout = self.writable()?;
        check_units(&layout, writes)?;
        for UnitVersion { unit, version } in writes {
            if self.pending.get(unit).is_some_and(|pending| pending.head.version == *version) {
                self.commit_pending(&layout, *unit)?;
            }
        }
        Ok(())
    }

    pub(super) fn commit_pending(&mut self, layout: &Layout, unit: u64) -> Result<(), Refusal> {
        let Some(Pending { head, slot, prepared_at }) = self.pending.get(&unit) else { return Ok(()) };
        let (mut head, slot, durable) = (head.clone(), *slot, *prepared_at < self.syncs);
        let floor = self.index.floor(unit);
        if !durable {
            // A record that says "committed" must never be all that a crash leaves of a write. (Happens to a member whose
            // answer nobody waits for.)
            self.sync()?;
        }
        if let Some(slot) = slot {
            let state = self.apply_slot(layout, unit, slot, floor)?;
            // The slot keeps the bytes until a sync has made them durable at home.
            self.settle(unit, state, floor);
            return Ok(());
        }
        head.state = State::Committed;
        head.floor = floor;
        self.write_head(layout.record_offset(unit), &head)?;
        self.pending.remove(&unit);
        // Not dirty: a commit that a crash takes back leaves the write pending, and whoever asks decides the same.
        self.index.set(unit, UnitState::Committed, floor);
        Ok(())
    }

    /// Writes what a slot holds home, and returns what the unit holds then. Bytes that went bad in the slot are lost: the
    /// write is decided all the same, and the other shards can give them back.
    pub(super) fn apply_slot(
        &mut self,
        layout: &Layout,
        unit: u64,
        slot: u32,
        floor: Version,
    ) -> Result<UnitState, Refusal> {
        let (record, slot_bytes) = match self.read_slot(layout, slot)? {
            (Found::Whole(record), slot_bytes) if record.head.unit == unit => (record, slot_bytes),
            _ => {
                tracing::error!(
                    unit,
                    slot,
                    "the record of a decided write is damaged; the unit has to be rebuilt"
                );
                let head = Head::bare(State::Damaged, unit, floor);
                self.write_head(layout.record_offset(unit), &head)?;
                return Ok(UnitState::Damaged);
            }
        };
        let Record { mut head, body } = record;
        let sectors: Vec<_> = head.redo.iter_ones().collect();
        let mut runs = Vec::with_capacity(sectors.len());
        for (sector, bytes) in sectors.into_iter().zip(redo_bytes(layout, &slot_bytes)) {
            if checksum::of_sector(bytes) == body.checksums[sector] {
                runs.push((layout.sector_offset(unit, sector), bytes));
            } else {
                // What is at home does not match the new checksum either: the sector is bad until it is repaired.
                self.counters.checksum_errors += 1;
            }
        }
        head.state = State::Committed;
        head.base = Version::NONE;
        head.floor = floor.max(head.floor);
        head.redo = Bits::new(UNIT_SECTORS_MAX);
        let mut bytes = std::mem::take(&mut self.record_bytes);
        Record::new(head, body).encode(self.superblock.disk_id, layout.record_bytes(), &mut bytes);
        let mut pieces = vec![(layout.record_offset(unit), bytes.as_slice())];
        pieces.append(&mut runs);
        let written = self.write_pieces(&pieces);
        self.record_bytes = bytes;
        written.map(|()| UnitState::Committed)
    }

    /// Drops the writes given; none of these versions can be prepared afterwards.
    pub(super) fn abort(&mut self, writes: &[UnitVersion]) -> Result<(), Refusal> {
        let layout = self.writable()?;
        check_units(&layout, writes)?;
        for UnitVersion { unit, version } in writes {
            self.abort_one(&layout, *unit, *version)?;
        }
        Ok(())
    }

    fn abort_one(&mut self, layout: &Layout, unit: u64, version: Version) -> Result<(), Refusal> {
        let floor = self.index.floor(unit);
        let raised = floor.max(version);
        match self.pending.get(&unit) {
            Some(pending) if pending.head.version == version => {
                if pending.slot.is_some() {
                    let state = self.raise_home(layout, unit, raised)?;
                    self.settle(unit, state, raised);
                } else {
                    self.empty(layout, unit, raised)?;
                }
            }
            _ if version <= floor => {}
            Some(pending) => {
                // Into the record of the pending write, not over it: a floor at home above a slot's version would make
                // the slot void (invariant 3), and this one may have been decided.
                let offset = pending.offset(layout, unit);
                let head = Head { floor: raised, ..pending.head.clone() };
                self.write_head(offset, &head)?;
                self.index.raise(unit, raised);
                if let Some(pending) = self.pending.get_mut(&unit) {
                    pending.head = head;
                }
                self.dirty = true;
            }
            None => {
                let state = self.raise_home(layout, unit, raised)?;
                self.settle(unit, state, raised);
            }
        }
        Ok(())
    }

    /// Raises the floor in the record at home, and returns what the unit holds.
    fn raise_home(&mut self, layout: &Layout, unit: u64, floor: Version) -> Result<UnitState, Refusal> {
        let (head, state) = match self.read_head(layout, unit)? {
            Found::Whole(head) => {
                let state = UnitState::of(head.state);
                (Head { floor, ..head }, state)
            }
            Found::Blank => (Head::bare(State::Empty, unit, floor), UnitState::Empty),
            Found::Damaged => (Head::bare(State::Damaged, unit, floor), UnitState::Damaged),
        };
        self.write_head(layout.record_offset(unit), &head)?;
        Ok(state)
    }

    /// Gives units back. All are refused if one is; a disk that runs full on the way leaves the first ones given back.
    pub(super) fn discard(&mut self, writes: &[UnitVersion]) -> Result<(), Refusal> {
        let layout = self.writable()?;
        check_units(&layout, writes)?;
        for UnitVersion { unit, version } in writes {
            let floor = self.index.floor(*unit);
            if *version <= floor {
                return Err(Refusal::BelowFloor { unit: *unit, given: *version, floor });
            }
        }
        for UnitVersion { unit, version } in writes {
            self.empty(&layout, *unit, self.index.floor(*unit).max(*version))?;
        }
        Ok(())
    }

    /// Empties a unit and gives its bytes back. At once, not after the sync: they belong to nothing since the stripe
    /// became empty, and a fresh write that follows in the same group must not lose its own.
    fn empty(&mut self, layout: &Layout, unit: u64, floor: Version) -> Result<(), Refusal> {
        self.write_head(layout.record_offset(unit), &Head::bare(State::Empty, unit, floor))?;
        self.settle(unit, UnitState::Empty, floor);
        if let Err(error) = self.disk.punch(layout.sector_offset(unit, 0), layout.unit_bytes() as u64) {
            // Space is given back later, when the unit is used again.
            tracing::debug!(unit, %error, "a range could not be given back");
        }
        Ok(())
    }

    /// Replaces a unit whole, whatever it held. Returns the token.
    pub(super) fn rebuild(&mut self, rebuild: Rebuild) -> Result<Version, Refusal> {
        let layout = self.writable()?;
        let (unit, token) = (rebuild.unit, rebuild.token);
        Store::check_unit(&layout, unit)?;
        check_shape(&layout, &rebuild.runs, rebuild.summary.as_ref())?;
        if rebuild.version > token {
            let message = format!("version {} is above the token of the attempt, {token}", rebuild.version);
            return Err(Refusal::Invalid(message));
        }
        let lost = lost_bits(&layout, &rebuild)?;
        let floor = self.index.floor(unit);
        if token <= floor {
            // The same attempt again gets the same answer; anything else at this token is another write's floor.
            let repeated = token == floor
                && matches!(self.read_head(&layout, unit)?, Found::Whole(head)
                    if head.rebuilt && head.base == token && head.version == rebuild.version);
            return if repeated { Ok(token) } else { Err(Refusal::BelowFloor { unit, given: token, floor }) };
        }
        let mut body = Body::never_written(layout.unit_sectors());
        body.enter(&rebuild.runs);
        // A lost sector was written once: that it reads as zeros would be a lie.
        lost.iter_ones().for_each(|sector| body.written.set(sector, true));
        body.lost = lost;
        body.summary = rebuild.summary;
        let head = Head {
            identity: rebuild.identity,
            version: rebuild.version,
            base: token,
            rebuilt: true,
            ..Head::bare(State::Committed, unit, token)
        };
        if let Err(refusal) = self.write_home(&layout, Record::new(head, body), &rebuild.runs) {
            let _ = self.write_head(layout.record_offset(unit), &Head::bare(State::Damaged, unit, floor));
            self.settle(unit, UnitState::Damaged, floor);
            return Err(refusal);
        }
        self.settle(unit, UnitState::Committed, token);
        Ok(token)
    }

    /// What was pending is applied or void now; its slot is free after the next sync.
    pub(super) fn settle(&mut self, unit: u64, state: UnitState, floor: Version) {
        if let Some(Pending { slot: Some(slot), .. }) = self.pending.remove(&unit) {
            self.slots.give_back(slot);
        }
        self.index.set(unit, state, floor);
        self.dirty = true;
    }
}

impl UnitState {
    /// What a record at home says that the unit holds.
    pub(super) fn of(state: State) -> UnitState {
        match state {
            State::Empty => UnitState::Empty,
            State::Committed => UnitState::Committed,
            State::Fresh => UnitState::Fresh,
            State::Redo | State::Damaged => UnitState::Damaged,
        }
    }
}

fn check_units(layout: &Layout, writes: &[UnitVersion]) -> Result<(), Refusal> {
    writes.iter().try_for_each(|write| Store::check_unit(layout, write.unit))
}

/// The lost bits of a rebuild; refuses those that do not fit, or name a sector that the rebuild brings.
fn lost_bits(layout: &Layout, rebuild: &Rebuild) -> Result<Bits, Refusal> {
    let sectors = layout.unit_sectors();
    let lost = if rebuild.lost.is_empty() {
        Bits::new(sectors)
    } else if let Some(lost) = Bits::from_bytes(&rebuild.lost, sectors) {
        lost
    } else {
        let message = format!(
            "{} bytes of lost bits: there is one bit for each of {sectors} sectors",
            rebuild.lost.len()
        );
        return Err(Refusal::Invalid(message));
    };
    let brought =
        |sector: &usize| rebuild.runs.iter().any(|run| (run.first_sector..run.end()).contains(sector));
    let both = lost.iter_ones().find(brought);
    match both {
        Some(sector) => Err(Refusal::Invalid(format!("sector {sector} is both brought and lost"))),
        None => Ok(lost),
    }
}
