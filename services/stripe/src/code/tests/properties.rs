//! The codes over random shapes, lengths, bytes and alignments.

use proptest::{collection::vec, prelude::*, sample::subsequence};

use super::{super::field::Multiplier, oracle, parity, profiles, reconstruct};
use crate::{code::kernel::Kernel, profile::Profile};

fn profile() -> impl Strategy<Value = Profile> {
    let rs = (1..=16_u8, 3..=8_u8).prop_map(|(data, parity)| format!("rs-{data}+{parity}").parse().unwrap());
    prop_oneof![2 => prop::sample::select(profiles()), 1 => rs]
}

/// Data shards of some profile, up to 6,400 bytes each: past the blocks in which the codes go through a shard.
fn data() -> impl Strategy<Value = (Profile, Vec<Vec<u8>>)> {
    (profile(), 1..=100_usize, any::<u32>()).prop_map(|(profile, blocks, seed)| {
        let shard = |index| oracle::noise(u64::from(seed) ^ (index as u64) << 24, blocks * 64);
        (profile, (0..profile.data_shards()).map(shard).collect())
    })
}

/// Slices of one length that start anywhere: 1 to 16 sources and two outputs' lengths.
fn unaligned() -> impl Strategy<Value = (Vec<(Vec<u8>, usize)>, usize)> {
    (1..=16_usize, 0..=20_usize).prop_flat_map(|(count, blocks)| {
        let source = (vec(any::<u8>(), blocks * 64 + 64), 0..64_usize);
        (vec(source, count), Just(blocks * 64))
    })
}

/// Two outputs of both forms, from positions that are not aligned either, with what lies around them.
fn both(length: usize, run: impl Fn(Kernel, &mut [u8], &mut [u8])) -> [[Vec<u8>; 2]; 2] {
    [Kernel::detect(), Kernel::Scalar].map(|kernel| {
        let mut outs = [vec![0x77; length + 64], vec![0x77; length + 64]];
        let [first, second] = &mut outs;
        run(kernel, &mut first[13..13 + length], &mut second[31..31 + length]);
        outs
    })
}

proptest! {
    #[test]
    fn the_vector_loops_do_what_the_plain_ones_do((sources, length) in unaligned(), constant in any::<u8>()) {
        let sources: Vec<&[u8]> = sources.iter().map(|(bytes, start)| &bytes[*start..][..length]).collect();
        let [fast, plain] = both(length, |kernel, out, _| kernel.sum(&sources, out));
        prop_assert_eq!(fast, plain);
        let [fast, plain] = both(length, |kernel, p, q| kernel.syndromes(&sources, p, q));
        prop_assert_eq!(fast, plain);
        let by = Multiplier::new(constant);
        let [fast, plain] = both(length, |kernel, out, _| kernel.multiply_add(&by, sources[0], out));
        prop_assert_eq!(&fast, &plain);
        for (out, source) in plain[0][13..].iter().zip(sources[0]) {
            prop_assert_eq!(*out, 0x77 ^ oracle::product(constant, *source));
        }
    }

    #[test]
    fn what_is_encoded_comes_back(
        ((profile, data), missing) in data().prop_flat_map(|(profile, data)| {
            let shards = (0..profile.shards()).collect::<Vec<_>>();
            (Just((profile, data)), subsequence(shards, 0..=profile.parity_shards()).prop_shuffle())
        })
    ) {
        let expected = oracle::encode(profile, &data);
        prop_assert_eq!(&parity(profile, &data), &expected);
        let shards = [data, expected].concat();
        for (index, out) in missing.iter().zip(reconstruct(profile, &shards, &missing, &missing).unwrap()) {
            prop_assert_eq!(&out, &shards[*index]);
        }
    }

    #[test]
    fn a_range_of_the_code_is_the_code_of_the_range((profile, data) in data(), cuts in any::<[u16; 2]>()) {
        let blocks = data[0].len() / 64;
        let [a, b] = cuts.map(|cut| usize::from(cut) % (blocks + 1) * 64);
        let range = a.min(b)..a.max(b);
        let part: Vec<&[u8]> = data.iter().map(|shard| &shard[range.clone()]).collect();
        let whole = parity(profile, &data);
        let expected: Vec<Vec<u8>> = whole.iter().map(|shard| shard[range.clone()].to_vec()).collect();
        prop_assert_eq!(parity(profile, &part), expected);
    }

    #[test]
    fn parity_of_a_change_is_the_change_of_parity((profile, data) in data(), shard in any::<u8>()) {
        let shard = usize::from(shard) % data.len();
        let add = |a: &[u8], b: &[u8]| a.iter().zip(b).map(|(a, b)| a ^ b).collect::<Vec<u8>>();
        let new = oracle::noise(7, data[0].len());
        let mut delta = vec![vec![0; data[0].len()]; data.len()];
        delta[shard] = add(&data[shard], &new);
        let mut after = data.clone();
        after[shard] = new;
        let (old, change) = (parity(profile, &data), parity(profile, &delta));
        let sum: Vec<Vec<u8>> = old.iter().zip(&change).map(|(old, change)| add(old, change)).collect();
        prop_assert_eq!(sum, parity(profile, &after));
    }
}
