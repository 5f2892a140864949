//! The seeded simulation: the coordinator's engine and the agents' stores, the real ones, in one thread under a clock that
//! jumps, on disks that rot, drop and lie and over lines that lose, delay, repeat and reorder. One seed decides all of it.
//!
//! [`cluster`] is the stage, [`network`] the lines to the agents, [`plan`] what a seed plays, [`world`] what happens,
//! [`oracle`] what the right answer is, [`vertical`] what is on the disks, [`invariants`] what has to hold.
//! [`run`] is one seed from start to end, [`sweep`](mod@sweep) many.
//!
//! [`walk`] is another world: the protocol's rules alone, without any of that, as fast as the machine goes.
//!
//! Not simulated: gRPC itself, real disks, metadata on the array.

pub mod cluster;
mod counted;
pub mod dice;
pub mod invariants;
pub mod network;
pub mod oracle;
pub mod plan;
pub mod stats;
pub mod sweep;
pub mod trace;
pub mod vertical;
pub mod walk;
pub mod world;

use thiserror::Error;

use crate::{
    cluster::{Cluster, ClusterError, Settings},
    invariants::Violation,
    plan::{Plan, Weakness},
    stats::Stats,
    trace::Trace,
    world::World,
};

/// Events that a failure shows.
const EVENTS_SHOWN: usize = 60;

/// A seed that went wrong.
#[derive(Debug, Error)]
#[error(
    "seed {seed}, {profile}: {violation}\nthe last events:\n{events}repeat it with\n  cargo run --release -p stripeset-sim -- --seed {seed}\n"
)]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// The profile that it played.
    pub profile: String,
    /// What did not hold.
    pub violation: Violation,
    events: String,
}

impl Failure {
    fn new(seed: u64, profile: &str, violation: Violation, trace: &Trace) -> Self {
        Failure { seed, profile: profile.to_owned(), violation, events: trace.last(EVENTS_SHOWN) }
    }
}

/// Plays one seed.
pub fn run(seed: u64, weakness: Option<Weakness>, trace: &Trace) -> Result<Stats, Box<Failure>> {
    let failure = |profile: &str, violation| Box::new(Failure::new(seed, profile, violation, trace));
    let plan = Plan::new(seed, weakness)
        .map_err(|error| failure("no profile", Violation::new("the plan", error.to_string())))?;
    let profile = plan.profile.to_string();
    play(plan, trace).map_err(|violation| failure(&profile, violation))
}

fn play(plan: Plan, trace: &Trace) -> Result<Stats, Violation> {
    event!(trace, "{plan:?}");
    let stage = |error: ClusterError| Violation::new("the cluster starts", error.to_string());
    let settings = Settings { takes_back: true, ..Settings::small(plan.profile, plan.seed) };
    let mut cluster = Cluster::new(settings, trace.clone()).map_err(stage)?;
    let mut world = World::new(plan.clone(), *cluster.geometry(), trace.clone());
    for life in 1..=plan.lives {
        let extents = world.durable();
        let last = life == plan.lives;
        let steps = plan.steps / plan.lives;
        for _ in 0..plan.brief {
            let time = world.a_moment();
            match cluster.run_briefly(&extents, time) {
                Ok(_) => {}
                Err(error) if world.may_refuse(&error) => {}
                Err(error) => return Err(stage(error)),
            }
        }
        let lived = cluster.run(&extents, async |cluster, coordinator| {
            if let Some(Weakness::Engine(weak)) = plan.weakness {
                coordinator.engine.weaken(weak);
            }
            world.live(cluster, coordinator, steps, last).await
        });
        match lived {
            Ok(lived) => lived?,
            Err(error) if world.may_refuse(&error) => break,
            Err(error) => return Err(stage(error)),
        }
        if !last {
            world.crash();
            world.blackout(&cluster);
            // Who starts again finds lines that work: what is wrong with them comes later.
            world.quiet_lines(&cluster);
        }
    }
    world.account_cluster(&cluster);
    let mut stats = world.stats();
    stats.seeds = 1;
    stats.tolerated = u64::from(plan.tolerated);
    Ok(stats)
}
