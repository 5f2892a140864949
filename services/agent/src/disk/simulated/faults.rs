//! What a simulated disk does wrong, how often, and what it did so far. Decides by dice alone, so that a seed repeats it.

use std::{
    io::{self, ErrorKind},
    ops::Range,
};

use crate::disk::BLOCK_BYTES;

/// Faults come as often as this of so many operations.
const ODDS: u64 = 1000;

/// A source of bits that is the same in each run of a test.
#[derive(Clone, Debug, Default)]
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    /// The next of an xorshift sequence. From zero on it stays zero.
    pub(crate) fn roll(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// How often a disk does what it should not, of a thousand operations that could go wrong that way.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    /// A bit of what is written flips on the medium.
    pub(crate) rot: u64,
    /// A block of what is written cannot be read until it is written again.
    pub(crate) latent_errors: u64,
    /// A write lands a block too far; the caller is told that all is well.
    pub(crate) misdirected_writes: u64,
    /// A write lands nowhere; the caller is told that all is well.
    pub(crate) dropped_writes: u64,
    /// A write, or an allocation, finds no space, where it has to take some.
    pub(crate) full: u64,
    /// An operation of any kind takes long.
    pub(crate) stalls: u64,
}

/// How often each fault was injected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Injected {
    pub(crate) rot: u64,
    pub(crate) latent_errors: u64,
    pub(crate) misdirected_writes: u64,
    pub(crate) dropped_writes: u64,
    pub(crate) full: u64,
    pub(crate) stalls: u64,
}

/// What becomes of the next write, whatever the dice say.
#[derive(Clone, Copy)]
pub(super) enum NextWrite {
    Dropped,
    /// It lands so many bytes too far.
    Misdirected(usize),
}

/// Injects faults, and counts them.
#[derive(Default)]
pub(super) struct Injector {
    pub(super) rates: Faults,
    pub(super) dice: Dice,
    pub(super) next_write: Option<NextWrite>,
    pub(super) on_stall: Option<Box<dyn FnMut() + Send>>,
    pub(super) injected: Injected,
}

impl Injector {
    fn happens(&mut self, rate: u64) -> bool {
        rate > 0 && self.dice.roll() % ODDS < rate
    }

    /// An operation begins, and may take long.
    pub(super) fn stall(&mut self) {
        if self.happens(self.rates.stalls) {
            self.injected.stalls += 1;
            if let Some(on_stall) = &mut self.on_stall {
                on_stall();
            }
        }
    }

    /// Whether there is no space for what `lacks_space` and has to take some.
    pub(super) fn finds_no_space(&mut self, lacks_space: bool) -> bool {
        let full = lacks_space && self.happens(self.rates.full);
        self.injected.full += u64::from(full);
        full
    }

    /// Where a write to `place` lands on a disk that ends at `end`; `None` is nowhere.
    pub(super) fn landing(
        &mut self,
        place: Range<usize>,
        end: usize,
        lacks_space: bool,
    ) -> io::Result<Option<usize>> {
        if self.finds_no_space(lacks_space) {
            return Err(ErrorKind::StorageFull.into());
        }
        let next = self.next_write.take().or_else(|| {
            if self.happens(self.rates.dropped_writes) {
                Some(NextWrite::Dropped)
            } else if place.end + BLOCK_BYTES <= end && self.happens(self.rates.misdirected_writes) {
                Some(NextWrite::Misdirected(BLOCK_BYTES))
            } else {
                None
            }
        });
        match next {
            None => Ok(Some(place.start)),
            Some(NextWrite::Dropped) => {
                self.injected.dropped_writes += 1;
                Ok(None)
            }
            Some(NextWrite::Misdirected(by)) => {
                assert!(place.end + by <= end, "{by} bytes further is behind the end of the disk");
                self.injected.misdirected_writes += 1;
                Ok(Some(place.start + by))
            }
        }
    }

    /// Flips a bit of what is written.
    pub(super) fn rot(&mut self, bytes: &mut [u8]) {
        if !bytes.is_empty() && self.happens(self.rates.rot) {
            self.injected.rot += 1;
            let at = self.dice.roll() as usize % bytes.len();
            bytes[at] ^= 1 << (self.dice.roll() % 8);
        }
    }

    /// The block of what was written at `place` that cannot be read any more.
    pub(super) fn latent_error(&mut self, place: Range<usize>) -> Option<Range<u64>> {
        if place.is_empty() || !self.happens(self.rates.latent_errors) {
            return None;
        }
        self.injected.latent_errors += 1;
        let block = self.dice.roll() as usize % (place.len() / BLOCK_BYTES);
        let start = (place.start + block * BLOCK_BYTES) as u64;
        Some(start..start + BLOCK_BYTES as u64)
    }
}
