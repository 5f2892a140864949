//! Agents on disks in memory, and a coordinator before them that can die: the real stores, the real engine, the real
//! takeover, in one thread under a clock that jumps to the next event.
//!
//! A coordinator lives on a runtime of its own, for the length of one [`Cluster::run`]. When that returns the runtime is
//! dropped, with every task on it, as a process that is killed: nothing is flushed, nothing is said to anybody.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use stripeset_agent::simulation::{SimulatedAgent, SimulationError};
use stripeset_coordinator::{
    array::{Phase, takeover::Takeover},
    engine::Engine,
    extents::{Extents, StripeRef, pins::Pins},
    members::{
        ErrorCounts, MemberIndex, MemberRecord, Members, Service,
        connect::Arrival,
        link::{self, Units},
    },
    meta::{ArrayRecord, Extent, Meta, MetaError},
    versions::VersionSequence,
};
use stripeset_proto::{Error, convert::uuid_bytes, v1};
use stripeset_stripe::{
    Epoch, Profile, SECTOR_BYTES, Version,
    geometry::{Geometry, Shard},
};
use thiserror::Error;
use tokio::{
    runtime::{Builder, Runtime},
    sync::{mpsc, watch},
};
use tokio_stream::{StreamExt, wrappers::ReceiverStream};
use uuid::Uuid;

use crate::{event, network::Line, trace::Trace};

/// Answers on their way to one link.
const ANSWERS_MAX: usize = 1024;

/// How long a start waits for all members.
const START_PATIENCE: Duration = Duration::from_secs(2);

/// How long a line waits before it is opened again.
const RECONNECT_PAUSE: Duration = Duration::from_millis(100);

/// How often an agent lets committed writes go home.
const AGENT_TICK: Duration = Duration::from_millis(250);

/// What a cluster is made of.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Profile of all chunks.
    pub profile: Profile,
    /// Bytes of a stripe unit.
    pub unit_bytes: u32,
    /// Bytes of a slice.
    pub slice_bytes: u64,
    /// Bytes of each disk.
    pub disk_bytes: usize,
    /// Chunks that the array may grow to, if the disks have room for them.
    pub chunks_max: u64,
    /// Decides what messages take, and what disks do.
    pub seed: u64,
}

impl Settings {
    /// Small stripes of four sectors a shard, two chunks of four stripes.
    pub fn small(profile: Profile, seed: u64) -> Self {
        Settings {
            profile,
            unit_bytes: 16 * 1024,
            slice_bytes: 64 * 1024,
            disk_bytes: 2 * 1024 * 1024,
            chunks_max: 2,
            seed,
        }
    }
}

/// Why there is no cluster.
#[derive(Debug, Error)]
pub enum ClusterError {
    /// An agent did not do its part.
    #[error(transparent)]
    Agent(#[from] SimulationError),
    /// The metadata did not.
    #[error(transparent)]
    Meta(#[from] MetaError),
    /// Lengths that do not fit each other.
    #[error(transparent)]
    Geometry(#[from] stripeset_stripe::geometry::GeometryError),
    /// What is stored does not make sense.
    #[error(transparent)]
    Stored(#[from] stripeset_coordinator::extents::MapError),
    /// The coordinator did not come to serve.
    #[error("the coordinator does not serve: {0}")]
    Start(String),
    /// The process could not make a runtime.
    #[error("no runtime: {0}")]
    Runtime(#[from] std::io::Error),
}

/// The agents, the lines to them, and what the coordinator keeps.
pub struct Cluster {
    settings: Settings,
    geometry: Geometry,
    lines: Vec<Arc<Line>>,
    meta: Option<Meta>,
    epochs: u64,
    trace: Trace,
}

/// A coordinator that lives.
pub struct Coordinator {
    /// The engine.
    pub engine: Arc<Engine>,
    /// Readers of older maps.
    pub pins: Pins,
    /// Where its versions come from.
    pub versions: Arc<VersionSequence>,
    meta: Meta,
}

impl Cluster {
    /// Blank disks, joined to one array.
    pub fn new(settings: Settings, trace: Trace) -> Result<Cluster, ClusterError> {
        let geometry = Geometry::new(settings.profile, settings.unit_bytes, settings.slice_bytes)?;
        let count = settings.profile.members();
        let disk_id = |member: usize| Uuid::from_u128(0xd15c_0000 + member as u128);
        let members = (0..count).map(|member| v1::LabelMember {
            disk_id: uuid_bytes(disk_id(member)),
            address: format!("agent-{member}"),
        });
        let label = v1::Label {
            array_id: uuid_bytes(Uuid::from_u128(0xa77a)),
            revision: 1,
            member: 0,
            unit_bytes: settings.unit_bytes,
            slice_bytes: settings.slice_bytes,
            members: members.collect(),
            shards_max: settings.profile.shards() as u32,
            data_shards_max: settings.profile.data_shards() as u32,
        };
        let mut lines = Vec::with_capacity(count);
        let mut records = Vec::with_capacity(count);
        for (member, index) in (0..count).zip(0u32..) {
            let mut agent = SimulatedAgent::new(disk_id(member), settings.disk_bytes)?;
            let slices = agent.join(v1::Label { member: index, ..label.clone() })?;
            let seed = settings.seed ^ u64::from(index + 1).wrapping_mul(0x9e37_79b9);
            lines.push(Arc::new(Line::new(index, Arc::new(Mutex::new(agent)), seed, trace.clone())));
            let per_member = (settings.profile.shards() / settings.profile.members()) as u64;
            records.push(MemberRecord {
                disk_id: disk_id(member),
                address: format!("agent-{member}"),
                slices: slices.min(settings.chunks_max * per_member),
                disk_bytes: settings.disk_bytes as u64,
                out: None,
                errors: ErrorCounts::default(),
            });
        }
        let array = ArrayRecord {
            array_id: Uuid::from_u128(0xa77a),
            data_profile: settings.profile.to_string(),
            metadata_profile: settings.profile.to_string(),
            unit_bytes: settings.unit_bytes,
            slice_bytes: settings.slice_bytes,
        };
        let meta = runtime()?.block_on(async {
            let meta = Meta::in_memory()?;
            meta.create_array(array, records).await?;
            Ok::<_, MetaError>(meta)
        })?;
        Ok(Cluster { settings, geometry, lines, meta: Some(meta), epochs: 0, trace })
    }

    /// Lengths and profile.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// What it was made of.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// What happened so far.
    pub fn trace(&self) -> &Trace {
        &self.trace
    }

    /// The lines, by member.
    pub fn lines(&self) -> &[Arc<Line>] {
        &self.lines
    }

    /// Runs a coordinator for as long as `life` takes, and then kills it. `extents` are in use from the start: what the
    /// maps refer to.
    pub fn run<T>(
        &mut self,
        extents: &[Extent],
        life: impl AsyncFnOnce(&Cluster, &Coordinator) -> T,
    ) -> Result<T, ClusterError> {
        let runtime = runtime()?;
        let before = self.meta.take().ok_or_else(|| ClusterError::Start("no metadata".to_owned()))?;
        self.epochs += 1;
        let (meta, result) = runtime.block_on(async {
            let meta = before.after_crash();
            let started = self.start(meta.clone(), extents).await;
            match started {
                Ok(coordinator) => {
                    event!(self.trace, "coordinator {} serves", self.epochs);
                    let lived = life(self, &coordinator).await;
                    event!(self.trace, "coordinator {} dies", self.epochs);
                    (meta, Ok(lived))
                }
                Err(error) => (meta, Err(error)),
            }
        });
        drop(runtime);
        self.meta = Some(meta);
        result
    }

    async fn start(&self, meta: Meta, extents: &[Extent]) -> Result<Coordinator, ClusterError> {
        let epoch = meta.claim_epoch(0xc0_0000 + self.epochs, 0).await?;
        let versions = Arc::new(VersionSequence::new(epoch));
        let snapshot = meta.snapshot()?;
        let members = Arc::new(Members::new(snapshot.members()?, epoch));
        let space = Extents::new(self.geometry, meta.clone(), members.clone(), versions.clone());
        for chunk in snapshot.chunks()? {
            space.load_chunk(&chunk)?;
        }
        for extent in extents {
            space.load_extent(*extent)?;
        }
        let pins = Pins::new(snapshot.commit()?);
        let engine = Engine::new(members, Arc::new(space), meta.clone(), versions.clone());
        let (arrivals, arrived) = mpsc::channel(64);
        for line in &self.lines {
            tokio::spawn(keep_line(line.clone(), engine.clone(), epoch, arrivals.clone()));
            tokio::spawn(tick(line.clone()));
        }
        let phase = watch::Sender::new(Phase::Starting("members have not answered yet".to_owned()));
        let mut started = phase.subscribe();
        tokio::spawn(Takeover { engine: engine.clone(), phase, start_patience: START_PATIENCE }.run(arrived));
        let serving = started.wait_for(|phase| *phase == Phase::Serving);
        match tokio::time::timeout(Duration::from_secs(60), serving).await {
            Ok(Ok(_)) => Ok(Coordinator { engine, pins, versions, meta }),
            Ok(Err(closed)) => Err(ClusterError::Start(closed.to_string())),
            Err(_) => {
                let services: Vec<_> = engine.members.iter().map(|member| member.service()).collect();
                Err(ClusterError::Start(format!("not within a minute; {services:?}")))
            }
        }
    }
}

impl Coordinator {
    /// Lets everything that was decided go home: commits are sent, and agents apply them. For looking at disks.
    pub async fn settle(&self, cluster: &Cluster) -> Result<(), SimulationError> {
        self.engine.flush_commits().await;
        for member in self.engine.members.iter().filter(|member| member.usable()) {
            cluster.lines[member.index.0 as usize].agent().settle()?;
        }
        Ok(())
    }

    /// Waits until every member that is not out serves.
    pub async fn all_in_service(&self) {
        let limit = tokio::time::Instant::now() + Duration::from_secs(120);
        while !self.engine.members.iter().all(|member| member.is_out() || member.usable()) {
            assert!(tokio::time::Instant::now() < limit, "a member does not come back into service");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Marks a member out, as an operator would.
    pub async fn mark_out(&self, member: u32) -> Result<(), stripeset_coordinator::members::MarkOutError> {
        let failed = [(MemberIndex(member), "taken out".to_owned())];
        self.engine.members.mark_out(&failed, &self.engine.extents.chunks, &self.meta).await
    }

    /// Whether a shard has the write of this version, committed or not.
    pub fn took_part(&self, cluster: &Cluster, stripe: &StripeRef, shard: usize, version: Version) -> bool {
        let (member, unit) = self.place(stripe, shard);
        let record = cluster.lines[member].agent().unit(unit);
        let is = |found: Option<v1::Version>| found.map(Version::from) == Some(version);
        record.is_ok_and(|record| is(record.committed_version) || is(record.pending_version))
    }

    /// Member and unit of a shard.
    pub fn place(&self, stripe: &StripeRef, shard: usize) -> (usize, u64) {
        let place = stripe.place(Shard(shard as u8));
        (place.member.0 as usize, place.unit)
    }

    /// Rewrites the bytes of one sector of a shard, and its checksum with them, behind everybody's back. What the parities
    /// know of it stays. Only for a stripe that nobody is writing.
    pub fn forge(&self, cluster: &Cluster, stripe: &StripeRef, shard: usize, sector: usize) -> bool {
        let (member, unit) = self.place(stripe, shard);
        let mut agent = cluster.lines[member].agent();
        let (Ok(()), Ok(record)) = (agent.settle(), agent.unit(unit)) else { return false };
        let known = record.state() == v1::UnitState::Committed
            && record.written.get(sector / 8).is_some_and(|bits| bits >> (sector % 8) & 1 == 1);
        if !known {
            return false;
        }
        let mut runs = Vec::new();
        for (index, checksum) in record.checksums.iter().enumerate() {
            if record.written[index / 8] >> (index % 8) & 1 == 0 {
                continue;
            }
            let Ok(mut bytes) = agent.raw_sector(unit, index) else { return false };
            let mut checksum = *checksum;
            if index == sector {
                bytes[7..19].iter_mut().for_each(|byte| *byte ^= 0x55);
                checksum = stripeset_stripe::checksum::of_sector(&bytes);
            }
            runs.push(v1::SectorRun {
                first_sector: index as u32,
                data: bytes.into(),
                checksums: vec![checksum],
            });
        }
        let rebuild = v1::RebuildOperation {
            unit,
            identity: record.identity,
            token: Some(self.versions.take().into()),
            version: record.committed_version,
            runs,
            lost: vec![0; record.written.len()].into(),
            summary: record.summary,
        };
        let request = v1::SessionRequest {
            request_id: u64::MAX,
            disk_id: uuid_bytes(agent.disk_id()),
            epoch: Some(self.versions.epoch().into()),
            timeout_millis: 0,
            operation: Some(v1::session_request::Operation::Rebuild(rebuild)),
        };
        let answers = agent.handle(vec![request]);
        matches!(
            answers.first().and_then(|answer| answer.outcome.as_ref()),
            Some(v1::session_response::Outcome::Rebuild(_))
        )
    }

    /// Changes a bit of one sector of a shard on the medium, under its checksum. What is committed goes home first: bytes
    /// that are about to be written over nobody would miss.
    pub fn flip(&self, cluster: &Cluster, stripe: &StripeRef, shard: usize, sector: usize) -> bool {
        let (member, unit) = self.place(stripe, shard);
        let mut agent = cluster.lines[member].agent();
        let (Ok(()), Ok(offset)) = (agent.settle(), agent.disk_offset(unit, sector)) else { return false };
        agent.flip(offset + 100);
        true
    }

    /// Bytes of one sector of a shard as they are on the medium.
    pub fn raw_sector(
        &self,
        cluster: &Cluster,
        stripe: &StripeRef,
        shard: usize,
        sector: usize,
    ) -> Option<Vec<u8>> {
        let (member, unit) = self.place(stripe, shard);
        let bytes = cluster.lines[member].agent().raw_sector(unit, sector).ok();
        bytes.filter(|bytes| bytes.len() == SECTOR_BYTES)
    }
}

fn runtime() -> Result<Runtime, std::io::Error> {
    Builder::new_current_thread().enable_time().start_paused(true).build()
}

/// Keeps a member connected over its line.
async fn keep_line(line: Arc<Line>, engine: Arc<Engine>, epoch: Epoch, arrivals: mpsc::Sender<Arrival>) {
    let index = {
        let disk_id = line.agent().disk_id();
        engine.members.iter().find(|member| member.disk_id == disk_id).map(|member| member.index)
    };
    let Some(index) = index else { return };
    let member = engine.members.get(index).clone();
    drop(engine);
    loop {
        line.whole().await;
        let fenced = line.agent().fence(epoch);
        match fenced {
            Ok(pending) => {
                let (requests, queue) = link::request_queue();
                let (answers, answered) = mpsc::channel(ANSWERS_MAX);
                let units = {
                    let line = line.clone();
                    Units::Function(Arc::new(move |unit| {
                        line.agent().unit(unit).map_err(|error| Error::invalid(error.to_string()))
                    }))
                };
                let opened = async {
                    member.set_service(Service::Fenced);
                    // Nobody listens any more when the coordinator is stopping.
                    let _ = arrivals.send(Arrival::Fenced { member: index, pending }).await;
                };
                let session = member.link.run(units, requests, ReceiverStream::new(answered).map(Ok), opened);
                tokio::pin!(session);
                tokio::select! {
                    biased;
                    _ = &mut session => {}
                    () = line.carry(queue, answers) => { session.await; }
                }
                member.set_service(Service::Absent("the line broke".to_owned()));
            }
            Err(error) => member.set_service(Service::Absent(error.to_string())),
        }
        tokio::time::sleep(RECONNECT_PAUSE).await;
    }
}

async fn tick(line: Arc<Line>) {
    loop {
        tokio::time::sleep(AGENT_TICK).await;
        // A disk that takes no more writes shows in what its agent answers.
        let _ = line.agent().tick();
    }
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cluster").field("settings", &self.settings).finish_non_exhaustive()
    }
}
