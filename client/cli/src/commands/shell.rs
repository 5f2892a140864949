//! `completions` and `version`: what needs nobody else.

use clap::CommandFactory;
use clap_complete::Shell;
use serde::Serialize;

use crate::{arguments::Arguments, failure::Failure, output::Output};

#[derive(Serialize)]
struct Completions {
    shell: String,
    script: String,
}

pub(super) fn completions(shell: Shell, output: Output) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "stripeset", &mut script);
    let script = String::from_utf8_lossy(&script).into_owned();
    output.show(&Completions { shell: shell.to_string(), script: script.clone() }, || script)
}

#[derive(Serialize)]
struct Version {
    name: &'static str,
    version: &'static str,
}

pub(super) fn version(output: Output) -> Result<(), Failure> {
    let version = Version { name: "stripeset", version: env!("CARGO_PKG_VERSION") };
    output.show(&version, || format!("{} {}", version.name, version.version))
}
