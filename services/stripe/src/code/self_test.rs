//! The check that a process makes when it starts: do the vector loops give what the plain ones give, on this
//! processor? Parity computed wrongly would be found only when it is needed.
//!
//! Leaves to the unit tests whether the plain loops are right: that does not change from machine to machine.
//! Leaves out the crate that codes three parities and more: its tables take 10 ms and 8 MiB, which only arrays
//! that use it should pay.

use std::array;

use thiserror::Error;

use super::{
    field::Multiplier,
    kernel::{ALIGNMENT_BYTES, Kernel},
};
use crate::profile::DATA_SHARDS_MAX;

/// The processor, or the build, computes parity wrongly: the process must not touch a disk.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("the vector form of {operation} disagrees with the plain one, {sources} sources of {bytes} bytes")]
pub struct KernelFault {
    /// The operation: `sum`, `syndromes` or `multiply`.
    pub operation: &'static str,
    /// Shards that went in.
    pub sources: usize,
    /// Length of each in bytes.
    pub bytes: usize,
}

/// Most shards that go into one operation.
const SOURCES_MAX: usize = DATA_SHARDS_MAX as usize;

/// Longest shard tried: two strides of the vector loops and a rest.
const BYTES_MAX: usize = 5 * ALIGNMENT_BYTES;

/// The loops, under one roof so that they can be compared in one way.
#[derive(Clone, Copy, Debug)]
enum Operation<'a> {
    Sum,
    Syndromes,
    Multiply(&'a Multiplier),
}

type Outs = [[u8; BYTES_MAX]; 2];

/// Compares the forms for every number of sources, every constant, and lengths on both sides of the vector loops'
/// stride, on addresses that are not aligned. Takes a few milliseconds.
pub fn self_test() -> Result<(), KernelFault> {
    let kernel = Kernel::detect();
    compare(|operation, sources, outs| run(kernel, operation, sources, outs))
}

fn compare(fast: impl Fn(Operation, &[&[u8]], &mut Outs)) -> Result<(), KernelFault> {
    let noise = noise();
    let multipliers: Vec<Multiplier> = (0..=u8::MAX).map(Multiplier::new).collect();
    for bytes in (ALIGNMENT_BYTES..=BYTES_MAX).step_by(ALIGNMENT_BYTES) {
        // A different odd start for each shard: none is aligned, and no two in the same way.
        let shards: [&[u8]; SOURCES_MAX] = array::from_fn(|n| &noise[n * BYTES_MAX + 2 * n + 1..][..bytes]);
        for sources in (1..=SOURCES_MAX).map(|count| &shards[..count]) {
            check(&fast, Operation::Sum, sources)?;
            check(&fast, Operation::Syndromes, sources)?;
        }
        for multiplier in &multipliers {
            check(&fast, Operation::Multiply(multiplier), &shards[..1])?;
        }
    }
    Ok(())
}

fn check(
    fast: impl Fn(Operation, &[&[u8]], &mut Outs),
    operation: Operation,
    sources: &[&[u8]],
) -> Result<(), KernelFault> {
    // Not zeros: an operation that writes too little, or adds where it should set, has to show.
    let mut outs: [Outs; 2] = [[[0x5a; BYTES_MAX]; 2]; 2];
    fast(operation, sources, &mut outs[0]);
    run(Kernel::Scalar, operation, sources, &mut outs[1]);
    if outs[0] == outs[1] {
        return Ok(());
    }
    let operation = match operation {
        Operation::Sum => "sum",
        Operation::Syndromes => "syndromes",
        Operation::Multiply(_) => "multiply",
    };
    Err(KernelFault { operation, sources: sources.len(), bytes: sources[0].len() })
}

fn run(kernel: Kernel, operation: Operation, sources: &[&[u8]], outs: &mut Outs) {
    let bytes = sources[0].len();
    let [first, second] = outs.each_mut().map(|out| &mut out[..bytes]);
    match operation {
        Operation::Sum => kernel.sum(sources, first),
        Operation::Syndromes => kernel.syndromes(sources, first, second),
        Operation::Multiply(by) => kernel.multiply_add(by, sources[0], first),
    }
}

/// Bytes without a pattern, always the same: the high bytes of a linear congruential generator (Knuth's MMIX).
fn noise() -> Vec<u8> {
    let mut state = 1_u64;
    let next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state.to_be_bytes()[0]
    };
    std::iter::repeat_with(next).take((SOURCES_MAX + 1) * BYTES_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_processor_passes() {
        assert_eq!(self_test(), Ok(()));
    }

    /// Flips one bit of the output at one length of one operation, and expects exactly that to be reported.
    fn broken(wrong: fn(Operation) -> bool, bytes: usize, sources: usize) -> Result<(), KernelFault> {
        compare(|operation, given, outs| {
            run(Kernel::detect(), operation, given, outs);
            if wrong(operation) && given.len() == sources && given[0].len() == bytes {
                outs[usize::from(matches!(operation, Operation::Syndromes))][bytes - 1] ^= 1;
            }
        })
    }

    #[test]
    fn one_wrong_bit_is_found() {
        for bytes in [64, 128, 320] {
            let fault = |operation, sources| Err(KernelFault { operation, sources, bytes });
            let sum = broken(|operation| matches!(operation, Operation::Sum), bytes, 15);
            assert_eq!(sum, fault("sum", 15));
            let syndromes = broken(|operation| matches!(operation, Operation::Syndromes), bytes, 16);
            assert_eq!(syndromes, fault("syndromes", 16));
            let multiply = broken(|operation| matches!(operation, Operation::Multiply(_)), bytes, 1);
            assert_eq!(multiply, fault("multiply", 1));
        }
    }
}
