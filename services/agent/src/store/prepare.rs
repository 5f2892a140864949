//! First phase of a write: prepare over a committed version (A2), and into an empty stripe (A2f).
//!
//! Nothing here waits for a sync (but for the sake of room): the caller syncs once for a group, and answers then.

use bytes::Bytes;
use stripeset_stripe::{SECTOR_BYTES, Version, bits::Bits};

use super::{Pending, Redo, Store, apply::PENDING_PARTS, change::Change, flush::change_bytes};
use crate::{
    layout::{Layout, UNIT_SECTORS_MAX},
    operation::{Entry, Prepare, Run},
    record::{Body, Record, State, Summary},
    refusal::Refusal,
};

/// A slice of a request keeps its whole message in memory. Runs shorter than this are copied for as long as they pend.
const COPIED_BYTES_MAX: usize = 32 * 1024;

impl Store {
    /// First phase of a write.
    pub(super) fn prepare(&mut self, prepare: Prepare) -> Result<(), Refusal> {
        let layout = self.writable()?;
        let (unit, version) = (prepare.unit, prepare.version);
        Store::check_unit(&layout, unit)?;
        check_shape(&layout, &prepare.runs, prepare.summary.as_ref())?;
        self.counters.prepares += 1;
        if self.pending_of(unit).is_some_and(|pending| pending.record.version == version) {
            return Ok(());
        }
        let old = self.record(unit)?;
        if version <= old.floor {
            let (given, floor) = (version, old.floor);
            return if old.committed() == version {
                Ok(())
            } else {
                Err(Refusal::BelowFloor { unit, given, floor })
            };
        }
        match prepare.entry {
            Entry::Fresh => self.prepare_fresh(&layout, prepare),
            Entry::Over(base) => self.prepare_over(&layout, prepare, base, old),
        }
    }

    /// The bytes go straight home; the journal says that the write is pending.
    fn prepare_fresh(&mut self, layout: &Layout, prepare: Prepare) -> Result<(), Refusal> {
        let Prepare { unit, version, identity, participants, runs, summary, .. } = prepare;
        let mut body = Body::never_written(layout.unit_sectors());
        body.enter(&runs);
        body.summary = summary;
        let record = Record {
            identity,
            version,
            body,
            ..Record::bare(State::Committed, unit, layout.unit_sectors(), version)
        };
        let change = Change::PreparedFresh { participants, record };
        let bytes = change_bytes(&change, 0);
        self.check_pending_limits(unit, bytes)?;
        self.reserve(unit, bytes)?;
        let Change::PreparedFresh { record, .. } = &change else { return Ok(()) };
        let since = self.staging_place();
        let record = record.clone();
        let pending = Pending { record, base: None, participants, redo: Redo::new(), since, bytes };
        self.counted(unit, |store| store.enter_fresh(layout, pending));
        self.stage(&change);
        self.stage_home(layout, unit, runs);
        Ok(())
    }

    /// The bytes go to the journal; the old ones stay readable at home.
    fn prepare_over(
        &mut self,
        layout: &Layout,
        prepare: Prepare,
        base: Version,
        old: Record,
    ) -> Result<(), Refusal> {
        let Prepare { unit, version, identity, participants, runs, summary, .. } = prepare;
        let pending = self.pending_of(unit).map(|pending| pending.record.version);
        // A base is always decided: what is pending will be the committed state.
        let old = match pending {
            Some(pending) if pending == base => {
                self.make_prepare_durable(unit)?;
                self.pending_of(unit).map_or(old, |pending| pending.record.clone())
            }
            Some(pending) => return Err(Refusal::Busy { unit, pending }),
            None => old,
        };
        check_base(&old, unit, base, &prepare.identity, summary.is_some())?;
        let mut record = Record { version, floor: version, token: Version::NONE, identity, ..old };
        self.allocate_home(layout, unit, &record.body, &runs)?;
        let redo = record.body.enter(&runs);
        record.body.summary = summary;
        let sectors = redo.count();
        let change = Change::PreparedOver { base, participants, redo, record };
        let bytes = change_bytes(&change, sectors);
        self.check_pending_limits(unit, bytes)?;
        self.reserve(unit, bytes)?;
        if pending.is_some() {
            self.commit_in_memory(unit);
        }
        let Change::PreparedOver { record, .. } = &change else { return Ok(()) };
        let (record, since) = (record.clone(), self.staging_place());
        let redo = redo_of(runs);
        self.set_pending(Pending { record, base: Some(base), participants, redo, since, bytes });
        self.stage(&change);
        Ok(())
    }

    /// Refuses a write that would leave the journal no room to settle what is pending.
    fn check_pending_limits(&self, unit: u64, bytes: u64) -> Result<(), Refusal> {
        let own = self.pending_of(unit).map_or(0, |pending| pending.bytes);
        if self.pending_writes >= super::PENDING_MAX && own == 0 {
            return Err(Refusal::Limit { what: "too many pending writes", limit: super::PENDING_MAX as u64 });
        }
        let limit = PENDING_PARTS * self.journal.part_bytes();
        if self.pending_bytes - own + bytes > limit {
            return Err(Refusal::Limit { what: "the journal is full of pending writes", limit });
        }
        Ok(())
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

/// Refuses a write over what is not its base, or not its shard.
fn check_base(
    old: &Record,
    unit: u64,
    base: Version,
    identity: &stripeset_proto::convert::Identity,
    has_summary: bool,
) -> Result<(), Refusal> {
    match old.state {
        State::Committed => {}
        State::Empty => return Err(Refusal::Empty { unit }),
        State::Damaged => return Err(Refusal::Damaged { unit }),
    }
    if old.version != base {
        return Err(Refusal::VersionMismatch { unit, wanted: base, found: old.version });
    }
    if old.identity != *identity {
        return Err(Refusal::OtherIdentity { unit, found: old.version });
    }
    if old.body.summary.is_some() != has_summary {
        let message =
            format!("unit {unit}: a write brings a stripe summary if, and only if, the unit has one");
        return Err(Refusal::Invalid(message));
    }
    Ok(())
}

impl Body {
    /// Enters runs as written, and returns which sectors they are.
    pub(super) fn enter(&mut self, runs: &[Run]) -> Bits {
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

/// The sectors of runs, each with its bytes.
fn redo_of(runs: Vec<Run>) -> Redo {
    let mut redo = Redo::new();
    for run in runs {
        let first = run.first_sector;
        let data =
            if run.data.len() < COPIED_BYTES_MAX { Bytes::copy_from_slice(&run.data) } else { run.data };
        let sectors = (0..data.len() / SECTOR_BYTES).map(|index| index * SECTOR_BYTES);
        redo.extend((first..).zip(sectors.map(|start| data.slice(start..start + SECTOR_BYTES))));
    }
    redo
}

/// Refuses runs and summaries that do not fit the units of this disk.
pub(super) fn check_shape(layout: &Layout, runs: &[Run], summary: Option<&Summary>) -> Result<(), Refusal> {
    let sectors = layout.unit_sectors();
    if let Some(run) = runs.last().filter(|run| run.end() > sectors) {
        return Err(Refusal::Invalid(format!("sectors up to {}: a unit has {sectors}", run.end())));
    }
    let Some(summary) = summary else { return Ok(()) };
    let shape = layout.shape();
    let (given, largest) = (summary.checksums.len(), sectors * shape.data_shards);
    if given == 0 || given > largest || !given.is_multiple_of(sectors) {
        let message = format!(
            "a summary of {given} sectors: stripes of this array have 1 to {} data units of {sectors}",
            shape.data_shards
        );
        return Err(Refusal::Invalid(message));
    }
    if summary.vector.len() > shape.shards {
        let (given, most) = (summary.vector.len(), shape.shards);
        let message = format!("a vector of {given} shards: stripes of this array have at most {most}");
        return Err(Refusal::Invalid(message));
    }
    Ok(())
}
