//! Objects in and out, and the JSON of every command that shows something.

use std::{fs, os::unix::fs::PermissionsExt, process::Stdio};

use rustix::process::Signal;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::harness::{Dev, bytes, end, fields, signal, until};

const OBJECT: [&str; 6] =
    ["allocated_bytes", "crc32c", "generation", "modified_unix_millis", "name", "size_bytes"];

const MEMBER: [&str; 14] = [
    "address",
    "checksum_errors",
    "connected",
    "corrected_errors",
    "errors",
    "id",
    "index",
    "read_errors",
    "reason",
    "size_bytes",
    "state",
    "used_bytes",
    "version_errors",
    "write_errors",
];

#[tokio::test]
async fn objects_go_in_and_out_and_json_has_every_field() {
    let dev = Dev::start().await;
    let sent = bytes(1_000_000);
    let (local, back) = (dev.path("local"), dev.path("back"));
    fs::write(&local, &sent).unwrap();

    let put = dev.json(&["put", &local, "a/b"]).await;
    assert_eq!(fields(&put), OBJECT);
    assert_eq!((put["name"].as_str(), put["size_bytes"].as_u64()), (Some("a/b"), Some(1_000_000)));
    assert_eq!(put["crc32c"].as_u64(), Some(crc32c::crc32c(&sent).into()));
    assert_eq!(dev.json(&["--output", "table", "stat", "a/b"]).await, put);
    assert_eq!(dev.json(&["ls", "a/"]).await["objects"], serde_json::json!([put]));
    assert_eq!(dev.json(&["ls", "b"]).await["objects"], serde_json::json!([]));

    let got = dev.json(&["get", "a/b", &back]).await;
    assert_eq!(fields(&got), ["length", "local", "object", "offset"]);
    assert!(fs::read(&back).unwrap() == sent);
    dev.run(&["get", "a/b", &back, "--offset", "4KiB", "--length", "100"]).await.expect(0);
    assert!(fs::read(&back).unwrap() == sent[4096..4196]);

    let table = dev.run(&["ls"]).await.expect(0).stdout;
    assert!(table.contains("NAME") && table.contains("a/b"), "{table}");
    let removed = dev.json(&["rm", "a/b"]).await;
    assert_eq!(removed, put);
    for command in [&["stat", "a/b"][..], &["rm", "a/b"], &["get", "a/b", &back]] {
        let ended = dev.run(&[command, &["--output", "json"]].concat()).await.expect(3);
        assert_eq!(ended.stdout, "");
        assert!(ended.stderr.contains("a/b"), "{ended:?}");
    }
    // The get that failed left the file as it was, and nothing beside it.
    assert!(fs::read(&back).unwrap() == sent[4096..4196]);
    let names = fs::read_dir(dev.place.path()).unwrap().map(|entry| entry.unwrap().file_name());
    assert!(names.into_iter().all(|name| !name.to_str().unwrap().starts_with('.')));
}

#[tokio::test]
async fn the_cluster_is_shown_with_every_field() {
    let dev = Dev::start().await;
    let local = dev.path("local");
    fs::write(&local, bytes(100_000)).unwrap();
    dev.run(&["put", &local, "a"]).await.expect(0);

    let status = dev.json(&["status"]).await;
    let expected =
        ["array", "capacity", "members", "objects", "reads_served", "reason", "redundancy", "writes_served"];
    assert_eq!(fields(&status), expected);
    assert_eq!(fields(&status["capacity"]), ["data_bytes", "free_bytes", "raw_bytes", "used_bytes"]);
    assert_eq!(fields(&status["redundancy"]), ["away", "left", "tolerated"]);
    assert_eq!((&status["writes_served"], &status["objects"]), (&true.into(), &1.into()));
    let members = dev.json(&["member", "list"]).await;
    assert_eq!(members["members"], status["members"]);
    for (index, member) in members["members"].as_array().unwrap().iter().enumerate() {
        assert_eq!(fields(member), MEMBER);
        assert_eq!(
            (member["index"].as_u64(), member["state"].as_str()),
            (Some(index as u64), Some("in_sync"))
        );
    }

    let array = dev.json(&["array", "show"]).await;
    assert_eq!(array["array"], status["array"]);
    assert_eq!(array["array"]["data_profile"], "raid5-2+1");
    assert!(!array["chunks"].as_array().unwrap().is_empty());

    let explained = dev.json(&["explain", "a", "--offset", "65536", "--length", "8KiB"]).await;
    assert_eq!(fields(&explained), ["parity", "plan", "plans", "sectors"]);
    let plan = ["chunk", "kind", "read_members", "sectors_read", "stripe", "write_members"];
    assert_eq!(fields(&explained["plans"][0]), plan);
    let sectors = explained["sectors"].as_array().unwrap();
    assert_eq!(sectors.len(), 2);
    let sector = [
        "cached",
        "chunk",
        "disk_offset",
        "live",
        "logical",
        "member",
        "offset",
        "shard",
        "stripe",
        "version",
    ];
    assert_eq!(fields(&sectors[0]), sector);
    assert_eq!((sectors[0]["offset"].as_u64(), sectors[1]["offset"].as_u64()), (Some(65536), Some(69632)));
    let parity = &explained["parity"][0];
    assert_eq!(fields(parity), ["chunk", "disk_offset", "length", "member", "shard", "stripe"]);
    assert_ne!(parity["member"], sectors[0]["member"]);
    let logical = sectors[0]["logical"].to_string();
    let by_address = dev.json(&["explain", "--logical", &logical]).await;
    assert_eq!(by_address["sectors"][0]["disk_offset"], sectors[0]["disk_offset"]);

    // The sector is where it is said to be.
    let member = sectors[0]["member"].as_u64().unwrap();
    let disk = fs::read(dev.dir().join(format!("agents/{member}/disk"))).unwrap();
    let at = sectors[0]["disk_offset"].as_u64().unwrap() as usize;
    assert!(disk[at..at + 4096] == bytes(100_000)[65536..69632]);
}

#[tokio::test]
async fn pipes_carry_objects_both_ways() {
    let dev = Dev::start().await;
    let sent = bytes(3_000_000);
    let mut put = dev.command(&["put", "-", "piped"]);
    let mut put = put.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let mut stdin = put.stdin.take().unwrap();
    stdin.write_all(&sent).await.unwrap();
    drop(stdin);
    assert!(put.wait().await.unwrap().success());

    let mut get = dev.command(&["get", "piped", "-"]);
    let output = get.stderr(Stdio::null()).output().await.unwrap();
    assert!(output.status.success() && output.stdout == sent);

    // A reader that has had enough is no panic and no failure.
    let mut get =
        dev.command(&["get", "piped", "-"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut head = [0; 10];
    get.stdout.take().unwrap().read_exact(&mut head).await.unwrap();
    let ended = get.wait_with_output().await.unwrap();
    assert_eq!((ended.status.code(), ended.stderr.as_slice()), (Some(0), &b""[..]));
    assert_eq!(head, sent[..10]);
}

#[tokio::test]
async fn a_file_is_replaced_as_a_whole_and_a_put_cut_off_leaves_the_old_object() {
    let dev = Dev::start().await;
    let (local, target, link) = (dev.path("local"), dev.path("target"), dev.path("link"));
    fs::write(&local, "new").unwrap();
    fs::write(&target, "old and longer").unwrap();
    fs::set_permissions(&target, fs::Permissions::from_mode(0o640)).unwrap();
    std::os::unix::fs::symlink(&target, &link).unwrap();
    dev.run(&["put", &local, "a"]).await.expect(0);
    dev.run(&["get", "a", &link]).await.expect(0);
    assert_eq!(fs::read_to_string(&target).unwrap(), "new");
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!(fs::metadata(&target).unwrap().permissions().mode() & 0o777, 0o640);
    dev.run(&["get", "a", "/dev/null"]).await.expect(0);

    for with in [Signal::KILL, Signal::TERM] {
        let mut put =
            dev.command(&["put", "-", "a"]).stdin(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut stdin = put.stdin.take().unwrap();
        // More than all buffers on the way hold, so some of it has arrived.
        stdin.write_all(&bytes(30_000_000)).await.unwrap();
        signal(put.id().unwrap().try_into().unwrap(), with);
        let status = put.wait().await.unwrap();
        assert_eq!(status.code(), (with == Signal::TERM).then_some(1));
        let mut get = dev.command(&["get", "a", "-"]);
        get.stderr(Stdio::null());
        assert_eq!(end(get).await.expect(0).stdout, "new");
    }
    // What the cut off puts had written is given back, but for the stripe that small writes are packed into.
    until("space is given back", async || {
        dev.json(&["status"]).await["capacity"]["used_bytes"].as_u64().unwrap() <= 128 << 10
    })
    .await;
}

#[tokio::test]
async fn a_get_that_is_stopped_leaves_the_old_file_and_nothing_beside_it() {
    let dev = Dev::start().await;
    let (local, folder) = (dev.path("local"), dev.place.path().join("out"));
    fs::write(&local, bytes(40_000_000)).unwrap();
    dev.run(&["put", &local, "a"]).await.expect(0);
    fs::create_dir(&folder).unwrap();
    let target = folder.join("target");
    fs::write(&target, "old").unwrap();
    let files = || fs::read_dir(&folder).unwrap().count();

    let mut get = dev.command(&["get", "a", target.to_str().unwrap()]).stderr(Stdio::null()).spawn().unwrap();
    until("bytes arrive beside the target", async || files() == 2).await;
    // No more of them from here on, so the get cannot be done before it is stopped.
    signal(dev.pid_of("coordinator"), Signal::STOP);
    signal(get.id().unwrap().try_into().unwrap(), Signal::TERM);
    assert_eq!(get.wait().await.unwrap().code(), Some(1));
    signal(dev.pid_of("coordinator"), Signal::CONT);
    assert_eq!((files(), fs::read_to_string(&target).unwrap().as_str()), (1, "old"));
}
