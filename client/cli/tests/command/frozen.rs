//! An agent that freezes (`SIGSTOP`): the first write that needs it is answered within a second, the array goes on without
//! it, and it comes back by itself.

use std::{io::Write, time::Duration};

use rustix::process::Signal;
use stripeset_client::Client;
use tokio::time::Instant;

use super::{
    harness::{Dev, bytes, signal, until},
    stored::client,
};

/// A promise, not a benchmark: unhindered, a write takes milliseconds.
const ANSWERED_WITHIN: Duration = Duration::from_secs(1);

const OBJECT_BYTES: usize = 16 * 1024;

/// Writes that are measured one after the other.
const WRITES: usize = 50;

/// Puts so many objects one after the other; how long each took, ascending.
async fn put(client: &Client, what: &str, count: usize) -> Vec<Duration> {
    let mut took = Vec::new();
    for number in 0..count {
        let begun = Instant::now();
        client.put_bytes(&format!("{what}/{number}"), bytes(OBJECT_BYTES)).await.unwrap();
        took.push(begun.elapsed());
    }
    took.sort_unstable();
    took
}

async fn state_of(dev: &Dev, member: usize) -> String {
    dev.json(&["member", "list"]).await["members"][member]["state"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_frozen_agent_holds_one_write_up_for_less_than_a_second() {
    let dev = Dev::start().await;
    let client = client(&dev).await;
    let median = |took: &[Duration]| took[took.len() / 2].as_secs_f64() * 1000.0;
    for agent in 0..3 {
        let healthy = put(&client, &format!("healthy{agent}"), WRITES).await;
        let pid = dev.pid_of(&format!("agents/{agent}"));
        signal(pid, Signal::STOP);
        let first = put(&client, &format!("first{agent}"), 1).await[0];
        let later = put(&client, &format!("later{agent}"), WRITES).await;
        let state = state_of(&dev, agent).await;
        signal(pid, Signal::CONT);
        assert_eq!(state, "out");
        assert!(first < ANSWERED_WITHIN, "agent {agent}: {first:?}");
        assert!(later[WRITES - 1] < ANSWERED_WITHIN, "agent {agent}: {later:?}");
        until("it is back", async || state_of(&dev, agent).await == "in_sync").await;
        // Past the capture of the test's output: the figures are a part of the result.
        writeln!(
            std::io::stderr(),
            "member {agent} frozen: writes took {:.1} ms before, the first {:.0} ms, then {:.1} ms (medians of {WRITES})",
            median(&healthy),
            first.as_secs_f64() * 1000.0,
            median(&later),
        )
        .unwrap();
    }
    // What was written without each of them is on it: any one may be missing now.
    for agent in 0..3 {
        let pid = dev.pid_of(&format!("agents/{agent}"));
        signal(pid, Signal::STOP);
        for written_without in 0..3 {
            let name = format!("later{written_without}/7");
            let found = client.get(&name).await.unwrap().bytes().await.unwrap();
            assert!(found == bytes(OBJECT_BYTES), "{name} without agent {agent}");
        }
        signal(pid, Signal::CONT);
        until("it is back", async || state_of(&dev, agent).await == "in_sync").await;
    }
}
