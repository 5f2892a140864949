//! A running array: its parts put together, its members taken over at the start (`takeover`) and taken back when they
//! return (`rejoin`).

pub mod create;
pub mod rejoin;
pub mod takeover;

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use stripeset_proto::{Error, ErrorKind};
use stripeset_stripe::{Profile, geometry::Geometry};
use tokio::{
    sync::{Semaphore, mpsc, watch},
    task::JoinSet,
};

use self::{rejoin::take_members_back, takeover::Takeover};
use crate::{
    engine::Engine,
    extents::{Extents, packer::Packer, pins::Pins},
    members::{
        Members,
        connect::{Claim, keep_connected},
    },
    meta::{ArrayRecord, Committed, Meta},
    state::StateFolder,
    versions::VersionSequence,
};

/// Bytes of objects being put that are held in memory, all puts together.
const WRITE_BYTES_MAX: usize = 48 * 1024 * 1024;

/// Bytes of memory for objects being read, all gets together.
pub(crate) const READ_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Arrivals waiting to be handled.
const ARRIVALS_MAX: usize = 64;

/// How often error counts are stored.
const STORE_ERRORS_EVERY: Duration = Duration::from_secs(5);

/// How often freed extents are looked at that readers may have let go of.
const RELEASE_EVERY: Duration = Duration::from_millis(100);

/// How long a start waits, and what for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StartPatience {
    /// How long all members are waited for before those that answer have to do.
    pub patience: Duration,
    /// Begin also where members that do not answer may hold newer data.
    pub forced: bool,
}

/// How far a start has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Not serving yet; what for.
    Starting(String),
    /// Serving.
    Serving,
}

/// A running array.
pub struct Array {
    /// How it was made.
    pub record: ArrayRecord,
    /// The engine.
    pub engine: Arc<Engine>,
    /// The metadata.
    pub meta: Meta,
    /// Readers of older maps.
    pub pins: Pins,
    /// Small pieces go here.
    pub packer: Packer,
    /// Bytes of memory for puts that are free.
    pub write_bytes: Arc<Semaphore>,
    /// Bytes of memory for gets that are free.
    pub read_bytes: Arc<Semaphore>,
    /// Versions of this coordinator.
    pub versions: Arc<VersionSequence>,
    objects: AtomicI64,
    phase: watch::Sender<Phase>,
    // Ends the background work when the array is dropped.
    _tasks: JoinSet<()>,
}

impl Array {
    /// Loads an array from the metadata and starts to take its members over. Returns before they answer.
    pub fn start(
        record: ArrayRecord,
        meta: Meta,
        versions: Arc<VersionSequence>,
        folder: StateFolder,
        patience: StartPatience,
    ) -> Result<Arc<Array>, Error> {
        let internal = |error: &dyn std::fmt::Display| Error::new(ErrorKind::Internal, error.to_string());
        let snapshot = meta.snapshot().map_err(|error| internal(&error))?;
        let profile: Profile = record.data_profile.parse().map_err(|error| internal(&error))?;
        let geometry = Geometry::new(profile, record.unit_bytes, record.slice_bytes)
            .map_err(|error| internal(&error))?;
        let records = snapshot.members().map_err(|error| internal(&error))?;
        let name = folder.name();
        let members = Arc::new(Members::new(records, versions.clone(), folder));
        let extents = Arc::new(Extents::new(geometry, meta.clone(), members.clone(), versions.clone()));
        load(&extents, &snapshot)?;
        let commit = snapshot.commit().map_err(|error| internal(&error))?;
        let objects = snapshot.object_count().map_err(|error| internal(&error))?;
        let engine = Engine::new(members, extents, versions.clone());
        let (arrivals, arrived) = mpsc::channel(ARRIVALS_MAX);
        let mut tasks = JoinSet::new();
        let claim = Claim { array_id: record.array_id, epoch: versions.epoch(), folder: name };
        for member in engine.members.iter() {
            tasks.spawn(keep_connected(engine.members.clone(), member.index, claim, arrivals.clone()));
        }
        let pins = Pins::new(commit);
        tasks.spawn(release_freed(engine.clone(), pins.clone()));
        tasks.spawn(store_errors(engine.members.clone(), meta.clone()));
        let phase = watch::Sender::new(Phase::Starting("members have not answered yet".to_owned()));
        let StartPatience { patience: start_patience, forced } = patience;
        let takeover = Takeover { engine: engine.clone(), phase: phase.clone(), start_patience, forced };
        tasks.spawn(takeover.run(arrived));
        tasks.spawn(take_members_back(engine.clone()));
        Ok(Arc::new(Array {
            record,
            packer: Packer::start(engine.clone()),
            engine,
            meta,
            pins,
            write_bytes: Arc::new(Semaphore::new(WRITE_BYTES_MAX)),
            read_bytes: Arc::new(Semaphore::new(READ_BYTES_MAX)),
            versions,
            objects: AtomicI64::new(objects as i64),
            phase,
            _tasks: tasks,
        }))
    }

    /// How far the start has come.
    pub fn phase(&self) -> Phase {
        self.phase.borrow().clone()
    }

    /// An error unless the array serves, and this coordinator still runs it.
    pub fn check_serving(&self) -> Result<(), Error> {
        if let Some(reason) = &*self.engine.deposed().borrow() {
            return Err(Error::new(ErrorKind::Stale, format!("this coordinator is deposed: {reason}")));
        }
        match self.phase() {
            Phase::Serving => Ok(()),
            Phase::Starting(what) => {
                let mut error = Error::new(ErrorKind::Unavailable, format!("the array is starting: {what}"));
                error.retry_after = Some(Duration::from_millis(200));
                Err(error)
            }
        }
    }

    /// Number of objects.
    pub fn object_count(&self) -> u64 {
        self.objects.load(Ordering::Relaxed).max(0) as u64
    }

    /// Takes note of a durable commit: what it freed can be used again once no reader is left.
    pub fn committed(&self, committed: &Committed) {
        self.objects.fetch_add(committed.objects_change, Ordering::Relaxed);
        self.pins.freed(committed.commit, committed.freed.clone());
        release(&self.engine, &self.pins);
    }

    /// What has to be done before a clean stop: commits sent, error counts stored.
    pub async fn settle(&self) {
        self.engine.flush_commits().await;
        let errors = self.engine.members.iter().map(|member| member.errors()).collect();
        if let Err(error) = self.meta.set_errors(errors).await {
            tracing::error!(%error, "error counts could not be stored");
        }
    }
}

fn load(extents: &Extents, snapshot: &crate::meta::Snapshot) -> Result<(), Error> {
    let internal = |error: &dyn std::fmt::Display| Error::new(ErrorKind::Internal, error.to_string());
    for chunk in snapshot.chunks().map_err(|error| internal(&error))? {
        extents.load_chunk(&chunk).map_err(|error| internal(&error))?;
    }
    let mut wrong = None;
    let visited = snapshot.for_each_extent(|extent| {
        if let Err(error) = extents.load_extent(extent) {
            wrong = Some(error);
        }
    });
    visited.map_err(|error| internal(&error))?;
    wrong.map_or(Ok(()), |error| Err(internal(&error)))
}

fn release(engine: &Engine, pins: &Pins) {
    for extent in pins.release() {
        engine.free(stripeset_stripe::geometry::Logical(extent.logical), extent.length);
    }
}

async fn release_freed(engine: Arc<Engine>, pins: Pins) {
    loop {
        tokio::time::sleep(RELEASE_EVERY).await;
        release(&engine, &pins);
    }
}

async fn store_errors(members: Arc<Members>, meta: Meta) {
    let counts = || members.iter().map(|member| member.errors()).collect::<Vec<_>>();
    let mut stored = counts();
    loop {
        tokio::time::sleep(STORE_ERRORS_EVERY).await;
        let now = counts();
        if now != stored {
            match meta.set_errors(now.clone()).await {
                Ok(()) => stored = now,
                Err(error) => {
                    tracing::error!(%error, "error counts could not be stored");
                    return;
                }
            }
        }
    }
}
