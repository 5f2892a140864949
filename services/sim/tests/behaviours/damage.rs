//! 12: bad neighbours are repaired before parity is computed, or nothing is written. 13: tolerance is per vertical. 17: a
//! short read is a failure, and a hole reads as zeros.

use stripeset_coordinator::engine::{ReadError, Weak, WriteError};

use crate::stage::{ALL_PROFILES, At, PARITY_PROFILES, Tested, bytes_of, moment, on, patterns};

const VERTICAL: usize = 1;
const TARGET: At = (0, VERTICAL);

fn shards(tested: &Tested<'_>) -> usize {
    tested.data_shards() + tested.parity_shards()
}

/// Sectors counted bad against the member of a shard, and of those the ones that were repaired.
fn counted(tested: &Tested<'_>, shard: usize) -> (u64, u64) {
    let errors = tested.member(shard).errors();
    (errors.checksum, errors.corrected)
}

fn all_counted(tested: &Tested<'_>) -> (u64, u64) {
    (0..shards(tested)).map(|shard| counted(tested, shard)).fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1))
}

async fn is_sound(tested: &Tested<'_>) -> Result<(), String> {
    tested.at_rest().await?;
    tested.any_m_may_be_lost().await?;
    tested.reads_right().await
}

#[test]
fn behaviour_12_a_bad_neighbour_is_repaired_by_a_partial_write() {
    for word in PARITY_PROFILES {
        on(word, async |cluster, coordinator| {
            let tested = Tested::full(cluster, coordinator).await;
            for neighbour in 1..tested.data_shards() {
                tested.uncache();
                tested.settle().await;
                tested.flip((neighbour, VERTICAL));
                let before = counted(&tested, neighbour);
                tested.write(&[TARGET]).await.unwrap();
                let right = Some(tested.read((neighbour, VERTICAL)).await.unwrap())
                    == tested.expected((neighbour, VERTICAL));
                assert!(right, "{word}: {neighbour} reads right");
                assert_eq!(counted(&tested, neighbour), (before.0 + 1, before.1 + 1), "{word}: {neighbour}");
                is_sound(&tested).await.unwrap_or_else(|fault| panic!("{word}, {neighbour}: {fault}"));
            }
        });
    }
}

#[test]
fn behaviour_12_as_many_as_the_profile_bears() {
    for word in PARITY_PROFILES {
        on(word, async |cluster, coordinator| {
            let tested = Tested::full(cluster, coordinator).await;
            for bad in patterns(shards(&tested), tested.parity_shards()) {
                tested.uncache();
                tested.settle().await;
                bad.iter().for_each(|shard| tested.flip((*shard, VERTICAL)));
                tested.write(&[TARGET]).await.unwrap();
                is_sound(&tested).await.unwrap_or_else(|fault| panic!("{word}, {bad:?}: {fault}"));
            }
            let (bad, corrected) = all_counted(&tested);
            assert_eq!(bad, corrected, "{word}");
        });
    }
}

#[test]
fn behaviour_12_beyond_tolerance_nothing_is_written_and_nothing_dropped() {
    for word in PARITY_PROFILES {
        on(word, async |cluster, coordinator| {
            let tested = Tested::full(cluster, coordinator).await;
            let m = tested.parity_shards();
            let with_a_neighbour = |bad: &Vec<usize>| {
                !bad.contains(&TARGET.0) && bad.iter().any(|shard| *shard < tested.data_shards())
            };
            for bad in patterns(shards(&tested), m + 1).into_iter().filter(with_a_neighbour) {
                tested.uncache();
                tested.settle().await;
                bad.iter().for_each(|shard| tested.flip((*shard, VERTICAL)));
                let disks = |tested: &Tested<'_>| -> Vec<_> {
                    let sectors = (0..shards(tested))
                        .flat_map(|shard| (0..tested.unit_sectors()).map(move |s| (shard, s)));
                    sectors.map(|at| tested.raw(at)).collect()
                };
                let (before, prepares, (counted, _)) =
                    (disks(&tested), tested.prepares(), all_counted(&tested));
                let error = tested.write(&[TARGET]).await.unwrap_err();
                assert!(matches!(*error, WriteError::NeighbourLost { .. }), "{word}, {bad:?}: {error}");
                assert_eq!(tested.prepares(), prepares, "{word}, {bad:?}: nothing is written");
                assert!(all_counted(&tested).0 > counted, "{word}, {bad:?}: it is counted");
                assert!(!tested.is_cached(), "{word}, {bad:?}");
                for at in tested.all() {
                    let read = tested.read(at).await;
                    if at.1 == VERTICAL && bad.contains(&at.0) {
                        assert!(
                            matches!(read, Err(ReadError::Lost { sectors: 1, .. })),
                            "{word}, {bad:?}, {at:?}"
                        );
                    } else {
                        assert!(Some(read.unwrap()) == tested.expected(at), "{word}, {bad:?}, {at:?}");
                    }
                }
                moment().await;
                tested.settle().await;
                assert!(disks(&tested) == before, "{word}, {bad:?}: nothing was dropped in silence");
                // The medium thinks better of it: all is there still.
                bad.iter().for_each(|shard| tested.flip((*shard, VERTICAL)));
                is_sound(&tested).await.unwrap_or_else(|fault| panic!("{word}, {bad:?}: {fault}"));
            }
        });
    }
}

#[test]
fn behaviour_12_a_bad_dead_sector_is_an_error_for_nobody() {
    for word in ["raid5-3+1", "raid5-4+1", "raid6-4+2", "rs-4+3"] {
        on(word, async |cluster, coordinator| {
            let tested = Tested::full(cluster, coordinator).await;
            tested.settle().await;
            tested.free((1, VERTICAL));
            // It and the parities: nothing gives it back.
            tested.flip((1, VERTICAL));
            (tested.data_shards()..shards(&tested)).for_each(|parity| tested.flip((parity, VERTICAL)));
            tested.write(&[TARGET]).await.unwrap();
            is_sound(&tested).await.unwrap_or_else(|fault| panic!("{word}: {fault}"));
        });
    }
}

#[test]
fn behaviour_12_a_bad_neighbour_under_a_cached_write_reads_right() {
    for word in PARITY_PROFILES {
        on(word, async |cluster, coordinator| {
            let tested = Tested::full(cluster, coordinator).await;
            tested.write(&[TARGET]).await.unwrap();
            tested.settle().await;
            (1..=tested.parity_shards().min(tested.data_shards() - 1))
                .for_each(|shard| tested.flip((shard, VERTICAL)));
            let reads = tested.reads();
            tested.write(&[TARGET]).await.unwrap();
            assert_eq!(tested.reads(), reads, "{word}: nobody looks at it");
            tested.reads_right().await.unwrap_or_else(|fault| panic!("{word}: {fault}"));
            moment().await;
            is_sound(&tested).await.unwrap_or_else(|fault| panic!("{word}: {fault}"));
        });
    }
}

#[test]
fn behaviour_12_is_seen_to_be_broken() {
    for word in PARITY_PROFILES {
        on(word, async |cluster, coordinator| {
            let tested = Tested::full(cluster, coordinator).await;
            coordinator.engine.weaken(Weak::NeighboursUnverified);
            tested.settle().await;
            tested.flip((1, VERTICAL));
            tested.write(&[TARGET]).await.unwrap();
            assert!(is_sound(&tested).await.is_err(), "{word}");
        });
    }
}

/// Bad sectors on every member, m in each vertical.
fn spread(tested: &Tested<'_>) -> Vec<At> {
    let shard = |vertical, index| ((vertical + index) % shards(tested), vertical);
    let of_vertical = |vertical| (0..tested.parity_shards()).map(move |index| shard(vertical, index));
    (0..tested.unit_sectors()).flat_map(of_vertical).collect()
}

fn make_unreadable(tested: &Tested<'_>, (shard, sector): At) {
    let (member, unit) = tested.coordinator.place(&tested.stripe, shard);
    let mut agent = tested.cluster.lines()[member].agent();
    let offset = agent.disk_offset(unit, sector).unwrap();
    agent.make_unreadable(offset..offset + 4096);
}

#[test]
fn behaviour_13_tolerance_is_per_vertical() {
    type Damage = fn(&Tested<'_>, At);
    let ways: [(&str, Damage); 2] =
        [("flipped", |tested, at| tested.flip(at)), ("unreadable", make_unreadable)];
    for word in ALL_PROFILES {
        for (way, damage) in ways {
            on(word, async |cluster, coordinator| {
                let tested = Tested::full(cluster, coordinator).await;
                tested.settle().await;
                let bad = spread(&tested);
                let members =
                    (0..shards(&tested)).filter(|shard| bad.iter().any(|at| at.0 == *shard)).count();
                assert!(members > tested.parity_shards(), "{word}");
                bad.iter().for_each(|at| damage(&tested, *at));
                let whole = tested.read_whole().await.unwrap();
                for (shard, bytes) in whole.iter().enumerate() {
                    assert!(bytes == &tested.expected_shard(shard), "{word}, {way}: shard {shard}");
                }
                moment().await;
                for shard in 0..shards(&tested) {
                    let count = bad.iter().filter(|at| at.0 == shard).count() as u64;
                    assert_eq!(counted(&tested, shard), (count, count), "{word}, {way}: shard {shard}");
                }
                is_sound(&tested).await.unwrap_or_else(|fault| panic!("{word}, {way}: {fault}"));
                for shard in 0..shards(&tested) {
                    tested.cut(&[tested.member_of(shard)]).await;
                    tested.reads_right().await.unwrap_or_else(|fault| panic!("{word}, {way}: {fault}"));
                    tested.mend().await;
                }
                let total = bad.len() as u64;
                assert_eq!(all_counted(&tested), (total, total), "{word}, {way}: nothing is bad any more");
            });
        }
    }
}

#[test]
fn behaviour_13_a_partial_write_repairs_all_verticals_that_it_touches() {
    for word in PARITY_PROFILES {
        on(word, async |cluster, coordinator| {
            let tested = Tested::full(cluster, coordinator).await;
            tested.settle().await;
            let bad = spread(&tested);
            bad.iter().for_each(|at| tested.flip(*at));
            tested
                .write(&(0..tested.unit_sectors()).map(|sector| (0, sector)).collect::<Vec<_>>())
                .await
                .unwrap();
            moment().await;
            is_sound(&tested).await.unwrap_or_else(|fault| panic!("{word}: {fault}"));
            let (found, corrected) = all_counted(&tested);
            assert_eq!(found, corrected, "{word}");
        });
    }
}

#[test]
fn behaviour_13_more_than_m_in_one_vertical_lose_that_vertical_alone() {
    for word in ALL_PROFILES {
        on(word, async |cluster, coordinator| {
            let tested = Tested::full(cluster, coordinator).await;
            tested.settle().await;
            let mut bad = spread(&tested);
            // One more in the vertical, of those that are left: shard 0 is bad in the first.
            bad.push((tested.parity_shards(), 0));
            bad.iter().for_each(|at| tested.flip(*at));
            for at in tested.all() {
                let read = tested.read(at).await;
                match at.1 == 0 && bad.contains(&at) {
                    true => {
                        assert!(matches!(read, Err(ReadError::Lost { sectors: 1, .. })), "{word}, {at:?}")
                    }
                    false => assert!(Some(read.unwrap()) == tested.expected(at), "{word}, {at:?}"),
                }
            }
        });
    }
}

#[test]
fn behaviour_17_a_short_read_is_a_failure() {
    for word in ALL_PROFILES {
        for most in [0, 512, 2048, 4095] {
            on(word, async |cluster, coordinator| {
                let tested = Tested::full(cluster, coordinator).await;
                tested.settle().await;
                for shard in 0..tested.data_shards() {
                    let before = tested.member(shard).errors();
                    cluster.lines()[tested.member_of(shard)].agent().read_at_most(most);
                    let read = tested.read((shard, 0)).await.unwrap();
                    assert!(Some(read) == tested.expected((shard, 0)), "{word}, {most} bytes");
                    moment().await;
                    let after = tested.member(shard).errors();
                    let errors = |errors: stripeset_coordinator::members::ErrorCounts| {
                        errors.checksum + errors.version + errors.read
                    };
                    assert!(errors(after) > errors(before), "{word}, {most} bytes: {before:?}, {after:?}");
                    cluster.lines()[tested.member_of(shard)].agent().behave();
                    is_sound(&tested).await.unwrap_or_else(|fault| panic!("{word}, {most} bytes: {fault}"));
                }
            });
        }
    }
}

#[test]
fn behaviour_17_sectors_that_a_short_read_did_give_are_right() {
    for word in ALL_PROFILES {
        on(word, async |cluster, coordinator| {
            let tested = Tested::full(cluster, coordinator).await;
            tested.settle().await;
            // Whole sectors, but never two at once.
            cluster.lines().iter().for_each(|line| line.agent().read_at_most(6000));
            for (shard, bytes) in tested.read_whole().await.unwrap().iter().enumerate() {
                assert!(bytes == &tested.expected_shard(shard), "{word}: shard {shard}");
            }
            assert_eq!(all_counted(&tested).0, 0, "{word}");
        });
    }
}

#[test]
fn behaviour_17_short_reads_on_too_many_members_are_said() {
    for word in ALL_PROFILES {
        on(word, async |cluster, coordinator| {
            let tested = Tested::full(cluster, coordinator).await;
            tested.settle().await;
            let short = |shard: usize| cluster.lines()[tested.member_of(shard)].agent().read_at_most(100);
            (0..=tested.parity_shards()).for_each(|index| short(index % shards(&tested)));
            let read = tested.read((0, 0)).await;
            assert!(matches!(read, Err(ReadError::Lost { .. })), "{word}: {read:?}");
            cluster.lines().iter().for_each(|line| line.agent().behave());
            tested.reads_right().await.unwrap_or_else(|fault| panic!("{word}: {fault}"));
        });
    }
}

#[test]
fn behaviour_17_a_hole_reads_as_zeros() {
    for word in ALL_PROFILES {
        on(word, async |cluster, coordinator| {
            let tested = Tested::full(cluster, coordinator).await;
            tested.settle().await;
            // The places of the holes hold bytes of an earlier use.
            tested.all().into_iter().for_each(|at| tested.free(at));
            tested.all().into_iter().for_each(|at| tested.take(at));
            tested.write_fresh(1).await.unwrap();
            tested.settle().await;
            assert!(tested.raw((0, 1)) != bytes_of(0), "{word}: they do");
            tested.reads_right().await.unwrap();
            for shard in 0..tested.data_shards() {
                tested.cut(&[tested.member_of(shard)]).await;
                tested.reads_right().await.unwrap_or_else(|fault| panic!("{word} without {shard}: {fault}"));
                assert!(tested.read((shard, 1)).await.unwrap() == bytes_of(0), "{word}");
                tested.mend().await;
            }
            // What is known to be a hole is not asked for.
            let reads = tested.reads();
            tested.write(&[(0, 1), (0, 3)]).await.unwrap();
            assert_eq!(tested.reads(), reads, "{word}");
            is_sound(&tested).await.unwrap_or_else(|fault| panic!("{word}: {fault}"));
        });
    }
}
