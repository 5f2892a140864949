//! Commits of decided writes: gathered per member, sent in batches, repeated until answered.
//!
//! Nobody waits for them: the next Prepare on the same shard commits its base by itself, and a pending write that is
//! found when a member comes back is resolved.

use std::{
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use stripeset_proto::v1::{self, session_request::Operation};
use stripeset_stripe::{
    Version,
    geometry::{Shard, StripeAddress},
};
use tokio::sync::Notify;

use super::Engine;
use crate::members::MemberIndex;

/// Longest time that a decided write waits for its commit to be sent.
const COMMIT_DELAY: Duration = Duration::from_millis(50);

/// A batch of this size is sent without delay.
const COMMIT_BATCH: usize = 256;

#[derive(Clone, Copy)]
pub(super) struct Decided {
    pub(super) address: StripeAddress,
    pub(super) shard: Shard,
    pub(super) unit: u64,
    pub(super) version: Version,
}

#[derive(Default)]
struct CommitQueue {
    waiting: Mutex<Vec<Decided>>,
    full: Notify,
    // Held while a batch is on its way: what is not in `waiting` any more need not be answered yet.
    sending: tokio::sync::Mutex<()>,
}

/// The queues, by member.
pub(super) struct CommitQueues {
    by_member: Vec<CommitQueue>,
}

impl CommitQueue {
    fn lock(&self) -> MutexGuard<'_, Vec<Decided>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CommitQueues {
    pub(super) fn new(members: usize) -> Self {
        CommitQueues { by_member: (0..members).map(|_| CommitQueue::default()).collect() }
    }

    pub(super) fn push(&self, member: MemberIndex, decided: Decided) {
        let queue = &self.by_member[member.0 as usize];
        let mut waiting = queue.lock();
        waiting.push(decided);
        if waiting.len() == COMMIT_BATCH {
            queue.full.notify_one();
        }
    }
}

/// Starts one sender for each member. They end with the engine.
pub(super) fn start(engine: &Arc<Engine>) {
    for member in engine.members.iter() {
        tokio::spawn(send_until_dropped(Arc::downgrade(engine), engine.commits.clone(), member.index));
    }
}

async fn send_until_dropped(engine: Weak<Engine>, queues: Arc<CommitQueues>, member: MemberIndex) {
    loop {
        let full = queues.by_member[member.0 as usize].full.notified();
        // Either way it is time to send.
        let _ = tokio::time::timeout(COMMIT_DELAY, full).await;
        // Held while sending only: senders that wait must not keep the engine alive among themselves.
        let Some(engine) = engine.upgrade() else { return };
        engine.send_commits(member).await;
    }
}

impl Engine {
    /// Sends everything that waits for one member, after what is on its way. What is not answered waits for the next time, and
    /// so does what comes meanwhile: else there would be one message for each write, as long as writes go on.
    pub(super) async fn send_commits(&self, index: MemberIndex) {
        let queue = &self.commits.by_member[index.0 as usize];
        let _sending = queue.sending.lock().await;
        let member = self.members.get(index);
        let now = mem::take(&mut *queue.lock());
        // Where it is out it is a target of rebuild only; nothing of what it holds is asked for again.
        let (now, out): (Vec<_>, Vec<_>) =
            now.into_iter().partition(|decided| member.counts_at(decided.address));
        out.iter().for_each(|decided| self.forget_decided(decided));
        let mut batches = now.chunks(stripeset_proto::limits::UNITS_MAX);
        while let Some(batch) = batches.next() {
            let writes = batch
                .iter()
                .map(|decided| v1::UnitVersion { unit: decided.unit, version: Some(decided.version.into()) })
                .collect();
            let commit = Operation::Commit(v1::CommitOperation { writes });
            if member.link.call(commit, 0).await.is_err() {
                let unanswered = batch.iter().chain(batches.flatten());
                queue.lock().extend(unanswered.copied());
                return;
            }
            batch.iter().for_each(|decided| self.forget_decided(decided));
        }
    }

    fn forget_decided(&self, decided: &Decided) {
        // A later write of the shard may have been decided meanwhile.
        self.decided.remove_if(&(decided.address, decided.shard), |_, version| *version == decided.version);
    }

    /// Sends what waits for all members: before a clean stop, so that nothing is left to resolve.
    pub async fn flush_commits(&self) {
        for member in self.members.iter() {
            self.send_commits(member.index).await;
        }
    }
}
