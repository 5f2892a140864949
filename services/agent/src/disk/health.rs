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

/// So many bad operations within [`BAD_WINDOW`] make a disk suspect.
pub(crate) const BAD_MAX: usize = 3;

/// How long a bad operation counts.
pub(crate) const BAD_WINDOW: Duration = Duration::from_secs(60);

/// A suspect disk is online again after so many good operations in a row, and [`GOOD_TIME`] without a bad one.
pub(crate) const GOOD_MIN: u32 = 64;

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

/// Why an operation was bad.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bad {
    /// It took so long.
    Slow(Duration),
    /// The disk said that it cannot.
    Failed,
    /// A write or a sync failed: what the disk holds is not known any more.
    Lost,
}

/// The state, and what led to it.
#[derive(Debug, Default)]
pub(crate) struct Health {
    state: HealthState,
    reason: String,
    /// Bad operations of the last while.
    bad: VecDeque<Instant>,
    good_in_a_row: u32,
}

impl Health {
    /// Takes in the outcome of one operation.
    pub(crate) fn observe(&mut self, now: Instant, what: &str, bad: Option<Bad>) {
        while self.bad.front().is_some_and(|at| now.duration_since(*at) > BAD_WINDOW) {
            self.bad.pop_front();
        }
        let Some(bad) = bad else {
            self.good_in_a_row = self.good_in_a_row.saturating_add(1);
            let quiet = self.bad.back().is_none_or(|at| now.duration_since(*at) >= GOOD_TIME);
            if self.state == HealthState::Suspect && self.good_in_a_row >= GOOD_MIN && quiet {
                self.change(HealthState::Online, String::new());
            }
            return;
        };
        self.good_in_a_row = 0;
        self.bad.push_back(now);
        if self.bad.len() > BAD_MAX {
            self.bad.pop_front();
        }
        let reason = match bad {
            Bad::Slow(took) => format!("a {what} took {:.1} s", took.as_secs_f64()),
            Bad::Failed | Bad::Lost => format!("a {what} failed"),
        };
        match self.state {
            HealthState::Failed => {}
            _ if bad == Bad::Lost => self.change(HealthState::Failed, reason),
            _ if self.bad.len() >= BAD_MAX => {
                let reason =
                    format!("{BAD_MAX} bad operations within {} s; the last: {reason}", BAD_WINDOW.as_secs());
                self.change(HealthState::Suspect, reason);
            }
            HealthState::Online | HealthState::Suspect => {}
        }
    }

    fn change(&mut self, state: HealthState, reason: String) {
        if self.state != state {
            tracing::warn!(before = ?self.state, now = ?state, reason, "the health of the disk changed");
        }
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

    const SLOW_ONE: Option<Bad> = Some(Bad::Slow(Duration::from_millis(1500)));

    fn at(start: Instant, seconds: u64) -> Instant {
        start + Duration::from_secs(seconds)
    }

    #[test]
    fn it_takes_several_bad_operations_close_together() {
        let (mut health, start) = (Health::default(), Instant::now());
        for seconds in [0, 40, 80, 120] {
            health.observe(at(start, seconds), "write", SLOW_ONE);
            assert_eq!(health.state(), HealthState::Online, "two within a minute are not enough");
        }
        health.observe(at(start, 121), "read", Some(Bad::Failed));
        assert_eq!(health.state(), HealthState::Suspect);
        assert!(health.reason().contains("a read failed"), "{}", health.reason());
    }

    #[test]
    fn it_takes_time_and_good_operations_to_come_back() {
        let (mut health, start) = (Health::default(), Instant::now());
        (0..3).for_each(|seconds| health.observe(at(start, seconds), "sync", SLOW_ONE));
        assert!(health.reason().contains("1.5 s"), "{}", health.reason());
        (0..2 * GOOD_MIN).for_each(|_| health.observe(at(start, 10), "sync", None));
        assert_eq!(health.state(), HealthState::Suspect, "many good ones, but soon");
        health.observe(at(start, 11), "sync", SLOW_ONE);
        (0..GOOD_MIN - 1).for_each(|_| health.observe(at(start, 100), "sync", None));
        assert_eq!(health.state(), HealthState::Suspect, "long after, but few good ones");
        health.observe(at(start, 100), "sync", None);
        assert_eq!((health.state(), health.reason()), (HealthState::Online, ""));
    }

    #[test]
    fn a_lost_write_is_for_ever() {
        let (mut health, start) = (Health::default(), Instant::now());
        health.observe(start, "write", Some(Bad::Lost));
        (0..1000).for_each(|seconds| health.observe(at(start, seconds), "write", None));
        (0..10).for_each(|seconds| health.observe(at(start, 2000 + seconds), "write", SLOW_ONE));
        assert_eq!((health.state(), health.reason()), (HealthState::Failed, "a write failed"));
    }
}
