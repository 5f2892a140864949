//! What a small write into a stripe that holds others costs: the engine in this process, five agents in processes of their
//! own, 4+1, 64 KiB units, durable 4 KiB writes at random places.
//!
//! `cargo bench -p stripeset-cli --bench partial_writes [-- --seconds 5 --outstanding 32 --folder /mnt/disk]`. Nothing else
//! should run meanwhile. CPU of this process is that of the coordinator and of the loop that drives it; there is no client
//! in it. Bounded: five disks of 512 MiB, removed at the end.

#![expect(clippy::unwrap_used, reason = "a benchmark that cannot go on stops")]

use std::{
    net::TcpListener,
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use stripeset_coordinator::{
    array::{Array, Phase, StartPatience, create::Plan},
    engine::Edit,
    extents::StripeRef,
    meta::Meta,
    state::StateFolder,
    versions::VersionSequence,
};
use stripeset_proto::v1;
use stripeset_stripe::{
    SECTOR_BYTES,
    cache::{Class, Counters, Granularity, Mode},
    geometry::Shard,
};
use tokio::time::Instant;

const AGENTS: usize = 5;
const DISK_BYTES: &str = "512MiB";

/// Stripes that are written to: 127 MiB of data, half of what the cache may hold.
const STRIPES: usize = 512;

struct Options {
    seconds: u64,
    outstanding: usize,
    folder: PathBuf,
}

impl Options {
    /// `cargo bench` adds `--bench`.
    fn read() -> Options {
        let mut options = Options { seconds: 5, outstanding: 32, folder: std::env::temp_dir() };
        let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
        while let Some(argument) = arguments.next() {
            match (argument.as_str(), arguments.next()) {
                ("--seconds", Some(seconds)) => options.seconds = seconds.parse().unwrap(),
                ("--outstanding", Some(outstanding)) => options.outstanding = outstanding.parse().unwrap(),
                ("--folder", Some(folder)) => options.folder = folder.into(),
                _ => panic!("usage: -- [--seconds N] [--outstanding N] [--folder PATH]"),
            }
        }
        options
    }
}

/// Agents that end with this process.
struct Agents(Vec<Child>);

impl Drop for Agents {
    fn drop(&mut self) {
        for agent in &mut self.0 {
            agent.kill().unwrap();
            agent.wait().unwrap();
        }
    }
}

fn start_agents(folder: &std::path::Path) -> (Agents, Vec<String>) {
    let (mut agents, mut addresses) = (Agents(Vec::new()), Vec::new());
    for index in 0..AGENTS {
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let agent = Command::new(env!("CARGO_BIN_EXE_stripeset"))
            .args(["agent", "--size", DISK_BYTES, "--listen", &address, "--disk"])
            .arg(folder.join(format!("disk-{index}")))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        agents.0.push(agent.unwrap());
        addresses.push(address);
    }
    (agents, addresses)
}

/// CPU seconds of a process so far, all threads: fields 14 and 15 of its stat.
fn cpu_seconds(process: &str) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    ticks as f64 / rustix::param::clock_ticks_per_second() as f64
}

async fn array(options: &Options, addresses: Vec<String>) -> Arc<Array> {
    let request = v1::CreateArrayRequest {
        agents: addresses,
        data_profile: "raid5-4+1".to_owned(),
        metadata_profile: "raid5-4+1".to_owned(),
        unit_bytes: 64 * 1024,
        slice_bytes: 16 * 1024 * 1024,
    };
    let deadline = Instant::now() + Duration::from_secs(20);
    let (record, members, label) = loop {
        match Plan::new(request.clone()).unwrap().carry_out().await {
            Ok(made) => break made,
            Err(error) if Instant::now() > deadline => panic!("{error}"),
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    };
    let (meta, _) = Meta::open(&options.folder).unwrap();
    meta.create_array(record.clone(), members).await.unwrap();
    let folder = StateFolder::open(&options.folder).unwrap();
    folder.remember(label, true).await.unwrap();
    let versions = Arc::new(VersionSequence::new(folder.claim_epoch(1, 0).await.unwrap()));
    let patience = StartPatience { patience: Duration::from_secs(20), forced: false };
    let array = Array::start(record, meta, versions, folder, patience).unwrap();
    while array.phase() != Phase::Serving {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    array
}

/// Stripes that hold all but their last sector: so that they are in the cache, and no write fills them.
async fn stripes(array: &Array) -> Vec<StripeRef> {
    let mut stripes = Vec::new();
    for _ in 0..STRIPES {
        let stripe = array.engine.extents.take_stripe().await.unwrap().unwrap();
        let unit_bytes = stripe.geometry().unit_bytes();
        let unit = |shard: usize| {
            Bytes::from(vec![
                shard as u8 + 1;
                if shard == 3 { unit_bytes - SECTOR_BYTES } else { unit_bytes }
            ])
        };
        let data: Vec<Bytes> = (0..4).map(unit).collect();
        array.engine.write_fresh(&stripe, &data).await.unwrap();
        stripes.push(stripe);
    }
    stripes
}

/// One loop of many: random stripe, random sector, until time is up. How long each write took.
async fn drive(array: Arc<Array>, stripes: Arc<Vec<StripeRef>>, seed: u64, until: Instant) -> Vec<Duration> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut random = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as usize % below
    };
    let mut latencies = Vec::new();
    let data = Bytes::from(vec![seed as u8; SECTOR_BYTES]);
    while Instant::now() < until {
        let stripe = &stripes[random(STRIPES)];
        let edit =
            Edit { shard: Shard(random(3) as u8), first_sector: random(16) as u32, data: data.clone() };
        let started = Instant::now();
        array.engine.write_partial(stripe, vec![edit]).await.unwrap();
        latencies.push(started.elapsed());
    }
    latencies
}

async fn measure(
    what: &str,
    options: &Options,
    array: &Arc<Array>,
    stripes: &Arc<Vec<StripeRef>>,
    agents: &Agents,
) {
    let of_agents = || agents.0.iter().map(|agent| cpu_seconds(&agent.id().to_string())).sum::<f64>();
    let before: Counters = array.engine.cache().counters(Class::Data);
    let (started, own, others) = (Instant::now(), cpu_seconds("self"), of_agents());
    let until = started + Duration::from_secs(options.seconds);
    let loops: Vec<_> = (0..options.outstanding as u64)
        .map(|seed| tokio::spawn(drive(array.clone(), stripes.clone(), seed + 1, until)))
        .collect();
    let mut latencies = Vec::new();
    for driven in loops {
        latencies.extend(driven.await.unwrap());
    }
    let seconds = started.elapsed().as_secs_f64();
    let (own, others) = (cpu_seconds("self") - own, of_agents() - others);
    latencies.sort_unstable();
    let writes = latencies.len() as f64;
    let micros = |of_100: usize| latencies[latencies.len() * of_100 / 100].as_secs_f64() * 1e6;
    let after = array.engine.cache().counters(Class::Data);
    let (partial, skips) = (after.rmw_partial - before.rmw_partial, after.rmw_skips - before.rmw_skips);
    println!(
        "{what:<11} {:>7.0}/s  {:>6.0} us p50  {:>6.0} us p99  CPU {:>5.1} us coordinator + {:>5.1} us agents = {:>5.1} us  \
         {:>5.1} % read nothing, {:.2} writes a parity",
        writes / seconds,
        micros(50),
        micros(99),
        own * 1e6 / writes,
        others * 1e6 / writes,
        (own + others) * 1e6 / writes,
        skips as f64 * 100.0 / partial as f64,
        writes / partial as f64,
    );
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let mut options = Options::read();
    let folder = tempfile::TempDir::new_in(&options.folder).unwrap();
    options.folder = folder.path().to_owned();
    let (agents, addresses) = start_agents(&options.folder);
    let array = array(&options, addresses).await;
    let stripes = Arc::new(stripes(&array).await);
    println!("4 KiB partial writes, 4+1, {} outstanding, {} s each", options.outstanding, options.seconds);
    for _ in 0..2 {
        measure("cached", &options, &array, &stripes, &agents).await;
        array.engine.cache().set_mode(Mode::Off, Granularity::Sector);
        measure("not cached", &options, &array, &stripes, &agents).await;
        array.engine.cache().set_mode(Mode::Drop, Granularity::Sector);
        // Once each, to fill it again.
        for stripe in stripes.iter() {
            for first_sector in 0..16 {
                let data = Bytes::from(vec![9; SECTOR_BYTES]);
                let edit = Edit { shard: Shard(0), first_sector, data };
                array.engine.write_partial(stripe, vec![edit]).await.unwrap();
            }
        }
    }
    drop(agents);
}
