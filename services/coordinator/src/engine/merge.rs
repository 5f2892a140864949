//! Partial writes that wait for the same stripe are done as one.
//!
//! 1. Writes to one stripe are applied in the order in which they were submitted.
//! 2. A write that comes after the parity of another was begun waits for it; those that wait are merged.
//! 3. Work is detached from its caller: what was submitted is done, whoever has gone.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    mem,
    sync::{Arc, Mutex, PoisonError},
};

use bytes::Bytes;
use stripeset_stripe::{
    Version,
    cache::{Insert, Pages},
    geometry::StripeAddress,
};
use tokio::sync::oneshot;

use super::{
    Edit, Engine,
    new_bytes::NewBytes,
    owned::Owned,
    partial::Written,
    steps::Step,
    write::{Tries, WriteError},
};
use crate::extents::StripeRef;

/// Merged writes that follow each other on one stripe before its lock is given to others who wait for it.
const IN_A_ROW_MAX: usize = 8;

struct Waiting {
    edits: Vec<Edit>,
    reply: oneshot::Sender<Result<Version, Arc<WriteError>>>,
}

/// Partial writes that wait, by stripe. A stripe with an entry has a task that writes it.
#[derive(Default)]
pub(super) struct WaitingWrites {
    by_stripe: Mutex<BTreeMap<StripeAddress, Vec<Waiting>>>,
}

impl WaitingWrites {
    /// Adds a write. Whether it is the first, and somebody has to begin.
    fn add(&self, stripe: StripeAddress, waiting: Waiting) -> bool {
        match self.lock().entry(stripe) {
            Entry::Vacant(entry) => {
                entry.insert(vec![waiting]);
                true
            }
            Entry::Occupied(mut entry) => {
                entry.get_mut().push(waiting);
                false
            }
        }
    }

    /// Takes all that wait.
    fn take(&self, stripe: StripeAddress) -> Vec<Waiting> {
        self.lock().get_mut(&stripe).map(mem::take).unwrap_or_default()
    }

    /// Whether none waits: then the next one to come has to begin.
    fn end(&self, stripe: StripeAddress) -> bool {
        let mut by_stripe = self.lock();
        let none = by_stripe.get(&stripe).is_none_or(Vec::is_empty);
        if none {
            by_stripe.remove(&stripe);
        }
        none
    }

    fn any(&self, stripe: StripeAddress) -> bool {
        self.lock().get(&stripe).is_some_and(|waiting| !waiting.is_empty())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<StripeAddress, Vec<Waiting>>> {
        self.by_stripe.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Engine {
    /// Writes sectors of a stripe that holds others, which it leaves as they are. Goes on when the caller is gone.
    pub async fn write_partial(
        self: &Arc<Self>,
        stripe: &StripeRef,
        edits: Vec<Edit>,
    ) -> Result<Version, Arc<WriteError>> {
        let (reply, answer) = oneshot::channel();
        if self.waiting_writes.add(stripe.address(), Waiting { edits, reply }) {
            tokio::spawn(self.clone().write_waiting(stripe.clone()));
        }
        answer.await.unwrap_or_else(|_| Err(Arc::new(WriteError::Stopping)))
    }

    /// Writes what waits for one stripe, until nothing does.
    async fn write_waiting(self: Arc<Self>, stripe: StripeRef) {
        let mut failing = FailIfDropped { engine: &self, stripe: stripe.address(), armed: true };
        let mut held: Option<Held> = None;
        loop {
            let now = match held.take() {
                Some(held) => Ok(held),
                None if self.waiting_writes.end(stripe.address()) => {
                    failing.armed = false;
                    return;
                }
                None => self.own_to_write(&stripe).await.map(|mut owned| {
                    let pages = owned.begin();
                    Held { owned, pages, in_a_row: 0 }
                }),
            };
            let batch = self.waiting_writes.take(stripe.address());
            match now {
                Ok(now) => held = self.write_batch(&stripe, batch, now).await,
                Err(error) => answer(batch, &Err(Arc::new(error))),
            }
        }
    }

    /// Writes a batch as one, answers, and returns what the next one can go on with.
    async fn write_batch(
        self: &Arc<Self>,
        stripe: &StripeRef,
        batch: Vec<Waiting>,
        held: Held,
    ) -> Option<Held> {
        let new = NewBytes::new(stripe.geometry(), batch.iter().flat_map(|waiting| &waiting.edits));
        let in_a_row = held.in_a_row + 1;
        let mut written = self.write_planned(held.owned, stripe, &new, held.pages).await;
        let mut tries = Tries::new();
        while let Err(error) = &written
            && tries.again(error).await
        {
            // What made the first attempt fail may be what its plan did not look at.
            written = match self.own_to_write(stripe).await {
                Ok(mut owned) => {
                    owned.begin_without_pages();
                    self.write_thoroughly(owned, stripe, &new, None).await
                }
                Err(error) => Err(error),
            };
        }
        let (outcome, next) = match written {
            Ok(Written { version, owned, pages }) => {
                self.steps.pass(Step::RmwDecided).await;
                let goes_on = in_a_row < IN_A_ROW_MAX && self.waiting_writes.any(stripe.address());
                (Ok(version), self.pass_on(owned, pages, in_a_row, goes_on))
            }
            Err(error) => (Err(Arc::new(error)), None),
        };
        if outcome.is_ok() {
            self.steps.pass(Step::Acknowledge).await;
        }
        answer(batch, &outcome);
        next
    }

    /// Hands the pages to the next write, or to the cache: the one place where that is decided.
    fn pass_on(
        &self,
        mut owned: Owned,
        pages: Option<Pages<Bytes>>,
        in_a_row: usize,
        goes_on: bool,
    ) -> Option<Held> {
        if goes_on {
            let pages = pages.and_then(|pages| owned.hand_over(pages));
            return Some(Held { owned, pages, in_a_row });
        }
        if let Some(pages) = pages {
            owned.finish(pages, Insert::Partial);
        }
        None
    }
}

fn answer(batch: Vec<Waiting>, outcome: &Result<Version, Arc<WriteError>>) {
    for waiting in batch {
        // The caller may have stopped waiting.
        let _ = waiting.reply.send(outcome.clone());
    }
}

/// Fails what waits for a stripe if the task that writes it ends before its time: nobody else would begin.
struct FailIfDropped<'a> {
    engine: &'a Engine,
    stripe: StripeAddress,
    armed: bool,
}

impl Drop for FailIfDropped<'_> {
    fn drop(&mut self) {
        if self.armed {
            self.engine.waiting_writes.lock().remove(&self.stripe);
        }
    }
}

/// A stripe that is held between two writes, with the pages that the next one takes.
struct Held {
    owned: Owned,
    pages: Option<Pages<Bytes>>,
    in_a_row: usize,
}
