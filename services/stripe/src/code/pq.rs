//! P and Q: which lost shards follow from which others, and by which constants.
//!
//! With D(i) the data shards and g = 2, P is the sum of D(i) and Q the sum of g^i D(i) (H. Peter Anvin, "The
//! mathematics of RAID-6"). Let P' and Q' be the same over the data at hand, lost shards taken as zero. Then
//! - one lost, with P: D(x) = P + P';
//! - one lost, with Q: D(x) = g^-x (Q + Q');
//! - two lost: D(x) = A (P + P') + B (Q + Q') and D(y) = P + P' + D(x), where A = g^(y-x) / (g^(y-x) + 1) and B =
//!   g^-x / (g^(y-x) + 1).
//!
//! Works through a stripe a block at a time: the intermediate sums then stay on the stack and in the cache.

use super::{
    field::{Multiplier, inverse, multiply, power},
    kernel::Kernel,
};
use crate::profile::DATA_SHARDS_MAX;

/// Bytes of a shard handled together. A multiple of the kernels' alignment; all blocks of a stripe fit the
/// first-level cache together with the sums.
const BLOCK_BYTES: usize = 2048;

static ZEROS: [u8; BLOCK_BYTES] = [0; BLOCK_BYTES];

/// How the lost data shards follow from what is there.
enum Solution {
    /// No data shard is lost.
    Nothing,
    /// One from P and the other data.
    FromP { x: usize },
    /// One from Q and the other data.
    FromQ { x: usize, scale: Multiplier },
    /// Two from P, Q and the other data.
    Two { x: usize, y: usize, a: Multiplier, b: Multiplier },
}

impl Solution {
    /// Panics if the shards are not enough.
    fn new(data: &[Option<&[u8]>], p: Option<&[u8]>) -> Self {
        let mut lost = (0..data.len()).filter(|index| data[*index].is_none());
        let inverse_power = |exponent| inverse(power(exponent));
        match (lost.next(), lost.next()) {
            (None, _) => Solution::Nothing,
            (Some(x), None) if p.is_some() => Solution::FromP { x },
            (Some(x), None) => Solution::FromQ { x, scale: Multiplier::new(inverse_power(x)) },
            (Some(x), Some(y)) => {
                let distance = power(y - x);
                let divisor = inverse(distance ^ 1);
                let a = Multiplier::new(multiply(distance, divisor));
                let b = Multiplier::new(multiply(inverse_power(x), divisor));
                Solution::Two { x, y, a, b }
            }
        }
    }
}

/// Fills the wanted shards. At most two are missing, the wanted ones among them.
pub(super) fn reconstruct(
    kernel: Kernel,
    shards: &[Option<&[u8]>],
    wanted: &mut [(usize, &mut [u8])],
    length: usize,
) {
    let data_shards = shards.len() - 2;
    let solution = Solution::new(&shards[..data_shards], shards[data_shards]);
    let mut scratch = [ZEROS; 4];
    for start in (0..length).step_by(BLOCK_BYTES) {
        let range = start..length.min(start + BLOCK_BYTES);
        let [p_sum, q_sum, x, y] = scratch.each_mut().map(|sum| &mut sum[..range.len()]);
        let block = |index: usize| shards[index].map(|shard| &shard[range.clone()]);

        let mut data = [&ZEROS[..range.len()]; DATA_SHARDS_MAX as usize];
        let data = &mut data[..data_shards];
        for (index, data) in data.iter_mut().enumerate() {
            *data = block(index).unwrap_or(data);
        }
        let parity = [block(data_shards), block(data_shards + 1)];
        solution.solve(kernel, data, parity, [p_sum, q_sum], [x, y]);
        if wanted.iter().any(|(index, _)| *index >= data_shards) {
            kernel.syndromes(data, p_sum, q_sum);
        }
        for (index, out) in wanted.iter_mut() {
            let bytes = match index.checked_sub(data_shards) {
                None => data[*index],
                Some(0) => p_sum,
                Some(_) => q_sum,
            };
            out[range.clone()].copy_from_slice(bytes);
        }
    }
}

impl Solution {
    /// Puts the lost data of one block into `lost`, and in its place in `data`, which held zeros there.
    fn solve<'a>(
        &self,
        kernel: Kernel,
        data: &mut [&'a [u8]],
        [p, q]: [Option<&'a [u8]>; 2],
        [p_sum, q_sum]: [&mut [u8]; 2],
        [x_bytes, y_bytes]: [&'a mut [u8]; 2],
    ) {
        let given = |parity: Option<&'a [u8]>| parity.expect("the solution was chosen for the shards given");
        match self {
            Solution::Nothing => {}
            Solution::FromP { x } => {
                data[*x] = given(p);
                kernel.sum(data, x_bytes);
                data[*x] = x_bytes;
            }
            Solution::FromQ { x, scale } => {
                kernel.syndromes(data, p_sum, q_sum);
                x_bytes.fill(0);
                kernel.multiply_add(scale, q_sum, x_bytes);
                kernel.multiply_add(scale, given(q), x_bytes);
                data[*x] = x_bytes;
            }
            Solution::Two { x, y, a, b } => {
                kernel.syndromes(data, p_sum, q_sum);
                x_bytes.fill(0);
                for (scale, sum) in [(a, &*p_sum), (a, given(p)), (b, &*q_sum), (b, given(q))] {
                    kernel.multiply_add(scale, sum, x_bytes);
                }
                kernel.sum(&[p_sum, given(p), x_bytes], y_bytes);
                (data[*x], data[*y]) = (x_bytes, y_bytes);
            }
        }
    }
}
