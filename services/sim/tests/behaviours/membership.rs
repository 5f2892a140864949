//! 11, 18 and the rows of the protocol's table about members: more than m away, two coordinators, members that come back,
//! marks whose fate is not known, disks that are not what they should be.

use std::time::Duration;

use stripeset_agent::simulation::FaultRates;
use stripeset_coordinator::{
    array::rejoin::take_members_back,
    engine::{ReadError, ReadRange, WriteError},
    members::{ErrorCounts, labels::ReviseError},
};
use stripeset_sim::{
    cluster::{Cluster, ClusterError, Coordinator},
    network::{Conduct, Kind},
};
use stripeset_stripe::{Profile, cache::Mode, geometry::Shard};

use crate::stage::{ALL_PROFILES, At, PARITY_PROFILES, Remembered, Tested, cluster, moment, on};

const CUT: Conduct =
    Conduct { cut: true, frozen: false, micros: 20..=200, lost: 0, repeated: 0, held: Vec::new() };

fn bears(word: &str) -> usize {
    word.parse::<Profile>().unwrap().tolerated_members()
}

/// Until all members answer again.
async fn all_in_service(coordinator: &Coordinator) {
    while !coordinator.engine.members.iter().all(|member| member.in_service()) {
        moment().await;
    }
}

async fn is_sound(tested: &Tested<'_>) -> Result<(), String> {
    tested.reads_right().await?;
    tested.at_rest().await?;
    tested.any_m_may_be_lost().await
}

fn why(error: &ClusterError) -> String {
    let ClusterError::Start(why) = error else { panic!("{error}") };
    why.clone()
}

/// A life in which a stripe is filled, and everything settles.
fn filled(cluster: &mut Cluster) -> Remembered {
    let life = async |cluster: &Cluster, coordinator: &Coordinator| {
        let tested = Tested::full(cluster, coordinator).await;
        tested.settle().await;
        tested.remembered()
    };
    cluster.run(&[], life).unwrap()
}

#[test]
fn more_than_m_away_is_unavailable_and_says_who_is_needed() {
    for word in ALL_PROFILES {
        on(word, async |cluster, coordinator| {
            let tested = Tested::full(cluster, coordinator).await;
            tested.settle().await;
            let gone: Vec<usize> = (0..=bears(word)).map(|shard| tested.member_of(shard)).collect();
            tested.cut(&gone).await;
            let error = tested.read((0, 0)).await.unwrap_err().to_string();
            assert!(gone.iter().any(|member| error.contains(&member.to_string())), "{word}: {error}");
            let error = tested.write(&[(0, 0)]).await.unwrap_err();
            assert!(
                matches!(
                    &*error,
                    WriteError::NeighbourAway { .. }
                        | WriteError::TooFewMembers { .. }
                        | WriteError::Open { .. }
                ),
                "{word}: {error}"
            );
            // It comes back without anybody's help, and nothing has changed.
            tested.mend().await;
            moment().await;
            tested.note((0, 0), None);
            tested.write(&[(0, 0)]).await.unwrap_or_else(|error| panic!("{word}: {error}"));
            is_sound(&tested).await.unwrap_or_else(|fault| panic!("{word}: {fault}"));
        });
    }
}

#[test]
fn a_start_without_more_than_m_waits_for_those_that_it_names() {
    for word in ALL_PROFILES {
        let mut cluster = cluster(word, 1);
        let left = filled(&mut cluster);
        let gone: Vec<usize> = (0..=bears(word)).collect();
        gone.iter().for_each(|member| cluster.lines()[*member].set_conduct(CUT));
        let error = why(&cluster.run(&left.in_use, async |_, _| ()).unwrap_err());
        let named = gone.iter().all(|member| error.contains(&format!("member {member}")));
        assert!(error.contains("waiting for") && named, "{word}: {error}");
        gone.iter().for_each(|member| cluster.lines()[*member].set_conduct(Conduct::default()));
        let life = async |cluster: &Cluster, coordinator: &Coordinator| {
            let tested = Tested::again(cluster, coordinator, &left);
            is_sound(&tested).await.unwrap_or_else(|fault| panic!("{word}: {fault}"));
        };
        cluster.run(&left.in_use, life).unwrap();
    }
}

#[test]
fn a_blank_disk_is_never_taken_for_an_old_one() {
    for word in ALL_PROFILES {
        let mut cluster = cluster(word, 1);
        let left = filled(&mut cluster);
        let disk_id = cluster.lose_disk(0).unwrap();
        let life = async |cluster: &Cluster, coordinator: &Coordinator| {
            let tested = Tested::again(cluster, coordinator, &left);
            let index = stripeset_coordinator::members::MemberIndex(0);
            let member = coordinator.engine.members.get(index);
            assert!(member.is_out() && !member.in_service(), "{word}");
            assert!(
                cluster.lines()[0].agent().is_blank(),
                "{word}: nothing goes to a disk that nobody named"
            );
            is_sound(&tested).await.unwrap_or_else(|fault| panic!("{word}: {fault}"));
            // Somebody says that it is meant: it gets what the lost one had.
            coordinator.replace(0, disk_id).await.unwrap();
            while !member.in_service() {
                moment().await;
            }
            coordinator.take_back(0).await.unwrap();
            assert!(!member.is_out(), "{word}");
            is_sound(&tested).await.unwrap_or_else(|fault| panic!("{word}, rebuilt: {fault}"));
        };
        cluster.run(&left.in_use, life).unwrap();
    }
}

#[test]
fn behaviour_18_a_second_coordinator_deposes_the_first() {
    for word in ALL_PROFILES {
        on(word, async |cluster, first| {
            let tested = Tested::full(cluster, first).await;
            tested.settle().await;
            tested.write(&[(0, 0)]).await.unwrap();
            let left = tested.remembered();
            let deposed = first.engine.deposed();
            let second = cluster.start_elsewhere(&left.in_use).await.unwrap();
            let after = Tested::again(cluster, &second, &left);
            assert!(!after.is_cached(), "{word}: a page of the first one");
            is_sound(&after).await.unwrap_or_else(|fault| panic!("{word}: {fault}"));
            // The first one stops at its first write, whatever the cache has.
            let error = tested.write(&[(0, 0)]).await.unwrap_err();
            assert!(matches!(*error, WriteError::Deposed), "{word}: {error}");
            assert!(deposed.borrow().is_some(), "{word}");
            // It cannot mark anybody out, in a label that anybody has.
            let marked = first.mark_out(1).await;
            assert!(
                matches!(
                    marked,
                    Err(ReviseError::Deposed(_)
                        | ReviseError::TooFewLeft { .. }
                        | ReviseError::NotInForce { .. })
                ),
                "{word}: {marked:?}"
            );
            after.write(&[(0, 0)]).await.unwrap();
            is_sound(&after).await.unwrap_or_else(|fault| panic!("{word}: {fault}"));
            assert!(second.engine.members.iter().all(|member| member.usable()), "{word}");
        });
    }
}

/// Prepares of the first coordinator stand before their members when the second one takes over, and arrive afterwards.
#[test]
fn behaviour_18_late_writes_of_a_deposed_coordinator_are_refused() {
    for word in ALL_PROFILES {
        on(word, async |cluster, first| {
            let tested = Tested::full(cluster, first).await;
            tested.settle().await;
            let left = tested.remembered();
            let own = cluster.lines().to_vec();
            let frozen = Conduct { frozen: true, ..Conduct::default() };
            own.iter().for_each(|line| line.set_conduct(frozen.clone()));
            let (engine, stripe) = (first.engine.clone(), tested.stripe.clone());
            // The pages are in the cache, or the write would have to read.
            let edits = tested.edits(&(0..tested.data_shards()).map(|shard| (shard, 0)).collect::<Vec<_>>());
            let writing = tokio::spawn(async move { engine.write_partial(&stripe, edits).await });
            moment().await;
            let second = cluster.start_elsewhere(&left.in_use).await.unwrap();
            let after = Tested::again(cluster, &second, &left);
            after.write(&[(0, 0)]).await.unwrap();
            own.iter().for_each(|line| line.set_conduct(Conduct::default()));
            let outcome = writing.await.unwrap();
            assert!(outcome.is_err(), "{word}: {outcome:?}");
            is_sound(&after).await.unwrap_or_else(|fault| panic!("{word}: {fault}"));
        });
    }
}

#[test]
fn a_member_that_comes_back_stale_is_a_target_and_no_source() {
    for word in ALL_PROFILES {
        for mode in [Mode::Drop, Mode::Off] {
            let mut cluster = cluster(word, 1);
            let mut left = None;
            let life = async |cluster: &Cluster, coordinator: &Coordinator| {
                coordinator.engine.cache().set_mode(mode, Default::default());
                let tested = Tested::full(cluster, coordinator).await;
                tested.settle().await;
                let stale = tested.member_of(0);
                tested.cut(&[stale]).await;
                tested.write(&[(0, 0), (0, 1)]).await.unwrap();
                assert!(tested.member(0).is_out(), "{word}");
                tested.mend().await;
                left = Some(tested.remembered());
            };
            cluster.run(&[], life).unwrap();
            let left = left.unwrap();
            let life = async |cluster: &Cluster, coordinator: &Coordinator| {
                coordinator.engine.cache().set_mode(mode, Default::default());
                let tested = Tested::again(cluster, coordinator, &left);
                let member = tested.member(0);
                assert!(member.is_out(), "{word}: out in the label, for whoever comes next");
                let reads = cluster.lines()[member.index.0 as usize].counts().reads;
                // A neighbour of what it missed, so that a read-modify-write would fold it in.
                if tested.data_shards() > 1 {
                    tested.write(&[(1, 0)]).await.unwrap();
                }
                tested.reads_right().await.unwrap_or_else(|fault| panic!("{word}: {fault}"));
                assert_eq!(cluster.lines()[member.index.0 as usize].counts().reads, reads, "{word}: asked");
                coordinator.take_back(member.index.0).await.unwrap();
                assert!(!member.is_out(), "{word}");
                is_sound(&tested).await.unwrap_or_else(|fault| panic!("{word} {mode:?}: {fault}"));
                assert!(member.errors() == ErrorCounts::default() || member.errors().version == 0, "{word}");
            };
            cluster.run(&left.in_use, life).unwrap();
        }
    }
}

/// Parities that are made anew know of a lost sector what its own record says, not that it was never written.
#[test]
fn a_sector_that_is_lost_while_the_parities_are_away_stays_lost() {
    const LOST: At = (0, 1);
    for word in PARITY_PROFILES {
        on(word, async |cluster, coordinator| {
            let tested = Tested::full(cluster, coordinator).await;
            tested.settle().await;
            let parities: Vec<usize> = (tested.data_shards()..tested.data_shards() + tested.parity_shards())
                .map(|shard| tested.member_of(shard))
                .collect();
            tested.cut(&parities).await;
            tested.write(&[(1, 0)]).await.unwrap();
            tested.flip(LOST);
            tested.uncache();
            tested.mend().await;
            all_in_service(coordinator).await;
            for parity in parities {
                coordinator.take_back(parity as u32).await.unwrap();
            }
            let is_lost_alone = async |what: &str| {
                for at in tested.all() {
                    match tested.read(at).await {
                        Err(ReadError::Lost { sectors: 1, .. }) if at == LOST => {}
                        Ok(bytes) if at != LOST => {
                            assert!(Some(bytes) == tested.expected(at), "{word} {what}, {at:?}")
                        }
                        other => panic!("{word} {what}, {at:?}: {other:?}"),
                    }
                }
            };
            is_lost_alone("beside new parities").await;
            // With pages of the stripe in the cache, and with its member here and away.
            tested.write(&[(1, 0)]).await.unwrap();
            let error = tested.write(&[(1, LOST.1)]).await.unwrap_err();
            assert!(matches!(*error, WriteError::NeighbourLost { .. }), "{word}: {error}");
            let away = tested.member_of(LOST.0);
            tested.cut(&[away]).await;
            tested.write(&[(LOST.0, 2)]).await.unwrap();
            assert!(tested.member(LOST.0).is_out(), "{word}");
            assert!(tested.write(&[(1, LOST.1)]).await.is_err(), "{word}");
            tested.mend().await;
            all_in_service(coordinator).await;
            coordinator.take_back(away as u32).await.unwrap();
            is_lost_alone("taken back").await;
        });
    }
}

/// What a member missed, and nothing else, is written to it; and without being asked for.
#[test]
fn a_member_is_taken_back_by_itself_and_gets_only_what_it_missed() {
    for word in ALL_PROFILES {
        on(word, async |cluster, coordinator| {
            let first = Tested::full(cluster, coordinator).await;
            let second = Tested::full(cluster, coordinator).await;
            let third = Tested::full(cluster, coordinator).await;
            first.settle().await;
            let away = first.member_of(0);
            first.cut(&[away]).await;
            second.write(&[(0, 0)]).await.unwrap();
            let participant = second.coordinator.place(&second.stripe, 0).0;
            first.mend().await;
            let before = cluster.lines()[away].counts().rebuilds;
            let taking = tokio::spawn(take_members_back(coordinator.engine.clone()));
            while coordinator.engine.members.iter().any(|member| member.is_out()) {
                moment().await;
            }
            taking.abort();
            let rebuilt = cluster.lines()[away].counts().rebuilds - before;
            assert!(rebuilt <= 1, "{word}: {rebuilt} shards, written was one stripe ({participant})");
            for tested in [&first, &second, &third] {
                is_sound(tested).await.unwrap_or_else(|fault| panic!("{word}: {fault}"));
            }
        });
    }
}

/// Writes go on while a member is taken back, in the very stripes that are rebuilt.
#[test]
fn behaviour_11_what_is_written_while_a_member_is_taken_back_is_not_missed() {
    for word in PARITY_PROFILES {
        on(word, async |cluster, coordinator| {
            let stripes =
                [Tested::full(cluster, coordinator).await, Tested::full(cluster, coordinator).await];
            stripes[0].settle().await;
            let away = stripes[0].member_of(0);
            stripes[0].cut(&[away]).await;
            for tested in &stripes {
                tested.write(&[(0, 0), (1, 1)]).await.unwrap();
            }
            stripes[0].mend().await;
            while !stripes[0].member(0).in_service() {
                moment().await;
            }
            // Rebuilds take their time.
            let slow = Conduct { micros: 3_000..=9_000, ..Conduct::default() };
            stripes[0].set_conduct(&[away], &slow);
            let back = async { coordinator.take_back(away as u32).await };
            let writes = async {
                for round in 0..12 {
                    for tested in &stripes {
                        tested.write_noted(&[(round % tested.data_shards(), round % 4)]).await;
                    }
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
            };
            let (taken, ()) = tokio::join!(back, writes);
            taken.unwrap_or_else(|error| panic!("{word}: {error}"));
            stripes[0].set_conduct(&[away], &Conduct::default());
            for tested in &stripes {
                is_sound(tested).await.unwrap_or_else(|fault| panic!("{word}: {fault}"));
            }
        });
    }
}

/// A disk says that a write is durable, and it is not; later its agent is killed. The write was committed everywhere else.
#[test]
fn behaviour_11_a_disk_that_drops_a_write_it_acknowledged_is_rebuilt_and_counted() {
    for word in PARITY_PROFILES {
        for restart in [false, true] {
            let mut cluster = cluster(word, 1);
            let mut found = None;
            let life = async |cluster: &Cluster, coordinator: &Coordinator| {
                let tested = Tested::full(cluster, coordinator).await;
                tested.settle().await;
                let member = tested.member_of(0);
                let drops = FaultRates { dropped_writes: 1000, ..FaultRates::default() };
                cluster.lines()[member].agent().misbehave(drops, 1);
                let version = tested.write(&[(0, 0)]).await.unwrap();
                // The others commit.
                coordinator.engine.flush_commits().await;
                cluster.lines()[member].agent().restart().unwrap();
                cluster.break_sessions(member);
                moment().await;
                coordinator.all_in_service().await;
                found = Some((tested.remembered(), version));
                if !restart {
                    check_dropped(&tested, version).await.unwrap_or_else(|fault| panic!("{word}: {fault}"));
                }
            };
            cluster.run(&[], life).unwrap();
            let (left, version) = found.unwrap();
            let life = async |cluster: &Cluster, coordinator: &Coordinator| {
                let tested = Tested::again(cluster, coordinator, &left);
                if restart {
                    check_dropped(&tested, version).await.unwrap_or_else(|fault| panic!("{word}: {fault}"));
                }
                is_sound(&tested).await.unwrap_or_else(|fault| panic!("{word}: {fault}"));
            };
            cluster.run(&left.in_use, life).unwrap();
        }
    }
}

/// The map knows the version: what the disk has is not it.
async fn check_dropped(tested: &Tested<'_>, version: stripeset_stripe::Version) -> Result<(), String> {
    let range = ReadRange { shard: Shard(0), first_sector: 0, sectors: 1, version };
    let read = tested.engine().read(&tested.stripe, &[range]).await.map_err(|error| error.to_string())?;
    if Some(&read[0]) != tested.expected((0, 0)).as_ref() {
        return Err("other bytes were served".to_owned());
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    let errors = tested.member(0).errors();
    if errors.version == 0 {
        return Err(format!("nothing was counted: {errors:?}"));
    }
    is_sound(tested).await
}

#[test]
fn no_space_on_one_agent_takes_a_write_back_everywhere_and_the_rest_goes_on() {
    for word in PARITY_PROFILES {
        on(word, async |cluster, coordinator| {
            let tested = Tested::full(cluster, coordinator).await;
            let other = Tested::full(cluster, coordinator).await;
            tested.settle().await;
            let member = tested.member_of(0);
            let full = FaultRates { full: 1000, ..FaultRates::default() };
            cluster.lines()[member].agent().misbehave(full, 1);
            // A fresh write takes space on the disk.
            let blank = Tested::blank(cluster, coordinator).await;
            let error = blank.write_fresh(2).await.unwrap_err();
            assert!(
                matches!(&error, WriteError::Refused { member: refusing, .. } if refusing.0 as usize == member),
                "{word}: {error}"
            );
            assert!(error.to_string().contains("no space"), "{word}: {error}");
            assert!(!tested.member(0).is_out(), "{word}: to be full is no fault");
            tested.reads_right().await.unwrap_or_else(|fault| panic!("{word}: {fault}"));
            other.free((0, 0));
            cluster.lines()[member].agent().behave();
            blank.write_fresh(2).await.unwrap_or_else(|error| panic!("{word}: {error}"));
            is_sound(&blank).await.unwrap_or_else(|fault| panic!("{word}: {fault}"));
        });
    }
}

/// One of two members is marked out, and nobody knows whether the mark came into force: its folder is gone with its
/// coordinator, and the other member is lost for good. The one that was marked must not be taken for all there is.
#[test]
fn a_member_marked_out_wrongly_and_another_lost_for_good_is_said() {
    let mut cluster = cluster("mirror2", 1);
    let left = filled(&mut cluster);
    let life = async |cluster: &Cluster, coordinator: &Coordinator| {
        cluster.lines()[0].set_conduct(CUT);
        moment().await;
        coordinator.mark_out(0).await.unwrap();
        let tested = Tested::again(cluster, coordinator, &left);
        tested.write(&[(0, 0)]).await.unwrap();
    };
    cluster.run(&left.in_use, life).unwrap();
    cluster.lines()[0].set_conduct(Conduct::default());
    cluster.lose_disk(1).unwrap();
    // Whoever knows of the mark does not begin with a member that is out.
    let error = why(&cluster.run(&left.in_use, async |_, _| ()).unwrap_err());
    assert!(error.contains("waiting for member 1"), "{error}");
    // Whoever does not, cannot know: the other one may have gone on alone.
    cluster.move_host();
    let error = why(&cluster.run(&left.in_use, async |_, _| ()).unwrap_err());
    assert!(
        error.contains("member 1") && error.contains("newer data") && error.contains("--force"),
        "{error}"
    );
}

/// The same without the write: nobody took anything from anybody, and still nobody can know.
#[test]
fn half_a_mirror_begins_where_its_witness_is_and_nowhere_else() {
    let mut cluster = cluster("mirror2", 1);
    let left = filled(&mut cluster);
    cluster.all_lines().filter(|line| line.member() == 1).for_each(|line| line.set_conduct(CUT));
    cluster.move_host();
    let error = why(&cluster.run(&left.in_use, async |_, _| ()).unwrap_err());
    assert!(error.contains("newer data"), "{error}");
    // The other host fenced a member since: the witness is none any more.
    cluster.move_host();
    let error = why(&cluster.run(&left.in_use, async |_, _| ()).unwrap_err());
    assert!(error.contains("newer data"), "{error}");
    let mut cluster = crate::stage::cluster("mirror2", 1);
    let left = filled(&mut cluster);
    cluster.all_lines().filter(|line| line.member() == 1).for_each(|line| line.set_conduct(CUT));
    let life = async |cluster: &Cluster, coordinator: &Coordinator| {
        Tested::again(cluster, coordinator, &left).reads_right().await.unwrap();
    };
    cluster.run(&left.in_use, life).unwrap();
}

/// A member that does not take the label that leaves it in sync goes out with the next one.
#[test]
fn a_revision_that_one_member_does_not_take_goes_on_without_it() {
    on("raid6-4+2", async |cluster, coordinator| {
        let tested = Tested::full(cluster, coordinator).await;
        tested.settle().await;
        let silent = tested.member_of(1);
        tested.set_conduct(&[silent], &Conduct { held: vec![Kind::SetLabel], ..Conduct::default() });
        tested.cut(&[tested.member_of(0)]).await;
        tested.write(&[(0, 0)]).await.unwrap();
        assert!(tested.member(0).is_out());
        tested.mend().await;
        is_sound(&tested).await.unwrap();
    });
}
