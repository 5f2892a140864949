//! One data stream: takes requests in, hands them to the disk's queue, brings the answers back.
//!
//! Decides about limits and refusals that need no disk; never waits for a disk, so that a ping, or a refusal, is never
//! behind one. A stream that breaks takes nothing back: what is queued is carried out, and its answer dropped (A6).
//!
//! Invariants:
//! 1. Every request gets exactly one answer while the stream lives: a [`Reply`] is made for each, and sending uses it up.
//! 2. At most [`SESSION_REQUESTS_MAX`] requests and [`SESSION_BYTES_MAX`] bytes of a session are in the agent, from the
//!    arrival of a request until the transport has taken its answer. What is above is refused at once.
//! 3. To answer never blocks the disk's thread: the place in the channel is taken when the request is.

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use stripeset_proto::{
    convert,
    v1::{self, SessionRequest, SessionResponse, session_request, session_response},
};
use stripeset_stripe::{Epoch, SECTOR_BYTES};
use stripeset_telemetry::shutdown::Shutdown;
use tokio::{sync::mpsc, time::Instant};
use tokio_stream::{Stream, StreamExt, wrappers::ReceiverStream};
use tonic::{Status, Streaming};
use uuid::Uuid;

use crate::{
    group::Request,
    operation::{Operation, Outcome},
    queue::{NotQueued, Queue, Task},
    refusal::Refusal,
};

/// Most requests of one session that are in the agent.
pub(crate) const SESSION_REQUESTS_MAX: usize = 1024;

/// Most bytes of one session that are in the agent: payloads brought, and sectors asked for. A stripe unit of the
/// largest length passes 64 times.
pub(crate) const SESSION_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// Places in the channel of answers beyond those of requests: for pings and refusals on their way out. When they are
/// taken the session reads no further, until the other end reads its answers.
const SPARE_ANSWERS: usize = 64;

/// Bytes that a request counts for apart from its payload: what its own fields take.
const REQUEST_BYTES: u64 = 256;

/// A request that needs the disk, its operation not yet looked at.
pub(crate) struct Asked {
    pub(crate) request_id: u64,
    epoch: Epoch,
    timeout: Duration,
    operation: session_request::Operation,
}

impl Asked {
    /// What a request asks of the disk `own`; `None` if it only asks for a sign of life.
    pub(crate) fn of(request: SessionRequest, own: Uuid) -> Result<Option<Asked>, Refusal> {
        let given = match convert::uuid("disk_id", &request.disk_id) {
            Ok(given) => given,
            Err(error) => return Err(Refusal::Invalid(error.to_string())),
        };
        if given != own {
            // The store would say so too; but a ping does not get there, and is no sign of life of another disk.
            return Err(Refusal::WrongDisk { given, own });
        }
        let operation = match request.operation {
            Some(session_request::Operation::Ping(_)) => return Ok(None),
            Some(operation) => operation,
            None => return Err(Refusal::Invalid("a request without an operation".to_owned())),
        };
        let timeout = Duration::from_millis(u64::from(request.timeout_millis));
        let epoch = convert::epoch(request.epoch);
        Ok(Some(Asked { request_id: request.request_id, epoch, timeout, operation }))
    }

    /// The request as the disk carries it out. Its time begins now.
    pub(crate) fn checked<R>(self, disk_id: Uuid, reply: R) -> Result<Request<R>, Refusal> {
        let Asked { epoch, timeout, operation, .. } = self;
        let operation = match Operation::try_from(operation) {
            Ok(operation) => operation,
            Err(error) => return Err(Refusal::Invalid(error.to_string())),
        };
        let deadline = (!timeout.is_zero()).then(|| Instant::now() + timeout);
        Ok(Request { disk_id, epoch, deadline, operation, reply })
    }
}

/// An answer, and what it still holds of the session's limits.
struct Answer {
    response: SessionResponse,
    /// Given back when the transport has taken the answer.
    _admission: Option<Admission>,
}

/// What one request holds of the session's limit of bytes.
struct Admission {
    bytes: u64,
    session: Arc<AtomicU64>,
}

impl Drop for Admission {
    fn drop(&mut self) {
        self.session.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Where the answer to one request goes.
pub(crate) struct Reply {
    request_id: u64,
    permit: mpsc::OwnedPermit<Answer>,
    admission: Admission,
}

impl Reply {
    /// Answers. Never blocks; to a stream that is gone it does nothing.
    pub(crate) fn send(self, outcome: Result<Outcome, Refusal>) {
        let response = answer(self.request_id, outcome);
        self.permit.send(Answer { response, _admission: Some(self.admission) });
    }
}

/// Serves one stream: returns its answers, and reads its requests in a task of its own.
pub(crate) fn serve(
    requests: Streaming<SessionRequest>,
    disk_id: Uuid,
    queue: Queue,
    shutdown: Shutdown,
    guard: impl Send + 'static,
) -> impl Stream<Item = Result<SessionResponse, Status>> + Send + 'static {
    let (sender, receiver) = mpsc::channel(SESSION_REQUESTS_MAX + SPARE_ANSWERS);
    let session = Session { disk_id, queue, answers: sender, bytes: Arc::default() };
    tokio::spawn(async move {
        session.read(requests, shutdown).await;
        drop(guard);
    });
    ReceiverStream::new(receiver).map(|answer: Answer| Ok(answer.response))
}

struct Session {
    disk_id: Uuid,
    queue: Queue,
    answers: mpsc::Sender<Answer>,
    /// Bytes in the agent.
    bytes: Arc<AtomicU64>,
}

impl Session {
    /// Takes requests in until the stream or the agent ends. The answers' channel ends when the last answer is in it.
    async fn read(self, mut requests: Streaming<SessionRequest>, shutdown: Shutdown) {
        let mut stopping = pin!(shutdown.wait());
        loop {
            let request = tokio::select! {
                biased;
                () = &mut stopping => break,
                request = requests.message() => request,
            };
            let refused = match request {
                Ok(Some(request)) => self.take_in(request),
                Ok(None) => break,
                Err(status) => {
                    tracing::debug!(%status, "a data stream broke");
                    break;
                }
            };
            let Some(response) = refused else { continue };
            let answer = Answer { response, _admission: None };
            let sent = tokio::select! {
                biased;
                () = &mut stopping => break,
                sent = self.answers.send(answer) => sent,
            };
            if sent.is_err() {
                break;
            }
        }
    }

    /// Queues a request, or returns its answer if it needs no disk.
    fn take_in(&self, request: SessionRequest) -> Option<SessionResponse> {
        let request_id = request.request_id;
        match self.queue_request(request) {
            Ok(None) => None,
            Ok(Some(outcome)) => Some(answer(request_id, Ok(outcome))),
            Err(refusal) => {
                self.queue.count_refusal();
                Some(answer(request_id, Err(refusal)))
            }
        }
    }

    fn queue_request(&self, request: SessionRequest) -> Result<Option<Outcome>, Refusal> {
        let Some(asked) = Asked::of(request, self.disk_id)? else { return Ok(Some(Outcome::Done)) };
        let bytes = bytes_of(&asked.operation);
        // Limits before the checksums: what is refused should cost little.
        let (admission, permit) = self.admit(bytes)?;
        let request_id = asked.request_id;
        let request = asked.checked(self.disk_id, Reply { request_id, permit, admission })?;
        let task = Task { bytes, request };
        match self.queue.push(Box::new(task)) {
            Ok(()) => Ok(None),
            Err((task, why)) => {
                let refusal = match why {
                    NotQueued::Full => Refusal::Limit {
                        what: "too many requests wait for the disk",
                        limit: crate::queue::QUEUE_REQUESTS_MAX as u64,
                    },
                    NotQueued::Stopping => Refusal::DiskFailed("the agent is stopping".to_owned()),
                };
                self.queue.count_refusal();
                task.request.reply.send(Err(refusal));
                Ok(None)
            }
        }
    }

    fn admit(&self, bytes: u64) -> Result<(Admission, mpsc::OwnedPermit<Answer>), Refusal> {
        // Only this task adds, so nothing comes between the comparison and the sum.
        let held = self.bytes.load(Ordering::Relaxed);
        if held + bytes > SESSION_BYTES_MAX {
            return Err(Refusal::Limit { what: "too many bytes outstanding", limit: SESSION_BYTES_MAX });
        }
        let too_many =
            Refusal::Limit { what: "too many requests outstanding", limit: SESSION_REQUESTS_MAX as u64 };
        if self.answers.capacity() <= SPARE_ANSWERS {
            return Err(too_many);
        }
        let Ok(permit) = self.answers.clone().try_reserve_owned() else { return Err(too_many) };
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok((Admission { bytes, session: Arc::clone(&self.bytes) }, permit))
    }
}

/// What a request counts for: its payload, or the payload of its answer.
fn bytes_of(operation: &session_request::Operation) -> u64 {
    let brought = |runs: &[v1::SectorRun]| runs.iter().map(|run| run.data.len() as u64).sum::<u64>();
    let payload = match operation {
        session_request::Operation::Prepare(prepare) => brought(&prepare.runs),
        session_request::Operation::Rebuild(rebuild) => brought(&rebuild.runs),
        session_request::Operation::Read(read) => u64::from(read.sectors) * SECTOR_BYTES as u64,
        _ => 0,
    };
    payload + REQUEST_BYTES
}

/// The answer to a request.
pub(crate) fn answer(request_id: u64, outcome: Result<Outcome, Refusal>) -> SessionResponse {
    let outcome = match outcome {
        Ok(outcome) => outcome.into(),
        Err(refusal) => session_response::Outcome::Refusal(refusal.into()),
    };
    SessionResponse { request_id, outcome: Some(outcome) }
}
