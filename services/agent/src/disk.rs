//! What the store asks of a disk: read, write, sync, give back. Decides nothing about what the bytes mean.
//!
//! Three disks exist: a file and a block device ([`mod@file`]), and one in memory that crashes on demand (tests). Writes may
//! reach the medium in any order, in pieces of 512 bytes, until a sync; a sync that failed leaves that open for ever.

use std::io::{self, IoSlice};

pub(crate) mod file;
pub(crate) mod open;
#[cfg(test)]
pub(crate) mod simulated;

/// What went to and from a disk since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Traffic {
    pub(crate) bytes_read: u64,
    pub(crate) bytes_written: u64,
    pub(crate) syncs: u64,
}

/// A disk of fixed length.
pub(crate) trait Disk: Send {
    /// Length in bytes.
    fn bytes(&self) -> u64;

    /// Reads `length` bytes from `offset`. Fewer come back where the disk ends, or fails in the middle: a short read.
    fn read(&mut self, offset: u64, length: usize) -> io::Result<Vec<u8>>;

    /// Writes all pieces, one after the other, from `offset`. After an error any part of them may be there.
    fn write(&mut self, offset: u64, pieces: &mut [IoSlice<'_>]) -> io::Result<()>;

    /// Returns when everything written before survives a loss of power.
    fn sync(&mut self) -> io::Result<()>;

    /// Gives a range back; its bytes mean nothing afterwards.
    fn punch(&mut self, offset: u64, length: u64) -> io::Result<()>;

    /// Takes space for a range, so that a write to it cannot run out of it. Its bytes stay.
    fn allocate(&mut self, offset: u64, length: u64) -> io::Result<()>;

    /// The first offset from `offset` on that may hold something other than zeros; `None` if there is none.
    fn data_from(&mut self, offset: u64) -> io::Result<Option<u64>>;

    /// Counters.
    fn traffic(&self) -> Traffic;
}

/// Whether an error says that there is no space, which a caller can survive, or that the disk failed.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}
