//! `cache`: the rbio cache of the running array.

use std::collections::BTreeMap;

use serde::Serialize;
use stripeset_client::{CacheCounters, CacheStats, Client};

use crate::{arguments::CacheCommand, failure::Failure, output::Output, quantity::show_size, table};

#[derive(Serialize)]
struct Stats {
    mode: String,
    whole: bool,
    entries: u64,
    bytes: u64,
    capacity_bytes: u64,
    #[serde(flatten)]
    total: Counters,
    by_class: BTreeMap<String, Counters>,
}

#[derive(Serialize)]
struct Counters {
    inserts: u64,
    inserts_fresh: u64,
    steals: u64,
    steal_partial: u64,
    steals_other: u64,
    rmw_partial: u64,
    rmw_reads: u64,
    rmw_skips: u64,
    skips_free: u64,
    stale_marked: u64,
    stale_steals: u64,
    stale_skips: u64,
    stale_skips_sector: u64,
    evicted: u64,
    evicted_marked: u64,
}

/// What was done.
#[derive(Serialize)]
struct Done {
    done: bool,
}

impl From<CacheCounters> for Counters {
    fn from(counters: CacheCounters) -> Self {
        Counters {
            inserts: counters.inserts,
            inserts_fresh: counters.inserts_fresh,
            steals: counters.steals,
            steal_partial: counters.steal_partial,
            steals_other: counters.steals_other,
            rmw_partial: counters.rmw_partial,
            rmw_reads: counters.rmw_reads,
            rmw_skips: counters.rmw_skips,
            skips_free: counters.skips_free,
            stale_marked: counters.stale_marked,
            stale_steals: counters.stale_steals,
            stale_skips: counters.stale_skips,
            stale_skips_sector: counters.stale_skips_sector,
            evicted: counters.evicted,
            evicted_marked: counters.evicted_marked,
        }
    }
}

impl Counters {
    /// Each with its name and what it counts.
    fn rows(&self) -> [(&'static str, u64, &'static str); 15] {
        [
            ("inserts", self.inserts, "partial writes that left their sectors"),
            ("inserts_fresh", self.inserts_fresh, "fresh writes that left theirs"),
            ("steals", self.steals, "takings of cached sectors"),
            ("steal_partial", self.steal_partial, "of those, more had to be read"),
            ("steals_other", self.steals_other, "by full writes, repairs, rebuilds"),
            ("rmw_partial", self.rmw_partial, "partial writes"),
            ("rmw_reads", self.rmw_reads, "of those, that read members"),
            ("rmw_skips", self.rmw_skips, "of those, that read nothing"),
            ("skips_free", self.skips_free, "skips without anything taken"),
            ("stale_marked", self.stale_marked, "entries marked, dropped or cut by frees"),
            ("stale_steals", self.stale_steals, "takings of marked entries"),
            ("stale_skips", self.stale_skips, "skips by a marked entry"),
            ("stale_skips_sector", self.stale_skips_sector, "skips by a marked sector"),
            ("evicted", self.evicted, "entries that made room"),
            ("evicted_marked", self.evicted_marked, "of those, marked"),
        ]
    }
}

pub(super) async fn run(client: &Client, command: CacheCommand, output: Output) -> Result<(), Failure> {
    let array = client.array();
    let done = match command {
        CacheCommand::Stats => {
            let stats = document(array.cache_stats().await?);
            return output.show(&stats, || text(&stats));
        }
        CacheCommand::SetMode { mode, whole } => {
            array.set_cache_mode(mode, whole).await?;
            format!("cache mode {mode}{}\n", if whole { ", whole entries" } else { "" })
        }
        CacheCommand::SetSize { bytes } => {
            array.set_cache_size(bytes).await?;
            format!("cache of at most {}\n", show_size(bytes))
        }
        CacheCommand::Drop => {
            array.drop_cache().await?;
            "cache emptied\n".to_owned()
        }
    };
    output.show(&Done { done: true }, || done)
}

fn document(stats: CacheStats) -> Stats {
    Stats {
        mode: stats.mode.to_string(),
        whole: stats.whole,
        entries: stats.entries,
        bytes: stats.bytes,
        capacity_bytes: stats.capacity_bytes,
        total: stats.total.into(),
        by_class: stats.by_class.into_iter().map(|(class, counters)| (class, counters.into())).collect(),
    }
}

fn text(stats: &Stats) -> String {
    let classes: Vec<&String> = stats.by_class.keys().collect();
    let mut header = vec!["COUNTER", "TOTAL"];
    let upper: Vec<String> = classes.iter().map(|class| class.to_uppercase()).collect();
    header.extend(upper.iter().map(String::as_str));
    header.push("COUNTS");
    let mut rows = table::new(&header, &(1..=1 + classes.len()).collect::<Vec<_>>());
    let by_class: Vec<_> = stats.by_class.values().map(Counters::rows).collect();
    for (index, (name, total, what)) in stats.total.rows().into_iter().enumerate() {
        let mut row = vec![name.to_owned(), total.to_string()];
        row.extend(by_class.iter().map(|rows| rows[index].1.to_string()));
        row.push(what.to_owned());
        rows.add_row(row);
    }
    let whole = if stats.whole { ", whole entries" } else { "" };
    let share = match stats.total.rmw_partial {
        0 => "no partial writes yet".to_owned(),
        all => format!(
            "{:.1} % of partial writes read nothing",
            stats.total.rmw_skips as f64 * 100.0 / all as f64
        ),
    };
    let (bytes, capacity) = (show_size(stats.bytes), show_size(stats.capacity_bytes));
    format!(
        "mode {}{whole}; {} entries, {bytes} of {capacity}; {share}\n{}",
        stats.mode,
        stats.entries,
        table::text(&rows)
    )
}
