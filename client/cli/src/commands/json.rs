//! The JSON documents that several commands share. Every field is always there; names and types are part of the
//! command line's promise.

use std::time::SystemTime;

use serde::Serialize;
use stripeset_client::{Array, Chunk, Member, ObjectInfo};

/// An object without its bytes.
#[derive(Debug, Serialize)]
pub(crate) struct ObjectRow {
    name: String,
    size_bytes: u64,
    crc32c: u32,
    modified_unix_millis: i64,
    allocated_bytes: u64,
    generation: u64,
}

impl From<&ObjectInfo> for ObjectRow {
    fn from(object: &ObjectInfo) -> Self {
        let modified_unix_millis = match object.modified.duration_since(SystemTime::UNIX_EPOCH) {
            Ok(after) => i64::try_from(after.as_millis()).unwrap_or(i64::MAX),
            Err(before) => i64::try_from(before.duration().as_millis()).map_or(i64::MIN, |millis| -millis),
        };
        ObjectRow {
            name: object.name.clone(),
            size_bytes: object.size_bytes,
            crc32c: object.crc32c,
            modified_unix_millis,
            allocated_bytes: object.allocated_bytes,
            generation: object.generation,
        }
    }
}

/// A member of the array.
#[derive(Debug, Serialize)]
pub(crate) struct MemberRow {
    index: u32,
    id: String,
    address: String,
    state: String,
    reason: String,
    size_bytes: u64,
    used_bytes: u64,
    errors: u64,
    checksum_errors: u64,
    version_errors: u64,
    read_errors: u64,
    write_errors: u64,
    corrected_errors: u64,
    connected: bool,
}

impl From<&Member> for MemberRow {
    fn from(member: &Member) -> Self {
        MemberRow {
            index: member.index,
            id: member.disk_id.to_string(),
            address: member.address.clone(),
            state: member.state.to_string(),
            reason: member.reason.clone(),
            size_bytes: member.size_bytes,
            used_bytes: member.used_bytes,
            errors: member.errors.total(),
            checksum_errors: member.errors.checksum,
            version_errors: member.errors.version,
            read_errors: member.errors.read,
            write_errors: member.errors.write,
            corrected_errors: member.errors.corrected,
            connected: member.connected,
        }
    }
}

/// How an array was made.
#[derive(Debug, Serialize)]
pub(crate) struct ArrayRow {
    id: String,
    data_profile: String,
    metadata_profile: String,
    unit_bytes: u32,
    slice_bytes: u64,
    members: u32,
    epoch: u64,
}

impl From<&Array> for ArrayRow {
    fn from(array: &Array) -> Self {
        ArrayRow {
            id: array.id.to_string(),
            data_profile: array.data_profile.clone(),
            metadata_profile: array.metadata_profile.clone(),
            unit_bytes: array.unit_bytes,
            slice_bytes: array.slice_bytes,
            members: array.members,
            epoch: array.epoch,
        }
    }
}

/// A chunk.
#[derive(Debug, Serialize)]
pub(crate) struct ChunkRow {
    index: u64,
    profile: String,
    logical: u64,
    data_bytes: u64,
    members: Vec<u32>,
    slices: Vec<u64>,
    used_bytes: u64,
}

impl From<&Chunk> for ChunkRow {
    fn from(chunk: &Chunk) -> Self {
        let Chunk { index, profile, logical, data_bytes, members, slices, used_bytes } = chunk.clone();
        ChunkRow { index, profile, logical, data_bytes, members, slices, used_bytes }
    }
}
