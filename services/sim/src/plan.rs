//! What a seed plays: the shape of the array, which faults there are, on whom, and how often.
//!
//! In a *tolerated* plan faults happen on at most m members, and nothing may be lost, not even for a while. In a plan
//! *beyond* that they happen on all of them: writes and reads may fail, and still no wrong byte may be served, no parity
//! written that does not fit, nothing uncertain cached. Kinds of faults are switched on seed by seed, so that some seeds
//! go deep into few of them.

use stripeset_coordinator::engine::Weak;
use stripeset_stripe::{
    Profile,
    profile::{ProfileError, ProfileSpec},
};

use crate::dice::Dice;

/// Profiles that are played, the common ones more often.
const PROFILES: [&str; 10] = [
    "raid5-2+1",
    "raid5-2+1",
    "raid5-4+1",
    "raid5-4+1",
    "raid6-2+2",
    "raid6-4+2",
    "raid6-4+2",
    "mirror2",
    "mirror3",
    "rs-3+3",
];

/// A way to break the world on purpose: every one has to be caught.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weakness {
    /// The engine leaves a step out.
    Engine(Weak),
    /// What is deleted is freed at once, not when the transaction is durable.
    FreedAtDelete,
    /// What is deleted is freed though a reader still has it.
    ReadersNotPinned,
}

/// What a seed plays.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The seed.
    pub seed: u64,
    /// Profile of the array.
    pub profile: Profile,
    /// Actions, all lives of the coordinator together.
    pub steps: u64,
    /// Lives of the coordinator.
    pub lives: u64,
    /// In how many of a hundred lives another coordinator starts beside the one that runs.
    pub rivals: u64,
    /// Coordinators that die before they serve, or right after, before each life.
    pub brief: u64,
    /// Members that may misbehave.
    pub faulty: Vec<usize>,
    /// Of them, those whose disks may say that a write is done which is not, or forget it when their agent is killed: never
    /// more than the profile bears. What more of them forget together, nobody is left to remember.
    pub liars: Vec<usize>,
    /// They are no more than the profile bears.
    pub tolerated: bool,
    /// Faults that there are.
    pub faults: Faults,
    /// What is broken on purpose.
    pub weakness: Option<Weakness>,
}

/// Which faults a seed has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Messages are lost.
    pub lost: bool,
    /// Lines are cut, or freeze, and come back.
    pub lines: bool,
    /// Bits flip on the medium.
    pub flips: bool,
    /// Sectors change, and their checksum with them.
    pub forged: bool,
    /// Disks rot, cannot read back, drop and misdirect writes, from time to time.
    pub disks: bool,
    /// Disks are full.
    pub full: bool,
    /// Reads come back short.
    pub short: bool,
    /// Agents are killed, or lose power.
    pub agents: bool,
    /// All agents lose power when a coordinator dies.
    pub blackouts: bool,
    /// Disks are lost, and blank ones stand in their places.
    pub disks_lost: bool,
}

impl Plan {
    /// The plan of a seed.
    pub fn new(seed: u64, weakness: Option<Weakness>) -> Result<Plan, ProfileError> {
        let mut dice = Dice::new(seed ^ 0x91a4);
        let word = PROFILES[dice.below(PROFILES.len() as u64) as usize];
        let profile = word.parse::<ProfileSpec>()?.resolve(16)?;
        let tolerated = dice.of_thousand(700);
        let bears = profile.tolerated_members() as u64;
        let members = profile.members() as u64;
        let count = if tolerated { dice.between(0, bears) } else { members };
        let mut faulty: Vec<usize> = (0..profile.members()).collect();
        while (faulty.len() as u64) > count {
            faulty.remove(dice.below(faulty.len() as u64) as usize);
        }
        let mut on = |times: u64| dice.of_thousand(times);
        let mut faults = Faults {
            lost: on(300),
            lines: on(400),
            flips: on(700),
            forged: on(400),
            disks: on(400),
            full: on(250),
            short: on(250),
            agents: on(300),
            blackouts: on(200),
            disks_lost: on(300),
        };
        if weakness == Some(Weakness::Engine(Weak::StickyMarkIgnored)) {
            // Where members do not answer, a sector may be rebuilt as it was before it was freed: nobody can tell then.
            faults = Faults { flips: true, ..Faults::default() };
        }
        Ok(Plan {
            seed,
            profile,
            steps: dice.between(60, 160),
            lives: dice.between(1, 3),
            rivals: [0, 0, 60][dice.below(3) as usize],
            brief: dice.below(3),
            liars: faulty.iter().copied().take(bears as usize).collect(),
            faulty,
            tolerated,
            faults,
            weakness,
        })
    }
}
