//! The end of a walk: all is mended, a last coordinator takes over, and everything is looked at.

use stripeset_stripe::label::Label;

use super::{
    DATA, STRIPES, VERTICALS,
    agent::Unit,
    coordinator::{Phase, decode, members},
    world::{HOSTS, World},
};

/// Rounds that the last coordinator has to come to serve.
const END_ROUNDS: usize = 4000;

impl World {
    /// Losses up to the budget, the network heals, one more coordinator takes over; then everything is looked at, every
    /// member is taken back, and the stripes take writes.
    pub(super) fn end(&mut self) -> Result<(), String> {
        self.mended = true;
        self.tell(|| "the end".to_owned());
        self.coordinators.iter_mut().for_each(|coordinator| coordinator.dead = true);
        for member in 0..self.shape.members() {
            if self.agents[member].down {
                self.agents[member].down = false;
            } else if self.dice.of_thousand(200) {
                self.agents[member].crash(&mut self.dice, self.broken, &mut self.counts);
            }
        }
        self.cut.iter_mut().flatten().for_each(|cut| *cut = false);
        let host = self.dice.below(HOSTS as u64) as usize;
        for member in 0..self.shape.members() {
            if !self.loses_too_many(member) && !self.agents[member].lost && self.dice.of_thousand(400) {
                self.lose_disk(member);
            }
        }
        self.start_coordinator(host);
        let last = self.coordinators.len() - 1;
        if !self.end_start(last)? {
            return Ok(());
        }
        // Late messages of everybody.
        self.deliver_all();
        self.check_losses(last)?;
        self.end_rejoins(last)?;
        self.check_losses(last)?;
        self.end_writes(last)?;
        for agent in &mut self.agents {
            agent.units.iter_mut().for_each(Unit::commit);
        }
        self.check_losses(last)
    }

    /// The last coordinator comes to serve; `false` if it may not, and need not.
    fn end_start(&mut self, last: usize) -> Result<bool, String> {
        for _ in 0..END_ROUNDS {
            if !self.messages.is_empty() {
                let index = self.dice.below(self.messages.len() as u64) as usize;
                let message = self.messages.swap_remove(index);
                self.deliver(message);
                continue;
            }
            match self.coordinators[last].phase {
                Phase::Serving => return Ok(true),
                Phase::Fencing => {
                    if !self.try_start(last) {
                        return self.check_refusal();
                    }
                }
                Phase::Starting => self.send_label(last),
                Phase::Resolving => self.go_on_resolving(last)?,
            }
        }
        if self.coordinators[last].phase == Phase::Serving {
            return Ok(true);
        }
        if self.budgeted {
            return Err(format!("the last coordinator stays in {:?}", self.coordinators[last].phase));
        }
        self.counts.ends_refused += 1;
        Ok(false)
    }

    /// Whether the start rule may refuse at the end, where all that is not lost answers.
    fn check_refusal(&mut self) -> Result<bool, String> {
        let (k, budgeted) = (self.shape.data, self.budgeted);
        let labels = self.agents.iter().filter_map(|agent| agent.label.as_ref());
        let folder = &self.folders[self.coordinators.last().map_or(0, |last| last.host)];
        let known = folder.label.iter().filter(|_| folder.in_force);
        self.counts.ends_refused += 1;
        let Some(label) = labels.chain(known).max_by_key(|label| label.revision) else {
            return Err("no label is left".to_owned());
        };
        let stands = |index: &usize| self.stands(label, *index);
        let here = label.in_sync().filter(stands).count();
        let may_be_newer = label.in_doubt().into_iter().any(|set| {
            let silent = set.iter().filter(|index| !stands(index));
            silent.count() >= k
        });
        if budgeted && here < k {
            return Err(format!("fewer than k members are in sync: {label:?}"));
        }
        if budgeted && !may_be_newer {
            return Err(format!("it does not begin from {label:?}"));
        }
        Ok(false)
    }

    /// Whether the disk of a member is there, and the one that the label names.
    fn stands(&self, label: &Label, member: usize) -> bool {
        let agent = &self.agents[member];
        !agent.lost && agent.disk_id == label.members[member].disk_id
    }

    fn end_rejoins(&mut self, last: usize) -> Result<(), String> {
        for _ in 0..self.shape.members() {
            let out = (0..self.shape.members()).find(|member| self.coordinators[last].is_out(*member));
            let Some(member) = out else { return Ok(()) };
            self.begin_rejoin(last, member);
            for _ in 0..100 {
                self.deliver_all();
                if self.coordinators[last].rejoin.is_none() {
                    break;
                }
                self.rejoin_step(last);
            }
            if self.coordinators[last].rejoin.is_some() {
                return Err(format!("member {member} is not taken back"));
            }
        }
        Ok(())
    }

    fn end_writes(&mut self, last: usize) -> Result<(), String> {
        for _ in 0..3 {
            self.begin_transaction(last);
            for _ in 0..20 {
                for stripe in 0..STRIPES {
                    self.send_prepares(last, stripe);
                }
                self.deliver_all();
                for stripe in 0..STRIPES {
                    self.try_decide(last, stripe)?;
                }
                if self.coordinators[last].logging.is_none() && !self.coordinators[last].ready.is_empty() {
                    self.append(last);
                }
            }
            let coordinator = &self.coordinators[last];
            if coordinator.current.is_some() || coordinator.logging.is_some() {
                return Err("the array takes no write at the end".to_owned());
            }
        }
        Ok(())
    }

    /// From any k members that are in sync all that is live comes back, and the log.
    fn check_losses(&self, last: usize) -> Result<(), String> {
        let k = self.shape.data;
        let coordinator = &self.coordinators[last];
        let Some(label) = coordinator.label() else { return Ok(()) };
        let state = &self.states[coordinator.database];
        for (stripe, verticals) in VERTICALS.into_iter().enumerate() {
            let live = state.live_count() > 0;
            if stripe == DATA && !live || stripe != DATA && stripe != coordinator.ring {
                continue;
            }
            let wanted = match stripe {
                DATA => state.live().fold(0, |mask, (place, ..)| mask | 1 << place.vertical),
                _ => 1,
            };
            let here = members(coordinator.counting(stripe)).filter(|index| self.stands(label, *index));
            let here: Vec<usize> = here.collect();
            for pattern in (0..1u32 << here.len()).filter(|pattern| pattern.count_ones() as usize == k) {
                let of = |(bit, index): (usize, &usize)| {
                    (pattern >> bit & 1 == 1).then(|| (*index, &self.agents[*index].units[stripe]))
                };
                let units: Vec<(usize, &Unit)> = here.iter().enumerate().filter_map(of).collect();
                let whom = || units.iter().map(|(index, _)| *index).collect::<Vec<_>>();
                let data = decode(k, verticals, &units, wanted)
                    .map_err(|error| format!("from {:?}, stripe {stripe}: {error}", whom()))?;
                if stripe != DATA {
                    if data != coordinator.data[stripe] {
                        return Err(format!("from {:?} the log is another one", whom()));
                    }
                    continue;
                }
                for (place, value, _) in state.live() {
                    let found = data[place.shard][place.vertical];
                    if found != value {
                        return Err(format!("from {:?} live {place:?} is {found}, not {value}", whom()));
                    }
                }
            }
        }
        Ok(())
    }
}
