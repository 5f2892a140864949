//! Parity: for every vertical with a live sector, the parities equal the code over the data; shards that are bad apart.

use stripeset_stripe::code::Codec;

use super::Violation;
use crate::vertical::Vertical;

/// The name of it.
pub const NAME: &str = "parity equals the code over the data";

/// Checks one vertical; whether there was anything to compare.
pub fn check(codec: &Codec, vertical: &Vertical) -> Result<bool, Violation> {
    let k = vertical.live.len();
    let data: Option<Vec<&[u8]>> = vertical.shards[..k].iter().map(Option::as_deref).collect();
    let Some(data) = data.filter(|_| vertical.any_live()) else { return Ok(false) };
    let length = data.first().map_or(0, |sector| sector.len());
    let mut expected = vec![vec![0; length]; vertical.shards.len() - k];
    let mut targets: Vec<&mut [u8]> = expected.iter_mut().map(Vec::as_mut_slice).collect();
    codec.encode(&data, &mut targets);
    for (parity, (found, expected)) in vertical.shards[k..].iter().zip(&expected).enumerate() {
        if found.as_ref().is_some_and(|found| found != expected) {
            return Err(Violation::new(
                NAME,
                format!("parity {parity} of vertical {} does not", vertical.index),
            ));
        }
    }
    Ok(vertical.shards[k..].iter().any(Option::is_some))
}

#[cfg(test)]
pub(super) mod tests {
    use stripeset_stripe::{Profile, profile::ProfileSpec};

    use super::*;

    /// A sound vertical, all of it live.
    pub(in super::super) fn sound(word: &str) -> (Codec, Profile, Vertical) {
        let profile = word.parse::<ProfileSpec>().unwrap().resolve(16).unwrap();
        let codec = Codec::new(profile);
        let data: Vec<Vec<u8>> =
            (0..profile.data_shards() as u8).map(|shard| vec![shard * 3 + 1; 4096]).collect();
        let mut parity = vec![vec![0; 4096]; profile.parity_shards()];
        let sources: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
        let mut targets: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
        codec.encode(&sources, &mut targets);
        let shards = data.into_iter().chain(parity).map(Some).collect();
        (codec, profile, Vertical { index: 0, shards, live: vec![true; profile.data_shards()] })
    }

    #[test]
    fn a_changed_shard_is_seen_wherever_it_is_and_a_bad_one_is_no_violation() {
        for word in ["raid5-3+1", "raid6-3+2", "mirror3", "rs-3+3"] {
            let (codec, profile, vertical) = sound(word);
            assert_eq!(check(&codec, &vertical), Ok(true));
            for shard in 0..profile.shards() {
                let mut broken = vertical.clone();
                broken.shards[shard].as_mut().unwrap()[77] ^= 1;
                assert!(check(&codec, &broken).is_err(), "{word}, shard {shard}");
                broken.shards[shard] = None;
                assert!(check(&codec, &broken).is_ok(), "{word}, shard {shard}");
                broken.shards[shard] = Some(vec![0xee; 4096]);
                broken.live.fill(false);
                assert_eq!(check(&codec, &broken), Ok(false), "{word}, shard {shard}");
            }
        }
    }
}
