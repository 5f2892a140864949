//! Logs go to stderr: as text on a terminal, as JSON lines otherwise. `STRIPESET_LOG` filters them, in the syntax of
//! `tracing_subscriber::EnvFilter`; the default is `info`.

use std::io::{IsTerminal, stderr};

use tracing_subscriber::{EnvFilter, fmt};

/// Name of the environment variable that filters the log.
pub const FILTER_VARIABLE: &str = "STRIPESET_LOG";

/// Starts logging for this process; a second call changes nothing. A filter that cannot be read is reported on stderr
/// and the default is used.
pub fn start() {
    let filter = match EnvFilter::try_from_env(FILTER_VARIABLE) {
        Ok(filter) => filter,
        Err(error) => {
            if std::env::var_os(FILTER_VARIABLE).is_some() {
                eprintln!("{FILTER_VARIABLE} is not a filter ({error}): using info");
            }
            EnvFilter::new("info")
        }
    };
    let builder = fmt().with_env_filter(filter).with_writer(stderr).with_target(true);
    let started = if stderr().is_terminal() {
        builder.try_init().is_ok()
    } else {
        builder.json().flatten_event(true).try_init().is_ok()
    };
    // A second start in one process (tests) finds the first one in place; that is what was asked for.
    let _ = started;
}
