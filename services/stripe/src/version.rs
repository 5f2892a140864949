//! Epochs and versions: which coordinator, and which of its writes, is newer.

use std::fmt;

/// A coordinator's rule over an array. Totally ordered: by number, then by the incarnation that claimed it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch {
    /// From 1 upward; 0 is before the first coordinator.
    pub number: u64,
    /// Random number of the coordinator process.
    pub incarnation: u64,
}

/// Orders everything that coordinators number: stripe writes, rebuild attempts, chunk incarnations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// Epoch in which it was taken.
    pub epoch: Epoch,
    /// From 1 upward within the epoch; 0 in [`Version::NONE`] alone.
    pub sequence: u64,
}

impl Version {
    /// Older than every version ever taken.
    pub const NONE: Version = Version { epoch: Epoch { number: 0, incarnation: 0 }, sequence: 0 };

    /// Whether this is no version at all.
    pub fn is_none(self) -> bool {
        self == Version::NONE
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:04x}", self.number, self.incarnation & 0xffff)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.epoch, self.sequence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(number: u64, incarnation: u64, sequence: u64) -> Version {
        Version { epoch: Epoch { number, incarnation }, sequence }
    }

    #[test]
    fn a_later_epoch_beats_every_sequence_of_an_earlier_one() {
        assert!(version(2, 0, 1) > version(1, 9, u64::MAX));
        assert!(version(1, 2, 1) > version(1, 1, 7));
        assert!(version(1, 1, 8) > version(1, 1, 7));
        assert!(version(0, 0, 1) > Version::NONE);
    }
}
