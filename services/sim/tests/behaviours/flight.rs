//! 9: free meets a write in flight. A write stands between its read and its insert; sectors are freed under it; it goes on.
//! No later write uses their pages, and those that waited read them again.

use stripeset_coordinator::engine::Weak;
use stripeset_sim::network::Kind;
use stripeset_stripe::cache::{Granularity, Mode};

use crate::stage::{At, Tested, moment, on};

/// Profiles with room for a live neighbour, a sector that is written, and as many freed ones as there are parities.
const ROOMY_PROFILES: [&str; 4] = ["raid5-3+1", "raid5-4+1", "raid6-4+2", "rs-5+3"];

const STANDS_AT: [Kind; 2] = [Kind::Read, Kind::Prepare];

const A: At = (0, 1);

fn freed(tested: &Tested<'_>) -> Vec<At> {
    (1..=tested.parity_shards()).map(|shard| (shard, 1)).collect()
}

fn written(tested: &Tested<'_>) -> At {
    (tested.data_shards() - 1, 1)
}

/// Sectors read so far from the members of the freed ones, and from the one of A.
fn read_from(tested: &Tested<'_>) -> (u64, u64) {
    (freed(tested).iter().map(|b| tested.counts(b.0).sectors_read).sum(), tested.counts(A.0).sectors_read)
}

/// A write stands at one kind of answer; the Bs are freed under it, and change on their disks; it goes on. With
/// `one_waits` another one was submitted meanwhile. Returns the sectors read after the free, from the Bs and from A.
async fn freed_in_flight(tested: &Tested<'_>, stands_at: Kind, one_waits: bool) -> (u64, u64) {
    tested.keep_back(&[stands_at]);
    let c = [written(tested)];
    let first = tested.write_noted(&c);
    let meanwhile = async {
        moment().await;
        for b in freed(tested) {
            tested.free(b);
            tested.forge(b);
        }
        let before = read_from(tested);
        let second = async {
            if one_waits {
                tested.write_noted(&c).await;
            }
        };
        let go_on = async {
            moment().await;
            assert_eq!(read_from(tested), before, "the first one stands");
            tested.keep_back(&[]);
        };
        tokio::join!(second, go_on);
        before
    };
    let ((), before) = tokio::join!(first, meanwhile);
    let after = read_from(tested);
    (after.0 - before.0, after.1 - before.1)
}

/// Everything is as it should be, and A survives the loss of its member.
async fn is_sound(tested: &Tested<'_>) -> Result<(), String> {
    tested.at_rest().await?;
    tested.any_m_may_be_lost().await?;
    tested.coordinator.mark_out(tested.member_of(A.0) as u32).await.unwrap();
    tested.reads_right().await
}

#[test]
fn behaviour_09_those_that_wait_read_again() {
    for word in ROOMY_PROFILES {
        for granularity in [Granularity::Sector, Granularity::Whole] {
            for stands_at in STANDS_AT {
                on(word, async |cluster, coordinator| {
                    let tested = Tested::full(cluster, coordinator).await;
                    coordinator.engine.cache().set_mode(Mode::Drop, granularity);
                    tested.settle().await;
                    let marked = tested.counters().stale_marked;
                    let (from_freed, from_a) = freed_in_flight(&tested, stands_at, true).await;
                    let what = format!("{word} {granularity:?} {stands_at:?}");
                    assert!(from_freed >= freed(&tested).len() as u64, "{what}: {from_freed}");
                    assert_eq!(tested.counters().stale_marked, marked + 1, "{what}");
                    assert!(tested.counters().agree(), "{what}");
                    if granularity == Granularity::Whole {
                        assert!(from_a > 0, "{what}: nothing is left of the pages");
                    }
                    is_sound(&tested).await.unwrap_or_else(|fault| panic!("{what}: {fault}"));
                });
            }
        }
    }
}

#[test]
fn behaviour_09_what_comes_later_reads_again() {
    for word in ROOMY_PROFILES {
        for granularity in [Granularity::Sector, Granularity::Whole] {
            for stands_at in STANDS_AT {
                on(word, async |cluster, coordinator| {
                    let tested = Tested::full(cluster, coordinator).await;
                    coordinator.engine.cache().set_mode(Mode::Drop, granularity);
                    tested.settle().await;
                    freed_in_flight(&tested, stands_at, false).await;
                    let what = format!("{word} {granularity:?} {stands_at:?}");
                    assert!(freed(&tested).into_iter().all(|b| !tested.has_page(b)), "{what}");
                    assert_eq!(tested.has_page(A), granularity == Granularity::Sector, "{what}");
                    let before = read_from(&tested);
                    tested.write(&[written(&tested)]).await.unwrap();
                    assert!(read_from(&tested).0 > before.0, "{what}");
                    is_sound(&tested).await.unwrap_or_else(|fault| panic!("{what}: {fault}"));
                });
            }
        }
    }
}

#[test]
fn behaviour_09_reads_what_was_freed_and_nothing_else() {
    for word in ROOMY_PROFILES {
        on(word, async |cluster, coordinator| {
            let tested = Tested::full(cluster, coordinator).await;
            tested.keep_back(&[Kind::Prepare]);
            let c = [written(&tested)];
            let first = tested.write_noted(&c);
            let meanwhile = async {
                moment().await;
                freed(&tested).into_iter().for_each(|b| tested.free(b));
                let go_on = async {
                    moment().await;
                    tested.keep_back(&[]);
                };
                let before = tested.reads();
                tokio::join!(tested.write_noted(&c), go_on);
                before
            };
            let ((), before) = tokio::join!(first, meanwhile);
            let count = freed(&tested).len() as u64;
            assert_eq!(tested.reads(), (before.0 + count, before.1 + count), "{word}");
            is_sound(&tested).await.unwrap();
        });
    }
}

#[test]
fn behaviour_09_under_a_fresh_write() {
    for word in ROOMY_PROFILES {
        on(word, async |cluster, coordinator| {
            let tested = Tested::blank(cluster, coordinator).await;
            tested.keep_back(&[Kind::Prepare]);
            let free = async {
                moment().await;
                freed(&tested).into_iter().for_each(|b| tested.free(b));
                tested.keep_back(&[]);
            };
            let (written_fresh, ()) = tokio::join!(tested.write_fresh(2), free);
            written_fresh.unwrap();
            assert!(tested.has_page(A), "{word}");
            assert!(freed(&tested).into_iter().all(|b| !tested.has_page(b)), "{word}");
            tested.settle().await;
            freed(&tested).into_iter().for_each(|b| tested.forge(b));
            tested.write(&[written(&tested)]).await.unwrap();
            is_sound(&tested).await.unwrap_or_else(|fault| panic!("{word}: {fault}"));
        });
    }
}

#[test]
fn behaviour_09_a_marked_write_in_flight_is_counted() {
    for word in ROOMY_PROFILES {
        for stands_at in STANDS_AT {
            on(word, async |cluster, coordinator| {
                let tested = Tested::full(cluster, coordinator).await;
                coordinator.engine.cache().set_mode(Mode::Mark, Granularity::Sector);
                tested.settle().await;
                let before = tested.counters();
                let (from_freed, _) = freed_in_flight(&tested, stands_at, true).await;
                let after = tested.counters();
                assert_eq!(from_freed, 0, "{word}: mode mark leaves the window open");
                assert_eq!(after.stale_marked, before.stale_marked + 1, "{word}");
                assert_eq!(after.stale_steals, before.stale_steals + 1, "{word}");
                assert_eq!(after.stale_skips, before.stale_skips + 1, "{word}");
                tested.write(&[written(&tested)]).await.unwrap();
                assert_eq!(tested.counters().stale_skips, before.stale_skips + 1, "{word}: once");
            });
        }
    }
}

#[test]
fn behaviour_09_is_seen_to_be_broken() {
    for word in ROOMY_PROFILES {
        for stands_at in STANDS_AT {
            on(word, async |cluster, coordinator| {
                let tested = Tested::full(cluster, coordinator).await;
                coordinator.engine.weaken(Weak::StickyMarkIgnored);
                tested.settle().await;
                let (from_freed, _) = freed_in_flight(&tested, stands_at, true).await;
                assert_eq!(from_freed, 0, "{word}: the free is forgotten");
                assert!(is_sound(&tested).await.is_err(), "{word}: and the parity is poisoned");
            });
        }
    }
}
