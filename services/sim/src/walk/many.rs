//! Many walks, on several threads, and what came of them.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use super::{Broken, Counts, Shape, walk};

/// Violations of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Met {
    /// How often.
    pub times: u64,
    /// The lowest seed.
    pub seed: u64,
    /// What it said.
    pub words: String,
}

/// What came of many walks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Walked {
    /// What happened in them.
    pub counts: Counts,
    /// What did not hold, by kind.
    pub violations: BTreeMap<String, Met>,
}

impl Walked {
    /// Walks in which something did not hold.
    pub fn failed(&self) -> u64 {
        self.violations.values().map(|met| met.times).sum()
    }

    fn add(&mut self, kind: String, met: Met) {
        let Some(known) = self.violations.get_mut(&kind) else {
            self.violations.insert(kind, met);
            return;
        };
        known.times += met.times;
        if met.seed < known.seed {
            (known.seed, known.words) = (met.seed, met.words);
        }
    }
}

/// Walks `walks` seeds from `first` on.
pub fn walk_many(shape: Shape, first: u64, walks: u64, broken: Broken, threads: usize) -> Walked {
    let next = AtomicU64::new(0);
    let all = Mutex::new(Walked::default());
    let work = || {
        let mut own = Walked::default();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= walks {
                break;
            }
            let seed = first + index;
            let (counts, outcome) = walk(shape, seed, broken, None);
            own.counts += counts;
            if let Err(words) = outcome {
                let kind = words.chars().filter(|letter| !letter.is_ascii_digit()).take(40).collect();
                own.add(kind, Met { times: 1, seed, words });
            }
        }
        let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
        all.counts += own.counts;
        own.violations.into_iter().for_each(|(kind, met)| all.add(kind, met));
    };
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(work);
        }
    });
    all.into_inner().unwrap_or_else(PoisonError::into_inner)
}
