//! What happens: extents are made, overwritten, read, deleted, in parallel and at random, while faults come and go and
//! coordinators die; and when all is quiet, everything is looked at.
//!
//! Extents are made and deleted by transactions, as the map of objects does it: what a transaction changed is durable once
//! it is committed, and undone if the coordinator dies before. What it freed stays pinned until then, and for as long as a
//! reader has it.

mod actions;
mod faults;
mod rest;

use std::{collections::BTreeMap, pin::Pin, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::{StreamExt, stream::FuturesUnordered};
use stripeset_coordinator::{
    engine::{Edit, ReadError, WriteError},
    extents::pins::Pin as ReaderPin,
    meta::Extent as Stored,
};
use stripeset_stripe::{
    SECTOR_BYTES, Version,
    cache::Class,
    geometry::{Geometry, Logical, Shard, StripeAddress},
};

use crate::{
    cluster::{Cluster, Coordinator},
    dice::Dice,
    event,
    invariants::{Violation, cache},
    oracle::{self, Expected, Oracle, Order, Sector},
    plan::Plan,
    stats::Stats,
    trace::Trace,
};

/// Work that is going on at most, beside which no more is begun.
const IN_FLIGHT_MAX: usize = 12;

/// Longest that all work may take to end once every fault is over.
const QUIET_LIMIT: Duration = Duration::from_secs(600);

/// Read and write results: a value, or what it says for people.
pub const SERVED: &str = "a read returns what was written, or an error";

/// Within what the profile bears everything goes on.
pub const TOLERATED: &str = "with at most m members at fault nothing is lost";

/// All work ends.
pub const ENDS: &str = "work ends once all faults are over";

/// Space.
pub const SPACE: &str = "a sector belongs to one extent at a time";

/// How far an extent has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    /// Being written; in no map.
    Writing,
    /// Written; the transaction that adds it is not durable.
    Added,
    /// In the durable map.
    Live,
    /// The transaction that deletes it is not durable.
    Deleted,
    /// Durably deleted; a reader may have it.
    Pinned,
}

/// Neighbouring sectors of one stripe that belong together.
#[derive(Clone, Copy, Debug)]
struct Extent {
    stripe: StripeAddress,
    first: usize,
    sectors: usize,
    life: Life,
}

impl Extent {
    fn sectors(&self) -> Vec<Sector> {
        (self.first..self.first + self.sectors).map(|sector| (self.stripe, sector)).collect()
    }

    fn stored(&self, geometry: &Geometry) -> Stored {
        let start = geometry.stripe_start(self.stripe).0 + (self.first * SECTOR_BYTES) as u64;
        Stored { logical: start, length: (self.sectors * SECTOR_BYTES) as u64, version: Version::NONE }
    }

    fn logical(&self, geometry: &Geometry) -> Logical {
        Logical(self.stored(geometry).logical)
    }
}

/// What came of something that was going on.
enum Finished {
    Write {
        extent: u64,
        order: Order,
        sectors: Vec<Sector>,
        new: bool,
        result: Result<Version, Arc<WriteError>>,
    },
    Read {
        stripe: StripeAddress,
        expected: Vec<Expected>,
        result: Result<Vec<Bytes>, ReadError>,
    },
    /// A get of several extents, one after the other; what it pinned is let go of.
    Get {
        parts: Vec<(StripeAddress, Vec<Expected>, Result<Vec<Bytes>, ReadError>)>,
        pin: Option<ReaderPin>,
    },
}

type Work = FuturesUnordered<Pin<Box<dyn Future<Output = Finished>>>>;

/// Sectors that were freed, and changed on disk, while one write owned their stripe.
struct Watched {
    order: Order,
    stripe: StripeAddress,
    old: Vec<(usize, Bytes)>,
}

/// Everything that outlives a coordinator, but the cluster.
pub struct World {
    plan: Plan,
    dice: Dice,
    trace: Trace,
    oracle: Oracle,
    geometry: Geometry,
    extents: BTreeMap<u64, Extent>,
    next_extent: u64,
    commits: u64,
    /// Writes in flight, by number.
    writing: BTreeMap<Order, StripeAddress>,
    watched: Vec<Watched>,
    /// Verticals in which a sector was changed with its checksum: reconstruction may say that bytes are lost.
    forged: std::collections::BTreeSet<(StripeAddress, usize)>,
    stats: Stats,
}

impl World {
    /// A world before anything happened.
    pub fn new(plan: Plan, geometry: Geometry, trace: Trace) -> World {
        World {
            dice: Dice::new(plan.seed),
            plan,
            trace,
            oracle: Oracle::default(),
            geometry,
            extents: BTreeMap::new(),
            next_extent: 1,
            commits: 0,
            writing: BTreeMap::new(),
            watched: Vec::new(),
            forged: Default::default(),
            stats: Stats::default(),
        }
    }

    /// What was counted.
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// What the durable map refers to: what a coordinator that starts finds.
    pub fn durable(&self) -> Vec<Stored> {
        self.extents.values().map(|extent| extent.stored(&self.geometry)).collect()
    }

    /// One life of a coordinator. `last` says that it ends in quiet, with all looked at, and not in its death.
    pub async fn live(
        &mut self,
        cluster: &Cluster,
        coordinator: &Coordinator,
        steps: u64,
        last: bool,
    ) -> Result<(), Violation> {
        self.commits = 1 << 32;
        let mut work = Work::new();
        for _ in 0..steps {
            let pause = tokio::time::sleep(Duration::from_millis(self.dice.below(12)));
            tokio::pin!(pause);
            loop {
                tokio::select! {
                    biased;
                    Some(finished) = work.next(), if !work.is_empty() => {
                        self.finished(cluster, coordinator, finished)?;
                    }
                    () = &mut pause => break,
                }
            }
            self.act(cluster, coordinator, &mut work).await?;
            self.check_counters(coordinator)?;
            self.stats.steps += 1;
        }
        if last {
            self.heal(cluster);
            self.end(cluster, coordinator, &mut work).await?;
            self.rest(cluster, coordinator).await?;
        }
        self.account(cluster, coordinator);
        Ok(())
    }

    /// Waits for all that is going on.
    async fn end(
        &mut self,
        cluster: &Cluster,
        coordinator: &Coordinator,
        work: &mut Work,
    ) -> Result<(), Violation> {
        let limit = tokio::time::Instant::now() + QUIET_LIMIT;
        while !work.is_empty() {
            match tokio::time::timeout_at(limit, work.next()).await {
                Ok(Some(finished)) => self.finished(cluster, coordinator, finished)?,
                Ok(None) => break,
                Err(elapsed) => {
                    return Err(Violation::new(
                        ENDS,
                        format!("{} operations do not end: {elapsed}", work.len()),
                    ));
                }
            }
        }
        Ok(())
    }

    /// The coordinator has died: what was not durable is undone.
    pub fn crash(&mut self) {
        self.stats.crashes += 1;
        self.oracle.crashed();
        self.writing.clear();
        self.watched.clear();
        let lost: Vec<u64> = self
            .extents
            .iter_mut()
            .filter_map(|(id, extent)| match extent.life {
                Life::Writing | Life::Added | Life::Pinned => Some(*id),
                Life::Deleted => {
                    extent.life = Life::Live;
                    None
                }
                Life::Live => None,
            })
            .collect();
        for id in lost {
            self.forget(id);
        }
    }

    fn forget(&mut self, id: u64) {
        if let Some(extent) = self.extents.remove(&id) {
            extent.sectors().into_iter().for_each(|sector| self.oracle.forget(sector));
        }
    }

    fn finished(
        &mut self,
        cluster: &Cluster,
        coordinator: &Coordinator,
        finished: Finished,
    ) -> Result<(), Violation> {
        match finished {
            Finished::Write { extent, order, sectors, new, result } => {
                self.writing.remove(&order);
                self.written(coordinator, extent, order, &sectors, new, &result)?;
                self.check_watched(coordinator, order)
            }
            Finished::Read { stripe, expected, result } => self.was_read(stripe, &expected, &result),
            Finished::Get { parts, pin } => {
                for (stripe, expected, result) in &parts {
                    self.was_read(*stripe, expected, result)?;
                }
                drop(pin);
                self.release(cluster, coordinator)
            }
        }
    }

    fn written(
        &mut self,
        coordinator: &Coordinator,
        id: u64,
        order: Order,
        sectors: &[Sector],
        new: bool,
        result: &Result<Version, Arc<WriteError>>,
    ) -> Result<(), Violation> {
        let Some((stripe, _)) = sectors.first().copied() else { return Ok(()) };
        match result {
            Ok(version) => {
                event!(self.trace, "write {order} is acknowledged at {version}");
                self.stats.writes += 1;
                self.oracle.acknowledged(order, sectors, *version);
                if new && let Some(extent) = self.extents.get_mut(&id) {
                    extent.life = Life::Added;
                }
                return Ok(());
            }
            Err(error) => {
                event!(self.trace, "write {order} fails: {error}");
                self.check_failure(stripe, sectors, error)?;
                let key = coordinator.engine.cache_key(&coordinator.engine.extents.stripe(stripe));
                if let Some(pages) = coordinator.engine.cache().peek(&key) {
                    let wrote = |sector: usize, page: &Bytes| {
                        sectors.contains(&(stripe, sector)) && *page == oracle::bytes(order, (stripe, sector))
                    };
                    cache::check_failed(pages, wrote)?;
                }
            }
        }
        if matches!(result, Err(error) if matches!(**error, WriteError::Open { .. })) {
            self.stats.open += 1;
            self.oracle.unknown(order, sectors);
            // Its sectors must not be used for anything else before the outcome is known; a start decides it.
            return Ok(());
        }
        self.stats.failed += 1;
        self.oracle.failed(order, sectors);
        if new {
            let Some(extent) = self.extents.get(&id).copied() else { return Ok(()) };
            coordinator.engine.free(extent.logical(&self.geometry), (extent.sectors * SECTOR_BYTES) as u64);
            self.forget(id);
        }
        Ok(())
    }

    /// Whether a write may fail like this.
    fn check_failure(
        &self,
        stripe: StripeAddress,
        sectors: &[Sector],
        error: &WriteError,
    ) -> Result<(), Violation> {
        let said =
            |invariant| Err(Violation::new(invariant, format!("a write to {stripe:?} failed: {error}")));
        match error {
            // A task of the engine is gone without a word.
            WriteError::Stopping | WriteError::Store(_) | WriteError::Deposed => said(ENDS),
            WriteError::TooFewMembers { .. } | WriteError::Open { .. } | WriteError::NeighbourAway { .. }
                if self.plan.tolerated =>
            {
                said(TOLERATED)
            }
            WriteError::NeighbourLost { .. } if self.plan.tolerated => {
                let unit_sectors = self.geometry.unit_sectors();
                let forged = self.forged.iter().any(|(forged, _)| *forged == stripe);
                let _ = (unit_sectors, sectors);
                if forged { Ok(()) } else { said(TOLERATED) }
            }
            _ => Ok(()),
        }
    }

    fn was_read(
        &mut self,
        stripe: StripeAddress,
        expected: &[Expected],
        result: &Result<Vec<Bytes>, ReadError>,
    ) -> Result<(), Violation> {
        let bytes = match result {
            Ok(bytes) => bytes,
            Err(error) => {
                event!(self.trace, "a read of {stripe:?} fails: {error}");
                self.stats.unread += 1;
                let forged = self.forged.iter().any(|(forged, _)| *forged == stripe);
                let permitted = !self.plan.tolerated || forged && matches!(error, ReadError::Lost { .. });
                let said = || Violation::new(TOLERATED, format!("a read of {stripe:?} failed: {error}"));
                return permitted.then_some(()).ok_or_else(said);
            }
        };
        let found: Vec<&[u8]> = bytes.iter().flat_map(|bytes| bytes.chunks_exact(SECTOR_BYTES)).collect();
        if found.len() != expected.len() {
            return Err(Violation::new(
                SERVED,
                format!("{} sectors asked for, {} came", expected.len(), found.len()),
            ));
        }
        for (expected, found) in expected.iter().zip(found) {
            self.oracle.observe(expected, found).map_err(|wrong| Violation::new(SERVED, wrong))?;
        }
        self.stats.reads += 1;
        Ok(())
    }

    /// Of what was freed and changed while this write owned its stripe no page may have the old bytes.
    fn check_watched(&mut self, coordinator: &Coordinator, order: Order) -> Result<(), Violation> {
        let (done, still): (Vec<_>, Vec<_>) =
            self.watched.drain(..).partition(|watched| watched.order == order);
        self.watched = still;
        for watched in done {
            let key = coordinator.engine.cache_key(&coordinator.engine.extents.stripe(watched.stripe));
            if let Some(pages) = coordinator.engine.cache().peek(&key) {
                let old = |sector: usize, page: &Bytes| {
                    watched.old.iter().any(|(at, old)| *at == sector && old == page)
                };
                cache::check_freed(pages, watched.old.iter().map(|(sector, _)| *sector), old)?;
            }
        }
        Ok(())
    }

    fn check_counters(&self, coordinator: &Coordinator) -> Result<(), Violation> {
        let counters = Class::ALL.map(|class| coordinator.engine.cache().counters(class));
        match counters.iter().find(|counters| !counters.agree()) {
            Some(wrong) => {
                Err(Violation::new("the identities of the cache's counters", format!("{wrong:?}")))
            }
            None => Ok(()),
        }
    }

    fn release(&mut self, cluster: &Cluster, coordinator: &Coordinator) -> Result<(), Violation> {
        for freed in coordinator.pins.release() {
            self.free(cluster, coordinator, Logical(freed.logical))?;
        }
        Ok(())
    }
}

/// Edits of neighbouring sectors, cut at the ends of units.
fn edits(geometry: &Geometry, order: Order, sectors: &[Sector]) -> Vec<Edit> {
    let units = geometry.unit_sectors();
    sectors
        .iter()
        .map(|(stripe, sector)| Edit {
            shard: Shard((sector / units) as u8),
            first_sector: (sector % units) as u32,
            data: oracle::bytes(order, (*stripe, *sector)),
        })
        .collect()
}
