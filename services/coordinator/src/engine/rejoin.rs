//! Takes a member back that was out: what it missed is rebuilt, window by window, and each window is let in by a revision
//! of the label.
//!
//! 1. A stripe below the cursor in the label is as the other members have it, and writes wait for the member there. Above
//!    it nothing of the member counts, and nothing is written to it but rebuilt shards.
//! 2. Between the last look at a window and the revision that lets it in nothing in it is written: the gate is closed. What
//!    was written while the window was rebuilt is rebuilt once more.
//! 3. What has to be rebuilt is whatever happened on the others since the member was last known to have everything, and
//!    what is pending on the member itself. Every write that was decided is on at least one member that is asked.
//! 4. What goes to the member is verified, as every rebuilt shard is. An empty stripe is discarded there.
//!
//! Decides nothing about when (`array::rejoin`).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures_util::{StreamExt, TryStreamExt, future::try_join_all, stream};
use stripeset_proto::{
    Error,
    v1::{self, session_request::Operation},
};
use stripeset_stripe::geometry::{ChunkIndex, Row, StripeAddress};
use thiserror::Error;

use super::{Engine, damage::RebuildError, gather::Gather, locks::Stripes};
use crate::{
    extents::{Chunk, StripeRef},
    members::{Member, MemberIndex, labels::ReviseError},
};

/// Most stripes of a window that have to be rebuilt.
const WINDOW_STRIPES: usize = 512;

/// Stripes that are rebuilt at a time.
const AT_A_TIME: usize = 8;

/// How often stripes that were written meanwhile are rebuilt before the gate is closed over the rest.
const ROUNDS: usize = 4;

/// So few are left for behind the gate at once.
const FEW_STRIPES: usize = 16;

/// How long the gate waits for those inside: a write whose outcome is open may hold its stripe for long.
const GATE_PATIENCE: Duration = Duration::from_secs(2);

/// Why a member was not taken back.
#[derive(Debug, Error)]
pub enum RejoinError {
    /// A member whose word is needed does not serve.
    #[error("member {0} is needed, and does not serve")]
    Needed(MemberIndex),
    /// A member did not show its units.
    #[error("units could not be listed: {0}")]
    List(#[from] Error),
    /// A shard could not be rebuilt.
    #[error("stripe {stripe:?}: {source}")]
    Rebuild {
        /// The stripe.
        stripe: StripeAddress,
        /// Why not.
        source: RebuildError,
    },
    /// A write holds one of the stripes for too long.
    #[error("a write whose outcome is open holds a stripe")]
    Held,
    /// The label was not revised, or another revision came first.
    #[error("it was not let in: {0}")]
    NotLetIn(String),
    /// Another coordinator has taken the array over.
    #[error("another coordinator has taken the array over")]
    Deposed,
}

/// What was done in a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WindowDone {
    /// Stripes rebuilt, those rebuilt again counted again.
    pub stripes: usize,
    /// The member is in sync whole.
    pub is_last: bool,
    /// Where the next window begins.
    pub cursor: StripeAddress,
}

/// Windows that are being taken back, and what was written in them without the member.
#[derive(Default)]
pub struct Rejoins {
    windows: Mutex<BTreeMap<MemberIndex, Window>>,
}

struct Window {
    stripes: Stripes,
    missed: BTreeSet<StripeAddress>,
}

/// Watches a window until it is dropped.
struct Watch<'a> {
    rejoins: &'a Rejoins,
    member: MemberIndex,
}

impl Rejoins {
    fn windows(&self) -> MutexGuard<'_, BTreeMap<MemberIndex, Window>> {
        self.windows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn watch(&self, member: MemberIndex, from: StripeAddress) -> Watch<'_> {
        let window = Window { stripes: Stripes { from, to: None }, missed: BTreeSet::new() };
        self.windows().insert(member, window);
        Watch { rejoins: self, member }
    }

    /// A write was decided, or taken back, without a member. Called with the stripe held.
    pub(super) fn missed(&self, member: MemberIndex, stripe: StripeAddress) {
        if let Some(window) = self.windows().get_mut(&member)
            && window.stripes.contain(stripe)
        {
            window.missed.insert(stripe);
        }
    }
}

impl Watch<'_> {
    /// The window ends here: what lies behind it will be found when its time comes.
    fn end_at(&self, to: Option<StripeAddress>) {
        if let (Some(window), Some(end)) = (self.rejoins.windows().get_mut(&self.member), to) {
            window.stripes.to = to;
            window.missed.split_off(&end);
        }
    }

    /// What was written without the member since the last time this was asked.
    fn take(&self) -> Vec<StripeAddress> {
        let mut windows = self.rejoins.windows();
        let missed = windows.get_mut(&self.member).map(|window| std::mem::take(&mut window.missed));
        missed.into_iter().flatten().collect()
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        self.rejoins.windows().remove(&self.member);
    }
}

impl Engine {
    /// Takes the next window of a member back.
    pub async fn take_back_window(self: &Arc<Self>, index: MemberIndex) -> Result<WindowDone, RejoinError> {
        let member = self.members.get(index).clone();
        let Some(out) = member.standing().out else {
            return Ok(WindowDone { is_last: true, ..WindowDone::default() });
        };
        let from = out.cursor;
        let watch = self.rejoins.watch(index, from);
        let (changed, to) = self.to_rebuild(&member, from, out.since).await?;
        watch.end_at(to);
        let mut done = changed.len();
        self.rebuild_all(index, changed, true).await?;
        for _ in 0..ROUNDS {
            let missed = watch.take();
            if missed.is_empty() {
                break;
            }
            done += missed.len();
            let is_few = missed.len() <= FEW_STRIPES;
            self.rebuild_all(index, missed, true).await?;
            if is_few {
                break;
            }
        }
        let closing = self.locks.close(Stripes { from, to });
        let Ok(_gate) = tokio::time::timeout(GATE_PATIENCE, closing).await else {
            return Err(RejoinError::Held);
        };
        let missed = watch.take();
        done += missed.len();
        self.rebuild_all(index, missed, false).await?;
        match self.members.let_in(index, to, &self.extents.chunks).await {
            Ok(true) => Ok(WindowDone { stripes: done, is_last: to.is_none(), cursor: to.unwrap_or(from) }),
            Ok(false) => {
                Err(RejoinError::NotLetIn("the label was revised for another reason meanwhile".to_owned()))
            }
            Err(ReviseError::Deposed(message)) => {
                self.depose(format!("a member refused this epoch: {message}"));
                Err(RejoinError::Deposed)
            }
            Err(error) => Err(RejoinError::NotLetIn(error.to_string())),
        }
    }

    /// Stripes from `from` on of which the member does not have everything, and where the window ends; `None` if
    /// nowhere.
    async fn to_rebuild(
        &self,
        member: &Member,
        from: StripeAddress,
        since: stripeset_stripe::Version,
    ) -> Result<(Vec<StripeAddress>, Option<StripeAddress>), RejoinError> {
        let Some(units) = member.link.units() else { return Err(RejoinError::Needed(member.index)) };
        let mut pending: BTreeMap<ChunkIndex, Vec<Row>> = BTreeMap::new();
        for identity in units.pending().await? {
            let chunk = self.extents.chunks.get(identity.chunk);
            if chunk.is_some_and(|chunk| chunk.incarnation == identity.incarnation) {
                pending.entry(identity.chunk).or_default().push(identity.row);
            }
        }
        let mut window = Vec::new();
        for chunk in self.extents.chunks.all() {
            let is_on = chunk.slices.iter().any(|slice| slice.member == member.index);
            if chunk.index < from.chunk || !is_on {
                continue;
            }
            let mut rows = self.changed_rows(&chunk, member.index, since).await?;
            rows.extend(pending.get(&chunk.index).into_iter().flatten());
            let stripes = rows.into_iter().map(|row| StripeAddress { chunk: chunk.index, row });
            window.extend(stripes.filter(|stripe| *stripe >= from));
            if window.len() > WINDOW_STRIPES {
                let end = window[WINDOW_STRIPES];
                window.truncate(WINDOW_STRIPES);
                return Ok((window, Some(end)));
            }
        }
        Ok((window, None))
    }

    /// Rows of a chunk in which anything happened after a version, on any member that counts.
    async fn changed_rows(
        &self,
        chunk: &Chunk,
        without: MemberIndex,
        since: stripeset_stripe::Version,
    ) -> Result<BTreeSet<Row>, RejoinError> {
        let start = StripeAddress { chunk: chunk.index, row: Row(0) };
        let others = chunk
            .slices
            .iter()
            .filter(|slice| slice.member != without && self.members.get(slice.member).counts_at(start));
        let lists = others.map(|slice| async move {
            let member = self.members.get(slice.member);
            let units = member.link.units().filter(|_| member.in_service());
            let Some(units) = units else { return Err(RejoinError::Needed(slice.member)) };
            let first = chunk.geometry.unit(slice.number, Row(0));
            let changed = units.changed(first..first + u64::from(chunk.geometry.rows()), since).await?;
            Ok(changed.into_iter().map(|unit| Row((unit - first) as u32)).collect::<Vec<_>>())
        });
        Ok(try_join_all(lists).await?.into_iter().flatten().collect())
    }

    async fn rebuild_all(
        self: &Arc<Self>,
        member: MemberIndex,
        stripes: Vec<StripeAddress>,
        lock: bool,
    ) -> Result<(), RejoinError> {
        stream::iter(stripes)
            .map(|address| async move {
                let stripe = self.extents.stripe(address);
                let _owned = if lock { Some(self.own(&stripe).await) } else { None };
                let rebuilt = self.rebuild_member(&stripe, member).await;
                rebuilt.map_err(|source| RejoinError::Rebuild { stripe: address, source })
            })
            .buffer_unordered(AT_A_TIME)
            .try_collect()
            .await
    }

    /// Rebuilds what a member has of a stripe, or discards it if the stripe is empty. Called with the stripe held, or behind
    /// the gate.
    async fn rebuild_member(
        self: &Arc<Self>,
        stripe: &StripeRef,
        index: MemberIndex,
    ) -> Result<(), RebuildError> {
        for shard in stripe.shards().filter(|shard| stripe.place(*shard).member == index) {
            if self.extents.is_empty(stripe.address()) {
                self.discard_shard(stripe, shard).await?;
                continue;
            }
            let unit_sectors = stripe.geometry().unit_sectors() as u32;
            let whole = Gather { first_sector: 0, sectors: unit_sectors, patient: true, without: 0 };
            let gathered = self.gather(stripe, whole).await;
            if gathered.nothing_there {
                // Allocated, and never written.
                self.discard_shard(stripe, shard).await?;
                continue;
            }
            if gathered.summary.is_none() {
                // The parities get a vector that pages in the cache do not know.
                self.forget_pages(stripe);
            }
            let all_answered = gathered.all_answered;
            match self.content(stripe, shard, gathered) {
                Some(content) => self.send_rebuild(stripe, shard, content).await?,
                None if !all_answered => return Err(RebuildError::NotNow),
                None => {
                    // Too much of it is bad on the others. What the member has must not pass for what it should have: it
                    // becomes a hole, and the stripe is refused.
                    let (member, stripe_lost) = (index.0, stripe.address());
                    tracing::error!(member, stripe = ?stripe_lost, "a shard is lost");
                    self.discard_shard(stripe, shard).await?;
                }
            }
        }
        Ok(())
    }

    fn forget_pages(&self, stripe: &StripeRef) {
        let key = self.cache_key(stripe);
        let mut cache = self.cache();
        if let Some(pages) = cache.begin(key) {
            cache.count_other(&pages);
        }
        cache.give_up(key);
    }

    async fn discard_shard(
        &self,
        stripe: &StripeRef,
        shard: stripeset_stripe::geometry::Shard,
    ) -> Result<(), RebuildError> {
        let place = stripe.place(shard);
        let version = Some(self.versions.take().into());
        let writes = vec![v1::UnitVersion { unit: place.unit, version }];
        let discard = Operation::Discard(v1::DiscardOperation { writes });
        self.member_of(stripe, shard).link.call(discard, 0).await?;
        Ok(())
    }
}
