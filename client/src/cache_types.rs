//! What the SDK says of the rbio cache.

use std::{fmt, str::FromStr};

use stripeset_proto::v1;

use crate::Error;

/// What happens to cached sectors that are freed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CacheMode {
    /// They are dropped.
    #[default]
    Drop,
    /// Nothing, as the Linux kernel does it: parity can be poisoned.
    Stock,
    /// They are marked, to count what dropping them would cost: parity can be poisoned.
    Mark,
    /// Nothing is cached.
    Off,
}

impl CacheMode {
    const WORDS: [(CacheMode, &str, v1::CacheMode); 4] = [
        (CacheMode::Drop, "drop", v1::CacheMode::Drop),
        (CacheMode::Stock, "stock", v1::CacheMode::Stock),
        (CacheMode::Mark, "mark", v1::CacheMode::Mark),
        (CacheMode::Off, "off", v1::CacheMode::Off),
    ];
}

impl fmt::Display for CacheMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = CacheMode::WORDS.iter().find(|(mode, _, _)| mode == self);
        f.write_str(word.map_or("", |(_, word, _)| word))
    }
}

impl FromStr for CacheMode {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let found = CacheMode::WORDS.iter().find(|(_, known, _)| *known == word);
        found.map(|(mode, _, _)| *mode).ok_or_else(|| format!("{word:?} is none of drop, stock, mark, off"))
    }
}

impl From<CacheMode> for v1::CacheMode {
    fn from(mode: CacheMode) -> Self {
        let wire = CacheMode::WORDS.iter().find(|(known, _, _)| *known == mode);
        wire.map_or(v1::CacheMode::Unspecified, |(_, _, wire)| *wire)
    }
}

/// Counts since the coordinator started. An attempt that computes parity counts once, with its outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheCounters {
    /// Finished partial writes that left their sectors in the cache.
    pub inserts: u64,
    /// Fresh writes that left their sectors in the cache.
    pub inserts_fresh: u64,
    /// Takings of cached sectors by writes.
    pub steals: u64,
    /// Of those, the ones after which sectors still had to be read.
    pub steal_partial: u64,
    /// Takings by full writes, repairs and rebuilds.
    pub steals_other: u64,
    /// Partial writes.
    pub rmw_partial: u64,
    /// Of those, the ones that read at least one sector from a member.
    pub rmw_reads: u64,
    /// Of those, the ones that read none.
    pub rmw_skips: u64,
    /// Skips of writes that took nothing from the cache.
    pub skips_free: u64,
    /// Entries that were marked, dropped or cut because sectors were freed.
    pub stale_marked: u64,
    /// Takings of marked entries.
    pub stale_steals: u64,
    /// Skips by use of a marked entry.
    pub stale_skips: u64,
    /// Skips by use of a marked sector.
    pub stale_skips_sector: u64,
    /// Entries that made room for others.
    pub evicted: u64,
    /// Of those, the marked ones.
    pub evicted_marked: u64,
}

impl From<v1::CacheCounters> for CacheCounters {
    fn from(wire: v1::CacheCounters) -> Self {
        CacheCounters {
            inserts: wire.inserts,
            inserts_fresh: wire.inserts_fresh,
            steals: wire.steals,
            steal_partial: wire.steal_partial,
            steals_other: wire.steals_other,
            rmw_partial: wire.rmw_partial,
            rmw_reads: wire.rmw_reads,
            rmw_skips: wire.rmw_skips,
            skips_free: wire.skips_free,
            stale_marked: wire.stale_marked,
            stale_steals: wire.stale_steals,
            stale_skips: wire.stale_skips,
            stale_skips_sector: wire.stale_skips_sector,
            evicted: wire.evicted,
            evicted_marked: wire.evicted_marked,
        }
    }
}

/// The rbio cache at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheStats {
    /// What happens to cached sectors that are freed.
    pub mode: CacheMode,
    /// In mode `drop`, the whole entry is dropped.
    pub whole: bool,
    /// Stripes in the cache.
    pub entries: u64,
    /// Bytes that they take.
    pub bytes: u64,
    /// Bytes that they may take.
    pub capacity_bytes: u64,
    /// Counts of all classes together.
    pub total: CacheCounters,
    /// Counts by class of stripe: `data`, `database`, `log`.
    pub by_class: Vec<(String, CacheCounters)>,
}

impl TryFrom<v1::GetCacheStatsResponse> for CacheStats {
    type Error = Error;

    fn try_from(wire: v1::GetCacheStatsResponse) -> Result<Self, Error> {
        let mode = CacheMode::WORDS.iter().find(|(_, _, mode)| *mode == wire.mode());
        let counters = |counters: Option<v1::CacheCounters>| counters.unwrap_or_default().into();
        Ok(CacheStats {
            mode: mode.map(|(mode, _, _)| *mode).ok_or_else(|| Error::incomplete("mode"))?,
            whole: wire.whole,
            entries: wire.entries,
            bytes: wire.bytes,
            capacity_bytes: wire.capacity_bytes,
            total: counters(wire.total),
            by_class: wire
                .by_class
                .into_iter()
                .map(|class| (class.class, counters(class.counters)))
                .collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mode_is_its_word() {
        for (mode, word, _) in CacheMode::WORDS {
            assert_eq!((word.parse(), mode.to_string()), (Ok(mode), word.to_owned()));
        }
        assert!("none".parse::<CacheMode>().is_err());
    }
}
