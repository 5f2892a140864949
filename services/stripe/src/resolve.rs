//! The recovery rule: what becomes of a write that was pending when its coordinator was lost.
//!
//! A write is decided once every participant that is not out has prepared it. A new coordinator cannot ask whether it
//! was decided; it sees the shards on the members in reach, and from them it can tell whether it may have been.

use crate::{geometry::Shard, version::Version};

/// What one member in reach, and not out, shows of its shard of the stripe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardView {
    /// The shard.
    pub shard: Shard,
    /// Its committed version.
    pub committed: Version,
    /// Its pending version.
    pub pending: Option<Version>,
}

/// What to do with a pending write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// It may have been acknowledged.
    Commit,
    /// It cannot have been.
    Abort,
}

/// Decides about the pending write `version` of a stripe. `participants` are the shards that take part in it,
/// `views` the shards of the stripe on members that answer and are not out. Of several pending writes of one stripe the
/// lowest is decided, and carried out, first.
///
/// - A higher version anywhere, or this one committed, says that it was decided: a base always is.
/// - Pending on every participant in reach: it may have been.
/// - Otherwise a participant that is not out has not prepared it, so it was not decided.
///
/// A shard's floor is no evidence: aborted versions raise it too.
pub fn resolve(version: Version, participants: &[Shard], views: &[ShardView]) -> Decision {
    let decided = views
        .iter()
        .any(|view| view.committed >= version || view.pending.is_some_and(|pending| pending > version));
    let prepared_everywhere = views
        .iter()
        .filter(|view| participants.contains(&view.shard))
        .all(|view| view.pending == Some(version));
    if decided || prepared_everywhere { Decision::Commit } else { Decision::Abort }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::version::Epoch;

    fn version(sequence: u64) -> Version {
        Version { epoch: Epoch { number: 1, incarnation: 1 }, sequence }
    }

    fn view(shard: u8, committed: u64, pending: Option<u64>) -> ShardView {
        ShardView { shard: Shard(shard), committed: version(committed), pending: pending.map(version) }
    }

    const W: [Shard; 2] = [Shard(0), Shard(4)];

    #[test]
    fn prepared_by_all_participants_in_reach_goes_forward() {
        let views = [view(0, 3, Some(5)), view(1, 3, None), view(4, 3, Some(5))];
        assert_eq!(resolve(version(5), &W, &views), Decision::Commit);
        assert_eq!(
            resolve(version(5), &W, &views[1..]),
            Decision::Commit,
            "a participant out of reach has no say"
        );
    }

    #[test]
    fn missing_on_a_participant_in_reach_goes_back() {
        let views = [view(0, 3, Some(5)), view(1, 3, None), view(4, 3, None)];
        assert_eq!(resolve(version(5), &W, &views), Decision::Abort);
    }

    #[test]
    fn committed_or_overtaken_anywhere_goes_forward() {
        let committed = [view(0, 3, Some(5)), view(4, 5, None)];
        assert_eq!(resolve(version(5), &W, &committed), Decision::Commit);
        let overtaken = [view(0, 3, Some(5)), view(2, 3, Some(6)), view(4, 3, None)];
        assert_eq!(resolve(version(5), &W, &overtaken), Decision::Commit);
        let later = [view(0, 3, Some(5)), view(2, 7, None), view(4, 3, None)];
        assert_eq!(resolve(version(5), &W, &later), Decision::Commit);
    }
}
