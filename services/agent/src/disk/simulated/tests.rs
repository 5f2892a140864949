//! The simulated disk does what it says: every fault is seen, and the outcomes of a crash are counted.

use super::*;

const SAMPLES: usize = 64;

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

/// The first bytes of each atom of the first block, in all outcomes.
fn outcomes(disk: &SimulatedDisk) -> BTreeSet<Vec<u8>> {
    let first_bytes = |disk: SimulatedDisk| disk.peek(0..4096).iter().step_by(ATOM_BYTES).copied().collect();
    let mut dice = Dice(1);
    let all: Vec<Vec<u8>> = disk.crash_outcomes(&mut dice, SAMPLES).into_iter().map(first_bytes).collect();
    let distinct: BTreeSet<_> = all.iter().cloned().collect();
    assert_eq!(all.len(), distinct.len(), "none twice");
    distinct
}

#[test]
fn few_open_atoms_have_every_outcome() {
    let mut disk = SimulatedDisk::new(4 * BLOCK_BYTES);
    assert_eq!(outcomes(&disk).len(), 1);
    disk.write(0, &atoms(1, 1)).unwrap();
    assert_eq!(outcomes(&disk).len(), 2);
    disk.write(0, &atoms(1, 1)).unwrap();
    assert_eq!(outcomes(&disk).len(), 2, "the same bytes again");
    disk.write(0, &atoms(2, 2)).unwrap();
    // Nothing, 1 or 2 in the first atom - the older write may come last - and nothing or 2 in the second.
    assert_eq!(outcomes(&disk).len(), 6);
    assert!(outcomes(&disk).contains(&vec![1, 2, 0, 0, 0, 0, 0, 0]));
    disk.sync().unwrap();
    assert_eq!(outcomes(&disk), BTreeSet::from([vec![2, 2, 0, 0, 0, 0, 0, 0]]));
}

#[test]
fn of_many_open_atoms_each_write_is_lost_kept_and_torn() {
    let mut disk = SimulatedDisk::new(4 * BLOCK_BYTES);
    disk.write(0, &block(1)).unwrap();
    disk.write(0, &block(2)).unwrap();
    let outcomes = outcomes(&disk);
    for expected in
        [[0; 8], [1; 8], [2; 8], [2, 2, 2, 2, 0, 0, 0, 0], [0, 0, 0, 0, 1, 1, 1, 1], [2, 2, 2, 2, 1, 1, 1, 1]]
    {
        assert!(outcomes.contains(expected.as_slice()), "{expected:?}");
    }
    assert!(outcomes.len() > 40, "{}", outcomes.len());
}

#[test]
fn a_copy_is_another_disk() {
    let mut disk = SimulatedDisk::new(4 * BLOCK_BYTES);
    disk.write(0, &block(1)).unwrap();
    let mut copy = disk.after_restart();
    copy.write(0, &block(2)).unwrap();
    assert_eq!((disk.peek(0..1), copy.peek(0..1)), (vec![1], vec![2]));
}

#[test]
fn power_is_lost_for_good() {
    let mut disk = SimulatedDisk::new(4 * BLOCK_BYTES);
    disk.lose_power_at(2);
    disk.write(0, &block(1)).unwrap();
    assert!(disk.write(4096, &block(2)).is_err());
    assert!(disk.write(8192, &block(3)).is_err());
    assert!(disk.sync().is_err());
    assert_eq!(disk.peek(4096..4097), [2], "the last write may be there");
    assert_eq!(disk.peek(8192..8193), [0], "later ones are not");
}

/// Writes a hundred blocks with one kind of fault at even odds. Returns the disk and what was injected.
fn hurt(faults: Faults) -> (SimulatedDisk, Injected, u64) {
    let mut disk = SimulatedDisk::new(101 * BLOCK_BYTES);
    disk.misbehave(faults, 7);
    let failed = (0..100).filter(|index| disk.write(index * 4096, &block(1)).is_err()).count();
    disk.behave();
    let injected = disk.injected();
    (disk, injected, failed as u64)
}

#[test]
fn every_fault_comes_when_it_is_asked_for() {
    let (mut read, faults) = (block(0), Faults::default());
    assert_eq!(hurt(faults).1, Injected::default());
    let (disk, injected, failed) = hurt(Faults { rot: 500, ..faults });
    let flipped = disk.peek(0..409_600).iter().filter(|byte| **byte != 1).count() as u64;
    assert!(injected.rot > 30 && flipped == injected.rot && failed == 0, "{injected:?}");
    let (mut disk, injected, _) = hurt(Faults { latent_errors: 500, ..faults });
    let unreadable = (0..100).filter(|index| disk.read(index * 4096, &mut read).is_err()).count() as u64;
    assert!(unreadable > 30 && unreadable == injected.latent_errors, "{injected:?}");
    (0..100).for_each(|index| disk.write(index * 4096, &block(1)).unwrap());
    assert!((0..100).all(|index| disk.read(index * 4096, &mut read).is_ok()), "written again");
    let (disk, injected, failed) = hurt(Faults { dropped_writes: 500, ..faults });
    let missing = disk.peek(0..409_600).chunks(4096).filter(|block| block[0] == 0).count() as u64;
    assert!(missing > 30 && missing == injected.dropped_writes && failed == 0, "{injected:?}");
    let (disk, injected, failed) = hurt(Faults { misdirected_writes: 500, ..faults });
    assert!(injected.misdirected_writes > 30 && failed == 0);
    assert!(disk.peek(0..409_600).chunks(4096).any(|block| block[0] == 0));
    let (mut disk, injected, failed) = hurt(Faults { full: 500, ..faults });
    assert!(injected.full > 30 && injected.full == failed, "{injected:?}");
    disk.misbehave(Faults { full: 1000, ..faults }, 7);
    disk.allocate(0, 409_600).unwrap();
    (0..100).for_each(|index| disk.write(index * 4096, &block(1)).unwrap());
    assert!(hurt(Faults { stalls: 500, ..faults }).1.stalls > 30);
}
