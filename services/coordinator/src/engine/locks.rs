//! Stripe locks: at most one write, or one reading of the whole, of a stripe at a time. First come, first served.

use std::sync::Arc;

use dashmap::DashMap;
use stripeset_stripe::geometry::StripeAddress;
use tokio::sync::{Mutex, OwnedMutexGuard};

/// The locks that somebody holds or waits for; others are not in the table.
#[derive(Default)]
pub(super) struct StripeLocks {
    locks: DashMap<StripeAddress, Arc<Mutex<()>>>,
}

/// Holds the lock of one stripe.
pub(super) struct StripeGuard {
    locks: Arc<StripeLocks>,
    address: StripeAddress,
    guard: Option<OwnedMutexGuard<()>>,
}

impl StripeLocks {
    pub(super) async fn lock(self: &Arc<Self>, address: StripeAddress) -> StripeGuard {
        // The table's own guard ends with this statement: it must not be held over the await.
        let mutex = Arc::clone(self.locks.entry(address).or_default().value());
        let guard = Some(mutex.lock_owned().await);
        StripeGuard { locks: self.clone(), address, guard }
    }
}

impl Drop for StripeGuard {
    fn drop(&mut self) {
        drop(self.guard.take());
        // One reference left is the table's own: nobody holds the lock or waits for it.
        self.locks.locks.remove_if(&self.address, |_, mutex| Arc::strong_count(mutex) == 1);
    }
}

#[cfg(test)]
mod tests {
    use stripeset_stripe::geometry::{ChunkIndex, Row};

    use super::*;

    #[tokio::test]
    async fn a_lock_excludes_and_leaves_nothing_behind() {
        let locks: Arc<StripeLocks> = Arc::default();
        let address = StripeAddress { chunk: ChunkIndex(1), row: Row(2) };
        let first = locks.lock(address).await;
        let mut second = tokio_test_pending(locks.lock(address)).await;
        drop(first);
        drop(second.as_mut().await);
        assert!(locks.locks.is_empty());
    }

    /// Polls a future once and returns it; panics if it was ready.
    async fn tokio_test_pending<F: Future>(future: F) -> std::pin::Pin<Box<F>> {
        let mut future = Box::pin(future);
        let ready =
            std::future::poll_fn(|context| std::task::Poll::Ready(future.as_mut().poll(context).is_ready()));
        assert!(!ready.await, "the lock was free");
        future
    }
}
