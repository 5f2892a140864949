//! `dev` from start to end: its folder, its children, and every way in which it can stop.

use std::{fs, process::Stdio, time::Duration};

use rustix::process::Signal;
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    time::{Instant, timeout},
};

use super::harness::{Dev, LIMIT, bytes, end, fields, runs, signal, stripeset, until};

/// A stop may take so long.
const STOP_LIMIT: Duration = Duration::from_secs(20);

#[tokio::test]
async fn a_dev_that_is_killed_leaves_no_child_and_its_data_is_there_at_the_next_start() {
    let dev = Dev::start().await;
    let sent = bytes(300_000);
    let (local, back) = (dev.path("local"), dev.path("back"));
    fs::write(&local, &sent).unwrap();
    dev.run(&["put", &local, "a"]).await.expect(0);
    let (children, endpoint) = (dev.pids(), dev.endpoint.clone());
    let (code, place) = dev.end(Signal::KILL).await;
    assert_eq!(code, None);
    until("all children are gone", async || !children.iter().any(|pid| runs(*pid))).await;

    let dev = Dev::start_with(place, &[]).await;
    assert_eq!(dev.endpoint, endpoint);
    dev.run(&["get", "a", &back]).await.expect(0);
    assert!(fs::read(&back).unwrap() == sent);

    // Another one in the same folder is refused, and so is another cluster.
    let dir = dev.dir();
    let dir = dir.to_str().unwrap();
    let ended = dev.run(&["dev", "--dir", dir]).await.expect(1);
    assert!(ended.stderr.contains("in use by another"), "{ended:?}");
    let (_, place) = dev.end(Signal::TERM).await;
    let mut other = stripeset();
    other.args(["dev", "--agents", "4", "--data", "single", "--dir"]).arg(place.path().join("d"));
    let ended = end(other).await.expect(2);
    assert!(ended.stderr.contains("--agents 4 was given, but the cluster was made with 3"), "{ended:?}");
    assert!(ended.stderr.contains("--data single"), "{ended:?}");
}

#[tokio::test]
async fn a_stop_is_orderly_and_in_time() {
    for with in [Signal::TERM, Signal::INT] {
        let dev = Dev::start().await;
        let children = dev.pids();
        let begin = Instant::now();
        let (code, place) = dev.end(with).await;
        assert_eq!(code, Some(0));
        assert!(begin.elapsed() < STOP_LIMIT);
        assert!(!children.iter().any(|pid| runs(*pid)));
        let stderr = fs::read_to_string(place.path().join("stderr")).unwrap();
        assert!(stderr.ends_with("stopping\n"), "{stderr}");
    }
}

#[tokio::test]
async fn a_stop_does_not_wait_for_a_frozen_agent() {
    let dev = Dev::start().await;
    let children = dev.pids();
    signal(dev.pid_of("agents/0"), Signal::STOP);
    let begin = Instant::now();
    let (code, _place) = dev.end(Signal::TERM).await;
    assert_eq!(code, Some(0));
    assert!(begin.elapsed() < STOP_LIMIT, "{:?}", begin.elapsed());
    assert!(!children.iter().any(|pid| runs(*pid)));
}

#[tokio::test]
async fn a_temporary_cluster_goes_away_and_flags_without_effect_are_told() {
    let temporary = TempDir::new().unwrap();
    let mut command = stripeset();
    command.env("TMPDIR", temporary.path()).args(["dev", "--agents", "2", "--agent-size", "256MiB"]);
    command.args(["--listen", "127.0.0.1:0", "--data", "mirror2", "--faults", "--policy", "reuse"]);
    command.args(["--output", "json"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut document = String::new();
    while !document.ends_with("}\n") {
        assert_ne!(timeout(LIMIT, stdout.read_line(&mut document)).await.unwrap().unwrap(), 0, "{document}");
    }
    let ready: serde_json::Value = serde_json::from_str(&document).unwrap();
    assert_eq!(fields(&ready), ["agents", "dir", "endpoint", "state", "temporary"]);
    assert_eq!((ready["state"].as_str(), ready["temporary"].as_bool()), (Some("ready"), Some(true)));
    signal(child.id().unwrap().try_into().unwrap(), Signal::TERM);
    let output = timeout(LIMIT, child.wait_with_output()).await.unwrap().unwrap();
    assert_eq!(output.status.code(), Some(0));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("--policy has no effect yet"), "{stderr}");
    assert!(!stderr.contains("--unsafe") && !stderr.contains("--faults"), "{stderr}");
    assert_eq!(fs::read_dir(temporary.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn a_port_that_was_taken_meanwhile_is_named() {
    let dev = Dev::start().await;
    let agents = dev.json(&["member", "list"]).await;
    let address = agents["members"][1]["address"].as_str().unwrap().to_owned();
    let (_, place) = dev.end(Signal::TERM).await;
    let taken = std::net::TcpListener::bind(&address).unwrap();
    let mut again = stripeset();
    again.args(["dev", "--dir"]).arg(place.path().join("d"));
    let ended = end(again).await.expect(1);
    assert!(ended.stderr.contains(&format!("agent-1 cannot listen on {address}")), "{ended:?}");
    drop(taken);
    Dev::start_with(place, &[]).await;
}
