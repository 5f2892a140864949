//! What is kept in memory of every unit: its state and its floor. Twelve bytes a unit, or 192 MiB for each TiB of disk
//! with units of 64 KiB; pages that no unit was ever written in cost nothing.
//!
//! All else (versions, identity, checksums) is read from the record when it is needed: an operation that needs it reads
//! or writes the record anyway. A fresh write needs the floor alone, and so reads nothing.

use stripeset_stripe::{Epoch, Version};

/// What a unit holds, apart from writes that are pending in the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UnitState {
    Empty,
    Committed,
    /// A fresh write is pending.
    Fresh,
    Damaged,
}

/// One unit: the place of the floor's epoch in `epochs` with the state in the two lowest bits, then the sequence, low
/// half first (an array of u32 needs no padding).
type Packed = [u32; 3];

/// State and floor of every unit.
pub(crate) struct Index {
    units: Vec<Packed>,
    /// Every epoch that is in a floor. As many as coordinators have ruled.
    epochs: Vec<Epoch>,
    used: u64,
}

impl Index {
    /// All units empty.
    pub(crate) fn new(units: u64) -> Index {
        // A disk has fewer units than memory has bytes: 2^64 would need 2^76 bytes of disk.
        Index { units: vec![[0; 3]; units as usize], epochs: vec![Epoch::default()], used: 0 }
    }

    pub(crate) fn state(&self, unit: u64) -> UnitState {
        match self.units[unit as usize][0] & 3 {
            0 => UnitState::Empty,
            1 => UnitState::Committed,
            2 => UnitState::Fresh,
            _ => UnitState::Damaged,
        }
    }

    /// Highest version ever prepared, aborted or committed here.
    pub(crate) fn floor(&self, unit: u64) -> Version {
        let [packed, low, high] = self.units[unit as usize];
        let epoch = self.epochs[(packed >> 2) as usize];
        Version { epoch, sequence: u64::from(low) | u64::from(high) << 32 }
    }

    /// Sets both. The floor never falls.
    pub(crate) fn set(&mut self, unit: u64, state: UnitState, floor: Version) {
        let floor = floor.max(self.floor(unit));
        if self.state(unit) != UnitState::Empty {
            self.used -= 1;
        }
        let bits = match state {
            UnitState::Empty => 0,
            UnitState::Committed => 1,
            UnitState::Fresh => 2,
            UnitState::Damaged => 3,
        };
        if state != UnitState::Empty {
            self.used += 1;
        }
        let epoch = self.intern(floor.epoch);
        self.units[unit as usize] = [epoch << 2 | bits, floor.sequence as u32, (floor.sequence >> 32) as u32];
    }

    /// Raises the floor, and leaves the state.
    pub(crate) fn raise(&mut self, unit: u64, floor: Version) {
        self.set(unit, self.state(unit), floor);
    }

    /// Units that hold something.
    pub(crate) fn used(&self) -> u64 {
        self.used
    }

    /// The first unit from `first` on that holds something.
    pub(crate) fn used_from(&self, first: u64) -> Option<u64> {
        let first = first as usize;
        let rest = self.units.get(first..)?;
        rest.iter().position(|packed| packed[0] & 3 != 0).map(|found| (first + found) as u64)
    }

    /// The newest epochs are asked for most.
    fn intern(&mut self, epoch: Epoch) -> u32 {
        let place = self.epochs.iter().rposition(|known| *known == epoch).unwrap_or_else(|| {
            self.epochs.push(epoch);
            self.epochs.len() - 1
        });
        place as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_and_floor_come_back_and_the_floor_never_falls() {
        let mut index = Index::new(3);
        let floor = |number, sequence| Version { epoch: Epoch { number, incarnation: 7 }, sequence };
        assert_eq!((index.state(1), index.floor(1)), (UnitState::Empty, Version::NONE));
        index.set(1, UnitState::Committed, floor(2, u64::MAX - 1));
        index.set(1, UnitState::Damaged, floor(1, 9));
        assert_eq!((index.state(1), index.floor(1)), (UnitState::Damaged, floor(2, u64::MAX - 1)));
        index.raise(1, floor(3, 1));
        assert_eq!((index.state(1), index.floor(1)), (UnitState::Damaged, floor(3, 1)));
        assert_eq!((index.used(), index.used_from(0), index.used_from(2)), (1, Some(1), None));
        index.set(1, UnitState::Empty, Version::NONE);
        assert_eq!((index.used(), index.floor(1), index.floor(2)), (0, floor(3, 1), Version::NONE));
    }
}
