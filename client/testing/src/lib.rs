//! A whole cluster inside one test process: agents and a coordinator on loopback ports that the system chose, disks in
//! a temporary folder. Everything ends, and the folder goes, when it is dropped.
//!
//! Made for examples and tests; decides nothing.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use stripeset_agent::{Agent, AgentConfig};
use stripeset_coordinator::{Coordinator, CoordinatorConfig};
use stripeset_proto::{
    limits,
    v1::{self, array_service_client::ArrayServiceClient},
};
use stripeset_telemetry::shutdown::{self, ShutdownTrigger};
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tonic::transport::Channel;

/// Length of each disk. Sparse: nothing of it is written at the start.
pub const DISK_BYTES: u64 = 256 * 1024 * 1024;

/// Longest wait for the cluster to serve.
const START_LIMIT: Duration = Duration::from_secs(30);

/// A process of the cluster, as a task.
struct Service {
    stop: ShutdownTrigger,
    task: JoinHandle<()>,
}

/// A running cluster.
pub struct Cluster {
    folder: TempDir,
    agents: Vec<(SocketAddr, Option<Service>)>,
    coordinator: Option<Service>,
    endpoint: SocketAddr,
}

fn any_port() -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, 0))
}

impl Cluster {
    /// Starts `agents` agents and a coordinator, makes an array with a data profile (`raid5`, `raid6-4+2`, ...), and
    /// waits until it is served. Panics if that fails: a test cannot go on then.
    pub async fn start(agents: usize, data_profile: &str) -> Cluster {
        let mut cluster = Cluster::start_blank(agents).await;
        let request = v1::CreateArrayRequest {
            agents: cluster.agents.iter().map(|(address, _)| address.to_string()).collect(),
            data_profile: data_profile.to_owned(),
            metadata_profile: data_profile.to_owned(),
            unit_bytes: 0,
            slice_bytes: 4 * 1024 * 1024,
        };
        let made = cluster.array_client().await.create_array(request).await;
        if let Err(status) = made {
            panic!("the array could not be made: {status}");
        }
        cluster.wait_served().await;
        cluster
    }

    /// Starts agents and a coordinator without an array.
    pub async fn start_blank(agents: usize) -> Cluster {
        let folder = TempDir::new().unwrap_or_else(|error| panic!("no temporary folder: {error}"));
        let mut cluster = Cluster { folder, agents: Vec::new(), coordinator: None, endpoint: any_port() };
        for index in 0..agents {
            cluster.agents.push((any_port(), None));
            cluster.start_agent(index).await;
        }
        cluster.start_coordinator().await;
        cluster
    }

    /// URL of the coordinator.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.endpoint)
    }

    /// Address of an agent.
    pub fn agent_address(&self, index: usize) -> SocketAddr {
        self.agents[index].0
    }

    /// The file that is the disk of an agent.
    pub fn disk(&self, index: usize) -> PathBuf {
        self.folder.path().join(format!("disk-{index}"))
    }

    /// A client of the coordinator's `ArrayService`.
    pub async fn array_client(&self) -> ArrayServiceClient<Channel> {
        match ArrayServiceClient::connect(self.endpoint()).await {
            Ok(client) => client.max_decoding_message_size(limits::MESSAGE_BYTES_MAX),
            Err(error) => panic!("the coordinator does not answer: {error}"),
        }
    }

    /// The status of the array.
    pub async fn status(&self) -> v1::GetStatusResponse {
        match self.array_client().await.get_status(v1::GetStatusRequest {}).await {
            Ok(status) => status.into_inner(),
            Err(status) => panic!("no status: {status}"),
        }
    }

    /// Waits until reads and writes are served by all members that are not out.
    pub async fn wait_served(&mut self) {
        let whole = |status: &v1::GetStatusResponse| {
            let missing = |member: &v1::Member| member.state() == v1::MemberState::Missing;
            status.writes_served && !status.members.iter().any(missing)
        };
        let deadline = tokio::time::Instant::now() + START_LIMIT;
        loop {
            let status = self.status().await;
            if whole(&status) {
                return;
            }
            assert!(tokio::time::Instant::now() < deadline, "not served: {status:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Starts an agent (again), on the address that it had.
    pub async fn start_agent(&mut self, index: usize) {
        let config = AgentConfig {
            disk: self.disk(index),
            size: Some(DISK_BYTES),
            listen: self.agents[index].0,
            faults: false,
        };
        let agent = Agent::bind(config).await.unwrap_or_else(|error| panic!("agent {index}: {error}"));
        let (stop, stopping) = shutdown::manual();
        self.agents[index].0 = agent.local_addr();
        let task = tokio::spawn(async move {
            if let Err(error) = agent.serve(stopping).await {
                panic!("agent {index}: {error}");
            }
        });
        self.agents[index].1 = Some(Service { stop, task });
    }

    /// Stops an agent and waits until it has.
    pub async fn stop_agent(&mut self, index: usize) {
        stop(self.agents[index].1.take()).await;
    }

    /// Starts the coordinator (again), on the address that it had.
    pub async fn start_coordinator(&mut self) {
        let config = CoordinatorConfig::new(self.endpoint, self.folder.path().join("state"));
        let coordinator =
            Coordinator::bind(config).await.unwrap_or_else(|error| panic!("coordinator: {error}"));
        self.endpoint = coordinator.local_addr();
        let (stop, stopping) = shutdown::manual();
        let task = tokio::spawn(async move {
            if let Err(error) = coordinator.serve(stopping).await {
                panic!("coordinator: {error}");
            }
        });
        self.coordinator = Some(Service { stop, task });
    }

    /// Stops the coordinator and waits until it has.
    pub async fn stop_coordinator(&mut self) {
        stop(self.coordinator.take()).await;
    }
}

async fn stop(service: Option<Service>) {
    let Some(Service { stop, task }) = service else { return };
    stop.stop();
    if let Err(error) = task.await {
        panic!("did not stop cleanly: {error}");
    }
}
