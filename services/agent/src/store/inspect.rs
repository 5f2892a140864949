//! Looks at units for people and for a coordinator that takes over: records, verification, reads without a version, the
//! journal. Changes nothing.

use std::ops::Range;

use bytes::Bytes;
use stripeset_proto::convert::Identity;
use stripeset_stripe::{Version, bits::Bits};

use super::{Recent, Store};
use crate::{
    layout::Layout,
    record::{Record, State, Summary},
    refusal::Refusal,
};

/// What the disk knows of one unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UnitView {
    pub(crate) unit: u64,
    pub(crate) state: ViewState,
    pub(crate) identity: Identity,
    pub(crate) committed: Version,
    pub(crate) pending: Version,
    pub(crate) floor: Version,
    pub(crate) disk_offset: u64,
    pub(crate) written: Bits,
    pub(crate) lost: Bits,
    pub(crate) checksums: Vec<u32>,
    pub(crate) summary: Option<Summary>,
}

/// What a unit holds, pending writes included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ViewState {
    Empty,
    Committed,
    Pending,
    Damaged,
}

/// What came of comparing a unit's sectors with their checksums.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Verified {
    pub(crate) sectors: usize,
    /// Sectors that do not match, and where each starts on the disk.
    pub(crate) bad: Vec<(usize, u64)>,
    pub(crate) damaged: bool,
}

/// The journal as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct JournalView {
    pub(crate) ring_bytes: u64,
    pub(crate) used_bytes: u64,
    pub(crate) groups: u64,
    pub(crate) pending_writes: u64,
    pub(crate) pending_bytes: u64,
    /// Units whose newest record is not in the table yet.
    pub(crate) recent_units: u64,
}

/// Which units are looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// Those that hold something.
    Holding,
    /// Those with a floor above this version, whatever they hold.
    ChangedSince(Version),
}

impl Store {
    /// What is known of a unit. A record that cannot be read is a damaged one.
    pub(crate) fn view(&mut self, unit: u64) -> Result<UnitView, Refusal> {
        let layout = self.layout.ok_or(Refusal::Blank)?;
        Store::check_unit(&layout, unit)?;
        let committed = self.record(unit)?;
        let floor = committed.floor;
        let pending = self.pending_of(unit);
        let version = pending.map_or(Version::NONE, |pending| pending.record.version);
        // Of a fresh write there is nothing else to show.
        let fresh = pending.filter(|pending| pending.base.is_none()).map(|pending| pending.record.clone());
        let identity = pending.map_or(committed.identity, |pending| pending.record.identity);
        let state = match committed.state {
            _ if pending.is_some() => ViewState::Pending,
            State::Empty => ViewState::Empty,
            State::Committed => ViewState::Committed,
            State::Damaged => ViewState::Damaged,
        };
        let committed_version = committed.committed();
        let body = fresh.unwrap_or(committed).body;
        Ok(UnitView {
            unit,
            state,
            identity,
            committed: committed_version,
            pending: version,
            floor,
            disk_offset: layout.sector_offset(unit, 0),
            written: body.written,
            lost: body.lost,
            checksums: body.checksums,
            summary: body.summary,
        })
    }

    /// Units from `first` on that are wanted, and where to go on: looks at one region of the table, at most, and not at all
    /// at a region in which nothing can be.
    pub(crate) fn find(&mut self, first: u64, wanted: Wanted) -> Result<(Vec<u64>, Option<u64>), Refusal> {
        let layout = self.layout.ok_or(Refusal::Blank)?;
        let Some(table) = &mut self.table else { return Err(Refusal::Blank) };
        let Some(start) = next_region(&layout, first, |unit| {
            let end = region_end(&layout, unit);
            let newest = table.newest_near(unit);
            let in_table = match wanted {
                Wanted::Holding => !newest.is_none(),
                Wanted::ChangedSince(since) => newest > since,
            };
            in_table || self.recent.range(unit..end).next().is_some()
        }) else {
            return Ok((Vec::new(), None));
        };
        let end = region_end(&layout, start);
        let mut found = Vec::new();
        if table.newest_near(start).is_none() {
            found.extend(
                self.recent.range(start..end).filter(|(_, recent)| recent.is(wanted)).map(|(unit, _)| *unit),
            );
        } else {
            for record in self.region_records(start)? {
                let recent = self.recent.get(&record.unit);
                let is_wanted = recent.is_some_and(|recent| recent.is(wanted))
                    || recent.is_none_or(|recent| recent.changed.is_none()) && is(&record, wanted);
                found.extend(is_wanted.then_some(record.unit));
            }
        }
        Ok((found, (end < layout.units()).then_some(end)))
    }

    fn region_records(&mut self, unit: u64) -> Result<Vec<Record>, Refusal> {
        let (Some(table), Some(layout)) = (&mut self.table, self.layout) else { return Err(Refusal::Blank) };
        match table.region_from(&mut *self.disk, unit) {
            Ok(records) => Ok(records),
            Err(error) => {
                // Page by page, then: what cannot be read is damaged, the rest is not.
                self.counters.disk_errors += 1;
                tracing::warn!(unit, %error, "a region of the table cannot be read");
                (unit..region_end(&layout, unit)).map(|unit| self.record(unit)).collect()
            }
        }
    }

    /// Compares all sectors of what is committed in a unit with their checksums.
    pub(crate) fn verify(&mut self, unit: u64) -> Result<Verified, Refusal> {
        let layout = self.layout.ok_or(Refusal::Blank)?;
        Store::check_unit(&layout, unit)?;
        if self.is_entering(unit) {
            self.flush()?;
        }
        let fresh = self.pending_of(unit).filter(|pending| pending.base.is_none());
        let record = match fresh.map(|pending| pending.record.clone()) {
            Some(record) => record,
            None => self.record(unit)?,
        };
        match record.state {
            State::Empty => return Ok(Verified::default()),
            State::Damaged => return Ok(Verified { damaged: true, ..Verified::default() }),
            State::Committed => {}
        }
        let sectors = 0..layout.unit_sectors();
        let fetched = self.fetch(&layout, &record, &sectors);
        let outcome = self.compare(sectors, &record.body, fetched);
        let bad =
            outcome.bad.iter_ones().map(|sector| (sector, layout.sector_offset(unit, sector))).collect();
        Ok(Verified { sectors: record.body.written.count(), bad, damaged: false })
    }

    /// Reads sectors of what is committed. Returns the bytes, zeros where bad or never written, and the bad sectors.
    pub(crate) fn read_committed(
        &mut self,
        unit: u64,
        sectors: Range<usize>,
    ) -> Result<(Bytes, Vec<usize>), Refusal> {
        let layout = self.layout.ok_or(Refusal::Blank)?;
        Store::check_unit(&layout, unit)?;
        if sectors.is_empty() || sectors.end > layout.unit_sectors() {
            let message = format!(
                "sectors {} to {}: a unit has {}, at least one has to be read",
                sectors.start,
                sectors.end,
                layout.unit_sectors()
            );
            return Err(Refusal::Invalid(message));
        }
        let record = self.readable(unit, Version::NONE)?;
        let first = sectors.start;
        let fetched = self.fetch(&layout, &record, &sectors);
        let outcome = self.compare(sectors, &record.body, fetched);
        Ok((outcome.data, outcome.bad.iter_ones().map(|index| first + index).collect()))
    }

    /// The journal as it is.
    pub(crate) fn journal_view(&self) -> JournalView {
        JournalView {
            ring_bytes: self.journal.ring_bytes(),
            used_bytes: self.journal.used_bytes(),
            groups: self.journal.groups() as u64,
            pending_writes: self.pending_writes as u64,
            pending_bytes: self.pending_bytes,
            recent_units: self.recent.len() as u64,
        }
    }
}

impl Recent {
    /// Whether what is not in the table yet makes the unit a wanted one.
    fn is(&self, wanted: Wanted) -> bool {
        self.changed.as_ref().is_some_and(|changed| is(&changed.record, wanted))
            || self.pending.as_ref().is_some_and(|pending| is(&pending.record, wanted))
    }
}

fn is(record: &Record, wanted: Wanted) -> bool {
    match wanted {
        Wanted::Holding => record.holds(),
        Wanted::ChangedSince(since) => record.floor > since,
    }
}

/// The first unit from `first` on in whose region something may be.
fn next_region(layout: &Layout, first: u64, mut may_be: impl FnMut(u64) -> bool) -> Option<u64> {
    let mut unit = first;
    while unit < layout.units() {
        if may_be(unit) {
            return Some(unit);
        }
        unit = region_end(layout, unit);
    }
    None
}

/// The first unit behind the region of this one.
fn region_end(layout: &Layout, unit: u64) -> u64 {
    ((layout.region_of(unit) + 1) * layout.region_units()).min(layout.units())
}
