//! Many walks, on several threads, and what came of them.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

use super::{Broken, Counts, Shape, walk};
use crate::sweep::each_seed;

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

    fn add(&mut self, seed: u64, words: String) {
        let kind = words.chars().filter(|letter| !letter.is_ascii_digit()).take(40).collect();
        let met = self.violations.entry(kind).or_insert_with(|| Met { times: 0, seed, words: words.clone() });
        met.times += 1;
        if seed < met.seed {
            (met.seed, met.words) = (seed, words);
        }
    }
}

/// Walks `walks` seeds from `first` on.
pub fn walk_many(shape: Shape, first: u64, walks: u64, broken: Broken, threads: usize) -> Walked {
    let walked = Mutex::new(Walked::default());
    each_seed(first, walks, threads, |seed| {
        let (counts, outcome) = walk(shape, seed, broken, None);
        let mut walked = walked.lock().unwrap_or_else(PoisonError::into_inner);
        walked.counts += counts;
        if let Err(words) = outcome {
            walked.add(seed, words);
        }
        true
    });
    walked.into_inner().unwrap_or_else(PoisonError::into_inner)
}
