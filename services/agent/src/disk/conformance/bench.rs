//! The kinds of disks that the checks run on, and how a test has a block device of its own.

use std::{
    io::Write,
    path::{Path, PathBuf},
    process::Command,
    sync::{Mutex, MutexGuard, PoisonError},
};

use tempfile::TempDir;

use super::{BLOCK, DISK_BYTES};
use crate::disk::{
    Disk,
    file::FileDisk,
    open::{self, Found},
    simulated::SimulatedDisk,
    watched::Watched,
};

/// A program that a test starts has the files of all tests open for a moment, and their locks with them: what was closed
/// could not be opened again. So tests that start one or open files run one after the other.
pub(super) fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A kind of disk. None that it gave is open when it is asked for the next.
pub(super) trait Bench {
    /// A disk that holds nothing.
    fn blank(&mut self, bytes: u64) -> Box<dyn Disk>;

    /// The same disk as the next process finds it.
    fn again(&mut self) -> Box<dyn Disk>;
}

pub(super) struct OnSimulated(pub(super) SimulatedDisk);

impl Bench for OnSimulated {
    fn blank(&mut self, bytes: u64) -> Box<dyn Disk> {
        self.0 = SimulatedDisk::new(bytes as usize);
        Box::new(self.0.clone())
    }

    fn again(&mut self) -> Box<dyn Disk> {
        self.0 = self.0.after_restart();
        Box::new(self.0.clone())
    }
}

pub(super) struct OnWatched<B>(pub(super) B);

impl<B: Bench> Bench for OnWatched<B> {
    fn blank(&mut self, bytes: u64) -> Box<dyn Disk> {
        Box::new(Watched::new(self.0.blank(bytes)).0)
    }

    fn again(&mut self) -> Box<dyn Disk> {
        Box::new(Watched::new(self.0.again()).0)
    }
}

pub(super) struct OnFile {
    pub(super) folder: TempDir,
    buffered: bool,
}

impl OnFile {
    pub(super) fn new(buffered: bool) -> OnFile {
        OnFile { folder: tempfile::tempdir().unwrap(), buffered }
    }

    pub(super) fn path(&self) -> PathBuf {
        self.folder.path().join("disk")
    }

    fn open(&self, size: Option<u64>) -> Box<dyn Disk> {
        let disk = opened(&self.path(), size);
        if self.buffered {
            let disk = disk.buffered();
            assert!(!disk.direct());
            return Box::new(disk);
        }
        if !disk.direct() {
            eprintln!(
                "{} takes no direct reads: the checks go through the page cache",
                self.path().display()
            );
        }
        Box::new(disk)
    }
}

impl Bench for OnFile {
    fn blank(&mut self, bytes: u64) -> Box<dyn Disk> {
        let _ = std::fs::remove_file(self.path());
        self.open(Some(bytes))
    }

    fn again(&mut self) -> Box<dyn Disk> {
        self.open(None)
    }
}

/// A device for each length that is asked for: to attach one takes a program, see [`alone`].
pub(super) struct OnDevice {
    devices: Vec<LoopDevice>,
    /// Length of the one that is used now.
    bytes: u64,
}

impl OnDevice {
    pub(super) fn new(device: LoopDevice) -> OnDevice {
        OnDevice { bytes: device.bytes, devices: vec![device] }
    }

    fn open(&self) -> FileDisk {
        let device = self.devices.iter().find(|device| device.bytes == self.bytes);
        let disk = opened(&device.unwrap().path, None);
        assert!(disk.direct());
        disk
    }
}

impl Bench for OnDevice {
    fn blank(&mut self, bytes: u64) -> Box<dyn Disk> {
        self.bytes = bytes;
        if self.devices.iter().all(|device| device.bytes != bytes) {
            self.devices.push(LoopDevice::attach(bytes).unwrap());
        }
        let mut disk = self.open();
        disk.zero(0, bytes / BLOCK * BLOCK).unwrap();
        drop(disk);
        self.again()
    }

    fn again(&mut self) -> Box<dyn Disk> {
        Box::new(self.open())
    }
}

/// A loop device over a file, detached when it is dropped.
pub(super) struct LoopDevice {
    bytes: u64,
    pub(super) path: PathBuf,
    _folder: TempDir,
}

impl LoopDevice {
    fn attach(bytes: u64) -> Result<LoopDevice, String> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("device");
        std::fs::File::create(&file).unwrap().set_len(bytes).unwrap();
        // Not every file system lets the device go past the page cache; the device is one either way.
        let path = losetup(&["--find", "--show", "--direct-io=on"], &file)
            .or_else(|_| losetup(&["--find", "--show"], &file))?;
        Ok(LoopDevice { bytes, path: path.into(), _folder: folder })
    }

    /// `None` if none can be had here, and none has to be.
    pub(super) fn try_attach() -> Option<LoopDevice> {
        match LoopDevice::attach(DISK_BYTES) {
            Ok(device) => Some(device),
            Err(why) => {
                // A sandbox may have none; whoever has set this wants to know.
                let required = std::env::var_os("STRIPESET_LOOP_DEVICE").is_some();
                assert!(!required, "no loop device: {why}");
                // Past the capture of the test's output: a test that checks nothing says so.
                writeln!(std::io::stderr(), "no loop device, nothing is checked on a block device: {why}")
                    .unwrap();
                None
            }
        }
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        if let Err(why) = losetup(&["--detach"], &self.path) {
            eprintln!("{} stays attached: {why}", self.path.display());
        }
    }
}

/// What it printed, or why it failed.
fn losetup(options: &[&str], path: &Path) -> Result<String, String> {
    let output =
        Command::new("losetup").args(options).arg(path).output().map_err(|error| error.to_string())?;
    let printed = if output.status.success() { &output.stdout } else { &output.stderr };
    let printed = String::from_utf8_lossy(printed).trim().to_owned();
    if output.status.success() { Ok(printed) } else { Err(printed) }
}

fn opened(path: &Path, size: Option<u64>) -> FileDisk {
    match open::open(path, size).unwrap() {
        Found::Blank(disk) | Found::Used(disk) => disk,
    }
}
