//! Steps of a partial write at which it can be made to stop, or the process to die: for drills, and for tests of what a
//! crash there leaves. Where nothing is armed a step costs one look at a flag.
//!
//! What is armed happens once.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use tokio::sync::watch;

/// Longest that a write stays stopped.
pub const STOPPED_MAX: Duration = Duration::from_secs(60);

/// A step of a partial write, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// What was needed is read, nothing is prepared.
    RmwRead,
    /// Every member that is not out has prepared, and nothing is decided yet.
    RmwPrepared,
    /// Decided; nothing is cached yet.
    RmwDecided,
    /// Done; the caller does not know yet.
    Acknowledge,
}

/// What happens at a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The write stops until it is resumed, or for so long.
    Stop(Duration),
    /// The process ends at once, without a word to anybody.
    Crash,
}

/// What is armed, and who is stopped.
pub struct Steps {
    any: AtomicBool,
    armed: Mutex<BTreeMap<Step, (Action, u32)>>,
    stopped: AtomicU32,
    resumed: watch::Sender<u64>,
}

impl Default for Steps {
    fn default() -> Self {
        Steps {
            any: AtomicBool::new(false),
            armed: Mutex::default(),
            stopped: AtomicU32::new(0),
            resumed: watch::Sender::new(0),
        }
    }
}

impl Steps {
    fn armed(&self) -> MutexGuard<'_, BTreeMap<Step, (Action, u32)>> {
        self.armed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Arms a step: the action happens to the write after the next `after` ones. In place of what was armed there.
    pub fn arm(&self, step: Step, action: Action, after: u32) {
        self.armed().insert(step, (action, after));
        self.any.store(true, Ordering::Relaxed);
    }

    /// Disarms all, and lets go what is stopped: so many.
    pub fn resume(&self) -> u32 {
        self.armed().clear();
        self.any.store(false, Ordering::Relaxed);
        self.resumed.send_modify(|times| *times += 1);
        self.stopped.load(Ordering::Relaxed)
    }

    /// Writes that are stopped now.
    pub fn stopped(&self) -> u32 {
        self.stopped.load(Ordering::Relaxed)
    }

    /// A write comes to a step.
    pub(super) async fn pass(&self, step: Step) {
        if self.any.load(Ordering::Relaxed)
            && let Some(action) = self.due(step)
        {
            self.act(step, action).await;
        }
    }

    fn due(&self, step: Step) -> Option<Action> {
        let mut armed = self.armed();
        let (action, after) = armed.get_mut(&step)?;
        let action = *action;
        if *after > 0 {
            *after -= 1;
            return None;
        }
        armed.remove(&step);
        self.any.store(!armed.is_empty(), Ordering::Relaxed);
        Some(action)
    }

    async fn act(&self, step: Step, action: Action) {
        let limit = match action {
            Action::Crash => {
                tracing::error!(?step, "crashing, as it was asked to");
                std::process::abort()
            }
            Action::Stop(limit) => limit.min(STOPPED_MAX),
        };
        tracing::warn!(?step, ?limit, "a write is stopped, as it was asked to be");
        let mut resumed = self.resumed.subscribe();
        self.stopped.fetch_add(1, Ordering::Relaxed);
        // Either way it goes on.
        let _ = tokio::time::timeout(limit, resumed.changed()).await;
        self.stopped.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn is_stopped(pass: impl Future<Output = ()>) -> bool {
        tokio::time::timeout(Duration::from_secs(1), pass).await.is_err()
    }

    #[tokio::test(start_paused = true)]
    async fn a_step_stops_the_write_it_is_armed_for_and_no_other() {
        let steps = Steps::default();
        assert!(!is_stopped(steps.pass(Step::RmwRead)).await);
        steps.arm(Step::RmwRead, Action::Stop(STOPPED_MAX), 1);
        assert!(!is_stopped(steps.pass(Step::RmwDecided)).await);
        assert!(!is_stopped(steps.pass(Step::RmwRead)).await);
        assert!(is_stopped(steps.pass(Step::RmwRead)).await);
        assert!(!is_stopped(steps.pass(Step::RmwRead)).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_stopped_write_goes_on_when_it_is_resumed_or_its_time_is_over() {
        let steps = std::sync::Arc::new(Steps::default());
        for resumes in [true, false] {
            steps.arm(Step::Acknowledge, Action::Stop(Duration::from_secs(5)), 0);
            let passing = steps.clone();
            let started = tokio::time::Instant::now();
            let pass = tokio::spawn(async move { passing.pass(Step::Acknowledge).await });
            tokio::time::sleep(Duration::from_secs(1)).await;
            assert_eq!(steps.stopped(), 1);
            if resumes {
                assert_eq!(steps.resume(), 1);
            }
            pass.await.unwrap();
            assert_eq!(started.elapsed() < Duration::from_secs(5), resumes);
            assert_eq!(steps.stopped(), 0);
        }
    }
}
