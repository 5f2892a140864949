//! The slow codes: GF(2^8) by long division, one byte at a time; three parities and more by the crate's own
//! reference engine, which uses none of its vector code. And the patterns and bytes that tests go through.

use reed_solomon_simd::{
    engine::Naive,
    rate::{DefaultRateEncoder, RateEncoder},
};

use crate::profile::{Code, Profile};

/// Product in GF(2^8), polynomial 0x11d: multiply without carries to 15 bits, then divide.
pub(super) fn product(a: u8, b: u8) -> u8 {
    let mut wide = 0_u32;
    for bit in (0..8).filter(|bit| u32::from(b) & 1 << bit != 0) {
        wide ^= u32::from(a) << bit;
    }
    for degree in (8..15).rev() {
        if wide & 1 << degree != 0 {
            wide ^= 0x11d << (degree - 8);
        }
    }
    u8::try_from(wide).unwrap()
}

/// Parity of a profile.
pub(super) fn encode(profile: Profile, data: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let sum = |factor: &dyn Fn(usize) -> u8| -> Vec<u8> {
        let at = |byte: usize| (0..data.len()).fold(0, |sum, i| sum ^ product(factor(i), data[i][byte]));
        (0..data[0].len()).map(at).collect()
    };
    match profile.code() {
        Code::None => vec![],
        Code::Copy => vec![data[0].clone(); profile.parity_shards()],
        Code::Xor => vec![sum(&|_| 1)],
        Code::PQ => vec![sum(&|_| 1), sum(&|index| (0..index).fold(1, |power, _| product(power, 2)))],
        Code::ReedSolomon => {
            let (parity, bytes) = (profile.parity_shards(), data[0].len());
            let mut encoder = DefaultRateEncoder::new(data.len(), parity, bytes, Naive::new(), None).unwrap();
            data.iter().for_each(|shard| encoder.add_original_shard(shard).unwrap());
            encoder.encode().unwrap().recovery_iter().map(<[u8]>::to_vec).collect()
        }
    }
}

/// Every set of at most `most` of the numbers below `count`, each in ascending order; the empty one too.
pub(super) fn subsets(count: usize, most: usize) -> Vec<Vec<usize>> {
    let mut sets: Vec<Vec<usize>> = vec![vec![]];
    let mut grown = 0;
    while grown < sets.len() {
        let set = sets[grown].clone();
        if set.len() < most {
            let next = set.last().map_or(0, |last| last + 1);
            sets.extend((next..count).map(|number| [set.as_slice(), &[number]].concat()));
        }
        grown += 1;
    }
    sets
}

/// Bytes without a pattern, always the same for a seed (the finalizer of splitmix64).
pub(super) fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let word = |index: u64| {
        let mut z = (seed << 32 | index).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ z >> 31) as u8
    };
    (0..bytes as u64).map(word).collect()
}

/// Data shards, and the first 16 bytes of P and of Q over the bytes described where this is used.
pub(super) const VECTORS: [(usize, [u8; 16], [u8; 16]); 5] = [
    (
        1,
        [0x00, 0x25, 0x4a, 0x6f, 0x94, 0xb9, 0xde, 0x03, 0x28, 0x4d, 0x72, 0x97, 0xbc, 0xe1, 0x06, 0x2b],
        [0x00, 0x25, 0x4a, 0x6f, 0x94, 0xb9, 0xde, 0x03, 0x28, 0x4d, 0x72, 0x97, 0xbc, 0xe1, 0x06, 0x2b],
    ),
    (
        2,
        [0x65, 0xb0, 0x8f, 0x9a, 0xb1, 0xec, 0x5b, 0xb6, 0xcd, 0x58, 0x37, 0xe2, 0x19, 0x34, 0x03, 0x1e],
        [0xca, 0x12, 0xdd, 0x98, 0xde, 0x13, 0xc9, 0x74, 0xff, 0x67, 0xf8, 0x7d, 0xeb, 0x56, 0x0c, 0x41],
    ),
    (
        4,
        [0x80, 0xc0, 0x74, 0xe0, 0x40, 0x90, 0xa4, 0xc8, 0x30, 0x20, 0xc4, 0x80, 0xe0, 0x40, 0x04, 0x68],
        [0xa0, 0x89, 0x71, 0x61, 0x3e, 0xec, 0xaf, 0x3d, 0x8f, 0x75, 0x93, 0xb9, 0x76, 0xd4, 0x04, 0xcf],
    ),
    (
        5,
        [0x14, 0x25, 0x42, 0x67, 0x98, 0xb9, 0xde, 0x03, 0x2c, 0x4d, 0x7a, 0x8f, 0x80, 0xf1, 0x06, 0x3b],
        [0x15, 0x7f, 0x36, 0xf9, 0x3f, 0x46, 0x5c, 0x11, 0x52, 0xeb, 0xbc, 0x49, 0x38, 0x0b, 0x24, 0x96],
    ),
    (
        16,
        [0x80, 0x00, 0xb0, 0xc0, 0xc0, 0xc0, 0xd0, 0xa0, 0xa0, 0x80, 0x10, 0x80, 0x40, 0x80, 0xf0, 0xe0],
        [0x1f, 0x64, 0x35, 0xd8, 0x80, 0xb8, 0x98, 0x70, 0x7b, 0x8f, 0x65, 0x8a, 0x6f, 0xca, 0x23, 0xab],
    ),
];

/// crc32c of all parity shards, one after the other, over data shards of 256 bytes of [`noise`], seeded by their
/// index.
pub(super) const PARITY_CHECKSUMS: [(&str, u32); 7] = [
    ("rs-1+3", 0x4235_2e66),
    ("rs-3+3", 0x9f29_1777),
    ("rs-4+3", 0x7d76_d80b),
    ("rs-3+5", 0x6f90_0a7d),
    ("rs-8+3", 0xa4a5_7ce2),
    ("rs-10+4", 0xe819_0769),
    ("rs-16+8", 0xe082_388a),
];
