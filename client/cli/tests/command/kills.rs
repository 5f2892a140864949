//! `kill -9` under load, over and over: of the coordinator, and of everything at once. What was acknowledged is there, what
//! was not is old or new, and the array serves again soon, after work in proportion to what was on its way.

use std::{fs, io::Write, time::Duration};

use rustix::process::Signal;
use serde_json::Value;
use stripeset_client::{Client, ErrorKind, RetryPolicy};
use tokio::time::{Instant, sleep};

use super::{
    harness::{Dev, Dice, LIMIT, setting, signal},
    stored::{LENGTH_MAX, Stored, WRITERS, client},
};

/// Kills of the coordinator in a run of the tests. `STRIPESET_COORDINATOR_KILL_ROUNDS=200` does so many,
/// `STRIPESET_COORDINATOR_KILL_SEED` waits for other moments.
const ROUNDS: u64 = 15;

/// Kills of everything.
const ROUNDS_OF_ALL: u64 = 20;

/// From the start of the coordinator's process to the first answer to a read: a promise, not a benchmark.
const SERVES_WITHIN: Duration = Duration::from_secs(2);

/// Data of a stripe of 2+1 with units of 64 KiB.
const STRIPE_BYTES: usize = 2 * 64 * 1024;

/// Decided writes that wait for their commit, at most: it goes out with others.
const COMMIT_BATCH: usize = 256;

/// What a coordinator said of its start.
struct Served {
    pending: usize,
    stripes: usize,
    millis: u64,
}

/// What the coordinator said of each start, in order.
fn served(dev: &Dev) -> Vec<Served> {
    let log = fs::read_to_string(dev.dir().join("coordinator/log")).unwrap();
    let lines = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let said = |line: Value| Served {
        pending: line["pending"].as_u64().unwrap() as usize,
        stripes: line["stripes"].as_u64().unwrap() as usize,
        millis: line["millis"].as_u64().unwrap(),
    };
    lines.filter(|line| line["message"] == "array is served").map(said).collect()
}

/// Waits until an object can be read, or is said not to exist; how long that took.
async fn until_it_serves(dev: &Dev, since: Instant) -> Duration {
    let builder = Client::builder(&*dev.endpoint).retry(RetryPolicy::never());
    loop {
        let answer = match builder.clone().connect().await {
            Ok(client) => client.get("w0/0").await.map(drop),
            Err(error) => Err(error),
        };
        match answer {
            Ok(()) => return since.elapsed(),
            Err(error) if error.kind() == ErrorKind::NotFound => return since.elapsed(),
            Err(error) => assert!(since.elapsed() < LIMIT, "{error}"),
        }
        sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_coordinator_killed_under_load_serves_again_within_two_seconds() {
    let rounds = setting("STRIPESET_COORDINATOR_KILL_ROUNDS", ROUNDS);
    let mut dice = Dice::new(setting("STRIPESET_COORDINATOR_KILL_SEED", 1));
    let dev = Dev::start().await;
    let dir = dev.dir().to_str().unwrap().to_owned();
    let stored = Stored::default();
    let mut took = Vec::new();
    for round in 1..=rounds {
        let puts = 1 + dice.below(60) as usize;
        let writers = stored.load(&dev, WRITERS, puts).await;
        dev.kill("coordinator").await;
        for writer in writers {
            writer.await.unwrap();
        }
        let since = Instant::now();
        dev.run(&["dev", "start", "coordinator", "--dir", &dir]).await.expect(0);
        let serving = until_it_serves(&dev, since).await;
        assert!(serving < SERVES_WITHIN, "round {round}: {serving:?}");
        took.push(serving);
        stored.check(&client(&dev).await).await;
    }
    let starts = served(&dev);
    let after = &starts[starts.len() - rounds as usize..];
    // Nobody looks at what lies on the disks: only at what was being written.
    let most = WRITERS * LENGTH_MAX.div_ceil(STRIPE_BYTES) + COMMIT_BATCH;
    let stripes = || after.iter().map(|start| start.stripes);
    assert!(stripes().max() <= Some(most), "{:?}", stripes().max());
    assert!(stripes().any(|stripes| stripes > 0), "nothing was ever on its way");
    took.sort_unstable();
    // Past the capture of the test's output: the figures are a part of the result.
    writeln!(
        std::io::stderr(),
        "{} puts, the coordinator killed {rounds} times: served again after {} ms in the median, {} ms at most; \
         its own share {} ms at most; stripes with pending writes at a start {} on average, {} at most, pending \
         writes {} at most",
        stored.puts(),
        took[took.len() / 2].as_millis(),
        took[took.len() - 1].as_millis(),
        after.iter().map(|start| start.millis).max().unwrap_or(0),
        stripes().sum::<usize>() / after.len(),
        stripes().max().unwrap_or(0),
        after.iter().map(|start| start.pending).max().unwrap_or(0),
    )
    .unwrap();
}

#[tokio::test]
async fn everything_killed_at_once_loses_nothing() {
    const ARGUMENTS: [&str; 4] = ["--agents", "3", "--agent-size", "256MiB"];
    let rounds = setting("STRIPESET_KILL_ALL_ROUNDS", ROUNDS_OF_ALL);
    let stored = Stored::default();
    let mut dev = Dev::start().await;
    for round in 1..=rounds {
        let writers = stored.load(&dev, WRITERS, 1 + round as usize * 7 % 40).await;
        for pid in dev.pids() {
            signal(pid, Signal::KILL);
        }
        let (_, place) = dev.end(Signal::KILL).await;
        for writer in writers {
            writer.await.unwrap();
        }
        dev = Dev::start_with(place, &ARGUMENTS).await;
        until_it_serves(&dev, Instant::now()).await;
        stored.check(&client(&dev).await).await;
        let members = dev.json(&["member", "list"]).await;
        let states = members["members"].as_array().unwrap().iter().map(|member| &member["state"]);
        assert!(
            states.clone().all(|state| state == "in_sync"),
            "round {round}: {:?}",
            states.collect::<Vec<_>>()
        );
    }
    writeln!(std::io::stderr(), "{} puts, everything killed {rounds} times", stored.puts()).unwrap();
}
