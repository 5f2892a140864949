//! Reads sectors of a unit (A4): always of one version, always compared with their checksums.
//!
//! Whatever the disk does - too few bytes, an error, other bytes - a sector either has the bytes that its checksum names
//! or is marked bad, and no sector ever stands in the place of another.

use std::ops::Range;

use bytes::Bytes;
use stripeset_proto::convert::Identity;
use stripeset_stripe::{SECTOR_BYTES, Version, bits::Bits, checksum};

use super::{Store, access::redo_bytes};
use crate::{
    layout::Layout,
    operation::{Read, ReadOutcome},
    record::{Body, Found, NOBODY, Record, State},
    refusal::Refusal,
};

/// Record and sectors are fetched by one call if no more bytes than this lie between them unasked for. To copy two
/// sectors costs less than a second call.
const GAP_BYTES_MAX: usize = 2 * SECTOR_BYTES;

/// Sectors as they came from the disk.
pub(super) struct Fetched {
    bytes: Vec<u8>,
    /// Where the first sector starts in `bytes`.
    start: usize,
    /// Sectors that the disk did not give.
    unread: Bits,
}

/// What a record says is committed.
pub(super) struct Committed {
    pub(super) version: Version,
    pub(super) identity: Identity,
    pub(super) body: Body,
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
        let pending = self.pending.get(&unit).filter(|pending| pending.head.version == wanted);
        let (committed, fetched) = match pending.and_then(|pending| pending.slot) {
            Some(slot) => self.fetch_pending(&layout, unit, slot, &sectors)?,
            None => {
                let (found, fetched) = self.fetch_home(&layout, unit, &sectors)?;
                (readable(unit, found, wanted, &layout)?, fetched)
            }
        };
        if committed.version < wanted {
            return Err(Refusal::VersionMismatch { unit, wanted, found: committed.version });
        }
        // A unit that holds nothing is for nobody.
        if !committed.version.is_none() && committed.identity != read.identity {
            return Err(Refusal::OtherIdentity { unit, found: committed.version });
        }
        let mut outcome = self.compare(sectors, &committed.body, fetched);
        outcome.version = committed.version;
        outcome.summary = committed.body.summary.filter(|_| read.summary);
        Ok(outcome)
    }

    /// Compares sectors with their checksums. The version is for the caller to fill in.
    pub(super) fn compare(&mut self, sectors: Range<usize>, body: &Body, fetched: Fetched) -> ReadOutcome {
        let Fetched { mut bytes, start, unread } = fetched;
        let count = sectors.len();
        let (mut written, mut bad) = (Bits::new(count), Bits::new(count));
        let mut checksums = Vec::with_capacity(count);
        let chunks = bytes[start..].chunks_exact_mut(SECTOR_BYTES);
        for (index, (sector, data)) in sectors.zip(chunks).enumerate() {
            checksums.push(body.checksums[sector]);
            written.set(index, body.written.get(sector));
            if !body.written.get(sector) {
                // The place may hold bytes of an earlier use.
                data.fill(0);
            } else if body.lost.get(sector) {
                bad.set(index, true);
                data.fill(0);
            } else if unread.get(index) || checksum::of_sector(data) != body.checksums[sector] {
                self.counters.checksum_errors += 1;
                bad.set(index, true);
                data.fill(0);
            }
        }
        let data = Bytes::from(bytes).slice(start..);
        ReadOutcome { version: Version::NONE, data, checksums, written, bad, summary: None }
    }

    /// Reads a unit's record and sectors at home.
    pub(super) fn fetch_home(
        &mut self,
        layout: &Layout,
        unit: u64,
        sectors: &Range<usize>,
    ) -> Result<(Found<Record>, Fetched), Refusal> {
        let (offset, record_bytes) = (layout.record_offset(unit), layout.record_bytes());
        let start = record_bytes + sectors.start * SECTOR_BYTES;
        let end = record_bytes + sectors.end * SECTOR_BYTES;
        if !sectors.is_empty()
            && start - record_bytes <= GAP_BYTES_MAX
            && let Ok(bytes) = self.disk.read(offset, end)
            && bytes.len() == end
        {
            let found = self.decode_home(layout, unit, &bytes[..record_bytes]);
            return Ok((found, Fetched { bytes, start, unread: Bits::new(sectors.len()) }));
        }
        let bytes = self.read_whole(offset, record_bytes)?;
        let found = self.decode_home(layout, unit, &bytes);
        // No need to read what was never written.
        let wanted = match &found {
            Found::Whole(record) => sectors.clone().any(|sector| record.body.written.get(sector)),
            Found::Blank | Found::Damaged => false,
        };
        let fetched =
            if wanted { self.fetch_sectors(layout, unit, sectors) } else { Fetched::zeros(sectors.len()) };
        Ok((found, fetched))
    }

    /// Reads sectors at home. After a short read or an error, sector by sector, so that only what cannot be read is bad.
    fn fetch_sectors(&mut self, layout: &Layout, unit: u64, sectors: &Range<usize>) -> Fetched {
        let length = sectors.len() * SECTOR_BYTES;
        if let Ok(bytes) = self.disk.read(layout.sector_offset(unit, sectors.start), length)
            && bytes.len() == length
        {
            return Fetched { bytes, start: 0, unread: Bits::new(sectors.len()) };
        }
        let mut fetched = Fetched::zeros(sectors.len());
        for (index, sector) in sectors.clone().enumerate() {
            let place = index * SECTOR_BYTES..(index + 1) * SECTOR_BYTES;
            match self.read_whole(layout.sector_offset(unit, sector), SECTOR_BYTES) {
                Ok(bytes) => fetched.bytes[place].copy_from_slice(&bytes),
                Err(_) => fetched.unread.set(index, true),
            }
        }
        fetched
    }

    /// Reads a unit as its pending write makes it: sectors of the redo from the slot, the others from home.
    fn fetch_pending(
        &mut self,
        layout: &Layout,
        unit: u64,
        slot: u32,
        sectors: &Range<usize>,
    ) -> Result<(Committed, Fetched), Refusal> {
        let (found, slot_bytes) = self.read_slot(layout, slot)?;
        let record = match found {
            Found::Whole(record) if record.head.unit == unit => record,
            _ => return Err(Refusal::Damaged { unit }),
        };
        let Record { head, body } = record;
        let from_home = |sector: usize| body.written.get(sector) && !head.redo.get(sector);
        let mut fetched = if sectors.clone().any(from_home) {
            self.fetch_sectors(layout, unit, sectors)
        } else {
            Fetched::zeros(sectors.len())
        };
        for (sector, bytes) in head.redo.iter_ones().zip(redo_bytes(layout, &slot_bytes)) {
            if let Some(index) = sector.checked_sub(sectors.start).filter(|index| *index < sectors.len()) {
                fetched.bytes[index * SECTOR_BYTES..(index + 1) * SECTOR_BYTES].copy_from_slice(bytes);
                fetched.unread.set(index, false);
            }
        }
        Ok((Committed { version: head.version, identity: head.identity, body }, fetched))
    }
}

impl Fetched {
    fn zeros(sectors: usize) -> Fetched {
        Fetched { bytes: vec![0; sectors * SECTOR_BYTES], start: 0, unread: Bits::new(sectors) }
    }
}

/// What a record at home gives to a reader who wants the version `wanted`: the fresh write if it is that one, else what
/// is committed.
pub(super) fn readable(
    unit: u64,
    found: Found<Record>,
    wanted: Version,
    layout: &Layout,
) -> Result<Committed, Refusal> {
    let Record { head, body } = match found {
        Found::Whole(record) => record,
        Found::Blank => return Ok(Committed::nothing(layout)),
        Found::Damaged => return Err(Refusal::Damaged { unit }),
    };
    match head.state {
        State::Committed => Ok(Committed { version: head.version, identity: head.identity, body }),
        State::Fresh if head.version == wanted => {
            Ok(Committed { version: head.version, identity: head.identity, body })
        }
        State::Fresh | State::Empty => Ok(Committed::nothing(layout)),
        State::Damaged | State::Redo => Err(Refusal::Damaged { unit }),
    }
}

impl Committed {
    fn nothing(layout: &Layout) -> Committed {
        Committed {
            version: Version::NONE,
            identity: NOBODY,
            body: Body::never_written(layout.unit_sectors()),
        }
    }
}
