//! The record of a unit: who it is for, which version it holds, the checksum of every sector. Byte layout here and in
//! docs/ON_DISK.md; what the states mean for requests is in `store`.
//!
//! Records stand in the table, one for each unit in a place of fixed length, and in the journal, as long as they are.
//!
//! Invariants:
//! 1. What is decoded was encoded for this disk and this unit: both are in the record, under its checksum.
//! 2. A record is all there is to know of a unit but for its bytes: the newest one replaces all older ones.
//! 3. No bytes whatever make decoding panic, or take more memory than the largest record.

use stripeset_proto::convert::Identity;
use stripeset_stripe::{
    Version,
    bits::Bits,
    checksum,
    geometry::{ChunkIndex, Row, Shard},
};
use uuid::Uuid;

use crate::{
    layout::{DATA_SECTORS_MAX, SHARDS_MAX},
    little_endian::{Reader, VERSION_BYTES, Writer},
};

/// Bytes of a record before its rows of bits.
const FIXED_BYTES: usize = 152;

/// Bytes before those that the checksum covers.
const CRC_END: usize = 4;

/// What every record's length is a multiple of.
const STEP_BYTES: usize = 8;

/// Bytes of the longest record of a unit with so many sectors, in a stripe with so many shards and data sectors.
pub(crate) const fn record_bytes_max(unit_sectors: usize, shards: usize, data_sectors: usize) -> usize {
    let own = 2 * unit_sectors.div_ceil(8) + 4 * unit_sectors;
    let summary = shards * VERSION_BYTES + data_sectors.div_ceil(8) + 4 * data_sectors;
    (FIXED_BYTES + own + summary).next_multiple_of(STEP_BYTES)
}

/// What a unit holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Nothing; only the floor counts.
    Empty,
    /// `version` is committed (in a pending write: will be).
    Committed,
    /// The record was found damaged, or bytes were lost while they were replaced: nothing but the floor is known.
    Damaged,
}

/// All there is to know of a unit but for its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) state: State,
    pub(crate) unit: u64,
    pub(crate) identity: Identity,
    pub(crate) version: Version,
    /// Of the rebuild that brought `version`; none if a write did.
    pub(crate) token: Version,
    /// Highest version ever prepared, aborted or committed here.
    pub(crate) floor: Version,
    pub(crate) body: Body,
}

/// What the sectors of a unit are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Body {
    /// Ever written.
    pub(crate) written: Bits,
    /// Known to be lost: bad until written.
    pub(crate) lost: Bits,
    pub(crate) checksums: Vec<u32>,
    pub(crate) summary: Option<Summary>,
}

/// What parity shards, and copies of a mirror, know of their whole stripe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Summary {
    pub(crate) vector: Vec<Version>,
    /// One bit and one checksum for each data sector of the stripe.
    pub(crate) written: Bits,
    pub(crate) checksums: Vec<u32>,
}

/// Identity of a unit that is for nothing.
pub(crate) const NOBODY: Identity =
    Identity { chunk: ChunkIndex(0), incarnation: Version::NONE, row: Row(0), shard: Shard(0) };

impl Body {
    /// All sectors never written.
    pub(crate) fn never_written(unit_sectors: usize) -> Body {
        Body {
            written: Bits::new(unit_sectors),
            lost: Bits::new(unit_sectors),
            checksums: vec![checksum::ZERO_SECTOR; unit_sectors],
            summary: None,
        }
    }
}

impl Record {
    /// A record of a unit that holds nothing, or nothing that is known.
    pub(crate) fn bare(state: State, unit: u64, unit_sectors: usize, floor: Version) -> Record {
        Record {
            state,
            unit,
            identity: NOBODY,
            version: Version::NONE,
            token: Version::NONE,
            floor,
            body: Body::never_written(unit_sectors),
        }
    }

    /// The committed version; none if there is none, or it is not known.
    pub(crate) fn committed(&self) -> Version {
        if self.state == State::Committed { self.version } else { Version::NONE }
    }

    /// Bytes that [`Record::encode`] appends.
    pub(crate) fn encoded_bytes(&self) -> usize {
        if self.state != State::Committed {
            return FIXED_BYTES;
        }
        let (shards, data_sectors) = self
            .body
            .summary
            .as_ref()
            .map_or((0, 0), |summary| (summary.vector.len(), summary.checksums.len()));
        record_bytes_max(self.body.checksums.len(), shards, data_sectors)
    }

    /// Appends the record's bytes.
    pub(crate) fn encode(&self, disk: Uuid, out: &mut Vec<u8>) {
        let (start, length) = (out.len(), self.encoded_bytes());
        out.resize(start + length, 0);
        let bytes = &mut out[start..];
        self.write(disk, length, &mut Writer::new(&mut *bytes));
        let crc = crc32c::crc32c(&bytes[CRC_END..]);
        bytes[..CRC_END].copy_from_slice(&crc.to_le_bytes());
    }

    fn write(&self, disk: Uuid, length: usize, out: &mut Writer<'_>) {
        out.u32(0);
        // The longest takes less than 32 KiB.
        out.u32(length as u32);
        out.bytes(disk.as_bytes());
        out.u64(self.unit);
        out.u8(match self.state {
            State::Empty => 1,
            State::Committed => 2,
            State::Damaged => 3,
        });
        out.u8(self.identity.shard.0);
        let body = (self.state == State::Committed).then_some(&self.body);
        out.u16(body.map_or(0, |body| body.checksums.len() as u16));
        out.u32(self.identity.row.0);
        out.u64(self.identity.chunk.0);
        out.version(self.identity.incarnation);
        out.version(self.version);
        out.version(self.token);
        out.version(self.floor);
        let summary = body.and_then(|body| body.summary.as_ref());
        out.u16(summary.map_or(0, |summary| summary.vector.len() as u16));
        out.u16(0);
        out.u32(summary.map_or(0, |summary| summary.checksums.len() as u32));
        let Some(body) = body else { return };
        out.bytes(body.written.as_bytes());
        out.bytes(body.lost.as_bytes());
        body.checksums.iter().for_each(|crc| out.u32(*crc));
        if let Some(summary) = summary {
            summary.vector.iter().for_each(|version| out.version(*version));
            out.bytes(summary.written.as_bytes());
            summary.checksums.iter().for_each(|crc| out.u32(*crc));
        }
    }

    /// How long the record at the start of `bytes` says it is.
    pub(crate) fn length_of(bytes: &[u8]) -> Option<usize> {
        let length = Reader::new(bytes.get(CRC_END..)?).u32()? as usize;
        (length >= FIXED_BYTES && length <= bytes.len()).then_some(length)
    }

    /// Decodes the record at the start of `bytes`, which may go on after it; `None` if it is not whole, or another disk's.
    pub(crate) fn decode(bytes: &[u8], disk: Uuid, unit_sectors: usize) -> Option<Record> {
        let bytes = &bytes[..Record::length_of(bytes)?];
        let mut from = Reader::new(bytes);
        if from.u32()? != crc32c::crc32c(&bytes[CRC_END..]) {
            return None;
        }
        let _length = from.u32()?;
        if from.array::<16>()? != *disk.as_bytes() {
            return None;
        }
        let unit = from.u64()?;
        let state = match from.u8()? {
            1 => State::Empty,
            2 => State::Committed,
            3 => State::Damaged,
            _ => return None,
        };
        let shard = Shard(from.u8()?);
        let sectors = usize::from(from.u16()?);
        let (row, chunk) = (Row(from.u32()?), ChunkIndex(from.u64()?));
        let identity = Identity { chunk, incarnation: from.version()?, row, shard };
        let (version, token, floor) = (from.version()?, from.version()?, from.version()?);
        let (shards, _reserved, data_sectors) = (usize::from(from.u16()?), from.u16()?, from.u32()? as usize);
        let body = if state == State::Committed {
            if sectors != unit_sectors || shards > SHARDS_MAX || data_sectors > DATA_SECTORS_MAX {
                return None;
            }
            Body::read(&mut from, sectors, shards, data_sectors)?
        } else {
            Body::never_written(unit_sectors)
        };
        Some(Record { state, unit, identity, version, token, floor, body })
    }
}

impl Body {
    fn read(from: &mut Reader<'_>, sectors: usize, shards: usize, data_sectors: usize) -> Option<Body> {
        let written = read_bits(from, sectors)?;
        let lost = read_bits(from, sectors)?;
        let checksums = read_checksums(from, sectors)?;
        let summary = if shards == 0 {
            None
        } else {
            let vector = (0..shards).map(|_| from.version()).collect::<Option<_>>()?;
            let written = read_bits(from, data_sectors)?;
            Some(Summary { vector, written, checksums: read_checksums(from, data_sectors)? })
        };
        Some(Body { written, lost, checksums, summary })
    }
}

fn read_bits(from: &mut Reader<'_>, length: usize) -> Option<Bits> {
    Bits::from_bytes(from.bytes(length.div_ceil(8))?, length)
}

fn read_checksums(from: &mut Reader<'_>, count: usize) -> Option<Vec<u32>> {
    let bytes = from.bytes(count.checked_mul(4)?)?;
    Some(bytes.as_chunks::<4>().0.iter().map(|crc| u32::from_le_bytes(*crc)).collect())
}

/// Makes length, disk and checksum of the record at the start of `bytes` right. Returns its length, 0 if it has none.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn seal(bytes: &mut [u8], disk: Uuid) -> usize {
    if bytes.len() < FIXED_BYTES {
        return 0;
    }
    let length = Record::length_of(bytes).unwrap_or(bytes.len());
    bytes[4..8].copy_from_slice(&(length as u32).to_le_bytes());
    bytes[8..24].copy_from_slice(disk.as_bytes());
    let crc = crc32c::crc32c(&bytes[CRC_END..length]);
    bytes[..CRC_END].copy_from_slice(&crc.to_le_bytes());
    length
}

#[cfg(test)]
mod tests;
