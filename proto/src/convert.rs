//! Wire types to domain types and back. `TryFrom` on the way in validates; `From` on the way out cannot fail.

use bytes::Bytes;
use stripeset_stripe::{
    Epoch, Version,
    geometry::{ChunkIndex, Row, Shard},
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
