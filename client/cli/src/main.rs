//! The `stripeset` command: reads the arguments, runs one command, turns its end into an exit code.
//!
//! What each command does is in `commands/`, `services.rs`, `dev.rs` and `demo.rs`; what the arguments are in
//! `arguments.rs`.

mod address;
mod arguments;
mod cluster;
mod commands;
mod config;
mod demo;
mod dev;
mod failure;
mod output;
mod progress;
mod quantity;
mod services;
mod table;

use std::process::ExitCode;

use clap::Parser;
use stripeset_telemetry::shutdown::{self, StopSignals};

use crate::{
    arguments::{Arguments, Command, DevCommand},
    failure::Failure,
    output::Output,
};

/// Threads for work that blocks: local files, standard input, the listing of a coordinator. More would not be faster,
/// and each keeps memory of its own.
const BLOCKING_THREADS_MAX: usize = 4;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    // One thread for everything: half the CPU of a runtime with two, and the children of `dev` and `demo` have to be
    // started by a thread that lives as long as the process.
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = match builder.enable_all().max_blocking_threads(BLOCKING_THREADS_MAX).build() {
        Ok(runtime) => runtime,
        Err(error) => return Failure::failed(format!("cannot start: {error}")).report(),
    };
    let end = runtime.block_on(run(arguments));
    // A read of standard input cannot be called off, and nobody waits for it any more.
    runtime.shutdown_background();
    match end {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

async fn run(arguments: Arguments) -> Result<(), Failure> {
    let Arguments { endpoint, output, command } = arguments;
    let output = Output::new(output);
    match command {
        // These decide themselves how they stop.
        Command::Agent(arguments) => services::agent(arguments, output).await,
        Command::Coordinator(arguments) => services::coordinator(arguments, output).await,
        Command::Dev(arguments) => match arguments.command {
            Some(DevCommand::Start(start)) => dev::start_process(start, arguments.cluster, output).await,
            None => dev::run(arguments.cluster, output).await,
        },
        Command::Demo(arguments) => demo::run(arguments, output).await,
        command => {
            let stop = shutdown::on_signals(StopSignals::TerminateAndInterrupt)?;
            // Dropping a command half-way leaves nothing behind: objects and files are replaced at the very end.
            tokio::select! {
                end = commands::run(command, &endpoint, output) => end,
                () = stop.wait() => Err(Failure::failed("stopped before it was done")),
            }
        }
    }
}
