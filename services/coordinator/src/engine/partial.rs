//! Writing into a stripe that holds others: read-modify-write.
//!
//! Decides what is read and from where: the pages of the write before, or of the cache, else the members by the plan. A
//! stripe that is not as it should be is looked at as a whole, repaired, and its bad sectors are written again with the
//! write.
//!
//! 1. No byte flows into parity that was not verified: pages were, when they were read or written; what is read is checked
//!    against what the parities know of it.
//! 2. Pages stay with the write until it is decided, and are gone if it fails.

use std::sync::Arc;

use bytes::Bytes;
use stripeset_stripe::{
    SECTOR_BYTES, Version,
    bits::Bits,
    cache::{Class, Insert, Mode, Pages},
    plan::{Content, Kind, Plan, plan},
    summary::Summary,
};

use super::{
    Engine, Weak,
    change::Change,
    gather::{Damage, Gather, Gathered},
    new_bytes::NewBytes,
    owned::Owned,
    steps::Step,
    write::WriteError,
};
use crate::extents::StripeRef;

/// A write that was decided.
pub(super) struct Written {
    pub(super) version: Version,
    pub(super) owned: Owned,
    /// What is known of the stripe now; none if the stripe was filled, or nothing is to be cached.
    pub(super) pages: Option<Pages<Bytes>>,
}

impl Engine {
    /// Writes over what the pages and the members have. `pages` are those that the cache, or the write before, had.
    pub(super) async fn write_planned(
        self: &Arc<Self>,
        owned: Owned,
        stripe: &StripeRef,
        new: &NewBytes,
        mut pages: Option<Pages<Bytes>>,
    ) -> Result<Written, WriteError> {
        let geometry = stripe.geometry();
        let covered = new.covered(geometry.stripe_sectors());
        let plan = self.plan_partial(stripe, &covered, pages.as_ref());
        let known = pages.as_ref().map(|pages| &pages.summary);
        let Some(fetched) = self.fetch(stripe, &plan, known).await else {
            return self.write_thoroughly(owned, stripe, new, pages).await;
        };
        self.steps.pass(Step::RmwRead).await;
        self.count_partial(pages.as_mut(), &plan, &covered, plan.reads());
        let write = self.versions.take_for_write();
        let version = write.version();
        let change = Change {
            stripe,
            version,
            new,
            touched: &plan.touched,
            delta: &plan.delta,
            bases: fetched.summary.vector.iter().copied().map(Some).collect(),
            before: fetched.summary,
        };
        let old = |sector: usize| {
            let page = pages.as_ref().and_then(|pages| pages.get(sector)).cloned();
            page.or_else(|| fetched.data.get(&sector).cloned())
        };
        let old_parity = |parity: usize, vertical: usize| fetched.parity.get(&(parity, vertical)).cloned();
        let (operations, after) = change.operations(&self.codec, old, old_parity);
        let mut kept = self.kept(pages, &after, &covered);
        if let Some(kept) = &mut kept {
            for (sector, bytes) in fetched.data {
                kept.set(sector, Bytes::copy_from_slice(&bytes));
            }
            set_new(kept, new);
            if self.is_weak(Weak::UncertainCached) {
                self.cache().finish(self.cache_key(stripe), kept.clone(), Insert::Partial);
            }
        }
        let owned = self.decide(owned, stripe, write, operations).await?;
        Ok(Written { version, owned, pages: kept })
    }

    /// How the covered data sectors would be written with these pages.
    pub fn plan_partial(&self, stripe: &StripeRef, covered: &Bits, pages: Option<&Pages<Bytes>>) -> Plan {
        let content = |sector: usize| match pages {
            Some(pages) if pages.knows(sector) => Content::Known,
            // What was freed was not vouched for since; and what is written now was freed before it was allocated.
            Some(_) if !covered.get(sector) && self.extents.live(stripe.address(), sector) => Content::Agreed,
            _ => Content::Unsure,
        };
        plan(stripe.geometry(), covered, content, self.reading())
    }

    /// Looks at the verticals on all members, repairs what can be repaired, and writes. `taken` are pages that are of no use
    /// any more, but were taken.
    pub(super) async fn write_thoroughly(
        self: &Arc<Self>,
        owned: Owned,
        stripe: &StripeRef,
        new: &NewBytes,
        taken: Option<Pages<Bytes>>,
    ) -> Result<Written, WriteError> {
        let geometry = stripe.geometry();
        let covered = new.covered(geometry.stripe_sectors());
        let verticals = || covered.iter_ones().map(|sector| sector % geometry.unit_sectors());
        let (first, last) = (verticals().min().unwrap_or(0), verticals().max().unwrap_or(0));
        let hasty = Gather {
            first_sector: first as u32,
            sectors: (last - first + 1) as u32,
            patient: false,
            without: 0,
        };
        let range = Gather { patient: true, ..hasty };
        let mut gathered = self.gather(stripe, hasty).await;
        let whole_shards = gathered.damage.iter().any(|damage| matches!(damage, Damage::Shard(_)));
        if gathered.absent_might_help || gathered.summary.is_none() || whole_shards {
            // Who is slow may be the one that knows better.
            gathered = self.gather(stripe, range).await;
        }
        self.count_damage(stripe, &gathered);
        if self.rebuild_damaged_shards(stripe, &gathered).await {
            gathered = self.gather(stripe, range).await;
        }
        self.steps.pass(Step::RmwRead).await;
        let plan = plan(geometry, &covered, |_| Content::Unsure, self.reading());
        self.write_gathered(owned, stripe, &gathered, new, Some((taken, plan))).await
    }

    /// Writes new bytes, and with them the right ones over bad sectors of the range. `attempt` is what is counted of it.
    pub(super) async fn write_gathered(
        self: &Arc<Self>,
        owned: Owned,
        stripe: &StripeRef,
        gathered: &Gathered,
        new: &NewBytes,
        attempt: Option<(Option<Pages<Bytes>>, Plan)>,
    ) -> Result<Written, WriteError> {
        let geometry = stripe.geometry();
        let (k, unit_sectors) = (geometry.profile().data_shards(), geometry.unit_sectors());
        // Parities that answer, and of which none can be believed: what they know of other sectors must not be lost.
        if gathered.summary.is_none() && gathered.versions[k..].iter().any(Option::is_some) {
            return Err(WriteError::ParityStale);
        }
        let covered = new.covered(geometry.stripe_sectors());
        let mut all = self.settle_bad(stripe, gathered, &covered)?;
        for (first, data) in new.pieces() {
            all.put(first, data.clone());
        }
        if let Some((mut taken, plan)) = attempt {
            self.count_partial(taken.as_mut(), &plan, &covered, true);
        }
        let written = all.covered(geometry.stripe_sectors());
        let mut touched = damaged_parity(gathered, k, unit_sectors);
        written.iter_ones().for_each(|sector| touched.set(sector % unit_sectors, true));
        let write = self.versions.take_for_write();
        let version = write.version();
        let change = Change {
            stripe,
            version,
            new: &all,
            touched: &touched,
            delta: &Bits::new(unit_sectors),
            bases: match &gathered.summary {
                Some(summary) => summary.vector.iter().copied().map(Some).collect(),
                None => gathered.versions.clone(),
            },
            before: gathered.summary.clone().unwrap_or_else(|| Summary::empty(geometry)),
        };
        let old = |sector: usize| gathered.sector(unit_sectors, sector);
        let (operations, after) = change.operations(&self.codec, old, |_, _| None);
        let owned = self.decide(owned, stripe, write, operations).await?;
        self.count_corrected(stripe, gathered);
        let mut kept = gathered.summary.as_ref().and_then(|_| self.kept(None, &after, &covered));
        if let Some(kept) = &mut kept {
            for sector in 0..geometry.stripe_sectors() {
                if let Some(bytes) = gathered.sector(unit_sectors, sector) {
                    kept.set(sector, Bytes::copy_from_slice(&bytes));
                }
            }
            set_new(kept, &all);
        }
        Ok(Written { version, owned, pages: kept })
    }

    /// What has to be written because it is bad: sectors that were rebuilt, and zeros for dead ones that are lost. A live one
    /// that is lost forbids the write.
    fn settle_bad(
        &self,
        stripe: &StripeRef,
        gathered: &Gathered,
        covered: &Bits,
    ) -> Result<NewBytes, WriteError> {
        let unit_sectors = stripe.geometry().unit_sectors();
        let index =
            |shard: usize, sector: usize| shard * unit_sectors + gathered.first_sector as usize + sector;
        let mut bad = NewBytes::default();
        for damage in &gathered.damage {
            let Damage::Sectors { shard, bad: sectors } = damage else { continue };
            let shard = usize::from(shard.0);
            for sector in sectors.iter_ones() {
                if let Some(bytes) = gathered.sector(unit_sectors, index(shard, sector))
                    && shard < gathered.data.len()
                {
                    bad.put(index(shard, sector), bytes);
                }
            }
        }
        for (shard, column) in gathered.data.iter().enumerate() {
            for sector in column.lost.iter_ones().filter(|sector| !covered.get(index(shard, *sector))) {
                if self.extents.live(stripe.address(), index(shard, sector)) {
                    return Err(if gathered.absent_might_help && self.is_being_resolved(stripe) {
                        WriteError::BeingResolved
                    } else if gathered.absent_might_help {
                        WriteError::NeighbourAway { members: self.away(stripe) }
                    } else {
                        let shard = stripeset_stripe::geometry::Shard(shard as u8);
                        WriteError::NeighbourLost { logical: gathered.logical(stripe, shard, sector).0 }
                    });
                }
                bad.put(index(shard, sector), Bytes::from_static(&[0; SECTOR_BYTES]));
            }
        }
        Ok(bad)
    }

    /// Counts an attempt that computes parity. One that covers its stripe is no partial write.
    fn count_partial(&self, pages: Option<&mut Pages<Bytes>>, plan: &Plan, covered: &Bits, read: bool) {
        let mut cache = self.cache();
        match (plan.kind, pages) {
            (Kind::Full, Some(pages)) => cache.count_other(pages),
            (Kind::Full, None) => {}
            (_, pages) => cache.count_partial(Class::Data, pages, plan, covered, read),
        }
    }

    /// The pages to go on with, with the summary as it is now; none if nothing is to be kept.
    fn kept(&self, pages: Option<Pages<Bytes>>, after: &Summary, covered: &Bits) -> Option<Pages<Bytes>> {
        if covered.all() || self.cache().mode() == Mode::Off {
            return None;
        }
        let mut pages = pages.unwrap_or_else(|| Pages::new(Class::Data, after.clone()));
        pages.summary = after.clone();
        Some(pages)
    }
}

/// A page has memory of its own: a slice would keep a whole message.
fn set_new(pages: &mut Pages<Bytes>, new: &NewBytes) {
    for (first, data) in new.pieces() {
        for (sector, page) in (first..).zip(data.chunks_exact(SECTOR_BYTES)) {
            pages.set(sector, Bytes::copy_from_slice(page));
        }
    }
}

/// Verticals in which a parity is bad.
fn damaged_parity(gathered: &Gathered, data_shards: usize, unit_sectors: usize) -> Bits {
    let mut verticals = Bits::new(unit_sectors);
    for damage in &gathered.damage {
        if let Damage::Sectors { shard, bad } = damage
            && usize::from(shard.0) >= data_shards
        {
            bad.iter_ones().for_each(|sector| verticals.set(gathered.first_sector as usize + sector, true));
        }
    }
    verticals
}
