//! What a write to a stripe is, how it fails, and how often it is tried.
//!
//! Into an empty stripe: `fresh`. Into one that holds others: `merge` gathers what waits, `partial` does it. Both end in
//! `decide`.

use std::time::Duration;

use bytes::Bytes;
use stripeset_proto::v1::RefusalKind;
use stripeset_stripe::geometry::Shard;
use thiserror::Error;

use crate::members::{MemberIndex, labels::ReviseError, link::Refusal};

/// How often a write that an agent refused for a passing reason is tried in all.
const TRIES: u32 = 6;

/// Pause before the second try; doubled each time.
const FIRST_PAUSE: Duration = Duration::from_millis(20);

/// New bytes for neighbouring sectors of one data shard.
#[derive(Clone, Debug)]
pub struct Edit {
    /// The data shard.
    pub shard: Shard,
    /// First sector in it.
    pub first_sector: u32,
    /// The bytes; whole sectors.
    pub data: Bytes,
}

/// Why a stripe was not written. Nothing of the write remains, unless it says otherwise.
#[derive(Debug, Error)]
pub enum WriteError {
    /// Too few members to go on without those that failed.
    #[error("too few members: {failed}; {source}")]
    TooFewMembers {
        /// What failed, for people.
        failed: String,
        /// Why they could not be marked out.
        source: ReviseError,
    },
    /// As [`WriteError::TooFewMembers`], and a member that may hold the write does not answer. The stripe stays locked
    /// until it does.
    #[error("too few members, and the outcome of the write is open: {failed}")]
    Open {
        /// What failed, for people.
        failed: String,
    },
    /// An agent refused, and went on refusing.
    #[error("member {member} refused the write: {refusal}")]
    Refused {
        /// The member.
        member: MemberIndex,
        /// What it said.
        refusal: Refusal,
    },
    /// A live neighbour in the stripe cannot be read or rebuilt, so no parity can be computed.
    #[error("live sector at logical {logical} in the same stripe is lost")]
    NeighbourLost {
        /// Its first byte in the logical space.
        logical: u64,
    },
    /// A live neighbour cannot be read until a member comes back.
    #[error("neighbours in the stripe cannot be read: {members} needed")]
    NeighbourAway {
        /// The members, for people.
        members: String,
    },
    /// The parities that answer missed a write, and could not be rebuilt yet.
    #[error("the parities of the stripe missed a write and are being rebuilt")]
    ParityStale,
    /// A member has just come back, and its pending writes are being resolved.
    #[error("a member has just come back and is being taken in")]
    BeingResolved,
    /// The stripe is held for too long: by a write whose outcome is open until a member answers.
    #[error("the stripe is held by a write whose outcome is open: {members} needed")]
    Held {
        /// The members, for people.
        members: String,
    },
    /// Another coordinator has taken over.
    #[error("another coordinator has taken the array over")]
    Deposed,
    /// The process is stopping.
    #[error("the coordinator is stopping")]
    Stopping,
}

impl WriteError {
    fn passes(&self) -> bool {
        use RefusalKind::{BelowFloor, Busy, Damaged, Expired, ResourceExhausted, VersionMismatch};
        let passing = [ResourceExhausted, Busy, Expired, BelowFloor, VersionMismatch, Damaged];
        match self {
            WriteError::Refused { refusal, .. } => passing.contains(&refusal.kind),
            WriteError::ParityStale | WriteError::BeingResolved => true,
            _ => false,
        }
    }
}

/// Counts the tries of one write.
#[derive(Debug)]
pub(super) struct Tries {
    made: u32,
    pause: Duration,
}

impl Tries {
    pub(super) fn new() -> Self {
        Tries { made: 0, pause: FIRST_PAUSE }
    }

    /// Whether to try again after this failure; waits before it says yes.
    pub(super) async fn again(&mut self, error: &WriteError) -> bool {
        self.made += 1;
        if self.made >= TRIES || !error.passes() {
            return false;
        }
        tokio::time::sleep(self.pause).await;
        self.pause *= 2;
        true
    }
}
