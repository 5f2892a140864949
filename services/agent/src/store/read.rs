//! Reads sectors of a unit (A4): always of one version, always compared with their checksums.
//!
//! Whatever the disk does - too few bytes, an error, other bytes - a sector either has the bytes that its checksum names
//! or is marked bad, and no sector ever stands in the place of another.

use std::ops::Range;

use stripeset_stripe::{SECTOR_BYTES, Version, bits::Bits, checksum};

use super::{Redo, Store, Weak};
use crate::{
    disk::Buffer,
    layout::Layout,
    operation::{Read, ReadOutcome},
    record::{Body, Record, State},
    refusal::Refusal,
};

/// Sectors as they came from journal and disk.
pub(super) struct Fetched {
    bytes: Buffer,
    /// Sectors that the disk did not give.
    unread: Bits,
}

impl Store {
    pub(super) fn read(&mut self, read: &Read) -> Result<ReadOutcome, Refusal> {
        let layout = self.layout.ok_or(Refusal::Blank)?;
        let (unit, wanted) = (read.unit, read.version);
        Store::check_unit(&layout, unit)?;
        let sectors = read.first_sector..read.first_sector + read.sectors;
        if sectors.end > layout.unit_sectors() {
            let message = format!("sectors up to {}: a unit has {}", sectors.end, layout.unit_sectors());
            return Err(Refusal::Invalid(message));
        }
        self.counters.reads += 1;
        if self.is_entering(unit) {
            self.flush()?;
        }
        let record = self.readable(unit, wanted)?;
        let found = record.committed();
        if found < wanted {
            return Err(Refusal::VersionMismatch { unit, wanted, found });
        }
        // A unit that holds nothing is for nobody.
        if !found.is_none() && record.identity != read.identity {
            return Err(Refusal::OtherIdentity { unit, found });
        }
        let fetched = self.fetch(&layout, &record, &sectors);
        let mut outcome = self.compare(sectors, &record.body, fetched);
        outcome.version = found;
        outcome.summary = record.body.summary.filter(|_| read.summary);
        Ok(outcome)
    }

    /// The record that a reader who wants the version `wanted` gets: the pending write if it is that one, else what is
    /// committed.
    pub(super) fn readable(&mut self, unit: u64, wanted: Version) -> Result<Record, Refusal> {
        let pending = self.pending_of(unit).filter(|pending| pending.record.version == wanted);
        let record = match pending {
            Some(pending) => pending.record.clone(),
            None => self.record(unit)?,
        };
        if record.state == State::Damaged { Err(Refusal::Damaged { unit }) } else { Ok(record) }
    }

    /// The sectors of a unit as this record, committed or pending, describes them: what the journal has from there, the
    /// others from home.
    pub(super) fn fetch(&mut self, layout: &Layout, record: &Record, sectors: &Range<usize>) -> Fetched {
        let unit = record.unit;
        let recent = self.recent.get(&unit);
        let committed = recent.and_then(|recent| recent.changed.as_ref()).map(|changed| &changed.redo);
        let pending = recent.and_then(|recent| recent.pending.as_ref());
        let pending =
            pending.filter(|pending| pending.record.version == record.version).map(|pending| &pending.redo);
        // Later ones replace earlier ones.
        let redo: Redo = committed
            .into_iter()
            .chain(pending)
            .flat_map(|redo| redo.range(sectors.clone()))
            .map(|(sector, bytes)| (*sector, bytes.clone()))
            .collect();
        let from_home = |sector: usize| record.body.written.get(sector) && !redo.contains_key(&sector);
        let mut fetched = if sectors.clone().any(from_home) {
            self.fetch_home(layout, unit, sectors)
        } else {
            Fetched::zeros(sectors.len())
        };
        for (sector, bytes) in redo {
            let index = sector - sectors.start;
            fetched.bytes[index * SECTOR_BYTES..(index + 1) * SECTOR_BYTES].copy_from_slice(&bytes);
            fetched.unread.set(index, false);
        }
        fetched
    }

    /// Reads sectors at home. After a short read or an error, sector by sector, so that only what cannot be read is bad.
    fn fetch_home(&mut self, layout: &Layout, unit: u64, sectors: &Range<usize>) -> Fetched {
        let mut fetched = Fetched::zeros(sectors.len());
        let whole = self.disk.read(layout.sector_offset(unit, sectors.start), &mut fetched.bytes);
        if whole.is_ok_and(|got| got == fetched.bytes.len()) {
            return fetched;
        }
        self.counters.disk_errors += 1;
        let mut block = Buffer::zeroed(SECTOR_BYTES);
        for (index, sector) in sectors.clone().enumerate() {
            match self.disk.read(layout.sector_offset(unit, sector), &mut block) {
                Ok(SECTOR_BYTES) => {
                    fetched.bytes[index * SECTOR_BYTES..(index + 1) * SECTOR_BYTES].copy_from_slice(&block);
                }
                got => {
                    tracing::warn!(unit, sector, ?got, "a sector cannot be read");
                    fetched.unread.set(index, true);
                }
            }
        }
        fetched
    }

    /// Compares sectors with their checksums. The version is for the caller to fill in.
    pub(super) fn compare(&mut self, sectors: Range<usize>, body: &Body, fetched: Fetched) -> ReadOutcome {
        let Fetched { mut bytes, unread } = fetched;
        let count = sectors.len();
        let (mut written, mut bad) = (Bits::new(count), Bits::new(count));
        let mut checksums = Vec::with_capacity(count);
        let unverified = self.is_weak(Weak::ChecksumNotVerified);
        for (index, (sector, data)) in sectors.zip(bytes.chunks_exact_mut(SECTOR_BYTES)).enumerate() {
            checksums.push(body.checksums[sector]);
            written.set(index, body.written.get(sector));
            if !body.written.get(sector) {
                // The place may hold bytes of an earlier use.
                data.fill(0);
            } else if body.lost.get(sector) {
                bad.set(index, true);
                data.fill(0);
            } else if unread.get(index) || checksum::of_sector(data) != body.checksums[sector] && !unverified
            {
                self.counters.checksum_errors += 1;
                bad.set(index, true);
                data.fill(0);
            }
        }
        let data = bytes.into_bytes();
        ReadOutcome { version: Version::NONE, data, checksums, written, bad, summary: None }
    }
}

impl Fetched {
    fn zeros(sectors: usize) -> Fetched {
        Fetched { bytes: Buffer::zeroed(sectors * SECTOR_BYTES), unread: Bits::new(sectors) }
    }
}
