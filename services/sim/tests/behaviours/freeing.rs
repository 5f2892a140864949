//! 7: free invalidates. 8: free is not early.
//!
//! One vertical: A is live, the Bs were freed, C is written. As many Bs as the profile has parities, so that what poisons
//! the parity cannot be told from A by what is left.

use bytes::Bytes;
use stripeset_coordinator::{
    engine::{ReadError, Weak},
    meta::Extent,
};
use stripeset_sim::cluster::{Cluster, Coordinator};
use stripeset_stripe::cache::{Granularity, Mode};

use crate::stage::{At, PARITY_PROFILES, Tested, cluster, moment, on};

/// Profiles with room for A, C, and as many Bs as there are parities.
const ROOMY_PROFILES: [&str; 4] = ["raid5-3+1", "raid5-4+1", "raid6-4+2", "rs-5+3"];

const RULES: [(Mode, Granularity); 5] = [
    (Mode::Drop, Granularity::Sector),
    (Mode::Drop, Granularity::Whole),
    (Mode::Off, Granularity::Sector),
    (Mode::Stock, Granularity::Sector),
    (Mode::Mark, Granularity::Sector),
];

const VERTICAL: usize = 1;
const A: At = (0, VERTICAL);

fn freed(tested: &Tested<'_>) -> Vec<At> {
    (1..=tested.parity_shards()).map(|shard| (shard, VERTICAL)).collect()
}

fn written(tested: &Tested<'_>) -> At {
    (tested.data_shards() - 1, VERTICAL)
}

/// A stripe whose vertical is in the cache, unless nothing is; everything of it is at home.
async fn prepared<'a>(
    cluster: &'a Cluster,
    coordinator: &'a Coordinator,
    (mode, granularity): (Mode, Granularity),
) -> Tested<'a> {
    let tested = Tested::full(cluster, coordinator).await;
    coordinator.engine.cache().set_mode(mode, granularity);
    tested.write(&[written(&tested)]).await.unwrap();
    tested.settle().await;
    tested
}

/// A, asked for as if its member were lost: while its line is cut, and once it is out.
async fn without_its_member(tested: &Tested<'_>) -> [Result<(), ReadError>; 2] {
    let read = async || {
        let read = tested.read(A).await;
        read.map(|bytes| assert!(Some(bytes) == tested.expected(A), "wrong bytes are served"))
    };
    tested.cut(&[tested.member_of(A.0)]).await;
    let away = read().await;
    tested.mend().await;
    tested.coordinator.mark_out(tested.member_of(A.0) as u32).await.unwrap();
    [away, read().await]
}

#[test]
fn behaviour_07_free_invalidates() {
    for word in ROOMY_PROFILES {
        for rules in RULES {
            on(word, async |cluster, coordinator| {
                let tested = prepared(cluster, coordinator, rules).await;
                freed(&tested).into_iter().for_each(|b| tested.free(b));
                freed(&tested).into_iter().for_each(|b| tested.forge(b));
                let (before, from_b) = (tested.counters(), tested.counts(1).sectors_read);
                tested.write(&[written(&tested)]).await.unwrap();
                let after = tested.counters();
                let closed = matches!(rules.0, Mode::Drop | Mode::Off);
                assert_eq!(
                    tested.counts(1).sectors_read > from_b,
                    closed,
                    "{word} {rules:?}: whether B is read"
                );
                assert_eq!(after.rmw_reads - before.rmw_reads, u64::from(closed), "{word} {rules:?}");
                assert_eq!(after.rmw_skips - before.rmw_skips, u64::from(!closed), "{word} {rules:?}");
                let stale = u64::from(rules.0 == Mode::Mark);
                assert_eq!(after.stale_skips - before.stale_skips, stale, "{word} {rules:?}");
                assert_eq!(after.stale_skips_sector - before.stale_skips_sector, stale, "{word} {rules:?}");
                tested.reads_right().await.unwrap_or_else(|fault| panic!("{word} {rules:?}: {fault}"));
                if closed {
                    tested.at_rest().await.unwrap_or_else(|fault| panic!("{word} {rules:?}: {fault}"));
                    tested.any_m_may_be_lost().await.unwrap();
                } else {
                    assert!(tested.at_rest().await.is_err(), "{word} {rules:?}: the parity is poisoned");
                }
                match (closed, without_its_member(&tested).await) {
                    (true, [Ok(()), Ok(())]) => {}
                    (
                        false,
                        [Err(ReadError::Unavailable { .. }), Err(ReadError::Lost { sectors: 1, .. })],
                    ) => {}
                    (_, other) => panic!("{word} {rules:?}: {other:?}"),
                }
            });
        }
    }
}

#[test]
fn behaviour_07_a_stale_entry_is_counted_once() {
    for word in ROOMY_PROFILES {
        on(word, async |cluster, coordinator| {
            let rules = (Mode::Mark, Granularity::Sector);
            let stripes =
                [prepared(cluster, coordinator, rules).await, prepared(cluster, coordinator, rules).await];
            let counters = || stripes[0].counters();
            let before = counters();
            for (count, tested) in (1..).zip(&stripes) {
                for b in freed(tested) {
                    tested.free(b);
                    assert_eq!(
                        counters().stale_marked,
                        before.stale_marked + count,
                        "{word}: once for an entry"
                    );
                }
                for _ in 0..3 {
                    tested.write(&[written(tested)]).await.unwrap();
                    assert_eq!(counters().stale_skips, before.stale_skips + count, "{word}");
                    assert_eq!(counters().stale_skips_sector, before.stale_skips_sector + count, "{word}");
                }
            }
            assert!(counters().agree());
        });
    }
}

#[test]
fn behaviour_07_what_is_freed_without_a_page_is_not_stale() {
    for word in ROOMY_PROFILES {
        on(word, async |cluster, coordinator| {
            let tested = prepared(cluster, coordinator, (Mode::Mark, Granularity::Sector)).await;
            let before = tested.counters();
            tested.free((1, VERTICAL + 1));
            tested.write(&[written(&tested)]).await.unwrap();
            assert_eq!(tested.counters().stale_marked, before.stale_marked, "{word}");
            assert_eq!(tested.counters().stale_skips, before.stale_skips, "{word}");
        });
    }
}

/// Asks for A where the one parity that is left was changed together with its checksum.
async fn from_a_parity_that_lies(
    cluster: &Cluster,
    coordinator: &Coordinator,
) -> (Result<Bytes, ReadError>, Option<Bytes>) {
    let tested = Tested::full(cluster, coordinator).await;
    tested.settle().await;
    tested.forge((tested.data_shards(), VERTICAL));
    let lost = [A.0].into_iter().chain(tested.data_shards() + 1..cluster.lines().len());
    tested.cut(&lost.map(|shard| tested.member_of(shard)).collect::<Vec<_>>()).await;
    (tested.read(A).await, tested.expected(A))
}

#[test]
fn behaviour_07_lost_never_wrong() {
    for word in ROOMY_PROFILES {
        on(word, async |cluster, coordinator| {
            let (read, _) = from_a_parity_that_lies(cluster, coordinator).await;
            assert!(read.is_err(), "{word}: {read:?}");
        });
        on(word, async |cluster, coordinator| {
            coordinator.engine.weaken(Weak::ReconstructionUnchecked);
            let (read, right) = from_a_parity_that_lies(cluster, coordinator).await;
            assert!(read.is_ok_and(|bytes| Some(bytes) != right), "{word}: a weak engine serves wrong bytes");
        });
    }
}

/// A, B and C are live; somebody deletes B, but the transaction does not become durable before the crash. Returns what
/// reading B gives then. `early`: the engine is told of the free before it may be.
fn deleted_and_alive_again(
    word: &str,
    damage: impl Fn(&Tested<'_>, At),
    early: bool,
) -> Result<bool, ReadError> {
    let mut cluster = cluster(word, 1);
    let (mut in_use, mut right): (Vec<Extent>, _) = (Vec::new(), None);
    let life = async |cluster: &Cluster, coordinator: &Coordinator| {
        let tested = Tested::full(cluster, coordinator).await;
        let (b, c) = ((0, VERTICAL), (tested.data_shards() - 1, VERTICAL));
        tested.write(&[c]).await.unwrap();
        tested.settle().await;
        (in_use, right) =
            (tested.all().into_iter().map(|at| tested.extent(at)).collect(), tested.expected(b));
        if early {
            tested.free(b);
        }
        damage(&tested, b);
        tested.write(&[c]).await.unwrap();
        coordinator.engine.flush_commits().await;
        tested.stripe
    };
    let stripe = cluster.run(&[], life).unwrap();
    let again = async |cluster: &Cluster, coordinator: &Coordinator| {
        let tested = Tested::of(cluster, coordinator, stripe);
        assert!(tested.is_live((0, VERTICAL)));
        let read = tested.read((0, VERTICAL)).await?;
        moment().await;
        tested.settle().await;
        assert!(tested.raw((0, VERTICAL)) == read, "{word}: it is repaired");
        Ok(Some(read) == right)
    };
    cluster.run(&in_use, again).unwrap()
}

#[test]
fn behaviour_08_free_is_not_early() {
    for word in PARITY_PROFILES.into_iter().chain(ROOMY_PROFILES) {
        let read = deleted_and_alive_again(word, |tested, b| tested.flip(b), false);
        assert_eq!(read, Ok(true), "{word}");
    }
}

#[test]
fn behaviour_08_an_early_free_would_lose_it() {
    // B and the parities are bad: only the page knows B. It goes into the new parity, unless it was dropped.
    let all_but_the_page = |tested: &Tested<'_>, b: At| {
        tested.flip(b);
        (0..tested.parity_shards()).for_each(|parity| tested.flip((tested.data_shards() + parity, VERTICAL)));
    };
    for word in ROOMY_PROFILES {
        assert_eq!(deleted_and_alive_again(word, all_but_the_page, false), Ok(true), "{word}");
        assert_ne!(deleted_and_alive_again(word, all_but_the_page, true), Ok(true), "{word}");
    }
}

#[test]
fn behaviour_08_a_reader_of_an_older_map_holds_what_was_freed() {
    for word in ROOMY_PROFILES {
        on(word, async |cluster, coordinator| {
            let tested = prepared(cluster, coordinator, (Mode::Drop, Granularity::Sector)).await;
            let b = (1, VERTICAL);
            let release = || {
                for extent in coordinator.pins.release() {
                    assert_eq!(extent, tested.extent(b));
                    tested.free(b);
                }
            };
            let reader = coordinator.pins.pin();
            coordinator.pins.freed(u64::MAX, vec![tested.extent(b)]);
            release();
            assert!(tested.is_live(b) && tested.has_page(b), "{word}: somebody may still read it");
            drop(reader);
            release();
            assert!(!tested.is_live(b) && !tested.has_page(b), "{word}");
        });
    }
}
