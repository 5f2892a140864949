//! Three parities and more: the code of the crate `reed-solomon-simd`, which works in GF(2^16).
//!
//! Parity is made by the crate's encoder. Lost shards are not brought back by its decoder, which spends half a
//! millisecond on each call before it looks at a byte; here the few equations that the lost shards stand in are
//! solved, and the crate's arithmetic is applied to the bytes. The bytes are the same.
//!
//! A shard is a row of blocks of 64 bytes: the low bytes of 32 elements, then their high bytes. Every element of
//! parity is a fixed combination of the elements at the same place of the data shards. So a range of whole blocks
//! is coded without the rest of the shard, and both directions go through a shard a few KiB at a time, which keeps
//! what they allocate small and in the cache.

use reed_solomon_simd::{
    ReedSolomonEncoder,
    engine::{DefaultEngine, Engine, GF_MODULUS, GfElement, tables},
};

use super::kernel::{ALIGNMENT_BYTES, Kernel};
use crate::profile::{DATA_SHARDS_MAX, PARITY_SHARDS_MAX};

/// Bytes of a shard that are encoded together.
const ENCODE_BYTES: usize = 4096;

/// Bytes of a shard that are reconstructed together: one block from each shard used fits the first-level cache.
const RECONSTRUCT_BYTES: usize = 1024;

const DATA_MAX: usize = DATA_SHARDS_MAX as usize;
const PARITY_MAX: usize = PARITY_SHARDS_MAX as usize;

/// One shard as a combination of others: the factor of each. Lost shards have factor 0.
type Combination = [GfElement; DATA_MAX + PARITY_MAX];

/// The crate refuses a call only for wrong counts and lengths, and those were checked.
const SHAPE: &str = "counts and lengths were checked";

/// Parity from data.
pub(super) fn encode(data: &[&[u8]], parity: &mut [&mut [u8]], length: usize) {
    if length == 0 {
        return;
    }
    let block_bytes = length.min(ENCODE_BYTES);
    let mut encoder = ReedSolomonEncoder::new(data.len(), parity.len(), block_bytes).expect(SHAPE);
    for start in (0..length).step_by(ENCODE_BYTES) {
        let range = start..length.min(start + ENCODE_BYTES);
        if range.len() < block_bytes {
            encoder.reset(data.len(), parity.len(), range.len()).expect(SHAPE);
        }
        for shard in data {
            encoder.add_original_shard(&shard[range.clone()]).expect(SHAPE);
        }
        let result = encoder.encode().expect(SHAPE);
        for (out, bytes) in parity.iter_mut().zip(result.recovery_iter()) {
            out[range.clone()].copy_from_slice(bytes);
        }
    }
}

/// Fills the wanted shards. At most m are missing, the wanted ones among them.
pub(super) fn reconstruct(
    kernel: Kernel,
    data_shards: usize,
    shards: &[Option<&[u8]>],
    wanted: &mut [(usize, &mut [u8])],
    length: usize,
) {
    let recovery = Recovery::new(data_shards, shards);
    let engine = DefaultEngine::new();
    let log = &tables::get_exp_log().log;
    let mut products = [[[0; ALIGNMENT_BYTES]; RECONSTRUCT_BYTES / ALIGNMENT_BYTES]; DATA_MAX];
    for (index, out) in wanted {
        let combination = recovery.combination(*index);
        for start in (0..length).step_by(RECONSTRUCT_BYTES) {
            let range = start..length.min(start + RECONSTRUCT_BYTES);
            let mut used = 0;
            for (factor, shard) in combination.iter().zip(shards).filter(|(factor, _)| **factor != 0) {
                let shard = shard.expect("lost shards have factor 0");
                let product = &mut products[used][..range.len() / ALIGNMENT_BYTES];
                product.as_flattened_mut().copy_from_slice(&shard[range.clone()]);
                engine.mul(product, log[usize::from(*factor)]);
                used += 1;
            }
            let products = products.each_ref().map(|product| &product.as_flattened()[..range.len()]);
            kernel.sum(&products[..used], &mut out[range]);
        }
    }
}

/// How every shard follows from k of those at hand.
struct Recovery {
    data_shards: usize,
    /// Row j: parity j as a combination of the data shards.
    parity: [[GfElement; DATA_MAX]; PARITY_MAX],
    /// Row i: data shard i as a combination of shards at hand.
    data: [Combination; DATA_MAX],
}

impl Recovery {
    fn new(data_shards: usize, shards: &[Option<&[u8]>]) -> Self {
        let parity = generator(data_shards, shards.len() - data_shards);
        let mut data = [[0; DATA_MAX + PARITY_MAX]; DATA_MAX];
        for (index, combination) in data[..data_shards].iter_mut().enumerate() {
            combination[index] = GfElement::from(shards[index].is_some());
        }
        let lost = (0..data_shards).filter(|index| shards[*index].is_none());
        let known = (data_shards..shards.len()).filter(|index| shards[*index].is_some());
        let (mut equations, mut unknowns) = (Vec::with_capacity(PARITY_MAX), Vec::with_capacity(PARITY_MAX));
        for (unknown, parity_index) in lost.zip(known) {
            let row = &parity[parity_index - data_shards];
            // What the lost shards contribute is the parity less what the others do; less is plus in this field.
            let mut sum = combine(&row[..data_shards], &data);
            sum[parity_index] = 1;
            equations.push((row, sum));
            unknowns.push(unknown);
        }
        let mut left: Vec<[GfElement; PARITY_MAX]> = equations
            .iter()
            .map(|(row, _)| core::array::from_fn(|n| unknowns.get(n).map_or(0, |unknown| row[*unknown])))
            .collect();
        let mut right: Vec<Combination> = equations.iter().map(|(_, sum)| *sum).collect();
        solve(&mut left, &mut right);
        for (unknown, combination) in unknowns.iter().zip(right) {
            data[*unknown] = combination;
        }
        Recovery { data_shards, parity, data }
    }

    fn combination(&self, shard: usize) -> Combination {
        match shard.checked_sub(self.data_shards) {
            None => self.data[shard],
            Some(parity) => combine(&self.parity[parity][..self.data_shards], &self.data),
        }
    }
}

/// The parity rows of the code, read off from one call of the encoder: element i of data shard i is 1, all others
/// are 0, so element i of a parity is what it takes of data shard i.
fn generator(data_shards: usize, parity_shards: usize) -> [[GfElement; DATA_MAX]; PARITY_MAX] {
    let mut units = [[0; ALIGNMENT_BYTES]; DATA_MAX];
    (0..data_shards).for_each(|index| units[index][index] = 1);
    let mut encoder = ReedSolomonEncoder::new(data_shards, parity_shards, ALIGNMENT_BYTES).expect(SHAPE);
    for unit in &units[..data_shards] {
        encoder.add_original_shard(unit).expect(SHAPE);
    }
    let result = encoder.encode().expect(SHAPE);
    let mut rows = [[0; DATA_MAX]; PARITY_MAX];
    for (row, bytes) in rows.iter_mut().zip(result.recovery_iter()) {
        let (low, high) = bytes.split_at(ALIGNMENT_BYTES / 2);
        *row = core::array::from_fn(|index| GfElement::from_le_bytes([low[index], high[index]]));
    }
    rows
}

/// The sum of rows, each times its factor.
fn combine(factors: &[GfElement], rows: &[Combination]) -> Combination {
    let mut sum = [0; DATA_MAX + PARITY_MAX];
    for (factor, row) in factors.iter().zip(rows) {
        add_multiple(&mut sum, *factor, row);
    }
    sum
}

/// Solves `left * x = right` for as many unknowns as there are rows; x takes the place of `right`.
///
/// Without a search for pivots: as any k shards determine the others, every square part of the code's parity rows
/// can be inverted, and then the diagonal never becomes 0.
fn solve(left: &mut [[GfElement; PARITY_MAX]], right: &mut [Combination]) {
    for column in 0..left.len() {
        let scale = inverse(left[column][column]);
        left[column] = left[column].map(|element| multiply(element, scale));
        right[column] = right[column].map(|element| multiply(element, scale));
        let (pivot_left, pivot_right) = (left[column], right[column]);
        for row in (0..left.len()).filter(|row| *row != column) {
            let factor = left[row][column];
            add_multiple(&mut left[row], factor, &pivot_left);
            add_multiple(&mut right[row], factor, &pivot_right);
        }
    }
}

fn add_multiple<const N: usize>(sum: &mut [GfElement; N], factor: GfElement, row: &[GfElement; N]) {
    for (sum, element) in sum.iter_mut().zip(row) {
        *sum ^= multiply(*element, factor);
    }
}

fn multiply(a: GfElement, b: GfElement) -> GfElement {
    let tables = tables::get_exp_log();
    if b == 0 { 0 } else { tables::mul(a, tables.log[usize::from(b)], &tables.exp, &tables.log) }
}

fn inverse(a: GfElement) -> GfElement {
    assert_ne!(a, 0, "0 has no inverse");
    let tables = tables::get_exp_log();
    tables.exp[usize::from(GF_MODULUS - tables.log[usize::from(a)])]
}
