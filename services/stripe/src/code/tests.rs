//! The codes against slow ones that share nothing with them, and against vectors worked out by hand; every erasure
//! pattern of every profile. Random shapes and lengths are in [`properties`].

mod oracle;
mod properties;

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;
use oracle::{encode, noise, subsets};

/// Every profile of which all erasure patterns can be tried.
fn profiles() -> Vec<Profile> {
    let raid5 = (1..=16).map(|data| format!("raid5-{data}+1"));
    let raid6 = (1..=16).map(|data| format!("raid6-{data}+2"));
    let rs = ["rs-1+3", "rs-2+3", "rs-3+3", "rs-3+5", "rs-4+3", "rs-4+4", "rs-5+3", "rs-8+3", "rs-10+4"];
    let fixed = ["single", "dup", "mirror2", "mirror3"];
    let named = fixed.into_iter().chain(rs).map(str::to_owned);
    named.chain(raid5).chain(raid6).map(|name| name.parse().unwrap()).collect()
}

/// A stripe with the parity of the slow code.
fn stripe(profile: Profile, bytes: usize) -> Vec<Vec<u8>> {
    let mut shards: Vec<_> = (0..profile.data_shards()).map(|index| noise(index as u64, bytes)).collect();
    shards.extend(encode(profile, &shards));
    shards
}

/// Parity of the code under test, into buffers that were not zero.
fn parity(profile: Profile, data: &[impl AsRef<[u8]>]) -> Vec<Vec<u8>> {
    let data: Vec<&[u8]> = data.iter().map(AsRef::as_ref).collect();
    let mut parity = vec![vec![0xa5; data[0].len()]; profile.parity_shards()];
    let mut outs: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
    Codec::new(profile).encode(&data, &mut outs);
    parity
}

/// The wanted shards, from all but those missing.
fn reconstruct(
    profile: Profile,
    shards: &[Vec<u8>],
    missing: &[usize],
    wanted: &[usize],
) -> Result<Vec<Vec<u8>>, TooManyErasures> {
    let given: Vec<Option<&[u8]>> = (0..shards.len())
        .map(|index| (!missing.contains(&index)).then_some(shards[index].as_slice()))
        .collect();
    let mut outs = vec![vec![0xa5; shards[0].len()]; wanted.len()];
    let mut pairs: Vec<(usize, &mut [u8])> =
        wanted.iter().copied().zip(outs.iter_mut().map(Vec::as_mut_slice)).collect();
    Codec::new(profile).reconstruct(&given, &mut pairs)?;
    Ok(outs)
}

#[test]
fn p_and_q_are_those_worked_out_by_hand() {
    // Q = 01 + 2*02 + 4*80; 2*80 = 100 - 11d = 1d, 4*80 = 3a, so Q = 01 + 04 + 3a = 3f.
    let shards = [vec![0x01; 64], vec![0x02; 64], vec![0x80; 64]];
    let [p, q] = parity("raid6-3+2".parse().unwrap(), &shards).try_into().unwrap();
    assert_eq!((p, q), (vec![0x83; 64], vec![0x3f; 64]));
    // One shard of ones at each index: Q is the power of 2 at that index, by the powers of 2 in this field.
    let powers =
        [0x01, 0x02, 0x04, 0x08, 0x10, 0x20, 0x40, 0x80, 0x1d, 0x3a, 0x74, 0xe8, 0xcd, 0x87, 0x13, 0x26];
    for (index, power) in powers.into_iter().enumerate() {
        let mut shards = vec![vec![0; 64]; 16];
        shards[index] = vec![1; 64];
        let [p, q] = parity("raid6-16+2".parse().unwrap(), &shards).try_into().unwrap();
        assert_eq!((p, q), (vec![1; 64], vec![power; 64]), "data shard {index}");
    }
}

#[test]
fn p_and_q_are_those_of_another_program() {
    // Byte n of shard i is (37 n + 101 i + 11 n i) mod 256; parity by a script with its own field arithmetic.
    let shard =
        |index: usize| (0..64).map(|n| (37 * n + 101 * index + 11 * n * index) as u8).collect::<Vec<_>>();
    for (data, p_expected, q_expected) in oracle::VECTORS {
        let profile = format!("raid6-{data}+2").parse().unwrap();
        let [p, q] = parity(profile, &(0..data).map(shard).collect::<Vec<_>>()).try_into().unwrap();
        assert_eq!((&p[..16], &q[..16]), (&p_expected[..], &q_expected[..]), "{data} data shards");
    }
}

/// Parity lies on disks: a release of the crate that computes other bytes must not pass unnoticed.
#[test]
fn the_bytes_of_three_parities_and_more_do_not_change() {
    for (name, checksum) in oracle::PARITY_CHECKSUMS {
        let profile: Profile = name.parse().unwrap();
        let data: Vec<_> = (0..profile.data_shards()).map(|index| noise(index as u64, 256)).collect();
        assert_eq!(crc32c::crc32c(&parity(profile, &data).concat()), checksum, "{name}");
    }
}

#[test]
fn every_profile_encodes_as_the_slow_code_does() {
    for profile in profiles() {
        let shards = stripe(profile, 192);
        let (data, expected) = shards.split_at(profile.data_shards());
        assert_eq!(parity(profile, data), expected, "{profile}");
    }
}

#[test]
fn every_erasure_pattern_and_every_part_of_it_comes_back() {
    for profile in profiles() {
        let shards = stripe(profile, 64);
        for missing in subsets(profile.shards(), profile.parity_shards()) {
            for wanted in subsets(missing.len(), missing.len()) {
                let wanted: Vec<usize> = wanted.iter().rev().map(|position| missing[*position]).collect();
                let outs = reconstruct(profile, &shards, &missing, &wanted).unwrap();
                for (index, out) in wanted.iter().zip(outs) {
                    assert_eq!(out, shards[*index], "{profile}: {index} of {wanted:?}, {missing:?} missing");
                }
            }
        }
    }
}

#[test]
fn more_than_the_code_bears_is_refused_and_nothing_is_written() {
    for profile in profiles() {
        let (shards, parity) = (stripe(profile, 64), profile.parity_shards());
        for missing in subsets(profile.shards(), parity + 1).into_iter().filter(|set| set.len() > parity) {
            let error = TooManyErasures { missing: missing.len(), shards: profile.shards(), parity };
            assert_eq!(
                reconstruct(profile, &shards, &missing, &missing[..1]),
                Err(error),
                "{profile} {missing:?}"
            );
        }
        let mut out = vec![0xa5; 64];
        let none = vec![None; profile.shards()];
        let error = TooManyErasures { missing: profile.shards(), shards: profile.shards(), parity };
        assert_eq!(Codec::new(profile).reconstruct(&none, &mut [(0, &mut out)]), Err(error));
        assert_eq!(out, [0xa5; 64]);
    }
}

#[test]
fn a_wanted_shard_is_not_read_even_if_given() {
    for profile in profiles() {
        let good = stripe(profile, 64);
        for wanted in subsets(profile.shards(), profile.parity_shards()) {
            let mut shards = good.clone();
            wanted.iter().for_each(|index| shards[*index].fill(0xee));
            let outs = reconstruct(profile, &shards, &[], &wanted).unwrap();
            for (index, out) in wanted.iter().zip(outs) {
                assert_eq!(out, good[*index], "{profile}: {index} of {wanted:?}");
            }
        }
    }
}

#[test]
fn parity_that_is_not_needed_is_not_read() {
    for profile in profiles().into_iter().filter(|profile| profile.code() != Code::Copy) {
        let (good, data) = (stripe(profile, 64), profile.data_shards());
        for missing in subsets(profile.shards(), profile.parity_shards()) {
            let lost = missing.iter().filter(|index| **index < data).count();
            let mut shards = good.clone();
            let spare = (data..profile.shards()).filter(|index| !missing.contains(index)).skip(lost);
            spare.for_each(|index| shards[index].fill(0xee));
            let outs = reconstruct(profile, &shards, &missing, &missing).unwrap();
            for (index, out) in missing.iter().zip(outs) {
                assert_eq!(out, good[*index], "{profile}: {index} of {missing:?}");
            }
        }
    }
}

#[test]
fn the_widest_codes_bear_eight_losses() {
    for name in ["rs-16+8", "rs-15+8", "rs-9+8", "rs-8+8", "rs-1+8", "rs-16+3"] {
        let profile: Profile = name.parse().unwrap();
        let (shards, count) = (stripe(profile, 128), profile.shards());
        for seed in 0..200 {
            let order = noise(seed, count);
            let mut missing: Vec<usize> = (0..count).collect();
            missing.sort_by_key(|index| order[*index]);
            missing.truncate(profile.parity_shards());
            let outs = reconstruct(profile, &shards, &missing, &missing).unwrap();
            for (index, out) in missing.iter().zip(outs) {
                assert_eq!(out, shards[*index], "{profile}: {index} of {missing:?}");
            }
        }
    }
}

#[test]
fn nothing_wanted_and_no_bytes_are_no_work() {
    for profile in profiles() {
        assert_eq!(reconstruct(profile, &stripe(profile, 64), &[], &[]), Ok(vec![]));
        assert!(parity(profile, &vec![[]; profile.data_shards()]).iter().all(Vec::is_empty));
        let empty = vec![vec![]; profile.shards()];
        let missing: Vec<usize> = (0..profile.parity_shards()).collect();
        assert!(reconstruct(profile, &empty, &missing, &missing).is_ok());
    }
}

#[test]
fn wrong_shapes_are_the_callers_fault() {
    let [even, odd, long] = [vec![0; 64], vec![0; 60], vec![0; 128]];
    let panics = |action: &dyn Fn()| catch_unwind(AssertUnwindSafe(action)).is_err();
    for profile in profiles().into_iter().filter(|profile| profile.parity_shards() > 0) {
        let (codec, data) = (Codec::new(profile), profile.data_shards());
        let encode = |shards: &[&[u8]], bytes: usize, parity: usize| {
            let mut outs = vec![vec![0; bytes]; parity];
            codec.encode(shards, &mut outs.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>());
        };
        let all = vec![even.as_slice(); data];
        encode(&all, 64, profile.parity_shards());
        assert!(panics(&|| encode(&all, 128, profile.parity_shards())), "{profile}: parity of other length");
        assert!(panics(&|| encode(&all, 64, profile.parity_shards() + 1)), "{profile}: parity too many");
        assert!(panics(&|| encode(&all[1..], 64, profile.parity_shards())), "{profile}: data too few");
        let odd = vec![odd.as_slice(); data];
        assert!(panics(&|| encode(&odd, 60, profile.parity_shards())), "{profile}: length");

        let reconstruct = |shards: &[Option<&[u8]>], wanted: &[usize]| {
            let mut outs = vec![vec![0; 64]; wanted.len()];
            let outs = outs.iter_mut().map(Vec::as_mut_slice);
            codec.reconstruct(shards, &mut wanted.iter().copied().zip(outs).collect::<Vec<_>>()).unwrap();
        };
        let mut shards = vec![Some(even.as_slice()); profile.shards()];
        reconstruct(&shards, &[0]);
        assert!(panics(&|| reconstruct(&shards, &[0, 0])), "{profile}: wanted twice");
        assert!(panics(&|| reconstruct(&shards, &[profile.shards()])), "{profile}: no such shard");
        assert!(panics(&|| reconstruct(&shards[1..], &[0])), "{profile}: shards too few");
        shards[1] = Some(&long);
        assert!(panics(&|| reconstruct(&shards, &[0])), "{profile}: lengths differ");
    }
}
