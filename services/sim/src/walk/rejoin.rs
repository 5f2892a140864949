//! Takes a member back that is out, one stripe at a time: rebuilds what it missed, and lets it in behind a closed gate.

use stripeset_stripe::{Version, label::Change};
use uuid::Uuid;

use super::{
    DATA, Rule, STRIPES, VERTICALS, VERTICALS_MAX, address,
    agent::Ask,
    coordinator::{cell_of, members},
    world::World,
};

/// How far it has come with its window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// What was missed has to be found out.
    Looking,
    /// The shard has to be rebuilt, or discarded.
    Rebuilding,
    /// Nothing is missing that is known of.
    Done,
}

/// A member that is being taken back.
#[derive(Clone, Debug)]
pub struct Rejoin {
    pub(super) member: usize,
    /// Its disk is fenced.
    fenced: bool,
    /// The stripe that is next: what the label's cursor says.
    window: usize,
    stage: Stage,
    /// The token of the rebuild that is under way; it holds the stripe.
    token: Option<Version>,
    /// Writes to the window were decided without the member since it was rebuilt.
    missed: bool,
    /// Nothing is begun in the window.
    gate_closed: bool,
    /// The label that lets the window in is under way.
    pub(super) asked: bool,
}

impl Rejoin {
    pub(super) fn holds(&self, stripe: usize) -> bool {
        self.window == stripe && (self.token.is_some() || self.gate_closed)
    }

    /// A write ended without these members.
    pub(super) fn missed(&mut self, stripe: usize, without: u32) {
        self.missed |= self.window == stripe && without >> self.member & 1 == 1;
    }

    fn at(member: usize, window: usize) -> Rejoin {
        Rejoin {
            member,
            fenced: false,
            window,
            stage: Stage::Looking,
            token: None,
            missed: false,
            gate_closed: false,
            asked: false,
        }
    }
}

impl World {
    /// A member that is out is to be taken back: with its own disk, or with the blank one that stands there.
    pub(super) fn begin_rejoin(&mut self, c: usize, member: usize) {
        if self.agents[member].lost {
            self.replace_disk(member);
        }
        let stands = self.agents[member].disk_id;
        let Some(label) = self.coordinators[c].label() else { return };
        let entry = &label.members[member];
        let cursor = entry.out.as_ref().map_or(0, |out| out.cursor.row.0 as usize);
        let same = entry.disk_id == stands;
        let window = if same { cursor } else { 0 };
        self.coordinators[c].rejoin = Some(Rejoin::at(member, window));
        if !same {
            self.propose(c, &Change::Replace { member, disk_id: stands, address: String::new() });
        }
    }

    pub(super) fn rejoin_fenced(&mut self, c: usize, member: usize, disk_id: Uuid) {
        let coordinator = &mut self.coordinators[c];
        let Some(label) = coordinator.label() else { return };
        let known = label.members[member].disk_id == disk_id;
        if let Some(rejoin) = &mut coordinator.rejoin {
            rejoin.fenced |= rejoin.member == member && known;
        }
    }

    /// A rebuild, or a discard, was answered.
    pub(super) fn rebuilt(&mut self, c: usize, member: usize, stripe: usize, token: Version) {
        let any_token = self.broken.lacks(Rule::TokenUsedAgain);
        if let Some(rejoin) = &mut self.coordinators[c].rejoin
            && rejoin.member == member
            && rejoin.window == stripe
            && rejoin.token.is_some_and(|wanted| wanted == token || any_token)
        {
            (rejoin.token, rejoin.stage) = (None, Stage::Done);
        }
    }

    /// The window is in: on to the next, if there is one.
    pub(super) fn window_is_in(&mut self, c: usize) {
        let coordinator = &mut self.coordinators[c];
        let Some(rejoin) = &mut coordinator.rejoin else { return };
        let member = rejoin.member;
        *rejoin = Rejoin { fenced: rejoin.fenced, ..Rejoin::at(member, rejoin.window + 1) };
        if !coordinator.is_out(member) {
            coordinator.rejoin = None;
        }
    }

    /// One step of taking a member back.
    pub(super) fn rejoin_step(&mut self, c: usize) {
        let Some(rejoin) = self.coordinators[c].rejoin.clone() else { return };
        let (member, window) = (rejoin.member, rejoin.window);
        let coordinator = &self.coordinators[c];
        let Some(revisions) = &coordinator.revisions else { return };
        if rejoin.asked {
            match revisions.letting_in() {
                Some(_) => self.send_label(c),
                // A successor dropped it. Once that one is in force, it begins again.
                None if revisions.proposed().is_none() => self.coordinators[c].rejoin = None,
                None => {}
            }
            return;
        }
        let entry = &revisions.in_force().members[member];
        let Some(out) = &entry.out else {
            self.coordinators[c].rejoin = None;
            return;
        };
        let since = out.since;
        if entry.disk_id != self.agents[member].disk_id {
            // Its disk was replaced once more, or the label that names it is not in force yet.
            if revisions.proposed().is_none() {
                self.coordinators[c].rejoin = None;
            }
            return;
        }
        if !rejoin.fenced {
            self.send(c, member, Ask::Fence);
            return;
        }
        if self.agents[member].label.is_none() {
            // A blank disk joins before anything else goes to it.
            let label = revisions.in_force().clone();
            self.send(c, member, Ask::SetLabel(Box::new(label)));
            return;
        }
        match rejoin.stage {
            Stage::Looking => self.look_at_window(c, member, window, since),
            Stage::Rebuilding => self.rebuild_window(c, member, window),
            Stage::Done => self.close_gate(c, member, window),
        }
    }

    /// What happened in the window without the member, and what is pending on it.
    fn look_at_window(&mut self, c: usize, member: usize, window: usize, since: Version) {
        let coordinator = &self.coordinators[c];
        let epoch = coordinator.epoch;
        let counting = coordinator.counting(window) & !(1 << member);
        let answers = |index: usize| {
            let agent = &self.agents[index];
            !agent.lost && !agent.down && agent.epoch == epoch && !self.cut[coordinator.host][index]
        };
        if !members(counting | 1 << member).all(answers) {
            return;
        }
        let changed = members(counting).any(|index| self.agents[index].units[window].floor > since);
        let own = &self.agents[member].units[window];
        let to_do = changed || own.pending.is_some() || self.is_new(c, member);
        self.counts.unchanged += u64::from(!to_do);
        if let Some(rejoin) = &mut self.coordinators[c].rejoin {
            rejoin.stage = if to_do { Stage::Rebuilding } else { Stage::Done };
            // What is written from here on, it misses.
            rejoin.missed = false;
        }
        // A write that was under way when this was looked at is decided later: it counts as missed then.
    }

    /// Everything is missing from a blank disk.
    fn is_new(&self, c: usize, member: usize) -> bool {
        let label = self.coordinators[c].label();
        label.is_some_and(|label| label.members[member].out.as_ref().is_some_and(|out| out.since.is_none()))
    }

    fn rebuild_window(&mut self, c: usize, member: usize, window: usize) {
        let held = {
            let coordinator = &self.coordinators[c];
            coordinator.writes[window].is_some() || coordinator.aborts[window].is_some()
        };
        if held {
            return;
        }
        let empty = match window {
            DATA => self.taken(c).next().is_none(),
            _ => window != self.coordinators[c].ring,
        };
        let k = self.shape.data;
        let coordinator = &mut self.coordinators[c];
        let kept = coordinator.rejoin.as_ref().and_then(|rejoin| rejoin.token);
        let token = kept.unwrap_or_else(|| coordinator.take_version());
        if let Some(rejoin) = &mut coordinator.rejoin {
            (rejoin.token, rejoin.missed) = (Some(token), false);
        }
        if empty {
            self.send(c, member, Ask::Discard(window, token));
            return;
        }
        let mut cells = [[0; super::DATA_MAX]; VERTICALS_MAX];
        for (vertical, cell) in cells.iter_mut().enumerate().take(VERTICALS[window]) {
            *cell = cell_of(k, member, &coordinator.data[window], vertical);
        }
        let vector = coordinator.vector[window];
        let rebuild = Ask::Rebuild { stripe: window, token, committed: vector[member], vector, cells };
        self.send(c, member, rebuild);
    }

    /// Closes the gate; once nobody is inside and nothing is missing, asks for the label that lets the window in.
    fn close_gate(&mut self, c: usize, member: usize, window: usize) {
        let no_gate = self.broken.lacks(Rule::GateLeftOpen);
        let coordinator = &mut self.coordinators[c];
        let Some(rejoin) = &mut coordinator.rejoin else { return };
        rejoin.gate_closed = !no_gate;
        let inside = coordinator.writes[window].is_some() || coordinator.aborts[window].is_some();
        if inside && !no_gate {
            return;
        }
        if rejoin.missed {
            (rejoin.stage, rejoin.token) = (Stage::Rebuilding, None);
            return;
        }
        if coordinator.revisions.as_ref().is_none_or(|revisions| revisions.proposed().is_some()) {
            return;
        }
        rejoin.asked = true;
        let below = (window + 1 < STRIPES).then(|| address(window + 1));
        self.propose(c, &Change::LetIn { member, below });
    }

    /// It begins again with its window, with another token.
    pub(super) fn rejoin_again(&mut self, c: usize) {
        if let Some(rejoin) = &mut self.coordinators[c].rejoin
            && !rejoin.asked
        {
            (rejoin.token, rejoin.stage, rejoin.gate_closed) = (None, Stage::Looking, false);
        }
    }
}
