//! The steps of a coordinator: fence, begin, resolve, open, write, decide, abort, mark out.
//!
//! Decides what a coordinator sends and concludes. Which step it takes next, and what arrives, `world` decides. Taking
//! members back is in `rejoin`.

use stripeset_stripe::{
    Epoch, Version,
    geometry::{Shard, StripeAddress},
    label::{Change, Label, MemberSet, Out, Revision, Revisions},
    resolve::{Decision, ShardView, resolve},
    start::{Answer as Testimony, Group, Witness, start},
};

use super::{
    Cell, DATA, DATA_MAX, MEMBERS_MAX, Rule, STRIPES, VERTICALS, VERTICALS_MAX, Vector, address,
    agent::{Answer, Ask, Cells, FencedDisk, Pending, Unit},
    rejoin::Rejoin,
    world::{Held, Place, Status, World},
};

/// Values of the data shards of a stripe.
pub type Data = [[u32; VERTICALS_MAX]; DATA_MAX];

/// How far a coordinator has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Fences, until the start rule lets it begin.
    Fencing,
    /// Its first label is under way.
    Starting,
    /// Carries out what it decided about pending writes.
    Resolving,
    /// Serves.
    Serving,
}

/// A write that is not decided yet.
#[derive(Clone, Debug)]
pub struct Write {
    pub(super) version: Version,
    pub(super) fresh: bool,
    /// Members that it touches, out or not.
    pub(super) participants: u32,
    pub(super) prepared: u32,
    cells: [Cells; MEMBERS_MAX],
    vector: Vector,
    data: Data,
}

/// A write that is being taken back.
#[derive(Clone, Copy, Debug)]
pub struct Aborting {
    pub(super) version: Version,
    participants: u32,
    pub(super) waiting: u32,
}

/// Sectors written and freed together.
#[derive(Clone, Debug)]
pub struct Transaction {
    pub(super) id: usize,
    pub(super) writes: Vec<(Place, u32)>,
    pub(super) frees: Vec<Place>,
    pub(super) version: Version,
}

/// One coordinator.
#[derive(Clone, Debug)]
pub struct Coordinator {
    pub(super) host: usize,
    pub(super) epoch: Epoch,
    pub(super) dead: bool,
    pub(super) phase: Phase,
    pub(super) answers: [Option<FencedDisk>; MEMBERS_MAX],
    pub(super) revisions: Option<Revisions>,
    /// Members that have not taken the revision under way.
    pub(super) unlabelled: u32,
    pub(super) resolving: Vec<(usize, usize, Decision, Version)>,
    /// Units as they are once what was decided about pending writes is carried out.
    found: [Option<[Unit; STRIPES]>; MEMBERS_MAX],
    /// Oldest pending write that was found.
    oldest_found: Option<Version>,
    pub(super) data: [Data; STRIPES],
    pub(super) vector: [Vector; STRIPES],
    /// The log's stripe that was written last.
    pub(super) ring: usize,
    pub(super) sequence: u64,
    pub(super) writes: [Option<Write>; STRIPES],
    pub(super) aborts: [Option<Aborting>; STRIPES],
    pub(super) current: Option<Transaction>,
    pub(super) ready: Vec<Transaction>,
    pub(super) logging: Option<(Transaction, usize)>,
    pub(super) rejoin: Option<Rejoin>,
    /// The state of the log that it serves.
    pub(super) database: usize,
    pub(super) uncommitted: Vec<(usize, Version, u32)>,
    pub(super) reader: Option<Held>,
}

/// Members of a mask, ascending.
pub(super) fn members(mask: u32) -> impl Iterator<Item = usize> {
    (0..MEMBERS_MAX).filter(move |member| mask >> member & 1 == 1)
}

impl Coordinator {
    pub(super) fn new(host: usize, epoch: Epoch) -> Coordinator {
        Coordinator {
            host,
            epoch,
            dead: false,
            phase: Phase::Fencing,
            answers: Default::default(),
            revisions: None,
            unlabelled: 0,
            resolving: Vec::new(),
            found: Default::default(),
            oldest_found: None,
            data: Default::default(),
            vector: [[Version::NONE; MEMBERS_MAX]; STRIPES],
            ring: 1,
            sequence: 0,
            writes: Default::default(),
            aborts: Default::default(),
            current: None,
            ready: Vec::new(),
            logging: None,
            rejoin: None,
            database: 0,
            uncommitted: Vec::new(),
            reader: None,
        }
    }

    pub(super) fn label(&self) -> Option<&Label> {
        self.revisions.as_ref().map(Revisions::in_force)
    }

    /// The label that requests go by: the newest one that it made.
    pub(super) fn newest(&self) -> Option<&Label> {
        self.revisions.as_ref().map(|revisions| revisions.proposed().unwrap_or(revisions.in_force()))
    }

    /// Members whose shard of a stripe counts.
    pub(super) fn counting(&self, stripe: usize) -> u32 {
        let Some(label) = self.label() else { return 0 };
        let counts =
            |(_, member): &(usize, &stripeset_stripe::label::LabelMember)| member.counts_at(address(stripe));
        label.members.iter().enumerate().filter(counts).fold(0, |mask, (index, _)| mask | 1 << index)
    }

    pub(super) fn is_out(&self, member: usize) -> bool {
        self.label().is_none_or(|label| label.members[member].out.is_some())
    }

    pub(super) fn take_version(&mut self) -> Version {
        self.sequence += 1;
        Version { epoch: self.epoch, sequence: self.sequence }
    }

    /// Whether something holds a stripe.
    pub(super) fn is_held(&self, stripe: usize) -> bool {
        let rebuilt = self.rejoin.as_ref().is_some_and(|rejoin| rejoin.holds(stripe));
        self.writes[stripe].is_some() || self.aborts[stripe].is_some() || rebuilt
    }

    fn decided_up_to(&self) -> Version {
        let writes = self.writes.iter().flatten().map(|write| write.version);
        let undecided = writes.chain(self.aborts.iter().flatten().map(|abort| abort.version));
        let before = |version: Version| Version { sequence: version.sequence.saturating_sub(1), ..version };
        let now = Version { epoch: self.epoch, sequence: self.sequence };
        undecided.chain(self.oldest_found).map(before).fold(now, Version::min)
    }
}

impl World {
    /// Looks at the answers to Fence: begins, if that may be.
    pub(super) fn try_start(&mut self, c: usize) -> bool {
        let coordinator = &self.coordinators[c];
        let testimonies: Vec<Testimony> = coordinator
            .answers
            .iter()
            .flatten()
            .map(|disk| Testimony {
                disk_id: disk.disk_id,
                label: disk.label.clone(),
                fenced_by: disk.fenced_by.clone(),
            })
            .collect();
        let folder = &self.folders[coordinator.host];
        let mut witness =
            Witness { folder: folder.name, label: folder.label.clone(), in_force: folder.in_force };
        let mut testimonies = testimonies;
        if self.broken.lacks(Rule::WitnessFencedByOthers) {
            testimonies.iter_mut().for_each(|testimony| testimony.fenced_by = vec![folder.name]);
        }
        witness.in_force |= self.broken.lacks(Rule::UnfinishedWitness);
        let groups = [Group { members: (0..self.shape.members()).collect(), needed: self.shape.data }];
        let sure = start(&testimonies, &witness, &groups, false);
        let started = match sure {
            Err(_) if self.broken.lacks(Rule::SilentNotCounted) => {
                start(&testimonies, &witness, &groups, true)
            }
            sure => sure,
        };
        let Ok(started) = started else {
            self.counts.refused += 1;
            return false;
        };
        if self.budgeted && !self.mended {
            let missing = started.silent.iter().chain(started.older.iter().map(|(index, _)| index));
            if (self.gone() | missing.fold(0, |mask, index| mask | 1 << index)).count_ones() as usize
                > self.shape.parity
            {
                return false;
            }
        }
        self.counts.begun += 1;
        self.counts.witnessed += u64::from(started.silent.len() >= self.shape.data);
        self.tell(|| format!("  c{c} begins from {}, silent {:?}", started.label.revision, started.silent));
        let coordinator = &mut self.coordinators[c];
        let counting: Vec<usize> = started.label.in_sync().collect();
        coordinator.oldest_found = counting
            .into_iter()
            .filter_map(|index| coordinator.answers[index].as_ref())
            .flat_map(|disk| disk.units.iter().filter_map(|unit| unit.pending.map(|pending| pending.version)))
            .min();
        let since = coordinator.decided_up_to();
        let change = started.change(since);
        coordinator.revisions = Some(Revisions::new(started.label, started.in_force, coordinator.epoch));
        coordinator.phase = Phase::Starting;
        self.propose(c, &change);
        true
    }

    /// A revision of the label gets under way.
    pub(super) fn propose(&mut self, c: usize, change: &Change) {
        let broken = self.broken;
        let coordinator = &mut self.coordinators[c];
        let Some(revisions) = &mut coordinator.revisions else { return };
        if broken.lacks(Rule::UnfinishedOutForgotten) {
            let last = revisions.proposed().unwrap_or(revisions.in_force()).revision.number;
            let mut base = revisions.in_force().clone();
            base.revision.number = last;
            *revisions = Revisions::new(base, true, coordinator.epoch);
        }
        let label = revisions.begin(change);
        coordinator.unlabelled = label.in_sync().fold(0, |mask, index| mask | 1 << index);
        let folder = &mut self.folders[coordinator.host];
        (folder.label, folder.in_force) = (Some(label.clone()), false);
        self.tell(|| format!("  c{c} proposes {}: {change:?}", label.revision));
        self.send_label(c);
    }

    /// Sends the revision under way to those that have not taken it.
    pub(super) fn send_label(&mut self, c: usize) {
        let Some(label) = self.coordinators[c].revisions.as_ref().and_then(Revisions::proposed) else {
            return;
        };
        let label = label.clone();
        for member in members(self.coordinators[c].unlabelled) {
            self.send(c, member, Ask::SetLabel(Box::new(label.clone())));
        }
    }

    /// Marks a member out, where enough stay.
    pub(super) fn mark_out(&mut self, c: usize, member: usize) {
        let late = self.broken.lacks(Rule::SinceAboveUndecided);
        let coordinator = &self.coordinators[c];
        let Some(revisions) = &coordinator.revisions else { return };
        let now = Version { epoch: coordinator.epoch, sequence: coordinator.sequence };
        let since = if late { now } else { coordinator.decided_up_to() };
        let change = Change::TakeOut(vec![(member, out(since))]);
        let next = revisions.next(&change);
        let few =
            |set: &MemberSet| next.in_sync().filter(|index| set.contains(*index)).count() < self.shape.data;
        if next.may_follow.iter().any(few)
            || self.budgeted && (self.gone() | 1 << member).count_ones() as usize > self.shape.parity
        {
            return;
        }
        let coordinator = &mut self.coordinators[c];
        // While a label that lets it in may be on a disk, and no later one is in force, its gate stays closed.
        if coordinator.rejoin.as_ref().is_some_and(|rejoin| !rejoin.asked && rejoin.member == member) {
            coordinator.rejoin = None;
        }
        self.counts.taken_out += 1;
        if self.broken.lacks(Rule::OutWithoutLabel) && coordinator.phase == Phase::Serving {
            if let Some(revisions) = &mut coordinator.revisions {
                let revision = revisions.begin(&change).revision;
                revisions.came_into_force(revision);
            }
            return;
        }
        self.propose(c, &change);
    }

    /// A member has taken a revision.
    pub(super) fn labelled(&mut self, c: usize, member: usize, revision: Revision) {
        let coordinator = &mut self.coordinators[c];
        let Some(revisions) = &mut coordinator.revisions else { return };
        if revisions.proposed().is_none_or(|proposed| proposed.revision != revision) {
            return;
        }
        coordinator.unlabelled &= !(1 << member);
        if coordinator.unlabelled != 0 {
            return;
        }
        let let_in = revisions.letting_in();
        revisions.came_into_force(revision);
        self.counts.in_force += 1;
        let folder = &mut self.folders[coordinator.host];
        if folder.label.as_ref().is_some_and(|label| label.revision == revision) {
            folder.in_force = true;
        }
        self.tell(|| format!("  c{c}: {revision} is in force"));
        let coordinator = &mut self.coordinators[c];
        if coordinator.phase == Phase::Starting {
            self.begin_to_resolve(c);
        } else if let_in.is_some() {
            self.counts.let_in += 1;
            self.window_is_in(c);
        }
    }

    /// Decides about every pending write on members that answered and count.
    fn begin_to_resolve(&mut self, c: usize) {
        let (back, forward) = (self.broken.lacks(Rule::AlwaysBack), self.broken.lacks(Rule::AlwaysForward));
        let members_count = self.shape.members();
        let coordinator = &mut self.coordinators[c];
        let Some(label) = coordinator.label().cloned() else { return };
        coordinator.phase = Phase::Resolving;
        coordinator.resolving.clear();
        coordinator.found = std::array::from_fn(|index| {
            let disk = coordinator.answers[index].as_ref().filter(|_| index < members_count)?;
            (disk.disk_id == label.members[index].disk_id).then(|| disk.units.clone())
        });
        for stripe in 0..STRIPES {
            let counting = coordinator.counting(stripe);
            let here: Vec<usize> =
                members(counting).filter(|index| coordinator.found[*index].is_some()).collect();
            let mut versions: Vec<(Version, u32)> = here
                .iter()
                .filter_map(|index| coordinator.found[*index].as_ref())
                .filter_map(|units| {
                    units[stripe].pending.map(|pending| (pending.version, pending.participants))
                })
                .collect();
            versions.sort_unstable();
            versions.dedup();
            for (version, participants) in versions {
                let views: Vec<ShardView> = here
                    .iter()
                    .filter_map(|index| {
                        let unit = &coordinator.found[*index].as_ref()?[stripe];
                        let pending = unit.pending.map(|pending| pending.version);
                        Some(ShardView { shard: Shard(*index as u8), committed: unit.committed, pending })
                    })
                    .collect();
                let shards: Vec<Shard> = members(participants).map(|index| Shard(index as u8)).collect();
                let mut decision = resolve(version, &shards, &views);
                let shown = views.iter().any(|view| {
                    view.committed >= version || view.pending.is_some_and(|pending| pending > version)
                });
                if back && !shown {
                    decision = Decision::Abort;
                }
                if forward {
                    decision = Decision::Commit;
                }
                for index in &here {
                    let Some(units) = &mut coordinator.found[*index] else { continue };
                    let unit = &mut units[stripe];
                    if unit.pending.is_none_or(|pending| pending.version != version) {
                        continue;
                    }
                    coordinator.resolving.push((*index, stripe, decision, version));
                    match decision {
                        Decision::Commit => unit.commit(),
                        Decision::Abort => unit.pending = None,
                    }
                }
            }
        }
        let decided: Vec<_> = self.coordinators[c].resolving.clone();
        self.tell(|| format!("  c{c} resolves {decided:?}"));
        self.send_resolutions(c);
    }

    /// Sends what was decided about pending writes.
    pub(super) fn send_resolutions(&mut self, c: usize) {
        for (member, stripe, decision, version) in self.coordinators[c].resolving.clone() {
            let ask = match decision {
                Decision::Commit => Ask::Commit(stripe, version),
                Decision::Abort => Ask::Abort(stripe, version),
            };
            self.send(c, member, ask);
        }
    }

    /// What is decided about members that went out meanwhile is nobody's business any more.
    pub(super) fn forget_resolutions_of_out(&mut self, c: usize) {
        let counting: [u32; STRIPES] = std::array::from_fn(|stripe| self.coordinators[c].counting(stripe));
        self.coordinators[c].resolving.retain(|(member, stripe, ..)| counting[*stripe] >> member & 1 == 1);
    }

    /// Opens log and data, and serves. An error if what is there is not what has to be.
    pub(super) fn open(&mut self, c: usize) -> Result<(), String> {
        let (k, n) = (self.shape.data, self.shape.members());
        let coordinator = &self.coordinators[c];
        let newest = |stripe: usize| {
            let shown =
                members(coordinator.counting(stripe)).filter_map(|index| coordinator.found[index].as_ref());
            shown.map(|units| units[stripe].committed).max().unwrap_or_default()
        };
        // The log ends in the stripe with the newest committed version; the other one is as good as empty.
        let ring = if newest(2) > newest(1) { 2 } else { 1 };
        self.coordinators[c].ring = ring;
        for stripe in [ring, DATA, 3 - ring] {
            let coordinator = &self.coordinators[c];
            let Some(label) = coordinator.label() else { return Ok(()) };
            let here: Vec<usize> = members(coordinator.counting(stripe))
                .filter(|index| coordinator.found[*index].is_some())
                .collect();
            // Its reads are refused, or too few are left.
            let refuses = |index: usize| {
                let agent = &self.agents[index];
                agent.epoch != coordinator.epoch || agent.disk_id != label.members[index].disk_id
            };
            if here.len() < k
                || here.iter().any(|index| refuses(*index)) && !self.broken.lacks(Rule::NoEpochCheck)
            {
                return Ok(());
            }
            let units: Vec<(usize, &Unit)> = here
                .iter()
                .filter_map(|index| Some((*index, &coordinator.found[*index].as_ref()?[stripe])))
                .collect();
            let (mut data, mut vector) = (Data::default(), [Version::NONE; MEMBERS_MAX]);
            let nothing =
                stripe == 3 - ring || stripe == DATA && self.states[coordinator.database].live_count() == 0;
            if !nothing {
                data = decode(k, VERTICALS[stripe], &units, u32::MAX)
                    .map_err(|error| format!("opening stripe {stripe}: {error}"))?;
                let parities = units.iter().filter(|(index, _)| *index >= k);
                if let Some((_, parity)) = parities.max_by_key(|(_, unit)| unit.committed) {
                    vector = parity.vector;
                    for (index, unit) in &units {
                        if vector[*index] != unit.committed {
                            return Err(format!(
                                "opening stripe {stripe}: shard {index} is at {}, the vector says {}",
                                unit.committed, vector[*index]
                            ));
                        }
                    }
                }
                units.iter().for_each(|(index, unit)| vector[*index] = unit.committed);
                // Every write touches every parity: one that is out has the highest version of all.
                let top = vector.iter().max().copied().unwrap_or_default();
                vector[k..n].fill(top);
            }
            if stripe == ring {
                let of = |shard: usize| data[shard][0] as usize;
                let best = (0..k)
                    .map(of)
                    .max_by_key(|state| self.states.get(*state).map_or(0, |state| state.sequence));
                let best = best.unwrap_or(0);
                if best >= self.states.len() {
                    return Err("the log holds something that was never written".to_owned());
                }
                self.coordinators[c].database = best;
            }
            let coordinator = &mut self.coordinators[c];
            (coordinator.data[stripe], coordinator.vector[stripe]) = (data, vector);
        }
        let coordinator = &mut self.coordinators[c];
        (coordinator.phase, coordinator.oldest_found) = (Phase::Serving, None);
        self.counts.served += 1;
        let database = self.coordinators[c].database;
        self.tell(|| format!("  c{c} serves, log state {database}"));
        self.check_served(c)
    }

    /// What was acknowledged is in the log, what was aborted is not, and what the log says is live is there.
    fn check_served(&self, c: usize) -> Result<(), String> {
        let coordinator = &self.coordinators[c];
        let state = &self.states[coordinator.database];
        for (id, status) in self.transactions.iter().enumerate() {
            match (status, state.has(id)) {
                (Status::Acknowledged, false) => {
                    return Err(format!("acknowledged transaction {id} is lost"));
                }
                (Status::Aborted, true) => return Err(format!("aborted transaction {id} came back")),
                _ => {}
            }
        }
        for (place, value, _) in state.live() {
            let found = coordinator.data[DATA][place.shard][place.vertical];
            if found != value {
                return Err(format!("live {place:?} is {found}, not {value}"));
            }
        }
        Ok(())
    }

    /// A write begins: to all it touches.
    pub(super) fn begin_write(&mut self, c: usize, stripe: usize, fresh: bool, writes: &[(Place, u32)]) {
        let (k, n) = (self.shape.data, self.shape.members());
        let coordinator = &mut self.coordinators[c];
        let version = coordinator.take_version();
        let mut data = if fresh { Data::default() } else { coordinator.data[stripe] };
        for (place, value) in writes {
            data[place.shard][place.vertical] = *value;
        }
        let parities = (k..n).fold(0, |mask, index| mask | 1 << index);
        let participants = match fresh {
            true => (1 << n) - 1,
            false => writes.iter().fold(parities, |mask, (place, _)| mask | 1 << place.shard),
        };
        let mut vector = coordinator.vector[stripe];
        members(participants).for_each(|index| vector[index] = version);
        let touched = |vertical: usize| fresh || writes.iter().any(|(place, _)| place.vertical == vertical);
        let mut cells = [Cells::default(); MEMBERS_MAX];
        for index in members(participants) {
            for vertical in (0..VERTICALS[stripe]).filter(|vertical| touched(*vertical)) {
                let own = writes.iter().any(|(place, _)| place.shard == index && place.vertical == vertical);
                if index >= k || fresh || own {
                    cells[index][vertical] = Some(cell_of(k, index, &data, vertical));
                }
            }
        }
        coordinator.writes[stripe] =
            Some(Write { version, fresh, participants, prepared: 0, cells, vector, data });
        self.tell(|| {
            format!(
                "  c{c} writes stripe {stripe} at {version}{}: {writes:?}",
                if fresh { ", fresh" } else { "" }
            )
        });
        self.send_prepares(c, stripe);
    }

    /// Sends first phases to those that count and have not answered.
    pub(super) fn send_prepares(&mut self, c: usize, stripe: usize) {
        let coordinator = &self.coordinators[c];
        let Some(write) = coordinator.writes[stripe].clone() else { return };
        let (base, counting) = (coordinator.vector[stripe], coordinator.counting(stripe));
        for member in members(write.participants & counting & !write.prepared) {
            let pending = Pending {
                version: write.version,
                base: base[member],
                fresh: write.fresh,
                participants: write.participants,
                cells: write.cells[member],
                vector: write.vector,
            };
            self.send(c, member, Ask::Prepare(stripe, Box::new(pending)));
        }
    }

    /// Looks whether a write is decided.
    pub(super) fn try_decide(&mut self, c: usize, stripe: usize) -> Result<(), String> {
        let early = self.broken.lacks(Rule::AcknowledgedEarly);
        let coordinator = &mut self.coordinators[c];
        let counting = coordinator.counting(stripe);
        let Some(write) = &coordinator.writes[stripe] else { return Ok(()) };
        let needed = write.participants & counting;
        let missing = (needed & !write.prepared).count_ones();
        if needed == 0 || missing > u32::from(early && needed.count_ones() > 1) {
            return Ok(());
        }
        let Some(write) = coordinator.writes[stripe].take() else { return Ok(()) };
        (coordinator.data[stripe], coordinator.vector[stripe]) = (write.data, write.vector);
        coordinator.uncommitted.push((stripe, write.version, write.participants & counting));
        if let Some(rejoin) = &mut coordinator.rejoin {
            rejoin.missed(stripe, write.participants & !counting);
        }
        if write.fresh {
            self.counts.fresh += 1;
        } else {
            self.counts.partial += 1;
        }
        self.tell(|| format!("  c{c} stripe {stripe}: {} is decided", write.version));
        let coordinator = &mut self.coordinators[c];
        if stripe == DATA {
            if let Some(transaction) = coordinator.current.take() {
                coordinator.ready.push(Transaction { version: write.version, ..transaction });
            }
            return Ok(());
        }
        coordinator.ring = stripe;
        let Some((transaction, state)) = coordinator.logging.take() else { return Ok(()) };
        coordinator.database = state;
        self.acknowledge(c, transaction.id, state)
    }

    /// A write is taken back. Its caller is told when that is so everywhere.
    pub(super) fn abort(&mut self, c: usize, stripe: usize) {
        let no_barrier = self.broken.lacks(Rule::NoAbortBarrier);
        let counting = self.coordinators[c].counting(stripe);
        let Some(write) = self.coordinators[c].writes[stripe].take() else { return };
        let waiting = write.participants & counting;
        for member in members(waiting) {
            self.send(c, member, Ask::Abort(stripe, write.version));
        }
        let waiting = if no_barrier { 0 } else { waiting };
        self.coordinators[c].aborts[stripe] =
            Some(Aborting { version: write.version, participants: write.participants, waiting });
        self.tell(|| format!("  c{c} takes {} of stripe {stripe} back", write.version));
    }

    /// Looks whether a write is taken back everywhere; asks again, if not.
    pub(super) fn try_end_abort(&mut self, c: usize, stripe: usize) {
        let counting = self.coordinators[c].counting(stripe);
        let Some(abort) = self.coordinators[c].aborts[stripe] else { return };
        let waiting = abort.waiting & counting;
        if waiting != 0 {
            for member in members(waiting) {
                self.send(c, member, Ask::Abort(stripe, abort.version));
            }
            return;
        }
        let coordinator = &mut self.coordinators[c];
        coordinator.aborts[stripe] = None;
        // What was sent to a member while it counted may still arrive there.
        if let Some(rejoin) = &mut coordinator.rejoin {
            rejoin.missed(stripe, abort.participants & !counting);
        }
        let ended = match stripe {
            DATA => coordinator.current.take(),
            _ => coordinator.logging.take().map(|(transaction, _)| transaction),
        };
        if let Some(transaction) = ended {
            self.transactions[transaction.id] = Status::Aborted;
            self.counts.aborted += 1;
            self.tell(|| format!("  c{c} transaction {} is aborted", transaction.id));
        }
    }

    /// An answer has come.
    pub(super) fn hear(&mut self, c: usize, member: usize, answer: Answer) {
        let coordinator = &mut self.coordinators[c];
        match answer {
            Answer::Fenced(disk) => match coordinator.phase {
                Phase::Fencing => {
                    coordinator.answers[member].get_or_insert(*disk);
                }
                Phase::Serving => self.rejoin_fenced(c, member, disk.disk_id),
                Phase::Starting | Phase::Resolving => {}
            },
            Answer::Prepared(stripe, version) => {
                if let Some(write) = &mut coordinator.writes[stripe]
                    && write.version == version
                {
                    write.prepared |= 1 << member;
                }
            }
            Answer::Committed(stripe, version) => {
                coordinator.resolving.retain(|done| *done != (member, stripe, Decision::Commit, version));
            }
            Answer::Aborted(stripe, version) => {
                coordinator.resolving.retain(|done| *done != (member, stripe, Decision::Abort, version));
                if let Some(abort) = &mut coordinator.aborts[stripe]
                    && abort.version == version
                {
                    abort.waiting &= !(1 << member);
                }
            }
            Answer::Replaced(stripe, token) => self.rebuilt(c, member, stripe, token),
            Answer::Labelled(revision) => self.labelled(c, member, revision),
        }
    }
}

pub(super) fn out(since: Version) -> Out {
    Out { since, cursor: StripeAddress::default(), reason: String::new() }
}

/// What a shard has in a vertical.
pub(super) fn cell_of(k: usize, shard: usize, data: &Data, vertical: usize) -> Cell {
    let mut cell = Cell::default();
    if shard < k {
        cell[0] = data[shard][vertical];
    } else {
        (0..k).for_each(|index| cell[index] = data[index][vertical]);
    }
    cell
}

/// The data of a stripe from shards of it. Every cell has to be good, and every parity has to agree with every data shard.
/// `wanted` has a bit for each vertical that is looked at.
pub(super) fn decode(
    k: usize,
    verticals: usize,
    units: &[(usize, &Unit)],
    wanted: u32,
) -> Result<Data, String> {
    let mut data = Data::default();
    for vertical in (0..verticals).filter(|vertical| wanted >> vertical & 1 == 1) {
        let mut found: [Option<u32>; DATA_MAX] = [None; DATA_MAX];
        let mut parity: Option<Cell> = None;
        for (index, unit) in units {
            if !unit.is_good(vertical) {
                return Err(format!("shard {index} is bad in vertical {vertical}"));
            }
            let cell = unit.cell(vertical);
            if *index < k {
                found[*index] = Some(cell[0]);
            } else if parity.is_some_and(|parity| parity != cell) {
                return Err(format!("the parities of vertical {vertical} differ"));
            } else {
                parity = Some(cell);
            }
        }
        for shard in 0..k {
            match (found[shard], parity) {
                (Some(value), Some(parity)) if parity[shard] != value => {
                    return Err(format!(
                        "vertical {vertical}: the parity has {} for shard {shard}, which has {value}",
                        parity[shard]
                    ));
                }
                (Some(value), _) => data[shard][vertical] = value,
                (None, Some(parity)) => data[shard][vertical] = parity[shard],
                (None, None) => return Err(format!("vertical {vertical}: too few shards")),
            }
        }
    }
    Ok(data)
}
