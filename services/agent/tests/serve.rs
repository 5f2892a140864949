//! A real agent on loopback: the data stream, its limits and refusals, and how an agent stops.

#![expect(clippy::tests_outside_test_module, reason = "an integration test is a test module")]

use std::{collections::HashMap, net::SocketAddr, path::Path, time::Duration};

use bytes::Bytes;
use stripeset_agent::{Agent, AgentConfig, AgentError};
use stripeset_proto::{
    Error, ErrorKind, limits,
    v1::{
        self, RefusalKind, SessionRequest, agent_data_service_client::AgentDataServiceClient,
        agent_service_client::AgentServiceClient, session_request::Operation, session_response::Outcome,
    },
};
use stripeset_stripe::checksum;
use stripeset_telemetry::shutdown::{self, ShutdownTrigger};
use tokio::{sync::mpsc, task::JoinHandle, time};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Streaming, transport::Channel};

const MIB: u64 = 1024 * 1024;
const UNIT_BYTES: u32 = 64 * 1024;
/// Longest time anything here may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// A running agent and the way to stop it.
struct Running {
    address: SocketAddr,
    trigger: ShutdownTrigger,
    served: JoinHandle<Result<(), AgentError>>,
}

impl Running {
    async fn start(disk: &Path) -> Running {
        let config = AgentConfig {
            disk: disk.to_owned(),
            size: Some(64 * MIB),
            listen: "127.0.0.1:0".parse().unwrap(),
        };
        let agent = Agent::bind(config).await.unwrap();
        let (trigger, stop) = shutdown::manual();
        Running { address: agent.local_addr(), trigger, served: tokio::spawn(agent.serve(stop)) }
    }

    async fn channel(&self) -> Channel {
        Channel::from_shared(format!("http://{}", self.address)).unwrap().connect().await.unwrap()
    }

    async fn stop(self) {
        self.trigger.stop();
        time::timeout(PATIENCE, self.served).await.unwrap().unwrap().unwrap();
    }
}

/// An agent with a joined and fenced disk, and one data stream to it.
struct Member {
    agent: Running,
    control: AgentServiceClient<Channel>,
    disk_id: Bytes,
    requests: mpsc::Sender<SessionRequest>,
    answers: Streaming<v1::SessionResponse>,
    last_request: u64,
}

fn epoch() -> v1::Epoch {
    v1::Epoch { number: 1, incarnation: 7 }
}

fn version(sequence: u64) -> v1::Version {
    v1::Version { epoch: Some(epoch()), sequence }
}

fn identity() -> v1::UnitIdentity {
    v1::UnitIdentity { chunk: 0, incarnation: Some(version(1)), stripe: 0, shard: 0 }
}

fn run(first_sector: u32, data: Vec<u8>) -> v1::SectorRun {
    v1::SectorRun { first_sector, checksums: checksum::of_sectors(&data), data: data.into() }
}

fn fresh(unit: u64, sequence: u64, runs: Vec<v1::SectorRun>) -> Operation {
    Operation::Prepare(v1::PrepareOperation {
        unit,
        identity: Some(identity()),
        version: Some(version(sequence)),
        fresh: true,
        participants: vec![0, 1],
        runs,
        ..Default::default()
    })
}

fn commit(unit: u64, sequence: u64) -> Operation {
    let writes = vec![v1::UnitVersion { unit, version: Some(version(sequence)) }];
    Operation::Commit(v1::CommitOperation { writes })
}

fn read(unit: u64, sequence: u64, first_sector: u32, sectors: u32) -> Operation {
    let (identity, version) = (Some(identity()), Some(version(sequence)));
    Operation::Read(v1::ReadOperation { unit, identity, version, first_sector, sectors, summary: false })
}

impl Member {
    async fn start(disk: &Path) -> Member {
        let agent = Running::start(disk).await;
        let channel = agent.channel().await;
        let mut control = AgentServiceClient::new(channel.clone());
        let described = control.describe(v1::DescribeRequest {}).await.unwrap().into_inner();
        let disk_id = described.disk_id;
        if described.label.is_none() {
            let label = v1::Label {
                array_id: Bytes::from_static(&[9; 16]),
                revision: 1,
                member: 0,
                unit_bytes: UNIT_BYTES,
                slice_bytes: MIB,
                members: vec![v1::LabelMember {
                    disk_id: disk_id.clone(),
                    address: agent.address.to_string(),
                }],
            };
            let join = v1::JoinRequest { disk_id: disk_id.clone(), label: Some(label) };
            assert!(control.join(join).await.unwrap().into_inner().slices > 0);
        }
        let fence = v1::FenceRequest { disk_id: disk_id.clone(), epoch: Some(epoch()) };
        control.fence(fence).await.unwrap();
        let (requests, receiver) = mpsc::channel(4096);
        let mut data =
            AgentDataServiceClient::new(channel).max_decoding_message_size(limits::MESSAGE_BYTES_MAX);
        let answers = data.session(ReceiverStream::new(receiver)).await.unwrap().into_inner();
        Member { agent, control, disk_id, requests, answers, last_request: 0 }
    }

    /// Sends a request, and returns its id.
    async fn send(&mut self, operation: Option<Operation>) -> u64 {
        self.last_request += 1;
        let request = SessionRequest {
            request_id: self.last_request,
            disk_id: self.disk_id.clone(),
            epoch: Some(epoch()),
            timeout_millis: 0,
            operation,
        };
        self.requests.send(request).await.unwrap();
        self.last_request
    }

    /// The next answer.
    async fn answer(&mut self) -> (u64, Outcome) {
        let answer = time::timeout(PATIENCE, self.answers.message()).await.unwrap().unwrap().unwrap();
        (answer.request_id, answer.outcome.unwrap())
    }

    async fn ask(&mut self, operation: Operation) -> Outcome {
        let id = self.send(Some(operation)).await;
        let (answered, outcome) = self.answer().await;
        assert_eq!(answered, id);
        outcome
    }
}

fn refusal(outcome: Outcome) -> RefusalKind {
    match outcome {
        Outcome::Refusal(refusal) => refusal.kind(),
        other => panic!("not refused: {other:?}"),
    }
}

#[tokio::test]
async fn prepare_commit_read_and_the_same_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let disk = folder.path().join("disk");
    let mut member = Member::start(&disk).await;
    let bytes: Vec<u8> = (0..UNIT_BYTES).map(|index| (index / 7) as u8).collect();
    assert_eq!(member.ask(fresh(3, 2, vec![run(0, bytes.clone())])).await, Outcome::Done(v1::DoneOutcome {}));
    assert_eq!(member.ask(commit(3, 2)).await, Outcome::Done(v1::DoneOutcome {}));
    for _ in 0..2 {
        let Outcome::Read(outcome) = member.ask(read(3, 2, 1, 15)).await else { panic!() };
        assert_eq!(outcome.data, bytes[4096..]);
        assert_eq!(outcome.checksums, checksum::of_sectors(&bytes[4096..]));
        assert_eq!((&outcome.written[..], &outcome.bad[..]), (&[0xff, 0x7f][..], &[0, 0][..]));
        member.agent.stop().await;
        member = Member::start(&disk).await;
    }
    member.agent.stop().await;
}
