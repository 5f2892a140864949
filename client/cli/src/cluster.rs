//! A whole cluster on this machine: agents and coordinator as child processes, for `dev` and `demo`.
//!
//! Decides in which order processes are started and stopped, and when the cluster serves. What is asked of it
//! afterwards, and what is told to people, is left to `dev.rs` and `demo.rs`.

mod control;
mod folder;
mod memory;
pub(crate) mod parent;
mod plan;
mod ports;
mod process;

use std::{collections::BTreeMap, ffi::OsString, future::Future, path::PathBuf, time::Duration};

use rustix::process::Signal;
use stripeset_client::{ArrayPlan, Client, RetryPolicy};
use tokio::{
    sync::mpsc,
    time::{sleep, timeout},
};
use tonic_health::pb::health_check_response::ServingStatus;

pub(crate) use self::{
    control::{Control, Request, ask},
    folder::Folder,
    memory::{Memory, Wish},
    plan::{AGENTS_MAX, agents_for, fixed_disk_bytes, slice_disk_bytes},
    process::{Exit, Process, ProcessName},
};
use crate::{commands, failure::Failure};

/// Ends of children that may wait to be told.
const EXITS_WAITING_MAX: usize = 64;

/// Time between two looks at whether something is there yet.
const POLL: Duration = Duration::from_millis(20);

/// Laying out the disks takes a while.
const CREATE_LIMIT: Duration = Duration::from_secs(300);

/// Longest wait for the coordinator's clean stop, then for the agents'. Together, and with what follows, below the
/// 20 s that a stop may take.
const COORDINATOR_STOP_LIMIT: Duration = Duration::from_secs(12);
const AGENTS_STOP_LIMIT: Duration = Duration::from_secs(5);
const KILL_LIMIT: Duration = Duration::from_secs(2);

/// Lines of a log that are shown when its process could not start.
const LOG_LINES_SHOWN: usize = 5;

/// A running cluster.
#[derive(Debug)]
pub(crate) struct Cluster {
    folder: Folder,
    memory: Memory,
    /// Settings of the coordinator, and of every agent, that are for this run alone.
    coordinator_flags: Vec<OsString>,
    agent_flags: Vec<OsString>,
    program: PathBuf,
    processes: BTreeMap<ProcessName, Process>,
    exits_sender: mpsc::Sender<Exit>,
    exits: mpsc::Receiver<Exit>,
}

impl Cluster {
    /// Starts the processes of the cluster in `folder`: the one that is there, or a new one as `wish` says.
    pub(crate) async fn start(folder: Folder, wish: &Wish) -> Result<Cluster, Failure> {
        let memory = plan::settle(&folder, wish)?;
        let mut addresses = vec![(ProcessName::Coordinator.to_string(), memory.listen)];
        for (index, address) in memory.agents.iter().enumerate() {
            addresses.push((ProcessName::Agent(index).to_string(), *address));
        }
        ports::until_free(&addresses).await?;
        let program = std::env::current_exe()
            .map_err(|error| Failure::failed(format!("cannot find this program itself: {error}")))?;
        let mut coordinator_flags: Vec<OsString> = Vec::new();
        if wish.is_unsafe {
            coordinator_flags.push("--unsafe".into());
        }
        if let Some(bytes) = wish.cache_bytes {
            coordinator_flags.extend(["--cache-size".into(), bytes.to_string().into()]);
        }
        let mut agent_flags: Vec<OsString> = Vec::new();
        if wish.faults {
            coordinator_flags.push("--faults".into());
            agent_flags.push("--faults".into());
        }
        let (exits_sender, exits) = mpsc::channel(EXITS_WAITING_MAX);
        let mut cluster = Cluster {
            folder,
            memory,
            coordinator_flags,
            agent_flags,
            program,
            processes: BTreeMap::new(),
            exits_sender,
            exits,
        };
        let names = (0..cluster.memory.agents.len()).map(ProcessName::Agent);
        for name in names.chain([ProcessName::Coordinator]) {
            // What was started already is killed when it is dropped.
            cluster.start_process(name)?;
        }
        Ok(cluster)
    }

    pub(crate) fn folder(&self) -> &Folder {
        &self.folder
    }

    pub(crate) fn memory(&self) -> &Memory {
        &self.memory
    }

    /// URL of the coordinator.
    pub(crate) fn endpoint(&self) -> String {
        let mut address = self.memory.listen;
        if address.ip().is_unspecified() {
            address.set_ip(ports::AGENT_HOST);
        }
        commands::url(address)
    }

    /// Number of a process that runs.
    pub(crate) fn pid(&self, name: ProcessName) -> Option<u32> {
        self.processes.get(&name).filter(|process| !process.has_ended()).map(Process::pid)
    }

    /// All processes of the cluster, running or not.
    pub(crate) fn names(&self) -> impl Iterator<Item = ProcessName> {
        (0..self.memory.agents.len()).map(ProcessName::Agent).chain([ProcessName::Coordinator])
    }

    /// Starts one process, which must not run. Returns the address that it will serve on.
    pub(crate) fn start_process(&mut self, name: ProcessName) -> Result<std::net::SocketAddr, Failure> {
        let count = self.memory.agents.len();
        if let Some(pid) = self.pid(name) {
            return Err(Failure::failed(format!("{name} runs already (process {pid})")));
        }
        let address = match name {
            ProcessName::Coordinator => self.memory.listen,
            ProcessName::Agent(index) => *self.memory.agents.get(index).ok_or_else(|| {
                Failure::usage(format!("there is no {name}: agents go from agent-0 to agent-{}", count - 1))
            })?,
        };
        let folder = self.folder.process(name)?;
        let mut arguments: Vec<OsString> = Vec::new();
        match name {
            ProcessName::Agent(_) => {
                arguments.extend(["agent".into(), "--disk".into(), folder.join("disk").into()]);
                arguments.extend(["--size".into(), self.memory.agent_bytes.to_string().into()]);
                arguments.extend(self.agent_flags.iter().cloned());
            }
            ProcessName::Coordinator => {
                arguments.extend(["coordinator".into(), "--state".into(), folder.join("state").into()]);
                arguments.extend(self.coordinator_flags.iter().cloned());
            }
        }
        arguments.extend(["--listen".into(), address.to_string().into()]);
        let process = Process::start(name, &self.program, arguments, &folder, self.exits_sender.clone())
            .map_err(|error| Failure::failed(format!("cannot start {name}: {error}")))?;
        self.processes.insert(name, process);
        Ok(address)
    }

    /// The next process that ends. Never returns while all run.
    pub(crate) async fn next_exit(&mut self) -> Exit {
        match self.exits.recv().await {
            Some(exit) => exit,
            // Cannot be: this holds a sender itself.
            None => std::future::pending().await,
        }
    }

    /// Kills a process with SIGKILL and waits for its end, which is not told as an exit any more.
    pub(crate) async fn kill(&mut self, name: ProcessName) {
        if let Some(process) = self.processes.remove(&name) {
            process.signal(Signal::KILL);
            process.wait().await;
            while self.exits.try_recv().is_ok() {}
        }
    }

    /// Makes the array if there is none, and returns a client once reads and writes are served. `note` is told what is
    /// being waited for. Fails if a process ends that is needed.
    pub(crate) async fn until_served(&mut self, mut note: impl FnMut(&str)) -> Result<Client, Failure> {
        let made = self.memory.made;
        let serving = serve(self.endpoint(), self.memory.clone(), &mut note);
        let mut serving = std::pin::pin!(serving);
        let client = loop {
            tokio::select! {
                client = &mut serving => break client?,
                exit = self.exits.recv() => {
                    let Some(exit) = exit else { continue };
                    // An array may serve without one of its agents, but it cannot be made without.
                    if !made || exit.name == ProcessName::Coordinator {
                        return Err(self.describe(exit));
                    }
                    eprintln!("{exit}");
                }
            }
        };
        if !made {
            self.memory.made = true;
            self.memory.write(&self.folder.memory())?;
        }
        Ok(client)
    }

    /// An end that was not to be, with what the process had to say about it.
    fn describe(&self, exit: Exit) -> Failure {
        let log = self.folder.process(exit.name).map(|folder| process::log_path(&folder)).unwrap_or_default();
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        let last = lines[lines.len().saturating_sub(LOG_LINES_SHOWN)..].join("\n  ");
        Failure::failed(format!("{exit}; the end of its log, {}:\n  {last}", log.display()))
    }

    /// Stops the coordinator, then the agents, and removes a temporary folder. Whoever does not stop in time, or once
    /// `hurry` returns, is killed.
    pub(crate) async fn stop(self, hurry: impl Future<Output = ()>) -> Result<(), Failure> {
        let (coordinator, agents): (Vec<_>, Vec<_>) =
            self.processes.iter().partition(|(name, _)| **name == ProcessName::Coordinator);
        let orderly = async {
            // First what writes to the agents, so that what it still has to write finds them.
            terminate(&coordinator, COORDINATOR_STOP_LIMIT).await;
            terminate(&agents, AGENTS_STOP_LIMIT).await;
        };
        tokio::select! {
            () = orderly => {}
            () = hurry => {}
        }
        for process in self.processes.values() {
            process.signal(Signal::KILL);
        }
        for (name, process) in &self.processes {
            if timeout(KILL_LIMIT, process.wait()).await.is_err() {
                eprintln!("{name} (process {}) does not end", process.pid());
            }
        }
        self.folder.remove()
    }
}

async fn terminate(processes: &[(&ProcessName, &Process)], limit: Duration) {
    for (_, process) in processes {
        process.signal(Signal::TERM);
    }
    let all = async {
        for (_, process) in processes {
            process.wait().await;
        }
    };
    if timeout(limit, all).await.is_err() {
        for (name, process) in processes.iter().filter(|(_, process)| !process.has_ended()) {
            eprintln!("{name} (process {}) did not stop within {limit:?}: killing it", process.pid());
            process.signal(Signal::KILL);
        }
    }
}

/// Waits until all agents answer if there is no array yet, makes one, and waits until it serves.
async fn serve(endpoint: String, memory: Memory, note: &mut impl FnMut(&str)) -> Result<Client, Failure> {
    if !memory.made {
        for address in &memory.agents {
            while commands::check(&address.to_string()).await != Ok(ServingStatus::Serving) {
                sleep(POLL).await;
            }
        }
    }
    let client = loop {
        match Client::builder(&endpoint)
            .retry(RetryPolicy::never())
            .call_deadline(CREATE_LIMIT)
            .connect()
            .await
        {
            Ok(client) => break client,
            Err(_) => sleep(POLL).await,
        }
    };
    let mut noted = String::new();
    loop {
        match client.array().status().await {
            Ok(status) if status.array.is_none() && !memory.made => {
                note("making the array");
                client.array().create_array(plan(&memory)).await?;
            }
            Ok(status) if status.reads_served && status.writes_served => break,
            Ok(status) => {
                if !status.reason.is_empty() && status.reason != noted {
                    note(&status.reason);
                    noted = status.reason;
                }
            }
            // It has only just begun to listen.
            Err(error) if error.retry_helps() => {}
            Err(error) => return Err(error.into()),
        }
        sleep(POLL).await;
    }
    // Not the one from above: whoever uses it wants calls to be tried again.
    Ok(Client::connect(endpoint).await?)
}

fn plan(memory: &Memory) -> ArrayPlan {
    ArrayPlan {
        agents: memory.agents.iter().map(ToString::to_string).collect(),
        data_profile: memory.data.clone(),
        metadata_profile: memory.metadata.clone(),
        unit_bytes: Some(memory.unit_bytes),
        slice_bytes: None,
    }
}
