//! Takes members over as they come: at the start all together, later each one that returns.
//!
//! Decides when enough of them answer to begin, and sets a member in service once what was pending on it is resolved
//! (`engine::resolve`). Does not connect (`members::connect`).

use std::{sync::Arc, time::Duration};

use stripeset_proto::v1;
use tokio::sync::{mpsc, watch};

use super::Phase;
use crate::{
    engine::Engine,
    members::{MemberIndex, Service, connect::Arrival},
};

/// How often what is waited for is looked at again.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Takes members over for as long as [`Takeover::run`] is polled.
pub struct Takeover {
    /// The engine that they serve.
    pub engine: Arc<Engine>,
    /// Told how far the start has come.
    pub phase: watch::Sender<Phase>,
    /// How long all members are waited for before those that answer have to do.
    pub start_patience: Duration,
}

impl Takeover {
    /// Handles arrivals until nobody sends any more.
    pub async fn run(self, mut arrived: mpsc::Receiver<Arrival>) {
        let started = tokio::time::Instant::now();
        let (mut fenced, mut pending) = (Vec::new(), Vec::new());
        // At the start, all members together, so that the recovery rule sees as much as there is to see.
        while !self.enough(started) {
            let arrival = tokio::time::timeout(LOOK_EVERY, arrived.recv()).await;
            match arrival {
                Ok(Some(Arrival::Fenced { member, pending: listed })) => {
                    fenced.push(member);
                    pending.extend(listed);
                }
                Ok(Some(Arrival::Deposed { member, message })) => self.depose(member, &message),
                Ok(None) => return,
                Err(_) => {
                    self.phase.send_replace(Phase::Starting(self.waiting_for()));
                }
            }
        }
        while !self.resolve(&fenced, pending.clone()).await {
            tokio::time::sleep(LOOK_EVERY).await;
        }
        self.phase.send_replace(Phase::Serving);
        tracing::info!("array is served");
        while let Some(arrival) = arrived.recv().await {
            match arrival {
                Arrival::Fenced { member, pending } => {
                    self.resolve(&[member], pending).await;
                }
                Arrival::Deposed { member, message } => self.depose(member, &message),
            }
        }
    }

    fn depose(&self, member: MemberIndex, message: &str) {
        self.engine.depose(format!("member {member} refused to be fenced: {message}"));
    }

    /// Whether all members that are not out are fenced, or time is over and those that are suffice.
    fn enough(&self, started: tokio::time::Instant) -> bool {
        let members = &self.engine.members;
        let in_reach = |member: MemberIndex| {
            let member = members.get(member);
            !member.is_out() && member.service() == Service::Fenced
        };
        if members.iter().all(|member| member.is_out() || in_reach(member.index)) {
            return true;
        }
        let geometry = self.engine.extents.geometry();
        let chunks = self.engine.extents.chunks.all();
        let suffices = chunks.iter().all(|chunk| {
            let at_hand = chunk.slices.iter().filter(|slice| in_reach(slice.member)).count();
            at_hand >= geometry.profile().data_shards()
        });
        let any = members.iter().any(|member| in_reach(member.index));
        started.elapsed() >= self.start_patience && suffices && any
    }

    fn waiting_for(&self) -> String {
        let waiting = self.engine.members.iter().filter(|member| !member.is_out());
        let waiting = waiting.filter_map(|member| match member.service() {
            Service::Absent(reason) => Some(format!("member {} ({reason})", member.index)),
            Service::Fenced | Service::InService => None,
        });
        format!("waiting for {}", waiting.collect::<Vec<_>>().join(", "))
    }

    /// Resolves what is pending and sets the members in service; `false` if one went away meanwhile.
    async fn resolve(&self, fenced: &[MemberIndex], pending: Vec<v1::PendingWrite>) -> bool {
        let stripes = match self.engine.sort_pending(pending) {
            Ok(stripes) => stripes,
            Err(error) => {
                tracing::error!(%error, "pending writes could not be read");
                return false;
            }
        };
        for (stripe, pending) in stripes {
            if let Err(error) = self.engine.resolve_stripe(stripe, pending).await {
                tracing::warn!(%error, ?stripe, "pending writes could not be resolved");
                return false;
            }
        }
        for member in fenced {
            self.engine.members.get(*member).serve();
        }
        true
    }
}
