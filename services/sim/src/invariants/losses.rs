//! Losses: whatever m shards of a vertical are taken away, the live bytes come back from the others, and are right.

use stripeset_stripe::code::Codec;

use super::Violation;
use crate::vertical::Vertical;

/// The name of it.
pub const NAME: &str = "any m losses leave every live byte";

/// Takes every pattern of shards away that leaves the vertical within what the profile bears, bad ones included, at most
/// `patterns_max` of them, and compares what is rebuilt: `permits` knows whether a data shard may hold these bytes.
/// Returns the number of patterns.
pub fn check(
    codec: &Codec,
    vertical: &Vertical,
    patterns_max: usize,
    permits: impl Fn(usize, &[u8]) -> bool,
) -> Result<u64, Violation> {
    let (n, k) = (vertical.shards.len(), vertical.live.len());
    let bad: u32 =
        (0..n).filter(|shard| vertical.shards[*shard].is_none()).fold(0, |bad, shard| bad | 1 << shard);
    for (shard, bytes) in vertical.shards[..k].iter().enumerate() {
        if let Some(bytes) = bytes
            && vertical.live[shard]
            && !permits(shard, bytes)
        {
            return Err(Violation::new(
                NAME,
                format!("shard {shard} of vertical {} is wrong on its disk", vertical.index),
            ));
        }
    }
    let patterns = (0..1u32 << n).filter(|lost| lost & bad == bad && lost.count_ones() as usize == n - k);
    let mut checked = 0;
    for lost in patterns.take(patterns_max) {
        let gone = |shard: usize| lost >> shard & 1 == 1;
        let wanted: Vec<usize> = (0..k).filter(|shard| gone(*shard) && vertical.live[*shard]).collect();
        if wanted.is_empty() {
            continue;
        }
        let shards: Vec<Option<&[u8]>> =
            (0..n).map(|shard| vertical.shards[shard].as_deref().filter(|_| !gone(shard))).collect();
        let length = shards.iter().flatten().next().map_or(0, |bytes| bytes.len());
        let mut rebuilt = vec![vec![0; length]; wanted.len()];
        let mut targets: Vec<(usize, &mut [u8])> =
            wanted.iter().copied().zip(rebuilt.iter_mut().map(Vec::as_mut_slice)).collect();
        let possible = codec.reconstruct(&shards, &mut targets).is_ok();
        for (shard, bytes) in wanted.iter().zip(&rebuilt) {
            if !possible || !permits(*shard, bytes) {
                let detail =
                    format!("shard {shard} of vertical {} is wrong with {lost:b} away", vertical.index);
                return Err(Violation::new(NAME, detail));
            }
        }
        checked += 1;
    }
    Ok(checked)
}

#[cfg(test)]
mod tests {
    use super::{super::parity::tests::sound, *};

    #[test]
    fn parity_that_does_not_fit_is_seen_and_so_is_a_wrong_sector() {
        for word in ["raid5-3+1", "raid6-3+2", "mirror3", "rs-3+3"] {
            let (codec, profile, vertical) = sound(word);
            let right = |shard: usize, bytes: &[u8]| bytes == vec![shard as u8 * 3 + 1; 4096];
            let patterns = check(&codec, &vertical, usize::MAX, right).unwrap();
            assert!(patterns >= 1, "{word}");
            for shard in 0..profile.shards() {
                let mut broken = vertical.clone();
                broken.shards[shard].as_mut().unwrap()[9] ^= 1;
                assert!(check(&codec, &broken, usize::MAX, right).is_err(), "{word}, shard {shard}");
                broken.shards[shard] = None;
                assert!(check(&codec, &broken, usize::MAX, right).is_ok(), "{word}, shard {shard}");
            }
        }
    }
}
