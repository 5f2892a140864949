//! What a disk does for a group of requests: the reads first, which wait for no sync; then the writes, in the order in
//! which they came; then one sync for all of them; then the answers to the writes.
//!
//! Does not decide which requests make a group, nor where answers go: the disk's thread (`queue`) and the simulation do.

use std::collections::BTreeSet;

use stripeset_stripe::Epoch;
use tokio::time::Instant;
use uuid::Uuid;

use crate::{
    operation::{Operation, Outcome},
    refusal::Refusal,
    store::Store,
};

/// One request of a group.
pub(crate) struct Request<R> {
    pub(crate) disk_id: Uuid,
    pub(crate) epoch: Epoch,
    pub(crate) deadline: Option<Instant>,
    pub(crate) operation: Operation,
    /// What its answer needs to find its way.
    pub(crate) reply: R,
}

/// Carries a group out. `answer` is called once for each request, for writes when they are durable.
pub(crate) fn carry_out<R>(
    store: &mut Store,
    group: impl Iterator<Item = Request<R>>,
    mut answer: impl FnMut(R, Result<Outcome, Refusal>),
) {
    let mut writes = Vec::new();
    for request in group {
        if matches!(request.operation, Operation::Read(_)) {
            let (reply, outcome) = carry_out_one(store, request);
            answer(reply, outcome);
        } else {
            writes.push(request);
        }
    }
    let mut done = Vec::with_capacity(writes.len());
    for request in writes {
        let enters = request.operation.enters();
        match carry_out_one(store, request) {
            (reply, Ok(outcome)) => done.push((reply, enters, outcome)),
            (reply, Err(refusal)) => answer(reply, Err(refusal)),
        }
    }
    let synced = store.sync();
    for (reply, enters, outcome) in done {
        answer(reply, settled(&synced, enters, outcome));
    }
}

/// The answer to a write once the group is synced. One whose bytes found no space was not carried out.
fn settled(
    synced: &Result<BTreeSet<u64>, Refusal>,
    enters: Option<u64>,
    outcome: Outcome,
) -> Result<Outcome, Refusal> {
    match synced {
        Ok(full) if enters.is_some_and(|unit| full.contains(&unit)) => Err(Refusal::Full),
        Ok(_) => Ok(outcome),
        Err(refusal) => Err(refusal.clone()),
    }
}

fn carry_out_one<R>(store: &mut Store, request: Request<R>) -> (R, Result<Outcome, Refusal>) {
    let Request { disk_id, epoch, deadline, operation, reply } = request;
    let expired = deadline.is_some_and(|deadline| Instant::now() >= deadline);
    let refused = if expired { Err(Refusal::Expired) } else { store.check(disk_id, epoch) };
    let outcome = match refused {
        Ok(()) => store.carry_out(operation),
        Err(refusal) => {
            store.count_refusal();
            Err(refusal)
        }
    };
    (reply, outcome)
}
