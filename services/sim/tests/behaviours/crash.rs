//! 16 and the first rows of the protocol's table: the coordinator dies at every step of a partial write, also while the
//! next one takes over, also together with members; agents lose power at every step. What was acknowledged is there, what
//! was not is old or new as a whole, and neighbours are as they were.

use std::time::Duration;

use stripeset_coordinator::engine::steps::{Action, Step};
use stripeset_proto::v1::UnitState;
use stripeset_sim::{
    cluster::{Cluster, Coordinator},
    network::Conduct,
};

use crate::stage::{ALL_PROFILES, At, Remembered, Tested, cluster, moment, patterns};

/// Sectors that the write covers: two of one vertical, where the profile has as many, and one of another.
fn written(tested: &Tested<'_>) -> Vec<At> {
    vec![(0, 0), (tested.data_shards() - 1, 1)]
}

/// How far the write has come when its coordinator dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dies {
    NothingPrepared,
    SomePrepared,
    AllPrepared,
    Acknowledged,
}

const ALL_DEATHS: [Dies; 4] =
    [Dies::NothingPrepared, Dies::SomePrepared, Dies::AllPrepared, Dies::Acknowledged];

/// A stripe as it is known when the coordinator has died: before the write, and after it.
struct Left {
    before: Remembered,
    after: Remembered,
    dies: Dies,
}

impl Left {
    /// What has to be there now, if no member was lost.
    fn right(&self) -> &Remembered {
        match self.dies {
            Dies::NothingPrepared | Dies::SomePrepared => &self.before,
            Dies::AllPrepared | Dies::Acknowledged => &self.after,
        }
    }
}

async fn write_until(tested: &Tested<'_>, dies: Dies) -> Left {
    let before = tested.remembered();
    let engine = tested.engine().clone();
    let (stripe, edits) = (tested.stripe.clone(), tested.edits(&written(tested)));
    let step = match dies {
        Dies::NothingPrepared | Dies::SomePrepared => Some(Step::RmwRead),
        Dies::AllPrepared => Some(Step::RmwPrepared),
        Dies::Acknowledged => None,
    };
    if let Some(step) = step {
        engine.steps.arm(step, Action::Stop(Duration::from_secs(60)), 0);
    }
    let writing = {
        let engine = engine.clone();
        tokio::spawn(async move { engine.write_partial(&stripe, edits).await.map(|_| ()) })
    };
    match step {
        None => writing.await.unwrap().unwrap(),
        Some(_) => {
            while engine.steps.stopped() == 0 {
                moment().await;
            }
        }
    }
    if dies == Dies::SomePrepared {
        // Of what is sent now nothing arrives at the last parity.
        let last = tested.member_of(tested.data_shards() + tested.parity_shards() - 1);
        tested.set_conduct(&[last], &Conduct { frozen: true, ..Conduct::default() });
        engine.steps.resume();
        let (member, unit) = tested.coordinator.place(&tested.stripe, 0);
        let is_pending =
            || tested.cluster.lines()[member].agent().unit(unit).unwrap().state() == UnitState::Pending;
        while !is_pending() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    Left { before, after: tested.remembered(), dies }
}

/// A coordinator dies in the middle of a write. `and_then` happens at the same moment.
fn die(word: &str, dies: Dies, and_then: impl AsyncFn(&Tested<'_>)) -> (Cluster, Left) {
    let mut cluster = cluster(word, 1);
    let left = cluster.run(&[], async |cluster, coordinator| {
        let tested = Tested::full(cluster, coordinator).await;
        tested.settle().await;
        let left = write_until(&tested, dies).await;
        and_then(&tested).await;
        left
    });
    cluster.all_lines().for_each(|line| line.set_conduct(Conduct::default()));
    let left = left.unwrap();
    (cluster, left)
}

async fn is_sound(tested: &Tested<'_>) -> Result<(), String> {
    tested.reads_right().await?;
    tested.at_rest().await?;
    tested.any_m_may_be_lost().await
}

/// The next coordinator finds what has to be there, and the stripe takes writes.
async fn goes_on(cluster: &Cluster, coordinator: &Coordinator, right: &Remembered, what: &str) {
    let tested = Tested::again(cluster, coordinator, right);
    is_sound(&tested).await.unwrap_or_else(|fault| panic!("{what}: {fault}"));
    tested.write(&written(&tested)).await.unwrap_or_else(|error| panic!("{what}: {error}"));
    is_sound(&tested).await.unwrap_or_else(|fault| panic!("{what}, written again: {fault}"));
}

#[test]
fn a_coordinator_that_dies_leaves_a_write_done_or_not_done() {
    for word in ALL_PROFILES {
        for dies in ALL_DEATHS {
            let (mut cluster, left) = die(word, dies, async |_| {});
            let what = format!("{word} {dies:?}");
            let life = async |cluster: &Cluster, coordinator: &Coordinator| {
                goes_on(cluster, coordinator, left.right(), &what).await;
            };
            cluster.run(&left.before.in_use, life).unwrap();
        }
    }
}

#[test]
fn coordinators_that_die_during_recovery_leave_the_next_one_to_decide_the_same() {
    for word in ["mirror2", "raid5-2+1", "raid6-4+2"] {
        for dies in ALL_DEATHS {
            for millis in [1, 3, 6, 10, 15, 25, 40] {
                let (mut cluster, left) = die(word, dies, async |_| {});
                for _ in 0..3 {
                    cluster.run_briefly(&left.before.in_use, Duration::from_millis(millis)).unwrap();
                }
                let what = format!("{word} {dies:?}, three starts of {millis} ms");
                let life = async |cluster: &Cluster, coordinator: &Coordinator| {
                    goes_on(cluster, coordinator, left.right(), &what).await;
                };
                cluster.run(&left.before.in_use, life).unwrap();
            }
        }
    }
}

/// The neighbours are there, and what was written is old or new: all of it.
async fn is_old_or_new(cluster: &Cluster, coordinator: &Coordinator, left: &Left, what: &str) {
    let mut faults = Vec::new();
    for candidate in [&left.before, &left.after] {
        let tested = Tested::again(cluster, coordinator, candidate);
        match tested.reads_right().await {
            Ok(()) => return is_sound(&tested).await.unwrap_or_else(|fault| panic!("{what}: {fault}")),
            Err(fault) => faults.push(fault),
        }
    }
    panic!("{what}: neither old nor new: {faults:?}");
}

#[test]
fn m_members_and_the_coordinator_die_together() {
    for word in ALL_PROFILES {
        let members = cluster(word, 1).lines().len();
        for dies in ALL_DEATHS {
            let m = word.parse::<stripeset_stripe::Profile>().unwrap().tolerated_members();
            for lost in patterns(members, m).into_iter().take(8) {
                let (mut cluster, left) = die(word, dies, async |_| {});
                for member in &lost {
                    cluster.lose_disk(*member).unwrap();
                }
                let what = format!("{word} {dies:?} without {lost:?}");
                let life = async |cluster: &Cluster, coordinator: &Coordinator| {
                    match dies {
                        // A write that was acknowledged has to be there.
                        Dies::Acknowledged => {
                            let tested = Tested::again(cluster, coordinator, left.right());
                            is_sound(&tested).await.unwrap_or_else(|fault| panic!("{what}: {fault}"));
                        }
                        _ => is_old_or_new(cluster, coordinator, &left, &what).await,
                    }
                };
                cluster.run(&left.before.in_use, life).unwrap();
            }
        }
    }
}

#[test]
fn behaviour_16_agents_that_lose_power_at_any_step_of_a_write() {
    for word in ALL_PROFILES {
        for dies in ALL_DEATHS {
            for all in [false, true] {
                let (mut cluster, left) = die(word, dies, async |tested| {
                    let losing = if all { tested.all_members() } else { vec![tested.member_of(0)] };
                    for member in losing {
                        tested.cluster.lines()[member].agent().lose_power(7 + member as u64).unwrap();
                    }
                });
                let what = format!("{word} {dies:?}, power lost at {}", if all { "all" } else { "one" });
                let life = async |cluster: &Cluster, coordinator: &Coordinator| {
                    // What was prepared was durable, so the outcome is what it is without a loss of power.
                    goes_on(cluster, coordinator, left.right(), &what).await;
                };
                cluster.run(&left.before.in_use, life).unwrap();
            }
        }
    }
}

/// The agent alone: its coordinator lives on.
#[test]
fn an_agent_that_loses_power_lists_what_it_had_prepared_and_nothing_else() {
    for word in ALL_PROFILES {
        for dies in [Dies::NothingPrepared, Dies::AllPrepared, Dies::Acknowledged] {
            let mut cluster = cluster(word, 1);
            let life = async |cluster: &Cluster, coordinator: &Coordinator| {
                let tested = Tested::full(cluster, coordinator).await;
                tested.settle().await;
                let left = write_until(&tested, dies).await;
                let member = tested.member_of(0);
                cluster.lines()[member].agent().lose_power(3).unwrap();
                cluster.break_sessions(member);
                tested.engine().steps.resume();
                coordinator.all_in_service().await;
                moment().await;
                // The write goes on without the member, or with it: its caller was told, or will be.
                let what = format!("{word} {dies:?}");
                let tested = Tested::again(cluster, coordinator, &left.after);
                tokio::time::sleep(Duration::from_secs(10)).await;
                is_sound(&tested).await.unwrap_or_else(|fault| panic!("{what}: {fault}"));
                if tested.member(0).is_out() {
                    coordinator.take_back(member as u32).await.unwrap();
                }
                is_sound(&tested).await.unwrap_or_else(|fault| panic!("{what}: {fault}"));
            };
            cluster.run(&[], life).unwrap();
        }
    }
}

#[test]
fn a_fresh_write_that_was_half_done_when_all_power_was_lost_leaves_an_empty_stripe() {
    for word in ALL_PROFILES {
        for arrived in 0..cluster(word, 1).lines().len() {
            let mut cluster = cluster(word, 1);
            let stripe = cluster.run(&[], async |cluster, coordinator| {
                let tested = Tested::blank(cluster, coordinator).await;
                let silent: Vec<usize> = tested.all_members().split_off(arrived);
                tested.set_conduct(&silent, &Conduct { frozen: true, ..Conduct::default() });
                let engine = tested.engine().clone();
                let stripe = tested.stripe.clone();
                tokio::spawn(async move {
                    let data = vec![vec![9; 4096].into(); stripe.geometry().profile().data_shards()];
                    engine.write_fresh(&stripe, &data).await.map(|_| ())
                });
                moment().await;
                for (seed, line) in (1..).zip(cluster.lines()) {
                    line.agent().lose_power(seed).unwrap();
                }
                tested.stripe.clone()
            });
            cluster.all_lines().for_each(|line| line.set_conduct(Conduct::default()));
            let stripe = stripe.unwrap();
            let what = format!("{word}, {arrived} members had it");
            let life = async |cluster: &Cluster, coordinator: &Coordinator| {
                // It is empty to the allocator: another write enters it, whatever the disks hold.
                let taken = coordinator.engine.extents.take_stripe().await.unwrap().unwrap();
                assert_eq!(taken.address(), stripe.address(), "{what}");
                let tested = Tested::of(cluster, coordinator, taken);
                tested.write_fresh(2).await.unwrap_or_else(|error| panic!("{what}: {error}"));
                is_sound(&tested).await.unwrap_or_else(|fault| panic!("{what}: {fault}"));
            };
            cluster.run(&[], life).unwrap();
        }
    }
}
