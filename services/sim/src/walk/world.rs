//! What happens in a walk, at random, and what has to hold meanwhile: the network, crashes and losses, transactions and
//! readers. How it ends is in `end`.

use stripeset_stripe::{
    Epoch, Version,
    label::{Change, Label, LabelMember, MemberSet, Revision},
};
use uuid::Uuid;

use super::{
    Broken, Counts, DATA, DATA_MAX, Rule, STEPS, STRIPES, Shape, VERTICALS, VERTICALS_MAX,
    agent::{Agent, Answer, Ask, Sender},
    coordinator::{Coordinator, Phase, Transaction, members},
};
use crate::dice::Dice;

/// Hosts from which coordinators start.
pub(super) const HOSTS: usize = 2;

/// Coordinators of one walk, at most, before its end.
const COORDINATORS_MAX: usize = 5;

/// Transactions of one walk, at most, before its end: they are bits of a number.
const TRANSACTIONS_MAX: usize = 14;

/// A data sector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Its shard.
    pub shard: usize,
    /// Its vertical.
    pub vertical: usize,
}

/// A live sector that a reader holds: what it has, and the version of the write that made it.
pub type Held = (Place, u32, Version);

/// What was said of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Nothing yet.
    Open,
    /// It is durable.
    Acknowledged,
    /// It is not, and will not be.
    Aborted,
}

/// What a record of the log says: all of it, so that one record is enough.
#[derive(Clone, Copy, Debug, Default)]
pub struct LogState {
    pub(super) sequence: u32,
    /// One bit for each transaction that it contains.
    history: u64,
    live: [[Option<(u32, Version)>; VERTICALS_MAX]; DATA_MAX],
}

impl LogState {
    pub(super) fn has(&self, transaction: usize) -> bool {
        self.history >> transaction & 1 == 1
    }

    pub(super) fn live(&self) -> impl Iterator<Item = Held> {
        let places =
            (0..DATA_MAX).flat_map(|shard| (0..VERTICALS_MAX).map(move |vertical| Place { shard, vertical }));
        places.filter_map(|place| {
            let (value, version) = self.live[place.shard][place.vertical]?;
            Some((place, value, version))
        })
    }

    pub(super) fn live_count(&self) -> usize {
        self.live.iter().flatten().flatten().count()
    }
}

/// A state folder.
#[derive(Clone, Debug)]
pub struct Folder {
    pub(super) name: Uuid,
    pub(super) label: Option<Label>,
    pub(super) in_force: bool,
    claimed: u64,
}

#[derive(Clone, Debug)]
enum Body {
    Ask(Sender, Box<Ask>),
    Answer(Box<Answer>),
}

#[derive(Clone, Debug)]
pub(super) struct Message {
    coordinator: usize,
    member: usize,
    body: Body,
}

/// One thing that can happen.
#[derive(Clone, Copy, Debug)]
enum Act {
    Deliver,
    Lose,
    DeliverAndKeep,
    KillCoordinator(usize),
    StartCoordinator,
    LoseDisk,
    CrashAgent,
    CutLink,
    Apply,
    LookAtStart(usize),
    SendLabel(usize),
    FollowLabel(usize),
    GiveUpOnLabel(usize),
    Resolve(usize),
    GiveUpOnResolving(usize),
    Begin(usize),
    Append(usize),
    Decide(usize, usize),
    PrepareAgain(usize, usize),
    GiveUpOnPrepare(usize, usize),
    Abort(usize, usize),
    EndAbort(usize, usize),
    GiveUpOnAbort(usize, usize),
    Discard(usize),
    Commit(usize),
    Read(usize),
    Rejoin(usize),
    RejoinAgain(usize),
    BeginRejoin(usize),
}

/// Everything there is in a walk.
pub struct World {
    pub(super) shape: Shape,
    pub(super) broken: Broken,
    pub(super) dice: Dice,
    pub(super) agents: Vec<Agent>,
    pub(super) messages: Vec<Message>,
    pub(super) coordinators: Vec<Coordinator>,
    /// Links that are cut, by host and member.
    pub(super) cut: Vec<Vec<bool>>,
    pub(super) folders: Vec<Folder>,
    pub(super) states: Vec<LogState>,
    pub(super) transactions: Vec<Status>,
    /// The log state with which each transaction was acknowledged.
    acknowledged_at: Vec<usize>,
    disks: u128,
    /// The end: nothing is lost or torn any more.
    pub(super) mended: bool,
    /// No more than m members are gone at a time, as far as anybody could know: then the end has to come to serve.
    pub(super) budgeted: bool,
    pub(super) counts: Counts,
    trace: Option<Vec<String>>,
}

impl World {
    /// An array that was just made.
    pub fn new(shape: Shape, seed: u64, broken: Broken, traced: bool) -> World {
        let n = shape.members();
        let disk_id = |index: usize| Uuid::from_u128(index as u128 + 1);
        let member = |index| LabelMember { disk_id: disk_id(index), address: String::new(), out: None };
        let label = Label {
            array_id: Uuid::nil(),
            revision: Revision { number: 1, ..Revision::default() },
            unit_bytes: 0,
            slice_bytes: 0,
            shards_max: 0,
            data_shards_max: 0,
            members: (0..n).map(member).collect(),
            may_follow: Vec::new(),
        };
        let folder = |host: usize| Uuid::from_u128(0xf01d_0000 + host as u128);
        let folders = (0..HOSTS).map(|host| Folder {
            name: folder(host),
            label: (host == 0).then(|| label.clone()),
            in_force: host == 0,
            claimed: 0,
        });
        World {
            shape,
            broken,
            dice: Dice::new(seed),
            agents: (0..n)
                .map(|index| Agent::new(disk_id(index), Some(label.clone()), vec![folder(0)]))
                .collect(),
            messages: Vec::new(),
            coordinators: Vec::new(),
            cut: vec![vec![false; n]; HOSTS],
            folders: folders.collect(),
            states: vec![LogState::default()],
            transactions: Vec::new(),
            acknowledged_at: Vec::new(),
            disks: n as u128,
            mended: false,
            budgeted: false,
            counts: Counts { walks: 1, ..Counts::default() },
            trace: traced.then(Vec::new),
        }
    }

    /// What was counted.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// What was told.
    pub fn into_trace(self) -> Vec<String> {
        self.trace.unwrap_or_default()
    }

    pub(super) fn tell(&mut self, what: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace.push(what());
        }
    }

    /// Walks to the end. An error is what does not hold.
    pub fn run(&mut self) -> Result<(), String> {
        self.budgeted = self.dice.of_thousand(600);
        let host = usize::from(!self.dice.of_thousand(700));
        self.start_coordinator(host);
        for _ in 0..STEPS {
            self.step()?;
            self.counts.steps += 1;
        }
        self.end()
    }

    pub(super) fn send(&mut self, c: usize, member: usize, ask: Ask) {
        let coordinator = &self.coordinators[c];
        let disk_id = coordinator.newest().map_or(Uuid::nil(), |label| label.members[member].disk_id);
        let folder = self.folders[coordinator.host].name;
        let sender = Sender { epoch: coordinator.epoch, folder, disk_id };
        self.messages.push(Message { coordinator: c, member, body: Body::Ask(sender, Box::new(ask)) });
    }

    pub(super) fn deliver(&mut self, message: Message) {
        let Message { coordinator: c, member, body } = message;
        match body {
            Body::Ask(sender, ask) => {
                let ask = *ask;
                let agent = &mut self.agents[member];
                if agent.lost || agent.down {
                    return;
                }
                let around = (&mut self.dice, self.broken, &mut self.counts);
                let asked = self.trace.is_some().then(|| format!("    member {member} is asked: {ask:?}"));
                let answer = agent.handle(sender, ask, self.mended, around);
                if let (Some(asked), Some(trace)) = (asked, &mut self.trace) {
                    trace.push(format!(
                        "{asked}, {}",
                        if answer.is_some() { "answers" } else { "does not answer" }
                    ));
                }
                if let Some(answer) = answer {
                    self.messages.push(Message {
                        coordinator: c,
                        member,
                        body: Body::Answer(Box::new(answer)),
                    });
                }
            }
            Body::Answer(answer) => {
                if !self.coordinators[c].dead {
                    self.hear(c, member, *answer);
                }
            }
        }
    }

    pub(super) fn start_coordinator(&mut self, host: usize) {
        let number = self.coordinators.len();
        let reached = (0..self.agents.len()).filter(|index| {
            let agent = &self.agents[*index];
            !self.cut[host][*index] && !agent.lost && !agent.down
        });
        let mut top = self.folders[host].claimed;
        for index in reached {
            let agent = &self.agents[index];
            let labelled = agent.label.as_ref().map_or(0, |label| label.revision.epoch.number);
            top = top.max(agent.epoch.number).max(labelled);
        }
        if self.mended {
            top = self.coordinators.iter().map(|coordinator| coordinator.epoch.number).fold(top, u64::max);
        }
        // Two may claim the same number: then the incarnation decides.
        let epoch = Epoch { number: top + 1, incarnation: number as u64 };
        self.folders[host].claimed = epoch.number;
        self.coordinators.push(Coordinator::new(host, epoch));
        self.tell(|| format!("coordinator {number} starts on host {host} with epoch {epoch}"));
        self.fence_all(number);
    }

    fn fence_all(&mut self, c: usize) {
        for member in 0..self.shape.members() {
            if self.coordinators[c].answers[member].is_none() {
                self.send(c, member, Ask::Fence);
            }
        }
    }

    /// Members that count as gone: lost, or out in anybody's book.
    pub(super) fn gone(&self) -> u32 {
        let mut gone = 0;
        for (index, agent) in self.agents.iter().enumerate() {
            gone |= u32::from(agent.lost || agent.label.is_none()) << index;
        }
        let outs = |label: &Label| {
            let out = label.members.iter().enumerate().filter(|(_, member)| member.out.is_some());
            let out = out.fold(0, |mask, (index, _)| mask | 1 << index);
            // Those that a label before did not call in sync do not stand for those that it did.
            let members = (1u128 << label.members.len()) - 1;
            label.may_follow.iter().fold(out, |mask, MemberSet(set)| mask | (members & !set) as u32)
        };
        let newest =
            self.agents.iter().filter_map(|agent| agent.label.as_ref()).max_by_key(|label| label.revision);
        if let Some(label) = newest {
            gone |= outs(label);
            for (index, member) in label.members.iter().enumerate() {
                gone |= u32::from(member.disk_id != self.agents[index].disk_id) << index;
            }
        }
        let rules =
            |coordinator: &&Coordinator| matches!(coordinator.phase, Phase::Resolving | Phase::Serving);
        let in_force = |coordinator: &Coordinator| coordinator.label().map(|label| label.revision);
        let top = self.coordinators.iter().filter(rules).filter_map(in_force).max();
        for coordinator in &self.coordinators {
            let proposed = coordinator.newest().map(|label| label.revision);
            if coordinator.phase != Phase::Fencing && (!coordinator.dead || proposed >= top) {
                gone |= coordinator.label().map_or(0, outs) | coordinator.newest().map_or(0, outs);
            }
        }
        self.folders
            .iter()
            .filter_map(|folder| folder.label.as_ref())
            .fold(gone, |gone, label| gone | outs(label))
    }

    pub(super) fn lose_disk(&mut self, member: usize) {
        let blank = Agent::new(self.agents[member].disk_id, None, Vec::new());
        self.agents[member] = Agent { lost: true, ..blank };
        self.counts.lost += 1;
        self.tell(|| format!("the disk of member {member} is lost"));
    }

    /// A blank disk stands where one was lost.
    pub(super) fn replace_disk(&mut self, member: usize) {
        self.disks += 1;
        let agent = &mut self.agents[member];
        (agent.lost, agent.down, agent.disk_id) = (false, false, Uuid::from_u128(self.disks));
    }

    pub(super) fn loses_too_many(&self, member: usize) -> bool {
        (self.gone() | 1 << member).count_ones() as usize > self.shape.parity
    }

    /// Sectors that are not to be written: live, being written, or held.
    pub(super) fn taken(&self, c: usize) -> impl Iterator<Item = Place> {
        let coordinator = &self.coordinators[c];
        let mut taken: Vec<Place> =
            self.states[coordinator.database].live().map(|(place, ..)| place).collect();
        let current = coordinator.current.iter().chain(&coordinator.ready);
        let unfinished: Vec<&Transaction> =
            current.chain(coordinator.logging.iter().map(|(transaction, _)| transaction)).collect();
        if self.broken.lacks(Rule::UnpinnedEarly) {
            taken.retain(|place| !unfinished.iter().any(|transaction| transaction.frees.contains(place)));
        }
        if !self.broken.lacks(Rule::EmptyBlindToTransactions) {
            taken.extend(
                unfinished.iter().flat_map(|transaction| transaction.writes.iter().map(|write| write.0)),
            );
        }
        if !self.broken.lacks(Rule::ReadersDoNotPin) {
            taken.extend(coordinator.reader.iter().map(|(place, ..)| *place));
        }
        taken.into_iter()
    }

    /// A transaction begins: some sectors are written, some are freed.
    pub(super) fn begin_transaction(&mut self, c: usize) {
        let k = self.shape.data;
        let taken: Vec<Place> = self.taken(c).collect();
        let coordinator = &self.coordinators[c];
        let others =
            coordinator.ready.iter().chain(coordinator.logging.iter().map(|(transaction, _)| transaction));
        let freeing: Vec<Place> = others.flat_map(|transaction| transaction.frees.iter().copied()).collect();
        let live: Vec<Place> = self.states[coordinator.database]
            .live()
            .map(|(place, ..)| place)
            .filter(|place| !freeing.contains(place))
            .collect();
        let all = self.dice.of_thousand(450);
        let frees: Vec<Place> = live.into_iter().filter(|_| all || self.dice.of_thousand(200)).collect();
        let places =
            (0..k).flat_map(|shard| (0..VERTICALS[DATA]).map(move |vertical| Place { shard, vertical }));
        let mut free: Vec<Place> = places.filter(|place| !taken.contains(place)).collect();
        let id = self.transactions.len();
        let mut writes = Vec::new();
        for number in 0..(self.dice.below(3) as usize).min(free.len()) {
            let place = free.swap_remove(self.dice.below(free.len() as u64) as usize);
            writes.push((place, (id * 4 + number + 1) as u32));
        }
        if writes.is_empty() && frees.is_empty() {
            return;
        }
        self.transactions.push(Status::Open);
        self.tell(|| format!("  c{c} transaction {id} writes {writes:?}, frees {frees:?}"));
        let transaction = Transaction { id, writes: writes.clone(), frees, version: Version::NONE };
        if writes.is_empty() {
            self.coordinators[c].ready.push(transaction);
            return;
        }
        self.coordinators[c].current = Some(transaction);
        self.begin_write(c, DATA, taken.is_empty(), &writes);
    }

    /// A transaction whose writes are decided goes to the log.
    pub(super) fn append(&mut self, c: usize) {
        let k = self.shape.data;
        let transaction = self.coordinators[c].ready.remove(0);
        let mut state = self.states[self.coordinators[c].database];
        state.sequence += 1;
        state.history |= 1 << transaction.id;
        for place in &transaction.frees {
            state.live[place.shard][place.vertical] = None;
        }
        for (place, value) in &transaction.writes {
            state.live[place.shard][place.vertical] = Some((*value, transaction.version));
        }
        let number = self.states.len();
        let slot = state.sequence as usize % (2 * k);
        let (stripe, shard) = (1 + slot / k, slot % k);
        let fresh = shard == 0 || stripe != self.coordinators[c].ring;
        self.states.push(state);
        self.coordinators[c].logging = Some((transaction, number));
        self.begin_write(c, stripe, fresh, &[(Place { shard, vertical: 0 }, number as u32)]);
    }

    /// A transaction is durable. Of two that were acknowledged the states lie on one line; the newer may be acknowledged
    /// first: a deposed coordinator hears late that what it wrote was rolled forward.
    pub(super) fn acknowledge(&mut self, c: usize, id: usize, state: usize) -> Result<(), String> {
        self.transactions[id] = Status::Acknowledged;
        self.counts.acknowledged += 1;
        if self.acknowledged_at.len() <= id {
            self.acknowledged_at.resize(id + 1, 0);
        }
        self.acknowledged_at[id] = state;
        self.tell(|| format!("  c{c} transaction {id} is acknowledged, log state {state}"));
        for (other, status) in self.transactions.iter().enumerate() {
            let behind = !self.states[state].has(other);
            if *status == Status::Acknowledged && behind && !self.states[self.acknowledged_at[other]].has(id)
            {
                return Err(format!(
                    "transaction {id} was acknowledged without {other}, which was acknowledged"
                ));
            }
        }
        Ok(())
    }

    /// Reads a live sector straight from its shard.
    fn check_read(&mut self, c: usize, (place, value, version): Held) -> Result<(), String> {
        let coordinator = &self.coordinators[c];
        let Some(label) = coordinator.label() else { return Ok(()) };
        let agent = &self.agents[place.shard];
        let counts = coordinator.counting(DATA) >> place.shard & 1 == 1;
        let refuses = agent.epoch != coordinator.epoch || agent.disk_id != label.members[place.shard].disk_id;
        if !counts || agent.lost || agent.down || refuses {
            return Ok(());
        }
        self.counts.reads += 1;
        let unit = &agent.units[DATA];
        let committed = (unit.committed, unit.cell(place.vertical), unit.is_good(place.vertical));
        let (found, cell, good) = match &unit.pending {
            Some(pending) if pending.version <= version => match pending.cells[place.vertical] {
                Some(cell) if pending.fresh => {
                    let home = unit.home(place.vertical);
                    (pending.version, home, home == cell)
                }
                Some(cell) => (pending.version, cell, true),
                None => (pending.version, committed.1, committed.2),
            },
            _ => committed,
        };
        if found < version {
            return Err(format!("a read of live {place:?} finds version {found}, below {version}"));
        }
        if !good || cell[0] != value {
            return Err(format!("a read of live {place:?} gives {}, good: {good}, not {value}", cell[0]));
        }
        Ok(())
    }

    fn read(&mut self, c: usize) -> Result<(), String> {
        if let Some(held) = self.coordinators[c].reader.take() {
            return self.check_read(c, held);
        }
        let live: Vec<Held> = self.states[self.coordinators[c].database].live().collect();
        let Some(held) = self.dice.pick(&live).copied() else { return Ok(()) };
        self.check_read(c, held)?;
        if self.dice.of_thousand(300) {
            self.coordinators[c].reader = Some(held);
        }
        Ok(())
    }

    /// What can happen now, the likelier things several times.
    fn acts(&mut self) -> Vec<Act> {
        let mut acts = Vec::with_capacity(64);
        let mut may = |act: Act, times: usize| acts.extend(std::iter::repeat_n(act, times));
        if !self.messages.is_empty() {
            may(Act::Deliver, 14);
            may(Act::Lose, 1);
            may(Act::DeliverAndKeep, 1);
        }
        let alive: Vec<usize> =
            (0..self.coordinators.len()).filter(|c| !self.coordinators[*c].dead).collect();
        for &c in &alive {
            let coordinator = &self.coordinators[c];
            match coordinator.phase {
                Phase::Fencing => may(Act::LookAtStart(c), 2),
                Phase::Starting => {
                    may(Act::SendLabel(c), 2);
                    may(Act::GiveUpOnLabel(c), 1);
                }
                Phase::Resolving => {
                    may(Act::Resolve(c), 2);
                    may(Act::GiveUpOnResolving(c), 1);
                }
                Phase::Serving => {
                    let proposed = coordinator.revisions.as_ref().is_some_and(|r| r.proposed().is_some());
                    let room = coordinator.current.is_none()
                        && coordinator.ready.len() < 2
                        && self.transactions.len() < TRANSACTIONS_MAX;
                    let logs = coordinator.logging.is_none() && !coordinator.ready.is_empty();
                    may(Act::Begin(c), if room && !coordinator.is_held(DATA) { 3 } else { 0 });
                    let log_free = !coordinator.is_held(1) && !coordinator.is_held(2);
                    may(Act::Append(c), if logs && log_free { 3 } else { 0 });
                    for stripe in 0..STRIPES {
                        if coordinator.writes[stripe].is_some() {
                            may(Act::Decide(c, stripe), 4);
                            may(Act::PrepareAgain(c, stripe), 1);
                            may(Act::GiveUpOnPrepare(c, stripe), 1);
                            may(Act::Abort(c, stripe), 1);
                        }
                        if coordinator.aborts[stripe].is_some() {
                            may(Act::EndAbort(c, stripe), 2);
                            may(Act::GiveUpOnAbort(c, stripe), 1);
                        }
                    }
                    if proposed {
                        may(Act::SendLabel(c), 1);
                        may(Act::GiveUpOnLabel(c), 1);
                    }
                    let alone = coordinator.label().is_some_and(Label::follows_its_like);
                    may(Act::FollowLabel(c), usize::from(!proposed && !alone));
                    may(Act::Discard(c), usize::from(!coordinator.is_held(DATA)));
                    may(Act::Commit(c), usize::from(!coordinator.uncommitted.is_empty()));
                    may(Act::Read(c), 1);
                    let any_out =
                        coordinator.label().is_some_and(|l| l.members.iter().any(|m| m.out.is_some()));
                    if coordinator.rejoin.is_some() {
                        may(Act::Rejoin(c), 3);
                        may(Act::RejoinAgain(c), 1);
                    } else if !proposed && any_out {
                        may(Act::BeginRejoin(c), 2);
                    }
                }
            }
            may(Act::KillCoordinator(c), usize::from(self.dice.of_thousand(25)));
        }
        let starts = self.dice.of_thousand(if alive.is_empty() { 1000 } else { 40 });
        let may_start = starts && alive.len() < HOSTS && self.coordinators.len() < COORDINATORS_MAX;
        may(Act::StartCoordinator, usize::from(may_start));
        may(Act::LoseDisk, usize::from(self.dice.of_thousand(12)));
        may(Act::CrashAgent, usize::from(self.dice.of_thousand(120)));
        may(Act::CutLink, usize::from(self.dice.of_thousand(150)));
        may(Act::Apply, 1);
        acts
    }

    fn step(&mut self) -> Result<(), String> {
        let acts = self.acts();
        let Some(act) = self.dice.pick(&acts).copied() else { return Ok(()) };
        match act {
            Act::Deliver | Act::DeliverAndKeep => self.deliver_any(matches!(act, Act::DeliverAndKeep)),
            Act::Lose => {
                let index = self.dice.below(self.messages.len() as u64) as usize;
                self.messages.swap_remove(index);
            }
            Act::KillCoordinator(c) => {
                self.coordinators[c].dead = true;
                self.tell(|| format!("coordinator {c} dies"));
            }
            Act::StartCoordinator => {
                let host = usize::from(!self.dice.of_thousand(600));
                let used = self.coordinators.iter().any(|other| !other.dead && other.host == host);
                if !used {
                    self.start_coordinator(host);
                }
            }
            Act::LoseDisk => {
                let member = self.any_member();
                if !self.loses_too_many(member) && !self.agents[member].lost {
                    self.lose_disk(member);
                }
            }
            Act::CrashAgent => {
                let member = self.any_member();
                if self.agents[member].down {
                    self.agents[member].down = false;
                } else {
                    self.agents[member].crash(&mut self.dice, self.broken, &mut self.counts);
                    self.agents[member].down = self.dice.of_thousand(500);
                }
            }
            Act::CutLink => {
                let (host, member) = (self.dice.below(HOSTS as u64) as usize, self.any_member());
                self.cut[host][member] = !self.cut[host][member] && self.dice.of_thousand(600);
            }
            Act::Apply => {
                let (member, stripe) = (self.any_member(), self.dice.below(2) as usize);
                self.agents[member].units[stripe].apply_one();
            }
            Act::LookAtStart(c) => {
                let all = self.coordinators[c].answers.iter().flatten().count() == self.shape.members();
                if all || self.dice.of_thousand(300) {
                    self.try_start(c);
                } else {
                    self.fence_all(c);
                }
            }
            Act::SendLabel(c) => self.send_label(c),
            Act::FollowLabel(c) => self.propose(c, &Change::Nothing),
            Act::GiveUpOnLabel(c) => {
                let waiting = self.coordinators[c].unlabelled;
                self.give_up(c, waiting, 300);
            }
            Act::Resolve(c) => self.go_on_resolving(c)?,
            Act::GiveUpOnResolving(c) => {
                let waiting =
                    self.coordinators[c].resolving.iter().fold(0, |mask, (index, ..)| mask | 1 << index);
                self.give_up(c, waiting, 300);
                self.forget_resolutions_of_out(c);
                self.send_label(c);
            }
            Act::Begin(c) => self.begin_transaction(c),
            Act::Append(c) => self.append(c),
            Act::Decide(c, stripe) => self.try_decide(c, stripe)?,
            Act::PrepareAgain(c, stripe) => self.send_prepares(c, stripe),
            Act::GiveUpOnPrepare(c, stripe) => {
                let write = self.coordinators[c].writes[stripe].as_ref();
                let waiting = write.map_or(0, |write| write.participants & !write.prepared);
                self.give_up(c, waiting & self.coordinators[c].counting(stripe), 300);
            }
            Act::Abort(c, stripe) => {
                if self.dice.of_thousand(250) {
                    self.abort(c, stripe);
                }
            }
            Act::EndAbort(c, stripe) => self.try_end_abort(c, stripe),
            Act::GiveUpOnAbort(c, stripe) => {
                let waiting = self.coordinators[c].aborts[stripe].map_or(0, |abort| abort.waiting);
                self.give_up(c, waiting & self.coordinators[c].counting(stripe), 250);
            }
            Act::Discard(c) => self.discard_data(c),
            Act::Commit(c) => {
                if let Some((stripe, version, whom)) = self.coordinators[c].uncommitted.pop() {
                    members(whom).for_each(|member| self.send(c, member, Ask::Commit(stripe, version)));
                }
            }
            Act::Read(c) => self.read(c)?,
            Act::Rejoin(c) => self.rejoin_step(c),
            Act::RejoinAgain(c) => {
                if self.dice.of_thousand(100) {
                    self.rejoin_again(c);
                }
            }
            Act::BeginRejoin(c) => {
                let out: Vec<usize> =
                    (0..self.shape.members()).filter(|member| self.coordinators[c].is_out(*member)).collect();
                if let Some(member) = self.dice.pick(&out).copied() {
                    self.begin_rejoin(c, member);
                }
            }
        }
        Ok(())
    }

    fn any_member(&mut self) -> usize {
        self.dice.below(self.shape.members() as u64) as usize
    }

    /// One of those that are waited for is waited for no longer, from time to time.
    fn give_up(&mut self, c: usize, waiting: u32, of_thousand: u64) {
        if !self.dice.of_thousand(of_thousand) {
            return;
        }
        let waiting: Vec<usize> = members(waiting).collect();
        if let Some(member) = self.dice.pick(&waiting).copied() {
            self.mark_out(c, member);
        }
    }

    pub(super) fn go_on_resolving(&mut self, c: usize) -> Result<(), String> {
        let proposed = self.coordinators[c].revisions.as_ref().is_some_and(|r| r.proposed().is_some());
        if !self.coordinators[c].resolving.is_empty() {
            self.send_resolutions(c);
        } else if !proposed {
            self.open(c)?;
        }
        Ok(())
    }

    fn discard_data(&mut self, c: usize) {
        let quiet = self.coordinators[c].current.is_none() && self.taken(c).next().is_none();
        if !quiet || !self.dice.of_thousand(300) {
            return;
        }
        let version = self.coordinators[c].take_version();
        let counting = self.coordinators[c].counting(DATA);
        members(counting).for_each(|member| self.send(c, member, Ask::Discard(DATA, version)));
    }

    fn deliver_any(&mut self, keep: bool) {
        let index = self.dice.below(self.messages.len() as u64) as usize;
        let Message { coordinator, member, .. } = self.messages[index];
        let host = self.coordinators[coordinator].host;
        if self.cut[host][member] || self.agents[member].down {
            if self.dice.of_thousand(300) {
                self.messages.swap_remove(index);
            }
            return;
        }
        let message = match keep {
            true => self.messages[index].clone(),
            false => self.messages.swap_remove(index),
        };
        self.deliver(message);
    }

    /// Delivers all there is.
    pub(super) fn deliver_all(&mut self) {
        while let Some(message) = self.messages.pop() {
            self.deliver(message);
        }
    }
}
