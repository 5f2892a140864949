//! What every disk does, whatever it is made of: one suite for the simulated disk, a file past the page cache and through
//! it, a block device, and a disk that is watched.
//!
//! The block device is a loop device of the test's own. Where none can be had the suite says so and is left out - but not
//! in CI as root, where it has to run.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    process::Command,
};

use tempfile::TempDir;

use super::{
    BLOCK_BYTES, Buffer, Disk,
    file::FileDisk,
    open::{self, Found},
    simulated::{Dice, SimulatedDisk},
    watched::Watched,
};
use crate::{error::AgentError, layout::DISK_BYTES_MIN};

const BLOCK: u64 = BLOCK_BYTES as u64;
const DISK_BYTES: u64 = DISK_BYTES_MIN;

/// A disk that can be closed and opened again. Its first [`DISK_BYTES`] are zeros when the suite begins.
trait Bench {
    fn open(&mut self) -> Box<dyn Disk>;
}

impl Bench for SimulatedDisk {
    fn open(&mut self) -> Box<dyn Disk> {
        *self = self.after_restart();
        Box::new(self.clone())
    }
}

struct OnPath {
    path: PathBuf,
    device: bool,
    buffered: bool,
}

impl Bench for OnPath {
    fn open(&mut self) -> Box<dyn Disk> {
        let file = std::fs::OpenOptions::new().read(true).write(true).open(&self.path).unwrap();
        let disk = FileDisk::new(file, DISK_BYTES, self.device);
        let disk = if self.buffered { disk.buffered() } else { disk };
        assert!(!(self.buffered && disk.direct()));
        Box::new(disk)
    }
}

/// A buffer of blocks with one byte everywhere.
fn blocks(count: usize, fill: u8) -> Buffer {
    let mut buffer = Buffer::zeroed(count * BLOCK_BYTES);
    buffer.fill(fill);
    buffer
}

/// The first byte of each block of a range; every other byte of a block has to be the same.
fn fills(disk: &mut dyn Disk, offset: u64, count: usize) -> Vec<u8> {
    let mut buffer = Buffer::zeroed(count * BLOCK_BYTES);
    assert_eq!(disk.read(offset, &mut buffer).unwrap(), buffer.len());
    let fill = |block: &[u8]| {
        assert!(block.iter().all(|byte| *byte == block[0]));
        block[0]
    };
    buffer.chunks_exact(BLOCK_BYTES).map(fill).collect()
}

fn suite(bench: &mut dyn Bench) {
    let checks: [fn(&mut dyn Disk); 6] = [
        the_last_write_is_read,
        large_transfers_come_whole,
        reads_end_with_the_disk,
        zeroed_discarded_and_allocated_ranges_can_be_written,
        traffic_is_counted,
        what_is_not_aligned_is_a_fault_of_the_caller,
    ];
    for check in checks {
        check(&mut *bench.open());
    }
    bytes_stay_when_it_is_closed(bench);
    it_does_what_memory_does(bench);
}

fn the_last_write_is_read(disk: &mut dyn Disk) {
    assert_eq!(disk.bytes(), DISK_BYTES);
    assert_eq!(fills(disk, 0, 8), [0; 8], "never written");
    disk.write(BLOCK, &blocks(3, 1)).unwrap();
    disk.write(2 * BLOCK, &blocks(3, 2)).unwrap();
    assert_eq!(fills(disk, 0, 6), [0, 1, 2, 2, 2, 0]);
    disk.sync().unwrap();
    disk.write(BLOCK, &blocks(1, 3)).unwrap();
    assert_eq!(fills(disk, 0, 6), [0, 3, 2, 2, 2, 0]);
}

fn large_transfers_come_whole(disk: &mut dyn Disk) {
    let mut large = Buffer::zeroed(4 << 20);
    large
        .chunks_exact_mut(BLOCK_BYTES)
        .zip(0_u32..)
        .for_each(|(block, index)| block.fill((index % 251) as u8));
    disk.write(1 << 20, &large).unwrap();
    disk.sync().unwrap();
    let mut read = Buffer::zeroed(large.len());
    assert_eq!(disk.read(1 << 20, &mut read).unwrap(), read.len());
    assert!(*read == *large);
}

fn reads_end_with_the_disk(disk: &mut dyn Disk) {
    let last = DISK_BYTES - BLOCK;
    disk.write(last, &blocks(1, 9)).unwrap();
    let mut read = blocks(4, 7);
    assert_eq!(disk.read(last, &mut read).unwrap(), BLOCK_BYTES, "short");
    assert!(read[..BLOCK_BYTES].iter().all(|byte| *byte == 9));
    assert_eq!(disk.read(DISK_BYTES, &mut read).unwrap(), 0);
    assert_eq!(disk.read(DISK_BYTES + 16 * BLOCK, &mut read).unwrap(), 0);
}

fn zeroed_discarded_and_allocated_ranges_can_be_written(disk: &mut dyn Disk) {
    disk.write(16 * BLOCK, &blocks(8, 5)).unwrap();
    disk.zero(17 * BLOCK, 2 * BLOCK).unwrap();
    disk.allocate(16 * BLOCK, 8 * BLOCK).unwrap();
    assert_eq!(fills(disk, 16 * BLOCK, 8), [5, 0, 0, 5, 5, 5, 5, 5], "neighbours stay");
    disk.discard(20 * BLOCK, 2 * BLOCK).unwrap();
    let (before, after) = (fills(disk, 16 * BLOCK, 4), fills(disk, 22 * BLOCK, 2));
    assert_eq!((before, after), (vec![5, 0, 0, 5], vec![5, 5]), "neighbours stay");
    disk.write(17 * BLOCK, &blocks(4, 6)).unwrap();
    disk.sync().unwrap();
    assert_eq!(fills(disk, 16 * BLOCK, 5), [5, 6, 6, 6, 6]);
    disk.zero(2 << 20, 3 << 20).unwrap();
    assert_eq!(fills(disk, 2 << 20, 768), [0; 768]);
}

fn traffic_is_counted(disk: &mut dyn Disk) {
    let before = disk.traffic();
    disk.write(0, &blocks(2, 1)).unwrap();
    disk.read(0, &mut blocks(3, 0)).unwrap();
    disk.sync().unwrap();
    let after = disk.traffic();
    let counted = (
        after.bytes_written - before.bytes_written,
        after.bytes_read - before.bytes_read,
        after.syncs - before.syncs,
    );
    assert_eq!(counted, (2 * BLOCK, 3 * BLOCK, 1));
}

fn what_is_not_aligned_is_a_fault_of_the_caller(disk: &mut dyn Disk) {
    for offset in [1, 512, BLOCK + 2048] {
        let written = catch_unwind(AssertUnwindSafe(|| disk.write(offset, &blocks(1, 1))));
        assert!(written.is_err(), "written at {offset}");
    }
    for offset in [1, 512] {
        let read = catch_unwind(AssertUnwindSafe(|| disk.read(offset, &mut blocks(1, 1))));
        assert!(read.is_err(), "read at {offset}");
    }
}

fn bytes_stay_when_it_is_closed(bench: &mut dyn Bench) {
    let mut disk = bench.open();
    disk.write(64 * BLOCK, &blocks(5, 8)).unwrap();
    disk.sync().unwrap();
    drop(disk);
    assert_eq!(fills(&mut *bench.open(), 64 * BLOCK, 5), [8; 5]);
}

fn it_does_what_memory_does(bench: &mut dyn Bench) {
    const BLOCKS: usize = 256;
    let mut disk = bench.open();
    disk.zero(0, BLOCKS as u64 * BLOCK).unwrap();
    let (mut memory, mut dice) = (vec![0; BLOCKS], Dice(0x5eed));
    for step in 0..600 {
        let first = dice.roll() as usize % BLOCKS;
        let count = 1 + dice.roll() as usize % (BLOCKS - first).min(32);
        let (offset, length) = (first as u64 * BLOCK, count as u64 * BLOCK);
        match dice.roll() % 8 {
            0 => disk.sync().unwrap(),
            1 => {
                disk.zero(offset, length).unwrap();
                memory[first..first + count].fill(0);
            }
            2 => disk.allocate(offset, length).unwrap(),
            3 => {
                drop(disk);
                disk = bench.open();
            }
            4 | 5 => {
                let fill = dice.roll() as u8;
                disk.write(offset, &blocks(count, fill)).unwrap();
                memory[first..first + count].fill(fill);
            }
            _ => assert_eq!(fills(&mut *disk, offset, count), memory[first..first + count], "step {step}"),
        }
    }
    assert_eq!(fills(&mut *disk, 0, BLOCKS), memory);
}

#[test]
fn a_simulated_disk_conforms() {
    suite(&mut SimulatedDisk::new(DISK_BYTES as usize));
}

#[test]
fn a_watched_disk_conforms() {
    struct OnWatched(SimulatedDisk);
    impl Bench for OnWatched {
        fn open(&mut self) -> Box<dyn Disk> {
            Box::new(Watched::new(self.0.open()).0)
        }
    }
    suite(&mut OnWatched(SimulatedDisk::new(DISK_BYTES as usize)));
}

fn file() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk");
    std::fs::File::create(&path).unwrap().set_len(DISK_BYTES).unwrap();
    (folder, path)
}

#[test]
fn a_file_conforms_past_the_page_cache_and_through_it() {
    for buffered in [false, true] {
        let (_folder, path) = file();
        suite(&mut OnPath { path, device: false, buffered });
    }
}

#[test]
fn a_file_that_ends_within_a_block_reads_short() {
    let (_folder, path) = file();
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(BLOCK + 100).unwrap();
    let file = std::fs::File::open(&path).unwrap();
    let mut disk = FileDisk::new(file, BLOCK + 100, false);
    assert_eq!(disk.read(0, &mut blocks(2, 1)).unwrap(), BLOCK_BYTES + 100);
}

/// A loop device over a file, detached when it is dropped.
struct LoopDevice {
    _folder: TempDir,
    path: PathBuf,
}

impl LoopDevice {
    /// `None` if none can be had here, and need not be.
    fn new() -> Option<LoopDevice> {
        let (folder, file) = file();
        match attach(&file) {
            Ok(path) => Some(LoopDevice { _folder: folder, path }),
            Err(why) => {
                let required = std::env::var_os("CI").is_some() && rustix::process::geteuid().is_root();
                assert!(!required, "no loop device: {why}");
                eprintln!("no loop device ({why}): the suite does not run on a block device");
                None
            }
        }
    }
}

fn attach(file: &Path) -> Result<PathBuf, String> {
    let output = Command::new("losetup").args(["--find", "--show"]).arg(file).output();
    let output = output.map_err(|error| error.to_string())?;
    let path = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    if output.status.success() {
        Ok(path.into())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let detached = Command::new("losetup").arg("--detach").arg(&self.path).status();
        if !detached.is_ok_and(|status| status.success()) {
            eprintln!("{} could not be detached", self.path.display());
        }
    }
}

#[test]
fn a_block_device_conforms() {
    let Some(device) = LoopDevice::new() else { return };
    suite(&mut OnPath { path: device.path.clone(), device: true, buffered: false });
}

#[test]
fn a_blank_device_is_taken_and_one_with_bytes_is_not_blank() {
    let Some(device) = LoopDevice::new() else { return };
    let Ok(Found::Blank(mut disk)) = open::open(&device.path, None) else { panic!("it is blank") };
    disk.write(128 * BLOCK, &blocks(1, 1)).unwrap();
    disk.sync().unwrap();
    assert!(matches!(open::open(&device.path, None), Err(AgentError::InUse { .. })), "open already");
    drop(disk);
    let other = Some(2 * DISK_BYTES);
    assert!(matches!(open::open(&device.path, other), Err(AgentError::SizeMismatch { .. })));
    assert!(matches!(open::open(&device.path, None), Ok(Found::Used(_))));
}

#[test]
fn buffers_are_aligned_and_keep_what_they_hold() {
    for length in [BLOCK_BYTES, 3 * BLOCK_BYTES, 1 << 20] {
        let mut buffer = Buffer::zeroed(length);
        assert!(buffer.as_ptr().addr().is_multiple_of(BLOCK_BYTES) && buffer.len() == length);
        assert!(buffer.iter().all(|byte| *byte == 0));
        buffer.fill(3);
        buffer.resize(BLOCK_BYTES);
        assert_eq!(buffer.len(), BLOCK_BYTES);
        buffer.resize(2 * length);
        assert!(buffer.as_ptr().addr().is_multiple_of(BLOCK_BYTES) && buffer.len() == 2 * length);
        assert_eq!(buffer.into_bytes().len(), 2 * length);
    }
    assert_eq!(Buffer::zeroed(0).into_bytes().len(), 0);
    assert!(catch_unwind(|| Buffer::zeroed(100)).is_err());
}
