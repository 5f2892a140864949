//! The commands `agent` and `coordinator`: settings in, a service out, until it is asked to stop.

use std::{future::Future, path::PathBuf, time::Duration};

use stripeset_agent::{Agent, AgentConfig};
use stripeset_coordinator::{Coordinator, CoordinatorConfig};
use stripeset_telemetry::{
    logs,
    shutdown::{self, STOP_LIMIT, Shutdown, StopSignals},
};

use crate::{
    address,
    arguments::{AgentArguments, CoordinatorArguments},
    cluster::parent,
    config::{self, Setting, Values},
    failure::Failure,
    output::Output,
    quantity,
};

const AGENT_SETTINGS: [Setting; 4] = [
    Setting { name: "disk", default: None },
    Setting { name: "size", default: None },
    Setting { name: "listen", default: Some("127.0.0.1:7421") },
    Setting { name: "faults", default: Some("false") },
];

const COORDINATOR_SETTINGS: [Setting; 6] = [
    Setting { name: "state", default: None },
    Setting { name: "listen", default: Some("127.0.0.1:7420") },
    Setting { name: "start_patience", default: Some("5s") },
    Setting { name: "cache_size", default: Some("256MiB") },
    Setting { name: "unsafe", default: Some("false") },
    Setting { name: "faults", default: Some("false") },
];

/// Prefix of the environment variables that set up an agent.
pub(crate) const AGENT_PREFIX: &str = "STRIPESET_AGENT_";

/// Prefix of the environment variables that set up a coordinator.
pub(crate) const COORDINATOR_PREFIX: &str = "STRIPESET_COORDINATOR_";

pub(crate) async fn agent(arguments: AgentArguments, output: Output) -> Result<(), Failure> {
    let flags = [
        ("disk", arguments.disk),
        ("size", arguments.size),
        ("listen", arguments.listen),
        ("faults", arguments.faults.then(|| "true".to_owned())),
    ];
    let mut values = config::gather(
        &AGENT_SETTINGS,
        arguments.config.as_deref(),
        AGENT_PREFIX,
        |name| std::env::var_os(name),
        &flags,
    );
    let disk = values.required("disk", path);
    let size = values.optional("size", quantity::size);
    let listen = values.required("listen", address::parse_socket);
    let faults = values.required("faults", yes_or_no);
    values.checked()?;
    let (Some(disk), Some(listen), Some(faults)) = (disk, listen, faults) else { return Ok(()) };
    if arguments.print_config {
        return show(&values, output);
    }
    let stop = begin(arguments.child_of)?;
    let agent = Agent::bind(AgentConfig { disk: disk.clone(), size, listen, faults }).await;
    let agent =
        agent.map_err(|error| Failure::failed(format!("cannot serve {}: {error}", disk.display())))?;
    bounded(agent.serve(stop.clone()), &stop).await
}

pub(crate) async fn coordinator(arguments: CoordinatorArguments, output: Output) -> Result<(), Failure> {
    let flags = [
        ("state", arguments.state),
        ("listen", arguments.listen),
        ("start_patience", arguments.start_patience),
        ("cache_size", arguments.cache_size),
        ("unsafe", arguments.r#unsafe.then(|| "true".to_owned())),
        ("faults", arguments.faults.then(|| "true".to_owned())),
    ];
    let mut values = config::gather(
        &COORDINATOR_SETTINGS,
        arguments.config.as_deref(),
        COORDINATOR_PREFIX,
        |name| std::env::var_os(name),
        &flags,
    );
    let state = values.required("state", path);
    let listen = values.required("listen", address::parse_socket);
    let start_patience = values.required("start_patience", quantity::duration);
    let cache_bytes = values.required("cache_size", memory);
    let is_unsafe = values.required("unsafe", yes_or_no);
    let faults = values.required("faults", yes_or_no);
    values.checked()?;
    let (Some(state), Some(listen), Some(start_patience)) = (state, listen, start_patience) else {
        return Ok(());
    };
    let (Some(cache_bytes), Some(is_unsafe), Some(faults)) = (cache_bytes, is_unsafe, faults) else {
        return Ok(());
    };
    if arguments.print_config {
        return show(&values, output);
    }
    let stop = begin(arguments.child_of)?;
    let config = CoordinatorConfig {
        start_patience,
        cache_bytes,
        is_unsafe,
        faults,
        force: arguments.force,
        ..CoordinatorConfig::new(listen, state)
    };
    let coordinator = Coordinator::bind(config).await;
    let coordinator = coordinator.map_err(|error| Failure::failed(format!("cannot serve: {error}")))?;
    bounded(coordinator.serve(stop.clone()), &stop).await
}

fn path(text: &str) -> Result<PathBuf, String> {
    if text.is_empty() { Err("an empty path".to_owned()) } else { Ok(PathBuf::from(text)) }
}

fn memory(text: &str) -> Result<usize, String> {
    let bytes = quantity::size(text)?;
    usize::try_from(bytes).map_err(|_too_large| format!("{bytes} bytes: more than this machine can address"))
}

fn yes_or_no(text: &str) -> Result<bool, String> {
    text.parse().map_err(|_neither| format!("{text:?} is neither true nor false"))
}

fn show(values: &Values, output: Output) -> Result<(), Failure> {
    output.show(&values.document(), || values.text())
}

/// What a service does first: it ties its life to its parent's, if it is a child, and starts its log.
fn begin(child_of: Option<u32>) -> Result<Shutdown, Failure> {
    let signals = match child_of {
        Some(pid) => {
            parent::die_with(pid)?;
            StopSignals::Terminate
        }
        None => StopSignals::TerminateAndInterrupt,
    };
    logs::start();
    Ok(shutdown::on_signals(signals)?)
}

/// What a service may take for its own clean-up after [`STOP_LIMIT`], which it keeps itself.
const STOP_SLACK: Duration = Duration::from_secs(4);

/// Serves until done. A stop that takes longer than the service promises is cut short.
async fn bounded<E: std::fmt::Display>(
    serve: impl Future<Output = Result<(), E>>,
    stop: &Shutdown,
) -> Result<(), Failure> {
    let overdue = async {
        stop.wait().await;
        tokio::time::sleep(STOP_LIMIT + STOP_SLACK).await;
    };
    tokio::select! {
        end = serve => end.map_err(|error| Failure::failed(error.to_string())),
        () = overdue => Err(Failure::failed("the stop took too long and was cut short")),
    }
}
