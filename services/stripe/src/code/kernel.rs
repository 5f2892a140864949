//! The loops over whole shards: sum, P and Q, multiply and add. Each has a plain form, here, and a vector form in
//! `avx2`; which of them runs is decided when a codec is made, by what the processor has.
//!
//! Knows lengths and bytes, nothing of profiles, erasures or shard indices.

use super::field::{Multiplier, REDUCTION};

/// Lengths are multiples of this: two vector registers, and the block of the crate that codes three parities.
pub(super) const ALIGNMENT_BYTES: usize = 64;

/// One form of the loops.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kernel {
    /// Eight bytes at a time, on any processor.
    Scalar,
    /// 128 bytes at a time.
    #[cfg(target_arch = "x86_64")]
    Avx2(super::avx2::Avx2),
}

impl Kernel {
    /// The fastest form that this processor can run.
    pub(super) fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        if let Some(avx2) = super::avx2::Avx2::detect() {
            return Kernel::Avx2(avx2);
        }
        Kernel::Scalar
    }

    /// `out` becomes the exclusive or of all sources, of which there is at least one.
    pub(super) fn sum(self, sources: &[&[u8]], out: &mut [u8]) {
        assert!(!sources.is_empty(), "a sum of nothing");
        assert_lengths(sources, out.len());
        match self {
            Kernel::Scalar => sum(sources, out),
            #[cfg(target_arch = "x86_64")]
            Kernel::Avx2(avx2) => avx2.sum(sources, out),
        }
    }

    /// `p` becomes the sum of the data, `q` the sum of the data times 2^i, i being the index.
    pub(super) fn syndromes(self, data: &[&[u8]], p: &mut [u8], q: &mut [u8]) {
        assert!(!data.is_empty(), "syndromes of nothing");
        assert_eq!(p.len(), q.len(), "P and Q have one length");
        assert_lengths(data, p.len());
        match self {
            Kernel::Scalar => syndromes(data, p, q),
            #[cfg(target_arch = "x86_64")]
            Kernel::Avx2(avx2) => avx2.syndromes(data, p, q),
        }
    }

    /// Adds the source times a constant to `out`.
    pub(super) fn multiply_add(self, by: &Multiplier, source: &[u8], out: &mut [u8]) {
        assert_lengths(&[source], out.len());
        match self {
            Kernel::Scalar => multiply_add(by, source, out),
            #[cfg(target_arch = "x86_64")]
            Kernel::Avx2(avx2) => avx2.multiply_add(by, source, out),
        }
    }
}

fn assert_lengths(sources: &[&[u8]], length: usize) {
    assert!(length.is_multiple_of(ALIGNMENT_BYTES), "{length} bytes are no multiple of {ALIGNMENT_BYTES}");
    for source in sources {
        assert_eq!(source.len(), length, "shards of one stripe have one length");
    }
}

/// Bytes that the plain forms take at a time.
const WORD: usize = size_of::<u64>();

fn word(source: &[u8], index: usize) -> u64 {
    u64::from_ne_bytes(source.as_chunks::<WORD>().0[index])
}

fn sum(sources: &[&[u8]], out: &mut [u8]) {
    for (index, out) in out.as_chunks_mut::<WORD>().0.iter_mut().enumerate() {
        let sum = sources.iter().fold(0, |sum, source| sum ^ word(source, index));
        *out = sum.to_ne_bytes();
    }
}

/// Twice each of eight elements. The order of the bytes in the word makes no difference.
fn double(word: u64) -> u64 {
    const HIGHEST: u64 = u64::from_ne_bytes([0x80; WORD]);
    let carries = (word & HIGHEST) >> 7;
    ((word & !HIGHEST) << 1) ^ (carries * REDUCTION as u64)
}

/// By Horner's rule from the last shard down, so that the only multiplication is by 2.
fn syndromes(data: &[&[u8]], p: &mut [u8], q: &mut [u8]) {
    let outs = p.as_chunks_mut::<WORD>().0.iter_mut().zip(q.as_chunks_mut::<WORD>().0);
    for (index, (p, q)) in outs.enumerate() {
        let (mut p_word, mut q_word) = (0, 0);
        for source in data.iter().rev() {
            let word = word(source, index);
            p_word ^= word;
            q_word = double(q_word) ^ word;
        }
        (*p, *q) = (p_word.to_ne_bytes(), q_word.to_ne_bytes());
    }
}

fn multiply_add(by: &Multiplier, source: &[u8], out: &mut [u8]) {
    for (byte, out) in source.iter().zip(out) {
        *out ^= by.low[usize::from(byte & 0xf)] ^ by.high[usize::from(byte >> 4)];
    }
}
