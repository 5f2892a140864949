//! The label as a disk keeps it: which array, which member of it, and the lengths by which the disk is laid out.
//!
//! Decides what a label may hold. Where it lies on disk is in `superblock`; when it may change is in `store`.

use stripeset_proto::{
    convert::{self, ConvertError},
    v1,
};
use stripeset_stripe::{
    geometry::{SLICE_BYTES_MAX, UNIT_BYTES_MAX, UNIT_BYTES_MIN},
    profile::DATA_SHARDS_MAX,
};
use thiserror::Error;
use uuid::Uuid;

use crate::{
    layout::{SHARDS_MAX, Shape},
    little_endian::{Reader, Writer},
};

/// Most members in a label: with the longest addresses they fill a superblock.
pub(crate) const MEMBERS_MAX: usize = 200;

/// Longest address of a member in bytes: the longest DNS name, a colon and a port.
pub(crate) const ADDRESS_BYTES_MAX: usize = 261;

/// What a disk says of its array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Label {
    pub(crate) array_id: Uuid,
    pub(crate) revision: u64,
    pub(crate) member: u32,
    pub(crate) unit_bytes: u32,
    pub(crate) slice_bytes: u64,
    /// Most shards of a stripe.
    pub(crate) shards_max: u32,
    /// Most data shards of a stripe.
    pub(crate) data_shards_max: u32,
    pub(crate) members: Vec<LabelMember>,
}

/// One member in a label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LabelMember {
    pub(crate) disk_id: Uuid,
    pub(crate) address: String,
}

/// Why a label cannot be kept.
#[derive(Debug, Error, PartialEq, Eq)]
pub(crate) enum LabelError {
    #[error(transparent)]
    Convert(#[from] ConvertError),
    #[error("stripe unit of {0} bytes: it has to be a power of two from 4096 (4 KiB) to 1048576 (1 MiB)")]
    Unit(u32),
    #[error("slice of {slice} bytes: it has to be a multiple of the stripe unit ({unit}), at most 64 GiB")]
    Slice { slice: u64, unit: u32 },
    #[error(
        "stripes of up to {shards} shards, {data_shards} of them data: 1 to {SHARDS_MAX}, and 1 to {DATA_SHARDS_MAX}"
    )]
    Shape { shards: u32, data_shards: u32 },
    #[error("{0} members: a label holds 1 to {MEMBERS_MAX}")]
    Members(usize),
    #[error("member index {member}, but the label lists {members} members")]
    Member { member: u32, members: usize },
    #[error("address of {length} bytes for member {member}: at most {ADDRESS_BYTES_MAX} are kept")]
    Address { member: usize, length: usize },
    #[error("label lists disk {listed} as member {member}, this disk is {own}")]
    OtherDisk { member: u32, listed: Uuid, own: Uuid },
    #[error("revision 0: revisions start at 1")]
    Revision,
}

impl Label {
    /// Refuses what the disk `own` cannot keep as its label.
    pub(crate) fn check(&self, own: Uuid) -> Result<(), LabelError> {
        let unit = self.unit_bytes;
        if !unit.is_power_of_two() || !(UNIT_BYTES_MIN..=UNIT_BYTES_MAX).contains(&unit) {
            return Err(LabelError::Unit(unit));
        }
        let whole = self.slice_bytes > 0 && self.slice_bytes.is_multiple_of(u64::from(unit));
        if !whole || self.slice_bytes > SLICE_BYTES_MAX {
            return Err(LabelError::Slice { slice: self.slice_bytes, unit });
        }
        let (shards, data_shards) = (self.shards_max, self.data_shards_max);
        let most = u32::from(DATA_SHARDS_MAX).min(shards);
        if !(1..=SHARDS_MAX as u32).contains(&shards) || !(1..=most).contains(&data_shards) {
            return Err(LabelError::Shape { shards, data_shards });
        }
        if self.revision == 0 {
            return Err(LabelError::Revision);
        }
        if !(1..=MEMBERS_MAX).contains(&self.members.len()) {
            return Err(LabelError::Members(self.members.len()));
        }
        for (member, entry) in self.members.iter().enumerate() {
            if entry.address.len() > ADDRESS_BYTES_MAX {
                return Err(LabelError::Address { member, length: entry.address.len() });
            }
        }
        match self.members.get(self.member as usize) {
            None => Err(LabelError::Member { member: self.member, members: self.members.len() }),
            Some(entry) if entry.disk_id != own => {
                Err(LabelError::OtherDisk { member: self.member, listed: entry.disk_id, own })
            }
            Some(_) => Ok(()),
        }
    }

    /// What the stripes of the array need room for.
    pub(crate) fn shape(&self) -> Shape {
        // `check` keeps both small.
        Shape { shards: self.shards_max as usize, data_shards: self.data_shards_max as usize }
    }

    /// Appends the label to a superblock.
    pub(crate) fn write(&self, out: &mut Writer<'_>) {
        out.bytes(self.array_id.as_bytes());
        out.u64(self.revision);
        out.u32(self.member);
        out.u32(self.unit_bytes);
        out.u64(self.slice_bytes);
        out.u32(self.shards_max);
        out.u32(self.data_shards_max);
        // `check` keeps both below 2^16.
        out.u16(self.members.len() as u16);
        for member in &self.members {
            out.bytes(member.disk_id.as_bytes());
            out.u16(member.address.len() as u16);
            out.bytes(member.address.as_bytes());
        }
    }

    /// Reads what [`Label::write`] wrote.
    pub(crate) fn read(from: &mut Reader<'_>) -> Option<Label> {
        let array_id = Uuid::from_bytes(from.array()?);
        let (revision, member) = (from.u64()?, from.u32()?);
        let (unit_bytes, slice_bytes) = (from.u32()?, from.u64()?);
        let (shards_max, data_shards_max) = (from.u32()?, from.u32()?);
        let count = from.u16()?;
        let mut members = Vec::new();
        for _ in 0..count {
            let disk_id = Uuid::from_bytes(from.array()?);
            let length = usize::from(from.u16()?);
            let address = std::str::from_utf8(from.bytes(length)?).ok()?.to_owned();
            members.push(LabelMember { disk_id, address });
        }
        Some(Label {
            array_id,
            revision,
            member,
            unit_bytes,
            slice_bytes,
            shards_max,
            data_shards_max,
            members,
        })
    }
}

impl TryFrom<v1::Label> for Label {
    type Error = LabelError;

    fn try_from(wire: v1::Label) -> Result<Self, LabelError> {
        let member = |entry: v1::LabelMember| {
            Ok(LabelMember {
                disk_id: convert::uuid("members.disk_id", &entry.disk_id)?,
                address: entry.address,
            })
        };
        Ok(Label {
            array_id: convert::uuid("array_id", &wire.array_id)?,
            revision: wire.revision,
            member: wire.member,
            unit_bytes: wire.unit_bytes,
            slice_bytes: wire.slice_bytes,
            shards_max: wire.shards_max,
            data_shards_max: wire.data_shards_max,
            members: wire.members.into_iter().map(member).collect::<Result<_, LabelError>>()?,
        })
    }
}

impl From<Label> for v1::Label {
    fn from(label: Label) -> Self {
        let member = |entry: LabelMember| v1::LabelMember {
            disk_id: convert::uuid_bytes(entry.disk_id),
            address: entry.address,
        };
        v1::Label {
            array_id: convert::uuid_bytes(label.array_id),
            revision: label.revision,
            member: label.member,
            unit_bytes: label.unit_bytes,
            slice_bytes: label.slice_bytes,
            shards_max: label.shards_max,
            data_shards_max: label.data_shards_max,
            members: label.members.into_iter().map(member).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: Uuid = Uuid::from_u128(1);

    fn label() -> Label {
        let member = |id| LabelMember { disk_id: Uuid::from_u128(id), address: "host:1".to_owned() };
        Label {
            array_id: Uuid::from_u128(9),
            revision: 1,
            member: 0,
            unit_bytes: 65_536,
            slice_bytes: 1 << 26,
            shards_max: 2,
            data_shards_max: 1,
            members: vec![member(1), member(2)],
        }
    }

    #[test]
    fn a_label_crosses_the_wire() {
        assert_eq!(Label::try_from(v1::Label::from(label())), Ok(label()));
        assert!(matches!(Label::try_from(v1::Label::default()), Err(LabelError::Convert(_))));
    }

    #[test]
    fn what_a_disk_cannot_have_as_its_label_is_refused() {
        assert_eq!(label().check(OWN), Ok(()));
        for unit_bytes in [0, 2048, 65_537, 1 << 21] {
            assert_eq!(Label { unit_bytes, ..label() }.check(OWN), Err(LabelError::Unit(unit_bytes)));
        }
        for slice_bytes in [0, 65_537, SLICE_BYTES_MAX + 65_536] {
            let refused = LabelError::Slice { slice: slice_bytes, unit: 65_536 };
            assert_eq!(Label { slice_bytes, ..label() }.check(OWN), Err(refused));
        }
        for (shards, data_shards) in [(0, 0), (25, 16), (5, 0), (5, 17), (2, 3)] {
            let label = Label { shards_max: shards, data_shards_max: data_shards, ..label() };
            assert_eq!(label.check(OWN), Err(LabelError::Shape { shards, data_shards }));
        }
        assert_eq!(Label { revision: 0, ..label() }.check(OWN), Err(LabelError::Revision));
        assert_eq!(Label { members: vec![], ..label() }.check(OWN), Err(LabelError::Members(0)));
        let refused = LabelError::Member { member: 2, members: 2 };
        assert_eq!(Label { member: 2, ..label() }.check(OWN), Err(refused));
        assert!(matches!(Label { member: 1, ..label() }.check(OWN), Err(LabelError::OtherDisk { .. })));
        let mut long = label();
        long.members[1].address = "a".repeat(ADDRESS_BYTES_MAX + 1);
        let refused = LabelError::Address { member: 1, length: ADDRESS_BYTES_MAX + 1 };
        assert_eq!(long.check(OWN), Err(refused));
    }
}
