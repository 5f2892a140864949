//! The coordinator dies in the middle of many writes, an agent with it; agents freeze. What was acknowledged is there, what
//! was not is old or new, and nothing else.

use std::{fs, time::Duration};

use rustix::process::Signal;
use tokio::time::Instant;

use super::{
    harness::{Dev, bytes, signal, until},
    stored::{Stored, WRITERS, client},
};

#[tokio::test]
async fn what_was_acknowledged_survives_crashes_of_the_coordinator_and_a_lost_agent() {
    let dev = Dev::start().await;
    let dir = dev.dir();
    let stored = Stored::default();
    // The last crash takes an agent along.
    for (round, puts) in [40, 3, 75, 20].into_iter().enumerate() {
        let writers = stored.load(&dev, WRITERS, puts).await;
        if round == 3 {
            signal(dev.pid_of("agents/1"), Signal::KILL);
        }
        dev.kill("coordinator").await;
        for writer in writers {
            writer.await.unwrap();
        }
        dev.run(&["dev", "start", "coordinator", "--dir", dir.to_str().unwrap()]).await.expect(0);
        until("it serves", async || dev.run(&["status"]).await.code == 0).await;
        stored.check(&client(&dev).await).await;
    }
    // It takes writes in stripes that the crashes left half written, too.
    for writer in stored.load(&dev, 1, 20).await {
        writer.abort();
        let _ = writer.await;
    }
    stored.check(&client(&dev).await).await;
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
}
