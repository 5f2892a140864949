//! The bytes of a simulated disk, in blocks that copies of a disk share until one of them is written.

use std::{ops::Range, sync::Arc};

use crate::disk::BLOCK_BYTES;

/// Blocks of a disk. One without space reads as zeros.
#[derive(Clone, Default)]
pub(super) struct Blocks(Vec<Option<Arc<[u8; BLOCK_BYTES]>>>);

/// The blocks that a range of bytes touches.
fn touched(offset: usize, length: usize) -> Range<usize> {
    offset / BLOCK_BYTES..(offset + length).div_ceil(BLOCK_BYTES)
}

impl Blocks {
    /// Without space anywhere.
    pub(super) fn new(bytes: usize) -> Blocks {
        Blocks(vec![None; bytes.div_ceil(BLOCK_BYTES)])
    }

    pub(super) fn read(&self, offset: usize, into: &mut [u8]) {
        let mut at = 0;
        while at < into.len() {
            let (block, start) = ((offset + at) / BLOCK_BYTES, (offset + at) % BLOCK_BYTES);
            let length = (BLOCK_BYTES - start).min(into.len() - at);
            let part = &mut into[at..at + length];
            match &self.0[block] {
                Some(bytes) => part.copy_from_slice(&bytes[start..start + length]),
                None => part.fill(0),
            }
            at += length;
        }
    }

    pub(super) fn write(&mut self, offset: usize, bytes: &[u8]) {
        let mut at = 0;
        while at < bytes.len() {
            let (block, start) = ((offset + at) / BLOCK_BYTES, (offset + at) % BLOCK_BYTES);
            let length = (BLOCK_BYTES - start).min(bytes.len() - at);
            let old = self.0[block].get_or_insert_with(|| Arc::new([0; BLOCK_BYTES]));
            Arc::make_mut(old)[start..start + length].copy_from_slice(&bytes[at..at + length]);
            at += length;
        }
    }

    /// Makes a range what it is in `other`.
    pub(super) fn share(&mut self, other: &Blocks, offset: usize, length: usize) {
        let blocks = touched(offset, length);
        self.0[blocks.clone()].clone_from_slice(&other.0[blocks]);
    }

    /// Takes space for a range; its bytes stay.
    pub(super) fn take_space(&mut self, offset: usize, length: usize) {
        for block in &mut self.0[touched(offset, length)] {
            block.get_or_insert_with(|| Arc::new([0; BLOCK_BYTES]));
        }
    }

    /// Gives the space of a range back; it reads as zeros.
    pub(super) fn give_back(&mut self, offset: usize, length: usize) {
        self.0[touched(offset, length)].fill(None);
    }

    /// Whether a write to a range has to take space.
    pub(super) fn lacks_space(&self, offset: usize, length: usize) -> bool {
        self.0[touched(offset, length)].iter().any(Option::is_none)
    }
}
