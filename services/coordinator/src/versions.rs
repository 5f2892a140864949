//! Where this coordinator's versions come from: one sequence, within one epoch, for everything it numbers.

use std::sync::atomic::{AtomicU64, Ordering};

use stripeset_stripe::{Epoch, Version};

/// The sequence of one epoch. Never gives the same version twice.
#[derive(Debug)]
pub struct VersionSequence {
    epoch: Epoch,
    last: AtomicU64,
}

impl VersionSequence {
    /// The sequence of an epoch that this process alone has claimed.
    pub fn new(epoch: Epoch) -> Self {
        VersionSequence { epoch, last: AtomicU64::new(0) }
    }

    /// The epoch.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// A version above all that were taken before.
    pub fn take(&self) -> Version {
        let sequence = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        Version { epoch: self.epoch, sequence }
    }
}
