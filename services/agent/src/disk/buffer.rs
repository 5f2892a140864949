//! Memory that a disk without a page cache can read into and write from: aligned, and whole blocks long.
//!
//! Aligned without unsafe code: a little more is taken than is needed, and the first aligned byte found in it.

use std::ops::{Deref, DerefMut};

use bytes::Bytes;

/// What offsets, lengths and memory are multiples of: the largest block that disks have.
pub(crate) const BLOCK_BYTES: usize = 4096;

/// Panics unless a range is whole blocks. Asked everywhere, also where the disk would take any range, so that no test
/// passes by luck.
pub(crate) fn assert_blocks(offset: u64, length: u64) {
    let block = BLOCK_BYTES as u64;
    let whole = offset.is_multiple_of(block) && length.is_multiple_of(block);
    assert!(whole, "{length} bytes at {offset} are not whole blocks");
}

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

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;

    use super::*;

    fn is_aligned(buffer: &Buffer) -> bool {
        buffer.as_ptr().addr().is_multiple_of(BLOCK_BYTES)
    }

    #[test]
    fn memory_is_aligned_zeroed_and_as_long_as_asked() {
        // Many at once: the allocator must not happen to give aligned memory.
        let buffers: Vec<Buffer> = (1..40).map(|blocks| Buffer::zeroed(blocks * BLOCK_BYTES)).collect();
        for (index, buffer) in buffers.iter().enumerate() {
            assert!(is_aligned(buffer));
            assert_eq!(buffer.len(), (index + 1) * BLOCK_BYTES);
            assert!(buffer.iter().all(|byte| *byte == 0));
        }
        assert_eq!(Buffer::zeroed(0).len(), 0);
        assert_eq!(Buffer::default().len(), 0);
    }

    #[test]
    fn it_shrinks_in_place_and_grows_aligned() {
        let mut buffer = Buffer::zeroed(2 * BLOCK_BYTES);
        buffer.fill(7);
        let place = buffer.as_ptr();
        buffer.resize(BLOCK_BYTES);
        assert_eq!((buffer.as_ptr(), buffer.len()), (place, BLOCK_BYTES));
        buffer.resize(2 * BLOCK_BYTES);
        assert_eq!((buffer.as_ptr(), buffer.len()), (place, 2 * BLOCK_BYTES));
        buffer.resize(64 * BLOCK_BYTES);
        assert!(is_aligned(&buffer) && buffer.len() == 64 * BLOCK_BYTES);
        let mut none = Buffer::default();
        none.resize(BLOCK_BYTES);
        assert!(is_aligned(&none) && none.len() == BLOCK_BYTES);
    }

    #[test]
    fn shared_bytes_are_its_bytes_where_they_were() {
        let mut buffer = Buffer::zeroed(BLOCK_BYTES);
        buffer.fill(9);
        let place = buffer.as_ptr();
        let bytes = buffer.into_bytes();
        assert_eq!((bytes.as_ptr(), &bytes[..]), (place, &[9; BLOCK_BYTES][..]));
    }

    #[test]
    fn parts_of_blocks_are_refused() {
        assert!(catch_unwind(|| Buffer::zeroed(100)).is_err());
        assert!(catch_unwind(|| Buffer::zeroed(BLOCK_BYTES).resize(100)).is_err());
        assert!(catch_unwind(|| Buffer::default().resize(100)).is_err());
        assert!(catch_unwind(|| assert_blocks(512, 4096)).is_err());
        assert!(catch_unwind(|| assert_blocks(4096, 512)).is_err());
        assert_blocks(4096, 8192);
    }
}
