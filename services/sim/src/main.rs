//! Plays seeds and says what was played. For long runs; a few hundred are in the tests.

use std::{
    io::{self, Write},
    process::ExitCode,
    sync::Mutex,
    time::Duration,
};

use clap::Parser;
use stripeset_sim::{run, sweep::sweep, trace::Trace};
use tokio::time::Instant;

/// How often progress is told.
const TOLD_EVERY: Duration = Duration::from_secs(10);

/// Failures after which no more seeds are begun.
const FAILURES_MAX: usize = 5;

/// The seeded simulation of stripeset.
#[derive(Parser)]
struct Arguments {
    /// Number of seeds to play
    #[arg(long, value_name = "N", default_value_t = 1000)]
    seeds: u64,
    /// The first one
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    first: u64,
    /// Play this one alone, and print everything that happens
    #[arg(long, value_name = "SEED", conflicts_with_all = ["seeds", "first"])]
    seed: Option<u64>,
    /// Threads, each with a seed of its own
    #[arg(long, value_name = "N", default_value_t = 2)]
    threads: usize,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match play(&arguments) {
        Ok(code) => code,
        // Who reads the output has gone.
        Err(_) => ExitCode::FAILURE,
    }
}

fn play(arguments: &Arguments) -> io::Result<ExitCode> {
    let started = Instant::now();
    if let Some(seed) = arguments.seed {
        let trace = Trace::aloud();
        // What engine and agents log stands between the events.
        tracing_subscriber::fmt()
            .with_writer(io::stderr)
            .without_time()
            .with_max_level(tracing::Level::DEBUG)
            .init();
        return match run(seed, None, &trace) {
            Ok(stats) => {
                write!(io::stdout(), "{stats}")?;
                Ok(ExitCode::SUCCESS)
            }
            Err(failure) => {
                writeln!(io::stderr(), "{failure}")?;
                Ok(ExitCode::FAILURE)
            }
        };
    }
    let told = Mutex::new(started);
    let swept = sweep(arguments.first, arguments.seeds, arguments.threads, None, |ended, failures| {
        if let Ok(mut told) = told.lock()
            && told.elapsed() >= TOLD_EVERY
        {
            *told = Instant::now();
            let rate = ended as f64 / started.elapsed().as_secs_f64();
            // Who watches may have gone.
            let _ = writeln!(
                io::stderr(),
                "{ended} of {} seeds, {rate:.1} a second, {failures} failed",
                arguments.seeds
            );
        }
        failures < FAILURES_MAX
    });
    for failure in &swept.failures {
        writeln!(io::stderr(), "{failure}")?;
    }
    let seconds = started.elapsed().as_secs_f64();
    let mut out = io::stdout();
    write!(out, "{}", swept.stats)?;
    writeln!(out, "{:>12}  violations", swept.failures.len())?;
    writeln!(out, "{:>12.0}  seconds on {} threads", seconds, arguments.threads)?;
    writeln!(out, "{:>12.1}  seeds a second", swept.stats.seeds as f64 / seconds)?;
    Ok(if swept.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
