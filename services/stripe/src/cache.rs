//! The rbio cache: data sectors of stripes that were written lately, so that the next write to one of them need not read
//! its neighbours. Pure, and generic over what a page is.
//!
//! A write *owns* its stripe from [`Cache::begin`] to [`Cache::finish`] or [`Cache::give_up`]; meanwhile the pages are its
//! own, not the cache's. What is freed under an owner is noted, and applied when its pages come back or are handed on.
//! That nobody else begins is the stripe lock's.
//!
//! Invariants:
//! 1. In mode `drop` no page of a sector outlives its [`Cache::invalidate`]: neither in the cache, nor through an owner's
//!    pages that come back afterwards.
//! 2. What an owner gives up is gone: a write that failed, or whose outcome is open, leaves nothing.
//! 3. The pages of all entries take no more than the capacity.
//! 4. An entry is found only under the epoch and the chunk incarnation that it was made under.
//! 5. The identities of [`Counters`] hold at every moment.

use std::collections::BTreeMap;

use lru::LruCache;

use crate::{
    Epoch, SECTOR_BYTES, Version, bits::Bits, geometry::StripeAddress, plan::Plan, summary::Summary,
};

pub use counters::{Class, Counters};

mod counters;
#[cfg(test)]
mod tests;

/// What an entry is found by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StripeKey {
    /// Epoch of the coordinator.
    pub epoch: Epoch,
    /// Version at which the chunk was made.
    pub incarnation: Version,
    /// The stripe.
    pub stripe: StripeAddress,
}

/// What happens to pages of sectors that are freed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// They are dropped.
    #[default]
    Drop,
    /// Nothing: as the Linux kernel does it. Leaves the window open in which parity is poisoned.
    Stock,
    /// They are marked, to count what dropping them would have cost. Leaves the window open.
    Mark,
    /// Nothing is cached.
    Off,
}

/// How much goes in mode `drop`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Granularity {
    /// The sectors that were freed.
    #[default]
    Sector,
    /// The whole entry.
    Whole,
}

/// How pages came into the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Insert {
    /// By a partial write.
    Partial,
    /// By a fresh write that did not fill its stripe.
    Fresh,
}

/// Pages of one stripe, with all that is known of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pages<P> {
    /// As it is after the last write.
    pub summary: Summary,
    class: Class,
    /// By data sector, counted through the data shards.
    sectors: Vec<Option<P>>,
    stale: Bits,
    marked: bool,
}

impl<P> Pages<P> {
    /// No pages yet.
    pub fn new(class: Class, summary: Summary) -> Self {
        let count = summary.written.len();
        let sectors = (0..count).map(|_| None).collect();
        Pages { summary, class, sectors, stale: Bits::new(count), marked: false }
    }

    /// The page of a data sector.
    pub fn get(&self, sector: usize) -> Option<&P> {
        self.sectors[sector].as_ref()
    }

    /// Puts a page in. It is what the member has now, whatever was there before.
    pub fn set(&mut self, sector: usize, page: P) {
        self.sectors[sector] = Some(page);
        self.stale.set(sector, false);
    }

    /// Takes a page out.
    pub fn forget(&mut self, sector: usize) {
        self.sectors[sector] = None;
        self.stale.set(sector, false);
    }

    /// Whether the bytes of a data sector are known: by a page, or because it was never written and is zeros.
    pub fn knows(&self, sector: usize) -> bool {
        self.sectors[sector].is_some() || !self.summary.written.get(sector)
    }

    /// Number of pages.
    pub fn count(&self) -> usize {
        self.sectors.iter().flatten().count()
    }

    /// Data sectors that have a page.
    pub fn valid(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.sectors.len()).filter(|sector| self.sectors[*sector].is_some())
    }

    /// Bytes that they take: pages, and what is known beside them.
    pub fn bytes(&self) -> usize {
        const FIXED: usize = 256;
        let beside = self.sectors.len() * (size_of::<Option<P>>() + 5);
        self.count() * SECTOR_BYTES + beside + self.summary.vector.len() * size_of::<Version>() + FIXED
    }

    /// Whether a plan computes parity from a page of a marked sector.
    fn uses_stale(&self, plan: &Plan, covered: &Bits) -> bool {
        let unit_sectors = plan.touched.len();
        self.stale.iter_ones().any(|sector| {
            let vertical = sector % unit_sectors;
            !covered.get(sector) && plan.touched.get(vertical) && !plan.delta.get(vertical)
        })
    }

    /// Does what the mode says to pages of freed sectors. Whether that changed anything, and whether pages are left.
    fn free(&mut self, rules: Rules, freed: &Bits) -> Freed {
        let hit: Vec<usize> = freed.iter_ones().filter(|sector| self.sectors[*sector].is_some()).collect();
        if hit.is_empty() {
            return Freed::Untouched;
        }
        match (rules.mode, rules.granularity) {
            (Mode::Stock, _) => Freed::Untouched,
            (Mode::Off, _) | (Mode::Drop, Granularity::Whole) => Freed::Gone,
            (Mode::Drop, Granularity::Sector) => {
                hit.into_iter().for_each(|sector| self.forget(sector));
                if self.count() == 0 { Freed::Gone } else { Freed::Changed }
            }
            (Mode::Mark, _) => {
                hit.into_iter().for_each(|sector| self.stale.set(sector, true));
                if std::mem::replace(&mut self.marked, true) { Freed::Untouched } else { Freed::Changed }
            }
        }
    }
}

/// What freeing sectors did to an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Freed {
    /// Nothing that is counted.
    Untouched,
    /// It is marked now, or cut.
    Changed,
    /// It must not be used any more.
    Gone,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Rules {
    mode: Mode,
    granularity: Granularity,
}

/// What happened to a stripe while a write owned it.
#[derive(Debug, Default)]
struct Owner {
    /// Sectors that were freed since it took its pages.
    freed: Option<Bits>,
    /// The mode was changed, or the cache emptied: nothing comes back.
    discard: bool,
}

/// The cache.
#[derive(Debug)]
pub struct Cache<P> {
    rules: Rules,
    capacity_bytes: usize,
    bytes: usize,
    entries: LruCache<StripeKey, Pages<P>>,
    owners: BTreeMap<StripeKey, Owner>,
    counters: BTreeMap<Class, Counters>,
}

impl<P> Cache<P> {
    /// An empty cache of so many bytes, in mode `drop`.
    pub fn new(capacity_bytes: usize) -> Self {
        Cache {
            rules: Rules::default(),
            capacity_bytes,
            bytes: 0,
            entries: LruCache::unbounded(),
            owners: BTreeMap::new(),
            counters: BTreeMap::new(),
        }
    }

    /// A write begins: it owns the stripe, and takes what is known of it. Panics if another one owns it.
    pub fn begin(&mut self, key: StripeKey) -> Option<Pages<P>> {
        let before = self.owners.insert(key, Owner::default());
        assert!(before.is_none(), "two writes own stripe {:?}", key.stripe);
        self.take(&key)
    }

    /// The write has ended well: its pages are the cache's. Only what fills less than the stripe is kept.
    pub fn finish(&mut self, key: StripeKey, pages: Pages<P>, insert: Insert) {
        let Some(pages) = self.hand_over(key, pages) else { return self.give_up(key) };
        self.owners.remove(&key);
        let counters = self.counters.entry(pages.class).or_default();
        match insert {
            Insert::Partial => counters.inserts += 1,
            Insert::Fresh => counters.inserts_fresh += 1,
        }
        self.bytes += pages.bytes();
        self.entries.put(key, pages);
        self.evict();
    }

    /// The write leaves nothing: it failed, or filled the stripe.
    pub fn give_up(&mut self, key: StripeKey) {
        self.owners.remove(&key);
    }

    /// The write has ended well, and the next one to the same stripe goes on with its pages: what of them may still be used.
    /// `None` if none. The stripe stays owned.
    pub fn hand_over(&mut self, key: StripeKey, mut pages: Pages<P>) -> Option<Pages<P>> {
        let owner = self.owners.insert(key, Owner::default()).unwrap_or_default();
        if owner.discard || self.rules.mode == Mode::Off {
            return None;
        }
        let Some(freed) = owner.freed else { return Some(pages) };
        let done = pages.free(self.rules, &freed);
        if done != Freed::Untouched {
            self.counters.entry(pages.class).or_default().stale_marked += 1;
        }
        (done != Freed::Gone).then_some(pages)
    }

    /// Sectors of a stripe, counted through its data shards, belong to nothing any more. To be called before anything else
    /// may have them.
    pub fn invalidate(&mut self, key: &StripeKey, sectors: &Bits) {
        if let Some(owner) = self.owners.get_mut(key) {
            let freed = owner.freed.get_or_insert_with(|| Bits::new(sectors.len()));
            sectors.iter_ones().for_each(|sector| freed.set(sector, true));
        }
        let rules = self.rules;
        let Some(pages) = self.entries.peek_mut(key) else { return };
        let (before, class) = (pages.bytes(), pages.class);
        let done = pages.free(rules, sectors);
        let after = pages.bytes();
        if done != Freed::Untouched {
            self.counters.entry(class).or_default().stale_marked += 1;
        }
        self.bytes = self.bytes - before + after;
        if done == Freed::Gone {
            self.take(key);
        }
    }

    /// A partial write computes its parity: counts it, with where its bytes came from. `pages` is what it took, if it did.
    pub fn count_partial(
        &mut self,
        class: Class,
        pages: Option<&mut Pages<P>>,
        plan: &Plan,
        covered: &Bits,
        read: bool,
    ) {
        let counters = self.counters.entry(class).or_default();
        counters.rmw_partial += 1;
        counters.rmw_reads += u64::from(read);
        counters.rmw_skips += u64::from(!read);
        let Some(pages) = pages else {
            counters.skips_free += u64::from(!read);
            return;
        };
        counters.steals += 1;
        counters.steal_partial += u64::from(read);
        counters.stale_steals += u64::from(pages.marked);
        if read {
            return;
        }
        counters.stale_skips += u64::from(std::mem::take(&mut pages.marked));
        if pages.uses_stale(plan, covered) {
            counters.stale_skips_sector += 1;
            pages.stale = Bits::new(pages.stale.len());
        }
    }

    /// Something else than a partial write took pages: a full write, scrub, a rebuild.
    pub fn count_other(&mut self, pages: &Pages<P>) {
        let counters = self.counters.entry(pages.class).or_default();
        counters.steals += 1;
        counters.steals_other += 1;
        counters.stale_steals += u64::from(pages.marked);
    }

    /// Changes mode and granularity. What was cached under other rules is dropped: in `stock` nobody noted what was freed.
    pub fn set_mode(&mut self, mode: Mode, granularity: Granularity) {
        let rules = Rules { mode, granularity };
        if rules != self.rules {
            self.rules = rules;
            self.clear();
        }
    }

    /// Changes the capacity.
    pub fn set_capacity(&mut self, bytes: usize) {
        self.capacity_bytes = bytes;
        self.evict();
    }

    /// Drops everything; what writes in flight have taken does not come back.
    pub fn clear(&mut self) {
        self.entries.clear();
        self.bytes = 0;
        self.owners.values_mut().for_each(|owner| owner.discard = true);
    }

    /// The entry of a stripe.
    pub fn peek(&self, key: &StripeKey) -> Option<&Pages<P>> {
        self.entries.peek(key)
    }

    /// The same, to put wrong bytes in: for fault injection alone.
    pub fn peek_mut(&mut self, key: &StripeKey) -> Option<&mut Pages<P>> {
        self.entries.peek_mut(key)
    }

    /// Whether a write owns a stripe.
    pub fn is_owned(&self, key: &StripeKey) -> bool {
        self.owners.contains_key(key)
    }

    /// The mode.
    pub fn mode(&self) -> Mode {
        self.rules.mode
    }

    /// The granularity.
    pub fn granularity(&self) -> Granularity {
        self.rules.granularity
    }

    /// Bytes that entries may take.
    pub fn capacity_bytes(&self) -> usize {
        self.capacity_bytes
    }

    /// Bytes that entries take.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Number of entries.
    pub fn entries(&self) -> usize {
        self.entries.len()
    }

    /// Counters of one class.
    pub fn counters(&self, class: Class) -> Counters {
        self.counters.get(&class).copied().unwrap_or_default()
    }

    fn take(&mut self, key: &StripeKey) -> Option<Pages<P>> {
        let pages = self.entries.pop(key)?;
        self.bytes -= pages.bytes();
        Some(pages)
    }

    fn evict(&mut self) {
        while self.bytes > self.capacity_bytes {
            let Some((_, pages)) = self.entries.pop_lru() else { return };
            self.bytes -= pages.bytes();
            let counters = self.counters.entry(pages.class).or_default();
            counters.evicted += 1;
            counters.evicted_marked += u64::from(pages.marked);
        }
    }
}
