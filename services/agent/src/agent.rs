//! One agent from start to stop: opens the disk, binds the address, serves until it is asked to stop.
//!
//! Decides the order of a stop: no new work, then what has begun is finished and synced, then the end - each within a
//! time limit, so that neither a client that does not read nor a disk that does not answer can hold the process.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use stripeset_proto::{
    limits::MESSAGE_BYTES_MAX,
    reflection, transport,
    v1::{
        agent_data_service_server::{AgentDataServiceServer, SERVICE_NAME as DATA_SERVICE_NAME},
        agent_fault_service_server::AgentFaultServiceServer,
        agent_service_server::{AgentServiceServer, SERVICE_NAME},
    },
};
use stripeset_telemetry::shutdown::Shutdown;
use tokio::{
    net::TcpListener,
    sync::watch,
    time::{self, MissedTickBehavior},
};
use tonic::{
    service::Routes,
    transport::{Server, server::TcpIncoming},
};
use tonic_health::{
    ServingStatus,
    server::{HealthReporter, health_reporter},
};
use uuid::Uuid;

use crate::{
    disk::{
        Disk,
        faulty::{FaultHandle, FaultyDisk},
        open::{self, Found},
        watched::Watched,
    },
    error::AgentError,
    fault_service::FaultService,
    queue::{self, DiskThread, Queue},
    service::{ServedDisk, Service},
    store::{OpenError, Store},
    superblock::{FORMAT, SuperblockError},
};

/// Longest time that connections get to end by themselves after a stop. Data streams end at once; this is for clients
/// that do not read, or watch something.
const CONNECTIONS_STOP_LIMIT: Duration = Duration::from_secs(3);

/// Longest time that the disk gets to finish what has begun. With the one above it stays below the limit of a process's
/// stop, so that the process can say what happened.
const DISK_STOP_LIMIT: Duration = Duration::from_secs(8);

/// How often committed writes go home: two of these later, at the latest, they are there. Meanwhile later writes to the
/// same sectors replace them, and never go home at all.
const TICK_INTERVAL: Duration = Duration::from_millis(250);

/// How often a connection on which nothing happens is asked whether the other end is there.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);

/// Most calls at a time on one connection.
const CALLS_MAX: u32 = 256;

/// What an agent is started with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentConfig {
    /// File or block device. A file that does not exist is created if a size is given.
    pub disk: PathBuf,
    /// Length of the disk in bytes, at least 8 MiB. Needed to create a file; otherwise, if given, it has to match.
    pub size: Option<u64>,
    /// Address to serve at; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Faults are injected on demand.
    pub faults: bool,
}

/// An opened disk and a bound socket, ready to serve.
pub struct Agent {
    listener: TcpListener,
    local_addr: SocketAddr,
    store: Store,
    disk: ServedDisk,
    faults: Option<FaultHandle>,
}

impl std::fmt::Debug for Agent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Agent")
            .field("local_addr", &self.local_addr)
            .field("disk", &self.disk.path)
            .finish_non_exhaustive()
    }
}

impl Agent {
    /// Binds the address, opens the disk (creates and formats it if it is absent and a size is given), locks it, and
    /// finds out what it holds. Nothing is created or formatted if the address cannot be had.
    pub async fn bind(config: AgentConfig) -> Result<Agent, AgentError> {
        let AgentConfig { disk, size, listen, faults } = config;
        let listener =
            TcpListener::bind(listen).await.map_err(|error| AgentError::listening(listen, error))?;
        let local_addr = listener.local_addr().map_err(|error| AgentError::listening(listen, error))?;
        let path = disk.clone();
        // A scan may take seconds, and others may share the runtime.
        let faults = faults.then(FaultHandle::default);
        let misbehaving = faults.clone();
        let opened = tokio::task::spawn_blocking(move || open_store(&disk, size, misbehaving)).await;
        let (store, disk) = match opened {
            Ok(opened) => opened?,
            Err(error) => return Err(AgentError::opening(&path, std::io::Error::other(error))),
        };
        let ServedDisk { disk_id, direct, .. } = disk;
        tracing::info!(disk = %path.display(), %disk_id, direct, %local_addr, "agent is bound");
        Ok(Agent { listener, local_addr, store, disk, faults })
    }

    /// The address served at.
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Serves until `shutdown` starts. Then takes in no new work, finishes and syncs what has begun, and returns; at the
    /// latest 11 seconds later, with an error if the disk was not done.
    pub async fn serve(self, shutdown: Shutdown) -> Result<(), AgentError> {
        let Agent { listener, disk, store, faults, .. } = self;
        let DiskThread { queue, mut ended, failed } = queue::start(store).map_err(AgentError::Thread)?;
        // Random numbers of different starts differ; that is all they are for.
        let incarnation = Uuid::new_v4().as_u64_pair().0;
        let service = Service::new(queue.clone(), shutdown.clone(), disk, incarnation);
        let (health, health_service) = health_reporter();
        let mut routes = routes(service)?.add_service(health_service);
        if let Some(handle) = &faults {
            tracing::warn!("faults are injected on demand");
            let service = FaultService::new(queue.clone(), handle.clone());
            routes = routes.add_service(AgentFaultServiceServer::new(service));
        }
        tell_health(&health, ServingStatus::Serving).await;
        let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
        let stop = shutdown.clone();
        let server = server()
            .add_routes(routes)
            .serve_with_incoming_shutdown(incoming, async move { stop.wait().await });
        let served = tokio::select! {
            served = server => served.map_err(AgentError::Server),
            () = out_of_time(&shutdown, &health) => {
                tracing::warn!("connections were still open {CONNECTIONS_STOP_LIMIT:?} after the stop; they are cut");
                Ok(())
            }
            _ = &mut ended => return Err(AgentError::DiskThreadEnded),
            () = watch_failure(failed, &health) => Ok(()),
            () = tick(&queue) => Ok(()),
        };
        let finish = async {
            if let Some(handle) = faults {
                handle.stop();
            }
            queue.stop().await;
            ended.await
        };
        match time::timeout(DISK_STOP_LIMIT, finish).await {
            Ok(Ok(())) => served,
            Ok(Err(_)) => Err(AgentError::DiskThreadEnded),
            Err(_) => Err(AgentError::StopTimedOut(DISK_STOP_LIMIT)),
        }
    }
}

/// Opens the disk at `path`, formats it if it is blank and may be, and finds out what it holds.
fn open_store(
    path: &Path,
    size: Option<u64>,
    faults: Option<FaultHandle>,
) -> Result<(Store, ServedDisk), AgentError> {
    let disk = match open::open(path, size)? {
        Found::Used(disk) => disk,
        Found::Blank(mut disk) => {
            let disk_id = Uuid::new_v4();
            Store::format(&mut disk, disk_id).map_err(|error| AgentError::opening(path, error))?;
            tracing::info!(disk = %path.display(), %disk_id, "disk formatted");
            disk
        }
    };
    let direct = disk.direct();
    let disk: Box<dyn Disk> = match faults {
        Some(handle) => Box::new(FaultyDisk::new(Box::new(disk), handle)),
        None => Box::new(disk),
    };
    let (disk, watch) = Watched::new(disk);
    let store = Store::open(Box::new(disk)).map_err(|error| {
        let path = path.to_owned();
        match error {
            OpenError::Superblock(SuperblockError::None) => AgentError::NotOurs { path },
            OpenError::Superblock(SuperblockError::OtherFormat(found)) => {
                AgentError::OtherFormat { path, found, known: FORMAT }
            }
            OpenError::Superblock(SuperblockError::Damaged) => AgentError::SuperblocksDamaged { path },
            OpenError::LengthChanged { bytes, formatted } => {
                AgentError::LengthChanged { path, bytes, formatted }
            }
            OpenError::Superblock(SuperblockError::Io(error)) | OpenError::Io(error) => {
                AgentError::opening(&path, error)
            }
            // A superblock of ours with a label that was never accepted: damage that the checksum did not see.
            OpenError::Label(_) | OpenError::Layout(_) => AgentError::SuperblocksDamaged { path },
            OpenError::Journal(error) => AgentError::journal(&path, error),
        }
    })?;
    let disk_id = store.superblock().disk_id;
    Ok((store, ServedDisk { path: Arc::new(path.to_owned()), disk_id, direct, watch }))
}

fn server() -> Server {
    transport::server().max_concurrent_streams(CALLS_MAX).http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
}

/// All services but health.
fn routes(service: Service) -> Result<Routes, AgentError> {
    let control = AgentServiceServer::new(service.clone())
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX);
    let data = AgentDataServiceServer::new(service)
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX);
    reflection::add_to(Routes::new(control).add_service(data)).map_err(AgentError::Reflection)
}

async fn tell_health(health: &HealthReporter, status: ServingStatus) {
    for name in ["", SERVICE_NAME, DATA_SERVICE_NAME] {
        health.set_service_status(name, status).await;
    }
}

/// Returns when connections have had their time after a stop.
async fn out_of_time(shutdown: &Shutdown, health: &HealthReporter) {
    shutdown.wait().await;
    tell_health(health, ServingStatus::NotServing).await;
    time::sleep(CONNECTIONS_STOP_LIMIT).await;
}

/// Lets committed writes go home. Never returns.
async fn tick(queue: &Queue) {
    let mut interval = time::interval(TICK_INTERVAL);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        interval.tick().await;
        queue.tick();
    }
}

/// Says so when the disk has failed. Never returns: a disk that takes no writes still gives what it has.
async fn watch_failure(mut failed: watch::Receiver<bool>, health: &HealthReporter) {
    if failed.wait_for(|failed| *failed).await.is_ok() {
        tell_health(health, ServingStatus::NotServing).await;
    }
    std::future::pending().await
}

#[cfg(test)]
mod tests;
