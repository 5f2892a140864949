//! An agent is killed with `kill -9` under load, over and over: what it had answered is there when it comes back, what it
//! had not is there whole or not at all.
//!
//! This shows the death of a process, and no more: the kernel still writes what it was given. Power loss is what the
//! agent's crash tests are for.

use std::{collections::VecDeque, io::Write, process::Stdio, time::Duration};

use bytes::Bytes;
use rustix::process::Signal;
use stripeset_proto::v1::{
    self, SessionRequest, SessionResponse, agent_data_service_client::AgentDataServiceClient,
    agent_service_client::AgentServiceClient, session_request::Operation, session_response::Outcome,
};
use stripeset_stripe::checksum;
use tempfile::TempDir;
use tokio::{process::Child, sync::mpsc, time::timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Streaming, transport::Endpoint};

use super::harness::{Dice, LIMIT, setting, signal, stripeset, until};

/// Kills of a run of the tests. `STRIPESET_KILL_ROUNDS=500` does so many, `STRIPESET_KILL_SEED` begins elsewhere.
const ROUNDS: u64 = 40;

const UNITS: usize = 32;
const UNIT_BYTES: usize = 16 * 1024;
const SECTORS: usize = 4;

/// What fills each sector of a version.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Content {
    version: u64,
    fills: [Option<u8>; SECTORS],
}

/// What a unit holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Unit {
    committed: Option<Content>,
    pending: Option<(Content, bool)>,
    floor: u64,
}

/// What may be found of a unit: the first was answered, the others came since; a commit alone may be taken back.
#[derive(Clone, Debug)]
struct Allowed {
    states: Vec<Unit>,
    /// Of an operation that is on its way: whether its answer binds, and whether it replaces bytes at home.
    on_its_way: Option<(bool, bool)>,
}

impl Unit {
    /// The next operation on this unit, and what it leads to.
    fn next(&self, unit: u64, version: u64, dice: &mut Dice) -> (Operation, Unit, bool) {
        let writes = |version| vec![v1::UnitVersion { unit, version: Some(wire(version)) }];
        let mut after = Unit { floor: version, ..self.clone() };
        let newest = self.pending.as_ref().map(|(content, _)| content).or(self.committed.as_ref());
        match (dice.below(10), newest) {
            (0, _) => {
                after = Unit { floor: version, ..Unit::default() };
                (Operation::Discard(v1::DiscardOperation { writes: writes(version) }), after, false)
            }
            (1, _) => {
                after.pending = self.pending.clone();
                (Operation::Abort(v1::AbortOperation { writes: writes(version) }), after, false)
            }
            (2, _) if self.pending.is_some() => {
                let aborted = self.pending.as_ref().map_or(0, |(content, _)| content.version);
                (after.pending, after.floor) = (None, self.floor);
                (Operation::Abort(v1::AbortOperation { writes: writes(aborted) }), after, false)
            }
            (3..=5, Some(newest)) if self.pending.is_some() => {
                after = Unit { committed: Some(newest.clone()), pending: None, floor: self.floor };
                (Operation::Commit(v1::CommitOperation { writes: writes(newest.version) }), after, false)
            }
            (6.., Some(newest)) => {
                let first = dice.below(SECTORS as u64) as usize;
                let mut content = Content { version, fills: newest.fills };
                content.fills[first] = Some(version as u8);
                after.committed = Some(newest.clone());
                after.pending = Some((content, false));
                let runs = vec![run(first, 1, version as u8)];
                (prepare(unit, version, Some(newest.version), runs), after, false)
            }
            _ => {
                let count = 1 + dice.below(SECTORS as u64) as usize;
                let mut fills = [None; SECTORS];
                fills[..count].fill(Some(version as u8));
                after.committed = None;
                after.pending = Some((Content { version, fills }, true));
                (prepare(unit, version, None, vec![run(0, count, version as u8)]), after, true)
            }
        }
    }
}

/// Each epoch has its own million of versions.
const VERSIONS_IN_EPOCH: u64 = 1_000_000;

fn wire(sequence: u64) -> v1::Version {
    v1::Version { epoch: Some(v1::Epoch { number: sequence / VERSIONS_IN_EPOCH, incarnation: 1 }), sequence }
}

fn run(first: usize, count: usize, fill: u8) -> v1::SectorRun {
    let data = vec![fill; count * 4096];
    v1::SectorRun { first_sector: first as u32, checksums: checksum::of_sectors(&data), data: data.into() }
}

fn identity(unit: u64) -> v1::UnitIdentity {
    v1::UnitIdentity { chunk: 0, incarnation: Some(wire(VERSIONS_IN_EPOCH)), stripe: unit as u32, shard: 0 }
}

fn prepare(unit: u64, version: u64, base: Option<u64>, runs: Vec<v1::SectorRun>) -> Operation {
    Operation::Prepare(v1::PrepareOperation {
        unit,
        identity: Some(identity(unit)),
        version: Some(wire(version)),
        base: base.map(wire),
        fresh: base.is_none(),
        participants: vec![0],
        runs,
        summary: None,
    })
}

/// A running agent, and a data stream to it.
struct Agent {
    child: Child,
    control: AgentServiceClient<tonic::transport::Channel>,
    disk_id: Bytes,
    epoch: v1::Epoch,
    requests: mpsc::Sender<SessionRequest>,
    answers: Streaming<SessionResponse>,
    /// Of the requests that were not answered: the unit of each.
    sent: VecDeque<(u64, usize)>,
    last_request: u64,
}

impl Agent {
    async fn start(place: &TempDir, address: &str, epoch: u64) -> Agent {
        let disk = place.path().join("disk");
        let mut command = stripeset();
        command.args(["agent", "--size", "64MiB", "--listen", address, "--disk"]).arg(disk);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
        let mut channel = None;
        until("the agent serves", async || {
            channel = endpoint.connect().await.ok();
            channel.is_some()
        })
        .await;
        let channel = channel.unwrap();
        let mut control = AgentServiceClient::new(channel.clone());
        let described = control.describe(v1::DescribeRequest {}).await.unwrap().into_inner();
        let disk_id = described.disk_id;
        if described.label.is_none() {
            let label = v1::Label {
                array_id: Bytes::from_static(&[9; 16]),
                revision: 1,
                unit_bytes: UNIT_BYTES as u32,
                slice_bytes: 1 << 20,
                shards_max: 2,
                data_shards_max: 1,
                epoch: None,
                may_follow: Vec::new(),
                members: vec![v1::LabelMember {
                    disk_id: disk_id.clone(),
                    address: address.to_owned(),
                    out: None,
                }],
            };
            let join = v1::JoinRequest { disk_id: disk_id.clone(), label: Some(label) };
            control.join(join).await.unwrap();
        }
        let epoch = v1::Epoch { number: epoch, incarnation: 1 };
        let fence = v1::FenceRequest {
            disk_id: disk_id.clone(),
            epoch: Some(epoch),
            folder_id: Bytes::from_static(&[3; 16]),
        };
        control.fence(fence).await.unwrap();
        let (requests, receiver) = mpsc::channel(4096);
        let mut data = AgentDataServiceClient::new(channel);
        let answers = data.session(ReceiverStream::new(receiver)).await.unwrap().into_inner();
        Agent { child, control, disk_id, epoch, requests, answers, sent: VecDeque::new(), last_request: 0 }
    }

    async fn send(&mut self, unit: usize, operation: Operation) {
        self.last_request += 1;
        let request = SessionRequest {
            request_id: self.last_request,
            disk_id: self.disk_id.clone(),
            epoch: Some(self.epoch),
            operation: Some(operation),
            ..Default::default()
        };
        self.sent.push_back((self.last_request, unit));
        self.requests.send(request).await.unwrap();
    }

    /// The next answer, and the unit that it is about. `None` if the agent is gone.
    async fn answer(&mut self) -> Option<(usize, Outcome)> {
        let answer = timeout(LIMIT, self.answers.message()).await.expect("an answer in time").ok()??;
        let place = self.sent.iter().position(|(id, _)| *id == answer.request_id).unwrap();
        Some((self.sent.remove(place).unwrap().1, answer.outcome.unwrap()))
    }

    /// Content of a unit at a version.
    async fn content(&mut self, unit: usize, version: &v1::Version) -> Content {
        let read = v1::ReadOperation {
            unit: unit as u64,
            identity: Some(identity(unit as u64)),
            version: Some(*version),
            first_sector: 0,
            sectors: SECTORS as u32,
            summary: false,
        };
        self.send(unit, Operation::Read(read)).await;
        let Some((_, Outcome::Read(read))) = self.answer().await else {
            panic!("unit {unit} cannot be read")
        };
        let mut fills = [None; SECTORS];
        for (sector, data) in read.data.chunks(4096).enumerate() {
            let bit = |bits: &Bytes| bits[0] >> sector & 1 == 1;
            assert!(data.iter().all(|byte| *byte == data[0]), "a torn sector in unit {unit}");
            // 0 is no version's fill: what is bad stands apart.
            fills[sector] = bit(&read.written).then_some(if bit(&read.bad) { 0 } else { data[0] });
        }
        Content { version: version.sequence, fills }
    }

    async fn units(&mut self) -> Vec<Unit> {
        let request = v1::ListUnitsRequest { units: (0..UNITS as u64).collect(), ..Default::default() };
        let records = self.control.list_units(request).await.unwrap().into_inner().units;
        let request = v1::ListPendingRequest::default();
        let pending = self.control.list_pending(request).await.unwrap().into_inner().pending;
        let mut units = Vec::new();
        for (unit, record) in records.into_iter().enumerate() {
            let mut seen = Unit { floor: record.floor.map_or(0, |floor| floor.sequence), ..Unit::default() };
            if let Some(version) = &record.committed_version {
                seen.committed = Some(self.content(unit, version).await);
            }
            if let Some(version) = &record.pending_version {
                let fresh = pending.iter().find(|write| write.unit == unit as u64).unwrap().fresh;
                seen.pending = Some((self.content(unit, version).await, fresh));
            }
            units.push(seen);
        }
        units
    }
}

impl Allowed {
    fn settled(unit: Unit) -> Allowed {
        Allowed { states: vec![unit], on_its_way: None }
    }

    fn answered(&mut self) {
        if self.on_its_way.take().is_some_and(|(binds, _)| binds) {
            self.states.drain(..self.states.len() - 1);
        }
    }

    /// Whether the unit may be like this: while bytes at home are replaced, sectors of what was there may be bad.
    fn has(&self, seen: &Unit) -> bool {
        let replaced = self.on_its_way.is_some_and(|(_, replaces)| replaces);
        let is = |content: &Content, state: &Content| {
            let pairs = content.fills.iter().zip(&state.fills);
            content.version == state.version
                && pairs.into_iter().all(|(seen, known)| seen == known || replaced && *seen == Some(0))
        };
        self.states.iter().any(|state| {
            let committed = match (&seen.committed, &state.committed) {
                (Some(seen), Some(state)) => is(seen, state),
                (seen, state) => seen == state,
            };
            let pending = match (&seen.pending, &state.pending) {
                (Some((seen, fresh)), Some((state, was))) => fresh == was && is(seen, state),
                (seen, state) => seen == state,
            };
            committed && pending && seen.floor == state.floor
        })
    }
}

#[tokio::test]
async fn an_agent_killed_under_load_keeps_what_it_answered() {
    let (rounds, seed) = (setting("STRIPESET_KILL_ROUNDS", ROUNDS), setting("STRIPESET_KILL_SEED", 1));
    let place = TempDir::new().unwrap();
    let address = super::services::free_address();
    let mut dice = Dice::new(seed);
    let mut units: Vec<Allowed> = vec![Allowed::settled(Unit::default()); UNITS];
    let mut answers = 0_u64;
    for round in 1..=rounds {
        let mut agent = Agent::start(&place, &address, round).await;
        for (unit, seen) in agent.units().await.into_iter().enumerate() {
            assert!(
                units[unit].has(&seen),
                "round {round}, STRIPESET_KILL_SEED={seed}: unit {unit} is {seen:?}, none of {:?}",
                units[unit].states
            );
            units[unit] = Allowed::settled(seen);
        }
        let mut version = round * VERSIONS_IN_EPOCH;
        let mut left = 50 + dice.below(2000);
        let pid = agent.child.id().unwrap().try_into().unwrap();
        loop {
            while left > 0 && agent.sent.len() < UNITS {
                let unit = (0..UNITS).find(|unit| units[*unit].on_its_way.is_none()).unwrap();
                version += 1 + u64::from((version + 1).is_multiple_of(256));
                let (operation, after, replaces) =
                    units[unit].states.last().unwrap().next(unit as u64, version, &mut dice);
                units[unit].on_its_way = Some((!matches!(operation, Operation::Commit(_)), replaces));
                if matches!(&operation, Operation::Prepare(prepare) if !prepare.fresh) {
                    // The base may be committed without the write over it.
                    let before = units[unit].states.last().unwrap().clone();
                    units[unit].states.push(Unit {
                        committed: after.committed.clone(),
                        pending: None,
                        ..before
                    });
                }
                units[unit].states.push(after);
                agent.send(unit, operation).await;
                left -= 1;
                if left == 0 {
                    signal(pid, Signal::KILL);
                }
            }
            let Some((unit, outcome)) = agent.answer().await else { break };
            assert!(matches!(outcome, Outcome::Done(_)), "round {round}, unit {unit}: {outcome:?}");
            units[unit].answered();
            answers += 1;
        }
        timeout(Duration::from_secs(20), agent.child.wait()).await.expect("it was killed").unwrap();
    }
    // Past the capture of the test's output: the count is a part of the result.
    writeln!(std::io::stderr(), "{answers} answers of an agent that was killed {rounds} times").unwrap();
}
