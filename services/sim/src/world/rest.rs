//! When all is quiet: every extent is read, every disk is looked at.

use std::collections::BTreeMap;

use stripeset_coordinator::members::MemberIndex;
use stripeset_stripe::{cache::Mode, code::Codec};

use super::{
    Answer, Bytes, Cluster, Coordinator, ENDS, Life, SECTOR_BYTES, SERVED, Sector, TOLERATED, Violation,
    World, event,
};
use crate::{
    invariants::{cache, losses, parity},
    oracle::Order,
    vertical::{self, RawStripe},
};

/// How long members may take to be in sync again beyond what the profile bears, where they need not be.
const QUIET_LIMIT_BEYOND: std::time::Duration = std::time::Duration::from_secs(20);

/// Patterns of lost shards that are tried in each vertical.
const PATTERNS_MAX: usize = 20;

/// Of codes whose reconstruction is dear.
const PATTERNS_MAX_DEAR: usize = 2;

impl World {
    /// Looks at everything. No fault is going on, nothing is in flight.
    pub(super) async fn rest(
        &mut self,
        cluster: &Cluster,
        coordinator: &Coordinator,
    ) -> Result<(), Violation> {
        self.come_back(cluster, coordinator).await?;
        self.check_disks(cluster, coordinator).await?;
        self.read_all(coordinator).await?;
        self.check_disks(cluster, coordinator).await?;
        self.stats.out += coordinator.engine.members.iter().filter(|member| member.is_out()).count() as u64;
        Ok(())
    }

    /// All members are in sync again, within a time and without anybody's help: but those whose disks take no more writes,
    /// which are replaced.
    async fn come_back(&mut self, cluster: &Cluster, coordinator: &Coordinator) -> Result<(), Violation> {
        let members = &coordinator.engine.members;
        let limit = if self.plan.tolerated { super::QUIET_LIMIT } else { QUIET_LIMIT_BEYOND };
        let limit = tokio::time::Instant::now() + limit;
        let out = members.iter().filter(|member| member.is_out()).count();
        while !members.iter().all(|member| member.usable()) {
            if tokio::time::Instant::now() > limit {
                if !self.plan.tolerated {
                    break;
                }
                let states =
                    members.iter().map(|member| (member.standing().out, member.service(), member.rejoin()));
                let detail = format!("members are not in sync again: {:?}", states.collect::<Vec<_>>());
                return Err(Violation::new(ENDS, detail));
            }
            for line in cluster.lines() {
                let expected = members.get(MemberIndex(line.member())).disk_id();
                let (gone, stands) = {
                    let agent = line.agent();
                    (agent.is_gone() || agent.failure().is_some(), agent.disk_id())
                };
                let other = stands != expected;
                if gone || other {
                    let member = line.member();
                    let disk_id = match gone {
                        true => cluster.lose_disk(member as usize).ok(),
                        false => Some(stands),
                    };
                    if let Some(disk_id) = disk_id {
                        let replaced = coordinator.replace(member, disk_id).await;
                        event!(
                            self.trace,
                            "member {member}: its disk is replaced by {disk_id}: {replaced:?}"
                        );
                    }
                }
            }
            tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        }
        let left = members.iter().filter(|member| member.is_out()).count();
        self.stats.rejoined += out.saturating_sub(left) as u64;
        Ok(())
    }

    /// Reads every extent; all that shows of a write of unknown outcome is all of it or none.
    async fn read_all(&mut self, coordinator: &Coordinator) -> Result<(), Violation> {
        event!(self.trace, "everything is read");
        let unknowns = self.oracle.unknowns();
        let mut shown: BTreeMap<Sector, Order> = BTreeMap::new();
        let there: Vec<_> = self
            .extents
            .values()
            .filter(|extent| extent.life != Life::Writing && extent.life != Life::Pinned)
            .copied()
            .collect();
        for extent in there {
            let (stripe, ranges, expected) = self.question(coordinator, &extent);
            let result = coordinator.engine.read(&stripe, &ranges).await;
            let answer = Answer { stripe: stripe.address(), expected, result };
            self.was_read(&answer)?;
            let Ok(bytes) = answer.result else { continue };
            let found = bytes.iter().flat_map(|bytes| bytes.chunks_exact(SECTOR_BYTES));
            for (sector, found) in extent.sectors().into_iter().zip(found) {
                shown.insert(sector, Order::from_le_bytes(found[..8].try_into().unwrap_or_default()));
            }
        }
        for (order, sectors) in unknowns {
            let shows = |sector: &&Sector| shown.get(*sector) == Some(&order);
            let known = sectors.iter().filter(|sector| shown.contains_key(*sector)).count();
            let showing = sectors.iter().filter(shows).count();
            let newer = sectors.iter().any(|sector| shown.get(sector).is_some_and(|shown| *shown > order));
            if showing > 0 && showing < known && !newer {
                let detail = format!("write {order} shows in {showing} of {known} sectors");
                return Err(Violation::new("a write shows as a whole or not at all", detail));
            }
        }
        Ok(())
    }

    async fn check_disks(&mut self, cluster: &Cluster, coordinator: &Coordinator) -> Result<(), Violation> {
        // Repairs that reads began go on in the background.
        tokio::time::sleep(std::time::Duration::from_secs(5)).await;
        if let Err(error) = coordinator.settle().await {
            event!(self.trace, "a disk cannot be settled: {error}");
            if self.plan.tolerated && !self.plan.faults.disks {
                return Err(Violation::new(ENDS, format!("a disk cannot be settled: {error}")));
            }
        }
        let codec = Codec::new(self.geometry.profile());
        for stripe in self.all_stripes(coordinator) {
            let raw = vertical::of_stripe(cluster, coordinator, &stripe);
            let located = |violation: Violation| Violation {
                detail: format!("{:?}: {}", stripe.address(), violation.detail),
                ..violation
            };
            self.check_stripe(&codec, &stripe, &raw).map_err(located)?;
            self.check_pages(coordinator, &stripe, &raw).map_err(located)?;
        }
        Ok(())
    }

    fn check_stripe(
        &mut self,
        codec: &Codec,
        stripe: &stripeset_coordinator::extents::StripeRef,
        raw: &RawStripe,
    ) -> Result<(), Violation> {
        let (address, units) = (stripe.address(), self.geometry.unit_sectors());
        let profile = self.geometry.profile();
        let held: Vec<Sector> = self
            .extents
            .values()
            .filter(|extent| extent.stripe == address && !matches!(extent.life, Life::Writing | Life::Pinned))
            .flat_map(super::Extent::sectors)
            .collect();
        let dear = profile.parity_shards() > 2 && profile.data_shards() > 1;
        let patterns = if dear { PATTERNS_MAX_DEAR } else { PATTERNS_MAX };
        for vertical in raw.verticals.iter().filter(|vertical| vertical.any_live()) {
            if self.forged.contains(&(address, vertical.index)) {
                continue;
            }
            self.stats.verticals += u64::from(parity::check(codec, vertical)?);
            let holds = (0..profile.data_shards())
                .any(|shard| held.contains(&(address, shard * units + vertical.index)));
            if holds && self.plan.tolerated && vertical.bad() > profile.parity_shards() {
                let detail = format!(
                    "{} shards of vertical {} are bad: {}",
                    vertical.bad(),
                    vertical.index,
                    raw.states
                );
                return Err(Violation::new(TOLERATED, detail));
            }
            let permits = |shard: usize, bytes: &[u8]| {
                let sector = (address, shard * units + vertical.index);
                !held.contains(&sector) || self.oracle.permits(sector, bytes)
            };
            self.stats.patterns += losses::check(codec, vertical, patterns, permits)?;
        }
        Ok(())
    }

    fn check_pages(
        &mut self,
        coordinator: &Coordinator,
        stripe: &stripeset_coordinator::extents::StripeRef,
        raw: &RawStripe,
    ) -> Result<(), Violation> {
        let key = coordinator.engine.cache_key(stripe);
        let cache = coordinator.engine.cache();
        let Some(pages) = cache.peek(&key) else { return Ok(()) };
        if cache.mode() != Mode::Drop {
            return Ok(());
        }
        let units = self.geometry.unit_sectors();
        let on_disk = |sector: usize| raw.verticals[sector % units].shards[sector / units].clone();
        self.stats.pages += cache::check(pages, on_disk)?;
        for (sector, page) in
            pages.valid().filter_map(|sector| pages.get(sector).map(|page: &Bytes| (sector, page)))
        {
            let sector = (stripe.address(), sector);
            let held = |extent: &super::Extent| {
                extent.stripe == sector.0
                    && !matches!(extent.life, Life::Writing | Life::Pinned)
                    && (extent.first..extent.first + extent.sectors).contains(&sector.1)
            };
            if self.extents.values().any(held) && !self.oracle.permits(sector, page) {
                return Err(Violation::new(
                    SERVED,
                    format!("the cached page of {sector:?} is another write's"),
                ));
            }
        }
        raw.summary.as_ref().map_or(Ok(()), |summary| cache::check_summary(pages, summary))
    }
}
