//! Takes members over as they come: at the start all together, later each one that returns.
//!
//! Decides when enough of them answer to begin, and sets a member in service once what was pending on it is resolved
//! (`engine::resolve`). Does not connect (`members::connect`).

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use stripeset_proto::v1;
use tokio::sync::{mpsc, watch};

use super::Phase;
use crate::{
    engine::Engine,
    members::{MemberIndex, Service, connect::Arrival},
};

/// How often what is waited for is looked at again.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Members that are fenced, with what is pending on each.
type Fenced = BTreeMap<MemberIndex, Vec<v1::PendingWrite>>;

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
        let mut fenced = Fenced::new();
        // At the start, all members together, so that the recovery rule sees as much as there is to see.
        while !self.enough(started, &fenced) {
            match tokio::time::timeout(LOOK_EVERY, arrived.recv()).await {
                Ok(Some(arrival)) => self.hear(arrival, &mut fenced),
                Ok(None) => return,
                Err(_) => {
                    self.phase.send_replace(Phase::Starting(self.waiting_for()));
                }
            }
        }
        let members: Vec<MemberIndex> = fenced.keys().copied().collect();
        let pending: Vec<v1::PendingWrite> = fenced.into_values().flatten().collect();
        while !self.resolve(&members, pending.clone()).await {
            tokio::time::sleep(LOOK_EVERY).await;
        }
        self.phase.send_replace(Phase::Serving);
        tracing::info!("array is served");
        self.take_back(arrived).await;
    }

    /// Takes members back that return, one by one.
    async fn take_back(&self, mut arrived: mpsc::Receiver<Arrival>) {
        let mut fenced = Fenced::new();
        loop {
            let arrival = match fenced.is_empty() {
                true => arrived.recv().await,
                // What could not be resolved, because another member went away, is tried again.
                false => match tokio::time::timeout(LOOK_EVERY, arrived.recv()).await {
                    Ok(arrival) => arrival,
                    Err(_) => {
                        self.resolve_each(&mut fenced).await;
                        continue;
                    }
                },
            };
            let Some(arrival) = arrival else { return };
            self.hear(arrival, &mut fenced);
            self.resolve_each(&mut fenced).await;
        }
    }

    fn hear(&self, arrival: Arrival, fenced: &mut Fenced) {
        match arrival {
            Arrival::Fenced { member, pending } => {
                fenced.insert(member, pending);
            }
            Arrival::Deposed { member, message } => self.depose(member, &message),
        }
    }

    async fn resolve_each(&self, fenced: &mut Fenced) {
        for (member, pending) in std::mem::take(fenced) {
            // One that has gone away again lists anew what is pending when it comes back.
            let still = self.engine.members.get(member).service() == Service::Fenced;
            if still && !self.resolve(&[member], pending.clone()).await {
                fenced.insert(member, pending);
            }
        }
    }

    fn depose(&self, member: MemberIndex, message: &str) {
        self.engine.depose(format!("member {member} refused to be fenced: {message}"));
    }

    /// Whether all members that are not out are fenced, or time is over and those that are suffice. One counts once its
    /// arrival was heard: what is pending on it has to be known.
    fn enough(&self, started: tokio::time::Instant, fenced: &Fenced) -> bool {
        let members = &self.engine.members;
        let in_reach = |index: MemberIndex| {
            let member = members.get(index);
            !member.is_out() && member.service() == Service::Fenced && fenced.contains_key(&index)
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
