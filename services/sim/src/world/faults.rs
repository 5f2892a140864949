//! What goes wrong: on the members that the plan names, and in the ways that it allows.

use stripeset_agent::simulation::FaultRates;

use super::{Class, Cluster, Coordinator, Finished, Work, World, event};
use crate::network::Conduct;

/// The mildest conduct: messages are late, and may come twice.
fn mild(repeated: u64) -> Conduct {
    Conduct { micros: 0..=4000, repeated, ..Conduct::default() }
}

impl World {
    /// Something goes wrong, or is over.
    pub(super) fn misbehave(&mut self, cluster: &Cluster, coordinator: &Coordinator, work: &mut Work) {
        let faults = self.plan.faults;
        let Some(member) = self.dice.pick(&self.plan.faulty).copied() else {
            return self.disturb_line(cluster);
        };
        match self.dice.below(12) {
            0 if faults.lost => self.lose(cluster, member),
            1 | 2 if faults.lines => self.disconnect(cluster, member),
            3..=5 if faults.flips => self.flip(coordinator, member),
            6 if faults.forged => self.forge(coordinator, member),
            7 if faults.disks || faults.full => self.spoil_disk(cluster, member),
            8 if faults.short => {
                let bytes = self.dice.below(6) as usize * 512;
                self.stats.short += 1;
                event!(self.trace, "member {member}: reads end after {bytes} bytes");
                cluster.lines()[member].agent().read_at_most(bytes);
            }
            9 => {
                event!(self.trace, "member {member}: all is well again");
                cluster.lines()[member].agent().behave();
                cluster.lines()[member].set_conduct(mild(0));
            }
            10 if faults.agents => self.kill_agent(cluster, member),
            8 if faults.disks_lost && self.dice.of_thousand(300) => {
                self.lose_disk(cluster, coordinator, member, work);
            }
            11 => self.disturb_line(cluster),
            _ => {}
        }
    }

    /// Messages of any member may be late, come twice, or after their coordinator.
    fn disturb_line(&mut self, cluster: &Cluster) {
        let member = self.dice.below(cluster.lines().len() as u64) as usize;
        let line = &cluster.lines()[member];
        if self.dice.of_thousand(300) {
            let of_member = cluster.all_lines().filter(|line| line.member() as usize == member);
            self.stats.repeated += of_member.map(|line| u64::from(line.deliver_stray())).sum::<u64>();
        } else {
            let conduct = line.conduct();
            let micros = 0..=self.dice.between(500, 20_000);
            line.set_conduct(Conduct { micros, repeated: self.dice.below(100), ..conduct });
        }
    }

    fn lose(&mut self, cluster: &Cluster, member: usize) {
        let lost = self.dice.between(5, 150);
        event!(self.trace, "member {member}: {lost} of a thousand messages get lost");
        let conduct = cluster.lines()[member].conduct();
        cluster.lines()[member].set_conduct(Conduct { lost, ..conduct });
    }

    fn disconnect(&mut self, cluster: &Cluster, member: usize) {
        let line = &cluster.lines()[member];
        let conduct = line.conduct();
        if conduct.cut || conduct.frozen {
            event!(self.trace, "member {member}: the line is there again");
            line.set_conduct(Conduct { cut: false, frozen: false, ..conduct });
        } else if self.dice.of_thousand(500) {
            event!(self.trace, "member {member}: the line is cut");
            line.set_conduct(Conduct { cut: true, ..conduct });
        } else {
            event!(self.trace, "member {member}: the line freezes");
            self.stats.frozen += 1;
            line.set_conduct(Conduct { frozen: true, ..conduct });
        }
    }

    /// A stripe, a shard of it on the member, and a sector: any of them, in use or not.
    fn somewhere(
        &mut self,
        coordinator: &Coordinator,
        member: usize,
    ) -> Option<(stripeset_coordinator::extents::StripeRef, usize, usize)> {
        let stripes = self.all_stripes(coordinator);
        let stripe = self.dice.pick(&stripes)?.clone();
        let shards: Vec<usize> = (0..self.geometry.profile().shards())
            .filter(|shard| coordinator.place(&stripe, *shard).0 == member)
            .collect();
        let shard = *self.dice.pick(&shards)?;
        Some((stripe, shard, self.dice.below(self.geometry.unit_sectors() as u64) as usize))
    }

    fn flip(&mut self, coordinator: &Coordinator, member: usize) {
        let Some((stripe, shard, sector)) = self.somewhere(coordinator, member) else { return };
        if coordinator.flip(&stripe, shard, sector) {
            self.stats.flips += 1;
            event!(
                self.trace,
                "member {member}: a bit flips in sector {sector} of shard {shard} of {:?}",
                stripe.address()
            );
        }
    }

    /// A sector changes with its checksum, in a stripe that nobody is writing: one of parity, or one that nothing uses. A
    /// plain read of one that is in use trusts its shard's checksum; what it brought is for the object's own to judge.
    fn forge(&mut self, coordinator: &Coordinator, member: usize) {
        let Some((stripe, shard, sector)) = self.somewhere(coordinator, member) else { return };
        let address = stripe.address();
        let data_shards = self.geometry.profile().data_shards();
        let used = shard < data_shards
            && coordinator.engine.extents.live(address, shard * self.geometry.unit_sectors() + sector);
        if used
            || self.writing.values().any(|writing| *writing == address)
            || !coordinator.forge(&stripe, shard, sector)
        {
            return;
        }
        self.stats.forged += 1;
        event!(
            self.trace,
            "member {member}: sector {sector} of shard {shard} of {address:?} changes with its checksum"
        );
        // Of a data sector the parities know better; of a parity nobody does.
        if shard >= data_shards {
            self.forged.insert((address, sector));
        }
    }

    fn spoil_disk(&mut self, cluster: &Cluster, member: usize) {
        let faults = self.plan.faults;
        // A journal is read again when its agent is killed. One that rots, or was never written, has forgotten what it said was
        // durable: nobody can tell then, if the coordinator dies too, that a write was prepared there.
        let rots = faults.disks && !faults.agents && !faults.blackouts;
        let lies = rots && self.plan.liars.contains(&member);
        let mut rate = |on: bool| if on { self.dice.below(60) } else { 0 };
        let rates = FaultRates {
            rot: rate(rots),
            latent_errors: rate(rots),
            misdirected_writes: rate(lies) / 2,
            dropped_writes: rate(lies),
            full: rate(faults.full) * 3,
        };
        event!(self.trace, "member {member}: its disk goes bad, {rates:?}");
        let seed = self.dice.draw();
        cluster.lines()[member].agent().misbehave(rates, seed);
    }

    fn kill_agent(&mut self, cluster: &Cluster, member: usize) {
        let line = &cluster.lines()[member];
        let power = self.dice.of_thousand(500);
        let seed = self.dice.draw();
        let back = match power {
            true => line.agent().lose_power(seed),
            false => line.agent().restart(),
        };
        self.stats.power += u64::from(power);
        self.stats.restarts += u64::from(!power);
        let words = if power { "loses power" } else { "is killed" };
        match back {
            Ok(()) => event!(self.trace, "member {member} {words}, and comes back"),
            Err(error) => event!(self.trace, "member {member} {words}, and does not come back: {error}"),
        }
        // The sessions break with the process; the next ones find the new one.
        cluster.break_sessions(member);
    }

    /// The disk of a member is gone. A blank one stands there, and the coordinator is told to use it.
    fn lose_disk(&mut self, cluster: &Cluster, coordinator: &Coordinator, member: usize, work: &mut Work) {
        let Ok(disk_id) = cluster.lose_disk(member) else { return };
        self.stats.disks_lost += 1;
        event!(self.trace, "member {member}: its disk is lost, {disk_id} stands there");
        let members = coordinator.engine.members.clone();
        let engine = coordinator.engine.clone();
        work.push(Box::pin(async move {
            let index = stripeset_coordinator::members::MemberIndex(member as u32);
            let address = format!("agent-{member}");
            let replaced = members.replace(index, disk_id, address, &engine.extents.chunks).await;
            Finished::Replaced(member, replaced)
        }));
    }

    /// The coordinator died; with it all agents may have lost power.
    pub fn blackout(&mut self, cluster: &Cluster) {
        if !self.plan.faults.blackouts || self.dice.of_thousand(500) {
            return;
        }
        self.stats.blackouts += 1;
        event!(self.trace, "everything loses power");
        for line in cluster.lines() {
            let seed = self.dice.draw();
            if let Err(error) = line.agent().lose_power(seed) {
                event!(self.trace, "member {}: does not come back: {error}", line.member());
            }
        }
    }

    /// The lines do well, whatever the disks do.
    pub fn quiet_lines(&self, cluster: &Cluster) {
        cluster.all_lines().for_each(|line| line.set_conduct(mild(10)));
    }

    /// Every fault is over.
    pub(super) fn heal(&mut self, cluster: &Cluster) {
        event!(self.trace, "every fault is over");
        for line in cluster.all_lines() {
            line.agent().behave();
            line.set_conduct(Conduct::default());
        }
    }

    /// What the cache of this life counted.
    pub(super) fn account(&mut self, coordinator: &Coordinator) {
        let counters = Class::ALL.map(|class| coordinator.engine.cache().counters(class));
        self.stats.skips += counters.iter().map(|counters| counters.rmw_skips).sum::<u64>();
        self.stats.reads_before += counters.iter().map(|counters| counters.rmw_reads).sum::<u64>();
    }

    /// What agents and lines counted, all lives together.
    pub fn account_cluster(&mut self, cluster: &Cluster) {
        for line in cluster.lines() {
            let injected = line.agent().injected();
            self.stats.rot += injected.rot;
            self.stats.latent += injected.latent_errors;
            self.stats.misdirected += injected.misdirected_writes;
            self.stats.dropped += injected.dropped_writes;
            self.stats.full += injected.full;
        }
        for line in cluster.all_lines() {
            let counts = line.counts();
            self.stats.messages += counts.messages;
            self.stats.lost += counts.lost;
            self.stats.repeated += counts.repeated;
            self.stats.cuts += counts.cuts;
        }
    }
}
