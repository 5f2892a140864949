//! `dev`: a cluster on this machine until Ctrl-C, and `dev start`, which brings a dead process of it back.

use std::{io, net::SocketAddr, path::Path, time::Duration};

use serde::Serialize;
use stripeset_telemetry::shutdown::{self, Shutdown, StopSignals};
use tokio::{
    net::TcpStream,
    signal::unix::{SignalKind, signal},
    time::{Instant, sleep},
};

use crate::{
    arguments::{DevClusterArguments, DevStartArguments},
    cluster::{self, Cluster, Control, Folder, ProcessName, Request, Wish},
    failure::Failure,
    output::Output,
};

/// Longest wait of `dev start` for the process to listen.
const START_LIMIT: Duration = Duration::from_secs(10);
const START_POLL: Duration = Duration::from_millis(20);

#[derive(Serialize)]
struct Ready {
    state: &'static str,
    endpoint: String,
    dir: String,
    temporary: bool,
    agents: Vec<String>,
}

/// Runs a cluster until it is asked to stop.
pub(crate) async fn run(arguments: DevClusterArguments, output: Output) -> Result<(), Failure> {
    let stop = shutdown::on_signals(StopSignals::TerminateAndInterrupt)?;
    tell_what_has_no_effect(&arguments);
    let folder = match &arguments.dir {
        Some(dir) => Folder::open(dir)?,
        None => Folder::temporary()?,
    };
    let control = Control::listen(folder.root())?;
    let mut cluster = Cluster::start(folder, &wish(&arguments)).await?;
    let end = tokio::select! {
        end = attend(&mut cluster, &control, output) => end,
        () = stop_or_hangup(&stop) => Ok(()),
    };
    eprintln!("stopping");
    // Signals of the same kind again mean that somebody is in a hurry.
    let stopped = cluster.stop(again()).await;
    end.and(stopped)
}

/// Makes the cluster serve, and looks after it. Returns on failure alone.
async fn attend(cluster: &mut Cluster, control: &Control, output: Output) -> Result<(), Failure> {
    cluster.until_served(|what| eprintln!("waiting: {what}")).await?;
    ready(cluster, output)?;
    loop {
        tokio::select! {
            exit = cluster.next_exit() => {
                let root = cluster.folder().root().display();
                eprintln!("{exit}; `stripeset dev start {} --dir {root}` starts it again", exit.name);
            }
            request = control.next() => answer(cluster, request).await,
        }
    }
}

fn ready(cluster: &Cluster, output: Output) -> Result<(), Failure> {
    let (folder, memory) = (cluster.folder(), cluster.memory());
    let ready = Ready {
        state: "ready",
        endpoint: cluster.endpoint(),
        dir: folder.root().display().to_string(),
        temporary: folder.is_temporary(),
        agents: memory.agents.iter().map(ToString::to_string).collect(),
    };
    output.show(&ready, || {
        let (agents, data, endpoint) = (memory.agents.len(), &memory.data, &ready.endpoint);
        let temporary = if ready.temporary { " (temporary: removed at the end)" } else { "" };
        format!("{agents} agents, data {data}, in {}{temporary}\nendpoint {endpoint}\nready", ready.dir)
    })
}

fn tell_what_has_no_effect(arguments: &DevClusterArguments) {
    let flags = [
        ("--metadata", arguments.metadata.is_some(), "metadata lives in a file of the coordinator for now"),
        ("--policy", arguments.policy.is_some(), "this version has one policy"),
    ];
    for (flag, given, why) in flags {
        if given {
            eprintln!("{flag} has no effect yet: {why}");
        }
    }
}

fn wish(arguments: &DevClusterArguments) -> Wish {
    Wish {
        agents: arguments.agents,
        agent_bytes: arguments.agent_size,
        data: arguments.data.as_ref().map(|profile| profile.word.clone()),
        metadata: arguments.metadata.as_ref().map(|profile| profile.word.clone()),
        unit_bytes: arguments.unit,
        listen: arguments.listen,
        is_unsafe: arguments.r#unsafe,
        cache_bytes: arguments.cache_size,
        faults: arguments.faults,
    }
}

/// Ctrl-C, SIGTERM, or the terminal that goes away.
pub(crate) async fn stop_or_hangup(stop: &Shutdown) {
    match signal(SignalKind::hangup()) {
        Ok(mut hangup) => tokio::select! {
            () = stop.wait() => {}
            _ = hangup.recv() => {}
        },
        Err(_) => stop.wait().await,
    }
}

/// The next Ctrl-C or SIGTERM.
pub(crate) async fn again() {
    match (signal(SignalKind::interrupt()), signal(SignalKind::terminate())) {
        (Ok(mut interrupt), Ok(mut terminate)) => tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        },
        _ => std::future::pending().await,
    }
}

/// Requests are `start NAME`; answers are `started ADDRESS`, or `usage` or `failed` and why.
async fn answer(cluster: &mut Cluster, request: Request) {
    let started = match request.line.split_once(' ') {
        Some(("start", name)) => match name.parse::<ProcessName>() {
            Ok(name) => cluster.start_process(name).inspect(|_| eprintln!("{name} was started again")),
            Err(wrong) => Err(Failure::usage(wrong)),
        },
        _ => Err(Failure::usage("this `stripeset dev` does not know the request: is it of another version?")),
    };
    let line = match started {
        Ok(address) => format!("started {address}"),
        Err(Failure { code: crate::failure::Code::Usage, message }) => format!("usage {message}"),
        Err(Failure { message, .. }) => format!("failed {message}"),
    };
    request.answer(&line.replace('\n', " ")).await;
}

#[derive(Serialize)]
struct Started {
    name: String,
    address: String,
}

/// Has the `dev` that runs in a folder start one of its processes again, and waits until that listens. The folder may
/// stand before or after the word `start`; other flags of `dev` are for a cluster that is not running yet.
pub(crate) async fn start_process(
    arguments: DevStartArguments,
    mut before: DevClusterArguments,
    output: Output,
) -> Result<(), Failure> {
    let DevStartArguments { name, dir } = arguments;
    let outer = before.dir.take();
    if before != DevClusterArguments::default() {
        return Err(Failure::usage(
            "`dev start` takes --dir alone: a running cluster keeps what it was made with",
        ));
    }
    let Some(dir) = dir.or(outer) else {
        return Err(Failure::usage("give the folder of the running `stripeset dev`: --dir DIR"));
    };
    let name: ProcessName = name.parse().map_err(Failure::usage)?;
    let answer = cluster::ask(&dir, &format!("start {name}")).await?;
    let address = match answer.split_once(' ') {
        Some(("started", address)) => address.to_owned(),
        Some(("usage", why)) => return Err(Failure::usage(why)),
        Some(("failed", why)) => return Err(Failure::failed(why)),
        _ => return Err(Failure::failed(format!("an answer that makes no sense: {answer:?}"))),
    };
    until_listening(name, &address, &dir).await?;
    let started = Started { name: name.to_string(), address };
    output.show(&started, || format!("{name} listens on {}", started.address))
}

async fn until_listening(name: ProcessName, address: &str, dir: &Path) -> Result<(), Failure> {
    let address: SocketAddr = match address.parse() {
        Ok(address) => address,
        Err(_) => return Err(Failure::failed(format!("{address:?} is no address"))),
    };
    let deadline = Instant::now() + START_LIMIT;
    loop {
        let error: io::Error = match TcpStream::connect(address).await {
            Ok(_) => return Ok(()),
            Err(error) => error,
        };
        if Instant::now() >= deadline {
            let dir = dir.display();
            let message =
                format!("{name} was started, but {address} does not answer ({error}): see its log in {dir}");
            return Err(Failure::failed(message));
        }
        sleep(START_POLL).await;
    }
}
