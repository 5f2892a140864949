//! The disk's thread: one per disk, owner of the store. Drains a bounded queue in groups, and answers.
//!
//! How a group is carried out is in `group`. A fence, or a look at the disk, is a group of its own, so that what came
//! before it is done and what comes after it sees it (A1). So is a tick, at which the store puts home what was committed:
//! never more than a step, so that requests do not wait long behind it.
//!
//! Does not decide what an operation does (`store`), nor what becomes of answers (`session`).

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

use stripeset_proto::{Error, ErrorKind};
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::Instant,
};

use crate::{
    group::{self, Request},
    session::Reply,
    store::Store,
};

/// Most requests that wait for the disk, of all sessions together.
pub(crate) const QUEUE_REQUESTS_MAX: usize = 4096;

/// Most requests in one group: more would make the first one wait long for the sync they share.
const GROUP_REQUESTS_MAX: usize = 256;

/// Most bytes brought or asked for by one group: what a slow disk takes in a few hundredths of a second.
const GROUP_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// How long the journal is emptied before the disk is closed: a slow disk leaves the rest to the next start.
const CLOSE_TIME: std::time::Duration = std::time::Duration::from_secs(4);

/// How long a unary call that finds the queue full should wait before it tries again.
const RETRY_AFTER: std::time::Duration = std::time::Duration::from_millis(100);

/// One request of a session.
pub(crate) struct Task {
    /// Bytes that it brings or asks for.
    pub(crate) bytes: u64,
    pub(crate) request: Request<Reply>,
}

/// Something that is done with the store while nothing else is.
type Look = Box<dyn FnOnce(&mut Store) + Send>;

enum Work {
    Task(Box<Task>),
    Look(Look),
    /// Time has passed: what was committed goes home.
    Tick,
    Stop,
}

/// The end of the queue where work is put in.
#[derive(Clone)]
pub(crate) struct Queue {
    sender: mpsc::Sender<Work>,
    /// Requests refused before they were put in.
    refusals: Arc<AtomicU64>,
}

/// A running disk thread.
pub(crate) struct DiskThread {
    pub(crate) queue: Queue,
    /// Completes when the thread has synced and closed the disk; fails if it ended any other way.
    pub(crate) ended: oneshot::Receiver<()>,
    /// Turns true when the disk failed.
    pub(crate) failed: watch::Receiver<bool>,
}

/// Why a request was not taken in.
pub(crate) enum NotQueued {
    Full,
    Stopping,
}

/// Starts the thread of a disk.
pub(crate) fn start(store: Store) -> io::Result<DiskThread> {
    let (sender, receiver) = mpsc::channel(QUEUE_REQUESTS_MAX);
    let (ended_sender, ended) = oneshot::channel();
    let (failed_sender, failed) = watch::channel(false);
    thread::Builder::new().name("disk".to_owned()).spawn(move || {
        run(store, receiver, &failed_sender);
        // Nobody may wait any more: the process is on its way out.
        let _ = ended_sender.send(());
    })?;
    Ok(DiskThread { queue: Queue { sender, refusals: Arc::default() }, ended, failed })
}

impl Queue {
    /// Puts a request in; the request comes back, to be refused, if that cannot be.
    pub(crate) fn push(&self, task: Box<Task>) -> Result<(), (Box<Task>, NotQueued)> {
        match self.sender.try_send(Work::Task(task)) {
            Ok(()) => Ok(()),
            Err(mpsc::error::TrySendError::Full(Work::Task(task))) => Err((task, NotQueued::Full)),
            Err(mpsc::error::TrySendError::Closed(Work::Task(task))) => Err((task, NotQueued::Stopping)),
            // What comes back is what was sent.
            Err(_) => Ok(()),
        }
    }

    /// Runs `look` with the store, alone, and returns what it found. It runs even if the caller goes away (A6).
    pub(crate) async fn look<T: Send + 'static>(
        &self,
        look: impl FnOnce(&mut Store) -> T + Send + 'static,
    ) -> Result<T, Error> {
        let (sender, receiver) = oneshot::channel();
        let look: Look = Box::new(move |store| {
            // A caller that went away wants no answer.
            let _ = sender.send(look(store));
        });
        match self.sender.try_send(Work::Look(look)) {
            Ok(()) => {}
            Err(mpsc::error::TrySendError::Full(_)) => {
                let message =
                    format!("{QUEUE_REQUESTS_MAX} requests wait for the disk: the limit; try again");
                return Err(Error::busy(message, RETRY_AFTER));
            }
            Err(mpsc::error::TrySendError::Closed(_)) => return Err(stopping()),
        }
        match receiver.await {
            Ok(found) => Ok(found),
            Err(oneshot::error::RecvError { .. }) => Err(stopping()),
        }
    }

    /// Lets the store put home what was committed some time ago. To be called a few times a second; a full queue does
    /// without.
    pub(crate) fn tick(&self) {
        // Whoever is stopping empties the journal anyway.
        let _ = self.sender.try_send(Work::Tick);
    }

    /// Counts a request that was refused before it was put in.
    pub(crate) fn count_refusal(&self) {
        self.refusals.fetch_add(1, Ordering::Relaxed);
    }

    /// Requests refused before they were put in.
    pub(crate) fn refusals(&self) -> u64 {
        self.refusals.load(Ordering::Relaxed)
    }

    /// Asks the thread to carry out what is queued, sync, and end. Nothing is taken in afterwards.
    pub(crate) async fn stop(&self) {
        // A thread that has ended already needs no telling.
        let _ = self.sender.send(Work::Stop).await;
    }
}

fn stopping() -> Error {
    Error::new(ErrorKind::Unavailable, "the agent is stopping; try again when it is back")
}

fn run(mut store: Store, mut receiver: mpsc::Receiver<Work>, failed: &watch::Sender<bool>) {
    let mut group = Vec::new();
    while let Some(work) = receiver.blocking_recv() {
        let alone = gather(work, &mut receiver, &mut group);
        group::carry_out(&mut store, group.drain(..).map(|task| task.request), Reply::send);
        match alone {
            Some(Work::Look(look)) => look(&mut store),
            Some(Work::Tick) => {
                // A failure is kept, and told to whoever asks next.
                if let Err(refusal) = store.apply_due() {
                    tracing::warn!(%refusal, "committed writes could not be put home");
                }
            }
            // Closed, the channel still gives what it holds, and then ends.
            Some(Work::Stop) => receiver.close(),
            Some(Work::Task(_)) | None => {}
        }
        if store.failure().is_some() {
            failed.send_replace(true);
        }
    }
    let end = Instant::now() + CLOSE_TIME;
    if let Err(refusal) = store.close(|| Instant::now() < end) {
        tracing::error!(%refusal, "the journal could not be emptied; what was answered is durable, the next start reads it");
    }
}

/// Fills `group` with requests that wait, up to the limits of a group, beginning with `work`. Ends early at work that
/// has to be done alone, and returns that.
fn gather(work: Work, receiver: &mut mpsc::Receiver<Work>, group: &mut Vec<Task>) -> Option<Work> {
    let mut bytes = 0;
    let mut next = Some(work);
    while let Some(work) = next {
        match work {
            Work::Task(task) => {
                bytes += task.bytes;
                group.push(*task);
            }
            alone => return Some(alone),
        }
        let more = group.len() < GROUP_REQUESTS_MAX && bytes < GROUP_BYTES_MAX;
        next = if more { receiver.try_recv().ok() } else { None };
    }
    None
}
