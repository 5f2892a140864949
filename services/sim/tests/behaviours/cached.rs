//! 3: a hit reads nothing. 5: full and fresh writes read nothing and leave no older entry. 14: recovery ignores the cache.

use stripeset_sim::cluster::{Cluster, Coordinator};
use stripeset_stripe::{
    cache::{Granularity, Mode},
    plan::Reading,
};

use crate::stage::{ALL_PROFILES, At, PARITY_PROFILES, Tested, bytes_of, moment, on};

const MODES: [Mode; 4] = [Mode::Drop, Mode::Stock, Mode::Mark, Mode::Off];

fn set_mode(tested: &Tested<'_>, mode: Mode) {
    tested.engine().cache().set_mode(mode, Granularity::Sector);
}

/// The sector of the last data shard in a vertical.
fn last(tested: &Tested<'_>, vertical: usize) -> At {
    (tested.data_shards() - 1, vertical)
}

#[test]
fn behaviour_03_a_hit_reads_nothing() {
    for word in ALL_PROFILES {
        for (mode, reading) in [
            (Mode::Drop, Reading::Needed),
            (Mode::Stock, Reading::Needed),
            (Mode::Mark, Reading::Needed),
            (Mode::Drop, Reading::Whole),
        ] {
            on(word, async |cluster, coordinator| {
                let tested = Tested::full(cluster, coordinator).await;
                set_mode(&tested, mode);
                tested.engine().set_reading(reading);
                assert!(!tested.is_cached(), "{word}: one that fills its stripe is not cached");
                tested.write(&[(0, 1), (0, 2)]).await.unwrap();
                assert!(tested.is_cached(), "{word}");
                for sectors in [vec![last(&tested, 1)], vec![(0, 2)], vec![last(&tested, 2), (0, 1)]] {
                    let (reads, counters) = (tested.reads(), tested.counters());
                    tested.write(&sectors).await.unwrap();
                    assert_eq!(tested.reads(), reads, "{word} {mode:?}: no member is read");
                    let after = tested.counters();
                    assert_eq!(after.rmw_skips, counters.rmw_skips + 1, "{word} {mode:?}");
                    assert_eq!(after.rmw_reads, counters.rmw_reads, "{word} {mode:?}");
                    assert_eq!(after.steals, counters.steals + 1, "{word} {mode:?}");
                }
                tested.at_rest().await.unwrap();
                tested.any_m_may_be_lost().await.unwrap();
            });
        }
    }
}

#[test]
fn behaviour_03_a_miss_reads() {
    for word in PARITY_PROFILES {
        on(word, async |cluster, coordinator| {
            let tested = Tested::full(cluster, coordinator).await;
            let neighbours = tested.data_shards() as u64 - 1;
            for (mode, sectors) in
                [(Mode::Drop, neighbours), (Mode::Off, neighbours), (Mode::Off, neighbours)]
            {
                set_mode(&tested, mode);
                let (before, counters) = (tested.reads().1, tested.counters());
                tested.write(&[(0, 1)]).await.unwrap();
                assert_eq!(tested.reads().1, before + sectors, "{word} {mode:?}");
                assert_eq!(tested.counters().rmw_reads, counters.rmw_reads + 1, "{word} {mode:?}");
                assert_eq!(tested.is_cached(), mode != Mode::Off, "{word} {mode:?}");
            }
            tested.at_rest().await.unwrap();
        });
    }
}

#[test]
fn behaviour_05_a_full_write_reads_nothing_and_removes_the_entry() {
    for word in ALL_PROFILES {
        for mode in MODES {
            on(word, async |cluster, coordinator| {
                let tested = Tested::full(cluster, coordinator).await;
                set_mode(&tested, mode);
                for is_cached in [false, mode != Mode::Off] {
                    if is_cached {
                        tested.write(&[(0, 0)]).await.unwrap();
                    }
                    assert_eq!(tested.is_cached(), is_cached, "{word} {mode:?}");
                    let (reads, counters) = (tested.reads(), tested.counters());
                    tested.write(&tested.all()).await.unwrap();
                    let (records, sectors) = (tested.reads().0 - reads.0, tested.reads().1 - reads.1);
                    assert_eq!(sectors, 0, "{word} {mode:?}: no sector is read");
                    // Which version stands on which shard the parities know.
                    assert_eq!(records == 0, is_cached, "{word} {mode:?}");
                    let after = tested.counters();
                    assert_eq!(after.rmw_partial, counters.rmw_partial, "{word} {mode:?}: it is not partial");
                    assert_eq!(
                        after.steals_other,
                        counters.steals_other + u64::from(is_cached),
                        "{word} {mode:?}"
                    );
                    assert!(!tested.is_cached(), "{word} {mode:?}");
                }
                tested.at_rest().await.unwrap();
                tested.any_m_may_be_lost().await.unwrap();
            });
        }
    }
}

#[test]
fn behaviour_05_a_fresh_write_reads_nothing_and_removes_the_entry() {
    for word in ALL_PROFILES {
        for mode in MODES {
            on(word, async |cluster, coordinator| {
                let tested = Tested::full(cluster, coordinator).await;
                set_mode(&tested, mode);
                for sectors in [tested.unit_sectors(), 1, 2, tested.unit_sectors()] {
                    tested.write(&[(0, 3), last(&tested, 2)]).await.unwrap();
                    assert_eq!(tested.is_cached(), mode != Mode::Off, "{word} {mode:?}");
                    empty(&tested);
                    let (reads, counters) = (tested.reads(), tested.counters());
                    tested.write_fresh(sectors).await.unwrap();
                    assert_eq!(tested.reads(), reads, "{word} {mode:?}: nothing is asked");
                    assert_eq!(tested.counters().rmw_partial, counters.rmw_partial, "{word} {mode:?}");
                    let cached = sectors < tested.unit_sectors() && mode != Mode::Off;
                    assert_eq!(tested.is_cached(), cached, "{word} {mode:?}");
                    for at in tested.all() {
                        let has_page = cached && at.1 < sectors;
                        assert_eq!(tested.has_page(at), has_page, "{word} {mode:?}: of the new write alone");
                    }
                    tested.at_rest().await.unwrap();
                    tested.any_m_may_be_lost().await.unwrap();
                    // What it left in the cache is good for the next write.
                    tested.write(&[(0, 1)]).await.unwrap();
                    assert_eq!(tested.reads() == reads, cached, "{word} {mode:?}, {sectors}");
                    tested.at_rest().await.unwrap();
                    tested.reads_right().await.unwrap();
                }
            });
        }
    }
}

/// Frees all of a stripe, and takes it again, as the allocator would.
fn empty(tested: &Tested<'_>) {
    tested.all().into_iter().for_each(|at| tested.free(at));
    tested.all().into_iter().for_each(|at| tested.take(at));
}

/// Puts other bytes into every page of the stripe.
fn put_wrong_bytes_in(tested: &Tested<'_>) {
    let mut cache = tested.engine().cache();
    let pages = cache.peek_mut(&tested.key()).unwrap();
    let valid: Vec<usize> = pages.valid().collect();
    assert!(!valid.is_empty());
    valid.into_iter().for_each(|sector| pages.set(sector, bytes_of(0xbad0 + sector as u64)));
}

async fn wholly_cached<'a>(cluster: &'a Cluster, coordinator: &'a Coordinator) -> Tested<'a> {
    let tested = Tested::full(cluster, coordinator).await;
    tested.engine().set_reading(Reading::Whole);
    tested.write(&[(0, 0), (0, 1), (0, 2)]).await.unwrap();
    // A commit that has not arrived would be resolved when its member comes back, without the entry.
    tested.settle().await;
    // A copy of a mirror has no neighbours to read.
    let read = |at: &At| tested.data_shards() > 1 || at.1 < 3;
    assert!(tested.all().into_iter().filter(read).all(|at| tested.has_page(at)));
    tested
}

#[test]
fn behaviour_14_recovery_ignores_the_cache() {
    for word in ALL_PROFILES {
        on(word, async |cluster, coordinator| {
            let tested = wholly_cached(cluster, coordinator).await;
            put_wrong_bytes_in(&tested);
            tested.reads_right().await.unwrap();
            for shard in 0..cluster.lines().len() {
                tested.cut(&[tested.member_of(shard)]).await;
                tested.reads_right().await.unwrap_or_else(|fault| panic!("{word} without {shard}: {fault}"));
                tested.mend().await;
            }
            assert!(tested.is_cached(), "{word}: the entry was there all the time");
            tested.any_m_may_be_lost().await.unwrap();
        });
    }
}

#[test]
fn behaviour_14_a_repair_ignores_the_cache() {
    for word in ALL_PROFILES {
        on(word, async |cluster, coordinator| {
            let tested = wholly_cached(cluster, coordinator).await;
            put_wrong_bytes_in(&tested);
            for at in [(0, 1), last(&tested, 2)] {
                tested.flip(at);
                assert_eq!(Some(tested.read(at).await.unwrap()), tested.expected(at), "{word}");
            }
            moment().await;
            tested.at_rest().await.unwrap_or_else(|fault| panic!("{word}: {fault}"));
            tested.any_m_may_be_lost().await.unwrap();
        });
    }
}

#[test]
fn behaviour_14_the_wrong_bytes_were_there() {
    for word in PARITY_PROFILES {
        on(word, async |cluster, coordinator| {
            let tested = wholly_cached(cluster, coordinator).await;
            put_wrong_bytes_in(&tested);
            tested.write(&[(0, 1)]).await.unwrap();
            assert!(tested.at_rest().await.is_err(), "{word}: a write computes its parity from the pages");
        });
    }
}
