//! `cache` and what `explain` says of it.

use tempfile::TempDir;

use super::harness::{Dev, fields};

const COUNTERS: [&str; 15] = [
    "evicted",
    "evicted_marked",
    "inserts",
    "inserts_fresh",
    "rmw_partial",
    "rmw_reads",
    "rmw_skips",
    "skips_free",
    "stale_marked",
    "stale_skips",
    "stale_skips_sector",
    "stale_steals",
    "steal_partial",
    "steals",
    "steals_other",
];

#[tokio::test]
async fn small_objects_read_nothing_and_the_cache_says_so() {
    let dev = Dev::start().await;
    let local = dev.path("local");
    std::fs::write(&local, [7; 5000]).unwrap();
    for index in 0..5 {
        dev.run(&["put", &local, &format!("o/{index}")]).await.expect(0);
    }
    let stats = dev.json(&["cache", "stats"]).await;
    let mut names: Vec<&str> = COUNTERS.into_iter().collect();
    names.extend(["by_class", "bytes", "capacity_bytes", "entries", "mode", "whole"]);
    names.sort_unstable();
    assert_eq!(fields(&stats), names);
    assert_eq!(fields(&stats["by_class"]), ["data", "database", "log"]);
    assert_eq!(fields(&stats["by_class"]["log"]), COUNTERS);
    assert_eq!((stats["mode"].as_str(), stats["whole"].as_bool()), (Some("drop"), Some(false)));
    let count = |name: &str| stats[name].as_u64().unwrap();
    assert_eq!((count("inserts_fresh"), count("rmw_partial"), count("rmw_skips")), (1, 4, 4));
    assert_eq!((count("entries"), count("capacity_bytes")), (1, 256 << 20));
    let explained = dev.json(&["explain", "o/1"]).await;
    assert_eq!(explained["sectors"][0]["cached"], true);
    assert_eq!(
        (&explained["plans"][0]["kind"], &explained["plans"][0]["sectors_read"]),
        (&"pages".into(), &0.into())
    );

    dev.run(&["rm", "o/1"]).await.expect(0);
    let stats = dev.json(&["cache", "stats"]).await;
    assert_eq!(stats["stale_marked"], 1, "two sectors were cut out of the entry");

    dev.run(&["cache", "drop"]).await.expect(0);
    assert_eq!(dev.json(&["cache", "stats"]).await["entries"], 0);
    assert_eq!(dev.json(&["explain", "o/2"]).await["plans"][0]["kind"], "reconstruct-write");
    dev.run(&["cache", "set-size", "64KiB"]).await.expect(0);
    dev.run(&["put", &local, "o/9"]).await.expect(0);
    let stats = dev.json(&["cache", "stats"]).await;
    assert!(stats["bytes"].as_u64().unwrap() <= 64 << 10);
    assert_eq!((&stats["rmw_reads"], &stats["capacity_bytes"]), (&1.into(), &(64 << 10).into()));
    dev.run(&["cache", "set-mode", "off"]).await.expect(0);
    assert_eq!(dev.json(&["cache", "stats"]).await["mode"], "off");
    let table = dev.run(&["cache", "stats"]).await.expect(0).stdout;
    assert!(table.contains("% of partial writes read nothing") && table.contains("rmw_skips"), "{table}");
}

#[tokio::test]
async fn modes_that_let_parity_be_poisoned_have_to_be_asked_for() {
    let dev = Dev::start().await;
    let refused = dev.run(&["cache", "set-mode", "stock"]).await.expect(1);
    assert!(refused.stderr.contains("--unsafe"), "{}", refused.stderr);
    dev.run(&["cache", "set-mode", "sometimes"]).await.expect(2);
    dev.run(&["cache", "set-size", "much"]).await.expect(2);
    dev.run(&["cache", "set-mode", "off", "--whole"]).await.expect(2);
    dev.run(&["cache", "set-mode", "drop", "--whole"]).await.expect(0);
    assert_eq!(dev.json(&["cache", "stats"]).await["whole"], true);

    let arguments = ["--agents", "3", "--agent-size", "256MiB", "--unsafe", "--cache-size", "1MiB"];
    let dev = Dev::start_with(TempDir::new().unwrap(), &arguments).await;
    for mode in ["stock", "mark", "drop"] {
        dev.run(&["cache", "set-mode", mode]).await.expect(0);
        let stats = dev.json(&["cache", "stats"]).await;
        assert_eq!((&stats["mode"], &stats["capacity_bytes"]), (&mode.into(), &(1 << 20).into()));
    }
}
