//! 1: after any mix of acknowledged writes, at rest and applied, the raw parity of every vertical with a live sector equals
//! the code over the raw data. 2: after that, taking away any m members gives every live byte.

use stripeset_coordinator::engine::ReadError;
use stripeset_sim::{
    cluster::{Cluster, Coordinator},
    dice::Dice,
};

use crate::{
    mix,
    stage::{ALL_PROFILES, PARITY_PROFILES, Remembered, Tested, cluster, on, patterns},
};

const STEPS: usize = 60;

async fn three_stripes<'a>(cluster: &'a Cluster, coordinator: &'a Coordinator) -> Vec<Tested<'a>> {
    let mut stripes = Vec::new();
    for sectors in [1, 3, 4] {
        stripes.push(Tested::fresh(cluster, coordinator, sectors).await);
    }
    stripes
}

async fn mixed<'a>(cluster: &'a Cluster, coordinator: &'a Coordinator, seed: u64) -> Vec<Tested<'a>> {
    let stripes = three_stripes(cluster, coordinator).await;
    let mut dice = Dice::new(seed);
    for step in 0..STEPS {
        if step % 20 == 0 {
            mix::change_rules(&stripes[0], &mut dice);
        }
        mix::step(&stripes, &mut dice).await;
    }
    stripes
}

#[test]
fn behaviour_01_parity_is_the_code_over_the_data() {
    for word in ALL_PROFILES {
        for seed in 1..=6 {
            let life = async |cluster: &Cluster, coordinator: &Coordinator| {
                for tested in mixed(cluster, coordinator, seed).await {
                    tested.at_rest().await.unwrap_or_else(|fault| panic!("{word}, seed {seed}: {fault}"));
                    tested.reads_right().await.unwrap_or_else(|fault| panic!("{word}, seed {seed}: {fault}"));
                }
            };
            cluster(word, seed).run(&[], life).unwrap();
        }
    }
}

#[test]
fn behaviour_01_holds_of_the_members_that_are_left() {
    for word in ALL_PROFILES {
        for out in 0..cluster(word, 1).lines().len() {
            on(word, async |cluster, coordinator| {
                let stripes = three_stripes(cluster, coordinator).await;
                let mut dice = Dice::new(out as u64 + 1);
                for step in 0..30 {
                    if step == 10 {
                        coordinator.mark_out(out as u32).await.unwrap();
                    }
                    mix::step(&stripes, &mut dice).await;
                }
                for tested in &stripes {
                    tested.at_rest().await.unwrap_or_else(|fault| panic!("{word} without {out}: {fault}"));
                    tested.any_m_may_be_lost().await.unwrap();
                    tested
                        .reads_right()
                        .await
                        .unwrap_or_else(|fault| panic!("{word} without {out}: {fault}"));
                }
            });
        }
    }
}

#[test]
fn behaviour_01_holds_when_the_coordinator_has_died() {
    for word in ALL_PROFILES {
        for seed in 1..=3 {
            let mut cluster = cluster(word, seed);
            let mut before: Vec<Remembered> = Vec::new();
            for life in 0..4 {
                let in_use: Vec<_> = before.iter().flat_map(|stripe| stripe.in_use.clone()).collect();
                let lives = async |cluster: &Cluster, coordinator: &Coordinator| {
                    let again = |stripe| Tested::again(cluster, coordinator, stripe);
                    let mut stripes: Vec<Tested<'_>> = before.iter().map(again).collect();
                    if stripes.is_empty() {
                        stripes = three_stripes(cluster, coordinator).await;
                    }
                    for tested in &stripes {
                        let what = format!("{word}, seed {seed}, life {life}");
                        tested.reads_right().await.unwrap_or_else(|fault| panic!("{what}: {fault}"));
                        tested.at_rest().await.unwrap_or_else(|fault| panic!("{what}: {fault}"));
                        tested.any_m_may_be_lost().await.unwrap_or_else(|fault| panic!("{what}: {fault}"));
                    }
                    let mut dice = Dice::new(seed * 10 + life);
                    for _ in 0..15 {
                        mix::step(&stripes, &mut dice).await;
                    }
                    // It dies with writes that nobody was told to commit.
                    stripes.iter().map(Tested::remembered).collect()
                };
                before = cluster.run(&in_use, lives).unwrap();
            }
        }
    }
}

#[test]
fn behaviour_01_is_seen_to_be_broken() {
    for word in ALL_PROFILES {
        on(word, async |cluster, coordinator| {
            let tested = Tested::full(cluster, coordinator).await;
            tested.at_rest().await.unwrap();
            for shard in 0..cluster.lines().len() {
                tested.flip((shard, 2));
                assert!(tested.at_rest().await.is_err(), "{word}: shard {shard} is wrong");
                tested.flip((shard, 2));
            }
            tested.at_rest().await.unwrap();
        });
    }
}

#[test]
fn behaviour_02_any_m_members_may_be_lost() {
    for word in ALL_PROFILES {
        on(word, async |cluster, coordinator| {
            let stripes = mixed(cluster, coordinator, 7).await;
            for tested in &stripes {
                tested.any_m_may_be_lost().await.unwrap_or_else(|fault| panic!("{word}: {fault}"));
            }
            let members = cluster.lines().len();
            for lost in patterns(members, stripes[0].parity_shards()) {
                stripes[0].cut(&lost).await;
                for tested in &stripes {
                    let read = tested.reads_right().await;
                    read.unwrap_or_else(|fault| panic!("{word} without {lost:?}: {fault}"));
                }
                stripes[0].mend().await;
            }
            for tested in &stripes {
                tested.at_rest().await.unwrap_or_else(|fault| panic!("{word}, afterwards: {fault}"));
            }
        });
    }
}

#[test]
fn behaviour_02_more_than_m_are_missed_and_nothing_is_made_up() {
    for word in PARITY_PROFILES {
        on(word, async |cluster, coordinator| {
            let tested = Tested::full(cluster, coordinator).await;
            for lost in patterns(cluster.lines().len(), tested.parity_shards() + 1) {
                tested.cut(&lost).await;
                for at in tested.all() {
                    let read = tested.read(at).await;
                    match lost.contains(&tested.member_of(at.0)) {
                        true => {
                            assert!(matches!(read, Err(ReadError::Unavailable { .. })), "{word}: {read:?}")
                        }
                        false => assert_eq!(Some(read.unwrap()), tested.expected(at), "{word}, {at:?}"),
                    }
                }
                tested.mend().await;
            }
            tested.reads_right().await.unwrap();
        });
    }
}

#[test]
fn behaviour_02_is_seen_to_be_broken() {
    for word in PARITY_PROFILES {
        on(word, async |cluster, coordinator| {
            let tested = Tested::full(cluster, coordinator).await;
            tested.any_m_may_be_lost().await.unwrap();
            tested.flip((tested.data_shards(), 1));
            assert!(tested.any_m_may_be_lost().await.is_err(), "{word}");
        });
    }
}
