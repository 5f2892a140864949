//! Ways to break a store on purpose: the checkers of the crash tests have to see each of them fail. Outside tests no
//! store is weak, and the compiler leaves the questions out.

use super::Store;

/// What a broken store does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Weak {
    /// Answers without a sync.
    SyncSkipped,
    /// Moves the journal's tail when records are in the table but bytes not yet at home.
    TableBeforeData,
    /// Answers an abort of what is not pending, or a discard, without a change in the journal.
    FloorNotPersisted,
    /// Gives out bytes without a look at their checksums.
    ChecksumNotVerified,
    /// Applies what is left of a partial write over the fresh one that replaced it.
    RedoOverFresh,
    /// Takes a fresh write for prepared although its bytes are not at home.
    FreshBelieved,
    /// Takes the changes of a group whose data is not whole.
    TornGroupBelieved,
    /// Applies a write before the journal's group that commits it is durable.
    AppliedBeforeCommit,
}

impl Store {
    #[cfg(not(test))]
    pub(super) const fn is_weak(&self, _weak: Weak) -> bool {
        false
    }

    #[cfg(test)]
    pub(super) fn is_weak(&self, weak: Weak) -> bool {
        self.weakness == Some(weak)
    }
}
