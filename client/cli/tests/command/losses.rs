//! Agents and coordinators that die while they are needed.

use std::fs;

use super::harness::{Dev, bytes, until};

#[tokio::test]
async fn with_an_agent_killed_everything_goes_on_and_it_can_come_back() {
    let dev = Dev::start().await;
    let sent = bytes(2_000_000);
    let (local, back) = (dev.path("local"), dev.path("back"));
    fs::write(&local, &sent).unwrap();
    dev.run(&["put", &local, "before"]).await.expect(0);

    dev.kill("agents/1").await;
    until("dev says so", async || dev.stderr().contains("agent-1 was ended by signal 9")).await;
    dev.run(&["get", "before", &back]).await.expect(0);
    assert!(fs::read(&back).unwrap() == sent);
    until("the loss is shown", async || {
        let status = dev.json(&["status"]).await;
        status["members"][1]["state"] == "missing" && status["redundancy"]["left"] == 0
    })
    .await;

    let dir = dev.dir();
    let dir = dir.to_str().unwrap();
    let started =
        dev.run(&["dev", "--output", "json", "--dir", dir, "start", "agent-1"]).await.expect(0).json();
    assert_eq!(started["name"], "agent-1");
    until("it is in sync again", async || {
        dev.json(&["member", "list"]).await["members"][1]["state"] == "in_sync"
    })
    .await;

    // Missing during a write, it is out, and the array is degraded but serves.
    dev.kill("agents/2").await;
    dev.run(&["put", &local, "during"]).await.expect(0);
    let status = dev.json(&["status"]).await;
    assert_eq!(status["members"][2]["state"], "out");
    assert!(status["reason"].as_str().unwrap().contains("degraded"), "{status}");
    for name in ["before", "during"] {
        dev.run(&["get", name, &back]).await.expect(0);
        assert!(fs::read(&back).unwrap() == sent, "{name}");
    }
}

#[tokio::test]
async fn a_coordinator_that_was_killed_comes_back_with_all_that_was_stored() {
    let dev = Dev::start().await;
    let sent = bytes(500_000);
    let (local, back) = (dev.path("local"), dev.path("back"));
    fs::write(&local, &sent).unwrap();
    dev.run(&["put", &local, "a"]).await.expect(0);
    dev.kill("coordinator").await;
    let status = dev.run(&["status", "--output", "json"]).await.expect(1);
    assert_eq!(status.stdout, "");
    assert!(status.stderr.contains("connection refused: is the coordinator running?"), "{status:?}");

    let dir = dev.dir();
    dev.run(&["dev", "start", "coordinator", "--dir", dir.to_str().unwrap()]).await.expect(0);
    until("it serves", async || dev.run(&["status"]).await.code == 0).await;
    dev.run(&["get", "a", &back]).await.expect(0);
    assert!(fs::read(&back).unwrap() == sent);
}

#[tokio::test]
async fn dev_start_says_what_it_cannot_do() {
    let dev = Dev::start().await;
    let dir = dev.dir();
    let dir = dir.to_str().unwrap();
    for (name, code, part) in [
        ("agent-0", 1, "runs already"),
        ("agent-3", 2, "agents go from agent-0 to agent-2"),
        ("agent", 2, "use agent-N or coordinator"),
    ] {
        let ended = dev.run(&["dev", "start", name, "--dir", dir]).await.expect(code);
        assert!(ended.stderr.contains(part), "{ended:?}");
    }
    let elsewhere = dev.place.path().to_str().unwrap();
    let ended = dev.run(&["dev", "start", "agent-0", "--dir", elsewhere]).await.expect(1);
    assert!(ended.stderr.contains("no `stripeset dev` runs in"), "{ended:?}");
}
