//! The simulated disk does what it says: every fault is seen, and the outcomes of a crash are counted.

use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicU64, Ordering},
};

use super::{crash::ATOM_BYTES, *};
use crate::disk::BLOCK_BYTES;

const SAMPLES: usize = 64;

/// The fault tests write so many blocks.
const BLOCKS: u64 = 100;

fn block(fill: u8) -> Buffer {
    let mut block = Buffer::zeroed(BLOCK_BYTES);
    block.fill(fill);
    block
}

/// A block in which the first `atoms` atoms are `fill`, the others zeros.
fn atoms(fill: u8, atoms: usize) -> Buffer {
    let mut block = Buffer::zeroed(BLOCK_BYTES);
    block[..atoms * ATOM_BYTES].fill(fill);
    block
}

/// The first bytes of each atom of the first two blocks, in all outcomes.
fn outcomes(disk: &SimulatedDisk, samples: usize) -> BTreeSet<Vec<u8>> {
    let first_bytes = |disk: SimulatedDisk| disk.peek(0..8192).iter().step_by(ATOM_BYTES).copied().collect();
    let all: Vec<Vec<u8>> = disk.crash_outcomes(&mut Dice(1), samples).map(first_bytes).collect();
    let distinct: BTreeSet<_> = all.iter().cloned().collect();
    assert_eq!(all.len(), distinct.len(), "none twice");
    distinct
}

/// Two blocks of which each atom has one of these bytes.
fn bytes_of(first: [u8; 8], second: [u8; 8]) -> Vec<u8> {
    [first, second].concat()
}

#[test]
fn few_open_atoms_have_every_outcome() {
    let mut disk = SimulatedDisk::new(4 * BLOCK_BYTES);
    assert_eq!(outcomes(&disk, SAMPLES).len(), 1, "nothing is open");
    disk.write(0, &block(0)).unwrap();
    assert_eq!(outcomes(&disk, SAMPLES).len(), 1, "nothing differs");
    disk.write(0, &atoms(1, 1)).unwrap();
    assert_eq!(outcomes(&disk, SAMPLES).len(), 2);
    disk.write(0, &atoms(1, 1)).unwrap();
    assert_eq!(outcomes(&disk, SAMPLES).len(), 2, "the same bytes again");
    disk.write(4096, &atoms(1, 1)).unwrap();
    assert_eq!(outcomes(&disk, SAMPLES).len(), 4);
    disk.write(4096, &block(0)).unwrap();
    assert_eq!(outcomes(&disk, SAMPLES).len(), 4, "back to what is durable is no third content");
    disk.sync().unwrap();
    assert_eq!(outcomes(&disk, SAMPLES), BTreeSet::from([bytes_of([1, 0, 0, 0, 0, 0, 0, 0], [0; 8])]));
    disk.write(4096, &block(3)).unwrap();
    assert_eq!(outcomes(&disk, 0).len(), 256, "eight atoms");
}

#[test]
fn an_older_write_may_come_last() {
    let mut disk = SimulatedDisk::new(4 * BLOCK_BYTES);
    disk.write(0, &atoms(1, 1)).unwrap();
    disk.write(0, &atoms(2, 2)).unwrap();
    let outcomes = outcomes(&disk, SAMPLES);
    // Nothing, 1 or 2 in the first atom, nothing or 2 in the second.
    assert_eq!(outcomes.len(), 6);
    let overtaken = bytes_of([1, 2, 0, 0, 0, 0, 0, 0], [0; 8]);
    let later_alone = bytes_of([2, 0, 0, 0, 0, 0, 0, 0], [0; 8]);
    assert!(outcomes.contains(&overtaken) && outcomes.contains(&later_alone));
}

#[test]
fn of_many_open_atoms_each_write_is_lost_kept_and_torn() {
    let mut disk = SimulatedDisk::new(4 * BLOCK_BYTES);
    disk.write(0, &block(1)).unwrap();
    disk.write(0, &block(2)).unwrap();
    disk.write(4096, &block(3)).unwrap();
    let telling = outcomes(&disk, 0);
    let half = |before: u8, after: u8| [before, before, before, before, after, after, after, after];
    for expected in [
        bytes_of([0; 8], [0; 8]),
        bytes_of([2; 8], [3; 8]),
        // Every combination of whole writes.
        bytes_of([0; 8], [3; 8]),
        bytes_of([1; 8], [0; 8]),
        bytes_of([1; 8], [3; 8]),
        bytes_of([2; 8], [0; 8]),
        // Torn, alone and with the others.
        bytes_of(half(1, 0), [0; 8]),
        bytes_of(half(0, 2), [0; 8]),
        bytes_of([2, 0, 0, 0, 0, 0, 0, 0], [0; 8]),
        bytes_of([0; 8], [3, 3, 3, 3, 3, 3, 3, 0]),
        bytes_of(half(2, 1), [3; 8]),
        bytes_of([2; 8], half(3, 0)),
        // Everything but one atom.
        bytes_of([0, 2, 2, 2, 2, 2, 2, 2], [3; 8]),
        bytes_of([2; 8], [3, 3, 3, 3, 3, 3, 3, 0]),
    ] {
        assert!(telling.contains(&expected), "{expected:?}");
    }
    let sampled = outcomes(&disk, SAMPLES);
    assert!(sampled.is_superset(&telling) && sampled.len() > telling.len() + SAMPLES / 2);
}

#[test]
fn many_writes_are_lost_alone_kept_alone_and_come_last() {
    let mut disk = SimulatedDisk::new(4 * BLOCK_BYTES);
    (1..8).for_each(|fill| disk.write(0, &block(fill)).unwrap());
    disk.write(4096, &block(9)).unwrap();
    let outcomes = outcomes(&disk, 0);
    for fill in 1..8 {
        assert!(outcomes.contains(&bytes_of([fill; 8], [0; 8])), "{fill} alone");
        assert!(outcomes.contains(&bytes_of([fill; 8], [9; 8])), "{fill} last, the other block whole");
    }
    assert!(outcomes.contains(&bytes_of([6; 8], [9; 8])) && outcomes.contains(&bytes_of([7; 8], [0; 8])));
}

#[test]
fn crashes_by_chance_keep_what_was_synced_and_lose_and_keep_the_rest() {
    let mut disk = SimulatedDisk::new(4 * BLOCK_BYTES);
    disk.write(4096, &block(9)).unwrap();
    disk.sync().unwrap();
    disk.write(0, &block(1)).unwrap();
    disk.write(0, &block(2)).unwrap();
    let mut dice = Dice(5);
    let seen: BTreeSet<u8> = (0..50)
        .map(|_| {
            let after = disk.after_power_loss(&mut dice);
            assert_eq!(after.peek(4096..8192), [9; 4096]);
            after.peek(0..1)[0]
        })
        .collect();
    assert_eq!(seen, BTreeSet::from([0, 1, 2]));
    assert_eq!(disk.after_power_loss(&mut Dice(0)).peek(0..4096), [0; 4096], "such dice lose all");
}

#[test]
fn chance_finds_every_outcome_and_no_other() {
    let mut disk = SimulatedDisk::new(4 * BLOCK_BYTES);
    for (fill, count) in [(1, 1), (2, 3), (3, 2)] {
        disk.write(0, &atoms(fill, count)).unwrap();
        disk.write(4096, &atoms(fill, 1)).unwrap();
    }
    let listed = outcomes(&disk, 0);
    // Its first atom is nothing, 1, 2 or 3, its second nothing, 2 or 3, its third nothing or 2; the other block as the first.
    assert_eq!(listed.len(), 4 * 3 * 2 * 4);
    let mut dice = Dice(11);
    let seen: BTreeSet<Vec<u8>> = (0..20_000)
        .map(|_| disk.after_power_loss(&mut dice).peek(0..8192).into_iter().step_by(ATOM_BYTES).collect())
        .collect();
    assert!(seen == listed, "{} of {}", seen.len(), listed.len());
}

#[test]
fn a_copy_is_another_disk_and_a_clone_the_same() {
    let mut disk = SimulatedDisk::new(4 * BLOCK_BYTES);
    disk.write(0, &block(1)).unwrap();
    let (mut copy, clone) = (disk.after_restart(), disk.clone());
    copy.write(0, &block(2)).unwrap();
    assert_eq!((disk.peek(0..1), copy.peek(0..1), clone.peek(0..1)), (vec![1], vec![2], vec![1]));
}

#[test]
fn power_is_lost_for_good() {
    let mut disk = SimulatedDisk::new(4 * BLOCK_BYTES);
    disk.lose_power_at(2);
    disk.write(0, &block(1)).unwrap();
    assert!(disk.write(4096, &block(2)).is_err());
    assert!(disk.write(8192, &block(3)).is_err());
    assert!(disk.sync().is_err());
    assert!(disk.discard(0, 4096).is_err());
    assert_eq!(disk.peek(4096..4097), [2], "the last write may be there");
    assert_eq!((disk.peek(8192..8193), disk.peek(0..1)), (vec![0], vec![1]), "later ones are not");
    assert_eq!(disk.operations(), 5);
}

#[test]
fn what_cannot_be_read_can_where_it_was_written_again() {
    let mut disk = SimulatedDisk::new(4 * BLOCK_BYTES);
    disk.make_unreadable(4096 + 100..3 * 4096);
    let mut all = Buffer::zeroed(4 * BLOCK_BYTES);
    assert_eq!(disk.read(0, &mut all).unwrap(), 4096 + 100, "short, where the bad bytes start");
    assert!(disk.read(8192, &mut all).is_err());
    disk.write(8192, &block(1)).unwrap();
    assert_eq!(disk.read(0, &mut all).unwrap(), 4096 + 100);
    let mut after = disk.after_restart();
    assert_eq!(after.read(0, &mut all).unwrap(), 4096 + 100, "a restart heals nothing");
    disk.write(4096, &block(1)).unwrap();
    assert_eq!(disk.read(0, &mut all).unwrap(), 4 * BLOCK_BYTES);
}

#[test]
fn a_frozen_sync_waits_and_a_failed_one_leaves_all_open() {
    let mut disk = SimulatedDisk::new(4 * BLOCK_BYTES);
    disk.write(0, &atoms(1, 1)).unwrap();
    disk.freeze();
    let syncing = std::thread::spawn({
        let mut disk = disk.clone();
        move || disk.sync()
    });
    while !disk.holds_a_sync() {
        std::thread::yield_now();
    }
    assert_eq!(outcomes(&disk, 0).len(), 2);
    disk.thaw();
    syncing.join().unwrap().unwrap();
    assert_eq!((outcomes(&disk, 0).len(), disk.traffic().syncs), (1, 1));
    disk.write(0, &atoms(2, 1)).unwrap();
    disk.fail_syncs();
    assert!(disk.sync().is_err());
    assert_eq!(outcomes(&disk, 0).len(), 2);
}

#[test]
fn the_next_write_is_dropped_or_lands_elsewhere() {
    let mut disk = SimulatedDisk::new(4 * BLOCK_BYTES);
    disk.drop_next_write();
    disk.write(0, &block(1)).unwrap();
    disk.write(4096, &block(2)).unwrap();
    assert_eq!((disk.peek(0..1), disk.peek(4096..4097)), (vec![0], vec![2]), "that one alone");
    disk.misdirect_next_write(2 * BLOCK_BYTES);
    disk.write(0, &block(3)).unwrap();
    disk.write(0, &block(4)).unwrap();
    assert_eq!((disk.peek(0..1), disk.peek(8192..8193)), (vec![4], vec![3]));
    let expected = Injected { dropped_writes: 1, misdirected_writes: 1, ..Injected::default() };
    assert_eq!(disk.injected(), expected);
}

/// Writes [`BLOCKS`] blocks with one kind of fault at even odds. Returns the disk, what was injected, and how many of the
/// writes failed.
fn hurt(faults: Faults) -> (SimulatedDisk, Injected, u64) {
    let mut disk = SimulatedDisk::new((BLOCKS as usize + 1) * BLOCK_BYTES);
    disk.misbehave(faults, 7);
    let failed = (0..BLOCKS).filter(|index| disk.write(index * 4096, &block(1)).is_err()).count();
    disk.behave();
    let injected = disk.injected();
    (disk, injected, failed as u64)
}

/// How many of the blocks that were written hold nothing.
fn missing(disk: &SimulatedDisk) -> u64 {
    disk.peek(0..BLOCKS * 4096).chunks(4096).filter(|block| block[0] == 0).count() as u64
}

#[test]
fn without_faults_none_comes() {
    let (disk, injected, failed) = hurt(Faults::default());
    assert_eq!((injected, failed, missing(&disk)), (Injected::default(), 0, 0));
}

#[test]
fn the_same_seed_repeats_every_fault() {
    let faults = Faults { rot: 300, dropped_writes: 300, misdirected_writes: 300, ..Faults::default() };
    let ((one, ..), (two, ..)) = (hurt(faults), hurt(faults));
    assert_eq!(one.peek(0..BLOCKS * 4096), two.peek(0..BLOCKS * 4096));
    assert_eq!(one.injected(), two.injected());
}

#[test]
fn rot_flips_one_bit_of_a_write() {
    let (disk, injected, failed) = hurt(Faults { rot: 500, ..Faults::default() });
    let flipped: Vec<u8> = disk.peek(0..BLOCKS * 4096).into_iter().filter(|byte| *byte != 1).collect();
    assert!(flipped.iter().all(|byte| (byte ^ 1).is_power_of_two()));
    assert!(flipped.iter().collect::<BTreeSet<_>>().len() > 4, "not always the same bit");
    assert!(injected.rot > 30 && flipped.len() as u64 == injected.rot && failed == 0, "{injected:?}");
}

#[test]
fn latent_errors_last_until_the_block_is_written_again() {
    let (mut disk, injected, failed) = hurt(Faults { latent_errors: 500, ..Faults::default() });
    let mut read = block(0);
    let unreadable = (0..BLOCKS).filter(|index| disk.read(index * 4096, &mut read).is_err()).count() as u64;
    assert!(unreadable > 30 && unreadable == injected.latent_errors && failed == 0, "{injected:?}");
    (0..BLOCKS).for_each(|index| disk.write(index * 4096, &block(1)).unwrap());
    assert!((0..BLOCKS).all(|index| disk.read(index * 4096, &mut read).is_ok()));
}

#[test]
fn dropped_and_misdirected_writes_are_called_done() {
    let (disk, injected, failed) = hurt(Faults { dropped_writes: 500, ..Faults::default() });
    assert!(injected.dropped_writes > 30 && missing(&disk) == injected.dropped_writes && failed == 0);
    let (disk, injected, failed) = hurt(Faults { misdirected_writes: 500, ..Faults::default() });
    // A block is missing if its own write went further, and the one before it did not come there.
    let missing = missing(&disk);
    assert!(injected.misdirected_writes > 30 && missing > 0 && missing < injected.misdirected_writes);
    assert_eq!(failed, 0);
}

#[test]
fn only_what_takes_space_finds_none() {
    let faults = Faults { full: 500, ..Faults::default() };
    let (mut disk, injected, failed) = hurt(faults);
    assert!(injected.full > 30 && injected.full == failed && missing(&disk) == failed, "{injected:?}");
    disk.behave();
    disk.allocate(0, BLOCKS / 2 * 4096).unwrap();
    disk.misbehave(Faults { full: 1000, ..faults }, 7);
    disk.allocate(0, BLOCKS / 2 * 4096).unwrap();
    disk.zero(BLOCKS / 2 * 4096, BLOCKS / 2 * 4096).unwrap();
    (0..BLOCKS).for_each(|index| disk.write(index * 4096, &block(1)).unwrap());
    disk.discard(0, 4096).unwrap();
    assert_eq!(disk.write(0, &block(1)).unwrap_err().kind(), ErrorKind::StorageFull, "it was given back");
    assert_eq!(disk.allocate(0, 8192).unwrap_err().kind(), ErrorKind::StorageFull);
    disk.behave();
    disk.allocate(0, 4096).unwrap();
    disk.fail_allocations();
    assert_eq!(disk.allocate(0, 4096).unwrap_err().kind(), ErrorKind::StorageFull);
}

#[test]
fn stalls_are_counted_and_told() {
    let stalls = Arc::new(AtomicU64::new(0));
    let mut disk = SimulatedDisk::new(4 * BLOCK_BYTES);
    disk.on_stall({
        let stalls = stalls.clone();
        move || {
            stalls.fetch_add(1, Ordering::Relaxed);
        }
    });
    disk.misbehave(Faults { stalls: 500, ..Faults::default() }, 7);
    for _ in 0..BLOCKS {
        disk.write(0, &block(1)).unwrap();
        disk.read(0, &mut block(0)).unwrap();
        disk.sync().unwrap();
    }
    let told = stalls.load(Ordering::Relaxed);
    assert!((100..200).contains(&told) && disk.injected().stalls == told, "{told}");
}

/// Tens of thousands of crashes are tried by the tests of the store: a disk must not be copied byte by byte.
#[test]
fn an_outcome_shares_every_block_that_did_not_change() {
    let mut disk = SimulatedDisk::new(64 << 20);
    disk.zero(0, 64 << 20).unwrap();
    disk.sync().unwrap();
    (0..8).for_each(|index| disk.write(index * 4096, &atoms(1, 1)).unwrap());
    // 16 GiB if they were copied.
    let all: Vec<SimulatedDisk> = disk.crash_outcomes(&mut Dice(1), 0).collect();
    assert_eq!(all.len(), 256);
}
