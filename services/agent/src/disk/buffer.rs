//! Memory that a disk without a page cache can read into and write from: aligned, and whole blocks long.
//!
//! Aligned without unsafe code: a little more is taken than is needed, and the first aligned byte found in it.

use std::ops::{Deref, DerefMut};

use bytes::Bytes;

/// What offsets, lengths and memory are multiples of: the largest block that disks have.
pub(crate) const BLOCK_BYTES: usize = 4096;

/// Aligned bytes. As long as was asked for, a multiple of [`BLOCK_BYTES`].
#[derive(Debug, Default)]
pub(crate) struct Buffer {
    memory: Vec<u8>,
    start: usize,
    length: usize,
}

impl Buffer {
    /// Zeros.
    pub(crate) fn zeroed(length: usize) -> Buffer {
        assert!(length.is_multiple_of(BLOCK_BYTES), "{length} bytes are not whole blocks");
        if length == 0 {
            return Buffer::default();
        }
        let memory = vec![0; length + BLOCK_BYTES];
        let start = memory.as_ptr().align_offset(BLOCK_BYTES);
        Buffer { memory, start, length }
    }

    /// As long as `length` says, whatever it held before: zeros, or older bytes.
    pub(crate) fn resize(&mut self, length: usize) {
        if self.start + length <= self.memory.len() {
            assert!(length.is_multiple_of(BLOCK_BYTES), "{length} bytes are not whole blocks");
            self.length = length;
        } else {
            *self = Buffer::zeroed(length);
        }
    }

    /// The bytes, to be shared.
    pub(crate) fn into_bytes(self) -> Bytes {
        let end = self.start + self.length;
        Bytes::from(self.memory).slice(self.start..end)
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.length]
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.length]
    }
}
