//! 4: the identities of the cache's counters hold always: after every step of a mix, at every moment of it, when writes
//! fail, and when many go on at once.

use std::time::Duration;

use futures_util::future::join_all;
use stripeset_coordinator::engine::Engine;
use stripeset_sim::{
    cluster::{Cluster, Coordinator},
    dice::Dice,
    network::{Conduct, Kind},
};
use stripeset_stripe::cache::{Class, Counters};

use crate::{
    mix,
    stage::{ALL_PROFILES, PARITY_PROFILES, Tested, cluster, moment, on},
};

/// Does the work, and looks at the counters at every moment of it.
async fn watched(engine: &Engine, work: impl Future<Output = ()>) {
    let watch = async {
        loop {
            let counters = engine.cache().counters(Class::Data);
            assert!(counters.agree(), "{counters:?}");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::select! {
        biased;
        () = watch => unreachable!("it looks for ever"),
        () = work => {}
    }
}

#[test]
fn behaviour_04_identities_hold_at_every_step() {
    for word in ALL_PROFILES {
        for seed in 1..=4 {
            let life = async |cluster: &Cluster, coordinator: &Coordinator| {
                let stripes = [
                    Tested::fresh(cluster, coordinator, 2).await,
                    Tested::full(cluster, coordinator).await,
                    Tested::full(cluster, coordinator).await,
                ];
                let mut dice = Dice::new(seed);
                let work = async {
                    for step in 0..80 {
                        if step % 16 == 0 {
                            mix::change_rules(&stripes[0], &mut dice);
                        }
                        mix::step(&stripes, &mut dice).await;
                        let counters = stripes[0].counters();
                        assert!(counters.agree(), "{word}, seed {seed}, step {step}: {counters:?}");
                    }
                };
                watched(&coordinator.engine, work).await;
                let counters = stripes[0].counters();
                let Counters { rmw_reads, rmw_skips, steals, steals_other, inserts, .. } = counters;
                let least = [rmw_skips, steals, steals_other, inserts].into_iter().min();
                assert!(least > Some(0), "{word}, seed {seed}: the mix does too little: {counters:?}");
                assert!(rmw_reads > 0 || word.starts_with("mirror"), "{word}, seed {seed}: {counters:?}");
            };
            cluster(word, seed).run(&[], life).unwrap();
        }
    }
}

/// What makes writes fail, and how long it lasts.
async fn trouble(tested: &Tested<'_>, dice: &mut Dice) {
    let all = tested.all_members();
    let keeps_back = |kind| Conduct { held: vec![kind], ..Conduct::default() };
    match dice.below(4) {
        0 => tested.cut(&all).await,
        kind => {
            let kept = *[Kind::Prepare, Kind::Read, Kind::Abort].get(kind as usize - 1).unwrap();
            tested.set_conduct(&all, &keeps_back(kept));
            tokio::time::sleep(Duration::from_millis(dice.between(1, 40))).await;
            // The answers that were kept back are gone with the sessions.
            tested.cut(&all).await;
        }
    }
    tokio::time::sleep(Duration::from_millis(dice.between(1, 900))).await;
    tested.mend().await;
}

#[test]
fn behaviour_04_identities_hold_when_writes_fail() {
    let mut failed = 0;
    for word in ALL_PROFILES {
        for seed in 1..=4 {
            let life = async |cluster: &Cluster, coordinator: &Coordinator| {
                let stripes =
                    [Tested::full(cluster, coordinator).await, Tested::full(cluster, coordinator).await];
                let mut dice = Dice::new(seed);
                let work = async {
                    for _ in 0..8 {
                        failed += writes_in_trouble(&stripes, &mut dice).await;
                        let counters = stripes[0].counters();
                        assert!(counters.agree(), "{word}, seed {seed}: {counters:?}");
                    }
                };
                watched(&coordinator.engine, work).await;
                for tested in &stripes {
                    tested.at_rest().await.unwrap_or_else(|fault| panic!("{word}, seed {seed}: {fault}"));
                    tested.reads_right().await.unwrap_or_else(|fault| panic!("{word}, seed {seed}: {fault}"));
                }
            };
            cluster(word, seed).run(&[], life).unwrap();
        }
    }
    assert!(failed > 50, "too few writes failed: {failed}");
}

/// Writes of which some fail. Returns how many.
async fn writes_in_trouble(stripes: &[Tested<'_>], dice: &mut Dice) -> usize {
    let mut places = Vec::new();
    let mut writes = Vec::new();
    for _ in 0..6 {
        let tested = dice.pick(stripes).unwrap();
        let sectors = mix::some_sectors(tested, dice);
        let edits = tested.edits(&sectors);
        places.push((tested, sectors));
        writes.push(async move { tested.engine().write_partial(&tested.stripe, edits).await.is_err() });
    }
    let (outcomes, ()) = tokio::join!(join_all(writes), trouble(&stripes[0], dice));
    moment().await;
    for ((tested, sectors), failed) in places.into_iter().zip(&outcomes) {
        if *failed {
            sectors.into_iter().for_each(|at| tested.note(at, None));
        }
    }
    outcomes.into_iter().filter(|failed| *failed).count()
}

#[test]
fn behaviour_04_one_write_counts_once() {
    for word in PARITY_PROFILES {
        on(word, async |cluster, coordinator| {
            let tested = Tested::full(cluster, coordinator).await;
            let counted = async |sectors: &[_]| {
                let before = tested.counters();
                tested.write(sectors).await.unwrap();
                let after = tested.counters();
                let of = |count: fn(&Counters) -> u64| count(&after) - count(&before);
                [
                    of(|counters| counters.rmw_partial),
                    of(|counters| counters.rmw_reads),
                    of(|counters| counters.rmw_skips),
                    of(|counters| counters.skips_free),
                    of(|counters| counters.steals),
                    of(|counters| counters.steal_partial),
                    of(|counters| counters.steals_other),
                    of(|counters| counters.inserts),
                ]
            };
            let all = tested.all();
            let (vertical, one) = (all.iter().copied().filter(|at| at.1 == 1).collect::<Vec<_>>(), [(0, 1)]);
            assert_eq!(counted(&vertical).await, [1, 0, 1, 1, 0, 0, 0, 1], "{word}: covers what it needs");
            assert_eq!(counted(&one).await, [1, 0, 1, 0, 1, 0, 0, 1], "{word}: a hit");
            assert_eq!(
                counted(&[(0, 2)]).await,
                [1, 1, 0, 0, 1, 1, 0, 1],
                "{word}: a hit that does not suffice"
            );
            assert_eq!(counted(&all).await, [0, 0, 0, 0, 1, 0, 1, 0], "{word}: a full write");
            assert_eq!(counted(&one).await, [1, 1, 0, 0, 0, 0, 0, 1], "{word}: a miss");
        });
    }
}
