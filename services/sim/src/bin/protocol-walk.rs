//! Walks the protocol's rules at random, on all cores, and says what was met. The tests walk for a few minutes; this is for
//! more, and for leaving rules out.

use std::{
    io::{self, Write},
    process::ExitCode,
};

use clap::Parser;
use stripeset_sim::walk::{Broken, Met, Rule, Shape, walk, walk_many};
use tokio::time::Instant;

/// Random walks of the protocol of stripeset
#[derive(Parser)]
struct Arguments {
    /// Data and parity shards, as in 2+1; several are walked one after the other
    #[arg(long, value_name = "K+M", value_delimiter = ',', default_value = "2+1,2+2,4+1,1+1")]
    shape: Vec<String>,
    /// Walks of each shape
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    walks: u64,
    /// Seed of the first one
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    first: u64,
    /// Walk this one alone, of the first shape, and print everything that happens
    #[arg(long, value_name = "SEED", conflicts_with_all = ["walks", "first"])]
    seed: Option<u64>,
    /// Leave a rule out; `list` prints them, `each` leaves each out in its turn
    #[arg(long, value_name = "RULE")]
    without: Option<String>,
    /// Threads
    #[arg(long, value_name = "N", default_value_t = 2)]
    threads: usize,
}

fn main() -> ExitCode {
    match go(&Arguments::parse()) {
        Ok(code) => code,
        // Who reads the output has gone.
        Err(_) => ExitCode::FAILURE,
    }
}

fn go(arguments: &Arguments) -> io::Result<ExitCode> {
    let mut out = io::stdout();
    let shapes: Option<Vec<Shape>> = arguments.shape.iter().map(|word| Shape::parse(word)).collect();
    let Some(shapes) = shapes else {
        writeln!(io::stderr(), "a shape is K+M, with K from 1 to 4, M from 1 on, and at most 6 members")?;
        return Ok(ExitCode::from(2));
    };
    let rules: Vec<Option<Rule>> = match arguments.without.as_deref() {
        None => vec![None],
        Some("list") => {
            for rule in Rule::ALL {
                let (word, what) = rule.words();
                writeln!(out, "{word:20} {what}")?;
            }
            return Ok(ExitCode::SUCCESS);
        }
        Some("each") => Rule::ALL.into_iter().map(Some).collect(),
        Some(word) => match Rule::parse(word) {
            Some(rule) => vec![Some(rule)],
            None => {
                writeln!(io::stderr(), "no rule is called {word}; --without list names them")?;
                return Ok(ExitCode::from(2));
            }
        },
    };
    if let (Some(seed), [shape, ..]) = (arguments.seed, shapes.as_slice()) {
        let broken = rules.first().copied().flatten().map_or(Broken::default(), Broken::without);
        let mut trace = Vec::new();
        let (counts, outcome) = walk(*shape, seed, broken, Some(&mut trace));
        trace.iter().try_for_each(|line| writeln!(out, "{line}"))?;
        write!(out, "{counts}")?;
        return match outcome {
            Ok(()) => Ok(ExitCode::SUCCESS),
            Err(violation) => {
                writeln!(io::stderr(), "{violation}")?;
                Ok(ExitCode::FAILURE)
            }
        };
    }
    let mut failed = 0;
    for rule in rules {
        let broken = rule.map_or(Broken::default(), Broken::without);
        for (shape, word) in shapes.iter().zip(&arguments.shape) {
            let started = Instant::now();
            let walked = walk_many(*shape, arguments.first, arguments.walks, broken, arguments.threads);
            let seconds = started.elapsed().as_secs_f64();
            failed += walked.failed();
            if let Some(rule) = rule {
                let (name, violations) = (rule.words().0, walked.failed());
                write!(out, "{name:20} {word}: {violations} violations in {} walks", walked.counts.walks)?;
                match walked.violations.values().map(|met| met.seed).min() {
                    Some(seed) => writeln!(out, ", first --seed {seed}")?,
                    None => writeln!(out)?,
                }
                continue;
            }
            write!(out, "{word}\n{}", walked.counts)?;
            writeln!(out, "{:>14}  violations", walked.failed())?;
            writeln!(out, "{seconds:>14.0}  seconds on {} threads", arguments.threads)?;
            writeln!(out, "{:>14.0}  walks a second", walked.counts.walks as f64 / seconds)?;
            for Met { times, seed, words } in walked.violations.values() {
                writeln!(io::stderr(), "{times} times, first with --shape {word} --seed {seed}: {words}")?;
            }
        }
    }
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
