//! Many seeds, on several threads. Each seed is alone with its own cluster: what one does, no other sees.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use crate::{Failure, invariants::Violation, plan::Weakness, run, stats::Stats, trace::Trace};

/// What came of many seeds.
#[derive(Debug, Default)]
pub struct Swept {
    /// All seeds that ended well.
    pub stats: Stats,
    /// Those that did not, in the order of their numbers.
    pub failures: Vec<Failure>,
}

/// Plays seeds from `first` on. `done` is told after each how many have ended; no more are begun once it says so with
/// `false`.
pub fn sweep(
    first: u64,
    count: u64,
    threads: usize,
    weakness: Option<Weakness>,
    done: impl Fn(u64, usize) -> bool + Sync,
) -> Swept {
    let ended = AtomicU64::new(0);
    let swept = Mutex::new(Swept::default());
    each_seed(first, count, threads, |seed| {
        let outcome = caught(seed, weakness);
        let mut swept = swept.lock().unwrap_or_else(PoisonError::into_inner);
        match outcome {
            Ok(stats) => swept.stats += stats,
            Err(failure) => swept.failures.push(*failure),
        }
        done(ended.fetch_add(1, Ordering::Relaxed) + 1, swept.failures.len())
    });
    let mut swept = swept.into_inner().unwrap_or_else(PoisonError::into_inner);
    swept.failures.sort_by_key(|failure| failure.seed);
    swept
}

/// Does the work for so many seeds from `first` on, on several threads. No more are begun once it says so with `false`.
pub(crate) fn each_seed(first: u64, count: u64, threads: usize, work: impl Fn(u64) -> bool + Sync) {
    let next = AtomicU64::new(0);
    let take = || {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= count {
                return;
            }
            if !work(first + index) {
                next.store(count, Ordering::Relaxed);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(take);
        }
    });
}

/// A seed whose code panics has failed, with what it said.
fn caught(seed: u64, weakness: Option<Weakness>) -> Result<Stats, Box<Failure>> {
    let trace = Trace::default();
    catch_unwind(AssertUnwindSafe(|| run(seed, weakness, &trace))).unwrap_or_else(|panic| {
        let said = panic.downcast_ref::<String>().map(String::as_str);
        let said = said.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("nothing");
        let violation = Violation::new("no code panics", said);
        Err(Box::new(Failure::new(seed, "unknown profile", violation, &trace)))
    })
}
