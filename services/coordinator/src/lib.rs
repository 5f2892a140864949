//! The coordinator: runs one array of agents. Allocates, writes and reads stripes, keeps the map from objects to
//! extents, and serves both over gRPC.
//!
//! Begin with [`mod@array`] for what a running array is made of, [`engine`] for how a stripe is written and read,
//! [`members`] for who is trusted, [`objects`] for what users see.

pub mod array;
mod cache;
pub mod config;
pub mod engine;
mod explain;
pub mod extents;
mod faults;
pub mod grpc;
pub mod members;
pub mod meta;
pub mod objects;
pub mod state;
mod status;
pub mod versions;

use std::{io, net::SocketAddr, sync::Arc};

use stripeset_proto::{
    limits, reflection, transport,
    v1::{
        array_service_server::ArrayServiceServer, fault_service_server::FaultServiceServer,
        object_service_server::ObjectServiceServer,
    },
};
use stripeset_stripe::code::{KernelFault, self_test};
use stripeset_telemetry::shutdown::{STOP_LIMIT, Shutdown};
use thiserror::Error;
use tokio::{net::TcpListener, sync::oneshot};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::service::Routes;
use uuid::Uuid;

pub use config::CoordinatorConfig;

use crate::{
    grpc::{Shared, array::ArrayHandler, fault::FaultHandler, object::ObjectHandler},
    members::connect::survey,
    meta::{Meta, MetaError},
    state::{StateError, StateFolder},
    versions::VersionSequence,
};

/// Why a coordinator could not start, or stopped.
#[derive(Debug, Error)]
pub enum CoordinatorError {
    /// The state folder cannot be used.
    #[error(transparent)]
    State(#[from] StateError),
    /// The metadata cannot be opened.
    #[error(transparent)]
    Meta(#[from] MetaError),
    /// What the metadata says of the array does not make sense.
    #[error("the array cannot be opened: {0}")]
    Array(#[from] stripeset_proto::Error),
    /// The parity kernels compute nonsense on this processor.
    #[error(transparent)]
    Kernel(#[from] KernelFault),
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why not.
        source: io::Error,
    },
    /// The server failed.
    #[error("gRPC server: {0}")]
    Serve(#[from] tonic::transport::Error),
    /// What describes the interface cannot be served.
    #[error("gRPC reflection: {0}")]
    Reflection(#[from] reflection::Error),
    /// Another coordinator has taken over.
    #[error("stopped: {0}")]
    Deposed(String),
}

/// A coordinator with its state open and its socket bound, not yet serving.
pub struct Coordinator {
    shared: Arc<Shared>,
    listener: TcpListener,
    address: SocketAddr,
    closed: oneshot::Receiver<()>,
}

impl Coordinator {
    /// Opens the state folder, claims a new epoch and binds the socket. The members are being taken over when it
    /// returns.
    pub async fn bind(config: CoordinatorConfig) -> Result<Self, CoordinatorError> {
        self_test()?;
        let folder = StateFolder::open(&config.state)?;
        let (meta, closed) = Meta::open(&config.state)?;
        let listen = |source| CoordinatorError::Listen { address: config.listen, source };
        let listener = TcpListener::bind(config.listen).await.map_err(listen)?;
        let address = listener.local_addr().map_err(listen)?;
        let incarnation = Uuid::new_v4().as_u64_pair().0;
        let met = survey(addresses(&folder, &meta)?).await;
        let epoch = folder.claim_epoch(incarnation, met).await?;
        tracing::info!(%address, %epoch, state = %config.state.display(), "coordinator started");
        let versions = Arc::new(VersionSequence::new(epoch));
        let shared = Arc::new(Shared::open(config, meta, versions, folder)?);
        Ok(Coordinator { shared, listener, address, closed })
    }

    /// Address that it serves on.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Serves until it is asked to stop, or is deposed. What has begun is finished, within [`STOP_LIMIT`].
    pub async fn serve(self, shutdown: Shutdown) -> Result<(), CoordinatorError> {
        let router = router(self.shared.clone()).await?;
        let stopping = {
            let shutdown = shutdown.clone();
            async move { shutdown.wait().await }
        };
        let served = router.serve_with_incoming_shutdown(incoming(self.listener), stopping);
        let limit = async {
            shutdown.wait().await;
            tokio::time::sleep(STOP_LIMIT).await;
        };
        let outcome = tokio::select! {
            served = served => served.map_err(CoordinatorError::from),
            () = limit => {
                tracing::warn!("calls were still open when the time to stop was over");
                Ok(())
            }
            reason = deposed(self.shared.clone()) => Err(CoordinatorError::Deposed(reason)),
        };
        if let Some(array) = self.shared.array() {
            // Agents may be gone too: then what is not committed is resolved at the next start.
            let _ = tokio::time::timeout(STOP_LIMIT / 5, array.settle()).await;
        }
        drop(self.shared);
        if tokio::time::timeout(STOP_LIMIT / 5, self.closed).await.is_err() {
            tracing::warn!("work was still going on when the time to stop was over");
        }
        tracing::info!("coordinator stopped");
        outcome
    }
}

/// Where the agents were when they were last heard of.
fn addresses(folder: &StateFolder, meta: &Meta) -> Result<Vec<String>, MetaError> {
    if let Some(label) = folder.label() {
        return Ok(label.members.into_iter().map(|member| member.address).collect());
    }
    let members = meta.snapshot()?.members()?;
    Ok(members.into_iter().map(|member| member.address).collect())
}

fn incoming(listener: TcpListener) -> impl tokio_stream::Stream<Item = io::Result<tokio::net::TcpStream>> {
    use tokio_stream::StreamExt;
    TcpListenerStream::new(listener).map(|stream| {
        let stream = stream?;
        stream.set_nodelay(true)?;
        Ok(stream)
    })
}

/// Returns, with the reason, when this coordinator is deposed.
async fn deposed(shared: Arc<Shared>) -> String {
    loop {
        if let Some(array) = shared.array() {
            let mut deposed = array.engine.deposed();
            if let Ok(reason) = deposed.wait_for(Option::is_some).await {
                return reason.clone().unwrap_or_default();
            }
        }
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    }
}

async fn router(shared: Arc<Shared>) -> Result<tonic::transport::server::Router, reflection::Error> {
    let (health, health_service) = tonic_health::server::health_reporter();
    let objects = ObjectServiceServer::new(ObjectHandler { shared: shared.clone() })
        .max_decoding_message_size(limits::MESSAGE_BYTES_MAX)
        .max_encoding_message_size(limits::MESSAGE_BYTES_MAX);
    let faults = shared.faults().then(|| FaultServiceServer::new(FaultHandler { shared: shared.clone() }));
    let arrays = ArrayServiceServer::new(ArrayHandler { shared })
        .max_decoding_message_size(limits::MESSAGE_BYTES_MAX)
        .max_encoding_message_size(limits::MESSAGE_BYTES_MAX);
    health.set_serving::<ObjectServiceServer<ObjectHandler>>().await;
    health.set_serving::<ArrayServiceServer<ArrayHandler>>().await;
    let mut routes = Routes::new(objects).add_service(arrays).add_service(health_service);
    if let Some(faults) = faults {
        routes = routes.add_service(faults);
    }
    Ok(transport::server().add_routes(reflection::add_to(routes)?))
}
