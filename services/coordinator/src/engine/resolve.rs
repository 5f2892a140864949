//! Resolution of writes that were pending on a member when it was fenced: looks at the stripe on all members in reach,
//! applies the recovery rule, and carries it out everywhere, lowest version first.

use std::{collections::BTreeMap, sync::Arc};

use stripeset_proto::{
    Error, ErrorKind,
    convert::{Identity, version},
    v1::{self, UnitState, session_request::Operation},
};
use stripeset_stripe::{
    Version,
    geometry::{Shard, StripeAddress},
    resolve::{Decision, ShardView, resolve},
};

use super::Engine;
use crate::{extents::StripeRef, members::MemberIndex};

/// Pending writes of one stripe: versions and the shards that take part in each.
pub type PendingWrites = BTreeMap<Version, Vec<Shard>>;

/// Pending writes by stripe.
pub type PendingStripes = BTreeMap<StripeAddress, PendingWrites>;

impl Engine {
    /// Sorts what members listed when they were fenced. Writes to chunks that the metadata does not know were never
    /// acknowledged, and their units are in nobody's map: they are left as they are.
    pub fn sort_pending(&self, listed: Vec<v1::PendingWrite>) -> Result<PendingStripes, Error> {
        let mut stripes = PendingStripes::new();
        for write in listed {
            let Some(identity) = write.identity else {
                return Err(Error::invalid("an agent listed a pending write without an identity"));
            };
            let identity = Identity::try_from(identity)?;
            let chunk = self.extents.chunks.get(identity.chunk);
            if chunk.is_none_or(|chunk| chunk.incarnation != identity.incarnation) {
                tracing::warn!(?identity, "a write is pending for a chunk that is not there");
                continue;
            }
            let stripe = StripeAddress { chunk: identity.chunk, row: identity.row };
            let participants = write.participants.iter().map(|shard| Shard(*shard as u8)).collect();
            stripes.entry(stripe).or_default().insert(version(write.version), participants);
        }
        Ok(stripes)
    }

    /// Resolves the pending writes of one stripe. If it fails, a member has gone away again; what is pending is listed
    /// anew when it comes back.
    pub async fn resolve_stripe(
        self: &Arc<Self>,
        address: StripeAddress,
        pending: PendingWrites,
    ) -> Result<(), Error> {
        let stripe = self.extents.stripe(address);
        let mut owned = self.own(&stripe).await;
        owned.begin_without_pages();
        let mut views = Vec::new();
        for shard in stripe.shards() {
            if let Some(view) = self.view(&stripe, shard).await? {
                views.push(view);
            }
        }
        for (version, participants) in pending {
            let decision = resolve(version, &participants, &views);
            tracing::info!(stripe = ?address, %version, ?decision, "pending write resolved");
            for shard in &participants {
                let Some(view) = views.iter_mut().find(|view| view.shard == *shard) else { continue };
                self.carry_out(&stripe, *shard, version, decision).await?;
                if view.pending == Some(version) {
                    view.pending = None;
                    if decision == Decision::Commit {
                        view.committed = version;
                    }
                }
            }
        }
        Ok(())
    }

    /// What a member in reach shows of its shard; `None` if it is out of reach, or out, or the record is damaged.
    async fn view(&self, stripe: &StripeRef, shard: Shard) -> Result<Option<ShardView>, Error> {
        let place = stripe.place(shard);
        let member = self.members.get(place.member);
        let Some(units) = member.link.units().filter(|_| member.counts_at(stripe.address())) else {
            return Ok(None);
        };
        let Some(record) = units.record(place.unit).await? else {
            let message = format!("member {} does not show unit {}", place.member, place.unit);
            return Err(Error::new(ErrorKind::Internal, message));
        };
        if record.state() == UnitState::Damaged {
            // It shows nothing, and that is not a sign that the write was not prepared there.
            return Ok(None);
        }
        let same = record.identity.map(Identity::try_from).transpose()? == Some(place.identity);
        let pending = (record.state() == UnitState::Pending).then(|| version(record.pending_version));
        let committed = if same { version(record.committed_version) } else { Version::NONE };
        Ok(Some(ShardView { shard, committed, pending: pending.filter(|_| same) }))
    }

    async fn carry_out(
        &self,
        stripe: &StripeRef,
        shard: Shard,
        version: Version,
        decision: Decision,
    ) -> Result<(), Error> {
        let place = stripe.place(shard);
        let writes = vec![v1::UnitVersion { unit: place.unit, version: Some(version.into()) }];
        let operation = match decision {
            Decision::Commit => Operation::Commit(v1::CommitOperation { writes }),
            Decision::Abort => Operation::Abort(v1::AbortOperation { writes }),
        };
        match self.members.get(place.member).link.call(operation, 0).await {
            Ok(_) => Ok(()),
            Err(error) => Err(away(place.member, &error.to_string())),
        }
    }
}

fn away(member: MemberIndex, what: &str) -> Error {
    Error::new(ErrorKind::Unavailable, format!("member {member}: {what}"))
}
