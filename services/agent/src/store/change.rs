//! Changes of units: what a group of the journal is made of. Which bytes a change is; what it means is in [`super::replay`].
//!
//! A change that brings a record brings the whole state of the unit: what came before it is not needed any more.

use stripeset_stripe::{Version, bits::Bits};
use uuid::Uuid;

use crate::{
    layout::{Layout, UNIT_SECTORS_MAX},
    little_endian::{Reader, Writer},
    record::Record,
};

/// Bytes of a bit for each sector of the largest unit.
const REDO_BYTES: usize = UNIT_SECTORS_MAX / 8;

/// What happened to a unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// A fresh write is pending, its bytes are at home; the unit is empty but for it.
    PreparedFresh { participants: u32, record: Record },
    /// A write over `base` is pending. What was pending with that version is committed by it. Bytes of the sectors in
    /// `redo` are in the data of the group.
    PreparedOver { base: Version, participants: u32, redo: Bits, record: Record },
    /// The pending write of this version is what the unit holds.
    Committed { unit: u64, version: Version },
    /// The unit is this now, whatever it was; nothing is pending. Its bytes are at home.
    Replaced(Record),
    /// The write of version `aborted` is not pending (any more), and the floor is the record's.
    Raised { aborted: Version, record: Record },
}

impl Change {
    /// Appends the change to a group.
    pub(super) fn encode(&self, disk: Uuid, out: &mut Vec<u8>) {
        let (start, fixed) = (out.len(), self.fixed_bytes());
        out.resize(start + fixed, 0);
        let mut writer = Writer::new(&mut out[start..]);
        match self {
            Change::PreparedFresh { participants, .. } => {
                writer.u32(1);
                writer.u32(*participants);
            }
            Change::PreparedOver { base, participants, redo, .. } => {
                writer.u32(2);
                writer.u32(*participants);
                writer.version(*base);
                writer.bytes(redo.as_bytes());
            }
            Change::Committed { unit, version } => {
                writer.u32(3);
                writer.u32(0);
                writer.u64(*unit);
                writer.version(*version);
            }
            Change::Replaced(_) => {
                writer.u32(4);
                writer.u32(0);
            }
            Change::Raised { aborted, .. } => {
                writer.u32(5);
                writer.u32(0);
                writer.version(*aborted);
            }
        }
        if let Some(record) = self.record() {
            record.encode(disk, out);
        }
    }

    fn fixed_bytes(&self) -> usize {
        match self {
            Change::PreparedFresh { .. } | Change::Replaced(_) => 8,
            Change::PreparedOver { .. } => 32 + REDO_BYTES,
            Change::Committed { .. } => 40,
            Change::Raised { .. } => 32,
        }
    }

    fn record(&self) -> Option<&Record> {
        match self {
            Change::PreparedFresh { record, .. }
            | Change::PreparedOver { record, .. }
            | Change::Replaced(record)
            | Change::Raised { record, .. } => Some(record),
            Change::Committed { .. } => None,
        }
    }

    fn unit(&self) -> u64 {
        match self {
            Change::Committed { unit, .. } => *unit,
            Change::PreparedFresh { record, .. }
            | Change::PreparedOver { record, .. }
            | Change::Replaced(record)
            | Change::Raised { record, .. } => record.unit,
        }
    }

    /// The floor that it gives its unit.
    pub(crate) fn floor(&self) -> Option<Version> {
        self.record().map(|record| record.floor)
    }

    /// Sectors whose bytes are in the group's data.
    pub(crate) fn redo_sectors(&self) -> usize {
        match self {
            Change::PreparedOver { redo, .. } => redo.count(),
            _ => 0,
        }
    }

    /// Bytes that it takes in a group.
    pub(crate) fn encoded_bytes(&self) -> usize {
        self.fixed_bytes() + self.record().map_or(0, Record::encoded_bytes)
    }

    /// Takes the change at the start of `bytes` off; `None` if it is not one of a disk with this layout.
    pub(super) fn decode(bytes: &mut &[u8], disk: Uuid, layout: &Layout) -> Option<Change> {
        let unit_sectors = layout.unit_sectors();
        let mut from = Reader::new(bytes);
        let (kind, participants) = (from.u32()?, from.u32()?);
        let change = match kind {
            1 => Change::PreparedFresh { participants, record: take_record(&mut from, disk, unit_sectors)? },
            2 => {
                let base = from.version()?;
                let redo = Bits::from_bytes(from.bytes(REDO_BYTES)?, UNIT_SECTORS_MAX)?;
                let record = take_record(&mut from, disk, unit_sectors)?;
                if redo.iter_ones().any(|sector| sector >= unit_sectors) {
                    return None;
                }
                Change::PreparedOver { base, participants, redo, record }
            }
            3 => Change::Committed { unit: from.u64()?, version: from.version()? },
            4 => Change::Replaced(take_record(&mut from, disk, unit_sectors)?),
            5 => {
                let aborted = from.version()?;
                Change::Raised { aborted, record: take_record(&mut from, disk, unit_sectors)? }
            }
            _ => return None,
        };
        *bytes = from.rest();
        let has_place = change.unit() < layout.units()
            && change.record().is_none_or(|record| record.encoded_bytes() <= layout.place_bytes());
        has_place.then_some(change)
    }
}

/// Makes the checksums of the records in changes right, up to what is not a change.
#[cfg(any(test, feature = "fuzzing"))]
pub(super) fn seal(mut changes: &mut [u8], disk: Uuid) {
    while let Some(kind) = changes.first() {
        let fixed = match kind {
            1 | 4 => 8,
            2 => 32 + REDO_BYTES,
            3 => 40,
            5 => 32,
            _ => return,
        };
        let has_record = *kind != 3;
        let Some((_, rest)) = changes.split_at_mut_checked(fixed) else { return };
        let length = if has_record { crate::record::seal(rest, disk) } else { 0 };
        changes = &mut rest[length..];
    }
}

fn take_record(from: &mut Reader<'_>, disk: Uuid, unit_sectors: usize) -> Option<Record> {
    let length = Record::length_of(from.rest())?;
    Record::decode(from.bytes(length)?, disk, unit_sectors)
}
