//! Deciding a write: prepare everywhere, in parallel; decided once every participant that is not out has prepared; commit
//! later. What cannot be decided is aborted everywhere, and the stripe stays held until that is answered.

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;
use stripeset_proto::v1::{self, RefusalKind, session_request::Operation};
use stripeset_stripe::{Version, geometry::Shard};

use super::{Engine, change::Operations, commit::Decided, owned::Owned, steps::Step, write::WriteError};
use crate::{
    extents::StripeRef,
    members::{ErrorCount, MemberIndex, Service, labels::ReviseError, link::CallError},
    versions::WriteVersion,
};

/// How long a member may take to answer that a write is taken back before it is marked out.
const ABORT_PATIENCE: Duration = Duration::from_secs(5);

/// Pause before an abort that was not answered is repeated.
const ABORT_PAUSE: Duration = Duration::from_millis(500);

impl Engine {
    /// Prepares everywhere and decides. On success the write is decided, and the stripe still held.
    pub(super) async fn decide(
        self: &Arc<Self>,
        owned: Owned,
        stripe: &StripeRef,
        write: WriteVersion,
        operations: Operations,
    ) -> Result<Owned, WriteError> {
        // Not waited for with the lock held: who resolves may need it.
        if !owned.gave_up_waiting() && self.is_being_resolved(stripe) {
            return Err(WriteError::BeingResolved);
        }
        let is_partial = operations.iter().any(|(_, operation)| !operation.fresh);
        let shards: Vec<Shard> = operations.iter().map(|(shard, _)| *shard).collect();
        let prepares =
            operations.into_iter().map(|(shard, operation)| self.prepare(stripe, shard, operation));
        let outcomes = join_all(prepares).await;
        let (mut failed, mut refused) = (Vec::new(), None);
        for (shard, outcome) in shards.iter().zip(outcomes) {
            let Err(error) = outcome else { continue };
            let member = self.member_of(stripe, *shard);
            match error {
                CallError::Refused(refusal) if refusal.kind == RefusalKind::Fenced => {
                    self.depose(format!("member {} refused this epoch: {}", member.index, refusal.message));
                    return Err(WriteError::Deposed);
                }
                CallError::Refused(refusal) if !means_failed(refusal.kind) => {
                    refused = Some(WriteError::Refused { member: member.index, refusal });
                }
                error => {
                    member.count(ErrorCount::Write, 1);
                    failed.push((member.index, format!("a write failed there: {error}")));
                }
            }
        }
        if is_partial {
            self.steps.pass(Step::RmwPrepared).await;
        }
        if let Some(refused) = refused {
            return Err(self.abort(owned, stripe, write, shards, refused).await);
        }
        if !failed.is_empty()
            && let Err(error) = self.mark_out(&failed).await
        {
            if let ReviseError::Deposed(_) = error {
                return Err(WriteError::Deposed);
            }
            let what = failed.iter().map(|(member, reason)| format!("member {member}: {reason}"));
            let failed = what.collect::<Vec<_>>().join("; ");
            let error = WriteError::TooFewMembers { failed, source: error };
            return Err(self.abort(owned, stripe, write, shards, error).await);
        }
        self.decided(stripe, write.version(), &shards);
        Ok(owned)
    }

    /// Marks members out that failed. Whoever finds that another coordinator rules is deposed.
    async fn mark_out(&self, failed: &[(MemberIndex, String)]) -> Result<(), ReviseError> {
        let marked = self.members.mark_out(failed, &self.extents.chunks).await;
        if let Err(ReviseError::Deposed(message)) = &marked {
            self.depose(format!("a member refused this epoch: {message}"));
        }
        marked
    }

    /// What was sent to a member while it counted may still arrive there, although the write was taken back.
    fn note_missed(&self, stripe: &StripeRef, shards: &[Shard]) {
        let members = shards.iter().map(|shard| stripe.place(*shard).member);
        for member in members.filter(|member| !self.members.get(*member).counts_at(stripe.address())) {
            self.rejoins.missed(member, stripe.address());
        }
    }

    fn decided(&self, stripe: &StripeRef, version: Version, shards: &[Shard]) {
        let address = stripe.address();
        for shard in shards {
            let place = stripe.place(*shard);
            if !self.members.get(place.member).counts_at(address) {
                self.rejoins.missed(place.member, address);
                continue;
            }
            self.decided.insert((address, *shard), version);
            self.commits.push(place.member, Decided { address, shard: *shard, unit: place.unit, version });
        }
    }

    async fn prepare(
        &self,
        stripe: &StripeRef,
        shard: Shard,
        operation: v1::PrepareOperation,
    ) -> Result<(), CallError> {
        let member = self.member_of(stripe, shard);
        if !member.counts_at(stripe.address()) {
            return Ok(());
        }
        if member.service() != Service::InService {
            return Err(CallError::Away);
        }
        member.link.call(Operation::Prepare(operation), 0).await.map(|_| ())
    }

    /// Takes an undecided write back everywhere. A member that does not answer that in time is marked out; where that is
    /// not possible the stripe stays locked until it does answer, and the error says that the outcome is open.
    async fn abort(
        self: &Arc<Self>,
        owned: Owned,
        stripe: &StripeRef,
        write: WriteVersion,
        shards: Vec<Shard>,
        error: WriteError,
    ) -> WriteError {
        let version = write.version();
        let all = shards.clone();
        let limit = tokio::time::Instant::now() + ABORT_PATIENCE;
        let mut silent = self.abort_once(stripe, version, shards).await;
        while !silent.is_empty() && tokio::time::Instant::now() < limit {
            tokio::time::sleep(ABORT_PAUSE).await;
            silent = self.abort_once(stripe, version, silent).await;
        }
        if silent.is_empty() {
            self.note_missed(stripe, &all);
            return error;
        }
        let reason = "it did not answer when a write that may be there was taken back";
        let failed: Vec<_> =
            silent.iter().map(|shard| (stripe.place(*shard).member, reason.to_owned())).collect();
        if self.mark_out(&failed).await.is_ok() {
            self.note_missed(stripe, &all);
            return error;
        }
        let what = error.to_string();
        let (engine, stripe) = (self.clone(), stripe.clone());
        tokio::spawn(async move {
            while !silent.is_empty() && engine.deposed.borrow().is_none() {
                tokio::time::sleep(ABORT_PAUSE).await;
                silent = engine.abort_once(&stripe, version, silent).await;
                // Whom the array could not do without then it may be able to do without by now.
                if !silent.is_empty() && engine.mark_out(&failed).await.is_ok() {
                    break;
                }
            }
            engine.note_missed(&stripe, &all);
            drop((owned, write));
        });
        WriteError::Open { failed: what }
    }

    /// Sends Abort to the members of the shards; those that did not answer.
    async fn abort_once(&self, stripe: &StripeRef, version: Version, shards: Vec<Shard>) -> Vec<Shard> {
        let aborts = shards.into_iter().map(|shard| async move {
            let place = stripe.place(shard);
            let member = self.members.get(place.member);
            let writes = vec![v1::UnitVersion { unit: place.unit, version: Some(version.into()) }];
            let abort = Operation::Abort(v1::AbortOperation { writes });
            let done = !member.counts_at(stripe.address()) || member.link.call(abort, 0).await.is_ok();
            (!done).then_some(shard)
        });
        join_all(aborts).await.into_iter().flatten().collect()
    }
}

/// Refusals that say that the member cannot take writes at all.
fn means_failed(kind: RefusalKind) -> bool {
    matches!(kind, RefusalKind::DiskFailed | RefusalKind::WrongDisk | RefusalKind::NotFenced)
}
