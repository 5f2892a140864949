//! What an array, its members and places on its disks look like to a user of the SDK, and how they come off the wire.

use std::fmt;

use stripeset_proto::{ErrorKind, convert, v1};
use uuid::Uuid;

use crate::Error;

/// How an array was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Array {
    /// UUID of the array.
    pub id: Uuid,
    /// Profile for data, with its numbers: `raid5-4+1`.
    pub data_profile: String,
    /// Profile for metadata, with its numbers.
    pub metadata_profile: String,
    /// Length of a stripe unit in bytes.
    pub unit_bytes: u32,
    /// Length of a slice in bytes.
    pub slice_bytes: u64,
    /// Number of members.
    pub members: u32,
    /// Number of the running coordinator's epoch.
    pub epoch: u64,
}

/// An allocation of one slice on each of n members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Index in the logical address space.
    pub index: u64,
    /// Profile, with its numbers.
    pub profile: String,
    /// First byte in the logical address space.
    pub logical: u64,
    /// Bytes of data that it holds when full.
    pub data_bytes: u64,
    /// Member of each slice, in order.
    pub members: Vec<u32>,
    /// Slice number on each of these members.
    pub slices: Vec<u64>,
    /// Bytes allocated in it.
    pub used_bytes: u64,
}

/// How far a member is trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MemberState {
    /// Answers, and holds everything that was written.
    InSync,
    /// Is being brought up to date.
    Rebuilding,
    /// Missed a write: not a source of reads until rebuilt.
    Out,
    /// Does not answer, but has missed nothing.
    Missing,
}

impl fmt::Display for MemberState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            MemberState::InSync => "in_sync",
            MemberState::Rebuilding => "rebuilding",
            MemberState::Out => "out",
            MemberState::Missing => "missing",
        })
    }
}

/// One disk of the array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Index, from 0.
    pub index: u32,
    /// UUID of the disk.
    pub disk_id: Uuid,
    /// Address of the agent, `host:port`.
    pub address: String,
    /// How far it is trusted.
    pub state: MemberState,
    /// Why it is in that state, for people; empty when in sync.
    pub reason: String,
    /// Length of the disk in bytes.
    pub size_bytes: u64,
    /// Bytes in slices that are part of a chunk.
    pub used_bytes: u64,
    /// Errors counted against it.
    pub errors: MemberErrors,
    /// The agent answers at the moment.
    pub connected: bool,
}

/// Errors counted against one member since the array was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemberErrors {
    /// Sectors that did not match their checksum.
    pub checksum: u64,
    /// Units with another version than expected: a write that was acknowledged and is not there.
    pub version: u64,
    /// Reads that failed or were not answered.
    pub read: u64,
    /// Writes that failed or were not answered.
    pub write: u64,
    /// Of the bad sectors, those that were repaired.
    pub corrected: u64,
}

impl MemberErrors {
    /// All errors, repaired ones too.
    ///
    /// ```
    /// let errors = stripeset_client::MemberErrors { checksum: 2, read: 1, corrected: 2, ..Default::default() };
    /// assert_eq!(errors.total(), 3);
    /// ```
    pub fn total(&self) -> u64 {
        [self.checksum, self.version, self.read, self.write].into_iter().fold(0, u64::saturating_add)
    }
}

/// The array at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArrayStatus {
    /// Reads are served, degraded too.
    pub reads_served: bool,
    /// Writes are served, degraded too.
    pub writes_served: bool,
    /// Why not, or what is degraded; empty when all is well.
    pub reason: String,
    /// The array; none if none was made yet.
    pub array: Option<Array>,
    /// Its members, by index.
    pub members: Vec<Member>,
    /// Its capacity.
    pub capacity: Capacity,
    /// Its redundancy.
    pub redundancy: Redundancy,
    /// Number of objects stored.
    pub objects: u64,
}

/// Capacity in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capacity {
    /// Length of all disks together.
    pub raw_bytes: u64,
    /// Bytes of data that fit in all, under the data profile.
    pub data_bytes: u64,
    /// Bytes of logical space that objects take.
    pub used_bytes: u64,
    /// Bytes of data that can still be put.
    pub free_bytes: u64,
}

/// How many losses can still be borne.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Redundancy {
    /// Members that the data profile can lose when all are in sync.
    pub tolerated: u32,
    /// Members not in sync now.
    pub away: u32,
    /// Further members that can be lost now without losing data.
    pub left: u32,
}

/// A place to explain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A range of an object.
    Object {
        /// Name of the object.
        name: String,
        /// First byte.
        offset: u64,
        /// Length in bytes, at least 1.
        length: u64,
    },
    /// One byte of the array's logical address space.
    Logical(u64),
}

/// Orders everything that one coordinator numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// Number of the epoch in which it was taken.
    pub epoch: u64,
    /// Random number of the coordinator process that claimed the epoch.
    pub incarnation: u64,
    /// Sequence number within the epoch.
    pub sequence: u64,
}

/// Where one sector is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SectorPlace {
    /// First byte in the object; 0 if the place was given as logical.
    pub offset: u64,
    /// First byte in the logical address space.
    pub logical: u64,
    /// Index of the chunk.
    pub chunk: u64,
    /// Row of the stripe in the chunk.
    pub stripe: u32,
    /// Index of the shard in the stripe.
    pub shard: u32,
    /// Member that holds it.
    pub member: u32,
    /// Where it starts on that member's disk, in bytes.
    pub disk_offset: u64,
    /// Version of the shard; none if the member does not answer.
    pub version: Option<Version>,
    /// It belongs to an object.
    pub live: bool,
    /// It is in the stripe cache.
    pub cached: bool,
}

/// Where the parity, or another copy, of some sectors is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParityPlace {
    /// Index of the chunk.
    pub chunk: u64,
    /// Row of the stripe in the chunk.
    pub stripe: u32,
    /// Index of the shard in the stripe.
    pub shard: u32,
    /// Member that holds it.
    pub member: u32,
    /// Where it starts on that member's disk, in bytes.
    pub disk_offset: u64,
    /// Length in bytes.
    pub length: u64,
}

/// Where bytes are on the disks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// One for each 4 KiB sector touched, in order; holes have none.
    pub sectors: Vec<SectorPlace>,
    /// Parity of these sectors.
    pub parity: Vec<ParityPlace>,
    /// How a write of these bytes would be done, for people.
    pub plan: String,
    /// The same for programs, by stripe.
    pub stripe_plans: Vec<StripePlan>,
}

/// How a write of sectors of one stripe would be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StripePlan {
    /// Index of the chunk.
    pub chunk: u64,
    /// Row of the stripe in the chunk.
    pub stripe: u32,
    /// In a word: `full`, `pages` (nothing is read), `reconstruct-write`, `parity-delta`, `whole-stripe`.
    pub kind: String,
    /// Sectors that would be read from members.
    pub sectors_read: u32,
    /// Members that they are on.
    pub read_members: Vec<u32>,
    /// Members that would be written to.
    pub write_members: Vec<u32>,
}

impl From<v1::StripePlan> for StripePlan {
    fn from(wire: v1::StripePlan) -> Self {
        StripePlan {
            chunk: wire.chunk,
            stripe: wire.stripe,
            kind: wire.kind,
            sectors_read: wire.sectors_read,
            read_members: wire.read_members,
            write_members: wire.write_members,
        }
    }
}

fn uuid(field: &'static str, bytes: &[u8]) -> Result<Uuid, Error> {
    convert::uuid(field, bytes)
        .map_err(|error| Error::new(ErrorKind::Internal, error.to_string()).with_source(error))
}

impl TryFrom<v1::Array> for Array {
    type Error = Error;

    fn try_from(wire: v1::Array) -> Result<Self, Error> {
        Ok(Array {
            id: uuid("array_id", &wire.array_id)?,
            data_profile: wire.data_profile,
            metadata_profile: wire.metadata_profile,
            unit_bytes: wire.unit_bytes,
            slice_bytes: wire.slice_bytes,
            members: wire.members,
            epoch: wire.epoch.unwrap_or_default().number,
        })
    }
}

impl From<v1::Chunk> for Chunk {
    fn from(wire: v1::Chunk) -> Self {
        let v1::Chunk { index, profile, logical, data_bytes, members, slices, used_bytes } = wire;
        Chunk { index, profile, logical, data_bytes, members, slices, used_bytes }
    }
}

impl TryFrom<v1::Member> for Member {
    type Error = Error;

    fn try_from(wire: v1::Member) -> Result<Self, Error> {
        let state = match wire.state() {
            v1::MemberState::InSync => MemberState::InSync,
            v1::MemberState::Rebuilding => MemberState::Rebuilding,
            v1::MemberState::Out => MemberState::Out,
            v1::MemberState::Missing => MemberState::Missing,
            v1::MemberState::Unspecified => {
                return Err(Error::incomplete("state of a member that is known here"));
            }
        };
        let errors = wire.errors.unwrap_or_default();
        Ok(Member {
            index: wire.index,
            disk_id: uuid("disk_id", &wire.disk_id)?,
            address: wire.address,
            state,
            reason: wire.reason,
            size_bytes: wire.size_bytes,
            used_bytes: wire.used_bytes,
            errors: MemberErrors {
                checksum: errors.checksum_errors,
                version: errors.version_errors,
                read: errors.read_errors,
                write: errors.write_errors,
                corrected: errors.corrected_errors,
            },
            connected: wire.connected,
        })
    }
}

pub(crate) fn members(wire: Vec<v1::Member>) -> Result<Vec<Member>, Error> {
    wire.into_iter().map(Member::try_from).collect()
}

impl TryFrom<v1::GetStatusResponse> for ArrayStatus {
    type Error = Error;

    fn try_from(wire: v1::GetStatusResponse) -> Result<Self, Error> {
        let v1::Capacity { raw_bytes, data_bytes, used_bytes, free_bytes } =
            wire.capacity.unwrap_or_default();
        let v1::Redundancy { tolerated, away, left } = wire.redundancy.unwrap_or_default();
        Ok(ArrayStatus {
            reads_served: wire.reads_served,
            writes_served: wire.writes_served,
            reason: wire.reason,
            array: wire.array.map(Array::try_from).transpose()?,
            members: members(wire.members)?,
            capacity: Capacity { raw_bytes, data_bytes, used_bytes, free_bytes },
            redundancy: Redundancy { tolerated, away, left },
            objects: wire.objects,
        })
    }
}

impl From<v1::Version> for Version {
    fn from(wire: v1::Version) -> Self {
        let epoch = wire.epoch.unwrap_or_default();
        Version { epoch: epoch.number, incarnation: epoch.incarnation, sequence: wire.sequence }
    }
}

impl From<v1::SectorPlace> for SectorPlace {
    fn from(wire: v1::SectorPlace) -> Self {
        let v1::SectorPlace {
            offset,
            logical,
            chunk,
            stripe,
            shard,
            member,
            disk_offset,
            version,
            live,
            cached,
        } = wire;
        let version = version.map(Version::from);
        SectorPlace { offset, logical, chunk, stripe, shard, member, disk_offset, version, live, cached }
    }
}

impl From<v1::ParityPlace> for ParityPlace {
    fn from(wire: v1::ParityPlace) -> Self {
        let v1::ParityPlace { chunk, stripe, shard, member, disk_offset, length } = wire;
        ParityPlace { chunk, stripe, shard, member, disk_offset, length }
    }
}

impl From<v1::ExplainResponse> for Explanation {
    fn from(wire: v1::ExplainResponse) -> Self {
        Explanation {
            sectors: wire.sectors.into_iter().map(SectorPlace::from).collect(),
            parity: wire.parity.into_iter().map(ParityPlace::from).collect(),
            plan: wire.plan,
            stripe_plans: wire.stripe_plans.into_iter().map(StripePlan::from).collect(),
        }
    }
}

impl From<Place> for v1::ExplainRequest {
    fn from(place: Place) -> Self {
        use v1::explain_request::Place as Wire;
        let place = match place {
            Place::Object { name, offset, length } => {
                Wire::Object(v1::ObjectRange { name, offset_bytes: offset, length_bytes: length })
            }
            Place::Logical(logical) => Wire::Logical(logical),
        };
        v1::ExplainRequest { place: Some(place) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_in_a_state_of_a_later_version_is_an_error_and_no_panic() {
        let wire = v1::Member { state: 77, disk_id: vec![1; 16].into(), ..Default::default() };
        assert_eq!(Member::try_from(wire.clone()).unwrap_err().kind(), ErrorKind::Internal);
        let known = v1::Member { state: v1::MemberState::Out.into(), ..wire };
        assert_eq!(Member::try_from(known.clone()).unwrap().state.to_string(), "out");
        let short = v1::Member { disk_id: vec![1; 15].into(), ..known };
        assert!(Member::try_from(short).is_err());
    }

    #[test]
    fn a_status_without_an_array_is_a_status() {
        let status = ArrayStatus::try_from(v1::GetStatusResponse::default()).unwrap();
        assert_eq!((status.array, status.reads_served), (None, false));
    }
}
