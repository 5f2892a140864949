//! Changes of units: prepare (A2, A2f), commit and abort (A3), rebuild (A5), discard (A7).
//!
//! Order on disk: nothing here waits for a sync, so everything between two syncs may be lost or kept in any
//! combination. [`super::replay`] copes with each; the one order that matters is that a slot is used again only after a
//! sync (`Slots::give_back`).

use stripeset_stripe::{SECTOR_BYTES, Version, bits::Bits, checksum};

use super::{Pending, Store, UnitState, committed, redo_bytes};
use crate::{
    layout::{Layout, UNIT_SECTORS_MAX},
    operation::{Entry, Prepare, Rebuild, Run, UnitVersion},
    record::{Body, Found, Head, Record, State, Summary},
    refusal::Refusal,
};

impl Store {
    /// First phase of a write.
    pub(super) fn prepare(&mut self, prepare: Prepare) -> Result<(), Refusal> {
        let layout = self.writable()?;
        let (unit, version) = (prepare.unit, prepare.version);
        Store::check_unit(&layout, unit)?;
        check_shape(&layout, &prepare.runs, prepare.summary.as_ref())?;
        self.counters.prepares += 1;
        if self.pending.get(&unit).is_some_and(|pending| pending.head.version == version) {
            return Ok(());
        }
        let floor = self.index.floor(unit);
        if version <= floor {
            let done = committed(&self.read_head(&layout, unit)?) == version;
            return if done { Ok(()) } else { Err(Refusal::BelowFloor { unit, given: version, floor }) };
        }
        match prepare.entry {
            Entry::Fresh => self.prepare_fresh(&layout, prepare),
            Entry::Over(base) => self.prepare_over(&layout, prepare, base),
        }
    }

    /// Record and bytes go straight home; the record says that the write is pending.
    fn prepare_fresh(&mut self, layout: &Layout, prepare: Prepare) -> Result<(), Refusal> {
        let (unit, version) = (prepare.unit, prepare.version);
        self.check_pending_limit(unit)?;
        let mut body = Body::never_written(layout.unit_sectors());
        body.enter(&prepare.runs);
        body.summary = prepare.summary;
        let head = Head {
            identity: prepare.identity,
            version,
            participants: prepare.participants,
            ..Head::bare(State::Fresh, unit, version)
        };
        let head = match self.write_home(layout, Record::new(head, body), &prepare.runs) {
            Ok(head) => head,
            Err(refusal) => {
                // The stripe is empty, so nothing is lost that anyone needs; but bytes may have changed under the
                // record that was there. Best effort: a disk without space for a head keeps the old one, whose
                // sectors then fail their checksums.
                let _ = self.write_head(layout.record_offset(unit), &Head::bare(State::Empty, unit, version));
                self.settle(unit, UnitState::Empty, version);
                return Err(refusal);
            }
        };
        self.settle(unit, UnitState::Fresh, version);
        self.pending.insert(unit, Pending { head, slot: None, prepared_at: self.syncs });
        Ok(())
    }

    /// Record and bytes go to a journal slot; the old ones stay readable at home.
    fn prepare_over(&mut self, layout: &Layout, prepare: Prepare, base: Version) -> Result<(), Refusal> {
        let (unit, version) = (prepare.unit, prepare.version);
        match self.pending.get(&unit).map(|pending| pending.head.version) {
            // A base is always decided.
            Some(pending) if pending == base => self.commit_pending(layout, unit)?,
            Some(pending) => return Err(Refusal::Busy { unit, pending }),
            None => {}
        }
        let bytes = self.read_whole(layout.record_offset(unit), layout.record_bytes())?;
        let Record { head: old, mut body } = match self.decode_home(layout, unit, &bytes) {
            Found::Whole(record) => record,
            Found::Blank => return Err(Refusal::Empty { unit }),
            Found::Damaged => return Err(Refusal::Damaged { unit }),
        };
        match old.state {
            State::Committed => {}
            State::Empty => return Err(Refusal::Empty { unit }),
            State::Fresh | State::Redo | State::Damaged => return Err(Refusal::Damaged { unit }),
        }
        if old.version != base {
            return Err(Refusal::VersionMismatch { unit, wanted: base, found: old.version });
        }
        if old.identity != prepare.identity {
            return Err(Refusal::OtherIdentity { unit, found: old.version });
        }
        if body.summary.is_some() != prepare.summary.is_some() {
            let message =
                format!("unit {unit}: a write brings a stripe summary if, and only if, the unit has one");
            return Err(Refusal::Invalid(message));
        }
        self.check_pending_limit(unit)?;
        self.allocate_home(layout, unit, &body, &prepare.runs)?;
        let redo = body.enter(&prepare.runs);
        body.summary = prepare.summary;
        let head = Head {
            identity: prepare.identity,
            version,
            base,
            participants: prepare.participants,
            redo,
            ..Head::bare(State::Redo, unit, version)
        };
        let slot = self.take_slot()?;
        let head = match self.write_slot(layout, slot, Record::new(head, body), &prepare.runs) {
            Ok(head) => head,
            Err(refusal) => {
                self.slots.untake(slot);
                return Err(refusal);
            }
        };
        self.index.raise(unit, version);
        self.pending.insert(unit, Pending { head, slot: Some(slot), prepared_at: self.syncs });
        self.dirty = true;
        Ok(())
    }

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
        let Record { mut head, mut body } = record;
        let sectors: Vec<_> = head.redo.iter_ones().collect();
        let mut runs = Vec::with_capacity(sectors.len());
        for (sector, bytes) in sectors.into_iter().zip(redo_bytes(layout, &slot_bytes)) {
            if checksum::of_sector(bytes) == body.checksums[sector] {
                runs.push((layout.sector_offset(unit, sector), bytes));
            } else {
                self.counters.checksum_errors += 1;
                body.lost.set(sector, true);
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
    fn settle(&mut self, unit: u64, state: UnitState, floor: Version) {
        if let Some(Pending { slot: Some(slot), .. }) = self.pending.remove(&unit) {
            self.slots.give_back(slot);
        }
        self.index.set(unit, state, floor);
        self.dirty = true;
    }

    /// A free slot; a sync may free some that wait for one.
    fn take_slot(&mut self) -> Result<u32, Refusal> {
        if let Some(slot) = self.slots.take() {
            return Ok(slot);
        }
        self.sync()?;
        let limit = u64::from(self.slots.count());
        self.slots.take().ok_or(Refusal::Limit { what: "no free journal slot", limit })
    }

    fn check_pending_limit(&self, unit: u64) -> Result<(), Refusal> {
        if self.pending.len() < super::PENDING_MAX || self.pending.contains_key(&unit) {
            return Ok(());
        }
        Err(Refusal::Limit { what: "too many pending writes", limit: super::PENDING_MAX as u64 })
    }

    /// Takes space for sectors that were never written, so that to apply the write later cannot fail for want of it.
    fn allocate_home(
        &mut self,
        layout: &Layout,
        unit: u64,
        body: &Body,
        runs: &[Run],
    ) -> Result<(), Refusal> {
        for run in runs {
            if (run.first_sector..run.end()).all(|sector| body.written.get(sector)) {
                continue;
            }
            let offset = layout.sector_offset(unit, run.first_sector);
            if let Err(error) = self.disk.allocate(offset, run.data.len() as u64) {
                self.counters.disk_errors += 1;
                return Err(Refusal::of_disk(&error));
            }
        }
        Ok(())
    }

    /// Writes a record and its runs home, in one call where they touch. Returns the head as written.
    fn write_home(&mut self, layout: &Layout, record: Record, runs: &[Run]) -> Result<Head, Refusal> {
        let unit = record.head.unit;
        let place = |run: &Run| layout.sector_offset(unit, run.first_sector);
        self.write_record(layout, layout.record_offset(unit), record, runs, place)
    }

    /// Writes a record and its runs to a slot, packed one behind the other. Returns the head as written.
    fn write_slot(
        &mut self,
        layout: &Layout,
        slot: u32,
        record: Record,
        runs: &[Run],
    ) -> Result<Head, Refusal> {
        let offset = layout.slot_offset(slot);
        let mut next = offset + layout.record_bytes() as u64;
        let place = |run: &Run| {
            let place = next;
            next += run.data.len() as u64;
            place
        };
        self.write_record(layout, offset, record, runs, place)
    }

    fn write_record(
        &mut self,
        layout: &Layout,
        offset: u64,
        mut record: Record,
        runs: &[Run],
        mut place: impl FnMut(&Run) -> u64,
    ) -> Result<Head, Refusal> {
        let mut bytes = std::mem::take(&mut self.record_bytes);
        record.encode(self.superblock.disk_id, layout.record_bytes(), &mut bytes);
        let mut pieces = vec![(offset, bytes.as_slice())];
        pieces.extend(runs.iter().map(|run| (place(run), &run.data[..])));
        let written = self.write_pieces(&pieces);
        self.record_bytes = bytes;
        written.map(|()| record.head)
    }

    /// Reads the record in a slot, and the bytes of its redo behind it.
    pub(super) fn read_slot(
        &mut self,
        layout: &Layout,
        slot: u32,
    ) -> Result<(Found<Record>, Vec<u8>), Refusal> {
        let (offset, record_bytes) = (layout.slot_offset(slot), layout.record_bytes());
        // Most redos are a sector or two: one read fetches all of those.
        let mut bytes =
            self.read_whole(offset, record_bytes + (2 * SECTOR_BYTES).min(layout.unit_bytes()))?;
        let found =
            match Record::decode(&bytes[..record_bytes], self.superblock.disk_id, layout.unit_sectors()) {
                Found::Whole(record) if record.head.state != State::Redo => Found::Damaged,
                found => found,
            };
        if let Found::Whole(record) = &found {
            let length = record_bytes + record.head.redo.count() * SECTOR_BYTES;
            if length > bytes.len() {
                let rest = self.read_whole(offset + bytes.len() as u64, length - bytes.len())?;
                bytes.extend_from_slice(&rest);
            }
            bytes.truncate(length);
        }
        Ok((found, bytes))
    }
}

impl Body {
    /// Enters runs as written, and returns which sectors they are.
    fn enter(&mut self, runs: &[Run]) -> Bits {
        let mut entered = Bits::new(UNIT_SECTORS_MAX);
        for run in runs {
            for (sector, crc) in (run.first_sector..run.end()).zip(&run.checksums) {
                self.written.set(sector, true);
                self.lost.set(sector, false);
                self.checksums[sector] = *crc;
                entered.set(sector, true);
            }
        }
        entered
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

/// Refuses runs and summaries that do not fit the units of this disk.
fn check_shape(layout: &Layout, runs: &[Run], summary: Option<&Summary>) -> Result<(), Refusal> {
    let sectors = layout.unit_sectors();
    if let Some(run) = runs.last().filter(|run| run.end() > sectors) {
        return Err(Refusal::Invalid(format!("sectors up to {}: a unit has {sectors}", run.end())));
    }
    let Some(summary) = summary else { return Ok(()) };
    let (given, largest) =
        (summary.checksums.len(), sectors * usize::from(stripeset_stripe::profile::DATA_SHARDS_MAX));
    if given == 0 || given > largest || !given.is_multiple_of(sectors) {
        let message = format!("a summary of {given} sectors: a stripe has 1 to 16 units of {sectors}");
        return Err(Refusal::Invalid(message));
    }
    Ok(())
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
