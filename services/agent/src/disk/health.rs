//! How a disk does: online, suspect, failed. Pure: time and outcomes come in.
//!
//! Invariants:
//! 1. One bad operation makes no disk suspect, and one good one none online again: a state that flaps tells nobody
//!    anything.
//! 2. Failed is for ever: after a failed write or sync nobody knows what the disk holds.

use std::{collections::VecDeque, time::Duration};

use tokio::time::Instant;

/// An operation that takes longer is as bad as one that fails: clients have waited for it.
pub(crate) const SLOW: Duration = Duration::from_secs(1);

/// So many bad operations that count make a disk suspect.
pub(crate) const BAD_MIN: usize = 3;

/// A bad operation counts so long, however many good ones follow it.
pub(crate) const BAD_WINDOW: Duration = Duration::from_secs(60);

/// A bad operation counts while it is among so many last ones, however long they took: a disk with little to do is
/// judged too.
pub(crate) const BAD_WINDOW_OPERATIONS: u64 = 64;

/// A suspect disk is online again after so many good operations in a row, and [`GOOD_TIME`] without a bad one.
pub(crate) const GOOD_MIN: u64 = 64;

/// See [`GOOD_MIN`].
pub(crate) const GOOD_TIME: Duration = Duration::from_secs(30);

/// How a disk does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum HealthState {
    #[default]
    Online,
    Suspect,
    Failed,
}

/// Kinds of operations that a disk is judged by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Read,
    Write,
    Sync,
}

/// When a bad operation was: by the clock, and by the count of operations.
#[derive(Clone, Copy, Debug)]
struct BadAt {
    time: Instant,
    operation: u64,
}

/// The state, and what led to it.
#[derive(Debug, Default)]
pub(crate) struct Health {
    state: HealthState,
    reason: String,
    operations: u64,
    /// The last bad operations, at most [`BAD_MIN`].
    bad: VecDeque<BadAt>,
}

impl Kind {
    /// Its name, for people.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Read => "read",
            Kind::Write => "write",
            Kind::Sync => "sync",
        }
    }
}

impl Health {
    /// Takes in the outcome of one operation. To have found no space is not to have failed.
    pub(crate) fn observe(&mut self, now: Instant, kind: Kind, took: Duration, failed: bool) {
        self.operations += 1;
        if !failed && took <= SLOW {
            self.observe_good(now);
            return;
        }
        self.bad.push_back(BadAt { time: now, operation: self.operations });
        if self.bad.len() > BAD_MIN {
            self.bad.pop_front();
        }
        let reason = if failed {
            format!("a {} failed", kind.name())
        } else {
            format!("a {} took {:.1} s", kind.name(), took.as_secs_f64())
        };
        match self.state {
            HealthState::Failed => {}
            _ if failed && kind != Kind::Read => self.change(HealthState::Failed, reason),
            _ if self.counting(now) >= BAD_MIN => {
                let reason =
                    format!("{BAD_MIN} slow or failed operations close together; the last: {reason}");
                self.change(HealthState::Suspect, reason);
            }
            HealthState::Online | HealthState::Suspect => {}
        }
    }

    fn observe_good(&mut self, now: Instant) {
        let recovered = self.bad.back().is_none_or(|last| {
            self.operations - last.operation >= GOOD_MIN && now.duration_since(last.time) >= GOOD_TIME
        });
        if self.state == HealthState::Suspect && recovered {
            // A bad operation after this is a first one again.
            self.bad.clear();
            self.change(HealthState::Online, String::new());
        }
    }

    /// How many bad operations count now.
    fn counting(&self, now: Instant) -> usize {
        let counts = |bad: &&BadAt| {
            self.operations - bad.operation < BAD_WINDOW_OPERATIONS
                || now.duration_since(bad.time) <= BAD_WINDOW
        };
        self.bad.iter().filter(counts).count()
    }

    fn change(&mut self, state: HealthState, reason: String) {
        self.state = state;
        self.reason = reason;
    }

    pub(crate) fn state(&self) -> HealthState {
        self.state
    }

    /// Why it is not online, for people; else empty.
    pub(crate) fn reason(&self) -> &str {
        &self.reason
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUICK: Duration = Duration::from_millis(1);
    const LONG: Duration = Duration::from_millis(1500);

    fn at(start: Instant, seconds: u64) -> Instant {
        start + Duration::from_secs(seconds)
    }

    fn good(health: &mut Health, now: Instant, operations: u64) {
        (0..operations).for_each(|_| health.observe(now, Kind::Write, QUICK, false));
    }

    #[test]
    fn it_takes_several_bad_operations_close_together() {
        let (mut health, start) = (Health::default(), Instant::now());
        for seconds in [0, 40, 80, 120] {
            health.observe(at(start, seconds), Kind::Write, LONG, false);
            assert_eq!(health.state(), HealthState::Online, "two within a minute are not enough");
            good(&mut health, at(start, seconds), BAD_WINDOW_OPERATIONS);
        }
        health.observe(at(start, 121), Kind::Read, QUICK, true);
        assert_eq!(health.state(), HealthState::Suspect);
        assert!(health.reason().contains("a read failed"), "{}", health.reason());
    }

    #[test]
    fn a_disk_with_little_to_do_is_judged_by_its_last_operations() {
        let (mut health, start) = (Health::default(), Instant::now());
        for hour in 0..2 {
            health.observe(at(start, hour * 3600), Kind::Read, LONG, false);
            good(&mut health, at(start, hour * 3600), 30);
        }
        assert_eq!(health.state(), HealthState::Online);
        health.observe(at(start, 7200), Kind::Read, LONG, false);
        assert_eq!(health.state(), HealthState::Suspect, "three of 63");
    }

    #[test]
    fn what_takes_just_the_limit_is_good() {
        let (mut health, start) = (Health::default(), Instant::now());
        (0..10).for_each(|_| health.observe(start, Kind::Sync, SLOW, false));
        assert_eq!(health.state(), HealthState::Online);
        (0..3).for_each(|_| health.observe(start, Kind::Sync, SLOW + Duration::from_nanos(1), false));
        assert_eq!(health.state(), HealthState::Suspect);
    }

    #[test]
    fn it_takes_time_and_good_operations_to_come_back() {
        let (mut health, start) = (Health::default(), Instant::now());
        (0..3).for_each(|seconds| health.observe(at(start, seconds), Kind::Sync, LONG, false));
        assert!(health.reason().contains("a sync took 1.5 s"), "{}", health.reason());
        good(&mut health, at(start, 10), 2 * GOOD_MIN);
        assert_eq!(health.state(), HealthState::Suspect, "many good ones, but soon");
        health.observe(at(start, 11), Kind::Sync, LONG, false);
        good(&mut health, at(start, 41), GOOD_MIN - 1);
        assert_eq!(health.state(), HealthState::Suspect, "long enough after, but few good ones");
        good(&mut health, at(start, 41), 1);
        assert_eq!((health.state(), health.reason()), (HealthState::Online, ""));
        (0..2).for_each(|_| health.observe(at(start, 42), Kind::Sync, LONG, false));
        assert_eq!(health.state(), HealthState::Online, "the old ones count no more");
        health.observe(at(start, 43), Kind::Sync, LONG, false);
        assert_eq!(health.state(), HealthState::Suspect);
    }

    #[test]
    fn failed_reads_alone_do_not_fail_a_disk() {
        let (mut health, start) = (Health::default(), Instant::now());
        (0..1000).for_each(|seconds| health.observe(at(start, seconds), Kind::Read, QUICK, true));
        assert_eq!(health.state(), HealthState::Suspect);
    }

    #[test]
    fn a_lost_write_is_for_ever() {
        for (kind, reason) in [(Kind::Write, "a write failed"), (Kind::Sync, "a sync failed")] {
            let (mut health, start) = (Health::default(), Instant::now());
            health.observe(start, kind, QUICK, true);
            (0..1000).for_each(|seconds| good(&mut health, at(start, seconds), 1));
            (0..10).for_each(|seconds| health.observe(at(start, 2000 + seconds), Kind::Read, LONG, false));
            assert_eq!((health.state(), health.reason()), (HealthState::Failed, reason));
        }
    }
}
