//! Agents on disks in memory, and a coordinator before them that can die: the real stores, the real engine, the real
//! takeover, in one thread under a clock that jumps to the next event.
//!
//! A coordinator lives on a runtime of its own, for the length of one [`Cluster::run`]. When that returns the runtime is
//! dropped, with every task on it, as a process that is killed: nothing is flushed, nothing is said to anybody.

use std::{
    ops::Range,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use stripeset_agent::simulation::{SimulatedAgent, SimulationError};
use stripeset_coordinator::{
    array::{Phase, rejoin::take_members_back, takeover::Takeover},
    engine::{Engine, rejoin::RejoinError},
    extents::{Extents, StripeRef, pins::Pins},
    members::{
        ErrorCounts, MemberIndex, MemberRecord, Members, Service,
        connect::{Arrival, FencedDisk},
        inspect::{ShowUnits, Units},
        labels::ReviseError,
        link,
    },
    meta::{ArrayRecord, Extent, Meta, MetaError},
    state::{StateError, StateFolder},
    versions::VersionSequence,
};
use stripeset_proto::{Error, ErrorKind, convert::uuid_bytes, v1};
use stripeset_stripe::{
    Epoch, Profile, SECTOR_BYTES, Version,
    geometry::{Geometry, Shard},
    label::{Label, LabelMember, Revision},
};
use thiserror::Error;
use tokio::{
    runtime::{Builder, Runtime},
    sync::{mpsc, watch},
};
use tokio_stream::{StreamExt, wrappers::ReceiverStream};
use uuid::Uuid;

use crate::{
    event,
    network::{Conduct, Line},
    trace::Trace,
};

/// Machines from which coordinators are started.
const HOSTS: u64 = 2;

/// How long a coordinator may take to serve.
const START_LIMIT: Duration = Duration::from_secs(60);

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
    /// Members that are out are taken back without being asked for.
    pub takes_back: bool,
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
            takes_back: false,
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
    /// The state folder did not.
    #[error(transparent)]
    State(#[from] StateError),
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

/// A machine from which coordinators are started: its state folder, and its lines to the agents.
struct Host {
    folder: StateFolder,
    lines: Vec<Arc<Line>>,
}

/// The agents, the hosts, and the map.
pub struct Cluster {
    settings: Settings,
    geometry: Geometry,
    hosts: Vec<Host>,
    /// Where the coordinator is that started last.
    host: AtomicUsize,
    meta: Mutex<Option<Meta>>,
    records: Vec<MemberRecord>,
    array: ArrayRecord,
    epochs: AtomicU64,
    disks: AtomicU64,
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
    lines: Vec<Arc<Line>>,
}

impl Cluster {
    /// Blank disks, joined to one array, and two hosts.
    pub fn new(settings: Settings, trace: Trace) -> Result<Cluster, ClusterError> {
        let geometry = Geometry::new(settings.profile, settings.unit_bytes, settings.slice_bytes)?;
        let count = settings.profile.members();
        let disk_id = |member: usize| Uuid::from_u128(0xd15c_0000 + member as u128);
        let members = (0..count).map(|member| LabelMember {
            disk_id: disk_id(member),
            address: format!("agent-{member}"),
            out: None,
        });
        let label = Label {
            array_id: Uuid::from_u128(0xa77a),
            revision: Revision { number: 1, ..Revision::default() },
            unit_bytes: settings.unit_bytes,
            slice_bytes: settings.slice_bytes,
            members: members.collect(),
            shards_max: settings.profile.shards() as u32,
            data_shards_max: settings.profile.data_shards() as u32,
            may_follow: Vec::new(),
        };
        let mut agents = Vec::with_capacity(count);
        let mut records = Vec::with_capacity(count);
        for member in 0..count {
            let mut agent = SimulatedAgent::new(disk_id(member), settings.disk_bytes)?;
            let slices = agent.join(label.clone().into())?;
            agents.push(Arc::new(Mutex::new(agent)));
            let per_member = (settings.profile.shards() / settings.profile.members()) as u64;
            records.push(MemberRecord {
                disk_id: disk_id(member),
                address: format!("agent-{member}"),
                slices: slices.min(settings.chunks_max * per_member),
                disk_bytes: settings.disk_bytes as u64,
                errors: ErrorCounts::default(),
            });
        }
        let hosts = (0..HOSTS).map(|host| {
            let line = |(agent, index): (&Arc<Mutex<SimulatedAgent>>, u32)| {
                let seed = settings.seed ^ u64::from(index + 1).wrapping_mul(0x9e37_79b9) ^ host << 48;
                Arc::new(Line::new(index, agent.clone(), seed, trace.clone()))
            };
            let folder = StateFolder::in_memory(Uuid::from_u128(0xf01d_0000 + u128::from(host)));
            Host { folder, lines: agents.iter().zip(0..).map(line).collect() }
        });
        let hosts: Vec<Host> = hosts.collect();
        let array = ArrayRecord {
            array_id: Uuid::from_u128(0xa77a),
            data_profile: settings.profile.to_string(),
            metadata_profile: settings.profile.to_string(),
            unit_bytes: settings.unit_bytes,
            slice_bytes: settings.slice_bytes,
        };
        let meta = runtime()?.block_on(async {
            hosts[0].folder.remember(label, true).await?;
            let meta = Meta::in_memory()?;
            meta.create_array(array.clone(), records.clone()).await?;
            Ok::<_, ClusterError>(meta)
        })?;
        Ok(Cluster {
            settings,
            geometry,
            hosts,
            host: AtomicUsize::new(0),
            meta: Mutex::new(Some(meta)),
            records,
            array,
            epochs: AtomicU64::new(0),
            disks: AtomicU64::new(count as u64),
            trace,
        })
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

    /// The lines of the coordinator that started last, by member.
    pub fn lines(&self) -> &[Arc<Line>] {
        &self.hosts[self.host()].lines
    }

    /// The lines of all hosts.
    pub fn all_lines(&self) -> impl Iterator<Item = &Arc<Line>> {
        self.hosts.iter().flat_map(|host| &host.lines)
    }

    /// Where the coordinator is that started last.
    pub fn host(&self) -> usize {
        self.host.load(Ordering::Relaxed)
    }

    /// Runs a coordinator for as long as `life` takes, and then kills it. `extents` are in use from the start: what the
    /// maps refer to.
    pub fn run<T>(
        &mut self,
        extents: &[Extent],
        life: impl AsyncFnOnce(&Cluster, &Coordinator) -> T,
    ) -> Result<T, ClusterError> {
        let runtime = runtime()?;
        let result = runtime.block_on(async {
            let coordinator = self.start(extents).await?;
            let lived = life(self, &coordinator).await;
            event!(self.trace, "every coordinator dies");
            Ok(lived)
        });
        drop(runtime);
        result
    }

    /// Starts a coordinator, and kills it after so long, whether it serves by then or not; whether it did.
    pub fn run_briefly(&mut self, extents: &[Extent], time: Duration) -> Result<bool, ClusterError> {
        let runtime = runtime()?;
        let served = runtime
            .block_on(async { tokio::time::timeout(time, self.start(extents)).await.ok().transpose() });
        drop(runtime);
        let served = served?.is_some();
        event!(self.trace, "it dies early; served: {served}");
        Ok(served)
    }

    /// Starts another coordinator, on another host, beside the one that runs: that one is not told.
    pub async fn start_elsewhere(&self, extents: &[Extent]) -> Result<Coordinator, ClusterError> {
        self.move_host();
        self.start(extents).await
    }

    /// The next coordinator starts on another host.
    pub fn move_host(&self) {
        self.host.store((self.host() + 1) % self.hosts.len(), Ordering::Relaxed);
    }

    /// The map as it was committed, in the hands of whoever starts now: what one before it still commits, it does not see.
    async fn take_meta(&self) -> Result<Meta, ClusterError> {
        let before = self.meta.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(before) = before else { return Err(ClusterError::Start("no metadata".to_owned())) };
        let chunks = before.snapshot()?.chunks()?;
        *self.meta.lock().unwrap_or_else(PoisonError::into_inner) = Some(before);
        let meta = Meta::in_memory()?;
        meta.create_array(self.array.clone(), self.records.clone()).await?;
        for chunk in chunks {
            meta.add_chunk(chunk).await?;
        }
        *self.meta.lock().unwrap_or_else(PoisonError::into_inner) = Some(meta.clone());
        Ok(meta)
    }

    async fn start(&self, extents: &[Extent]) -> Result<Coordinator, ClusterError> {
        let meta = self.take_meta().await?;
        let host = &self.hosts[self.host()];
        let number = self.epochs.fetch_add(1, Ordering::Relaxed) + 1;
        let met =
            host.lines.iter().filter(|line| !line.conduct().cut).map(|line| line.agent().epoch().number);
        let epoch = host.folder.claim_epoch(0xc0_0000 + number, met.max().unwrap_or(0)).await?;
        event!(self.trace, "coordinator {number} starts on host {} with epoch {epoch}", self.host());
        let versions = Arc::new(VersionSequence::new(epoch));
        let snapshot = meta.snapshot()?;
        let members = Arc::new(Members::new(snapshot.members()?, versions.clone(), host.folder.clone()));
        let space = Extents::new(self.geometry, meta.clone(), members.clone(), versions.clone());
        for chunk in snapshot.chunks()? {
            space.load_chunk(&chunk)?;
        }
        for extent in extents {
            space.load_extent(*extent)?;
        }
        let pins = Pins::new(snapshot.commit()?);
        let engine = Engine::new(members, Arc::new(space), versions.clone());
        let (arrivals, arrived) = mpsc::channel(64);
        for line in &host.lines {
            tokio::spawn(keep_line(line.clone(), engine.clone(), host.folder.name(), arrivals.clone()));
            tokio::spawn(tick(line.clone()));
        }
        let phase = watch::Sender::new(Phase::Starting("members have not answered yet".to_owned()));
        let mut started = phase.subscribe();
        let takeover =
            Takeover { engine: engine.clone(), phase, start_patience: START_PATIENCE, forced: false };
        tokio::spawn(takeover.run(arrived));
        if self.settings.takes_back {
            tokio::spawn(take_members_back(engine.clone()));
        }
        let serving = started.wait_for(|phase| *phase == Phase::Serving);
        let served = tokio::time::timeout(START_LIMIT, serving).await.map(|phase| phase.map(|_| ()));
        match served {
            Ok(Ok(())) => {
                event!(self.trace, "coordinator {number} serves");
                Ok(Coordinator { engine, pins, versions, lines: host.lines.clone() })
            }
            Ok(Err(closed)) => Err(ClusterError::Start(closed.to_string())),
            Err(_) => {
                let services: Vec<_> = engine.members.iter().map(|member| member.service()).collect();
                let phase = started.borrow().clone();
                Err(ClusterError::Start(format!("not within {START_LIMIT:?}: {phase:?}; {services:?}")))
            }
        }
    }

    /// The disk of a member is lost, and a blank one stands there. Nobody is told.
    pub fn lose_disk(&self, member: usize) -> Result<Uuid, ClusterError> {
        let number = self.disks.fetch_add(1, Ordering::Relaxed);
        let disk_id = Uuid::from_u128(0xd15c_0000 + u128::from(number));
        *self.lines()[member].agent() = SimulatedAgent::new(disk_id, self.settings.disk_bytes)?;
        self.break_sessions(member);
        Ok(disk_id)
    }

    /// The sessions of all hosts to a member break.
    pub fn break_sessions(&self, member: usize) {
        self.hosts.iter().for_each(|host| host.lines[member].break_session());
    }
}

impl Coordinator {
    /// Lets everything that was decided go home: commits are sent, and agents apply them. For looking at disks.
    pub async fn settle(&self) -> Result<(), SimulationError> {
        self.engine.flush_commits().await;
        for member in self.engine.members.iter().filter(|member| member.usable()) {
            self.lines[member.index.0 as usize].agent().settle()?;
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
    pub async fn mark_out(&self, member: u32) -> Result<(), ReviseError> {
        let failed = [(MemberIndex(member), "taken out".to_owned())];
        self.engine.members.mark_out(&failed, &self.engine.extents.chunks).await
    }

    /// Takes a member back that is out.
    pub async fn take_back(&self, member: u32) -> Result<(), RejoinError> {
        while !self.engine.take_back_window(MemberIndex(member)).await?.is_last {}
        Ok(())
    }

    /// A blank disk stands for a member.
    pub async fn replace(&self, member: u32, disk_id: Uuid) -> Result<(), ReviseError> {
        let chunks = &self.engine.extents.chunks;
        self.engine.members.replace(MemberIndex(member), disk_id, format!("agent-{member}"), chunks).await
    }

    /// Whether a shard has the write of this version, committed or not.
    pub fn took_part(&self, stripe: &StripeRef, shard: usize, version: Version) -> bool {
        let (member, unit) = self.place(stripe, shard);
        let record = self.lines[member].agent().unit(unit);
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
    pub fn forge(&self, stripe: &StripeRef, shard: usize, sector: usize) -> bool {
        let (member, unit) = self.place(stripe, shard);
        let mut agent = self.lines[member].agent();
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
    pub fn flip(&self, stripe: &StripeRef, shard: usize, sector: usize) -> bool {
        let (member, unit) = self.place(stripe, shard);
        let mut agent = self.lines[member].agent();
        let (Ok(()), Ok(offset)) = (agent.settle(), agent.disk_offset(unit, sector)) else { return false };
        agent.flip(offset + 100);
        true
    }

    /// Bytes of one sector of a shard as they are on the medium.
    pub fn raw_sector(&self, stripe: &StripeRef, shard: usize, sector: usize) -> Option<Vec<u8>> {
        let (member, unit) = self.place(stripe, shard);
        let bytes = self.lines[member].agent().raw_sector(unit, sector).ok();
        bytes.filter(|bytes| bytes.len() == SECTOR_BYTES)
    }
}

fn runtime() -> Result<Runtime, std::io::Error> {
    Builder::new_current_thread().enable_time().start_paused(true).build()
}

/// Keeps a member connected over its line, as `members::connect` does it over a network.
async fn keep_line(line: Arc<Line>, engine: Arc<Engine>, folder: Uuid, arrivals: mpsc::Sender<Arrival>) {
    let index = MemberIndex(line.member());
    let member = engine.members.get(index).clone();
    loop {
        line.whole().await;
        let disk_id = member.disk_id();
        let label = engine.members.labels.in_force().await;
        match fence(&line, disk_id, label, engine.versions().epoch(), folder) {
            Ok(disk) => {
                let (requests, queue) = link::request_queue();
                let (answers, answered) = mpsc::channel(ANSWERS_MAX);
                let units = Units::Other(Arc::new(AgentUnits(line.clone())));
                let opened = async {
                    member.set_service(Service::Fenced);
                    // Nobody listens any more when the coordinator is stopping.
                    let _ = arrivals.send(Arrival::Fenced { member: index, disk }).await;
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
            Err(error) => member.set_service(Service::Absent(error)),
        }
        tokio::time::sleep(RECONNECT_PAUSE).await;
    }
}

/// Fences the disk at the end of a line, if it is the one that it should be; a blank one that is, joins first.
fn fence(
    line: &Line,
    disk_id: Uuid,
    label: Option<Label>,
    epoch: Epoch,
    folder: Uuid,
) -> Result<FencedDisk, String> {
    let mut agent = line.agent();
    if agent.disk_id() != disk_id {
        return Err("another or a blank disk stands there".to_owned());
    }
    if agent.is_blank() {
        let is_wanted = |label: &Label| label.member_of(disk_id).is_some_and(|member| label.is_blank(member));
        let label = label.filter(is_wanted).ok_or("a blank disk stands there")?;
        agent.join(label.into()).map_err(|error| error.to_string())?;
    }
    let fenced = agent.fence(epoch, folder).map_err(|error| error.to_string())?;
    FencedDisk::read(disk_id, fenced).map_err(|error| error.to_string())
}

/// The units of the agent at the end of a line.
struct AgentUnits(Arc<Line>);

impl AgentUnits {
    fn ask<T>(
        &self,
        ask: impl FnOnce(&mut SimulatedAgent) -> Result<T, SimulationError>,
    ) -> Result<T, Error> {
        let Conduct { cut, frozen, .. } = self.0.conduct();
        if cut || frozen {
            return Err(Error::new(ErrorKind::Unavailable, "the line is not there"));
        }
        ask(&mut self.0.agent()).map_err(|error| Error::new(ErrorKind::Unavailable, error.to_string()))
    }
}

impl ShowUnits for AgentUnits {
    fn record(&self, unit: u64) -> Result<v1::UnitRecord, Error> {
        self.ask(|agent| agent.unit(unit))
    }

    fn changed(&self, units: Range<u64>, since: Version) -> Result<Vec<u64>, Error> {
        self.ask(|agent| agent.changed(units, since))
    }

    fn pending(&self) -> Result<Vec<v1::PendingWrite>, Error> {
        self.ask(SimulatedAgent::pending)
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
