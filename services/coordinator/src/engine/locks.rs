//! Stripe locks: at most one write, or one reading of the whole, of a stripe at a time. First come, first served.
//!
//! A gate can be closed over a range of stripes: then nobody holds the lock of one of them, and nobody gets it, until the
//! gate is opened again.

use std::{
    pin::pin,
    sync::{Arc, Mutex as StdMutex, MutexGuard, PoisonError},
};

use dashmap::DashMap;
use stripeset_stripe::geometry::StripeAddress;
use tokio::sync::{Mutex, Notify, OwnedMutexGuard};

/// The locks that somebody holds or waits for; others are not in the table.
#[derive(Default)]
pub(super) struct StripeLocks {
    locks: DashMap<StripeAddress, Arc<Mutex<()>>>,
    gate: StdMutex<Option<Stripes>>,
    // Told when the gate is opened. Wakes in the order of the waits, which a watch would not.
    opened: Notify,
}

/// Stripes from one on, and up to another, if there is an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stripes {
    pub(super) from: StripeAddress,
    pub(super) to: Option<StripeAddress>,
}

impl Stripes {
    pub(super) fn contain(&self, address: StripeAddress) -> bool {
        address >= self.from && self.to.is_none_or(|to| address < to)
    }
}

/// Holds the lock of one stripe.
pub(super) struct StripeGuard {
    locks: Arc<StripeLocks>,
    address: StripeAddress,
    guard: Option<OwnedMutexGuard<()>>,
}

/// Keeps the gate closed.
pub(super) struct Gate<'a> {
    locks: &'a StripeLocks,
}

impl StripeLocks {
    pub(super) async fn lock(self: &Arc<Self>, address: StripeAddress) -> StripeGuard {
        loop {
            let guard = self.lock_past_gate(address).await;
            let mut opened = pin!(self.opened.notified());
            // From here on it is heard, so nothing is missed between the comparison and the wait.
            opened.as_mut().enable();
            if !self.gate().is_some_and(|gate| gate.contain(address)) {
                return guard;
            }
            drop(guard);
            opened.await;
        }
    }

    async fn lock_past_gate(self: &Arc<Self>, address: StripeAddress) -> StripeGuard {
        // The table's own guard ends with this statement: it must not be held over the await.
        let mutex = Arc::clone(self.locks.entry(address).or_default().value());
        let guard = Some(mutex.lock_owned().await);
        StripeGuard { locks: self.clone(), address, guard }
    }

    fn gate(&self) -> MutexGuard<'_, Option<Stripes>> {
        self.gate.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes the gate over stripes, and returns once nobody holds the lock of any. There is one gate: it must not be
    /// closed twice.
    pub(super) async fn close(self: &Arc<Self>, stripes: Stripes) -> Gate<'_> {
        *self.gate() = Some(stripes);
        let gate = Gate { locks: self };
        // Who comes from here on sees the gate. Who was there before is passed by.
        let held: Vec<StripeAddress> = self.locks.iter().map(|entry| *entry.key()).collect();
        for address in held.into_iter().filter(|address| stripes.contain(*address)) {
            drop(self.lock_past_gate(address).await);
        }
        gate
    }
}

impl Drop for Gate<'_> {
    fn drop(&mut self) {
        *self.locks.gate() = None;
        self.locks.opened.notify_waiters();
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

    #[tokio::test]
    async fn a_closed_gate_waits_for_who_is_inside_and_keeps_others_out() {
        let locks: Arc<StripeLocks> = Arc::default();
        let at = |row| StripeAddress { chunk: ChunkIndex(1), row: Row(row) };
        let inside = locks.lock(at(2)).await;
        let mut closing = tokio_test_pending(locks.close(Stripes { from: at(1), to: Some(at(3)) })).await;
        let mut waiting = tokio_test_pending(locks.lock(at(1))).await;
        drop(locks.lock(at(0)).await);
        drop(locks.lock(at(3)).await);
        drop(inside);
        let gate = closing.as_mut().await;
        let mut late = tokio_test_pending(locks.lock(at(2))).await;
        let early = tokio_test_pending(waiting.as_mut()).await;
        drop(early);
        drop(gate);
        drop(late.as_mut().await);
        drop(waiting.as_mut().await);
        drop((closing, waiting, late));
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
