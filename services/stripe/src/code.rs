//! Parity over the shards of a stripe: computed from data, and lost shards computed from the others.
//!
//! Decides what each profile's parity is and what follows from which shards. Does not decide whether bytes are the
//! right ones (checksums do) nor which shards to read (the planner does). Shards are data from 0, then parity.
//!
//! Every code works on the bytes at one offset at a time, in blocks of 64 bytes: coding a range of whole blocks
//! gives the same range of the result. And every code is linear: the parity of a difference is the difference of
//! the parities.

#[cfg(target_arch = "x86_64")]
mod avx2;
mod field;
mod kernel;
mod pq;
mod rs;
mod self_test;
#[cfg(test)]
mod tests;

use thiserror::Error;

use crate::profile::{Code, DATA_SHARDS_MAX, PARITY_SHARDS_MAX, Profile};
use kernel::{ALIGNMENT_BYTES, Kernel};

pub use self_test::{KernelFault, self_test};

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
    kernel: Kernel,
}

impl Codec {
    /// The code of a profile.
    pub fn new(profile: Profile) -> Self {
        Codec { profile, kernel: Kernel::detect() }
    }

    /// Parity from all k data shards into all m parity shards. All slices have one length, a multiple of 64 bytes.
    /// Panics on a wrong shape.
    pub fn encode(&self, data: &[&[u8]], parity: &mut [&mut [u8]]) {
        assert_eq!(data.len(), self.profile.data_shards(), "data shards of {}", self.profile);
        assert_eq!(parity.len(), self.profile.parity_shards(), "parity shards of {}", self.profile);
        let length = data[0].len();
        assert_one_length(length, data.iter().map(|shard| shard.len()));
        assert_one_length(length, parity.iter().map(|shard| shard.len()));
        match (self.profile.code(), parity) {
            (Code::None, _) => {}
            (Code::Copy, copies) => copies.iter_mut().for_each(|copy| copy.copy_from_slice(data[0])),
            (Code::Xor, [p]) => self.kernel.sum(data, p),
            (Code::PQ, [p, q]) => self.kernel.syndromes(data, p, q),
            (Code::ReedSolomon, parity) => rs::encode(data, parity, length),
            (Code::Xor | Code::PQ, _) => unreachable!("the profile has the parity shards of its code"),
        }
    }

    /// Fills `wanted` (shard index and where its bytes go) from the shards present. `shards` has one entry for
    /// each of the n shards. All slices have one length, a multiple of 64 bytes.
    ///
    /// A wanted shard counts as missing even if it is given: it is computed from the others. Of the others as few
    /// as possible are read: data first, then parity from the lowest index. Fails, and writes nothing, if more
    /// than m are missing. Panics on a wrong shape, and if a shard is wanted twice.
    pub fn reconstruct(
        &self,
        shards: &[Option<&[u8]>],
        wanted: &mut [(usize, &mut [u8])],
    ) -> Result<(), TooManyErasures> {
        let (data, parity) = (self.profile.data_shards(), self.profile.parity_shards());
        assert_eq!(shards.len(), data + parity, "shards of {}", self.profile);
        let mut given = [None; (DATA_SHARDS_MAX + PARITY_SHARDS_MAX) as usize];
        let given = &mut given[..shards.len()];
        given.copy_from_slice(shards);
        for (position, (index, _)) in wanted.iter().enumerate() {
            let earlier = &wanted[..position];
            assert!(earlier.iter().all(|(other, _)| other != index), "shard {index} is wanted twice");
            given[*index] = None;
        }
        let present = given.iter().flatten().count();
        if present < data {
            return Err(TooManyErasures { missing: shards.len() - present, shards: shards.len(), parity });
        }
        let Some(length) = wanted.first().map(|(_, out)| out.len()) else { return Ok(()) };
        assert_one_length(length, given.iter().flatten().map(|shard| shard.len()));
        assert_one_length(length, wanted.iter().map(|(_, out)| out.len()));
        match self.profile.code() {
            Code::None => unreachable!("a wanted shard is missing, and none may be"),
            Code::Copy => copy(given, wanted),
            Code::Xor => sum_of_others(self.kernel, given, wanted),
            Code::PQ => pq::reconstruct(self.kernel, given, wanted, length),
            Code::ReedSolomon => rs::reconstruct(self.kernel, data, given, wanted, length),
        }
        Ok(())
    }
}

fn copy(shards: &[Option<&[u8]>], wanted: &mut [(usize, &mut [u8])]) {
    let source = shards.iter().flatten().next().expect("one copy is present");
    wanted.iter_mut().for_each(|(_, out)| out.copy_from_slice(source));
}

/// All shards of a stripe with P add up to nothing, so each is the sum of the others.
fn sum_of_others(kernel: Kernel, shards: &[Option<&[u8]>], wanted: &mut [(usize, &mut [u8])]) {
    let mut sources = [&[][..]; DATA_SHARDS_MAX as usize];
    let others = shards.len() - 1;
    for (source, shard) in sources.iter_mut().zip(shards.iter().flatten()) {
        *source = shard;
    }
    wanted.iter_mut().for_each(|(_, out)| kernel.sum(&sources[..others], out));
}

fn assert_one_length(length: usize, mut lengths: impl Iterator<Item = usize>) {
    assert!(length.is_multiple_of(ALIGNMENT_BYTES), "{length} bytes are no multiple of {ALIGNMENT_BYTES}");
    assert!(lengths.all(|other| other == length), "shards of one stripe have one length");
}
