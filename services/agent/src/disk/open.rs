//! Finds, creates and locks the file or device of a disk. Decides what may be formatted: only what holds nothing.
//!
//! Invariants:
//! 1. No file with a single block of data, and no device with a byte other than zero in its first MiB, is ever formatted.
//! 2. From its opening to its end a process holds the exclusive lock, so no two agents write to one disk.

use std::{
    fs::{File, OpenOptions, TryLockError},
    io::{self, ErrorKind, Seek, SeekFrom},
    os::unix::fs::{FileTypeExt, OpenOptionsExt},
    path::Path,
};

use rustix::{
    fs::{OFlags, seek},
    io::Errno,
};

use super::{Buffer, Disk, file::FileDisk};
use crate::{error::AgentError, layout::DISK_BYTES_MIN};

/// How much of a device has to be zeros before it may be formatted: where partition tables, file systems and our own
/// superblocks keep their first words.
const BLANK_BYTES: usize = 1024 * 1024;

/// What was opened.
pub(crate) enum Found {
    /// It holds nothing, and may be formatted.
    Blank(FileDisk),
    /// It holds something.
    Used(FileDisk),
}

/// Opens `path`, or creates it with `size` bytes, and locks it.
pub(crate) fn open(path: &Path, size: Option<u64>) -> Result<Found, AgentError> {
    let metadata = match std::fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == ErrorKind::NotFound => return create(path, size),
        Err(error) => return Err(AgentError::opening(path, error)),
    };
    let kind = metadata.file_type();
    if kind.is_dir() {
        return Err(AgentError::Directory { path: path.to_owned() });
    }
    let device = kind.is_block_device();
    if !device && !kind.is_file() {
        return Err(AgentError::NotAFile { path: path.to_owned() });
    }
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    if device {
        // Exclusive on a device without O_CREAT: refused while a file system on it is mounted.
        options.custom_flags(OFlags::EXCL.bits().cast_signed());
    }
    let mut file = options.open(path).map_err(|error| AgentError::opening(path, error))?;
    lock(&file, path)?;
    let bytes = file.seek(SeekFrom::End(0)).map_err(|error| AgentError::opening(path, error))?;
    if bytes == 0 && !device {
        let size = checked_size(path, size)?;
        file.set_len(size).map_err(|error| AgentError::opening(path, error))?;
        return Ok(Found::Blank(FileDisk::new(file, size, false)));
    }
    if let Some(size) = size.filter(|size| *size != bytes) {
        return Err(AgentError::SizeMismatch { path: path.to_owned(), size, bytes });
    }
    if bytes < DISK_BYTES_MIN {
        return Err(AgentError::TooSmall { path: path.to_owned(), bytes, bytes_min: DISK_BYTES_MIN });
    }
    classify(file, bytes, device).map_err(|error| AgentError::opening(path, error))
}

fn create(path: &Path, size: Option<u64>) -> Result<Found, AgentError> {
    let size = checked_size(path, size)?;
    // create_new: a file that appeared meanwhile is somebody else's.
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(path)
        .map_err(|error| AgentError::opening(path, error))?;
    lock(&file, path)?;
    file.set_len(size).map_err(|error| AgentError::opening(path, error))?;
    sync_folder(path).map_err(|error| AgentError::opening(path, error))?;
    Ok(Found::Blank(FileDisk::new(file, size, false)))
}

fn checked_size(path: &Path, size: Option<u64>) -> Result<u64, AgentError> {
    match size {
        None => Err(AgentError::Absent { path: path.to_owned() }),
        Some(bytes) if bytes < DISK_BYTES_MIN => {
            Err(AgentError::TooSmall { path: path.to_owned(), bytes, bytes_min: DISK_BYTES_MIN })
        }
        Some(bytes) => Ok(bytes),
    }
}

fn lock(file: &File, path: &Path) -> Result<(), AgentError> {
    match file.try_lock() {
        Ok(()) => Ok(()),
        Err(TryLockError::WouldBlock) => Err(AgentError::InUse { path: path.to_owned() }),
        Err(TryLockError::Error(error)) => Err(AgentError::opening(path, error)),
    }
}

/// The name of a new file has to survive a loss of power too.
fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder)?.sync_all()
}

/// A file without a single block holds nothing: an agent that was stopped between creating and formatting it left it. A
/// device is blank if its first MiB is; what lies behind means nothing until the store has written it.
fn classify(file: File, bytes: u64, device: bool) -> io::Result<Found> {
    let holds_nothing = !device && matches!(seek(&file, rustix::fs::SeekFrom::Data(0)), Err(Errno::NXIO));
    let mut disk = FileDisk::new(file, bytes, device);
    let blank = if device {
        let mut first = Buffer::zeroed(BLANK_BYTES);
        disk.read(0, &mut first)? == BLANK_BYTES && first.iter().all(|byte| *byte == 0)
    } else {
        holds_nothing
    };
    Ok(if blank { Found::Blank(disk) } else { Found::Used(disk) })
}
