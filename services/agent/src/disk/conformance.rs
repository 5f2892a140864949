//! What every disk does, whatever it is made of: one list of checks for the simulated disk, a file past the page cache and
//! through it, a block device, and a disk that is watched.
//!
//! The block device is a loop device of the test's own. Where none can be had the test says so and checks nothing; with
//! `STRIPESET_LOOP_DEVICE=1` it fails.

use std::{
    os::unix::fs::MetadataExt,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
};

use self::bench::{Bench, LoopDevice, OnDevice, OnFile, OnSimulated, OnWatched, alone};
use super::{
    BLOCK_BYTES, Buffer, Disk, Traffic,
    open::{self, Found},
    simulated::{Dice, SimulatedDisk},
};
use crate::{error::AgentError, layout::DISK_BYTES_MIN};

mod bench;

const BLOCK: u64 = BLOCK_BYTES as u64;
const DISK_BYTES: u64 = DISK_BYTES_MIN;

/// What a device can be cut to: its last block is one part in eight of a block.
const SECTOR_BYTES: u64 = 512;

/// Blocks with one byte everywhere.
fn filled(count: usize, fill: u8) -> Buffer {
    let mut buffer = Buffer::zeroed(count * BLOCK_BYTES);
    buffer.fill(fill);
    buffer
}

/// Blocks of which no two are the same.
fn mixed(count: usize, dice: &mut Dice) -> Buffer {
    let mut buffer = Buffer::zeroed(count * BLOCK_BYTES);
    buffer.as_chunks_mut::<8>().0.iter_mut().for_each(|word| *word = dice.roll().to_le_bytes());
    buffer
}

fn read(disk: &mut dyn Disk, block: u64, count: usize) -> Buffer {
    // What was there before must not pass for what was read.
    let mut buffer = filled(count, 0xee);
    assert_eq!(disk.read(block * BLOCK, &mut buffer).unwrap(), buffer.len());
    buffer
}

/// The first byte of each of some blocks; every other byte of a block has to be the same.
fn fills(disk: &mut dyn Disk, block: u64, count: usize) -> Vec<u8> {
    let buffer = read(disk, block, count);
    let fill = |block: &[u8; BLOCK_BYTES]| {
        assert_eq!(*block, [block[0]; BLOCK_BYTES]);
        block[0]
    };
    buffer.as_chunks().0.iter().map(fill).collect()
}

type Check = fn(&mut dyn Bench);

const CHECKS: [(&str, Check); 14] = [
    ("it has the length it was given", it_has_its_length),
    ("what was never written is zeros", what_was_never_written_is_zeros),
    ("what was written last is read", what_was_written_last_is_read),
    ("large transfers come whole", large_transfers_come_whole),
    ("reads end with the disk", reads_end_with_the_disk),
    ("reads end within a block", reads_end_within_a_block),
    ("zeros replace data", zeros_replace_data),
    ("what was discarded can be written", what_was_discarded_can_be_written),
    ("bytes stay where space is taken", bytes_stay_where_space_is_taken),
    ("a sync may come at any time", a_sync_may_come_at_any_time),
    ("parts of blocks are a fault of the caller", parts_of_blocks_are_a_fault_of_the_caller),
    ("bytes stay when it is closed", bytes_stay_when_it_is_closed),
    ("traffic is counted", traffic_is_counted),
    ("it does what memory does", it_does_what_memory_does),
];

fn suite(bench: &mut dyn Bench) {
    for (name, check) in CHECKS {
        // Seen if it fails.
        eprintln!("check: {name}");
        check(bench);
    }
}

fn it_has_its_length(bench: &mut dyn Bench) {
    for bytes in [DISK_BYTES, DISK_BYTES + SECTOR_BYTES] {
        assert_eq!(bench.blank(bytes).bytes(), bytes);
        assert_eq!(bench.again().bytes(), bytes);
    }
}

fn what_was_never_written_is_zeros(bench: &mut dyn Bench) {
    let disk = &mut *bench.blank(DISK_BYTES);
    disk.write(8 * BLOCK, &filled(1, 1)).unwrap();
    assert_eq!(fills(disk, 0, 8), [0; 8]);
    assert_eq!(fills(disk, DISK_BYTES / BLOCK - 2, 2), [0; 2]);
    assert_eq!(fills(disk, 7, 3), [0, 1, 0]);
}

fn what_was_written_last_is_read(bench: &mut dyn Bench) {
    let disk = &mut *bench.blank(DISK_BYTES);
    disk.write(BLOCK, &filled(3, 1)).unwrap();
    disk.write(2 * BLOCK, &filled(3, 2)).unwrap();
    assert_eq!(fills(disk, 0, 6), [0, 1, 2, 2, 2, 0]);
    disk.sync().unwrap();
    disk.write(BLOCK, &filled(1, 3)).unwrap();
    disk.write(0, &filled(2, 4)).unwrap();
    disk.write(0, &filled(1, 5)).unwrap();
    disk.write(3 * BLOCK, &Buffer::default()).unwrap();
    assert_eq!(fills(disk, 0, 6), [5, 4, 2, 2, 2, 0]);
}

fn large_transfers_come_whole(bench: &mut dyn Bench) {
    let disk = &mut *bench.blank(DISK_BYTES);
    let large = mixed(5 << 8, &mut Dice(3));
    disk.write(3 * BLOCK, &large).unwrap();
    assert!(*read(disk, 3, 5 << 8) == *large);
    disk.sync().unwrap();
    assert!(*read(disk, 3, 5 << 8) == *large);
}

fn reads_end_with_the_disk(bench: &mut dyn Bench) {
    let disk = &mut *bench.blank(DISK_BYTES);
    let last = DISK_BYTES - BLOCK;
    disk.write(last, &filled(1, 9)).unwrap();
    let mut buffer = filled(4, 7);
    assert_eq!(disk.read(last, &mut buffer).unwrap(), BLOCK_BYTES);
    assert_eq!(buffer[..BLOCK_BYTES], [9; BLOCK_BYTES]);
    assert_eq!(disk.read(DISK_BYTES, &mut buffer).unwrap(), 0);
    assert_eq!(disk.read(DISK_BYTES + 16 * BLOCK, &mut buffer).unwrap(), 0);
    let written = catch_unwind(AssertUnwindSafe(|| disk.write(last, &filled(2, 1))));
    assert!(written.is_err(), "a disk does not grow");
    assert_eq!(disk.read(DISK_BYTES, &mut buffer).unwrap(), 0);
}

fn reads_end_within_a_block(bench: &mut dyn Bench) {
    let disk = &mut *bench.blank(DISK_BYTES + SECTOR_BYTES);
    let last = DISK_BYTES - BLOCK;
    disk.write(last, &filled(1, 9)).unwrap();
    let mut buffer = filled(4, 7);
    assert_eq!(disk.read(last, &mut buffer).unwrap() as u64, BLOCK + SECTOR_BYTES);
    assert_eq!(buffer[..BLOCK_BYTES], [9; BLOCK_BYTES]);
    assert_eq!(buffer[BLOCK_BYTES..][..SECTOR_BYTES as usize], [0; SECTOR_BYTES as usize]);
    assert_eq!(disk.read(DISK_BYTES, &mut buffer).unwrap() as u64, SECTOR_BYTES);
}

fn zeros_replace_data(bench: &mut dyn Bench) {
    let disk = &mut *bench.blank(DISK_BYTES);
    disk.write(16 * BLOCK, &filled(8, 5)).unwrap();
    disk.zero(17 * BLOCK, 2 * BLOCK).unwrap();
    assert_eq!(fills(disk, 16, 8), [5, 0, 0, 5, 5, 5, 5, 5]);
    disk.write(18 * BLOCK, &filled(1, 6)).unwrap();
    assert_eq!(fills(disk, 16, 4), [5, 0, 6, 5]);
    // More than one write of zeros, and not a multiple of it.
    disk.write(32 * BLOCK, &filled(771, 7)).unwrap();
    disk.zero(33 * BLOCK, 769 * BLOCK).unwrap();
    assert_eq!(
        (fills(disk, 32, 1), fills(disk, 33, 769), fills(disk, 802, 1)),
        (vec![7], vec![0; 769], vec![7])
    );
    disk.zero(DISK_BYTES - BLOCK, BLOCK).unwrap();
    disk.zero(0, 0).unwrap();
    assert_eq!(disk.bytes(), DISK_BYTES);
}

fn what_was_discarded_can_be_written(bench: &mut dyn Bench) {
    let disk = &mut *bench.blank(DISK_BYTES);
    disk.write(16 * BLOCK, &filled(8, 5)).unwrap();
    disk.sync().unwrap();
    disk.discard(18 * BLOCK, 4 * BLOCK).unwrap();
    assert_eq!((fills(disk, 16, 2), fills(disk, 22, 2)), (vec![5, 5], vec![5, 5]), "neighbours stay");
    assert_eq!(read(disk, 18, 4).len(), 4 * BLOCK_BYTES, "it can be read, whatever it is");
    disk.write(19 * BLOCK, &filled(2, 6)).unwrap();
    disk.sync().unwrap();
    assert_eq!(fills(disk, 19, 2), [6, 6]);
}

fn bytes_stay_where_space_is_taken(bench: &mut dyn Bench) {
    let disk = &mut *bench.blank(DISK_BYTES);
    disk.write(16 * BLOCK, &filled(2, 5)).unwrap();
    disk.allocate(15 * BLOCK, 4 * BLOCK).unwrap();
    assert_eq!(fills(disk, 15, 4), [0, 5, 5, 0]);
    disk.write(17 * BLOCK, &filled(2, 6)).unwrap();
    disk.allocate(DISK_BYTES - BLOCK, BLOCK).unwrap();
    assert_eq!((fills(disk, 15, 4), disk.bytes()), (vec![0, 5, 6, 6], DISK_BYTES));
}

fn a_sync_may_come_at_any_time(bench: &mut dyn Bench) {
    let disk = &mut *bench.blank(DISK_BYTES);
    disk.sync().unwrap();
    disk.write(0, &filled(1, 1)).unwrap();
    disk.sync().unwrap();
    disk.sync().unwrap();
    assert_eq!(fills(disk, 0, 2), [1, 0]);
}

fn parts_of_blocks_are_a_fault_of_the_caller(bench: &mut dyn Bench) {
    let disk = &mut *bench.blank(DISK_BYTES);
    let mut refused = |what: &str, operation: &mut dyn FnMut(&mut dyn Disk)| {
        let outcome = catch_unwind(AssertUnwindSafe(|| operation(disk)));
        assert!(outcome.is_err(), "{what}");
    };
    for offset in [1, 512, BLOCK + 2048] {
        refused("write", &mut |disk| disk.write(offset, &filled(1, 1)).unwrap());
        refused("read", &mut |disk| assert!(disk.read(offset, &mut filled(1, 1)).is_ok()));
        refused("discard", &mut |disk| disk.discard(offset, BLOCK).unwrap());
        refused("allocate", &mut |disk| disk.allocate(0, offset).unwrap());
        refused("zero", &mut |disk| disk.zero(BLOCK, offset).unwrap());
    }
    assert_eq!(fills(disk, 0, 4), [0; 4]);
}

fn bytes_stay_when_it_is_closed(bench: &mut dyn Bench) {
    let bytes = mixed(5, &mut Dice(4));
    let mut disk = bench.blank(DISK_BYTES);
    disk.write(64 * BLOCK, &bytes).unwrap();
    disk.sync().unwrap();
    // The machine stays up: this one needs no sync.
    disk.write(128 * BLOCK, &bytes).unwrap();
    drop(disk);
    let disk = &mut *bench.again();
    assert!(*read(disk, 64, 5) == *bytes && *read(disk, 128, 5) == *bytes);
}

fn traffic_is_counted(bench: &mut dyn Bench) {
    let disk = &mut *bench.blank(DISK_BYTES);
    let before = disk.traffic();
    disk.write(0, &filled(2, 1)).unwrap();
    disk.read(0, &mut filled(3, 0)).unwrap();
    disk.read(DISK_BYTES - BLOCK, &mut filled(3, 0)).unwrap();
    disk.sync().unwrap();
    let after = disk.traffic();
    assert_eq!(after.bytes_written - before.bytes_written, 2 * BLOCK);
    assert_eq!(after.bytes_read - before.bytes_read, 4 * BLOCK, "what came, not what was asked for");
    assert_eq!(after.syncs - before.syncs, 1);
}

fn it_does_what_memory_does(bench: &mut dyn Bench) {
    const BLOCKS: usize = 256;
    let mut disk = bench.blank(DISK_BYTES);
    let (mut memory, mut dice) = (vec![0_u8; BLOCKS * BLOCK_BYTES], Dice(0x5eed));
    for step in 0..600 {
        let first = dice.roll() as usize % BLOCKS;
        let count = 1 + dice.roll() as usize % (BLOCKS - first).min(32);
        let (offset, length) = (first as u64 * BLOCK, count as u64 * BLOCK);
        let place = first * BLOCK_BYTES..(first + count) * BLOCK_BYTES;
        match dice.roll() % 10 {
            0 => disk.sync().unwrap(),
            1 => {
                disk.zero(offset, length).unwrap();
                memory[place].fill(0);
            }
            2 => disk.allocate(offset, length).unwrap(),
            3 => {
                let bytes = mixed(count, &mut dice);
                disk.discard(offset, length).unwrap();
                disk.write(offset, &bytes).unwrap();
                memory[place].copy_from_slice(&bytes);
            }
            4 => {
                drop(disk);
                disk = bench.again();
            }
            5 | 6 => {
                let bytes = mixed(count, &mut dice);
                disk.write(offset, &bytes).unwrap();
                memory[place].copy_from_slice(&bytes);
            }
            _ => assert!(*read(&mut *disk, first as u64, count) == memory[place], "step {step}"),
        }
    }
    assert!(*read(&mut *disk, 0, BLOCKS) == memory[..]);
}

#[test]
fn a_simulated_disk_conforms() {
    suite(&mut OnSimulated(SimulatedDisk::new(0)));
}

#[test]
fn a_file_conforms_past_the_page_cache() {
    let _alone = alone();
    suite(&mut OnFile::new(false));
}

#[test]
fn a_file_conforms_through_the_page_cache() {
    let _alone = alone();
    suite(&mut OnFile::new(true));
}

#[test]
fn a_watched_file_conforms() {
    let _alone = alone();
    suite(&mut OnWatched(OnFile::new(false)));
}

#[test]
fn a_block_device_conforms() {
    let _alone = alone();
    let Some(device) = LoopDevice::try_attach() else { return };
    suite(&mut OnDevice::new(device));
}

#[test]
fn a_blank_device_is_taken_and_one_with_bytes_is_not_blank() {
    let _alone = alone();
    let Some(device) = LoopDevice::try_attach() else { return };
    let Ok(Found::Blank(mut disk)) = open::open(&device.path, None) else { panic!("it is blank") };
    disk.write(DISK_BYTES - BLOCK, &filled(1, 1)).unwrap();
    assert!(matches!(open::open(&device.path, None), Err(AgentError::InUse { .. })), "open already");
    drop(disk);
    let Ok(Found::Blank(mut disk)) = open::open(&device.path, None) else { panic!("its first MiB is") };
    disk.write((1 << 20) - BLOCK, &filled(1, 1)).unwrap();
    drop(disk);
    let other = Some(2 * DISK_BYTES);
    assert!(matches!(open::open(&device.path, other), Err(AgentError::SizeMismatch { .. })));
    assert!(matches!(open::open(&device.path, None), Ok(Found::Used(_))));
}

#[test]
fn a_blank_file_is_taken_and_one_with_bytes_is_not_blank() {
    let _alone = alone();
    let bench = OnFile::new(false);
    let path = bench.path();
    assert!(matches!(open::open(&path, None), Err(AgentError::Absent { .. })));
    assert!(matches!(open::open(&path, Some(BLOCK)), Err(AgentError::TooSmall { .. })));
    let Ok(Found::Blank(disk)) = open::open(&path, Some(DISK_BYTES)) else { panic!("it is blank") };
    assert_eq!(disk.traffic(), Traffic::default(), "what opening reads is nobody's");
    assert!(matches!(open::open(&path, None), Err(AgentError::InUse { .. })), "open already");
    drop(disk);
    let Ok(Found::Blank(mut disk)) = open::open(&path, None) else { panic!("nothing was written") };
    disk.write(DISK_BYTES - BLOCK, &filled(1, 0)).unwrap();
    disk.sync().unwrap();
    drop(disk);
    assert!(matches!(open::open(&path, Some(2 * DISK_BYTES)), Err(AgentError::SizeMismatch { .. })));
    assert!(matches!(open::open(&path, None), Ok(Found::Used(_))), "one block, though zeros");
    assert!(matches!(open::open(bench.folder.path(), None), Err(AgentError::Directory { .. })));
    assert!(matches!(open::open(Path::new("/dev/null"), None), Err(AgentError::NotAFile { .. })));
}

#[test]
fn a_file_takes_space_and_gives_it_back() {
    let _alone = alone();
    let mut bench = OnFile::new(false);
    let path = bench.path();
    let disk = &mut *bench.blank(DISK_BYTES);
    let mut space = |operation: &mut dyn FnMut(&mut dyn Disk)| {
        operation(disk);
        disk.sync().unwrap();
        std::fs::metadata(&path).unwrap().blocks() * 512
    };
    let nothing = space(&mut |_| ());
    let allocated = space(&mut |disk| disk.allocate(0, 1 << 20).unwrap());
    let zeroed = space(&mut |disk| disk.zero(1 << 20, 1 << 20).unwrap());
    let given_back = space(&mut |disk| disk.discard(0, 2 << 20).unwrap());
    assert!(nothing < 1 << 20 && (1 << 20..2 << 20).contains(&allocated), "{nothing} {allocated}");
    assert!(zeroed >= 2 << 20 && given_back < 1 << 20, "{zeroed} {given_back}");
}
