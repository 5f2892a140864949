//! One child process: started, watched, signalled, waited for.
//!
//! A task owns the child and is the only one to signal it, so that no signal can reach another process that was given
//! the same number later. Children are started by the thread that runs the runtime, which is the main thread: the
//! kernel ties a child's life to the *thread* that started it.

use std::{
    ffi::OsString,
    fmt,
    fs::{self, File},
    io,
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    str::FromStr,
};

use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    process::{Child, Command},
    sync::{mpsc, watch},
};

use crate::services::{AGENT_PREFIX, COORDINATOR_PREFIX};

/// Signals to one child that may wait to be sent.
const SIGNALS_WAITING_MAX: usize = 4;

/// A process of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum ProcessName {
    /// The agent of the member with this index.
    Agent(usize),
    /// The coordinator.
    Coordinator,
}

impl fmt::Display for ProcessName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProcessName::Agent(index) => write!(f, "agent-{index}"),
            ProcessName::Coordinator => f.write_str("coordinator"),
        }
    }
}

impl FromStr for ProcessName {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let index = word.strip_prefix("agent-").and_then(|index| index.parse().ok());
        match (word, index) {
            ("coordinator", _) => Ok(ProcessName::Coordinator),
            (_, Some(index)) => Ok(ProcessName::Agent(index)),
            _ => Err(format!("{word:?} is no process of a cluster: use agent-N or coordinator")),
        }
    }
}

/// The end of a child.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exit {
    pub(crate) name: ProcessName,
    pub(crate) status: ExitStatus,
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.status.signal(), self.status.code()) {
            (Some(signal), _) => write!(f, "{} was ended by signal {signal}", self.name),
            (None, Some(code)) => write!(f, "{} ended with exit code {code}", self.name),
            (None, None) => write!(f, "{} ended", self.name),
        }
    }
}

/// A child that was started.
#[derive(Debug)]
pub(crate) struct Process {
    pid: u32,
    signals: mpsc::Sender<Signal>,
    ended: watch::Receiver<bool>,
}

impl Process {
    /// Starts `program` with `arguments`. Its output is appended to `folder/log`, its number is in `folder/pid` while
    /// it runs, and its end is told to `exits`.
    pub(crate) fn start(
        name: ProcessName,
        program: &Path,
        arguments: Vec<OsString>,
        folder: &Path,
        exits: mpsc::Sender<Exit>,
    ) -> io::Result<Process> {
        let log = File::options().create(true).append(true).open(log_path(folder))?;
        let mut command = Command::new(program);
        command.args(arguments).args(["--child-of", &std::process::id().to_string()]);
        // Settings of services that run on their own are none of a cluster's.
        for (variable, _) in std::env::vars_os() {
            let ours = |prefix: &str| variable.to_str().is_some_and(|variable| variable.starts_with(prefix));
            if ours(AGENT_PREFIX) || ours(COORDINATOR_PREFIX) {
                command.env_remove(variable);
            }
        }
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).kill_on_drop(true);
        let child = command.spawn()?;
        let pid = child.id().ok_or_else(|| io::Error::other("the child has no process number"))?;
        let pid_file = folder.join("pid");
        fs::write(&pid_file, format!("{pid}\n"))?;
        let (signals, waiting) = mpsc::channel(SIGNALS_WAITING_MAX);
        let (ending, ended) = watch::channel(false);
        tokio::spawn(async move {
            let status = watch(child, waiting).await;
            let _ = fs::remove_file(pid_file);
            ending.send_replace(true);
            if let Ok(status) = status {
                let _ = exits.send(Exit { name, status }).await;
            }
        });
        Ok(Process { pid, signals, ended })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    pub(crate) fn has_ended(&self) -> bool {
        *self.ended.borrow()
    }

    /// Asks for a signal to be sent. To a child that has ended none is.
    pub(crate) fn signal(&self, signal: Signal) {
        // Full means that as many were asked for already; they do the same.
        let _ = self.signals.try_send(signal);
    }

    /// Returns when the child has ended.
    pub(crate) async fn wait(&self) {
        let mut ended = self.ended.clone();
        // An error means that the task is gone, and the child with it.
        let _ = ended.wait_for(|ended| *ended).await;
    }
}

/// Where a process in `folder` writes its log.
pub(crate) fn log_path(folder: &Path) -> PathBuf {
    folder.join("log")
}

async fn watch(mut child: Child, mut signals: mpsc::Receiver<Signal>) -> io::Result<ExitStatus> {
    loop {
        tokio::select! {
            status = child.wait() => return status,
            Some(signal) = signals.recv() => {
                // Not waited for yet, so the number is still this child's.
                let pid = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
                if let Some(pid) = pid {
                    let _ = kill_process(pid, signal);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for name in [ProcessName::Agent(0), ProcessName::Agent(12), ProcessName::Coordinator] {
            assert_eq!(name.to_string().parse(), Ok(name));
        }
        for word in ["", "agent", "agent-", "agent-x", "agent--1", "coordinator-1"] {
            assert!(word.parse::<ProcessName>().is_err(), "{word}");
        }
    }
}
