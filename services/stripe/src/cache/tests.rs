//! The cache against a slow and obvious one, with random requests; and what each mode does, by hand.

use proptest::{collection::vec, prelude::*};

use super::*;
use crate::{
    geometry::{ChunkIndex, Row},
    plan::Kind,
};

/// A stripe of four data shards with two sectors each.
const SECTORS: usize = 8;
const UNIT_SECTORS: usize = 2;

fn key(row: u32) -> StripeKey {
    let stripe = StripeAddress { chunk: ChunkIndex(1), row: Row(row) };
    StripeKey { epoch: Epoch { number: 1, incarnation: 1 }, incarnation: Version::NONE, stripe }
}

fn summary() -> Summary {
    Summary { vector: vec![Version::NONE; 5], written: Bits::ones(SECTORS), checksums: vec![0; SECTORS] }
}

fn bits(ones: &[usize]) -> Bits {
    let mut bits = Bits::new(SECTORS);
    ones.iter().for_each(|sector| bits.set(*sector, true));
    bits
}

fn pages(sectors: &[usize]) -> Pages<u32> {
    let mut pages = Pages::new(Class::Data, summary());
    sectors.iter().for_each(|sector| pages.set(*sector, *sector as u32));
    pages
}

/// The plan of a write to one sector for which nothing has to be read.
fn plan_of(sector: usize) -> Plan {
    let mut touched = Bits::new(UNIT_SECTORS);
    touched.set(sector % UNIT_SECTORS, true);
    Plan {
        kind: Kind::Pages,
        touched,
        delta: Bits::new(UNIT_SECTORS),
        read: Bits::new(SECTORS),
        read_parity: Bits::new(UNIT_SECTORS),
    }
}

fn valid(cache: &Cache<u32>, row: u32) -> Option<Vec<usize>> {
    cache.peek(&key(row)).map(|pages| pages.valid().collect())
}

fn filled(mode: Mode, granularity: Granularity) -> Cache<u32> {
    let mut cache = Cache::new(1 << 20);
    cache.set_mode(mode, granularity);
    assert!(cache.begin(key(0)).is_none());
    cache.finish(key(0), pages(&[0, 2, 4, 6]), Insert::Partial);
    cache
}

#[test]
fn what_is_freed_goes_as_the_mode_says() {
    let mut cache = filled(Mode::Drop, Granularity::Sector);
    cache.invalidate(&key(0), &bits(&[2, 3]));
    assert_eq!((valid(&cache, 0), cache.counters(Class::Data).stale_marked), (Some(vec![0, 4, 6]), 1));
    cache.invalidate(&key(0), &bits(&[3]));
    assert_eq!(cache.counters(Class::Data).stale_marked, 1, "no page of it was there");
    cache.invalidate(&key(0), &bits(&[0, 4, 6]));
    assert_eq!((valid(&cache, 0), cache.bytes()), (None, 0));

    let mut cache = filled(Mode::Drop, Granularity::Whole);
    cache.invalidate(&key(0), &bits(&[2]));
    assert_eq!((valid(&cache, 0), cache.counters(Class::Data).stale_marked), (None, 1));

    let mut cache = filled(Mode::Stock, Granularity::Sector);
    cache.invalidate(&key(0), &bits(&[2]));
    assert_eq!((valid(&cache, 0), cache.counters(Class::Data).stale_marked), (Some(vec![0, 2, 4, 6]), 0));

    let cache = filled(Mode::Off, Granularity::Sector);
    assert_eq!((valid(&cache, 0), cache.counters(Class::Data).inserts), (None, 0));
}

#[test]
fn what_is_freed_under_an_owner_does_not_come_back() {
    for granularity in [Granularity::Sector, Granularity::Whole] {
        let mut cache = filled(Mode::Drop, granularity);
        let taken = cache.begin(key(0)).unwrap();
        cache.invalidate(&key(0), &bits(&[4]));
        let left = match granularity {
            Granularity::Sector => Some(vec![0, 2, 6]),
            Granularity::Whole => None,
        };
        let handed = cache.hand_over(key(0), taken.clone());
        assert_eq!(handed.map(|pages| pages.valid().collect::<Vec<_>>()), left);
        cache.give_up(key(0));
        cache.begin(key(0));
        cache.invalidate(&key(0), &bits(&[4]));
        cache.finish(key(0), taken, Insert::Partial);
        assert_eq!(valid(&cache, 0), left);
    }
}

#[test]
fn a_change_of_mode_reaches_owners_too() {
    let mut cache = filled(Mode::Stock, Granularity::Sector);
    let taken = cache.begin(key(0)).unwrap();
    cache.set_mode(Mode::Drop, Granularity::Sector);
    cache.finish(key(0), taken, Insert::Partial);
    assert_eq!(valid(&cache, 0), None, "nobody noted what was freed under it");
}

#[test]
fn another_epoch_or_incarnation_finds_nothing() {
    let mut cache = filled(Mode::Drop, Granularity::Sector);
    let later = Epoch { number: 2, incarnation: 1 };
    assert!(cache.begin(StripeKey { epoch: later, ..key(0) }).is_none());
    let incarnation = Version { epoch: later, sequence: 1 };
    assert!(cache.begin(StripeKey { incarnation, ..key(0) }).is_none());
    assert!(cache.begin(key(0)).is_some());
}

#[test]
fn a_mark_is_counted_once_by_entry_and_once_by_sector() {
    let mut cache = filled(Mode::Mark, Granularity::Sector);
    cache.invalidate(&key(0), &bits(&[2]));
    cache.invalidate(&key(0), &bits(&[4]));
    assert_eq!(cache.counters(Class::Data).stale_marked, 1, "it was marked already");
    let skip = |cache: &mut Cache<u32>, sector: usize| {
        let mut taken = cache.begin(key(0)).unwrap();
        let covered = bits(&[sector]);
        cache.count_partial(Class::Data, Some(&mut taken), &plan_of(sector), &covered, false);
        cache.finish(key(0), taken, Insert::Partial);
        let counters = cache.counters(Class::Data);
        assert!(counters.agree(), "{counters:?}");
        (counters.stale_steals, counters.stale_skips, counters.stale_skips_sector)
    };
    // The other vertical: by the entry alone.
    assert_eq!(skip(&mut cache, 1), (1, 1, 0));
    assert_eq!(skip(&mut cache, 1), (1, 1, 0));
    // Its neighbours 2 and 4 are marked.
    assert_eq!(skip(&mut cache, 0), (1, 1, 1));
    assert_eq!(skip(&mut cache, 0), (1, 1, 1));
    cache.invalidate(&key(0), &bits(&[6]));
    assert_eq!(skip(&mut cache, 0), (2, 2, 2));
}

#[test]
fn the_oldest_make_room() {
    let one = pages(&[0, 1]).bytes();
    let mut cache = Cache::new(2 * one);
    for row in 0..3 {
        cache.begin(key(row));
        cache.finish(key(row), pages(&[0, 1]), Insert::Fresh);
    }
    assert_eq!((valid(&cache, 0), cache.entries(), cache.bytes()), (None, 2, 2 * one));
    cache.set_capacity(one);
    assert_eq!((valid(&cache, 1), cache.entries(), cache.counters(Class::Data).evicted), (None, 1, 2));
    cache.set_capacity(0);
    assert_eq!((cache.entries(), cache.bytes()), (0, 0));
}

/// The same in the plainest way: entries in a list, oldest first; every owner remembers all that was freed.
#[derive(Default)]
struct Plain {
    mode: Mode,
    granularity: Granularity,
    capacity: usize,
    entries: Vec<(u32, Pages<u32>)>,
    owners: BTreeMap<u32, (Pages<u32>, Vec<usize>, bool)>,
}

impl Plain {
    fn after_free(&self, mut pages: Pages<u32>, freed: &[usize]) -> Option<Pages<u32>> {
        let hit: Vec<usize> = freed.iter().copied().filter(|sector| pages.get(*sector).is_some()).collect();
        match (self.mode, self.granularity) {
            _ if hit.is_empty() => Some(pages),
            (Mode::Drop, Granularity::Whole) => None,
            (Mode::Drop, Granularity::Sector) => {
                hit.iter().for_each(|sector| pages.forget(*sector));
                (pages.count() > 0).then_some(pages)
            }
            (Mode::Mark, _) => {
                hit.iter().for_each(|sector| pages.stale.set(*sector, true));
                pages.marked = true;
                Some(pages)
            }
            _ => Some(pages),
        }
    }

    fn begin(&mut self, row: u32) {
        let at = self.entries.iter().position(|(other, _)| *other == row);
        let pages = at.map_or_else(|| pages(&[]), |at| self.entries.remove(at).1);
        self.owners.insert(row, (pages, Vec::new(), false));
    }

    fn end(&mut self, row: u32, sector: usize) {
        let (mut pages, freed, discard) = self.owners.remove(&row).unwrap();
        pages.set(sector, sector as u32);
        let kept = if discard || self.mode == Mode::Off { None } else { self.after_free(pages, &freed) };
        self.entries.extend(kept.map(|pages| (row, pages)));
        self.evict();
    }

    fn free(&mut self, row: u32, sector: usize) {
        if let Some((_, freed, _)) = self.owners.get_mut(&row) {
            freed.push(sector);
        }
        let Some(at) = self.entries.iter().position(|(other, _)| *other == row) else { return };
        match self.after_free(self.entries[at].1.clone(), &[sector]) {
            Some(pages) => self.entries[at].1 = pages,
            None => drop(self.entries.remove(at)),
        }
    }

    fn clear(&mut self) {
        self.entries.clear();
        self.owners.values_mut().for_each(|owner| owner.2 = true);
    }

    fn evict(&mut self) {
        while self.entries.iter().map(|(_, pages)| pages.bytes()).sum::<usize>() > self.capacity {
            self.entries.remove(0);
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Request {
    Begin(u32),
    /// Ends well, with a page of this sector, or hands over first.
    End(u32, usize, bool),
    GiveUp(u32),
    Free(u32, usize),
    SetMode(Mode, Granularity),
    SetCapacity(usize),
    Clear,
}

fn requests() -> impl Strategy<Value = Request> {
    let row = || 0..4_u32;
    let sector = || 0..SECTORS;
    let mode = prop_oneof![Just(Mode::Drop), Just(Mode::Stock), Just(Mode::Mark), Just(Mode::Off)];
    let granularity = prop_oneof![Just(Granularity::Sector), Just(Granularity::Whole)];
    prop_oneof![
        8 => row().prop_map(Request::Begin),
        8 => (row(), sector(), any::<bool>()).prop_map(|(row, sector, over)| Request::End(row, sector, over)),
        1 => row().prop_map(Request::GiveUp),
        6 => (row(), sector()).prop_map(|(row, sector)| Request::Free(row, sector)),
        1 => (mode, granularity).prop_map(|(mode, granularity)| Request::SetMode(mode, granularity)),
        1 => (0..60_000_usize).prop_map(Request::SetCapacity),
        1 => Just(Request::Clear),
    ]
}

proptest! {
    #[test]
    fn it_does_what_the_plain_one_does(requests in vec(requests(), 1..120)) {
        let capacity = 40_000;
        let (mut cache, mut plain) = (Cache::new(capacity), Plain { capacity, ..Plain::default() });
        let mut owned: BTreeMap<u32, Pages<u32>> = BTreeMap::new();
        for request in requests {
            match request {
                Request::Begin(row) if !owned.contains_key(&row) => {
                    plain.begin(row);
                    let mut taken = cache.begin(key(row));
                    let (read, covered) = (taken.is_none(), bits(&[0]));
                    cache.count_partial(Class::Data, taken.as_mut(), &plan_of(0), &covered, read);
                    let mut taken = taken.unwrap_or_else(|| pages(&[]));
                    // Counting takes marks off; the plain one does not count.
                    let (own, _, _) = &plain.owners[&row];
                    taken.stale.clone_from(&own.stale);
                    taken.marked = own.marked;
                    prop_assert_eq!(&taken, own);
                    owned.insert(row, taken);
                }
                Request::End(row, sector, over) => {
                    let Some(mut taken) = owned.remove(&row) else { continue };
                    taken.set(sector, sector as u32);
                    plain.end(row, sector);
                    match over.then(|| cache.hand_over(key(row), taken.clone())) {
                        Some(None) => cache.give_up(key(row)),
                        Some(Some(left)) => cache.finish(key(row), left, Insert::Partial),
                        None => cache.finish(key(row), taken, Insert::Partial),
                    }
                }
                Request::GiveUp(row) => {
                    if owned.remove(&row).is_some() {
                        plain.owners.remove(&row);
                        cache.give_up(key(row));
                    }
                }
                Request::Free(row, sector) => {
                    plain.free(row, sector);
                    cache.invalidate(&key(row), &bits(&[sector]));
                }
                Request::SetMode(mode, granularity) => {
                    if (mode, granularity) != (plain.mode, plain.granularity) {
                        (plain.mode, plain.granularity) = (mode, granularity);
                        plain.clear();
                    }
                    cache.set_mode(mode, granularity);
                }
                Request::SetCapacity(capacity) => {
                    plain.capacity = capacity;
                    plain.evict();
                    cache.set_capacity(capacity);
                }
                Request::Clear => {
                    plain.clear();
                    cache.clear();
                }
                Request::Begin(_) => {}
            }
            let kept: Vec<_> = cache.entries.iter().rev().map(|(key, pages)| (key.stripe.row.0, pages.clone())).collect();
            prop_assert_eq!(&kept, &plain.entries, "after {:?}", request);
            let bytes: usize = plain.entries.iter().map(|(_, pages)| pages.bytes()).sum();
            prop_assert_eq!((cache.bytes(), cache.bytes() <= cache.capacity_bytes()), (bytes, true));
            let counters = cache.counters(Class::Data);
            prop_assert!(counters.agree(), "{:?}", counters);
        }
    }
}
