//! `fault`: what a cluster that was started for it does when disks and processes misbehave.

use std::{fs, os::unix::fs::FileExt, time::Duration};

use serde_json::Value;
use tempfile::TempDir;
use tokio::time::Instant;

use super::harness::{Dev, Ended, bytes, until};

const SECTOR: usize = 4096;

/// Bytes of a stripe's data on three agents.
const STRIPE: u64 = 2 * 65536;

async fn start(agents: &str) -> Dev {
    let arguments = ["--agents", agents, "--agent-size", "256MiB", "--faults", "--unsafe"];
    Dev::start_with(TempDir::new().unwrap(), &arguments).await
}

/// Stores bytes.
async fn put(dev: &Dev, name: &str, content: &[u8]) -> Ended {
    let local = dev.path(&format!("put-{name}"));
    fs::write(&local, content).unwrap();
    dev.run(&["put", &local, name]).await
}

/// Reads an object back; what a command that reads it ended with, and the bytes.
async fn got(dev: &Dev, name: &str) -> Vec<u8> {
    let back = dev.path("back");
    dev.run(&["get", name, &back]).await.expect(0);
    fs::read(&back).unwrap()
}

/// Reads an object as if members were lost.
async fn without(dev: &Dev, name: &str, members: &[&Value]) -> Result<Vec<u8>, Ended> {
    let back = dev.path("without");
    let members: Vec<String> = members.iter().map(ToString::to_string).collect();
    let ended = dev.run(&["fault", "read-without", name, &back, "--members", &members.join(",")]).await;
    if ended.code == 0 { Ok(fs::read(&back).unwrap()) } else { Err(ended) }
}

/// The first sector of an object, as `explain` shows it.
async fn sector(dev: &Dev, name: &str) -> Value {
    dev.json(&["explain", name]).await["sectors"][0].clone()
}

/// A sector as it is on its member's disk.
fn on_disk(dev: &Dev, sector: &Value) -> Vec<u8> {
    let disk = fs::File::open(dev.dir().join(format!("agents/{}/disk", sector["member"]))).unwrap();
    let mut bytes = vec![0; SECTOR];
    disk.read_exact_at(&mut bytes, sector["disk_offset"].as_u64().unwrap()).unwrap();
    bytes
}

async fn errors(dev: &Dev, member: &Value, kind: &str) -> u64 {
    let members = dev.json(&["member", "list"]).await;
    members["members"][member.as_u64().unwrap() as usize][kind].as_u64().unwrap()
}

/// Reads of a member that did not give what they should have.
async fn bad_reads(dev: &Dev, member: &Value) -> u64 {
    let members = dev.json(&["member", "list"]).await;
    let member = &members["members"][member.as_u64().unwrap() as usize];
    let kinds = ["read_errors", "checksum_errors", "version_errors"];
    kinds.iter().map(|kind| member[kind].as_u64().unwrap()).sum()
}

/// Stores small objects at one offset in neighbouring shards of a stripe that holds nothing else; the first one's address.
async fn put_in_one_vertical(dev: &Dev, names: &[&str], stripe_bytes: u64) -> u64 {
    put(dev, "first", &bytes(SECTOR)).await.expect(0);
    let logical = sector(dev, "first").await["logical"].as_u64().unwrap();
    let base = logical / stripe_bytes * stripe_bytes + 5 * stripe_bytes;
    for (index, name) in (0..).zip(names) {
        put_at(dev, base + index * 65536, name).await;
    }
    base
}

async fn put_at(dev: &Dev, logical: u64, name: &str) {
    dev.run(&["fault", "allocate-at", &logical.to_string()]).await.expect(0);
    put(dev, name, &content(name)).await.expect(0);
    assert_eq!(sector(dev, name).await["logical"], logical, "{name}");
}

/// The bytes of a small object.
fn content(name: &str) -> Vec<u8> {
    let mut bytes = bytes(SECTOR);
    bytes[..name.len()].copy_from_slice(name.as_bytes());
    bytes
}

#[tokio::test]
async fn what_changes_on_a_disk_is_rebuilt_and_repaired_there() {
    let dev = start("3").await;
    let sent = bytes(100_000);
    put(&dev, "a", &sent).await.expect(0);
    let place = sector(&dev, "a").await;
    until("it is at home", async || on_disk(&dev, &place) == sent[..SECTOR]).await;
    let ways: [&[&str]; 2] = [&["fault", "flip", "a", "--length", "3"], &["fault", "punch", "a"]];
    for (times, command) in (1..).zip(ways) {
        let done = dev.json(command).await;
        assert_eq!((&done["done"], &done["member"]), (&true.into(), &place["member"]));
        assert_eq!(done["disk_offset"], place["disk_offset"]);
        assert!(on_disk(&dev, &place) != sent[..SECTOR], "{command:?}");
        assert!(got(&dev, "a").await == sent, "{command:?}");
        until("it is repaired", async || on_disk(&dev, &place) == sent[..SECTOR]).await;
        until("it is counted", async || errors(&dev, &place["member"], "corrected_errors").await == times)
            .await;
    }
    // The same by its place on the disk.
    let (member, offset) = (place["member"].to_string(), place["disk_offset"].to_string());
    dev.run(&["fault", "flip", "--member", &member, "--disk-offset", &offset]).await.expect(0);
    assert!(got(&dev, "a").await == sent);
}

#[tokio::test]
async fn bytes_changed_with_their_checksum_are_not_believed_by_what_is_rebuilt() {
    let dev = start("3").await;
    put_in_one_vertical(&dev, &["a", "b"], STRIPE).await;
    let (a, b) = (sector(&dev, "a").await, sector(&dev, "b").await);
    assert_eq!(without(&dev, "a", &[&a["member"]]).await.unwrap(), content("a"));
    dev.run(&["fault", "flip", "b", "--rewrite-checksum"]).await.expect(0);
    let lost = without(&dev, "a", &[&a["member"]]).await.unwrap_err();
    assert_eq!(lost.code, 4, "lost, and not wrong: {lost:?}");
    // A write in the vertical notices, and repairs it first.
    dev.run(&["cache", "drop"]).await.expect(0);
    let next = b["logical"].as_u64().unwrap() + SECTOR as u64;
    put_at(&dev, next, "beside").await;
    dev.run(&["cache", "drop"]).await.expect(0);
    assert_eq!(got(&dev, "a").await, content("a"));
}

#[tokio::test]
async fn an_older_sector_under_a_newer_version_is_seen() {
    let dev = start("3").await;
    let sent = bytes(2 * SECTOR);
    put(&dev, "a", &sent).await.expect(0);
    let place = sector(&dev, "a").await;
    dev.run(&["fault", "save", "a"]).await.expect(0);
    dev.run(&["fault", "flip", "a", "--rewrite-checksum"]).await.expect(0);
    let changed = on_disk(&dev, &place);
    dev.run(&["fault", "restore", "a"]).await.expect(0);
    until("the older bytes are there", async || on_disk(&dev, &place) == sent[..SECTOR]).await;
    assert!(changed != sent[..SECTOR]);
    assert!(got(&dev, "a").await == sent);
    let refused = dev.run(&["fault", "restore", "a", "--offset", "4KiB"]).await.expect(1);
    assert!(refused.stderr.contains("saved"), "{}", refused.stderr);
}

#[tokio::test]
async fn a_freed_sector_that_changes_poisons_parity_in_stock_and_not_in_drop() {
    for (mode, heals) in [("stock", false), ("mark", false), ("drop", true), ("off", true)] {
        let dev = start("5").await;
        dev.run(&["cache", "set-mode", mode]).await.expect(0);
        let base = put_in_one_vertical(&dev, &["a", "b", "c"], 4 * 65536).await;
        let (a, b) = (sector(&dev, "a").await, sector(&dev, "b").await);
        dev.run(&["rm", "b"]).await.expect(0);
        let (member, offset) = (b["member"].to_string(), b["disk_offset"].to_string());
        let flip = ["fault", "flip", "--member", &member, "--disk-offset", &offset, "--rewrite-checksum"];
        dev.run(&flip).await.expect(0);
        put_at(&dev, base + 3 * 65536, "d").await;
        let stats = dev.json(&["cache", "stats"]).await;
        let rebuilt = without(&dev, "a", &[&a["member"]]).await;
        match heals {
            true => assert_eq!(rebuilt.unwrap(), content("a"), "{mode}"),
            false => assert_eq!(rebuilt.unwrap_err().code, 4, "{mode}: lost, and not wrong"),
        }
        assert_eq!(stats["stale_skips"], u64::from(mode == "mark"), "{mode}");
        for name in ["a", "c", "d"] {
            assert_eq!(got(&dev, name).await, content(name), "{mode}");
        }
    }
}

#[tokio::test]
async fn wrong_bytes_in_the_cache_never_come_out_of_a_degraded_read() {
    let dev = start("3").await;
    put(&dev, "a", &content("a")).await.expect(0);
    let place = sector(&dev, "a").await;
    assert_eq!(dev.json(&["fault", "cache-bytes", "a"]).await["sectors"], 1);
    assert_eq!(without(&dev, "a", &[&place["member"]]).await.unwrap(), content("a"));
    dev.run(&["fault", "freeze", "--member", &place["member"].to_string()]).await.expect(0);
    assert_eq!(got(&dev, "a").await, content("a"));
    dev.run(&["fault", "thaw", "--member", &place["member"].to_string()]).await.expect(0);
    dev.run(&["cache", "drop"]).await.expect(0);
    assert_eq!(dev.json(&["fault", "cache-bytes", "a"]).await["sectors"], 0);
}

#[tokio::test]
async fn a_disk_that_reads_short_fails_or_loses_a_write_is_read_around() {
    let dev = start("3").await;
    let sent = bytes(100_000);
    put(&dev, "a", &sent).await.expect(0);
    let place = sector(&dev, "a").await;
    let member = place["member"].to_string();
    until("it is at home", async || on_disk(&dev, &place) == sent[..SECTOR]).await;
    let before = bad_reads(&dev, &place["member"]).await;
    dev.run(&["fault", "short-reads", "--member", &member, "--bytes", "0", "--count", "1000"])
        .await
        .expect(0);
    assert!(got(&dev, "a").await == sent);
    until("the short read is counted", async || bad_reads(&dev, &place["member"]).await > before).await;
    dev.run(&["fault", "clear", "--member", &member]).await.expect(0);
    let before = bad_reads(&dev, &place["member"]).await;
    dev.run(&["fault", "io-errors", "--member", &member, "--reads", "1000"]).await.expect(0);
    // What was just repaired is in the journal, and in memory, until it goes home.
    until("the failed read is counted", async || {
        assert!(got(&dev, "a").await == sent);
        bad_reads(&dev, &place["member"]).await > before
    })
    .await;
    dev.run(&["fault", "clear", "--member", &member]).await.expect(0);
}

#[tokio::test]
async fn writes_that_a_disk_lost_are_found_and_made_again() {
    let dev = start("3").await;
    let sent = bytes(1_000_000);
    // Fresh writes go straight home: the disk says that all of them did. It has data in two stripes of three.
    dev.run(&["fault", "drop-writes", "--member", "1", "--count", "1000"]).await.expect(0);
    put(&dev, "large", &sent).await.expect(0);
    dev.run(&["fault", "clear", "--member", "1"]).await.expect(0);
    assert!(got(&dev, "large").await == sent);
    assert!(bad_reads(&dev, &1.into()).await > 0);
    until("everything is repaired", async || {
        let before = bad_reads(&dev, &1.into()).await;
        assert!(got(&dev, "large").await == sent);
        bad_reads(&dev, &1.into()).await == before
    })
    .await;
}

#[tokio::test]
async fn a_coordinator_that_dies_at_a_step_has_lost_nothing() {
    let dev = start("3").await;
    put(&dev, "before", &content("before")).await.expect(0);
    let dir = dev.dir();
    for step in ["rmw-read", "rmw-prepared", "rmw-decided", "acknowledge"] {
        dev.run(&["fault", "crash", step]).await.expect(0);
        put(&dev, step, &content(step)).await.expect(1);
        until("dev notices", async || !dev.dir().join("coordinator/pid").exists()).await;
        dev.run(&["dev", "start", "coordinator", "--dir", dir.to_str().unwrap()]).await.expect(0);
        until("it serves", async || dev.run(&["status"]).await.code == 0).await;
        assert_eq!(got(&dev, "before").await, content("before"), "{step}");
        // Its caller was never told that it is stored.
        put(&dev, step, &content(step)).await.expect(0);
        assert_eq!(got(&dev, step).await, content(step), "{step}");
    }
    let members = dev.json(&["member", "list"]).await;
    let all = members["members"].as_array().unwrap();
    assert!(all.iter().all(|member| member["state"] == "in_sync"), "{members}");
}

#[tokio::test]
async fn a_write_that_is_stopped_goes_on_when_it_is_told_to() {
    let dev = start("3").await;
    put(&dev, "a", &content("a")).await.expect(0);
    let sent = content("b");
    // A write that had not come so far when it was resumed was not stopped.
    until("a write is stopped and resumed", async || {
        dev.run(&["fault", "pause", "rmw-prepared"]).await.expect(0);
        let resume = async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            dev.json(&["fault", "resume"]).await["resumed"] == 1
        };
        let (ended, resumed) = tokio::join!(put(&dev, "b", &sent), resume);
        ended.expect(0);
        resumed
    })
    .await;
    assert_eq!(got(&dev, "b").await, sent);

    let started = Instant::now();
    dev.run(&["fault", "pause", "acknowledge", "--limit", "700ms"]).await.expect(0);
    put(&dev, "c", &content("c")).await.expect(0);
    assert!(started.elapsed() >= Duration::from_millis(700), "it went on by itself, and not before");
}

#[tokio::test]
async fn wrong_input_is_refused_and_nothing_is_injected_where_it_was_not_asked_for() {
    let dev = start("3").await;
    put(&dev, "a", &content("a")).await.expect(0);
    let wrong: [(&[&str], i32, &str); 9] = [
        (&["fault", "freeze", "--member", "7"], 2, "0 to 2"),
        (&["fault", "flip", "nothing"], 3, "nothing"),
        (&["fault", "flip"], 2, "NAME"),
        (&["fault", "flip", "a", "--length", "1MiB"], 2, "65536"),
        (&["fault", "flip", "--member", "0", "--disk-offset", "1TiB"], 2, "disk"),
        (&["fault", "allocate-at", "77"], 2, "multiple"),
        (&["fault", "pause", "rmw-read", "--limit", "2m"], 2, "60s"),
        (&["fault", "io-errors", "--member", "0"], 2, "--reads"),
        (&["fault", "read-without", "a", "-", "--members", "0,9"], 2, "member 9"),
    ];
    for (command, code, part) in wrong {
        let ended = dev.run(command).await.expect(code);
        assert!(ended.stderr.contains(part), "{command:?}: {}", ended.stderr);
    }
    let used = sector(&dev, "a").await["logical"].to_string();
    let refused = dev.run(&["fault", "allocate-at", &used]).await.expect(1);
    assert!(refused.stderr.contains("in use"), "{}", refused.stderr);

    let sound = Dev::start().await;
    let refused = sound.run(&["fault", "freeze", "--member", "0"]).await.expect(1);
    assert!(refused.stderr.contains("--faults"), "{}", refused.stderr);
}
