//! What a prepare costs: a whole agent on a file, over a data stream on loopback, beside plain writes of the same bytes to
//! the same folder in the same run.
//!
//! `cargo bench -p stripeset-agent [-- --seconds 5 --folder /mnt/disk]`. Nothing else should run meanwhile. CPU is that of
//! the whole process: agent, client, both ends of the stream. Bounded: files of at most 4 GiB, removed at the end.

#![expect(clippy::unwrap_used, reason = "a benchmark that cannot go on stops")]

use std::{
    fs::OpenOptions,
    io::IoSlice,
    path::{Path, PathBuf},
    time::Duration,
};

use bytes::Bytes;
use rustix::{
    fs::fdatasync,
    io::{pwritev, retry_on_intr},
};
use stripeset_agent::{Agent, AgentConfig};
use stripeset_proto::{
    limits::MESSAGE_BYTES_MAX,
    v1::{
        self, SessionRequest, SessionResponse, agent_data_service_client::AgentDataServiceClient,
        agent_service_client::AgentServiceClient, session_request::Operation, session_response::Outcome,
    },
};
use stripeset_stripe::{SECTOR_BYTES, checksum};
use stripeset_telemetry::shutdown;
use tokio::{sync::mpsc, time::Instant};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Streaming, transport::Endpoint};

const UNIT_BYTES: usize = 64 * 1024;
const UNIT_SECTORS: usize = UNIT_BYTES / SECTOR_BYTES;
const DISK_BYTES: u64 = 4 << 30;

/// Units that partial writes go to, at random.
const PARTIAL_UNITS: u64 = 4096;

/// Fresh writes that are committed by one message.
const COMMIT_BATCH: usize = 64;

/// Most bytes that a plain loop writes before it begins again at the start of its file.
const PLAIN_BYTES_MAX: u64 = 2 << 30;

struct Options {
    seconds: u64,
    folder: PathBuf,
}

impl Options {
    /// `cargo bench` adds `--bench`.
    fn read() -> Options {
        let mut options = Options { seconds: 5, folder: std::env::temp_dir() };
        let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
        while let Some(argument) = arguments.next() {
            match (argument.as_str(), arguments.next()) {
                ("--seconds", Some(seconds)) => options.seconds = seconds.parse().unwrap(),
                ("--folder", Some(folder)) => options.folder = folder.into(),
                _ => panic!("usage: cargo bench -p stripeset-agent [-- --seconds N --folder PATH]"),
            }
        }
        options
    }
}

/// CPU seconds of this process so far, all threads: fields 14 and 15 of its stat.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    ticks as f64 / rustix::param::clock_ticks_per_second() as f64
}

/// What a loop did.
struct Measured {
    operations: u64,
    bytes: u64,
    seconds: f64,
    cpu_seconds: f64,
    p50: Duration,
    p99: Duration,
}

impl Measured {
    fn print(&self, what: &str) {
        println!(
            "{what:<44} {:>9.0}/s {:>8.1} MB/s {:>7.1} us CPU {:>8.0} us p50 {:>8.0} us p99",
            self.operations as f64 / self.seconds,
            self.bytes as f64 / self.seconds / 1e6,
            self.cpu_seconds * 1e6 / self.operations as f64,
            self.p50.as_secs_f64() * 1e6,
            self.p99.as_secs_f64() * 1e6,
        );
    }
}

/// Runs `step` until time is up; it returns how long each operation of the step took.
async fn measure(seconds: u64, bytes_each: usize, mut step: impl AsyncFnMut() -> Vec<Duration>) -> Measured {
    let (start, cpu) = (Instant::now(), cpu_seconds());
    let mut latencies = Vec::new();
    while start.elapsed() < Duration::from_secs(seconds) {
        latencies.extend(step().await);
    }
    let (seconds, cpu_seconds) = (start.elapsed().as_secs_f64(), cpu_seconds() - cpu);
    latencies.sort_unstable();
    let operations = latencies.len() as u64;
    let quantile = |of_100: usize| latencies[latencies.len() * of_100 / 100];
    let (p50, p99) = (quantile(50), quantile(99));
    Measured { operations, bytes: operations * bytes_each as u64, seconds, cpu_seconds, p50, p99 }
}

/// Writes to a file of its own, through the page cache, `group` writes for each sync.
async fn plain(options: &Options, bytes_each: usize, group: usize) -> Measured {
    let path = options.folder.join("plain");
    let file = OpenOptions::new().write(true).create(true).truncate(true).open(&path).unwrap();
    let bytes = vec![7; bytes_each];
    let mut offset = 0;
    let measured = measure(options.seconds, bytes_each, async || {
        let start = Instant::now();
        for _ in 0..group {
            retry_on_intr(|| pwritev(&file, &[IoSlice::new(&bytes)], offset)).unwrap();
            offset = (offset + bytes_each as u64) % PLAIN_BYTES_MAX;
        }
        fdatasync(&file).unwrap();
        vec![start.elapsed(); group]
    })
    .await;
    std::fs::remove_file(path).unwrap();
    measured
}

/// A client of one data stream.
struct Client {
    disk_id: Bytes,
    requests: mpsc::Sender<SessionRequest>,
    answers: Streaming<SessionResponse>,
    version: u64,
    sent: std::collections::VecDeque<(u64, Instant)>,
    units: u64,
}

fn epoch() -> v1::Epoch {
    v1::Epoch { number: 1, incarnation: 1 }
}

fn version(sequence: u64) -> v1::Version {
    v1::Version { epoch: Some(epoch()), sequence }
}

impl Client {
    /// Joins and fences the blank disk of an agent.
    async fn connect(address: String) -> Client {
        let channel = Endpoint::from_shared(address).unwrap().tcp_nodelay(true).connect().await.unwrap();
        let mut control = AgentServiceClient::new(channel.clone());
        let disk_id = control.describe(v1::DescribeRequest {}).await.unwrap().into_inner().disk_id;
        let label = v1::Label {
            array_id: Bytes::from_static(&[9; 16]),
            revision: 1,
            unit_bytes: UNIT_BYTES as u32,
            slice_bytes: 16 << 20,
            shards_max: 5,
            data_shards_max: 4,
            epoch: None,
            may_follow: Vec::new(),
            members: vec![v1::LabelMember {
                disk_id: disk_id.clone(),
                address: "bench:1".to_owned(),
                out: None,
            }],
        };
        let join = v1::JoinRequest { disk_id: disk_id.clone(), label: Some(label) };
        control.join(join).await.unwrap();
        let units = control.describe(v1::DescribeRequest {}).await.unwrap().into_inner().units;
        let fence = v1::FenceRequest {
            disk_id: disk_id.clone(),
            epoch: Some(epoch()),
            folder_id: Bytes::from_static(&[3; 16]),
        };
        control.fence(fence).await.unwrap();
        let (requests, receiver) = mpsc::channel(4096);
        let mut data = AgentDataServiceClient::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX);
        let answers = data.session(ReceiverStream::new(receiver)).await.unwrap().into_inner();
        Client { disk_id, requests, answers, version: 1, sent: Default::default(), units }
    }

    async fn send(&mut self, operation: Operation) {
        self.version += 1;
        let request = SessionRequest {
            request_id: self.version,
            disk_id: self.disk_id.clone(),
            epoch: Some(epoch()),
            operation: Some(operation),
            ..Default::default()
        };
        self.sent.push_back((self.version, Instant::now()));
        self.requests.send(request).await.unwrap();
    }

    /// Waits for one answer, and returns how long it took.
    async fn answer(&mut self) -> Duration {
        let answer = self.answers.message().await.unwrap().unwrap();
        assert!(matches!(answer.outcome, Some(Outcome::Done(_))), "{answer:?}");
        let place = self.sent.iter().position(|(id, _)| *id == answer.request_id).unwrap();
        self.sent.remove(place).unwrap().1.elapsed()
    }

    async fn all_answered(&mut self) {
        while !self.sent.is_empty() {
            self.answer().await;
        }
    }

    fn prepare(&self, unit: u64, base: Option<u64>, run: v1::SectorRun) -> Operation {
        let incarnation = Some(version(1));
        Operation::Prepare(v1::PrepareOperation {
            unit,
            identity: Some(v1::UnitIdentity { chunk: 0, incarnation, stripe: unit as u32, shard: 0 }),
            version: Some(version(self.version + 1)),
            base: base.map(version),
            fresh: base.is_none(),
            participants: vec![0, 1],
            runs: vec![run],
            summary: None,
        })
    }
}

fn run(first_sector: u32, sectors: usize) -> v1::SectorRun {
    let data = vec![first_sector as u8 + 1; sectors * SECTOR_BYTES];
    v1::SectorRun { first_sector, checksums: checksum::of_sectors(&data), data: data.into() }
}

/// Fresh writes of whole units, one behind the other, committed in batches as a coordinator does.
async fn fresh(client: &mut Client, options: &Options, outstanding: usize, next: &mut u64) -> Measured {
    let whole = run(0, UNIT_SECTORS);
    let mut prepared = Vec::new();
    let measured = measure(options.seconds, UNIT_BYTES, async || {
        while client.sent.len() < outstanding {
            let prepare = client.prepare(*next, None, whole.clone());
            prepared.push(v1::UnitVersion { unit: *next, version: Some(version(client.version + 1)) });
            *next = (*next + 1) % client.units;
            client.send(prepare).await;
        }
        let took = client.answer().await;
        if prepared.len() >= COMMIT_BATCH + outstanding {
            let writes = prepared.drain(..COMMIT_BATCH).collect();
            client.send(Operation::Commit(v1::CommitOperation { writes })).await;
        }
        vec![took]
    })
    .await;
    client.all_answered().await;
    measured
}

/// Partial writes of one sector to units at random, each over the one before it in its unit, which that commits; and
/// committed in batches, as a coordinator does.
async fn partial(client: &mut Client, options: &Options, outstanding: usize) -> Measured {
    let mut newest = Vec::new();
    for unit in 0..PARTIAL_UNITS {
        let prepare = client.prepare(unit, None, run(0, UNIT_SECTORS));
        client.send(prepare).await;
        newest.push(client.version);
        if client.sent.len() == 64 {
            client.all_answered().await;
        }
    }
    client.all_answered().await;
    let sector = run(0, 1);
    let mut prepared = Vec::new();
    let mut dice = 0x9e37_79b9_7f4a_7c15_u64;
    let measured = measure(options.seconds, SECTOR_BYTES, async || {
        while client.sent.len() < outstanding {
            dice ^= dice << 13;
            dice ^= dice >> 7;
            dice ^= dice << 17;
            let unit = dice % PARTIAL_UNITS;
            let first_sector = (dice >> 32) as u32 % UNIT_SECTORS as u32;
            let run = v1::SectorRun { first_sector, ..sector.clone() };
            let prepare = client.prepare(unit, Some(newest[unit as usize]), run);
            client.send(prepare).await;
            newest[unit as usize] = client.version;
            prepared.push(v1::UnitVersion { unit, version: Some(version(client.version)) });
        }
        let took = client.answer().await;
        if prepared.len() >= COMMIT_BATCH + outstanding {
            let writes = prepared.drain(..COMMIT_BATCH).collect();
            client.send(Operation::Commit(v1::CommitOperation { writes })).await;
        }
        vec![took]
    })
    .await;
    client.all_answered().await;
    measured
}

async fn agent(folder: &Path) -> Agent {
    let listen = "127.0.0.1:0".parse().unwrap();
    let disk = folder.join("disk");
    Agent::bind(AgentConfig { disk, size: Some(DISK_BYTES), listen, faults: false }).await.unwrap()
}

fn main() {
    let mut options = Options::read();
    let folder = tempfile::tempdir_in(&options.folder).unwrap();
    options.folder = folder.path().to_owned();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        plain(&options, UNIT_BYTES, 1).await.print("plain 64 KiB, a sync for each");
        plain(&options, UNIT_BYTES, 16).await.print("plain 64 KiB, a sync for 16");
        plain(&options, SECTOR_BYTES, 1).await.print("plain 4 KiB, a sync for each");
        plain(&options, SECTOR_BYTES, 32).await.print("plain 4 KiB, a sync for 32");
        let agent = agent(folder.path()).await;
        let address = format!("http://{}", agent.local_addr());
        let (trigger, stop) = shutdown::manual();
        let served = tokio::spawn(agent.serve(stop));
        let mut client = Client::connect(address).await;
        let mut next = PARTIAL_UNITS;
        for outstanding in [1, 16, 32] {
            let what = format!("fresh prepare, 64 KiB, {outstanding} outstanding");
            fresh(&mut client, &options, outstanding, &mut next).await.print(&what);
        }
        for outstanding in [1, 8, 32] {
            let what = format!("prepare over a base, 4 KiB, {outstanding} outstanding");
            partial(&mut client, &options, outstanding).await.print(&what);
        }
        drop(client);
        trigger.stop();
        served.await.unwrap().unwrap();
    });
}
