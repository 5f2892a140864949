//! A stripe that somebody holds: its lock, and, once a write has begun, its pages.
//!
//! Whoever writes a stripe begins first, whatever kind of write it is: so no entry of the cache outlives a write that it
//! does not know of. What is not finished is given up when the hold ends, however it ends.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use stripeset_stripe::cache::{Insert, Pages, StripeKey};

use super::{Engine, WriteError, locks::StripeGuard};
use crate::{
    extents::StripeRef,
    members::{Member, Service, link::CALL_LIMIT},
};

/// How long a write waits for members that have just come back and whose pending writes are being resolved.
const RESOLVE_PATIENCE: Duration = Duration::from_secs(3);

/// Holds one stripe.
pub(super) struct Owned {
    engine: Arc<Engine>,
    key: StripeKey,
    begun: bool,
    gave_up_waiting: bool,
    // Given back after `drop` below has run.
    _guard: StripeGuard,
}

/// How long a write waits for its stripe. Longer than a write before it may take to find a member silent.
const WRITE_PATIENCE: Duration = CALL_LIMIT.saturating_mul(3);

impl Engine {
    /// Waits for the stripe's lock.
    pub(super) async fn own(self: &Arc<Self>, stripe: &StripeRef) -> Owned {
        let guard = self.locks.lock(stripe.address()).await;
        let key = self.cache_key(stripe);
        Owned { engine: self.clone(), key, begun: false, gave_up_waiting: false, _guard: guard }
    }

    /// Waits for the stripe's lock, for a write. First for members that are being taken back: that takes the lock too, if a
    /// write of this stripe is pending there.
    pub(super) async fn own_to_write(self: &Arc<Self>, stripe: &StripeRef) -> Result<Owned, WriteError> {
        let resolved = async {
            for shard in stripe.shards() {
                self.member_of(stripe, shard).resolved().await;
            }
        };
        let in_time = tokio::time::timeout(RESOLVE_PATIENCE, resolved).await.is_ok();
        let held = |_| WriteError::Held { members: self.away(stripe) };
        let mut owned = tokio::time::timeout(WRITE_PATIENCE, self.own(stripe)).await.map_err(held)?;
        owned.gave_up_waiting = !in_time;
        Ok(owned)
    }

    /// Whether a member of the stripe that is not out is being taken back.
    pub(super) fn is_being_resolved(&self, stripe: &StripeRef) -> bool {
        let resolving =
            |member: &Member| member.counts_at(stripe.address()) && member.service() == Service::Fenced;
        stripe.shards().any(|shard| resolving(self.member_of(stripe, shard)))
    }
}

impl Owned {
    /// Members that are being taken back were waited for long enough: they count as away.
    pub(super) fn gave_up_waiting(&self) -> bool {
        self.gave_up_waiting
    }

    /// A write begins: takes what the cache has of the stripe.
    pub(super) fn begin(&mut self) -> Option<Pages<Bytes>> {
        self.give_up();
        self.begun = true;
        self.engine.cache().begin(self.key)
    }

    /// A write begins that has no use for pages: they are gone.
    pub(super) fn begin_without_pages(&mut self) {
        if let Some(pages) = self.begin() {
            self.engine.cache().count_other(&pages);
        }
    }

    /// The write is decided; the next one to the stripe goes on with its pages.
    pub(super) fn hand_over(&mut self, pages: Pages<Bytes>) -> Option<Pages<Bytes>> {
        self.engine.cache().hand_over(self.key, pages)
    }

    /// The write is decided, and its pages are the cache's. Gives the lock back.
    pub(super) fn finish(mut self, pages: Pages<Bytes>, insert: Insert) {
        self.begun = false;
        self.engine.cache().finish(self.key, pages, insert);
    }

    fn give_up(&mut self) {
        if std::mem::take(&mut self.begun) {
            self.engine.cache().give_up(self.key);
        }
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        self.give_up();
    }
}
