//! What happens: extents are made, overwritten, read, deleted, in parallel and at random, while faults come and go and
//! coordinators die; and when all is quiet, everything is looked at.
//!
//! Extents are made and deleted by transactions, as the map of objects does it: what a transaction changed is durable once
//! it is committed, and undone if the coordinator dies before. What it freed stays pinned until then, and for as long as a
//! reader has it.

mod actions;
mod faults;
mod rest;
mod rivals;

use std::{
    collections::{BTreeMap, BTreeSet},
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use futures_util::{StreamExt, stream::FuturesUnordered};
use stripeset_coordinator::{
    engine::{Edit, ReadError, WriteError},
    extents::pins::Pin as ReaderPin,
    members::labels::ReviseError,
    meta::Extent as Stored,
};
use stripeset_stripe::{
    SECTOR_BYTES, Version,
    cache::Class,
    geometry::{Geometry, Logical, Shard, StripeAddress},
};

use self::rivals::Rivals;
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

/// What a read gives.
pub const SERVED: &str = "a read returns what was written, or an error";

/// Within what the profile bears everything goes on.
pub const TOLERATED: &str = "with at most m members at fault nothing is lost";

/// One rules.
pub const ONE_RULES: &str = "a deposed coordinator changes nothing and acknowledges nothing";

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

/// What came of reading one extent.
struct Answer {
    stripe: StripeAddress,
    expected: Vec<Expected>,
    result: Result<Vec<Bytes>, ReadError>,
}

/// What came of a write.
struct Written {
    extent: u64,
    order: Order,
    sectors: Vec<Sector>,
    /// The extent is in no map yet.
    new: bool,
    result: Result<Version, Arc<WriteError>>,
}

/// What came of something that was going on.
enum Finished {
    Write(Written),
    Read(Answer),
    /// A get of several extents, one after the other; what it pinned is let go of.
    Get(Vec<Answer>, Option<ReaderPin>),
    /// A disk was to be replaced by a blank one.
    Replaced(usize, Result<(), ReviseError>),
    /// A write that a deposed coordinator was given.
    Rival(Result<Version, Arc<WriteError>>),
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
    forged: BTreeSet<(StripeAddress, usize)>,
    /// Numbers of writes that deposed coordinators are given; the oracle permits none of them.
    next_rival: Order,
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
            forged: BTreeSet::new(),
            next_rival: Order::MAX,
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
        let mut rivals = Rivals::default();
        let rival_at = self.dice.of_thousand(self.plan.rivals * 10).then(|| self.dice.below(steps.max(1)));
        let mut successor = None;
        for step in 0..steps {
            let mut coordinator = successor.as_ref().unwrap_or(coordinator);
            if rival_at == Some(step) {
                let deposed = coordinator.engine.clone();
                match self.depose(cluster, &mut work, &mut rivals, deposed).await? {
                    Some(next) => coordinator = successor.insert(next),
                    None => return Ok(()),
                }
            }
            let pause = tokio::time::sleep(Duration::from_millis(self.dice.below(12)));
            tokio::pin!(pause);
            loop {
                tokio::select! {
                    biased;
                    Some(finished) = work.next(), if !work.is_empty() => {
                        self.finished(coordinator, finished)?;
                    }
                    Some(finished) = rivals.work.next(), if !rivals.work.is_empty() => {
                        self.finished_late(finished)?;
                    }
                    () = &mut pause => break,
                }
            }
            self.act(cluster, coordinator, &mut work).await?;
            self.provoke(&rivals, coordinator);
            self.check_counters(coordinator)?;
            self.stats.steps += 1;
        }
        let coordinator = successor.as_ref().unwrap_or(coordinator);
        if last {
            self.heal(cluster);
            self.end(coordinator, &mut work).await?;
            self.end_late(&mut rivals).await?;
            self.rest(cluster, coordinator).await?;
        }
        self.account(coordinator);
        Ok(())
    }

    /// Waits for all that is going on.
    async fn end(&mut self, coordinator: &Coordinator, work: &mut Work) -> Result<(), Violation> {
        let limit = tokio::time::Instant::now() + QUIET_LIMIT;
        while !work.is_empty() {
            match tokio::time::timeout_at(limit, work.next()).await {
                Ok(Some(finished)) => self.finished(coordinator, finished)?,
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
        self.undo();
    }

    /// What was not durable is unknown to whoever takes over.
    fn undo(&mut self) {
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

    fn finished(&mut self, coordinator: &Coordinator, finished: Finished) -> Result<(), Violation> {
        match finished {
            Finished::Write(write) => {
                self.writing.remove(&write.order);
                self.written(coordinator, &write)?;
                self.check_watched(coordinator, write.order, write.result.ok())
            }
            Finished::Read(answer) => self.was_read(&answer),
            Finished::Rival(result) => self.rival_wrote(&result),
            Finished::Replaced(member, result) => {
                event!(self.trace, "member {member}: a blank disk stands for it: {result:?}");
                Ok(())
            }
            Finished::Get(answers, pin) => {
                answers.iter().try_for_each(|answer| self.was_read(answer))?;
                drop(pin);
                self.release(coordinator)
            }
        }
    }

    fn written(&mut self, coordinator: &Coordinator, write: &Written) -> Result<(), Violation> {
        let Written { extent: id, order, sectors, new, result } = write;
        let error = match result {
            Ok(version) => {
                event!(self.trace, "write {order} is acknowledged at {version}");
                self.stats.writes += 1;
                self.oracle.acknowledged(*order, sectors, *version);
                if let Some(extent) = self.extents.get_mut(id).filter(|_| *new) {
                    extent.life = Life::Added;
                }
                return Ok(());
            }
            Err(error) => error,
        };
        event!(self.trace, "write {order} fails: {error}");
        let Some((stripe, _)) = sectors.first().copied() else { return Ok(()) };
        self.check_failure(stripe, error)?;
        let key = coordinator.engine.cache_key(&coordinator.engine.extents.stripe(stripe));
        if let Some(pages) = coordinator.engine.cache().peek(&key) {
            cache::check_failed(pages, |sector, page| {
                sectors.contains(&(stripe, sector)) && *page == oracle::bytes(*order, (stripe, sector))
            })?;
        }
        if matches!(**error, WriteError::Open { .. }) {
            // Its sectors must not be used for anything else before the outcome is known; a start decides it.
            self.stats.open += 1;
            self.oracle.unknown(*order, sectors);
            return Ok(());
        }
        self.stats.failed += 1;
        self.oracle.failed(*order, sectors);
        if let Some(extent) = self.extents.get(id).copied().filter(|_| *new) {
            let length = (extent.sectors * SECTOR_BYTES) as u64;
            coordinator.engine.free(extent.logical(&self.geometry), length);
            self.forget(*id);
        }
        Ok(())
    }

    /// A sector of parity in the stripe was changed with its checksum, so that what is rebuilt from it may be lost.
    fn is_forged(&self, stripe: StripeAddress) -> bool {
        self.forged.iter().any(|(forged, _)| *forged == stripe)
    }

    /// Whether a write may fail like this.
    fn check_failure(&self, stripe: StripeAddress, error: &WriteError) -> Result<(), Violation> {
        let said =
            |invariant| Err(Violation::new(invariant, format!("a write to {stripe:?} failed: {error}")));
        match error {
            // A task of the engine is gone without a word.
            WriteError::Stopping | WriteError::Deposed => said(ENDS),
            WriteError::Refused { .. } => Ok(()),
            WriteError::NeighbourLost { .. } if self.is_forged(stripe) => Ok(()),
            _ if self.plan.tolerated => said(TOLERATED),
            _ => Ok(()),
        }
    }

    fn was_read(&mut self, answer: &Answer) -> Result<(), Violation> {
        let Answer { stripe, expected, result } = answer;
        let bytes = match result {
            Ok(bytes) => bytes,
            Err(error) => {
                event!(self.trace, "a read of {stripe:?} fails: {error}");
                self.stats.unread += 1;
                let lost = matches!(error, ReadError::Lost { .. });
                if !self.plan.tolerated || lost && self.is_forged(*stripe) {
                    return Ok(());
                }
                return Err(Violation::new(TOLERATED, format!("a read of {stripe:?} failed: {error}")));
            }
        };
        let found: Vec<&[u8]> = bytes.iter().flat_map(|bytes| bytes.chunks_exact(SECTOR_BYTES)).collect();
        if found.len() != expected.len() {
            let detail = format!("{} sectors asked for, {} came", expected.len(), found.len());
            return Err(Violation::new(SERVED, detail));
        }
        for (expected, found) in expected.iter().zip(found) {
            self.oracle.observe(expected, found).map_err(|wrong| Violation::new(SERVED, wrong))?;
        }
        self.stats.reads += 1;
        Ok(())
    }

    /// Of what was freed and changed while this write owned its stripe no page may have the old bytes, unless the write
    /// rebuilt the sector and wrote it again.
    fn check_watched(
        &mut self,
        coordinator: &Coordinator,
        order: Order,
        version: Option<Version>,
    ) -> Result<(), Violation> {
        let (done, still): (Vec<_>, Vec<_>) =
            self.watched.drain(..).partition(|watched| watched.order == order);
        self.watched = still;
        for watched in done {
            let stripe = coordinator.engine.extents.stripe(watched.stripe);
            let written = |sector: usize| {
                let shard = sector / self.geometry.unit_sectors();
                version.is_some_and(|version| coordinator.took_part(&stripe, shard, version))
            };
            let key = coordinator.engine.cache_key(&stripe);
            if let Some(pages) = coordinator.engine.cache().peek(&key) {
                let old = |sector: usize, page: &Bytes| {
                    watched.old.iter().any(|(at, old)| *at == sector && old == page) && !written(sector)
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

    fn release(&mut self, coordinator: &Coordinator) -> Result<(), Violation> {
        for freed in coordinator.pins.release() {
            self.free(coordinator, Logical(freed.logical))?;
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
