//! The data session to one agent: many requests outstanding on one stream, each answered once or failed when the
//! stream breaks; a limit on outstanding bytes; and a sense of whether the other side is alive.
//!
//! Decides when a member counts as silent. Does not decide what follows from that, and does not connect
//! (`members::connect` does).
//!
//! Silence is counted in ticks that this process itself lived through, not in wall time: when the whole machine
//! was suspended or this process stopped, that is one tick, and nobody is blamed for it.

use std::{
    collections::BTreeMap,
    pin::{Pin, pin},
    sync::{
        Arc, Mutex, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use stripeset_proto::{
    convert::uuid_bytes,
    v1::{self, session_request::Operation, session_response::Outcome},
};
use stripeset_stripe::Epoch;
use thiserror::Error;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio_stream::{Stream, StreamExt};
use tonic::Status;
use uuid::Uuid;

use super::inspect::Units;

/// Payload bytes outstanding at one member, requests and expected answers together.
pub const OUTSTANDING_BYTES_MAX: u32 = 16 * 1024 * 1024;

/// Requests queued towards the stream; more wait for a place.
const QUEUED_REQUESTS_MAX: usize = 64;

/// How often a member with something outstanding is asked for a sign of life.
pub const TICK: Duration = Duration::from_millis(100);

/// Ticks without any answer after which reads go round a member.
pub const SUSPECT_TICKS: u32 = 3;

/// Ticks without any answer after which calls to it fail.
pub const SILENT_TICKS: u32 = 5;

/// Ticks without any answer after which the session is given up, and another one is tried: the other end may not know
/// this one any more.
pub const END_TICKS: u32 = 50;

/// Longest that one call may take at a member that does answer pings: its disk hangs.
pub const CALL_LIMIT: Duration = Duration::from_secs(30);

/// Stands for a ping that found the queue full; requests are numbered from 1.
const UNSENT: u64 = 0;

/// What one request costs besides its payload.
const REQUEST_BYTES: u32 = 512;

/// Why a call brought no outcome.
#[derive(Clone, Debug, Error)]
pub enum CallError {
    /// There is no session at the moment: nothing was sent.
    #[error("not connected")]
    Away,
    /// The session broke before the answer came: unknown outcome.
    #[error("the connection broke")]
    Broken,
    /// No sign of life: unknown outcome.
    #[error("no answer, not even to pings, for {:?}", TICK * SILENT_TICKS)]
    Silent,
    /// It lives, but the answer did not come in time: unknown outcome.
    #[error("no answer for {CALL_LIMIT:?}, though it answers pings")]
    TooSlow,
    /// The agent refused: nothing was done.
    #[error("refused: {0}")]
    Refused(Refusal),
    /// The answer does not fit the request.
    #[error("an answer that does not fit the request")]
    Unfit,
}

/// A refusal in domain terms.
#[derive(Clone, Debug, Error)]
#[error("{message}")]
pub struct Refusal {
    /// Why.
    pub kind: v1::RefusalKind,
    /// For people.
    pub message: String,
}

struct Waiting {
    reply: oneshot::Sender<Outcome>,
    // Returned when the answer has come or the session ends, not when the caller stops waiting: the bytes are on
    // their way all the same.
    _bytes: OwnedSemaphorePermit,
}

type Table = Arc<Mutex<BTreeMap<u64, Waiting>>>;

#[derive(Clone)]
struct Session {
    requests: mpsc::Sender<v1::SessionRequest>,
    table: Table,
    units: Units,
}

/// The link to one member, over all its sessions.
pub struct Link {
    // UUID of the disk, as it goes over the wire.
    disk_id: RwLock<Bytes>,
    epoch: Epoch,
    session: Mutex<Option<Session>>,
    next_request: AtomicU64,
    bytes: Arc<Semaphore>,
    silent_ticks: AtomicU32,
    // Told when the ticks reach SILENT_TICKS. Wakes in the order of the calls, which a watch would not.
    fell_silent: Notify,
    // A read gave up waiting for it, and it has answered nothing since.
    suspect: AtomicBool,
}

impl Link {
    /// A link without a session.
    pub fn new(disk_id: Uuid, epoch: Epoch) -> Self {
        Link {
            disk_id: RwLock::new(uuid_bytes(disk_id)),
            epoch,
            session: Mutex::new(None),
            next_request: AtomicU64::new(1),
            bytes: Arc::new(Semaphore::new(OUTSTANDING_BYTES_MAX as usize)),
            silent_ticks: AtomicU32::new(0),
            fell_silent: Notify::new(),
            suspect: AtomicBool::new(false),
        }
    }

    /// Requests name this disk from now on.
    pub(super) fn set_disk(&self, disk_id: Uuid) {
        *self.disk_id.write().unwrap_or_else(PoisonError::into_inner) = uuid_bytes(disk_id);
    }

    fn session(&self) -> Option<Session> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether there is a session.
    pub fn connected(&self) -> bool {
        self.session.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Whether the member has answered lately, as far as it was asked.
    pub fn responsive(&self) -> bool {
        !self.suspect.load(Ordering::Relaxed) && self.silent_ticks() < SUSPECT_TICKS
    }

    /// Notes that a read has waited long enough: others go round the member until it answers anything, pings included.
    pub fn suspect(&self) {
        self.suspect.store(self.connected(), Ordering::Relaxed);
    }

    /// How long the member has been silent, in ticks.
    pub fn silent_ticks(&self) -> u32 {
        self.silent_ticks.load(Ordering::Relaxed)
    }

    /// The records of units at the other end of the session.
    pub fn units(&self) -> Option<Units> {
        self.session().map(|session| session.units)
    }

    /// Sends one operation and waits for its outcome. `answer_bytes` is how much payload the answer brings.
    ///
    /// Dropping the future does not take the request back.
    pub async fn call(&self, operation: Operation, answer_bytes: u32) -> Result<Outcome, CallError> {
        let Some(session) = self.session() else { return Err(CallError::Away) };
        let exchange = self.exchange(session, operation, answer_bytes);
        tokio::select! {
            biased;
            outcome = exchange => outcome,
            () = self.silent() => Err(CallError::Silent),
            () = tokio::time::sleep(CALL_LIMIT) => Err(CallError::TooSlow),
        }
    }

    /// Returns when the member is silent.
    async fn silent(&self) {
        let mut fell_silent = pin!(self.fell_silent.notified());
        // From here on it is heard, so nothing is missed between the comparison and the wait.
        fell_silent.as_mut().enable();
        if self.silent_ticks() < SILENT_TICKS {
            fell_silent.await;
        }
    }

    async fn exchange(
        &self,
        session: Session,
        operation: Operation,
        answer_bytes: u32,
    ) -> Result<Outcome, CallError> {
        let bytes = (payload_bytes(&operation) + answer_bytes + REQUEST_BYTES).min(OUTSTANDING_BYTES_MAX);
        let Ok(permit) = self.bytes.clone().acquire_many_owned(bytes).await else {
            return Err(CallError::Broken);
        };
        let request_id = self.next_request.fetch_add(1, Ordering::Relaxed);
        let (reply, answer) = oneshot::channel();
        lock(&session.table).insert(request_id, Waiting { reply, _bytes: permit });
        let request = self.request(request_id, operation);
        if session.requests.send(request).await.is_err() {
            lock(&session.table).remove(&request_id);
            return Err(CallError::Broken);
        }
        drop(session);
        match answer.await {
            Ok(Outcome::Refusal(refusal)) => {
                let kind = refusal.kind();
                Err(CallError::Refused(Refusal { kind, message: refusal.message }))
            }
            Ok(outcome) => Ok(outcome),
            Err(_) => Err(CallError::Broken),
        }
    }

    fn request(&self, request_id: u64, operation: Operation) -> v1::SessionRequest {
        v1::SessionRequest {
            request_id,
            disk_id: self.disk_id.read().unwrap_or_else(PoisonError::into_inner).clone(),
            epoch: Some(self.epoch.into()),
            timeout_millis: CALL_LIMIT.as_millis() as u32,
            operation: Some(operation),
        }
    }

    /// Runs one session until it ends; says why it did. While it runs, [`Link::call`] uses it. `opened` is awaited once
    /// calls can be made. `units` is where records of units are asked for.
    pub async fn run(
        &self,
        units: Units,
        requests: mpsc::Sender<v1::SessionRequest>,
        answers: impl Stream<Item = Result<v1::SessionResponse, Status>>,
        opened: impl Future<Output = ()>,
    ) -> String {
        let table = Table::default();
        let session = Session { requests: requests.clone(), table: table.clone(), units };
        *self.session.lock().unwrap_or_else(PoisonError::into_inner) = Some(session);
        self.silent_ticks.store(0, Ordering::Relaxed);
        let _end = SessionEnd { link: self, table: &table };
        opened.await;
        self.pump(&table, &requests, pin!(answers)).await
    }

    async fn pump(
        &self,
        table: &Table,
        requests: &mpsc::Sender<v1::SessionRequest>,
        mut answers: Pin<&mut impl Stream<Item = Result<v1::SessionResponse, Status>>>,
    ) -> String {
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut ping_outstanding = None;
        loop {
            tokio::select! {
                // An answer that is there is a sign of life, whatever the time.
                biased;
                answer = answers.next() => match answer {
                    Some(Ok(answer)) => {
                        self.silent_ticks.store(0, Ordering::Relaxed);
                        self.suspect.store(false, Ordering::Relaxed);
                        let is_ping = ping_outstanding == Some(answer.request_id);
                        if is_ping || ping_outstanding == Some(UNSENT) {
                            ping_outstanding = None;
                        }
                        if !is_ping {
                            deliver(table, answer);
                        }
                    }
                    None => return "the agent ended the session".to_owned(),
                    Some(Err(status)) => return format!("the session broke: {}", status.message()),
                },
                _ = tick.tick() => {
                    if ping_outstanding.is_some() {
                        if self.tick_unanswered() >= END_TICKS {
                            return format!("no sign of life for {:?}", TICK * END_TICKS);
                        }
                    } else if !lock(table).is_empty() {
                        ping_outstanding = Some(self.ping(requests));
                    }
                }
            }
        }
    }

    /// Counts one tick without an answer, and returns how many there were.
    fn tick_unanswered(&self) -> u32 {
        // This session's task alone writes it.
        let ticks = self.silent_ticks().saturating_add(1);
        self.silent_ticks.store(ticks, Ordering::Relaxed);
        if ticks >= SILENT_TICKS {
            self.fell_silent.notify_waiters();
        }
        ticks
    }

    /// The id of the ping sent, or [`UNSENT`]: then the ticks measure how long the queue stays full.
    fn ping(&self, requests: &mpsc::Sender<v1::SessionRequest>) -> u64 {
        let request_id = self.next_request.fetch_add(1, Ordering::Relaxed);
        let ping = self.request(request_id, Operation::Ping(v1::PingOperation {}));
        if requests.try_send(ping).is_ok() { request_id } else { UNSENT }
    }
}

/// Ends a session also where the future that runs it is dropped.
struct SessionEnd<'a> {
    link: &'a Link,
    table: &'a Table,
}

impl Drop for SessionEnd<'_> {
    fn drop(&mut self) {
        *self.link.session.lock().unwrap_or_else(PoisonError::into_inner) = None;
        // Fails everything outstanding: dropping a sender is how a caller learns of the break.
        lock(self.table).clear();
        self.link.silent_ticks.store(0, Ordering::Relaxed);
        self.link.suspect.store(false, Ordering::Relaxed);
    }
}

/// A queue of requests for a new session: what the link sends into, and what the stream sends from.
pub fn request_queue() -> (mpsc::Sender<v1::SessionRequest>, mpsc::Receiver<v1::SessionRequest>) {
    mpsc::channel(QUEUED_REQUESTS_MAX)
}

fn lock(table: &Table) -> std::sync::MutexGuard<'_, BTreeMap<u64, Waiting>> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

fn deliver(table: &Table, answer: v1::SessionResponse) {
    let Some(waiting) = lock(table).remove(&answer.request_id) else {
        tracing::warn!(request_id = answer.request_id, "an answer that nobody asked for");
        return;
    };
    if let Some(outcome) = answer.outcome {
        // The caller may have stopped waiting.
        let _ = waiting.reply.send(outcome);
    }
}

fn payload_bytes(operation: &Operation) -> u32 {
    let runs = match operation {
        Operation::Prepare(prepare) => &prepare.runs,
        Operation::Rebuild(rebuild) => &rebuild.runs,
        _ => return 0,
    };
    runs.iter().map(|run| run.data.len() as u32).sum()
}
