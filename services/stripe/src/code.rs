//! Parity over the shards of a stripe. (Being written.)

use crate::profile::{Code, Profile};
use thiserror::Error;

/// More shards are missing than the code can give back.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("{missing} of {shards} shards are missing, the code gives back at most {parity}")]
pub struct TooManyErasures {
    /// Shards missing.
    pub missing: usize,
    /// Shards in all.
    pub shards: usize,
    /// Parity shards.
    pub parity: usize,
}

/// The code of one profile, ready to use. Cheap to clone; has no state between calls.
#[derive(Clone, Debug)]
pub struct Codec {
    profile: Profile,
}

impl Codec {
    /// The code of a profile.
    pub fn new(profile: Profile) -> Self {
        Codec { profile }
    }

    /// Parity from data. All slices have one length, a multiple of 64 bytes. Panics on a wrong shape.
    pub fn encode(&self, data: &[&[u8]], parity: &mut [&mut [u8]]) {
        assert_eq!(self.profile.code(), Code::Xor);
        for out in parity.iter_mut() {
            out.fill(0);
            for d in data {
                for (a, b) in out.iter_mut().zip(*d) {
                    *a ^= b;
                }
            }
        }
    }

    /// Fills `wanted` (shard index and where its bytes go) from the shards present. `shards` has one entry for each
    /// of the n shards. All slices have one length, a multiple of 64 bytes.
    pub fn reconstruct(
        &self,
        shards: &[Option<&[u8]>],
        wanted: &mut [(usize, &mut [u8])],
    ) -> Result<(), TooManyErasures> {
        for (_, out) in wanted.iter_mut() {
            out.fill(0);
            for d in shards.iter().flatten() {
                for (a, b) in out.iter_mut().zip(*d) {
                    *a ^= b;
                }
            }
        }
        Ok(())
    }
}
