//! The loops over whole shards in AVX2 registers. Same results as the plain forms in [`kernel`](super::kernel),
//! which also checks lengths; the self-test and the tests compare the two.
//!
//! All sources are read in one pass, 128 bytes of each at a time, so that a parity is written once and never read.
//! Vectors are loaded from slices of the right length, so the only things that need `unsafe` are the instructions
//! that take a pointer, and entering code that the compiler may fill with AVX2.

#![expect(
    unsafe_code,
    reason = "vector loads and stores take pointers; the target feature is detected at run time"
)]

use core::arch::x86_64::{
    __m256i, _mm_loadu_si128, _mm256_add_epi8, _mm256_and_si256, _mm256_broadcastsi128_si256,
    _mm256_cmpgt_epi8, _mm256_loadu_si256, _mm256_set1_epi8, _mm256_setzero_si256, _mm256_shuffle_epi8,
    _mm256_srli_epi64, _mm256_storeu_si256, _mm256_xor_si256,
};

use super::field::{Multiplier, REDUCTION};

/// Bytes in a register.
const VECTOR: usize = size_of::<__m256i>();

/// Registers of one source handled together, where the length allows it.
const STRIDE: usize = 4;

/// Proof that the processor has AVX2: made by detection alone.
#[derive(Clone, Copy, Debug)]
pub(super) struct Avx2(());

impl Avx2 {
    /// `None` where the processor or the operating system lacks AVX2.
    pub(super) fn detect() -> Option<Self> {
        is_x86_feature_detected!("avx2").then_some(Avx2(()))
    }

    /// See [`Kernel::sum`](super::kernel::Kernel::sum).
    pub(super) fn sum(self, sources: &[&[u8]], out: &mut [u8]) {
        // SAFETY: `self` exists only where AVX2 was detected.
        unsafe { sum(sources, out) }
    }

    /// See [`Kernel::syndromes`](super::kernel::Kernel::syndromes).
    pub(super) fn syndromes(self, data: &[&[u8]], p: &mut [u8], q: &mut [u8]) {
        // SAFETY: `self` exists only where AVX2 was detected.
        unsafe { syndromes(data, p, q) }
    }

    /// See [`Kernel::multiply_add`](super::kernel::Kernel::multiply_add).
    pub(super) fn multiply_add(self, by: &Multiplier, source: &[u8], out: &mut [u8]) {
        // SAFETY: `self` exists only where AVX2 was detected.
        unsafe { multiply_add(by, source, out) }
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn load<const N: usize>(source: &[u8], at: usize) -> [__m256i; N] {
    let (vectors, _) = source[at..at + N * VECTOR].as_chunks::<VECTOR>();
    let mut values = [_mm256_setzero_si256(); N];
    for (value, vector) in values.iter_mut().zip(vectors) {
        // SAFETY: the pointer is to an array of exactly one vector's length, and needs no alignment.
        *value = unsafe { _mm256_loadu_si256(vector.as_ptr().cast()) };
    }
    values
}

#[inline]
#[target_feature(enable = "avx2")]
fn store<const N: usize>(values: [__m256i; N], out: &mut [u8], at: usize) {
    let (vectors, _) = out[at..at + N * VECTOR].as_chunks_mut::<VECTOR>();
    for (vector, value) in vectors.iter_mut().zip(values) {
        // SAFETY: the pointer is to an array of exactly one vector's length, and needs no alignment.
        unsafe { _mm256_storeu_si256(vector.as_mut_ptr().cast(), value) }
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn add<const N: usize>(a: &mut [__m256i; N], b: &[__m256i; N]) {
    for (a, b) in a.iter_mut().zip(b) {
        *a = _mm256_xor_si256(*a, *b);
    }
}

/// Twice each element: shifted left by one, and reduced where the highest bit went out.
#[inline]
#[target_feature(enable = "avx2")]
fn double<const N: usize>(a: &mut [__m256i; N]) {
    let reduction = _mm256_set1_epi8(REDUCTION.cast_signed());
    for a in a {
        // A byte with its highest bit set is negative: the comparison makes it all ones.
        let carried = _mm256_cmpgt_epi8(_mm256_setzero_si256(), *a);
        *a = _mm256_xor_si256(_mm256_add_epi8(*a, *a), _mm256_and_si256(carried, reduction));
    }
}

#[target_feature(enable = "avx2")]
fn sum(sources: &[&[u8]], out: &mut [u8]) {
    let whole = out.len() / (STRIDE * VECTOR) * (STRIDE * VECTOR);
    for at in (0..whole).step_by(STRIDE * VECTOR) {
        sum_step::<STRIDE>(sources, out, at);
    }
    for at in (whole..out.len()).step_by(VECTOR) {
        sum_step::<1>(sources, out, at);
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn sum_step<const N: usize>(sources: &[&[u8]], out: &mut [u8], at: usize) {
    let mut sum = [_mm256_setzero_si256(); N];
    for source in sources {
        add(&mut sum, &load(source, at));
    }
    store(sum, out, at);
}

#[target_feature(enable = "avx2")]
fn syndromes(data: &[&[u8]], p: &mut [u8], q: &mut [u8]) {
    let whole = p.len() / (STRIDE * VECTOR) * (STRIDE * VECTOR);
    for at in (0..whole).step_by(STRIDE * VECTOR) {
        syndromes_step::<STRIDE>(data, p, q, at);
    }
    for at in (whole..p.len()).step_by(VECTOR) {
        syndromes_step::<1>(data, p, q, at);
    }
}

/// By Horner's rule from the last shard down, so that the only multiplication is by 2.
#[inline]
#[target_feature(enable = "avx2")]
fn syndromes_step<const N: usize>(data: &[&[u8]], p: &mut [u8], q: &mut [u8], at: usize) {
    let (mut p_sum, mut q_sum) = ([_mm256_setzero_si256(); N], [_mm256_setzero_si256(); N]);
    for source in data.iter().rev() {
        let vectors = load(source, at);
        add(&mut p_sum, &vectors);
        double(&mut q_sum);
        add(&mut q_sum, &vectors);
    }
    store(p_sum, p, at);
    store(q_sum, q, at);
}

#[inline]
#[target_feature(enable = "avx2")]
fn table(bytes: &[u8; 16]) -> __m256i {
    // SAFETY: the pointer is to an array of exactly half a vector's length, and needs no alignment.
    _mm256_broadcastsi128_si256(unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) })
}

#[target_feature(enable = "avx2")]
fn multiply_add(by: &Multiplier, source: &[u8], out: &mut [u8]) {
    let (low, high, half) = (table(&by.low), table(&by.high), _mm256_set1_epi8(0xf));
    for at in (0..out.len()).step_by(VECTOR) {
        let ([bytes], [before]) = (load(source, at), load(out, at));
        let of_low = _mm256_shuffle_epi8(low, _mm256_and_si256(bytes, half));
        let of_high = _mm256_shuffle_epi8(high, _mm256_and_si256(_mm256_srli_epi64::<4>(bytes), half));
        store([_mm256_xor_si256(before, _mm256_xor_si256(of_low, of_high))], out, at);
    }
}
