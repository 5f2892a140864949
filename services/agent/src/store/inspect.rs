//! Looks at units for people and for a coordinator that takes over: records, verification, reads without a version.
//! Changes nothing.

use std::ops::Range;

use bytes::Bytes;
use stripeset_proto::convert::Identity;
use stripeset_stripe::{Version, bits::Bits};

use super::{Store, UnitState, read::readable};
use crate::{
    record::{Body, Found, NOBODY, State, Summary},
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

impl Store {
    /// The record of a unit. One that cannot be read is a damaged one.
    pub(crate) fn view(&mut self, unit: u64) -> Result<UnitView, Refusal> {
        let layout = self.layout.ok_or(Refusal::Blank)?;
        Store::check_unit(&layout, unit)?;
        let pending = self.pending.get(&unit).map(|pending| pending.head.clone());
        let found = match self.fetch_home(&layout, unit, &(0..0)) {
            Ok((found, _)) => found,
            Err(_) => Found::Damaged,
        };
        let never_written = || (NOBODY, Version::NONE, Body::never_written(layout.unit_sectors()));
        let (state, (identity, committed, body)) = match found {
            Found::Blank => (ViewState::Empty, never_written()),
            Found::Damaged => (ViewState::Damaged, never_written()),
            Found::Whole(record) => match record.head.state {
                State::Empty => (ViewState::Empty, never_written()),
                State::Damaged | State::Redo => (ViewState::Damaged, never_written()),
                State::Fresh => (ViewState::Pending, (record.head.identity, Version::NONE, record.body)),
                State::Committed => {
                    let head = &record.head;
                    (ViewState::Committed, (head.identity, head.version, record.body))
                }
            },
        };
        // A pending write over a damaged record is what there is to say about the unit.
        let state = if pending.is_some() { ViewState::Pending } else { state };
        let identity = pending.as_ref().map_or(identity, |head| head.identity);
        Ok(UnitView {
            unit,
            state,
            identity,
            committed,
            pending: pending.map_or(Version::NONE, |head| head.version),
            floor: self.index.floor(unit),
            disk_offset: layout.sector_offset(unit, 0),
            written: body.written,
            checksums: body.checksums,
            summary: body.summary,
        })
    }

    /// The first unit from `first` on that holds something.
    pub(crate) fn used_from(&self, first: u64) -> Option<u64> {
        self.index.used_from(first)
    }

    /// Compares all sectors of a unit's record at home with their checksums.
    pub(crate) fn verify(&mut self, unit: u64) -> Result<Verified, Refusal> {
        let layout = self.layout.ok_or(Refusal::Blank)?;
        Store::check_unit(&layout, unit)?;
        if self.index.state(unit) == UnitState::Empty {
            return Ok(Verified::default());
        }
        let sectors = 0..layout.unit_sectors();
        let (found, fetched) = match self.fetch_home(&layout, unit, &sectors) {
            Ok((Found::Whole(record), fetched)) => (record, fetched),
            Ok((Found::Blank | Found::Damaged, _)) | Err(_) => return Ok(Verified::of_damaged()),
        };
        if matches!(found.head.state, State::Damaged | State::Redo) {
            return Ok(Verified::of_damaged());
        }
        let outcome = self.compare(sectors, &found.body, fetched);
        let bad =
            outcome.bad.iter_ones().map(|sector| (sector, layout.sector_offset(unit, sector))).collect();
        Ok(Verified { sectors: found.body.written.count(), bad, damaged: false })
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
        let (found, fetched) = self.fetch_home(&layout, unit, &sectors)?;
        let committed = readable(unit, found, Version::NONE, &layout)?;
        let first = sectors.start;
        let outcome = self.compare(sectors, &committed.body, fetched);
        Ok((outcome.data, outcome.bad.iter_ones().map(|index| first + index).collect()))
    }
}

impl Verified {
    fn of_damaged() -> Verified {
        Verified { damaged: true, ..Verified::default() }
    }
}
