//! What the cache counts, and what has to hold of the counts at every moment.

use std::ops::Add;

/// What a stripe is for. Counted apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Bytes of objects.
    #[default]
    Data,
    /// Pages of the metadata database.
    Database,
    /// The log.
    Log,
}

impl Class {
    /// All of them.
    pub const ALL: [Class; 3] = [Class::Data, Class::Database, Class::Log];

    /// For people and programs.
    pub fn word(self) -> &'static str {
        match self {
            Class::Data => "data",
            Class::Database => "database",
            Class::Log => "log",
        }
    }
}

/// Counts since the process started. An attempt that computes parity counts once, in one step with its outcome, also
/// when the write then fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Finished partial writes that left their pages in the cache.
    pub inserts: u64,
    /// Fresh writes that left their pages in the cache.
    pub inserts_fresh: u64,
    /// Takings of pages, at lock time and at hand-over.
    pub steals: u64,
    /// Of those, the ones after which sectors still had to be read.
    pub steal_partial: u64,
    /// Takings by full writes, scrub and rebuild.
    pub steals_other: u64,
    /// Partial writes.
    pub rmw_partial: u64,
    /// Of those, the ones that read at least one sector from a member.
    pub rmw_reads: u64,
    /// Of those, the ones that read none.
    pub rmw_skips: u64,
    /// Skips of writes that took nothing: they covered what they needed.
    pub skips_free: u64,
    /// Entries that went from unmarked to marked, or were dropped or cut, because sectors were freed.
    pub stale_marked: u64,
    /// Takings of marked pages.
    pub stale_steals: u64,
    /// Skips by use of a marked entry: each is a read that dropping whole entries would have added.
    pub stale_skips: u64,
    /// Skips by use of a marked sector: each is a read that dropping sectors would have added.
    pub stale_skips_sector: u64,
    /// Entries that made room for others.
    pub evicted: u64,
    /// Of those, the marked ones: nobody took them in time.
    pub evicted_marked: u64,
}

impl Counters {
    /// Whether the identities hold.
    pub fn agree(&self) -> bool {
        let skips_by_steal = self.steals.checked_sub(self.steal_partial + self.steals_other);
        self.rmw_partial == self.rmw_reads + self.rmw_skips
            && skips_by_steal.is_some()
            && skips_by_steal == self.rmw_skips.checked_sub(self.skips_free)
            && self.stale_steals <= self.steals
            && self.stale_skips_sector <= self.stale_skips
            && self.stale_skips <= self.rmw_skips
    }
}

impl Add for Counters {
    type Output = Counters;

    fn add(self, other: Counters) -> Counters {
        Counters {
            inserts: self.inserts + other.inserts,
            inserts_fresh: self.inserts_fresh + other.inserts_fresh,
            steals: self.steals + other.steals,
            steal_partial: self.steal_partial + other.steal_partial,
            steals_other: self.steals_other + other.steals_other,
            rmw_partial: self.rmw_partial + other.rmw_partial,
            rmw_reads: self.rmw_reads + other.rmw_reads,
            rmw_skips: self.rmw_skips + other.rmw_skips,
            skips_free: self.skips_free + other.skips_free,
            stale_marked: self.stale_marked + other.stale_marked,
            stale_steals: self.stale_steals + other.stale_steals,
            stale_skips: self.stale_skips + other.stale_skips,
            stale_skips_sector: self.stale_skips_sector + other.stale_skips_sector,
            evicted: self.evicted + other.evicted,
            evicted_marked: self.evicted_marked + other.evicted_marked,
        }
    }
}
