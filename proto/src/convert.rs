//! Wire types to domain types and back. `TryFrom` on the way in validates; `From` on the way out cannot fail.

use bytes::Bytes;
use stripeset_stripe::{
    Epoch, Version,
    geometry::{ChunkIndex, Row, Shard, StripeAddress},
    label::{Label, LabelMember, MemberSet, Out, Revision},
};
use thiserror::Error;
use uuid::Uuid;

use crate::{error, v1};

/// A message that does not say what it has to.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ConvertError {
    /// A field that has to be there is absent.
    #[error("field {0} is missing")]
    Missing(&'static str),
    /// A UUID is not 16 bytes long.
    #[error("field {field} is a UUID of {length} bytes, not 16")]
    Uuid {
        /// The field.
        field: &'static str,
        /// Its length.
        length: usize,
    },
    /// A number does not fit.
    #[error("field {field} is {given}, at most {limit} is allowed")]
    TooLarge {
        /// The field.
        field: &'static str,
        /// The number given.
        given: u64,
        /// The largest allowed.
        limit: u64,
    },
}

impl From<ConvertError> for error::Error {
    fn from(error: ConvertError) -> Self {
        error::Error::invalid(error.to_string())
    }
}

impl From<Epoch> for v1::Epoch {
    fn from(epoch: Epoch) -> Self {
        v1::Epoch { number: epoch.number, incarnation: epoch.incarnation }
    }
}

impl From<v1::Epoch> for Epoch {
    fn from(epoch: v1::Epoch) -> Self {
        Epoch { number: epoch.number, incarnation: epoch.incarnation }
    }
}

impl From<Version> for v1::Version {
    fn from(version: Version) -> Self {
        v1::Version { epoch: Some(version.epoch.into()), sequence: version.sequence }
    }
}

impl From<v1::Version> for Version {
    fn from(version: v1::Version) -> Self {
        Version { epoch: version.epoch.unwrap_or_default().into(), sequence: version.sequence }
    }
}

/// An absent version is [`Version::NONE`].
pub fn version(field: Option<v1::Version>) -> Version {
    field.map_or(Version::NONE, Version::from)
}

/// An absent epoch is the one before the first.
pub fn epoch(field: Option<v1::Epoch>) -> Epoch {
    field.map_or(Epoch::default(), Epoch::from)
}

/// A UUID on the wire.
pub fn uuid_bytes(id: Uuid) -> Bytes {
    Bytes::copy_from_slice(id.as_bytes())
}

/// A UUID from the wire.
pub fn uuid(field: &'static str, bytes: &[u8]) -> Result<Uuid, ConvertError> {
    match Uuid::from_slice(bytes) {
        Ok(id) => Ok(id),
        Err(_) => Err(ConvertError::Uuid { field, length: bytes.len() }),
    }
}

/// What a stripe unit is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Identity {
    /// The chunk.
    pub chunk: ChunkIndex,
    /// When the chunk was made.
    pub incarnation: Version,
    /// The row in it.
    pub row: Row,
    /// The shard of that row.
    pub shard: Shard,
}

impl From<Identity> for v1::UnitIdentity {
    fn from(identity: Identity) -> Self {
        v1::UnitIdentity {
            chunk: identity.chunk.0,
            incarnation: Some(identity.incarnation.into()),
            stripe: identity.row.0,
            shard: u32::from(identity.shard.0),
        }
    }
}

impl TryFrom<v1::UnitIdentity> for Identity {
    type Error = ConvertError;

    fn try_from(wire: v1::UnitIdentity) -> Result<Self, ConvertError> {
        let Ok(shard) = u8::try_from(wire.shard) else {
            let (given, limit) = (u64::from(wire.shard), u64::from(u8::MAX));
            return Err(ConvertError::TooLarge { field: "shard", given, limit });
        };
        Ok(Identity {
            chunk: ChunkIndex(wire.chunk),
            incarnation: version(wire.incarnation),
            row: Row(wire.stripe),
            shard: Shard(shard),
        })
    }
}

impl From<Label> for v1::Label {
    fn from(label: Label) -> Self {
        v1::Label {
            array_id: uuid_bytes(label.array_id),
            revision: label.revision.number,
            unit_bytes: label.unit_bytes,
            slice_bytes: label.slice_bytes,
            members: label.members.into_iter().map(v1::LabelMember::from).collect(),
            may_follow: label.may_follow.into_iter().map(v1::MemberSet::from).collect(),
            shards_max: label.shards_max,
            data_shards_max: label.data_shards_max,
            // The first revision was made in no epoch.
            epoch: (label.revision.epoch != Epoch::default()).then(|| label.revision.epoch.into()),
        }
    }
}

impl From<MemberSet> for v1::MemberSet {
    fn from(set: MemberSet) -> Self {
        // A set has 128 of them at most.
        v1::MemberSet { members: set.iter().map(|member| member as u32).collect() }
    }
}

impl TryFrom<v1::MemberSet> for MemberSet {
    type Error = ConvertError;

    fn try_from(wire: v1::MemberSet) -> Result<Self, ConvertError> {
        if let Some(member) = wire.members.iter().find(|member| **member >= u128::BITS) {
            let (given, limit) = (u64::from(*member), u64::from(u128::BITS - 1));
            return Err(ConvertError::TooLarge { field: "may_follow.members", given, limit });
        }
        Ok(wire.members.into_iter().map(|member| member as usize).collect())
    }
}

impl From<LabelMember> for v1::LabelMember {
    fn from(member: LabelMember) -> Self {
        let out = |out: Out| v1::LabelOut {
            since: Some(out.since.into()),
            cursor_chunk: out.cursor.chunk.0,
            cursor_row: out.cursor.row.0,
            reason: out.reason,
        };
        v1::LabelMember {
            disk_id: uuid_bytes(member.disk_id),
            address: member.address,
            out: member.out.map(out),
        }
    }
}

impl TryFrom<v1::Label> for Label {
    type Error = ConvertError;

    fn try_from(wire: v1::Label) -> Result<Self, ConvertError> {
        Ok(Label {
            array_id: uuid("array_id", &wire.array_id)?,
            revision: Revision { epoch: epoch(wire.epoch), number: wire.revision },
            unit_bytes: wire.unit_bytes,
            slice_bytes: wire.slice_bytes,
            shards_max: wire.shards_max,
            data_shards_max: wire.data_shards_max,
            members: wire.members.into_iter().map(LabelMember::try_from).collect::<Result<_, _>>()?,
            may_follow: wire.may_follow.into_iter().map(MemberSet::try_from).collect::<Result<_, _>>()?,
        })
    }
}

impl TryFrom<v1::LabelMember> for LabelMember {
    type Error = ConvertError;

    fn try_from(wire: v1::LabelMember) -> Result<Self, ConvertError> {
        let out = |out: v1::LabelOut| Out {
            since: version(out.since),
            cursor: StripeAddress { chunk: ChunkIndex(out.cursor_chunk), row: Row(out.cursor_row) },
            reason: out.reason,
        };
        Ok(LabelMember {
            disk_id: uuid("members.disk_id", &wire.disk_id)?,
            address: wire.address,
            out: wire.out.map(out),
        })
    }
}
