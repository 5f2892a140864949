//! 10: a write that failed, or whose outcome is open, is not cached; its caller gets the error; the next partial write reads
//! again; and parity is right all the time.

use std::{sync::Arc, time::Duration};

use stripeset_agent::simulation::FaultRates;
use stripeset_coordinator::engine::{Weak, WriteError};
use stripeset_proto::v1::UnitState;
use stripeset_sim::{
    cluster::{Cluster, Coordinator},
    network::{Conduct, Kind},
};

use crate::stage::{ALL_PROFILES, At, PARITY_PROFILES, Tested, moment, on};

const TARGET: At = (0, 2);

/// Every disk is full, where a write has to take space.
fn fill_disks(tested: &Tested<'_>) {
    let rates = FaultRates { full: 1000, ..FaultRates::default() };
    (0..).zip(tested.cluster.lines()).for_each(|(seed, line)| line.agent().misbehave(rates, seed));
}

fn empty_disks(tested: &Tested<'_>) {
    tested.cluster.lines().iter().for_each(|line| line.agent().behave());
}

/// What makes a write fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failure {
    /// No member can be reached, so nobody can say that nothing arrived.
    OutOfReach,
    /// All members have prepared it, but no answer comes back before the lines break.
    NoAnswer,
    /// As that, but they have not all prepared it.
    SomeAnswer,
}

const FAILURES: [Failure; 3] = [Failure::OutOfReach, Failure::NoAnswer, Failure::SomeAnswer];

/// A write that fails, until its error is there. Lines are cut afterwards.
async fn failing(tested: &Tested<'_>, failure: Failure) -> Arc<WriteError> {
    let all = tested.all_members();
    // Without members nothing can be read any more.
    let sectors = if failure == Failure::OutOfReach { vec![TARGET] } else { vec![TARGET, (0, 3)] };
    match failure {
        Failure::OutOfReach => tested.cut(&all).await,
        Failure::NoAnswer => tested.keep_back(&[Kind::Prepare]),
        Failure::SomeAnswer => {
            tested.keep_back(&[Kind::Prepare]);
            tested.cut(&[tested.member_of(tested.data_shards())]).await;
        }
    }
    let cut = async {
        moment().await;
        tested.cut(&all).await;
    };
    let (written, ()) = tokio::join!(tested.write(&sectors), cut);
    written.unwrap_err()
}

/// A stripe with a vertical in the cache.
async fn cached<'a>(cluster: &'a Cluster, coordinator: &'a Coordinator) -> Tested<'a> {
    let tested = Tested::full(cluster, coordinator).await;
    tested.write(&[TARGET]).await.unwrap();
    tested.settle().await;
    assert!(tested.is_cached());
    tested
}

/// The next partial write reads all neighbours, and all is as it should be before and after.
async fn goes_on(tested: &Tested<'_>) -> Result<(), String> {
    tested.reads_right().await?;
    let before = tested.reads().1;
    tested.write(&[TARGET]).await.map_err(|error| error.to_string())?;
    let read = tested.reads().1 - before;
    if read < tested.data_shards() as u64 - 1 {
        return Err(format!("{read} sectors were read"));
    }
    tested.at_rest().await?;
    tested.any_m_may_be_lost().await?;
    tested.reads_right().await
}

#[test]
fn behaviour_10_an_open_write_is_not_cached() {
    for word in ALL_PROFILES {
        for failure in FAILURES {
            on(word, async |cluster, coordinator| {
                let tested = cached(cluster, coordinator).await;
                let error = failing(&tested, failure).await;
                let what = format!("{word} {failure:?}");
                assert!(matches!(*error, WriteError::Open { .. }), "{what}: {error:?}");
                assert!(!tested.is_cached(), "{what}");
                assert!(tested.counters().agree(), "{what}");
                tested.mend().await;
                assert!(!tested.is_cached(), "{what}");
                // The members took it back: it is as if it had never been.
                goes_on(&tested).await.unwrap_or_else(|fault| panic!("{what}: {fault}"));
            });
        }
    }
}

#[test]
fn behaviour_10_the_stripe_stays_locked_while_the_outcome_is_open() {
    for word in ALL_PROFILES {
        on(word, async |cluster, coordinator| {
            let tested = cached(cluster, coordinator).await;
            failing(&tested, Failure::NoAnswer).await;
            let prepares = tested.prepares();
            let next = tested.write_noted(&[TARGET]);
            let mend = async {
                moment().await;
                assert_eq!(tested.prepares(), prepares, "{word}: nobody writes before the outcome is known");
                tested.mend().await;
            };
            tokio::join!(next, mend);
            tested.at_rest().await.unwrap_or_else(|fault| panic!("{word}: {fault}"));
            tested.reads_right().await.unwrap();
        });
    }
}

#[test]
fn behaviour_10_what_waits_behind_it_reads_again() {
    for word in PARITY_PROFILES {
        on(word, async |cluster, coordinator| {
            let tested = cached(cluster, coordinator).await;
            let behind = async {
                moment().await;
                let before = tested.reads().1;
                tested.write_noted(&[TARGET]).await;
                tested.reads().1 - before
            };
            let fails = async {
                let all = tested.all_members();
                tested.keep_back(&[Kind::Prepare]);
                let cut = async {
                    moment().await;
                    moment().await;
                    tested.cut(&all).await;
                };
                let (edit, _) = tested.edit(TARGET);
                let (written, ()) =
                    tokio::join!(tested.engine().write_partial(&tested.stripe, vec![edit]), cut);
                assert!(matches!(*written.unwrap_err(), WriteError::Open { .. }), "{word}");
                tested.mend().await;
            };
            let (read, ()) = tokio::join!(behind, fails);
            assert!(read >= tested.data_shards() as u64 - 1, "{word}: {read} sectors");
            tested.at_rest().await.unwrap_or_else(|fault| panic!("{word}: {fault}"));
            tested.reads_right().await.unwrap();
        });
    }
}

#[test]
fn behaviour_10_a_write_whose_neighbours_are_away_is_not_cached() {
    for word in PARITY_PROFILES {
        on(word, async |cluster, coordinator| {
            let tested = cached(cluster, coordinator).await;
            tested.cut(&tested.all_members()).await;
            let prepares = tested.prepares();
            let error = tested.write(&[TARGET, (0, 3)]).await.unwrap_err();
            assert!(matches!(*error, WriteError::NeighbourAway { .. }), "{word}: {error:?}");
            assert_eq!(tested.prepares(), prepares, "{word}: nothing is written");
            assert!(!tested.is_cached(), "{word}");
            tested.mend().await;
            goes_on(&tested).await.unwrap_or_else(|fault| panic!("{word}: {fault}"));
        });
    }
}

#[test]
fn behaviour_10_a_write_to_full_disks_is_not_cached() {
    for word in ALL_PROFILES {
        on(word, async |cluster, coordinator| {
            let tested = Tested::fresh(cluster, coordinator, 1).await;
            assert!(tested.is_cached());
            tested.settle().await;
            fill_disks(&tested);
            let error = tested.write(&[TARGET]).await.unwrap_err();
            assert!(matches!(*error, WriteError::Refused { .. }), "{word}: {error:?}");
            assert!(!tested.is_cached(), "{word}");
            assert!(tested.counters().agree(), "{word}");
            empty_disks(&tested);
            // Nothing of it remains.
            tested.reads_right().await.unwrap();
            goes_on(&tested).await.unwrap_or_else(|fault| panic!("{word}: {fault}"));
        });
    }
}

#[test]
fn behaviour_10_a_fresh_write_that_fails_is_not_cached() {
    for word in ALL_PROFILES {
        on(word, async |cluster, coordinator| {
            let tested = Tested::blank(cluster, coordinator).await;
            fill_disks(&tested);
            let error = tested.write_fresh(2).await.unwrap_err();
            assert!(matches!(error, WriteError::Refused { .. }), "{word}: {error:?}");
            assert!(!tested.is_cached(), "{word}");
            empty_disks(&tested);
            let all = tested.all_members();
            tested.keep_back(&[Kind::Prepare]);
            let cut = async {
                moment().await;
                tested.cut(&all).await;
            };
            let (written, ()) = tokio::join!(tested.write_fresh(2), cut);
            let error = written.unwrap_err();
            assert!(matches!(error, WriteError::Open { .. }), "{word}: {error:?}");
            assert!(!tested.is_cached(), "{word}");
            tested.mend().await;
            tested.write_fresh(2).await.unwrap();
            tested.at_rest().await.unwrap_or_else(|fault| panic!("{word}: {fault}"));
            tested.reads_right().await.unwrap();
        });
    }
}

#[test]
fn behaviour_10_a_write_that_one_member_fails_goes_on_without_it() {
    for word in ALL_PROFILES {
        on(word, async |cluster, coordinator| {
            let tested = cached(cluster, coordinator).await;
            // All of them prepared it; of one nobody knows.
            let silent = tested.member_of(cluster.lines().len() - 1);
            tested.cut(&[silent]).await;
            tested.write(&[TARGET]).await.unwrap();
            assert!(coordinator.engine.members.iter().nth(silent).unwrap().is_out(), "{word}");
            tested.mend().await;
            tested.at_rest().await.unwrap_or_else(|fault| panic!("{word}: {fault}"));
            tested.any_m_may_be_lost().await.unwrap();
            tested.reads_right().await.unwrap();
        });
    }
}

/// A member that goes away and comes back while a write of one of its stripes stands, with an earlier one of the same
/// stripe pending on it, has missed nothing.
#[test]
fn behaviour_10_a_member_that_comes_back_in_the_middle_is_not_marked_out() {
    for word in PARITY_PROFILES {
        on(word, async |cluster, coordinator| {
            let tested = Tested::full(cluster, coordinator).await;
            let (member, unit) = coordinator.place(&tested.stripe, TARGET.0);
            let others: Vec<_> = tested.all_members().into_iter().filter(|other| *other != member).collect();
            let kept_back = Conduct { held: vec![Kind::Read], ..Conduct::default() };
            let mut was_pending = false;
            for _ in 0..20 {
                tested.write(&[TARGET]).await.unwrap();
                tested.uncache();
                tested.set_conduct(&others, &kept_back);
                let flap = async {
                    tokio::time::sleep(Duration::from_millis(4)).await;
                    tested.cut(&[member]).await;
                    was_pending |=
                        cluster.lines()[member].agent().unit(unit).unwrap().state() == UnitState::Pending;
                    tested.set_conduct(&[member], &Conduct::default());
                    tokio::time::sleep(Duration::from_millis(150)).await;
                    tested.set_conduct(&others, &Conduct::default());
                };
                let ((), ()) = tokio::join!(tested.write_noted(&[TARGET]), flap);
                assert!(!tested.member(TARGET.0).is_out(), "{word}");
                coordinator.all_in_service().await;
            }
            assert!(was_pending, "{word}: the commit was always quicker");
            tested.at_rest().await.unwrap_or_else(|fault| panic!("{word}: {fault}"));
            tested.reads_right().await.unwrap();
        });
    }
}

#[test]
fn behaviour_10_is_seen_to_be_broken() {
    for word in PARITY_PROFILES {
        for failure in FAILURES {
            on(word, async |cluster, coordinator| {
                let tested = cached(cluster, coordinator).await;
                coordinator.engine.weaken(Weak::UncertainCached);
                failing(&tested, failure).await;
                assert!(tested.is_cached(), "{word} {failure:?}");
            });
        }
    }
}
