//! The label as a disk keeps it: what it may hold, and how it is encoded. What it means is in `stripeset_stripe::label`.
//!
//! Where it lies on disk is in `superblock`; when it may change is in `store`.

use stripeset_stripe::{
    Epoch,
    geometry::{ChunkIndex, Row, SLICE_BYTES_MAX, StripeAddress, UNIT_BYTES_MAX, UNIT_BYTES_MIN},
    label::{Label, LabelMember, MemberSet, Out, Revision},
    profile::DATA_SHARDS_MAX,
};
use thiserror::Error;
use uuid::Uuid;

use crate::{
    layout::{SHARDS_MAX, Shape},
    little_endian::{Reader, Writer},
};

/// Most members in a label: with the longest addresses and reasons, all out, they fit a superblock.
pub(crate) const MEMBERS_MAX: usize = 120;

/// Most labels that a label may follow: one for each member that went out meanwhile, and that with which it began.
pub(crate) const MAY_FOLLOW_MAX: usize = MEMBERS_MAX + 2;

/// Longest address of a member in bytes: the longest DNS name, a colon and a port.
pub(crate) const ADDRESS_BYTES_MAX: usize = 261;

/// Longest reason for which a member is out, in bytes.
pub(crate) const REASON_BYTES_MAX: usize = 200;

/// Why a label cannot be kept.
#[derive(Debug, Error, PartialEq, Eq)]
pub(crate) enum LabelError {
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
    #[error("address of {length} bytes for member {member}: at most {ADDRESS_BYTES_MAX} are kept")]
    Address { member: usize, length: usize },
    #[error("reason of {length} bytes for member {member}: at most {REASON_BYTES_MAX} are kept")]
    Reason { member: usize, length: usize },
    #[error("the label does not list this disk, {0}, as a member")]
    NotListed(Uuid),
    #[error("the label lists disk {0} twice")]
    Twice(Uuid),
    #[error("revision 0: revisions start at 1")]
    Revision,
    #[error("{0} labels that it may follow: at most {MAY_FOLLOW_MAX} are kept")]
    MayFollow(usize),
}

/// Refuses what the disk `own` cannot keep as its label.
pub(crate) fn check(label: &Label, own: Uuid) -> Result<(), LabelError> {
    let unit = label.unit_bytes;
    if !unit.is_power_of_two() || !(UNIT_BYTES_MIN..=UNIT_BYTES_MAX).contains(&unit) {
        return Err(LabelError::Unit(unit));
    }
    let whole = label.slice_bytes > 0 && label.slice_bytes.is_multiple_of(u64::from(unit));
    if !whole || label.slice_bytes > SLICE_BYTES_MAX {
        return Err(LabelError::Slice { slice: label.slice_bytes, unit });
    }
    let (shards, data_shards) = (label.shards_max, label.data_shards_max);
    let most = u32::from(DATA_SHARDS_MAX).min(shards);
    if !(1..=SHARDS_MAX as u32).contains(&shards) || !(1..=most).contains(&data_shards) {
        return Err(LabelError::Shape { shards, data_shards });
    }
    if label.revision.number == 0 {
        return Err(LabelError::Revision);
    }
    if !(1..=MEMBERS_MAX).contains(&label.members.len()) {
        return Err(LabelError::Members(label.members.len()));
    }
    if label.may_follow.len() > MAY_FOLLOW_MAX {
        return Err(LabelError::MayFollow(label.may_follow.len()));
    }
    for (index, member) in label.members.iter().enumerate() {
        if member.address.len() > ADDRESS_BYTES_MAX {
            return Err(LabelError::Address { member: index, length: member.address.len() });
        }
        let reason = member.out.as_ref().map_or(0, |out| out.reason.len());
        if reason > REASON_BYTES_MAX {
            return Err(LabelError::Reason { member: index, length: reason });
        }
        if label.member_of(member.disk_id) != Some(index) {
            return Err(LabelError::Twice(member.disk_id));
        }
    }
    if label.member_of(own).is_none() { Err(LabelError::NotListed(own)) } else { Ok(()) }
}

/// What the stripes of the array need room for.
pub(crate) fn shape(label: &Label) -> Shape {
    // `check` keeps both small.
    Shape { shards: label.shards_max as usize, data_shards: label.data_shards_max as usize }
}

/// Appends the label to a superblock.
pub(crate) fn write(label: &Label, to: &mut Writer<'_>) {
    to.bytes(label.array_id.as_bytes());
    to.u64(label.revision.number);
    to.u64(label.revision.epoch.number);
    to.u64(label.revision.epoch.incarnation);
    to.u32(label.unit_bytes);
    to.u64(label.slice_bytes);
    to.u32(label.shards_max);
    to.u32(label.data_shards_max);
    // `check` keeps all lengths below 2^16.
    to.u16(label.members.len() as u16);
    for member in &label.members {
        to.bytes(member.disk_id.as_bytes());
        to.u16(member.address.len() as u16);
        to.bytes(member.address.as_bytes());
        to.u8(u8::from(member.out.is_some()));
        if let Some(Out { since, cursor, reason }) = &member.out {
            to.version(*since);
            to.u64(cursor.chunk.0);
            to.u32(cursor.row.0);
            to.u16(reason.len() as u16);
            to.bytes(reason.as_bytes());
        }
    }
    to.u8(label.may_follow.len() as u8);
    for set in &label.may_follow {
        to.bytes(&set.0.to_le_bytes());
    }
}

/// Reads what [`write()`] wrote.
pub(crate) fn read(from: &mut Reader<'_>) -> Option<Label> {
    let array_id = Uuid::from_bytes(from.array()?);
    let number = from.u64()?;
    let revision = Revision { number, epoch: epoch(from)? };
    let (unit_bytes, slice_bytes) = (from.u32()?, from.u64()?);
    let (shards_max, data_shards_max) = (from.u32()?, from.u32()?);
    let count = from.u16()?;
    let mut members = Vec::new();
    for _ in 0..count {
        let disk_id = Uuid::from_bytes(from.array()?);
        let address = text(from)?;
        let out = match from.u8()? {
            0 => None,
            1 => Some(Out {
                since: from.version()?,
                cursor: StripeAddress { chunk: ChunkIndex(from.u64()?), row: Row(from.u32()?) },
                reason: text(from)?,
            }),
            _ => return None,
        };
        members.push(LabelMember { disk_id, address, out });
    }
    let mut may_follow = Vec::new();
    for _ in 0..from.u8()? {
        may_follow.push(MemberSet(u128::from_le_bytes(from.array()?)));
    }
    Some(Label {
        array_id,
        revision,
        unit_bytes,
        slice_bytes,
        shards_max,
        data_shards_max,
        members,
        may_follow,
    })
}

fn epoch(from: &mut Reader<'_>) -> Option<Epoch> {
    Some(Epoch { number: from.u64()?, incarnation: from.u64()? })
}

fn text(from: &mut Reader<'_>) -> Option<String> {
    let length = usize::from(from.u16()?);
    Some(std::str::from_utf8(from.bytes(length)?).ok()?.to_owned())
}

#[cfg(test)]
mod tests {
    use stripeset_stripe::Version;

    use super::*;

    const OWN: Uuid = Uuid::from_u128(1);

    fn label() -> Label {
        let member =
            |id| LabelMember { disk_id: Uuid::from_u128(id), address: "host:1".to_owned(), out: None };
        Label {
            array_id: Uuid::from_u128(9),
            revision: Revision { number: 1, ..Revision::default() },
            unit_bytes: 65_536,
            slice_bytes: 1 << 26,
            shards_max: 2,
            data_shards_max: 1,
            members: vec![member(1), member(2)],
            may_follow: vec![MemberSet(0b11)],
        }
    }

    #[test]
    fn what_a_disk_cannot_have_as_its_label_is_refused() {
        assert_eq!(check(&label(), OWN), Ok(()));
        for unit_bytes in [0, 2048, 65_537, 1 << 21] {
            assert_eq!(check(&Label { unit_bytes, ..label() }, OWN), Err(LabelError::Unit(unit_bytes)));
        }
        for slice_bytes in [0, 65_537, SLICE_BYTES_MAX + 65_536] {
            let refused = LabelError::Slice { slice: slice_bytes, unit: 65_536 };
            assert_eq!(check(&Label { slice_bytes, ..label() }, OWN), Err(refused));
        }
        for (shards, data_shards) in [(0, 0), (25, 16), (5, 0), (5, 17), (2, 3)] {
            let label = Label { shards_max: shards, data_shards_max: data_shards, ..label() };
            assert_eq!(check(&label, OWN), Err(LabelError::Shape { shards, data_shards }));
        }
        assert_eq!(
            check(&Label { revision: Revision::default(), ..label() }, OWN),
            Err(LabelError::Revision)
        );
        assert_eq!(check(&Label { members: vec![], ..label() }, OWN), Err(LabelError::Members(0)));
        let many = Label { may_follow: vec![MemberSet(1); MAY_FOLLOW_MAX + 1], ..label() };
        assert_eq!(check(&many, OWN), Err(LabelError::MayFollow(MAY_FOLLOW_MAX + 1)));
        let other = Uuid::from_u128(3);
        assert_eq!(check(&label(), other), Err(LabelError::NotListed(other)));
        let mut twice = label();
        twice.members[1].disk_id = OWN;
        assert_eq!(check(&twice, OWN), Err(LabelError::Twice(OWN)));
        let mut long = label();
        long.members[1].address = "a".repeat(ADDRESS_BYTES_MAX + 1);
        let refused = LabelError::Address { member: 1, length: ADDRESS_BYTES_MAX + 1 };
        assert_eq!(check(&long, OWN), Err(refused));
        let mut talkative = label();
        let (since, cursor) = (Version::NONE, StripeAddress::default());
        talkative.members[0].out = Some(Out { since, cursor, reason: "a".repeat(REASON_BYTES_MAX + 1) });
        let refused = LabelError::Reason { member: 0, length: REASON_BYTES_MAX + 1 };
        assert_eq!(check(&talkative, OWN), Err(refused));
    }
}
