//! 6: neighbouring partial writes that together fill a stripe while its lock is held are done as one: one parity
//! computation, no read. None is merged into a write whose parity has been computed. Writes to one sector apply in the order
//! in which they were submitted.

use futures_util::future::join_all;
use stripeset_coordinator::engine::Edit;
use stripeset_sim::network::{Conduct, Kind};
use stripeset_stripe::Version;

use crate::stage::{ALL_PROFILES, PARITY_PROFILES, Tested, moment, on};

/// Submits the writes in order, lets `meanwhile` happen once all wait, and returns their versions.
async fn submit(tested: &Tested<'_>, writes: Vec<Vec<Edit>>, meanwhile: impl AsyncFnOnce()) -> Vec<Version> {
    let writes = writes.into_iter().map(|edits| tested.engine().write_partial(&tested.stripe, edits));
    let meanwhile = async {
        moment().await;
        meanwhile().await;
    };
    let (versions, ()) = tokio::join!(join_all(writes), meanwhile);
    versions.into_iter().map(Result::unwrap).collect()
}

#[test]
fn behaviour_06_what_fills_a_stripe_together_is_one_write() {
    for word in ALL_PROFILES {
        on(word, async |cluster, coordinator| {
            let tested = Tested::full(cluster, coordinator).await;
            // In the cache: the versions of its shards are known then.
            tested.write(&[(0, 0)]).await.unwrap();
            let (reads, prepares, counters) = (tested.reads(), tested.prepares(), tested.counters());
            tested.keep_back(&[Kind::Prepare]);
            let first = vec![tested.edits(&[(0, 0)])];
            let waiting: Vec<_> = tested.all().into_iter().map(|at| tested.edits(&[at])).collect();
            let rest = async {
                moment().await;
                assert_eq!(tested.counters().rmw_partial, counters.rmw_partial + 1, "its parity is computed");
                submit(&tested, waiting, async || tested.keep_back(&[])).await
            };
            let (first, rest) = tokio::join!(submit(&tested, first, async || {}), rest);
            assert!(rest.iter().all(|version| *version == rest[0]), "{word}: they were done as one");
            assert!(first[0] < rest[0], "{word}: not with the one whose parity was computed");
            assert_eq!(tested.reads(), reads, "{word}: nothing is read");
            let of_first = 1 + cluster.lines().len() as u64 - tested.data_shards() as u64;
            let of_rest = cluster.lines().len() as u64;
            assert_eq!(
                tested.prepares(),
                prepares + of_first + of_rest,
                "{word}: one Prepare to each member"
            );
            assert_eq!(
                tested.counters().rmw_partial,
                counters.rmw_partial + 1,
                "{word}: it filled the stripe"
            );
            assert!(!tested.is_cached(), "{word}: and is not cached");
            tested.at_rest().await.unwrap();
            tested.reads_right().await.unwrap();
        });
    }
}

#[test]
fn behaviour_06_behind_a_reader_they_are_one_write_too() {
    for word in PARITY_PROFILES {
        on(word, async |cluster, coordinator| {
            let tested = Tested::full(cluster, coordinator).await;
            tested.settle().await;
            tested.flip((0, 0));
            let (prepares, counters) = (tested.prepares(), tested.counters());
            // A sector that has to be rebuilt: the stripe is read as a whole, under its lock.
            let parity = tested.member_of(tested.data_shards());
            tested.set_conduct(&[parity], &Conduct { held: vec![Kind::Read], ..Conduct::default() });
            let before = tested.expected((0, 0));
            let waiting: Vec<_> = tested.all().into_iter().map(|at| tested.edits(&[at])).collect();
            let read = tested.read((0, 0));
            let writes = async {
                moment().await;
                submit(&tested, waiting, async || {
                    assert_eq!(tested.prepares(), prepares, "{word}: the reader has the lock");
                    tested.keep_back(&[]);
                })
                .await
            };
            let (read, versions) = tokio::join!(read, writes);
            assert_eq!(Some(read.unwrap()), before, "{word}: it came first");
            assert!(versions.iter().all(|version| *version == versions[0]), "{word}: they were done as one");
            assert_eq!(tested.counters().rmw_partial, counters.rmw_partial, "{word}: they filled the stripe");
            tested.at_rest().await.unwrap();
            tested.reads_right().await.unwrap();
        });
    }
}

#[test]
fn behaviour_06_what_waits_is_merged_and_what_is_computed_is_not() {
    for word in PARITY_PROFILES {
        on(word, async |cluster, coordinator| {
            let tested = Tested::full(cluster, coordinator).await;
            tested.write(&[(0, 0), (0, 1)]).await.unwrap();
            let (reads, counters) = (tested.reads(), tested.counters());
            tested.keep_back(&[Kind::Prepare]);
            let first = tested.edits(&[(0, 0)]);
            let second =
                vec![tested.edits(&[(0, 1)]), tested.edits(&[(1, 0)]), tested.edits(&[(1, 1), (0, 0)])];
            let first = async { submit(&tested, vec![first], async || {}).await };
            let second = async {
                moment().await;
                submit(&tested, second, async || tested.keep_back(&[])).await
            };
            let (first, second) = tokio::join!(first, second);
            let versions = [first, second].concat();
            assert!(versions[0] < versions[1], "{word}: the first was computed before they came");
            assert_eq!(versions[1], versions[2], "{word}");
            assert_eq!(versions[1], versions[3], "{word}");
            let after = tested.counters();
            assert_eq!(
                after.rmw_partial,
                counters.rmw_partial + 2,
                "{word}: two computations for four writes"
            );
            assert_eq!(
                after.steals,
                counters.steals + 2,
                "{word}: the second takes the pages from the first"
            );
            assert_eq!(tested.reads(), reads, "{word}: nothing is read");
            tested.at_rest().await.unwrap();
            tested.reads_right().await.unwrap();
        });
    }
}

#[test]
fn behaviour_06_one_that_reads_already_is_not_added_to() {
    for word in PARITY_PROFILES {
        on(word, async |cluster, coordinator| {
            let tested = Tested::full(cluster, coordinator).await;
            let counters = tested.counters();
            tested.keep_back(&[Kind::Read]);
            let first = tested.edits(&[(0, 0)]);
            let second = vec![tested.edits(&[(0, 0)]), tested.edits(&[(0, 0)])];
            let second = async {
                moment().await;
                submit(&tested, second, async || tested.keep_back(&[])).await
            };
            let (first, second) = tokio::join!(submit(&tested, vec![first], async || {}), second);
            assert!(first[0] < second[0] && second[0] == second[1], "{word}: {first:?} {second:?}");
            assert_eq!(tested.counters().rmw_partial, counters.rmw_partial + 2, "{word}");
            tested.at_rest().await.unwrap();
            tested.reads_right().await.unwrap();
        });
    }
}

#[test]
fn behaviour_06_writes_to_one_sector_apply_in_order() {
    for word in ALL_PROFILES {
        on(word, async |cluster, coordinator| {
            let tested = Tested::full(cluster, coordinator).await;
            let mut before = Version::NONE;
            for count in 1..12 {
                // Some over one sector alone, some over its neighbours with it.
                let writes: Vec<_> = (0..count)
                    .map(|index| {
                        if index % 3 == 2 { tested.edits(&[(0, 0), (0, 1)]) } else { tested.edits(&[(0, 1)]) }
                    })
                    .collect();
                let versions = submit(&tested, writes, async || {}).await;
                assert!(before < versions[0] && versions.is_sorted(), "{word}: {versions:?}");
                before = *versions.last().unwrap();
                tested.reads_right().await.unwrap_or_else(|fault| panic!("{word}, {count} writes: {fault}"));
            }
            tested.at_rest().await.unwrap();
        });
    }
}
