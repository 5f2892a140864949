//! How a process is asked to stop: SIGTERM or Ctrl-C, seen once, told to everyone who waits.

use std::{io, time::Duration};

use tokio::{
    signal::unix::{SignalKind, signal},
    sync::watch,
};

/// Longest time that a clean stop may take before the process ends anyway.
pub const STOP_LIMIT: Duration = Duration::from_secs(15);

/// Whoever holds this can wait for the stop. Clones see the same stop.
#[derive(Clone, Debug)]
pub struct Shutdown {
    stopping: watch::Receiver<bool>,
}

/// Starts the stop.
#[derive(Clone, Debug)]
pub struct ShutdownTrigger {
    stopping: watch::Sender<bool>,
}

/// Which signals ask a process to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopSignals {
    /// SIGTERM and SIGINT: a process that a person or a supervisor runs.
    TerminateAndInterrupt,
    /// SIGTERM alone: a child of `stripeset dev`, whose parent decides the order in which the cluster stops. Ctrl-C
    /// reaches the whole process group.
    Terminate,
}

/// A stop that is started by hand, and what waits for it.
pub fn manual() -> (ShutdownTrigger, Shutdown) {
    let (sender, receiver) = watch::channel(false);
    (ShutdownTrigger { stopping: sender }, Shutdown { stopping: receiver })
}

/// A stop that the given signals start; SIGINT is swallowed also where it does not start one. Fails if the process cannot install signal handlers.
pub fn on_signals(signals: StopSignals) -> io::Result<Shutdown> {
    let (trigger, shutdown) = manual();
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv(), if signals == StopSignals::TerminateAndInterrupt => {}
        }
        tracing::info!("asked to stop");
        trigger.stop();
    });
    Ok(shutdown)
}

impl ShutdownTrigger {
    /// Starts the stop; again changes nothing.
    pub fn stop(&self) {
        self.stopping.send_replace(true);
    }
}

impl Shutdown {
    /// Returns when the stop has started, at once if it has already. Never returns if the trigger is gone unused.
    pub async fn wait(&self) {
        let mut stopping = self.stopping.clone();
        if stopping.wait_for(|stopping| *stopping).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Whether the stop has started.
    pub fn started(&self) -> bool {
        *self.stopping.borrow()
    }
}
