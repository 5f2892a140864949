//! What the store asks of a disk: read, write, sync, give back. Decides nothing about what the bytes mean.
//!
//! There are a file and a block device ([`mod@file`]), one in memory that crashes and lies on demand (`simulated`, for
//! tests), one that measures another ([`watched`], [`health`]), and one that
//! makes another misbehave ([`faulty`]). Writes may reach the medium in any order, in
//! pieces of 512 bytes, until a sync; a sync that failed leaves that open for ever.
//!
//! All offsets and lengths are multiples of [`BLOCK_BYTES`], and all memory is a [`Buffer`]'s: that is what a disk without
//! a page cache takes.

use std::io;

pub(crate) mod buffer;
#[cfg(test)]
mod conformance;
pub(crate) mod faulty;
pub(crate) mod file;
pub(crate) mod health;
pub(crate) mod open;
#[cfg(any(test, feature = "fuzzing", feature = "simulation"))]
#[cfg_attr(not(test), expect(dead_code, reason = "what it can do wrong only the tests ask for"))]
pub(crate) mod simulated;
pub(crate) mod watched;

pub(crate) use buffer::{BLOCK_BYTES, Buffer};

/// What went to and from a disk since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Traffic {
    pub(crate) bytes_read: u64,
    pub(crate) bytes_written: u64,
    pub(crate) syncs: u64,
}

/// A disk of fixed length.
pub(crate) trait Disk: Send {
    /// Length in bytes. The last block may be cut short by it; it is never read or written then.
    fn bytes(&self) -> u64;

    /// Reads from `offset` until `into` is full. Returns how many bytes came: fewer where the disk ends, or fails in the
    /// middle (a short read). An error if it fails at once.
    fn read(&mut self, offset: u64, into: &mut Buffer) -> io::Result<usize>;

    /// Writes all bytes at `offset`. After an error any part of them may be there.
    fn write(&mut self, offset: u64, bytes: &Buffer) -> io::Result<()>;

    /// Returns when everything written before survives a loss of power.
    fn sync(&mut self) -> io::Result<()>;

    /// Gives a range back; its bytes mean nothing afterwards.
    fn discard(&mut self, offset: u64, length: u64) -> io::Result<()>;

    /// Takes space for a range, so that a write to it cannot run out of it. Its bytes stay.
    fn allocate(&mut self, offset: u64, length: u64) -> io::Result<()>;

    /// Makes a range read as zeros, with its space taken and initialised: later writes change no metadata of a file
    /// system.
    fn zero(&mut self, offset: u64, length: u64) -> io::Result<()>;

    /// Counters.
    fn traffic(&self) -> Traffic;
}

/// Whether an error says that there is no space, which a caller can survive, or that the disk failed.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}
