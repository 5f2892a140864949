//! What users and the map do: write, read, delete, commit.

use stripeset_coordinator::{
    engine::ReadRange,
    extents::{StripeRef, packer::split_columns},
};
use stripeset_stripe::geometry::Row;

use super::{
    Answer, BTreeMap, Bytes, Cluster, Coordinator, Duration, Expected, Extent, Finished, IN_FLIGHT_MAX, Life,
    Logical, SECTOR_BYTES, SPACE, Sector, Shard, StripeAddress, Violation, Watched, Work, World, Written,
    cache, edits, event, oracle,
};
use crate::plan::Weakness;

/// Extents of one get, at most.
const GET_MAX: usize = 4;

impl World {
    /// One thing happens.
    pub(super) async fn act(
        &mut self,
        cluster: &Cluster,
        coordinator: &Coordinator,
        work: &mut Work,
    ) -> Result<(), Violation> {
        let busy = work.len() >= IN_FLIGHT_MAX;
        match self.dice.below(1000) {
            0..110 if !busy => self.write_stripe(coordinator, work).await,
            110..300 if !busy => self.write_holes(coordinator, work),
            300..460 if !busy => self.overwrite(coordinator, work),
            460..600 if !busy => self.read(coordinator, work),
            600..640 if !busy => self.get(coordinator, work),
            640..730 => self.delete(coordinator)?,
            730..800 => self.commit(coordinator)?,
            800..815 => self.disturb_cache(coordinator),
            815..1000 => self.misbehave(cluster, coordinator, work),
            _ => {}
        }
        Ok(())
    }

    fn add(&mut self, stripe: StripeAddress, first: usize, sectors: usize) -> u64 {
        let id = self.next_extent;
        self.next_extent += 1;
        let extent = Extent { stripe, first, sectors, life: Life::Writing };
        // What was there before belongs to nobody any more.
        extent.sectors().into_iter().for_each(|sector| self.oracle.forget(sector));
        self.extents.insert(id, extent);
        id
    }

    /// A fresh write into an empty stripe. What it does not fill is given back at once, or kept for later.
    async fn write_stripe(&mut self, coordinator: &Coordinator, work: &mut Work) {
        let Ok(Some(stripe)) = coordinator.engine.extents.take_stripe().await else { return };
        let whole = self.geometry.stripe_sectors();
        let sectors =
            if self.dice.of_thousand(300) { whole } else { self.dice.between(1, whole as u64) as usize };
        let id = self.add(stripe.address(), 0, sectors);
        let written = self.extents[&id].sectors();
        let order = self.oracle.submit(&written);
        event!(self.trace, "write {order}: {sectors} sectors, fresh, to {:?}", stripe.address());
        let data: Vec<u8> = written.iter().flat_map(|sector| oracle::bytes(order, *sector)).collect();
        let columns = split_columns(&self.geometry, data.into());
        self.writing.insert(order, stripe.address());
        // Nobody else can have it yet: the stripe was empty.
        if sectors < whole {
            let start = self.geometry.stripe_start(stripe.address()).0;
            let rest = Logical(start + (sectors * SECTOR_BYTES) as u64);
            coordinator.engine.free(rest, ((whole - sectors) * SECTOR_BYTES) as u64);
        }
        let engine = coordinator.engine.clone();
        work.push(Box::pin(async move {
            let result = engine.write_fresh(&stripe, &columns).await.map_err(std::sync::Arc::new);
            Finished::Write(Written { extent: id, order, sectors: written, new: true, result })
        }));
    }

    /// Stripes that hold something.
    fn used_stripes(&self) -> Vec<StripeAddress> {
        let mut stripes: Vec<StripeAddress> = self.extents.values().map(|extent| extent.stripe).collect();
        stripes.sort_unstable();
        stripes.dedup();
        stripes
    }

    /// A partial write into free sectors of a stripe that holds others.
    fn write_holes(&mut self, coordinator: &Coordinator, work: &mut Work) {
        let stripes = self.used_stripes();
        let Some(stripe) = self.dice.pick(&stripes).copied() else { return };
        // One whose fresh write has not ended is not known to hold anything.
        let entered = |extent: &Extent| extent.stripe == stripe && extent.life != Life::Writing;
        if !self.extents.values().any(entered) {
            return;
        }
        let free: Vec<usize> = (0..self.geometry.stripe_sectors())
            .filter(|sector| !coordinator.engine.extents.live(stripe, *sector))
            .collect();
        let Some(first) = self.dice.pick(&free).copied() else { return };
        let room = (first..).take_while(|sector| free.contains(sector)).count();
        let sectors = self.dice.between(1, room.min(6) as u64) as usize;
        let extent = Extent { stripe, first, sectors, life: Life::Writing };
        if coordinator.engine.extents.load_extent(extent.stored(&self.geometry)).is_err() {
            return;
        }
        let id = self.add(stripe, first, sectors);
        self.write_into(coordinator, work, id, extent.sectors(), true);
    }

    /// Sectors of an extent are written again where they are, as pages of a database.
    fn overwrite(&mut self, coordinator: &Coordinator, work: &mut Work) {
        let there: Vec<u64> = self.with_life(&[Life::Added, Life::Live]);
        let Some(id) = self.dice.pick(&there).copied() else { return };
        let extent = self.extents[&id];
        let first = self.dice.below(extent.sectors as u64) as usize;
        let count = self.dice.between(1, (extent.sectors - first).min(5) as u64) as usize;
        let sectors: Vec<Sector> = (extent.first + first..extent.first + first + count)
            .map(|sector| (extent.stripe, sector))
            .collect();
        self.write_into(coordinator, work, id, sectors, false);
    }

    fn write_into(
        &mut self,
        coordinator: &Coordinator,
        work: &mut Work,
        id: u64,
        sectors: Vec<Sector>,
        new: bool,
    ) {
        let address = self.extents[&id].stripe;
        let order = self.oracle.submit(&sectors);
        let at: Vec<usize> = sectors.iter().map(|(_, sector)| *sector).collect();
        let words = if new { "new" } else { "in place" };
        event!(self.trace, "write {order}: sectors {at:?} of {address:?}, {words}");
        self.writing.insert(order, address);
        let edits = edits(&self.geometry, order, &sectors);
        let (engine, stripe) = (coordinator.engine.clone(), coordinator.engine.extents.stripe(address));
        work.push(Box::pin(async move {
            let result = engine.write_partial(&stripe, edits).await;
            Finished::Write(Written { extent: id, order, sectors, new, result })
        }));
    }

    fn with_life(&self, lives: &[Life]) -> Vec<u64> {
        let wanted = |extent: &Extent| lives.contains(&extent.life);
        self.extents.iter().filter(|(_, extent)| wanted(extent)).map(|(id, _)| *id).collect()
    }

    /// What to ask for to read an extent, and what may come: one range for each unit.
    pub(super) fn question(
        &self,
        coordinator: &Coordinator,
        extent: &Extent,
    ) -> (StripeRef, Vec<ReadRange>, Vec<Expected>) {
        let units = self.geometry.unit_sectors();
        let mut ranges: BTreeMap<usize, ReadRange> = BTreeMap::new();
        let mut expected = Vec::with_capacity(extent.sectors);
        for sector in extent.sectors() {
            let expect = self.oracle.expect(sector);
            let (shard, in_unit) = (sector.1 / units, (sector.1 % units) as u32);
            let range = ranges.entry(shard).or_insert(ReadRange {
                shard: Shard(shard as u8),
                first_sector: in_unit,
                sectors: 0,
                version: expect.version,
            });
            range.sectors += 1;
            // A shard has one version: the newest of what was written to it.
            range.version = range.version.max(expect.version);
            expected.push(expect);
        }
        (coordinator.engine.extents.stripe(extent.stripe), ranges.into_values().collect(), expected)
    }

    fn read(&mut self, coordinator: &Coordinator, work: &mut Work) {
        let there = self.with_life(&[Life::Added, Life::Live, Life::Deleted]);
        let Some(id) = self.dice.pick(&there).copied() else { return };
        let extent = self.extents[&id];
        let (stripe, ranges, expected) = self.question(coordinator, &extent);
        event!(self.trace, "read of extent {id}");
        let engine = coordinator.engine.clone();
        let pin = coordinator.pins.pin();
        work.push(Box::pin(async move {
            let result = engine.read(&stripe, &ranges).await;
            drop(pin);
            Finished::Read(Answer { stripe: stripe.address(), expected, result })
        }));
    }

    /// A long read of several extents: what the map said when it began is read to the end.
    fn get(&mut self, coordinator: &Coordinator, work: &mut Work) {
        let there = self.with_life(&[Life::Live]);
        let mut questions = Vec::new();
        for _ in 0..GET_MAX {
            if let Some(id) = self.dice.pick(&there) {
                questions.push(self.question(coordinator, &self.extents[id]));
            }
        }
        let pauses: Vec<u64> = questions.iter().map(|_| self.dice.below(120)).collect();
        event!(self.trace, "get of {} extents", questions.len());
        let engine = coordinator.engine.clone();
        let pinned = self.plan.weakness != Some(Weakness::ReadersNotPinned);
        let pin = pinned.then(|| coordinator.pins.pin());
        work.push(Box::pin(async move {
            let mut answers = Vec::new();
            for ((stripe, ranges, expected), pause) in questions.into_iter().zip(pauses) {
                tokio::time::sleep(Duration::from_millis(pause)).await;
                let result = engine.read(&stripe, &ranges).await;
                answers.push(Answer { stripe: stripe.address(), expected, result });
            }
            Finished::Get(answers, pin)
        }));
    }

    /// A transaction deletes an extent; it is not durable yet.
    fn delete(&mut self, coordinator: &Coordinator) -> Result<(), Violation> {
        let quiet = |extent: &Extent| extent.sectors().into_iter().all(|sector| self.oracle.is_quiet(sector));
        let there: Vec<u64> =
            self.with_life(&[Life::Live]).into_iter().filter(|id| quiet(&self.extents[id])).collect();
        let Some(id) = self.dice.pick(&there).copied() else { return Ok(()) };
        event!(self.trace, "extent {id} is deleted");
        if let Some(extent) = self.extents.get_mut(&id) {
            extent.life = Life::Deleted;
            let logical = extent.logical(&self.geometry);
            if self.plan.weakness == Some(Weakness::FreedAtDelete) {
                return self.free(coordinator, logical);
            }
        }
        Ok(())
    }

    /// The transaction is durable.
    fn commit(&mut self, coordinator: &Coordinator) -> Result<(), Violation> {
        let mut freed = Vec::new();
        self.commits += 1;
        for extent in self.extents.values_mut() {
            match extent.life {
                Life::Added => extent.life = Life::Live,
                Life::Deleted => {
                    extent.life = Life::Pinned;
                    freed.push(extent.stored(&self.geometry));
                }
                Life::Writing | Life::Live | Life::Pinned => {}
            }
        }
        event!(self.trace, "commit {}: {} extents deleted", self.commits, freed.len());
        if self.plan.weakness != Some(Weakness::FreedAtDelete) {
            coordinator.pins.freed(self.commits, freed);
        } else {
            self.extents.retain(|_, extent| extent.life != Life::Pinned);
        }
        self.release(coordinator)
    }

    /// Gives an extent's sectors back. Some change on their disks right away: nobody has to notice that.
    pub(super) fn free(&mut self, coordinator: &Coordinator, logical: Logical) -> Result<(), Violation> {
        let found = self.extents.iter().find(|(_, extent)| {
            extent.logical(&self.geometry) == logical && matches!(extent.life, Life::Pinned | Life::Deleted)
        });
        let Some((id, extent)) = found.map(|(id, extent)| (*id, *extent)) else {
            return Err(Violation::new(
                SPACE,
                format!("logical {} was freed, and nobody deleted it", logical.0),
            ));
        };
        event!(self.trace, "extent {id} is freed");
        let stripe = coordinator.engine.extents.stripe(extent.stripe);
        let key = coordinator.engine.cache_key(&stripe);
        let old: Vec<(usize, Option<Bytes>)> = extent
            .sectors()
            .into_iter()
            .map(|(_, sector)| {
                let pages =
                    coordinator.engine.cache().peek(&key).and_then(|pages| pages.get(sector).cloned());
                (sector, pages)
            })
            .collect();
        coordinator.engine.free(logical, (extent.sectors * SECTOR_BYTES) as u64);
        self.stats.freed += extent.sectors as u64;
        let owned = coordinator.engine.cache().is_owned(&key);
        self.stats.freed_in_flight += if owned { extent.sectors as u64 } else { 0 };
        if let Some(pages) = coordinator.engine.cache().peek(&key) {
            cache::check_freed(pages, old.iter().map(|(sector, _)| *sector), |_, _| true)?;
        }
        let changed = self.change_freed(coordinator, &extent);
        let mut writers = self.writing.iter().filter(|(_, stripe)| **stripe == extent.stripe);
        // What a member that does not answer holds may be rebuilt from the others, as it was before it changed.
        let faults = self.plan.faults;
        let all_answer = !(faults.lost || faults.lines || faults.short || faults.disks || faults.agents);
        if let (true, Some((order, _)), None) = (owned && all_answer, writers.next(), writers.next()) {
            self.watched.push(Watched { order: *order, stripe: extent.stripe, old: changed });
        }
        if self.plan.weakness != Some(Weakness::FreedAtDelete) {
            self.forget(id);
        }
        Ok(())
    }

    /// Changes some freed sectors on their disks; those, with the bytes that they had.
    fn change_freed(&mut self, coordinator: &Coordinator, extent: &Extent) -> Vec<(usize, Bytes)> {
        let units = self.geometry.unit_sectors();
        let stripe = coordinator.engine.extents.stripe(extent.stripe);
        let mut changed = Vec::new();
        for (_, sector) in extent.sectors() {
            let (shard, in_unit) = (sector / units, sector % units);
            let (member, _) = coordinator.place(&stripe, shard);
            if !self.plan.faults.flips || !self.plan.faulty.contains(&member) || self.dice.of_thousand(400) {
                continue;
            }
            let before = coordinator.raw_sector(&stripe, shard, in_unit);
            if coordinator.flip(&stripe, shard, in_unit) {
                self.stats.flips += 1;
                event!(self.trace, "freed sector {sector} of {:?} changes on its disk", extent.stripe);
                changed.extend(before.map(|before| (sector, before.into())));
            }
        }
        changed
    }

    fn disturb_cache(&mut self, coordinator: &Coordinator) {
        let mut cache = coordinator.engine.cache();
        match self.dice.below(3) {
            0 => cache.clear(),
            1 => cache.set_capacity(self.dice.between(0, 40) as usize * 8192),
            _ => cache.set_capacity(stripeset_coordinator::engine::CACHE_BYTES),
        }
        event!(self.trace, "the cache has {} bytes", cache.capacity_bytes());
    }

    /// All stripes of all chunks.
    pub(super) fn all_stripes(&self, coordinator: &Coordinator) -> Vec<StripeRef> {
        let chunks = coordinator.engine.extents.chunks.all();
        let rows = self.geometry.rows();
        let stripe = |chunk: &std::sync::Arc<stripeset_coordinator::extents::Chunk>, row: u32| StripeRef {
            chunk: chunk.clone(),
            row: Row(row),
        };
        chunks.iter().flat_map(|chunk| (0..rows).map(|row| stripe(chunk, row)).collect::<Vec<_>>()).collect()
    }
}
