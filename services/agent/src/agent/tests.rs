//! Tests of a whole agent over loopback, most on a simulated disk that stands still when told. Here: the agent, the
//! member and the messages that the files below share.

use bytes::Bytes;
use stripeset_proto::v1::{
    self, RefusalKind, SessionRequest, agent_data_service_client::AgentDataServiceClient,
    agent_service_client::AgentServiceClient, session_request::Operation, session_response::Outcome,
};
use stripeset_stripe::checksum;
use stripeset_telemetry::shutdown::{self, ShutdownTrigger};
use tokio::{sync::mpsc, task::JoinHandle};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Streaming, transport::Channel};

use super::*;
use crate::disk::simulated::SimulatedDisk;

mod control;
mod data;
mod stop;

const UNIT_BYTES: u32 = 16 * 1024;
const DISK_BYTES: usize = 2 * 1024 * 1024;

/// Longest time that anything here may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// A running agent and the way to stop it.
struct Running {
    address: SocketAddr,
    trigger: ShutdownTrigger,
    served: JoinHandle<Result<(), AgentError>>,
}

impl Running {
    fn start(agent: Agent) -> Running {
        let (trigger, stop) = shutdown::manual();
        Running { address: agent.local_addr(), trigger, served: tokio::spawn(agent.serve(stop)) }
    }

    async fn on(disk: &SimulatedDisk) -> Running {
        let (watched, watch) = Watched::new(Box::new(disk.clone()));
        let store = Store::open(Box::new(watched)).unwrap();
        let disk_id = store.superblock().disk_id;
        let disk = ServedDisk { path: Arc::new("simulated".into()), disk_id, direct: false, watch };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let local_addr = listener.local_addr().unwrap();
        Running::start(Agent { listener, local_addr, store, disk, faults: None })
    }

    async fn channel(&self) -> Channel {
        Channel::from_shared(format!("http://{}", self.address)).unwrap().connect().await.unwrap()
    }

    async fn ended(self) -> Result<(), AgentError> {
        time::timeout(PATIENCE, self.served).await.unwrap().unwrap()
    }

    async fn stop(self) {
        self.trigger.stop();
        self.ended().await.unwrap();
    }
}

/// An agent with a joined and fenced disk.
struct Member {
    agent: Running,
    control: AgentServiceClient<Channel>,
    disk_id: Bytes,
}

impl Member {
    /// On a blank simulated disk.
    async fn start() -> (Member, SimulatedDisk) {
        let disk = SimulatedDisk::new(DISK_BYTES);
        Store::format(&mut disk.clone(), Uuid::from_u128(77)).unwrap();
        (Member::join(Running::on(&disk).await).await, disk)
    }

    /// Joins the disk if it is blank, and fences it.
    async fn join(agent: Running) -> Member {
        let mut control = AgentServiceClient::new(agent.channel().await);
        let described = control.describe(v1::DescribeRequest {}).await.unwrap().into_inner();
        let disk_id = described.disk_id;
        if described.label.is_none() {
            let request = v1::JoinRequest { disk_id: disk_id.clone(), label: Some(label(&disk_id)) };
            assert!(control.join(request).await.unwrap().into_inner().slices >= 8);
        }
        let fence = v1::FenceRequest {
            disk_id: disk_id.clone(),
            epoch: Some(epoch()),
            folder_id: Bytes::from_static(&[3; 16]),
        };
        control.fence(fence).await.unwrap();
        Member { agent, control, disk_id }
    }

    async fn session(&self) -> Session {
        let (requests, receiver) = mpsc::channel(4096);
        let mut data = AgentDataServiceClient::new(self.agent.channel().await)
            .max_decoding_message_size(MESSAGE_BYTES_MAX);
        let answers = data.session(ReceiverStream::new(receiver)).await.unwrap().into_inner();
        Session { disk_id: self.disk_id.clone(), requests, answers, last_request: 0 }
    }
}

/// One data stream.
struct Session {
    disk_id: Bytes,
    requests: mpsc::Sender<SessionRequest>,
    answers: Streaming<v1::SessionResponse>,
    last_request: u64,
}

impl Session {
    /// Sends a request, and returns its id.
    async fn send(&mut self, operation: Option<Operation>) -> u64 {
        let (disk_id, epoch) = (self.disk_id.clone(), Some(epoch()));
        self.send_request(SessionRequest { disk_id, epoch, operation, ..Default::default() }).await
    }

    async fn send_request(&mut self, request: SessionRequest) -> u64 {
        self.last_request += 1;
        self.requests.send(SessionRequest { request_id: self.last_request, ..request }).await.unwrap();
        self.last_request
    }

    /// The next answer; `None` if the stream has ended.
    async fn next(&mut self) -> Option<(u64, Outcome)> {
        let answer = time::timeout(PATIENCE, self.answers.message()).await.unwrap().unwrap()?;
        Some((answer.request_id, answer.outcome.unwrap()))
    }

    /// The next answer, which has to be there.
    async fn answer(&mut self) -> (u64, Outcome) {
        self.next().await.unwrap()
    }

    /// Sends a request that nothing else is outstanding with, and returns its answer.
    async fn ask(&mut self, operation: Operation) -> Outcome {
        let id = self.send(Some(operation)).await;
        let (answered, outcome) = self.answer().await;
        assert_eq!(answered, id);
        outcome
    }

    /// Returns when the agent has taken in everything sent before. Answers to that may come first.
    async fn ping(&mut self) -> Vec<(u64, Outcome)> {
        let id = self.send(Some(Operation::Ping(v1::PingOperation {}))).await;
        let mut before = Vec::new();
        loop {
            match self.answer().await {
                (answered, outcome) if answered == id => {
                    assert_eq!(outcome, DONE);
                    return before;
                }
                other => before.push(other),
            }
        }
    }
}

const DONE: Outcome = Outcome::Done(v1::DoneOutcome {});

fn epoch() -> v1::Epoch {
    v1::Epoch { number: 1, incarnation: 7 }
}

fn version(sequence: u64) -> v1::Version {
    v1::Version { epoch: Some(epoch()), sequence }
}

fn identity() -> v1::UnitIdentity {
    v1::UnitIdentity { chunk: 0, incarnation: Some(version(1)), stripe: 0, shard: 0 }
}

fn label(disk_id: &Bytes) -> v1::Label {
    v1::Label {
        array_id: Bytes::from_static(&[9; 16]),
        revision: 1,
        unit_bytes: UNIT_BYTES,
        slice_bytes: u64::from(UNIT_BYTES),
        shards_max: 2,
        data_shards_max: 1,
        epoch: None,
        may_follow: Vec::new(),
        members: vec![v1::LabelMember { disk_id: disk_id.clone(), address: "a:1".to_owned(), out: None }],
    }
}

fn run(first_sector: u32, data: Vec<u8>) -> v1::SectorRun {
    v1::SectorRun { first_sector, checksums: checksum::of_sectors(&data), data: data.into() }
}

fn fresh_prepare(unit: u64, sequence: u64, runs: Vec<v1::SectorRun>) -> v1::PrepareOperation {
    v1::PrepareOperation {
        unit,
        identity: Some(identity()),
        version: Some(version(sequence)),
        fresh: true,
        participants: vec![0, 1],
        runs,
        ..Default::default()
    }
}

fn fresh(unit: u64, sequence: u64, runs: Vec<v1::SectorRun>) -> Operation {
    Operation::Prepare(fresh_prepare(unit, sequence, runs))
}

fn commit(unit: u64, sequence: u64) -> Operation {
    let writes = vec![v1::UnitVersion { unit, version: Some(version(sequence)) }];
    Operation::Commit(v1::CommitOperation { writes })
}

fn read(unit: u64, sequence: u64, first_sector: u32, sectors: u32) -> Operation {
    let (identity, version) = (Some(identity()), Some(version(sequence)));
    Operation::Read(v1::ReadOperation { unit, identity, version, first_sector, sectors, summary: false })
}

fn refusal(outcome: Outcome) -> RefusalKind {
    match outcome {
        Outcome::Refusal(refusal) => {
            assert!(!refusal.message.is_empty());
            refusal.kind()
        }
        other => panic!("not refused: {other:?}"),
    }
}
