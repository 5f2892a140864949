//! Seeds of the simulation: a few hundred of the sound world, the same twice, and every weakness caught.
//!
//! More of them: `cargo run --release -p stripeset-sim -- --seeds 20000`.

use std::{
    collections::BTreeMap,
    io::{self, Write},
    sync::Mutex,
};

use stripeset_coordinator::engine::Weak;
use stripeset_sim::{plan::Weakness, run, sweep::sweep, trace::Trace};

/// Seeds of every run of the tests.
const SEEDS: u64 = 500;

/// Seeds among which a weakness has to show.
const SEEDS_WEAK: u64 = 3000;

/// Seeds that have to show it before no more are played.
const CAUGHT_ENOUGH: usize = 3;

const THREADS: usize = 2;

#[test]
fn no_seed_breaks_an_invariant() {
    let swept = sweep(1, SEEDS, THREADS, None, |_, failures| failures == 0);
    if let Some(failure) = swept.failures.first() {
        panic!("{failure}");
    }
    let stats = swept.stats;
    assert_eq!(stats.seeds, SEEDS);
    let _ = write!(io::stderr(), "{stats}");
    // A run that never comes near a fault proves nothing.
    let counted = [
        ("writes", stats.writes),
        ("failed", stats.failed),
        ("skips", stats.skips),
        ("reads before", stats.reads_before),
        ("freed in flight", stats.freed_in_flight),
        ("patterns", stats.patterns),
        ("pages", stats.pages),
        ("crashes", stats.crashes),
        ("brief", stats.brief),
        ("rivals", stats.rivals),
        ("late", stats.late),
        ("refused", stats.refused),
        ("blackouts", stats.blackouts),
        ("disks lost", stats.disks_lost),
        ("rejoined", stats.rejoined),
        ("power", stats.power),
        ("restarts", stats.restarts),
        ("cuts", stats.cuts),
        ("frozen", stats.frozen),
        ("lost", stats.lost),
        ("repeated", stats.repeated),
        ("flips", stats.flips),
        ("forged", stats.forged),
        ("short", stats.short),
        ("rot", stats.rot),
        ("latent", stats.latent),
        ("misdirected", stats.misdirected),
        ("dropped", stats.dropped),
        ("full", stats.full),
        ("out", stats.out),
    ];
    for (what, count) in counted {
        assert!(count > 0, "{what}: none in {SEEDS} seeds");
    }
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    for seed in 1..=20 {
        let traces = [Trace::default(), Trace::default()];
        let stats =
            traces.each_ref().map(|trace| run(seed, None, trace).map_err(|failure| failure.to_string()));
        assert_eq!(stats[0], stats[1], "seed {seed}");
        assert_eq!(traces[0].fingerprint(), traces[1].fingerprint(), "seed {seed}");
        assert_ne!(traces[0].fingerprint().0, 0);
    }
}

/// Plays the broken world; what caught it, and how often.
fn caught(weakness: Weakness) -> BTreeMap<&'static str, usize> {
    let played = Mutex::new(0);
    let swept = sweep(1, SEEDS_WEAK, THREADS, Some(weakness), |ended, failures| {
        if let Ok(mut played) = played.lock() {
            *played = ended;
        }
        failures < CAUGHT_ENOUGH
    });
    let mut caught = BTreeMap::new();
    for failure in &swept.failures {
        *caught.entry(failure.violation.invariant).or_default() += 1;
    }
    let played = played.into_inner().unwrap_or_default();
    let _ = writeln!(io::stderr(), "{weakness:?}: {played} seeds, caught by {caught:?}");
    assert!(!caught.is_empty(), "{weakness:?} is not caught in {played} seeds");
    caught
}

#[test]
fn neighbours_that_are_not_verified_are_caught() {
    caught(Weakness::Engine(Weak::NeighboursUnverified));
}

#[test]
fn a_reconstruction_without_its_stored_checksum_is_caught() {
    caught(Weakness::Engine(Weak::ReconstructionUnchecked));
}

#[test]
fn caching_a_write_before_it_is_decided_is_caught() {
    caught(Weakness::Engine(Weak::UncertainCached));
}

#[test]
fn forgetting_what_is_freed_under_a_write_is_caught() {
    caught(Weakness::Engine(Weak::StickyMarkIgnored));
}

#[test]
fn freeing_at_delete_instead_of_at_unpin_is_caught() {
    caught(Weakness::FreedAtDelete);
}

#[test]
fn readers_that_do_not_pin_are_caught() {
    caught(Weakness::ReadersNotPinned);
}
