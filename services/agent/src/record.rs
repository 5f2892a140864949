//! The record of a unit: who it is for, which version it holds, the checksum of every sector. Byte layout here and in
//! docs/ON_DISK.md; what the states mean for requests is in `store`.
//!
//! A record is a **head** of 512 bytes and a **body**. The head alone changes when a write is committed or a floor
//! raised, and disks write 512 bytes whole or not at all: so such a change cannot be torn, and the body, which says what
//! the sectors are, need not be rewritten.
//!
//! Invariants:
//! 1. What is decoded was encoded for this disk and this unit: both are in the head, under its checksum.
//! 2. A body belongs to its head: the head holds its length and checksum.
//! 3. No bytes whatever make decoding panic.

use stripeset_proto::convert::Identity;
use stripeset_stripe::{
    SECTOR_BYTES, Version,
    bits::Bits,
    checksum,
    geometry::{ChunkIndex, Row, Shard},
};
use uuid::Uuid;

use crate::{
    layout::{SHARDS_MAX, UNIT_SECTORS_MAX},
    little_endian::{Reader, VERSION_BYTES, Writer},
};

/// Bytes of a head: what every disk writes whole.
pub(crate) const HEAD_BYTES: usize = 512;

/// First bytes of every head.
const MAGIC: [u8; 8] = *b"ssunit\x01\n";

/// Bytes of a body before its rows of bits: sectors, shards in the vector, data sectors in the summary.
const BODY_FIXED_BYTES: usize = 8;

/// Bytes of a bit for each sector of the largest unit.
const REDO_BYTES: usize = UNIT_SECTORS_MAX / 8;

/// Bytes reserved for a record of a unit with so many sectors, whatever the profile: head, body with the largest
/// summary, rounded up to whole sectors.
pub(crate) const fn record_bytes(unit_sectors: usize) -> usize {
    let data_sectors = stripeset_stripe::profile::DATA_SHARDS_MAX as usize * unit_sectors;
    let own = 2 * unit_sectors.div_ceil(8) + 4 * unit_sectors;
    let summary = SHARDS_MAX * VERSION_BYTES + data_sectors.div_ceil(8) + 4 * data_sectors;
    (HEAD_BYTES + BODY_FIXED_BYTES + own + summary).next_multiple_of(SECTOR_BYTES)
}

/// What a record says of its unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Nothing; only the floor counts.
    Empty,
    /// `version` is committed.
    Committed,
    /// `version` entered an empty stripe and is pending.
    Fresh,
    /// In a journal slot alone: `version` is pending over `base`, and its bytes follow the record.
    Redo,
    /// The record was found damaged, and the floor had to be raised since: nothing else is known.
    Damaged,
}

/// The part of a record that changes without the bytes of the unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) state: State,
    /// `version` was brought by a rebuild, and not by a write.
    pub(crate) rebuilt: bool,
    pub(crate) unit: u64,
    pub(crate) identity: Identity,
    pub(crate) version: Version,
    /// In a journal slot: what `version` replaces. Of a rebuilt unit: the token of the attempt.
    pub(crate) base: Version,
    pub(crate) floor: Version,
    /// One bit for each shard that takes part in the write `version`.
    pub(crate) participants: u32,
    /// In a journal slot: the sectors whose bytes follow the record, in order.
    pub(crate) redo: Bits,
    pub(crate) body: BodySum,
}

/// Length and checksum of the body that belongs to a head (invariant 2). Only encoding a record makes one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BodySum {
    bytes: u32,
    crc: u32,
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

/// What stands where a record should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Found<T> {
    /// Zeros: nothing was ever written there.
    Blank,
    /// A whole one.
    Whole(T),
    /// Anything else.
    Damaged,
}

/// A head with its body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) head: Head,
    pub(crate) body: Body,
}

impl Head {
    /// A head without a body: for states that have none.
    pub(crate) fn bare(state: State, unit: u64, floor: Version) -> Head {
        Head {
            state,
            rebuilt: false,
            unit,
            identity: NOBODY,
            version: Version::NONE,
            base: Version::NONE,
            floor,
            participants: 0,
            redo: Bits::new(UNIT_SECTORS_MAX),
            body: BodySum::default(),
        }
    }

    /// The committed version as this head alone tells it.
    pub(crate) fn committed(&self) -> Version {
        if self.state == State::Committed { self.version } else { Version::NONE }
    }

    /// The head's bytes.
    pub(crate) fn encode(&self, disk: Uuid) -> [u8; HEAD_BYTES] {
        let mut bytes = [0; HEAD_BYTES];
        let mut out = Writer::new(&mut bytes);
        out.bytes(&MAGIC);
        out.u32(0);
        out.u32(self.body.crc);
        out.u32(self.body.bytes);
        out.u8(match self.state {
            State::Empty => 0,
            State::Committed => 1,
            State::Fresh => 2,
            State::Redo => 3,
            State::Damaged => 4,
        });
        out.u8(u8::from(self.rebuilt));
        out.u8(self.identity.shard.0);
        out.u8(0);
        out.u64(self.unit);
        out.bytes(disk.as_bytes());
        out.u64(self.identity.chunk.0);
        out.u32(self.identity.row.0);
        out.u32(self.participants);
        out.version(self.identity.incarnation);
        out.version(self.version);
        out.version(self.base);
        out.version(self.floor);
        out.bytes(self.redo.as_bytes());
        let crc = head_crc(&bytes);
        bytes[8..12].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Decodes a head that belongs to `disk`; whose unit it is, is for the caller to compare.
    pub(crate) fn decode(bytes: &[u8], disk: Uuid) -> Found<Head> {
        let Some(bytes) = bytes.get(..HEAD_BYTES) else { return Found::Damaged };
        if bytes.iter().all(|byte| *byte == 0) {
            return Found::Blank;
        }
        match Head::decode_fields(bytes, disk) {
            Some(head) => Found::Whole(head),
            None => Found::Damaged,
        }
    }

    fn decode_fields(bytes: &[u8], disk: Uuid) -> Option<Head> {
        let mut from = Reader::new(bytes);
        let magic = from.array::<8>()?;
        let crc = from.u32()?;
        if magic != MAGIC || crc != head_crc(bytes) {
            return None;
        }
        let body = BodySum { crc: from.u32()?, bytes: from.u32()? };
        let state = match from.u8()? {
            0 => State::Empty,
            1 => State::Committed,
            2 => State::Fresh,
            3 => State::Redo,
            4 => State::Damaged,
            _ => return None,
        };
        let rebuilt = from.u8()? == 1;
        let shard = Shard(from.u8()?);
        let _reserved = from.u8()?;
        let unit = from.u64()?;
        if from.array::<16>()? != *disk.as_bytes() {
            return None;
        }
        let (chunk, row, participants) = (ChunkIndex(from.u64()?), Row(from.u32()?), from.u32()?);
        let identity = Identity { chunk, incarnation: from.version()?, row, shard };
        let (version, base, floor) = (from.version()?, from.version()?, from.version()?);
        let redo = Bits::from_bytes(from.bytes(REDO_BYTES)?, UNIT_SECTORS_MAX)?;
        let head = Head { state, rebuilt, unit, identity, version, base, floor, participants, redo, body };
        Some(head)
    }
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

    fn write(&self, out: &mut Writer<'_>) {
        // Lengths are at most 4096 and 24 (the store checks them against the layout).
        out.u16(self.checksums.len() as u16);
        let (shards, data_sectors) =
            self.summary.as_ref().map_or((0, 0), |summary| (summary.vector.len(), summary.checksums.len()));
        out.u16(shards as u16);
        out.u32(data_sectors as u32);
        out.bytes(self.written.as_bytes());
        out.bytes(self.lost.as_bytes());
        self.checksums.iter().for_each(|crc| out.u32(*crc));
        if let Some(summary) = &self.summary {
            summary.vector.iter().for_each(|version| out.version(*version));
            out.bytes(summary.written.as_bytes());
            summary.checksums.iter().for_each(|crc| out.u32(*crc));
        }
    }

    fn read(from: &mut Reader<'_>, unit_sectors: usize) -> Option<Body> {
        let (sectors, shards, data_sectors) =
            (usize::from(from.u16()?), usize::from(from.u16()?), from.u32()? as usize);
        if sectors != unit_sectors || shards > SHARDS_MAX {
            return None;
        }
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

impl Record {
    /// A head that describes this body.
    pub(crate) fn new(head: Head, body: Body) -> Record {
        Record { head, body }
    }

    /// The whole record, `record_bytes` long, into `out`; also completes the head with the body's checksum.
    pub(crate) fn encode(&mut self, disk: Uuid, record_bytes: usize, out: &mut Vec<u8>) {
        out.clear();
        out.resize(record_bytes, 0);
        let (head, rest) = out.split_at_mut(HEAD_BYTES);
        let mut body = Writer::new(rest);
        self.body.write(&mut body);
        let length = body.position();
        // At most 20 KiB: see `record_bytes`.
        self.head.body = BodySum { bytes: length as u32, crc: crc32c::crc32c(&rest[..length]) };
        head.copy_from_slice(&self.head.encode(disk));
    }

    /// Decodes a record. A damaged body is as bad as a damaged head, but for the floor, which [`Head::decode`] gives.
    pub(crate) fn decode(bytes: &[u8], disk: Uuid, unit_sectors: usize) -> Found<Record> {
        let head = match Head::decode(bytes, disk) {
            Found::Whole(head) => head,
            Found::Blank => return Found::Blank,
            Found::Damaged => return Found::Damaged,
        };
        match decode_body(bytes, &head, unit_sectors) {
            Some(body) => Found::Whole(Record { head, body }),
            None => Found::Damaged,
        }
    }
}

fn decode_body(bytes: &[u8], head: &Head, unit_sectors: usize) -> Option<Body> {
    if matches!(head.state, State::Empty | State::Damaged) {
        return Some(Body::never_written(unit_sectors));
    }
    let bytes = bytes.get(HEAD_BYTES..)?.get(..head.body.bytes as usize)?;
    if crc32c::crc32c(bytes) != head.body.crc {
        return None;
    }
    Body::read(&mut Reader::new(bytes), unit_sectors)
}

fn read_bits(from: &mut Reader<'_>, length: usize) -> Option<Bits> {
    Bits::from_bytes(from.bytes(length.div_ceil(8))?, length)
}

fn read_checksums(from: &mut Reader<'_>, count: usize) -> Option<Vec<u32>> {
    let bytes = from.bytes(count.checked_mul(4)?)?;
    Some(bytes.as_chunks::<4>().0.iter().map(|crc| u32::from_le_bytes(*crc)).collect())
}

/// Checksum of a head: of everything behind the checksum itself.
fn head_crc(bytes: &[u8]) -> u32 {
    crc32c::crc32c(&bytes[12..HEAD_BYTES])
}

#[cfg(test)]
mod tests;
