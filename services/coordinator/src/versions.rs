//! Where this coordinator's versions come from: one sequence, within one epoch, for everything it numbers. And which of
//! them are writes that are not decided yet.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use stripeset_stripe::{Epoch, Version};

/// The sequence of one epoch. Never gives the same version twice.
#[derive(Debug)]
pub struct VersionSequence {
    epoch: Epoch,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    last: u64,
    /// Writes under way.
    undecided: BTreeSet<u64>,
    /// Oldest pending write that was found on a disk and is not resolved yet.
    found: Option<Version>,
}

/// The version of a write that is under way for as long as this is kept.
#[derive(Debug)]
pub struct WriteVersion {
    version: Version,
    sequence: Arc<VersionSequence>,
}

impl VersionSequence {
    /// The sequence of an epoch that this process alone has claimed.
    pub fn new(epoch: Epoch) -> Self {
        VersionSequence { epoch, taken: Mutex::default() }
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The epoch.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// A version above all that were taken before.
    pub fn take(&self) -> Version {
        let mut taken = self.taken();
        taken.last += 1;
        Version { epoch: self.epoch, sequence: taken.last }
    }

    /// A version for a write, above all that were taken before. The write is under way until the value is dropped: when it
    /// is decided, or taken back everywhere.
    pub fn take_for_write(self: &Arc<Self>) -> WriteVersion {
        let mut taken = self.taken();
        taken.last += 1;
        let sequence = taken.last;
        taken.undecided.insert(sequence);
        WriteVersion { version: Version { epoch: self.epoch, sequence }, sequence: self.clone() }
    }

    /// Pending writes of earlier epochs were found; the oldest is this one. `None`: all are resolved.
    pub fn set_found(&self, oldest: Option<Version>) {
        self.taken().found = oldest;
    }

    /// Every write up to this version is decided, or taken back everywhere. A member that was in sync until now has all of
    /// them that were decided.
    pub fn decided_up_to(&self) -> Version {
        let taken = self.taken();
        let own = taken.undecided.first().map_or(taken.last, |undecided| undecided - 1);
        let own = Version { epoch: self.epoch, sequence: own };
        let before = |found: Version| Version { sequence: found.sequence.saturating_sub(1), ..found };
        taken.found.map_or(own, |found| before(found).min(own))
    }
}

impl WriteVersion {
    /// The version.
    pub fn version(&self) -> Version {
        self.version
    }
}

impl Drop for WriteVersion {
    fn drop(&mut self) {
        self.sequence.taken().undecided.remove(&self.version.sequence);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_decided_ends_before_the_oldest_write_under_way() {
        let epoch = Epoch { number: 2, incarnation: 1 };
        let versions = Arc::new(VersionSequence::new(epoch));
        let up_to = || versions.decided_up_to();
        assert_eq!(up_to(), Version { epoch, sequence: 0 });
        let first = versions.take_for_write();
        let second = versions.take_for_write();
        versions.take();
        assert_eq!(up_to().sequence, 0);
        drop(second);
        assert_eq!(up_to().sequence, 0, "an older one is under way");
        drop(first);
        assert_eq!(up_to().sequence, 3);
        let found = Version { epoch: Epoch { number: 1, incarnation: 9 }, sequence: 7 };
        versions.set_found(Some(found));
        assert_eq!(up_to(), Version { sequence: 6, ..found });
        versions.set_found(None);
        assert_eq!(up_to(), Version { epoch, sequence: 3 });
    }
}
