//! The demo on a small folder.

use std::{fs, process::Stdio};

use rustix::process::Signal;
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::Command,
    time::timeout,
};

use super::harness::{LIMIT, bytes, end, fields, signal, stripeset};

/// A demo whose temporary folder and input are in `place`.
fn demo(place: &TempDir, arguments: &[&str]) -> Command {
    let (input, temporary) = (place.path().join("input"), place.path().join("tmp"));
    fs::create_dir_all(input.join("sub")).unwrap();
    fs::create_dir_all(&temporary).unwrap();
    for n in 0..40 {
        fs::write(input.join(format!("sub/{n}")), bytes(n * 997)).unwrap();
    }
    fs::write(input.join("large"), bytes(3_000_000)).unwrap();
    let mut command = stripeset();
    command.env("TMPDIR", temporary).arg("demo").arg(input).args(arguments);
    command
}

fn nothing_is_left(place: &TempDir) {
    assert_eq!(fs::read_dir(place.path().join("tmp")).unwrap().count(), 0);
}

#[tokio::test]
async fn every_byte_comes_back_with_agents_killed() {
    let place = TempDir::new().unwrap();
    let ended = end(demo(&place, &["--data", "raid6", "--agents", "4"])).await.expect(0);
    let last = ended.stdout.lines().last().unwrap();
    assert!(
        last.starts_with("all 41 objects (") && last.ends_with("with agent-0 and agent-2 killed"),
        "{last}"
    );
    for part in ["read back", "CPU S/GIB", "peak memory"] {
        assert!(ended.stdout.contains(part), "{}", ended.stdout);
    }
    assert!(ended.stderr.contains("killing agent-2"), "{}", ended.stderr);
    nothing_is_left(&place);
}

#[tokio::test]
async fn the_report_has_every_field() {
    let place = TempDir::new().unwrap();
    let report = end(demo(&place, &["--agents", "3", "--output", "json"])).await.expect(0).json();
    let expected = [
        "agent_bytes",
        "agents",
        "bytes",
        "bytes_matched",
        "in_sync",
        "killed",
        "matched",
        "members",
        "not_matched",
        "not_stored",
        "objects",
        "objects_matched",
        "peak_memory_bytes",
        "profile",
        "steps",
        "unreadable",
    ];
    assert_eq!(fields(&report), expected);
    let steps: Vec<&str> =
        report["steps"].as_array().unwrap().iter().map(|step| step["step"].as_str().unwrap()).collect();
    assert_eq!(steps, ["start", "store", "kill", "read_back", "in_sync"]);
    assert_eq!((report["matched"].as_bool(), report["in_sync"].as_bool()), (Some(true), Some(true)));
    assert_eq!(
        (&report["killed"], &report["profile"]),
        (&serde_json::json!(["agent-0"]), &"raid5-2+1".into())
    );
    let cpu = &report["steps"][1]["cpu_seconds"];
    assert_eq!(fields(cpu), ["agents", "client", "coordinator"]);
    assert!(cpu["coordinator"].as_f64().unwrap() > 0.0, "{cpu}");
    assert!(report["peak_memory_bytes"]["agent"].as_u64().unwrap() > 1 << 20);
    nothing_is_left(&place);
}

#[tokio::test]
async fn with_more_killed_than_the_profile_bears_bytes_are_missing_and_the_demo_says_so() {
    let place = TempDir::new().unwrap();
    let ended = end(demo(&place, &["--data", "single", "--agents", "2", "--kill", "1"])).await;
    assert!(matches!(ended.code, 1 | 4), "{ended:#?}");
    assert!(ended.stderr.contains("bears the loss of 0 members"), "{ended:#?}");
    assert!(ended.stdout.contains("did not come back as they were"), "{ended:#?}");
    nothing_is_left(&place);
}

#[tokio::test]
async fn a_demo_that_is_stopped_leaves_nothing_behind() {
    let place = TempDir::new().unwrap();
    let mut child = demo(&place, &[]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.starts_with("storing ") {
        line.clear();
        assert_ne!(timeout(LIMIT, stderr.read_line(&mut line)).await.unwrap().unwrap(), 0);
    }
    signal(child.id().unwrap().try_into().unwrap(), Signal::INT);
    let output = timeout(LIMIT, child.wait_with_output()).await.unwrap().unwrap();
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(1), &b""[..]));
    nothing_is_left(&place);
}
