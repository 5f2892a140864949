//! Walks of the protocol's rules: none of them breaks what has to hold, and every rule that is left out is missed.
//!
//! `STRIPESET_WALKS=2500000` walks so many of each shape; `cargo run --release -p stripeset-sim --bin protocol-walk` does
//! the same, faster, and shows a walk step by step.

use std::io::{self, Write};

use stripeset_sim::walk::{Broken, Rule, Shape, walk, walk_many};

const THREADS: usize = 2;

/// Walks of each shape in a run of the tests.
const WALKS: u64 = 300_000;

const SHAPES: [&str; 4] = ["2+1", "2+2", "4+1", "1+1"];

#[test]
fn no_walk_breaks_what_has_to_hold() {
    let walks = std::env::var("STRIPESET_WALKS").ok().map_or(WALKS, |walks| walks.parse().unwrap());
    for word in SHAPES {
        let walked = walk_many(Shape::parse(word).unwrap(), 1, walks, Broken::default(), THREADS);
        let counts = walked.counts;
        let _ = write!(io::stderr(), "{word}\n{counts}");
        let first = walked.violations.values().min_by_key(|met| met.seed);
        assert_eq!(first, None, "protocol-walk --shape {word} --seed {}", first.map_or(0, |met| met.seed));
        assert_eq!(counts.walks, walks);
        // Walks that never come near a fault prove nothing.
        let met = [
            ("refused", counts.refused),
            ("taken out", counts.taken_out),
            ("let in", counts.let_in),
            ("rebuilt", counts.rebuilt),
            ("unchanged", counts.unchanged),
            ("aborted", counts.aborted),
            ("fresh", counts.fresh),
            ("partial", counts.partial),
            ("discards", counts.discards),
            ("torn", counts.torn),
            ("lost", counts.lost),
            ("fenced", counts.fenced),
            ("below the floor", counts.below_floor),
            ("reads", counts.reads),
        ];
        for (what, count) in met {
            assert!(count > walks / 100, "{what}: {count} in {walks} walks of {word}");
        }
        // Whoever is alone needs a witness.
        assert_eq!(counts.witnessed > 0, word == "1+1" || word == "2+2", "{word}: {}", counts.witnessed);
    }
}

#[test]
fn the_same_seed_walks_the_same_way() {
    let shape = Shape::parse("2+2").unwrap();
    for seed in 1..=50 {
        let mut traces = [Vec::new(), Vec::new()];
        let ends = traces.each_mut().map(|trace| walk(shape, seed, Broken::default(), Some(trace)));
        assert_eq!(ends[0], ends[1], "seed {seed}");
        assert_eq!(traces[0], traces[1], "seed {seed}");
        assert!(!traces[0].is_empty());
    }
}

/// Walks without a rule until it is missed; a shape in which it is, and walks that are more than enough.
fn missed_in(rule: Rule) -> (&'static str, u64, u64) {
    match rule {
        // What it forbids needs several rare things at once: the walks begin where it is met.
        Rule::TokenUsedAgain => ("2+1", 13_001, 1500),
        Rule::UnfinishedOutForgotten => ("2+2", 1, 3000),
        _ => ("1+1", 1, 3000),
    }
}

#[test]
fn every_rule_that_is_left_out_is_missed() {
    for rule in Rule::ALL {
        let (word, what) = rule.words();
        let (shape, first, walks) = missed_in(rule);
        let walked = walk_many(Shape::parse(shape).unwrap(), first, walks, Broken::without(rule), THREADS);
        let _ = writeln!(io::stderr(), "{word:20} {shape}: {} of {walks} walks fail", walked.failed());
        assert!(walked.failed() > 0, "{word} is not missed in {walks} walks of {shape} from {first}: {what}");
    }
}
