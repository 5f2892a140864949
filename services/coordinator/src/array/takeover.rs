//! Takes members over as they come: at the start all together, later each one that returns.
//!
//! 1. A start waits until the start rule lets it begin (`stripeset_stripe::start`), and for all members for some time.
//! 2. A label of this epoch is in force before anything is resolved: who did not answer is out by then.
//! 3. Nothing is served before every write that was pending is resolved on the members that answer.
//! 4. A member that comes later serves once what is pending on it is resolved, where it counts. What it is out of is taken
//!    back afterwards (`array::rejoin`).
//! 5. A disk whose label is older than the one in force, by which it is in sync, is an older copy of itself: it goes out.
//!
//! Does not connect (`members::connect`), nor decide what becomes of a pending write (`engine::resolve`).

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use stripeset_proto::{convert, v1};
use stripeset_stripe::{
    geometry::{ChunkIndex, Row, StripeAddress},
    start::{Answer, Refusal, Start, start},
};
use tokio::{
    sync::{mpsc, watch},
    time::Instant,
};

use super::Phase;
use crate::{
    engine::Engine,
    members::{
        MemberIndex, Service,
        connect::{Arrival, FencedDisk},
        labels::{ReviseError, groups},
    },
};

/// How often what is waited for is looked at again.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Members that are fenced, with what their disks say.
type Fenced = BTreeMap<MemberIndex, FencedDisk>;

/// Takes members over for as long as [`Takeover::run`] is polled.
pub struct Takeover {
    /// The engine that they serve.
    pub engine: Arc<Engine>,
    /// Told how far the start has come.
    pub phase: watch::Sender<Phase>,
    /// How long all members are waited for before those that answer have to do.
    pub start_patience: Duration,
    /// Begin also where members that do not answer may hold newer data.
    pub forced: bool,
}

impl Takeover {
    /// Handles arrivals until nobody sends any more.
    pub async fn run(self, mut arrived: mpsc::Receiver<Arrival>) {
        let began = Instant::now();
        let mut fenced = Fenced::new();
        // At the start, all members together, so that the rules see as much as there is to see.
        loop {
            match tokio::time::timeout(LOOK_EVERY, arrived.recv()).await {
                Ok(Some(arrival)) => self.hear(arrival, &mut fenced),
                Ok(None) => return,
                Err(_) => {}
            }
            let here: Fenced = fenced
                .iter()
                .filter(|(index, _)| self.is_fenced(**index))
                .map(|(i, d)| (*i, d.clone()))
                .collect();
            let Some(start) = self.start(&here, began.elapsed() >= self.start_patience) else { continue };
            // The rule has been passed, in this epoch: what is missing now is members that take the label.
            while !self.begin(start.clone(), &here).await {
                tokio::time::sleep(LOOK_EVERY).await;
                while let Ok(arrival) = arrived.try_recv() {
                    self.hear(arrival, &mut fenced);
                }
            }
            break;
        }
        let pending = fenced.values().map(|disk| disk.pending.len()).sum::<usize>();
        let members: Vec<(MemberIndex, FencedDisk)> = fenced.into_iter().collect();
        let stripes = loop {
            match self.resolve(&members).await {
                Some(stripes) => break stripes,
                None => tokio::time::sleep(LOOK_EVERY).await,
            }
        };
        self.engine.versions().set_found(None);
        self.phase.send_replace(Phase::Serving);
        let millis = began.elapsed().as_millis() as u64;
        tracing::info!(pending, stripes, millis, "array is served");
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
            Arrival::Fenced { member, disk } => {
                fenced.insert(member, disk);
            }
            Arrival::Deposed { member, message } => {
                self.engine.depose(format!("member {member} refused to be fenced: {message}"));
            }
        }
    }

    async fn resolve_each(&self, fenced: &mut Fenced) {
        for (member, disk) in std::mem::take(fenced) {
            // One that has gone away again lists anew what is pending when it comes back.
            if !self.is_fenced(member) {
                continue;
            }
            if !self.is_current(member, &disk).await
                || self.resolve(&[(member, disk.clone())]).await.is_none()
            {
                fenced.insert(member, disk);
            }
        }
    }

    fn is_fenced(&self, index: MemberIndex) -> bool {
        self.engine.members.get(index).service() == Service::Fenced
    }

    /// How to begin with those that are here, if that may be, and need not wait for others.
    fn start(&self, here: &Fenced, patience_is_over: bool) -> Option<Start> {
        let members = &self.engine.members;
        let answers: Vec<Answer> = here
            .values()
            .map(|disk| Answer {
                disk_id: disk.disk_id,
                label: disk.label.clone(),
                fenced_by: disk.fenced_by.clone(),
            })
            .collect();
        let data_shards = self.engine.extents.geometry().profile().data_shards();
        let groups = groups(members, &self.engine.extents.chunks, data_shards);
        // Force is for when waiting has not helped.
        let forced = self.forced && patience_is_over;
        match start(&answers, &members.labels.witness(), &groups, forced) {
            Ok(start) if start.silent.is_empty() || patience_is_over => Some(start),
            Ok(start) => {
                self.say_starting(&format!("waiting for {}", self.names(&start.silent)));
                None
            }
            Err(refusal) => {
                self.say_starting(&match refusal {
                    Refusal::NoLabel => "no member answers yet".to_owned(),
                    Refusal::TooFew { missing, .. } => format!("waiting for {}", self.names(&missing)),
                    Refusal::MayBeOld { missing } => format!(
                        "{} may hold newer data than the members that answer; bring one of them back, or, if they are lost, \
                         start the coordinator with --force: what was written without those that answer is lost then",
                        self.names(&missing)
                    ),
                });
                None
            }
        }
    }

    fn say_starting(&self, what: &str) {
        self.phase.send_if_modified(|phase| {
            let new = Phase::Starting(what.to_owned());
            let changed = *phase != new;
            if changed {
                tracing::info!(what, "array is starting");
                *phase = new;
            }
            changed
        });
    }

    fn names(&self, members: &[usize]) -> String {
        let name = |index: &usize| {
            let member = self.engine.members.get(MemberIndex(*index as u32));
            match member.service() {
                Service::Absent(reason) => format!("member {index} ({reason})"),
                Service::Fenced | Service::InService => format!("member {index}"),
            }
        };
        members.iter().map(name).collect::<Vec<_>>().join(", ")
    }

    /// The label of this epoch; whether it is in force.
    async fn begin(&self, start: Start, here: &Fenced) -> bool {
        let counting = start.label.in_sync().map(|index| MemberIndex(index as u32));
        let pending = counting.filter_map(|index| here.get(&index)).flat_map(|disk| &disk.pending);
        self.engine.versions().set_found(pending.map(|write| convert::version(write.version)).min());
        let begun = self.engine.members.begin(start, &self.engine.extents.chunks).await;
        match &begun {
            Ok(()) => {}
            Err(ReviseError::Deposed(message)) => self.engine.depose(message.clone()),
            Err(error) => self.say_starting(&error.to_string()),
        }
        begun.is_ok()
    }

    /// Whether the disk of a member that returns is what it was; if not, the member is out from now on. `false` where that
    /// cannot be said yet.
    async fn is_current(&self, index: MemberIndex, disk: &FencedDisk) -> bool {
        let members = &self.engine.members;
        let Some(label) = members.labels.in_force().await else { return false };
        let counts = label.members[index.0 as usize].out.is_none();
        if !counts || disk.revision() >= label.revision {
            return true;
        }
        let Some(own) = &disk.label else { return false };
        match members.mark_older(index, own, &self.engine.extents.chunks).await {
            Ok(()) => true,
            Err(error) => {
                tracing::error!(member = index.0, %error, "an older copy of a disk stands there, and is needed");
                false
            }
        }
    }

    /// Resolves what is pending where the members count, and sets them in service; the number of stripes, or `None` if one
    /// went away meanwhile.
    async fn resolve(&self, fenced: &[(MemberIndex, FencedDisk)]) -> Option<usize> {
        let counting = |(index, disk): &(MemberIndex, FencedDisk)| -> Vec<v1::PendingWrite> {
            let member = self.engine.members.get(*index);
            let counts = |write: &v1::PendingWrite| {
                write.identity.as_ref().is_none_or(|identity| {
                    let chunk = ChunkIndex(identity.chunk);
                    member.counts_at(StripeAddress { chunk, row: Row(identity.stripe) })
                })
            };
            disk.pending.iter().filter(|write| counts(write)).cloned().collect()
        };
        let stripes = match self.engine.sort_pending(fenced.iter().flat_map(counting).collect()) {
            Ok(stripes) => stripes,
            Err(error) => {
                tracing::error!(%error, "pending writes could not be read");
                return None;
            }
        };
        let count = stripes.len();
        for (stripe, pending) in stripes {
            if let Err(error) = self.engine.resolve_stripe(stripe, pending).await {
                tracing::warn!(%error, ?stripe, "pending writes could not be resolved");
                return None;
            }
        }
        for (member, _) in fenced {
            self.engine.members.get(*member).serve();
        }
        Some(count)
    }
}
