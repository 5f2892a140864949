//! The lines between the coordinator and the agents: what is sent over each is late, lost, repeated and out of order, as
//! its conduct says.
//!
//! 1. What is on its way when the coordinator dies may still arrive, at any time later.
//! 2. A message is never changed: that is TCP's and the checksums'.

use std::{
    ops::RangeInclusive,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures_util::{FutureExt, StreamExt, stream::FuturesUnordered};
use stripeset_agent::simulation::SimulatedAgent;
use stripeset_proto::v1::{SessionRequest, SessionResponse, session_request::Operation};
use tokio::sync::{Notify, mpsc};

use crate::{dice::Dice, event, trace::Trace};

/// Messages of a dead coordinator that are kept to arrive later.
const STRAY_MAX: usize = 16;

/// Kinds of messages to an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// First phase of a write.
    Prepare,
    /// A decided write.
    Commit,
    /// A write that is taken back.
    Abort,
    /// A read of sectors, or of the record alone.
    Read,
    /// A shard replaced whole.
    Rebuild,
    /// Units given back.
    Discard,
    /// A revision of the label.
    SetLabel,
    /// A sign of life is asked for.
    Ping,
}

impl Kind {
    fn of(request: &SessionRequest) -> Kind {
        match &request.operation {
            Some(Operation::Prepare(_)) => Kind::Prepare,
            Some(Operation::Commit(_)) => Kind::Commit,
            Some(Operation::Abort(_)) => Kind::Abort,
            Some(Operation::Read(_)) => Kind::Read,
            Some(Operation::Rebuild(_)) => Kind::Rebuild,
            Some(Operation::Discard(_)) => Kind::Discard,
            Some(Operation::SetLabel(_)) => Kind::SetLabel,
            Some(Operation::Ping(_)) | None => Kind::Ping,
        }
    }
}

/// How the line to one member does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conduct {
    /// No session: one that is open breaks.
    pub cut: bool,
    /// Nothing arrives, and nothing breaks.
    pub frozen: bool,
    /// What a message takes, one way, in microseconds.
    pub micros: RangeInclusive<u64>,
    /// Messages of a thousand that never arrive.
    pub lost: u64,
    /// Requests of a thousand that arrive twice.
    pub repeated: u64,
    /// Answers to requests of these kinds are kept back.
    pub held: Vec<Kind>,
}

impl Default for Conduct {
    fn default() -> Self {
        Conduct { cut: false, frozen: false, micros: 20..=200, lost: 0, repeated: 0, held: Vec::new() }
    }
}

/// What was sent to one member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Prepares.
    pub prepares: u64,
    /// Commits.
    pub commits: u64,
    /// Aborts.
    pub aborts: u64,
    /// Reads.
    pub reads: u64,
    /// Sectors that they asked for: a read of the record alone asks for none.
    pub sectors_read: u64,
    /// Rebuilds.
    pub rebuilds: u64,
    /// Revisions of the label.
    pub labels: u64,
    /// All, pings too.
    pub messages: u64,
    /// Messages that never arrived.
    pub lost: u64,
    /// Requests that arrived twice.
    pub repeated: u64,
    /// Sessions that were cut.
    pub cuts: u64,
}

impl Counts {
    fn count(&mut self, request: &SessionRequest) {
        self.messages += 1;
        if let Some(Operation::Read(read)) = &request.operation {
            self.sectors_read += u64::from(read.sectors);
        }
        match Kind::of(request) {
            Kind::Prepare => self.prepares += 1,
            Kind::Commit => self.commits += 1,
            Kind::Abort => self.aborts += 1,
            Kind::Read => self.reads += 1,
            Kind::Rebuild => self.rebuilds += 1,
            Kind::SetLabel => self.labels += 1,
            Kind::Discard | Kind::Ping => {}
        }
    }
}

struct State {
    dice: Dice,
    conduct: Conduct,
    counts: Counts,
    stray: Vec<SessionRequest>,
    /// How often sessions were broken.
    breaks: u64,
}

/// The line to one member.
pub struct Line {
    member: u32,
    agent: Arc<Mutex<SimulatedAgent>>,
    state: Mutex<State>,
    changed: Notify,
    trace: Trace,
}

enum Parcel {
    Request(SessionRequest),
    Answer(Kind, SessionResponse),
}

type OnItsWay = FuturesUnordered<Pin<Box<dyn Future<Output = Parcel> + Send>>>;

impl Line {
    /// A line that does well.
    pub fn new(member: u32, agent: Arc<Mutex<SimulatedAgent>>, seed: u64, trace: Trace) -> Self {
        let state = State {
            dice: Dice::new(seed),
            conduct: Conduct::default(),
            counts: Counts::default(),
            stray: Vec::new(),
            breaks: 0,
        };
        Line { member, agent, state: Mutex::new(state), changed: Notify::new(), trace }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The agent at its end.
    pub fn agent(&self) -> MutexGuard<'_, SimulatedAgent> {
        self.agent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Index of the member.
    pub fn member(&self) -> u32 {
        self.member
    }

    /// A session that is open breaks; the next one may come at once.
    pub fn break_session(&self) {
        self.state().breaks += 1;
        self.changed.notify_waiters();
    }

    /// What was sent so far.
    pub fn counts(&self) -> Counts {
        self.state().counts
    }

    /// How it does now.
    pub fn conduct(&self) -> Conduct {
        self.state().conduct.clone()
    }

    /// Changes how it does.
    pub fn set_conduct(&self, conduct: Conduct) {
        let mut state = self.state();
        state.counts.cuts += u64::from(conduct.cut && !state.conduct.cut);
        state.conduct = conduct;
        drop(state);
        self.changed.notify_waiters();
    }

    /// Returns once the line is not cut.
    pub(crate) async fn whole(&self) {
        loop {
            let changed = self.changed.notified();
            if !self.state().conduct.cut {
                return;
            }
            changed.await;
        }
    }

    /// A message of a coordinator that is dead, if one is still on its way, arrives now.
    pub fn deliver_stray(&self) -> bool {
        let Some(request) = self.state().stray.pop() else { return false };
        event!(self.trace, "member {}: a stray {:?} arrives", self.member, Kind::of(&request));
        // Nobody is there for the answer.
        self.agent().handle(vec![request]);
        true
    }

    /// Carries one session until the line is cut or the other side ends it.
    pub(crate) async fn carry(
        &self,
        mut requests: mpsc::Receiver<SessionRequest>,
        answers: mpsc::Sender<SessionResponse>,
    ) {
        let mut on_its_way = OnItsWay::new();
        let mut held: Vec<(Kind, SessionResponse)> = Vec::new();
        let breaks = self.state().breaks;
        loop {
            let changed = self.changed.notified();
            let conduct = self.conduct();
            if conduct.cut || self.state().breaks != breaks {
                return;
            }
            let (free, still): (Vec<_>, Vec<_>) =
                held.drain(..).partition(|(kind, _)| !conduct.held.contains(kind));
            held = still;
            free.into_iter().for_each(|(kind, answer)| {
                on_its_way.push(later(Duration::ZERO, Parcel::Answer(kind, answer)))
            });
            tokio::select! {
                biased;
                Some(first) = on_its_way.next(), if !on_its_way.is_empty() && !conduct.frozen => {
                    let mut parcels = vec![first];
                    while let Some(Some(parcel)) = on_its_way.next().now_or_never() {
                        parcels.push(parcel);
                    }
                    if !self.deliver(parcels, &mut on_its_way, &mut held, &answers) {
                        return;
                    }
                }
                request = requests.recv() => match request {
                    Some(request) => self.send(request, &mut on_its_way),
                    None => return,
                },
                () = changed => {}
            }
        }
    }

    fn send(&self, request: SessionRequest, on_its_way: &mut OnItsWay) {
        let kind = Kind::of(&request);
        let mut state = self.state();
        state.counts.count(&request);
        if state.lose() {
            event!(self.trace, "member {}: {kind:?} is lost", self.member);
            return;
        }
        let conduct = state.conduct.clone();
        if state.dice.of_thousand(conduct.repeated) {
            state.counts.repeated += 1;
            event!(self.trace, "member {}: {kind:?} arrives twice", self.member);
            let delay = state.delay();
            on_its_way.push(later(delay, Parcel::Request(request.clone())));
            if state.stray.len() < STRAY_MAX {
                state.stray.push(request.clone());
            }
        }
        on_its_way.push(later(state.delay(), Parcel::Request(request)));
    }

    /// Hands over what has arrived; `false` if nobody takes answers any more.
    fn deliver(
        &self,
        parcels: Vec<Parcel>,
        on_its_way: &mut OnItsWay,
        held: &mut Vec<(Kind, SessionResponse)>,
        answers: &mpsc::Sender<SessionResponse>,
    ) -> bool {
        let (mut group, mut kinds) = (Vec::new(), Vec::new());
        for parcel in parcels {
            match parcel {
                Parcel::Request(request) => {
                    kinds.push((request.request_id, Kind::of(&request)));
                    group.push(request);
                }
                Parcel::Answer(kind, answer) => {
                    if self.state().conduct.held.contains(&kind) {
                        held.push((kind, answer));
                    } else if answers.try_send(answer).is_err() {
                        return false;
                    }
                }
            }
        }
        if group.is_empty() {
            return true;
        }
        let answered = self.agent().handle(group);
        let mut state = self.state();
        for answer in answered {
            let kind =
                kinds.iter().find(|(id, _)| *id == answer.request_id).map_or(Kind::Ping, |(_, kind)| *kind);
            if state.lose() {
                event!(self.trace, "member {}: the answer to {kind:?} is lost", self.member);
            } else {
                on_its_way.push(later(state.delay(), Parcel::Answer(kind, answer)));
            }
        }
        true
    }
}

impl State {
    fn lose(&mut self) -> bool {
        let lost = self.dice.of_thousand(self.conduct.lost);
        self.counts.lost += u64::from(lost);
        lost
    }

    fn delay(&mut self) -> Duration {
        Duration::from_micros(self.dice.between(*self.conduct.micros.start(), *self.conduct.micros.end()))
    }
}

fn later(delay: Duration, parcel: Parcel) -> Pin<Box<dyn Future<Output = Parcel> + Send>> {
    // A timer has whole milliseconds only; what takes less comes in the order of the list.
    Box::pin(async move {
        tokio::time::sleep(delay).await;
        parcel
    })
}

impl std::fmt::Debug for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Line").field("member", &self.member).finish_non_exhaustive()
    }
}
