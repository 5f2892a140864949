//! First phase of a write: prepare over a committed version (A2), and into an empty stripe (A2f).
//!
//! Nothing here waits for a sync (but for the sake of a free slot): the caller syncs once for a group, and answers then.

use stripeset_stripe::Version;

use super::{Pending, Store, UnitState, committed};
use crate::{
    layout::Layout,
    operation::{Entry, Prepare, Run},
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
}

/// Refuses runs and summaries that do not fit the units of this disk.
pub(super) fn check_shape(layout: &Layout, runs: &[Run], summary: Option<&Summary>) -> Result<(), Refusal> {
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
