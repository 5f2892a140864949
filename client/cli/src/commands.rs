//! The commands that talk to a coordinator and end: each in a file of its own.

mod array;
mod cache;
mod explain;
mod fault;
mod get;
mod health;
mod json;
mod member;
mod objects;
mod put;
mod shell;
mod status;

use stripeset_client::Client;

pub(crate) use self::health::{check, url};
use crate::{
    arguments::{ArrayCommand, Command, MemberCommand},
    failure::Failure,
    output::Output,
};

/// Runs one command against the coordinator at `endpoint`.
pub(crate) async fn run(command: Command, endpoint: &str, output: Output) -> Result<(), Failure> {
    match command {
        Command::Put(arguments) => put::run(endpoint, arguments, output).await,
        Command::Get(arguments) => get::run(endpoint, arguments, output).await,
        Command::Ls { prefix } => objects::list(&connect(endpoint).await?, &prefix, output).await,
        Command::Stat { name } => objects::stat(&connect(endpoint).await?, &name, output).await,
        Command::Rm { name } => objects::remove(&connect(endpoint).await?, &name, output).await,
        Command::Status => status::run(endpoint, output).await,
        Command::Member(MemberCommand::List) => member::list(&connect(endpoint).await?, output).await,
        Command::Explain(arguments) => explain::run(endpoint, arguments, output).await,
        Command::Cache(command) => cache::run(&connect(endpoint).await?, command, output).await,
        Command::Fault(command) => fault::run(&connect(endpoint).await?, command, output).await,
        Command::Array(ArrayCommand::Create(arguments)) => array::create(endpoint, arguments, output).await,
        Command::Array(ArrayCommand::Show) => array::show(&connect(endpoint).await?, output).await,
        Command::Health { address } => health::run(&address, output).await,
        Command::Completions { shell } => shell::completions(shell, output),
        Command::Version => shell::version(output),
        Command::Demo(_) | Command::Dev(_) | Command::Agent(_) | Command::Coordinator(_) => {
            Err(Failure::failed("this command does not talk to a coordinator"))
        }
    }
}

async fn connect(endpoint: &str) -> Result<Client, Failure> {
    Ok(Client::connect(endpoint).await?)
}
