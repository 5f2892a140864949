//! Keeps freed extents from being used again while a reader may still hold the map that refers to them.
//!
//! Commits are numbered. A reader pins the number of the last commit before it looks at the map; what commit c freed is
//! released once no pin below c is left.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::meta::Extent;

#[derive(Default)]
struct State {
    // Last commit known to be durable.
    last_commit: u64,
    // Number of readers by the commit they pin.
    readers: BTreeMap<u64, usize>,
    // What each commit freed.
    freed: BTreeMap<u64, Vec<Extent>>,
}

/// The pins of one array. Clones share them.
#[derive(Clone, Default)]
pub struct Pins {
    state: Arc<Mutex<State>>,
}

/// Holds everything that the map refers to at the time it was taken. Dropping it lets go.
pub struct Pin {
    pins: Pins,
    commit: u64,
}

impl Pins {
    /// Pins starting after a known commit.
    pub fn new(last_commit: u64) -> Self {
        let pins = Pins::default();
        pins.state().last_commit = last_commit;
        pins
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a pin. The map has to be read after it.
    pub fn pin(&self) -> Pin {
        let mut state = self.state();
        let commit = state.last_commit;
        *state.readers.entry(commit).or_default() += 1;
        Pin { pins: self.clone(), commit }
    }

    /// Notes what a durable commit freed.
    pub fn freed(&self, commit: u64, extents: Vec<Extent>) {
        let mut state = self.state();
        state.last_commit = state.last_commit.max(commit);
        state.freed.entry(commit).or_default().extend(extents);
    }

    /// Takes out what no reader can reach any more.
    pub fn release(&self) -> Vec<Extent> {
        let mut state = self.state();
        let oldest = state.readers.keys().next().copied().unwrap_or(u64::MAX);
        // What commit c freed is still seen by readers that pinned less than c.
        let held = if oldest == u64::MAX { BTreeMap::new() } else { state.freed.split_off(&(oldest + 1)) };
        let released = std::mem::replace(&mut state.freed, held);
        released.into_values().flatten().collect()
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        let mut state = self.pins.state();
        if let Some(readers) = state.readers.get_mut(&self.commit) {
            *readers -= 1;
            if *readers == 0 {
                state.readers.remove(&self.commit);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use stripeset_stripe::Version;

    use super::*;

    fn extent(logical: u64) -> Extent {
        Extent { logical, length: 4096, version: Version::NONE }
    }

    fn released(pins: &Pins) -> Vec<u64> {
        pins.release().iter().map(|extent| extent.logical).collect()
    }

    #[test]
    fn a_reader_holds_what_was_freed_after_it_began() {
        let pins = Pins::new(7);
        let early = pins.pin();
        pins.freed(8, vec![extent(1)]);
        let late = pins.pin();
        pins.freed(9, vec![extent(2)]);
        assert!(released(&pins).is_empty());
        drop(early);
        assert_eq!(released(&pins), [1], "the late reader saw a map without it");
        drop(late);
        assert_eq!(released(&pins), [2]);
        assert!(released(&pins).is_empty());
    }

    #[test]
    fn without_readers_all_is_released_at_once() {
        let pins = Pins::new(0);
        pins.freed(1, vec![extent(1)]);
        pins.freed(2, vec![extent(2)]);
        assert_eq!(released(&pins), [1, 2]);
    }

    #[test]
    fn answers_that_come_out_of_order_move_the_last_commit_forward_only() {
        let pins = Pins::new(0);
        pins.freed(2, vec![extent(2)]);
        pins.freed(1, vec![extent(1)]);
        let pin = pins.pin();
        pins.freed(3, vec![extent(3)]);
        assert_eq!(released(&pins), [1, 2]);
        drop(pin);
        assert_eq!(released(&pins), [3]);
    }
}
