//! The stripe engine: reads and writes of stripes over the members, one write of a stripe at a time.
//!
//! 1. A write is decided when every participant that is not out has prepared it; nobody is told of it before.
//! 2. A member that failed is marked out, durably, before the write that it failed is decided without it; where that is
//!    not possible the write is aborted everywhere, and its stripe stays locked until every answer is in.
//! 3. Parity is computed from bytes that were verified, never from others.
//! 4. A reconstructed sector is used only if it equals the checksum that the parities hold.
//! 5. A write that was begun goes on when its caller is gone.
//! 6. A stripe that was written without a member that is being taken back is remembered (`rejoin`).
//! 7. Of a write that failed, or whose outcome is open, nothing is in the cache; nor of sectors that were freed.
//!
//! The stripe lock is taken by everything that writes a stripe or reads it as a whole. Plain reads do not take it: the
//! version in the map protects them.

mod change;
mod commit;
mod damage;
mod decide;
mod fetch;
mod free;
mod fresh;
mod gather;
mod locks;
mod merge;
mod new_bytes;
mod owned;
mod partial;
mod read;
pub mod rejoin;
pub mod resolve;
mod shard;
pub mod steps;
mod weakness;
mod write;

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use dashmap::DashMap;
use stripeset_stripe::{
    Version,
    cache::{Cache, StripeKey},
    code::Codec,
    geometry::{Shard, StripeAddress},
    plan::Reading,
};
use thiserror::Error;
use tokio::sync::watch;

use self::{commit::CommitQueues, locks::StripeLocks, merge::WaitingWrites, rejoin::Rejoins, steps::Steps};
pub use self::{
    read::ReadRange,
    weakness::Weak,
    write::{Edit, WriteError},
};
use crate::{
    extents::{Extents, StripeRef},
    members::{Member, MemberIndex, Members},
    versions::VersionSequence,
};

/// How long a read waits for a member before it goes round it.
pub const HEDGE: Duration = Duration::from_millis(300);

/// Bytes of memory for the rbio cache, unless told otherwise.
pub const CACHE_BYTES: usize = 256 * 1024 * 1024;

/// Why bytes could not be read.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ReadError {
    /// Too few members answer; the bytes come back with them.
    #[error("too few members answer: {members} needed")]
    Unavailable {
        /// The members whose return would help, for people.
        members: String,
    },
    /// Every member that could help has answered, and the bytes cannot be rebuilt.
    #[error(
        "{sectors} sectors from logical {logical} on are lost: bad on more shards than the profile bears"
    )]
    Lost {
        /// First lost byte in the logical space.
        logical: u64,
        /// Lost sectors.
        sectors: usize,
    },
}

/// The engine of one array.
pub struct Engine {
    /// The members.
    pub members: Arc<Members>,
    /// Chunks and free space.
    pub extents: Arc<Extents>,
    versions: Arc<VersionSequence>,
    codec: Codec,
    cache: Mutex<Cache<Bytes>>,
    reading: Mutex<Reading>,
    locks: Arc<StripeLocks>,
    waiting_writes: WaitingWrites,
    /// Where writes can be made to stop.
    pub steps: Steps,
    #[cfg(feature = "simulation")]
    weakness: std::sync::OnceLock<Weak>,
    /// Members that are being taken back.
    pub rejoins: Rejoins,
    // The newest decided version of shards whose commit was not yet answered.
    decided: DashMap<(StripeAddress, Shard), Version>,
    commits: Arc<CommitQueues>,
    deposed: watch::Sender<Option<String>>,
}

impl Engine {
    /// An engine. Its background tasks run until it is dropped.
    pub fn new(members: Arc<Members>, extents: Arc<Extents>, versions: Arc<VersionSequence>) -> Arc<Self> {
        let commits = Arc::new(CommitQueues::new(members.count()));
        let engine = Arc::new(Engine {
            codec: Codec::new(extents.geometry().profile()),
            cache: Mutex::new(Cache::new(CACHE_BYTES)),
            members,
            extents,
            versions,
            reading: Mutex::default(),
            locks: Arc::default(),
            waiting_writes: WaitingWrites::default(),
            steps: Steps::default(),
            #[cfg(feature = "simulation")]
            weakness: std::sync::OnceLock::new(),
            rejoins: Rejoins::default(),
            decided: DashMap::new(),
            commits,
            deposed: watch::Sender::new(None),
        });
        commit::start(&engine);
        engine
    }

    /// Where its versions come from.
    pub fn versions(&self) -> &VersionSequence {
        &self.versions
    }

    /// Stops all work for good: another coordinator has taken the array over.
    pub fn depose(&self, reason: String) {
        tracing::error!(reason, "deposed");
        self.deposed.send_replace(Some(reason));
    }

    /// Why this coordinator is deposed, once it is.
    pub fn deposed(&self) -> watch::Receiver<Option<String>> {
        self.deposed.subscribe()
    }

    /// The rbio cache. Not to be held while anything is awaited.
    pub fn cache(&self) -> MutexGuard<'_, Cache<Bytes>> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the cache finds a stripe by.
    pub fn cache_key(&self, stripe: &StripeRef) -> StripeKey {
        let (epoch, incarnation) = (self.versions.epoch(), stripe.chunk.incarnation);
        StripeKey { epoch, incarnation, stripe: stripe.address() }
    }

    fn member_of(&self, stripe: &StripeRef, shard: Shard) -> &Arc<Member> {
        self.members.get(stripe.place(shard).member)
    }

    fn decided_version(&self, stripe: &StripeRef, shard: Shard) -> Version {
        self.decided.get(&(stripe.address(), shard)).map_or(Version::NONE, |version| *version)
    }

    /// Members that are not usable now, as people read it.
    fn away(&self, stripe: &StripeRef) -> String {
        let mut away: Vec<MemberIndex> = stripe
            .shards()
            .map(|shard| self.member_of(stripe, shard))
            .filter(|member| member.counts_at(stripe.address()) && !member.worth_asking_at(stripe.address()))
            .map(|member| member.index)
            .collect();
        away.sort_unstable();
        away.dedup();
        match away.as_slice() {
            [] => "members in sync".to_owned(),
            [one] => format!("member {one}"),
            many => {
                format!("members {}", many.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))
            }
        }
    }
}
