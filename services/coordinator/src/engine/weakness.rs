//! Ways to break the engine on purpose: the checkers of the simulation have to see each of them. Outside simulations no
//! engine is weak, and the compiler leaves the questions out.

use super::Engine;

/// What a broken engine does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weak {
    /// Computes parity from neighbours as they are read, without a look at checksums and versions.
    NeighboursUnverified,
    /// Believes a reconstructed sector without comparing it with its stored checksum.
    ReconstructionUnchecked,
    /// Caches the pages of a write before it is decided, and leaves them there if it fails.
    UncertainCached,
    /// Forgets what is freed while a write is in flight.
    StickyMarkIgnored,
}

impl Engine {
    #[cfg(not(feature = "simulation"))]
    pub(super) const fn is_weak(&self, _weak: Weak) -> bool {
        false
    }

    #[cfg(feature = "simulation")]
    pub(super) fn is_weak(&self, weak: Weak) -> bool {
        self.weakness.get() == Some(&weak)
    }

    /// Breaks the engine for good.
    #[cfg(feature = "simulation")]
    pub fn weaken(&self, weak: Weak) {
        let _ = self.weakness.set(weak);
    }
}
