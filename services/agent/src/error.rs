//! Why an agent does not start, or stops. Every message says what was given, what is allowed and what to do.
//!
//! Errors of single requests are elsewhere: `refusal` for the data stream, `stripeset_proto::Error` for unary calls.

use std::{
    io::{self, ErrorKind},
    net::SocketAddr,
    path::{Path, PathBuf},
};

use thiserror::Error;

use crate::store::journal::JournalError;

/// Why an agent does not start, or stops.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum AgentError {
    /// There is nothing at the path, or an empty file, and no size to create it with.
    #[error("disk {} does not exist or is empty, and no size was given; give --size to create it", path.display())]
    Absent {
        /// The path given.
        path: PathBuf,
    },
    /// The disk is smaller than what an agent can lay out.
    #[error(
        "disk {} of {bytes} bytes: at least {bytes_min} bytes (8 MiB) are needed; give a larger --size or disk",
        path.display()
    )]
    TooSmall {
        /// The path given.
        path: PathBuf,
        /// Its length, or the size given.
        bytes: u64,
        /// The smallest allowed.
        bytes_min: u64,
    },
    /// The size given is not that of what is there.
    #[error(
        "disk {} has {bytes} bytes, but the size given is {size}; disks keep their length: leave --size out, or give \
         another disk",
        path.display()
    )]
    SizeMismatch {
        /// The path given.
        path: PathBuf,
        /// The size given.
        size: u64,
        /// The length of what is there.
        bytes: u64,
    },
    /// Another process has the disk open.
    #[error("disk {} is in use by another process; stop it first, or give another disk", path.display())]
    InUse {
        /// The path given.
        path: PathBuf,
    },
    /// What is there holds something that is not ours.
    #[error(
        "{} holds something that is not a stripeset disk, and is not overwritten; give another path, or empty it first",
        path.display()
    )]
    NotOurs {
        /// The path given.
        path: PathBuf,
    },
    /// The disk was written by a stripeset with another format.
    #[error("disk {} has format {found}, this agent reads format {known}; run the version that wrote it", path.display())]
    OtherFormat {
        /// The path given.
        path: PathBuf,
        /// Format of the disk.
        found: u32,
        /// The format that this agent reads.
        known: u32,
    },
    /// Neither copy of the superblock can be read.
    #[error(
        "both superblocks of disk {} are damaged: what it holds cannot be trusted; replace the member with a blank disk",
        path.display()
    )]
    SuperblocksDamaged {
        /// The path given.
        path: PathBuf,
    },
    /// The journal of the disk is damaged: it has lost writes that were acknowledged.
    #[error("disk {}: {source}; to replace the member, start its agent on a new disk", path.display())]
    JournalDamaged {
        /// The path given.
        path: PathBuf,
        /// What is damaged.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The disk is shorter or longer than when it was formatted.
    #[error(
        "disk {} has {bytes} bytes, it was formatted with {formatted}; restore its length, or replace the member",
        path.display()
    )]
    LengthChanged {
        /// The path given.
        path: PathBuf,
        /// Its length now.
        bytes: u64,
        /// Its length in the superblock.
        formatted: u64,
    },
    /// The path is a folder.
    #[error("disk {} is a directory; give a file in it, or a block device", path.display())]
    Directory {
        /// The path given.
        path: PathBuf,
    },
    /// The path is neither a file nor a block device.
    #[error("disk {} is neither a file nor a block device; give one of these", path.display())]
    NotAFile {
        /// The path given.
        path: PathBuf,
    },
    /// The system denies access.
    #[error("no permission to open disk {} for reading and writing; run as its owner, or change its mode", path.display())]
    NoPermission {
        /// The path given.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file system or device does not take writes.
    #[error("disk {} is read-only; mount its file system for writing, or give another disk", path.display())]
    ReadOnly {
        /// The path given.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// No space to create or format the disk.
    #[error("no space left for disk {}; make room, or give another path", path.display())]
    NoSpace {
        /// The path given.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Any other failure of the disk while it was opened.
    #[error("disk {} cannot be opened: {source}; check the disk, then start again", path.display())]
    Disk {
        /// The path given.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Another process listens at the address.
    #[error("address {address} is in use; stop what listens there, or give another --listen")]
    AddressInUse {
        /// The address given.
        address: SocketAddr,
    },
    /// The system refuses the address for another reason.
    #[error(
        "cannot listen at {address}: {source}; give an address of this machine and a port that may be used"
    )]
    Listen {
        /// The address given.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// The server failed.
    #[error("the gRPC server failed")]
    Server(#[source] tonic::transport::Error),
    /// The reflection service could not be built.
    #[error("the descriptors for reflection cannot be read: a fault of the build")]
    Reflection(#[source] stripeset_proto::reflection::Error),
    /// The system did not give a thread for the disk.
    #[error("no thread for the disk: {0}; raise the limit of processes")]
    Thread(#[source] io::Error),
    /// The disk did not finish what had begun within the time for stopping.
    #[error("the disk did not finish within {0:?}; what it had not answered may or may not be done")]
    StopTimedOut(std::time::Duration),
    /// The thread that owns the disk ended by itself.
    #[error("the disk's thread ended by itself: a fault of the agent, see the log before this")]
    DiskThreadEnded,
}

impl AgentError {
    /// What failed when the disk was found, created or read for the first time.
    /// A journal that cannot be used.
    pub(crate) fn journal(path: &Path, error: JournalError) -> AgentError {
        match error {
            JournalError::Io(error) => AgentError::opening(path, error),
            damaged => AgentError::JournalDamaged { path: path.to_owned(), source: Box::new(damaged) },
        }
    }

    pub(crate) fn opening(path: &Path, source: io::Error) -> AgentError {
        let path = path.to_owned();
        match source.kind() {
            ErrorKind::PermissionDenied => AgentError::NoPermission { path, source },
            ErrorKind::ReadOnlyFilesystem => AgentError::ReadOnly { path, source },
            ErrorKind::ResourceBusy => AgentError::InUse { path },
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => {
                AgentError::NoSpace { path, source }
            }
            ErrorKind::IsADirectory => AgentError::Directory { path },
            _ => AgentError::Disk { path, source },
        }
    }

    /// What failed when the address was bound.
    pub(crate) fn listening(address: SocketAddr, source: io::Error) -> AgentError {
        if source.kind() == ErrorKind::AddrInUse {
            AgentError::AddressInUse { address }
        } else {
            AgentError::Listen { address, source }
        }
    }
}
