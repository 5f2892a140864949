//! The coordinator dies in the middle of many writes, an agent with it; agents freeze. What was acknowledged is there, what
//! was not is old or new, and nothing else.

use std::{
    collections::BTreeMap,
    fs,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use rustix::process::Signal;
use stripeset_client::{Client, RetryPolicy};
use tokio::time::Instant;

use super::harness::{Dev, bytes, signal, until};

const WRITERS: usize = 6;
const NAMES: usize = 8;

/// What may be stored under a name: what was acknowledged last, and what was on its way when the coordinator died.
#[derive(Clone, Default)]
struct Allowed {
    acknowledged: Option<u64>,
    on_its_way: Option<u64>,
}

type Model = Arc<Mutex<BTreeMap<String, Allowed>>>;

/// Bytes that only this put of this object has; from part of a sector to some stripes.
fn content(name: &str, put: u64) -> Vec<u8> {
    let seed = u64::from(crc32c::crc32c(format!("{name} {put}").as_bytes()));
    let lengths = [700, 4096, 9_000, 70_000, 300_000, 900_000];
    let length = lengths[seed as usize % lengths.len()] + (seed % 512) as usize;
    (0..length as u64).map(|n| ((n ^ seed << 20).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as u8).collect()
}

async fn client(dev: &Dev) -> Client {
    Client::builder(&*dev.endpoint).retry(RetryPolicy::never()).connect().await.unwrap()
}

/// Puts until the coordinator is gone.
async fn write(client: Client, writer: usize, first: u64, model: Model, done: Arc<AtomicUsize>) {
    for put in first.. {
        let name = format!("w{writer}/{}", put as usize % NAMES);
        model.lock().unwrap().entry(name.clone()).or_default().on_its_way = Some(put);
        if client.put_bytes(&name, content(&name, put)).await.is_err() {
            return;
        }
        *model.lock().unwrap().get_mut(&name).unwrap() =
            Allowed { acknowledged: Some(put), on_its_way: None };
        done.fetch_add(1, Ordering::Relaxed);
    }
}

/// Reads everything back; from then on, what was found is what was acknowledged.
async fn check(client: &Client, model: &Model) {
    let names: Vec<(String, Allowed)> = model.lock().unwrap().clone().into_iter().collect();
    for (name, allowed) in names {
        let found = match client.get(&name).await {
            Ok(reader) => Some(reader.bytes().await.unwrap_or_else(|error| panic!("{name}: {error}"))),
            Err(error) if error.kind() == stripeset_client::ErrorKind::NotFound => None,
            Err(error) => panic!("{name}: {error}"),
        };
        let candidates = [allowed.on_its_way.map(Some), Some(allowed.acknowledged)];
        let is = |put: &Option<u64>| match (put, &found) {
            (Some(put), Some(found)) => content(&name, *put) == found[..],
            (None, None) => true,
            _ => false,
        };
        let stored = candidates.into_iter().flatten().find(is);
        let stored = stored.unwrap_or_else(|| panic!("{name} is neither old nor new"));
        model.lock().unwrap().insert(name, Allowed { acknowledged: stored, on_its_way: None });
    }
}

#[tokio::test]
async fn what_was_acknowledged_survives_crashes_of_the_coordinator_and_a_lost_agent() {
    let dev = Dev::start().await;
    let dir = dev.dir();
    let (model, mut first) = (Model::default(), 0);
    // The last crash takes an agent along.
    for (round, crash_after) in [40, 3, 75, 20].into_iter().enumerate() {
        let done = Arc::new(AtomicUsize::new(0));
        let mut writers = Vec::new();
        for writer in 0..WRITERS {
            let write = write(client(&dev).await, writer, first, model.clone(), done.clone());
            writers.push(tokio::spawn(write));
        }
        until("enough puts", async || done.load(Ordering::Relaxed) >= crash_after).await;
        if round == 3 {
            signal(dev.pid_of("agents/1"), Signal::KILL);
        }
        dev.kill("coordinator").await;
        for writer in writers {
            writer.await.unwrap();
        }
        first += 1000;
        dev.run(&["dev", "start", "coordinator", "--dir", dir.to_str().unwrap()]).await.expect(0);
        until("it serves", async || dev.run(&["status"]).await.code == 0).await;
        check(&client(&dev).await, &model).await;
    }
    // It takes writes in stripes that the crashes left half written, too.
    let (client, done) = (client(&dev).await, Arc::new(AtomicUsize::new(0)));
    let writer = tokio::spawn(write(client.clone(), 0, first, model.clone(), done.clone()));
    until("puts go on", async || done.load(Ordering::Relaxed) >= 20).await;
    writer.abort();
    let _ = writer.await;
    check(&client, &model).await;
}

#[tokio::test]
async fn a_frozen_agent_holds_no_read_up_for_a_second() {
    let dev = Dev::start().await;
    let sent = bytes(3_000_000);
    let local = dev.path("local");
    fs::write(&local, &sent).unwrap();
    dev.run(&["put", &local, "o"]).await.expect(0);
    let client = client(&dev).await;
    for agent in 0..3 {
        let pid = dev.pid_of(&format!("agents/{agent}"));
        signal(pid, Signal::STOP);
        let started = Instant::now();
        let found = client.get("o").await.unwrap().bytes().await.unwrap();
        let took = started.elapsed();
        signal(pid, Signal::CONT);
        assert!(found == sent);
        // A promise of the command line, not a benchmark: unhindered, this read takes milliseconds.
        assert!(took < Duration::from_secs(1), "agent {agent}: {took:?}");
        until("all answer again", async || {
            let members = dev.json(&["member", "list"]).await;
            members["members"].as_array().unwrap().iter().all(|member| member["state"] == "in_sync")
        })
        .await;
    }
    // A write goes on without it, and it is out from then on.
    let pid = dev.pid_of("agents/2");
    signal(pid, Signal::STOP);
    dev.run(&["put", &local, "p"]).await.expect(0);
    signal(pid, Signal::CONT);
    assert_eq!(dev.json(&["member", "list"]).await["members"][2]["state"], "out");
    dev.run(&["get", "p", &dev.path("back")]).await.expect(0);
    assert!(fs::read(dev.path("back")).unwrap() == sent);
}
