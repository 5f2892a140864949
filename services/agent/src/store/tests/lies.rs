//! Disks that rot, lie, wear out and fill up, by chance: whatever they do, a sector that is given out is what was written
//! to it at that version, or is called bad. Old is possible, for a disk that drops a write and says nothing; wrong is not.

use super::{
    crash::{Fills, fills_of},
    histories::{Event, History, UNITS, random},
    *,
};
use crate::disk::simulated::Faults;

/// Histories tried with each kind of fault.
const SEEDS: u64 = 150;

/// Every answer about every unit.
fn check(rig: &mut Rig, fills: &Fills) {
    for unit in 0..UNITS as u64 {
        let view = rig.store.view(unit).unwrap();
        for version in [view.committed, view.pending] {
            let Ok((found, sectors)) = rig.read(unit, version.sequence) else { continue };
            for (sector, is) in sectors.into_iter().enumerate() {
                let known = is == Bad || found == 0 || fills.contains(&(unit as usize, found, sector, is));
                assert!(known, "unit {unit}: version {found} has {is:?} in sector {sector}");
            }
        }
    }
}

/// What came of a history.
#[derive(Debug, Default)]
struct Tally {
    bad_sectors: u64,
    refused_disks: u64,
    failed_disks: u64,
}

fn run_on_bad_disk(history: &History, faults: Faults, seed: u64, tally: &mut Tally) {
    let mut rig = Rig::new();
    let fills = fills_of(&history.events);
    rig.disk.misbehave(faults, seed);
    for event in &history.events {
        match event {
            Event::Group(steps) => {
                for (unit, step) in steps {
                    // Refusals of every kind are answers too.
                    let _ = rig.store.carry_out(step.operation(*unit as u64));
                }
                let _ = rig.store.sync();
            }
            Event::Apply => drop(rig.store.close(|| true)),
            Event::Tick => drop(rig.store.apply_due()),
        }
        check(&mut rig, &fills);
    }
    tally.bad_sectors += rig.store.counters().checksum_errors;
    tally.failed_disks += u64::from(rig.store.failure().is_some());
    rig.disk.behave();
    match Store::open(Box::new(rig.disk.after_restart())) {
        Ok(store) => {
            rig.store = store;
            check(&mut rig, &fills);
        }
        // It says that it lost what it had answered, or does not know what it is.
        Err(_) => tally.refused_disks += 1,
    }
}

#[test]
fn no_disk_makes_the_store_give_out_wrong_bytes() {
    let none = Faults::default();
    let kinds = [
        ("rot", Faults { rot: 100, ..none }),
        ("latent errors", Faults { latent_errors: 100, ..none }),
        ("dropped writes", Faults { dropped_writes: 100, ..none }),
        ("misdirected writes", Faults { misdirected_writes: 100, ..none }),
        ("a full disk", Faults { full: 200, ..none }),
        (
            "all of it",
            Faults {
                rot: 30,
                latent_errors: 30,
                dropped_writes: 30,
                misdirected_writes: 30,
                full: 50,
                stalls: 50,
            },
        ),
    ];
    for (kind, faults) in kinds {
        let mut tally = Tally::default();
        for seed in 1..=SEEDS {
            let history = random(seed);
            let told = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                let mut one = Tally::default();
                run_on_bad_disk(&history, faults, seed, &mut one);
                one
            }));
            let Ok(one) = told else { panic!("{kind}, seed {seed}: {:#?}", history.events) };
            tally.bad_sectors += one.bad_sectors;
            tally.refused_disks += one.refused_disks;
            tally.failed_disks += one.failed_disks;
        }
        println!("{kind}: {tally:?}");
        assert!(tally.failed_disks == 0, "only a write or a sync that fails ends writing: {kind}, {tally:?}");
        let hurts = faults.rot + faults.dropped_writes + faults.misdirected_writes + faults.latent_errors > 0;
        assert!(!hurts || tally.bad_sectors > 0, "{kind} was never seen");
    }
}
