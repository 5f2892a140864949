//! A stripe that somebody holds: its lock, and, once a write has begun, its pages.
//!
//! Whoever writes a stripe begins first, whatever kind of write it is: so no entry of the cache outlives a write that it
//! does not know of. What is not finished is given up when the hold ends, however it ends.

use std::sync::Arc;

use bytes::Bytes;
use stripeset_stripe::cache::{Insert, Pages, StripeKey};

use super::{Engine, locks::StripeGuard};
use crate::extents::StripeRef;

/// Holds one stripe.
pub(super) struct Owned {
    engine: Arc<Engine>,
    key: StripeKey,
    begun: bool,
    // Given back after `drop` below has run.
    _guard: StripeGuard,
}

impl Engine {
    /// Waits for the stripe's lock.
    pub(super) async fn own(self: &Arc<Self>, stripe: &StripeRef) -> Owned {
        let guard = self.locks.lock(stripe.address()).await;
        Owned { engine: self.clone(), key: self.cache_key(stripe), begun: false, _guard: guard }
    }
}

impl Owned {
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
