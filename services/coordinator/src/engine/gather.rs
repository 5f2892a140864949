//! The whole of a range of verticals: every shard that answers, verified against what the parities know, and what is
//! missing rebuilt and verified the same way. Called with the stripe lock held.
//!
//! Decides which sectors are good. Does not repair (`damage`).

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt, stream::FuturesUnordered};
use stripeset_stripe::{
    SECTOR_BYTES, Version,
    bits::Bits,
    checksum,
    geometry::{Logical, Place, Shard},
    summary::Summary,
};

use super::{
    Engine, HEDGE, Weak,
    shard::{ShardFault, ShardRead, ShardRequest},
};
use crate::extents::StripeRef;

/// The verticals wanted, and how long to wait for slow members.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gather {
    pub(super) first_sector: u32,
    pub(super) sectors: u32,
    /// Wait for every member until it answers or its link gives it up; otherwise go round slow ones.
    pub(super) patient: bool,
    /// Shards that are not asked, one bit for each: as if their members were lost.
    pub(super) without: u32,
}

/// Sectors of one data shard.
#[derive(Clone, Debug)]
pub(super) struct Column {
    pub(super) bytes: Bytes,
    /// Sectors whose bytes are not known.
    pub(super) lost: Bits,
    /// Version of the shard: as read, or as the parities know it.
    pub(super) version: Option<Version>,
    /// What the shard's own record says of its sectors, lost ones too. Only where no parity says it; none if it did not
    /// answer, or is not the one that it should be.
    pub(super) record: Option<Record>,
}

/// What the record of a shard says of a range of sectors.
#[derive(Clone, Debug)]
pub(super) struct Record {
    pub(super) checksums: Vec<u32>,
    pub(super) written: Bits,
}

/// Something on a member that answers, and is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Damage {
    /// Sectors of the range, of a data or parity shard.
    Sectors { shard: Shard, bad: Bits },
    /// The shard whole: it missed a write, or its record is damaged.
    Shard(Shard),
}

/// What was gathered.
#[derive(Clone, Debug)]
pub(super) struct Gathered {
    pub(super) first_sector: u32,
    pub(super) sectors: u32,
    /// The data shards.
    pub(super) data: Vec<Column>,
    /// What the newest parity in reach knows, if any is.
    pub(super) summary: Option<Summary>,
    /// Version of each of the n shards that answered.
    pub(super) versions: Vec<Option<Version>>,
    pub(super) damage: Vec<Damage>,
    /// A member that did not answer may hold what is lost.
    pub(super) absent_might_help: bool,
    /// Every member that counts has answered something.
    pub(super) all_answered: bool,
    /// Every member that counts has answered that it holds nothing of the stripe.
    pub(super) nothing_there: bool,
}

type Reads = Vec<Result<ShardRead, ShardFault>>;

impl Gathered {
    /// Bytes of a data sector, counted through the data shards; none if it is outside the range, or lost.
    pub(super) fn sector(&self, unit_sectors: usize, sector: usize) -> Option<Bytes> {
        let column = self.data.get(sector / unit_sectors)?;
        let index = (sector % unit_sectors).checked_sub(self.first_sector as usize)?;
        let known = index < self.sectors as usize && !column.lost.get(index);
        known.then(|| column.bytes.slice(index * SECTOR_BYTES..(index + 1) * SECTOR_BYTES))
    }

    /// Logical address of a sector of the range.
    pub(super) fn logical(&self, stripe: &StripeRef, shard: Shard, sector: usize) -> Logical {
        let sector = self.first_sector + sector as u32;
        stripe.geometry().logical(Place { stripe: stripe.address(), shard, sector, byte: 0 })
    }
}

impl Engine {
    pub(super) async fn gather(&self, stripe: &StripeRef, range: Gather) -> Gathered {
        let profile = stripe.geometry().profile();
        let (k, n) = (profile.data_shards(), profile.shards());
        let left_out = |shard: &Shard| range.without >> shard.0 & 1 == 1;
        let asked = |shard: &Shard| {
            !left_out(shard) && self.member_of(stripe, *shard).worth_asking_at(stripe.address())
        };
        let data_at_hand = (0..k as u8).map(Shard).all(|shard| asked(&shard));
        let request = |shard: Shard, sectors: u32| ShardRequest {
            shard,
            first_sector: range.first_sector,
            sectors,
            version: Version::NONE,
            summary: profile.has_summary(usize::from(shard.0)),
        };
        // Parity records are always wanted, for the vector and the checksums; parity bytes only to rebuild.
        let parity_sectors = if data_at_hand { 0 } else { range.sectors };
        let requests =
            stripe.shards().filter(|shard| range.patient && !left_out(shard) || asked(shard)).map(|shard| {
                request(shard, if usize::from(shard.0) < k { range.sectors } else { parity_sectors })
            });
        let mut reads = vec![Err(ShardFault::Absent); n];
        self.collect(stripe, requests.collect(), range.patient, &mut reads).await;
        let mut view = View::new(stripe, range.first_sector, reads);
        if data_at_hand && view.data_missing() {
            let requests =
                (k as u8..n as u8).map(Shard).filter(|shard| view.reads[usize::from(shard.0)].is_ok());
            let requests = requests.map(|shard| request(shard, range.sectors)).collect();
            self.collect(stripe, requests, range.patient, &mut view.reads).await;
            view = View::new(stripe, range.first_sector, view.reads);
        }
        view.rebuild(self, range)
    }

    /// Sends the requests and puts the answers into `reads`. Unless patient, stops waiting for slow members once the
    /// others suffice.
    async fn collect(
        &self,
        stripe: &StripeRef,
        requests: Vec<ShardRequest>,
        patient: bool,
        reads: &mut Reads,
    ) {
        let tolerated = stripe.geometry().profile().parity_shards();
        let mut waiting: FuturesUnordered<_> = requests
            .into_iter()
            .map(|request| async move { (request.shard, self.read_shard(stripe, request).await) })
            .collect();
        for_all_but_slow(&mut waiting, patient, |waiting, (shard, read)| {
            reads[usize::from(shard.0)] = read;
            let failed = reads.iter().filter(|read| read.is_err()).count();
            // Those still waiting stand in `reads` as absent, so they are counted.
            failed <= tolerated || waiting == 0
        })
        .await;
    }
}

/// Hands every answer to `take` as it comes. After [`HEDGE`], unless patient, ends as soon as `take`, told how many are
/// still waited for, says that what has come is enough.
async fn for_all_but_slow<F: Future>(
    waiting: &mut FuturesUnordered<F>,
    patient: bool,
    mut take: impl FnMut(usize, F::Output) -> bool,
) {
    let patience = tokio::time::sleep(if patient { Duration::MAX } else { HEDGE });
    tokio::pin!(patience);
    let (mut enough, mut late) = (false, false);
    loop {
        tokio::select! {
            // What has come is taken before the time is looked at.
            biased;
            answer = waiting.next() => match answer {
                Some(answer) => enough = take(waiting.len(), answer),
                None => return,
            },
            () = &mut patience, if !late => late = true,
        }
        if late && enough {
            return;
        }
    }
}

/// The answers of all shards, judged.
struct View<'a> {
    stripe: &'a StripeRef,
    first_sector: usize,
    reads: Reads,
    summary: Option<Summary>,
    /// Shards that are not what the vector says.
    stale: Vec<bool>,
}

impl<'a> View<'a> {
    fn new(stripe: &'a StripeRef, first_sector: u32, reads: Reads) -> Self {
        let k = stripe.geometry().profile().data_shards();
        let newest =
            reads.iter().flatten().filter(|read| read.summary.is_some()).max_by_key(|read| read.version);
        let mut summary = newest.and_then(|read| read.summary.clone());
        let mut stale: Vec<bool> = reads
            .iter()
            .enumerate()
            .map(|(shard, read)| match (read, &summary) {
                (Ok(read), Some(summary)) => read.version < summary.vector[shard],
                (Err(ShardFault::Stale | ShardFault::Damaged), _) => true,
                _ => false,
            })
            .collect();
        // A data shard above its entry proves that the parities missed a write: they are the holes. One that knows nothing
        // at all has no entry above which a shard that was ever written would not be.
        let entry = |shard: usize| summary.as_ref().map_or(Version::NONE, |summary| summary.vector[shard]);
        let above = |(shard, read): (usize, &Result<ShardRead, ShardFault>)| {
            read.as_ref().is_ok_and(|read| read.version > entry(shard))
        };
        if reads.iter().take(k).enumerate().any(above) {
            summary = None;
            for (shard, read) in reads.iter().enumerate() {
                // The write that entered the stripe went to every shard: one without a version missed it.
                let missed = |read: &ShardRead| shard >= k || read.version.is_none();
                stale[shard] = read.as_ref().map_or(stale[shard], missed);
            }
        }
        View { stripe, first_sector: first_sector as usize, reads, summary, stale }
    }

    /// Whether a sector, counted within the range, of a shard is as it should be.
    fn good(&self, shard: usize, sector: usize) -> bool {
        let Ok(read) = &self.reads[shard] else { return false };
        if self.stale[shard] || read.bad.is_empty() || read.bad.get(sector) {
            return false;
        }
        let geometry = self.stripe.geometry();
        match &self.summary {
            Some(summary) if shard < geometry.profile().data_shards() => {
                let index = shard * geometry.unit_sectors() + self.first_sector + sector;
                read.checksums[sector] == summary.checksums[index]
            }
            _ => true,
        }
    }

    fn data_missing(&self) -> bool {
        let k = self.stripe.geometry().profile().data_shards();
        let whole = |shard: usize| match &self.reads[shard] {
            Ok(read) => (0..read.bad.len()).all(|sector| self.good(shard, sector)),
            Err(_) => false,
        };
        !(0..k).all(whole)
    }

    fn rebuild(self, engine: &Engine, range: Gather) -> Gathered {
        let geometry = *self.stripe.geometry();
        let (k, n) = (geometry.profile().data_shards(), geometry.profile().shards());
        let count = range.sectors as usize;
        let masks: Vec<u32> = (0..count)
            .map(|sector| (0..n).filter(|shard| self.good(*shard, sector)).fold(0, |mask, s| mask | 1 << s))
            .collect();
        let mut columns: Vec<(BytesMut, Bits)> = Vec::with_capacity(k);
        for shard in 0..k {
            let whole = masks.iter().all(|mask| mask >> shard & 1 == 1);
            let bytes = match (&self.reads[shard], whole) {
                (Ok(read), true) => BytesMut::from(read.data.clone()),
                (Ok(read), false) => BytesMut::from(&read.data[..]),
                (Err(_), _) => BytesMut::zeroed(count * SECTOR_BYTES),
            };
            columns.push((bytes, Bits::new(count)));
        }
        let mut from = 0;
        for to in 1..=count {
            if to < count && masks[to] == masks[from] {
                continue;
            }
            self.rebuild_run(engine, from..to, masks[from], &mut columns);
            from = to;
        }
        let lost = columns.iter().any(|(_, lost)| !lost.none());
        let absent = self.stripe.shards().any(|shard| {
            let member = engine.member_of(self.stripe, shard);
            self.reads[usize::from(shard.0)].as_ref().is_err_and(|fault| *fault == ShardFault::Absent)
                && member.counts_at(self.stripe.address())
                && range.without >> shard.0 & 1 == 0
        });
        let nothing = |shard: Shard| match &self.reads[usize::from(shard.0)] {
            Ok(read) => read.version.is_none(),
            // Its unit holds something for another stripe.
            Err(ShardFault::Stale) => engine.decided_version(self.stripe, shard).is_none(),
            Err(ShardFault::Absent) => !engine.member_of(self.stripe, shard).counts_at(self.stripe.address()),
            Err(ShardFault::Damaged | ShardFault::Failed) => false,
        };
        let nothing_there = self.stripe.shards().all(nothing);
        let versions: Vec<_> =
            self.reads.iter().map(|read| read.as_ref().ok().map(|read| read.version)).collect();
        let data = columns.into_iter().enumerate().map(|(shard, (bytes, lost))| Column {
            bytes: bytes.freeze(),
            lost,
            version: match &self.summary {
                Some(summary) => Some(summary.vector[shard]),
                None => versions[shard],
            },
            record: match &self.reads[shard] {
                Ok(read) if self.summary.is_none() && !self.stale[shard] => {
                    Some(Record { checksums: read.checksums.clone(), written: read.written.clone() })
                }
                _ => None,
            },
        });
        Gathered {
            first_sector: range.first_sector,
            sectors: range.sectors,
            data: data.collect(),
            damage: self.damage(&masks),
            absent_might_help: lost && absent,
            all_answered: !absent,
            nothing_there,
            versions,
            summary: self.summary,
        }
    }

    /// Rebuilds the data of sectors that all have the same shards good.
    fn rebuild_run(
        &self,
        engine: &Engine,
        run: std::ops::Range<usize>,
        mask: u32,
        columns: &mut [(BytesMut, Bits)],
    ) {
        let geometry = self.stripe.geometry();
        let good = |shard: usize| mask >> shard & 1 == 1;
        let missing: Vec<usize> = (0..columns.len()).filter(|shard| !good(*shard)).collect();
        if missing.is_empty() {
            return;
        }
        let bytes = run.start * SECTOR_BYTES..run.end * SECTOR_BYTES;
        let shards: Vec<Option<&[u8]>> = (0..self.reads.len())
            .map(|shard| match &self.reads[shard] {
                Ok(read) if good(shard) => Some(&read.data[bytes.clone()]),
                _ => None,
            })
            .collect();
        let mut rebuilt: Vec<Vec<u8>> = missing.iter().map(|_| vec![0; bytes.len()]).collect();
        let mut wanted: Vec<(usize, &mut [u8])> =
            missing.iter().copied().zip(rebuilt.iter_mut().map(Vec::as_mut_slice)).collect();
        let possible = engine.codec.reconstruct(&shards, &mut wanted).is_ok();
        for (shard, rebuilt) in missing.into_iter().zip(&rebuilt) {
            for (sector, content) in run.clone().zip(rebuilt.chunks_exact(SECTOR_BYTES)) {
                let index = shard * geometry.unit_sectors() + self.first_sector + sector;
                let known = self.summary.as_ref().map(|summary| summary.checksums[index]);
                let right = known == Some(checksum::of_sector(content))
                    || engine.is_weak(Weak::ReconstructionUnchecked);
                if possible && right {
                    columns[shard].0[sector * SECTOR_BYTES..(sector + 1) * SECTOR_BYTES]
                        .copy_from_slice(content);
                } else {
                    columns[shard].1.set(sector, true);
                }
            }
        }
    }

    /// What is not as it should be on members that answered.
    fn damage(&self, masks: &[u32]) -> Vec<Damage> {
        let mut damage = Vec::new();
        for shard in self.stripe.shards() {
            let index = usize::from(shard.0);
            match &self.reads[index] {
                _ if self.stale[index] => damage.push(Damage::Shard(shard)),
                Ok(read) if !read.bad.is_empty() => {
                    let mut bad = Bits::new(masks.len());
                    for (sector, mask) in masks.iter().enumerate() {
                        bad.set(sector, mask >> index & 1 == 0);
                    }
                    if !bad.none() {
                        damage.push(Damage::Sectors { shard, bad });
                    }
                }
                _ => {}
            }
        }
        damage
    }
}
