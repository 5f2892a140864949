//! Repair of what was found bad: sectors by a partial write of the right bytes, whole shards by Rebuild.

use std::sync::Arc;

use bytes::Bytes;
use stripeset_proto::v1::{self, session_request::Operation, session_response::Outcome};
use stripeset_stripe::{SECTOR_BYTES, bits::Bits, checksum, geometry::Shard, summary::Summary};
use thiserror::Error;

use super::{
    Engine,
    fetch::runs,
    gather::{Damage, Gather, Gathered},
    new_bytes::NewBytes,
    owned::Owned,
    shard::summary_to_wire,
};
use crate::{
    extents::StripeRef,
    members::{ErrorCount, link::CallError},
};

impl Engine {
    /// Counts what was found bad against the members that hold it.
    pub(super) fn count_damage(&self, stripe: &StripeRef, gathered: &Gathered) {
        for damage in &gathered.damage {
            let (shard, kind, errors) = match damage {
                Damage::Sectors { shard, bad } => (*shard, ErrorCount::Checksum, bad.count() as u64),
                Damage::Shard(shard) => (*shard, ErrorCount::Version, 1),
            };
            let member = self.member_of(stripe, shard);
            member.count(kind, errors);
            tracing::warn!(member = member.index.0, ?kind, errors, stripe = ?stripe.address(), "damage found");
        }
    }

    /// Repairs everything in `gathered` that can be repaired, and gives the stripe back.
    pub(super) async fn repair(self: &Arc<Self>, mut owned: Owned, stripe: &StripeRef, gathered: Gathered) {
        owned.begin_without_pages();
        self.rebuild_damaged_shards(stripe, &gathered).await;
        for range in repairable(&gathered) {
            let again = self.gather(stripe, range).await;
            if !again.damage.iter().any(|damage| matches!(damage, Damage::Sectors { .. })) {
                continue;
            }
            match self.write_gathered(owned, stripe, &again, &NewBytes::default(), None).await {
                Ok(written) => owned = written.owned,
                Err(error) => {
                    tracing::warn!(%error, ?range, stripe = ?stripe.address(), "bad sectors could not be repaired");
                    return;
                }
            }
        }
    }

    /// Counts bad sectors that were written again.
    pub(super) fn count_corrected(&self, stripe: &StripeRef, gathered: &Gathered) {
        for damage in &gathered.damage {
            let Damage::Sectors { shard, bad } = damage else { continue };
            let member = self.member_of(stripe, *shard);
            member.count(ErrorCount::Corrected, bad.count() as u64);
            tracing::info!(member = member.index.0, sectors = bad.count(), "bad sectors repaired");
        }
    }

    /// Rebuilds the shards that are damaged as a whole; whether there were any. Called under the stripe lock.
    pub(super) async fn rebuild_damaged_shards(&self, stripe: &StripeRef, gathered: &Gathered) -> bool {
        let mut any = false;
        for damage in &gathered.damage {
            if let Damage::Shard(shard) = damage {
                any = true;
                self.rebuild_shard(stripe, *shard).await;
            }
        }
        any
    }

    async fn rebuild_shard(&self, stripe: &StripeRef, shard: Shard) {
        let unit_sectors = stripe.geometry().unit_sectors();
        let whole = Gather { first_sector: 0, sectors: unit_sectors as u32, patient: true, without: 0 };
        let gathered = self.gather(stripe, whole).await;
        let member = self.member_of(stripe, shard);
        let Some(content) = self.content(stripe, shard, gathered) else {
            tracing::warn!(member = member.index.0, stripe = ?stripe.address(), "shard cannot be rebuilt now");
            return;
        };
        let (sectors, lost) = (content.written.count(), content.lost.count());
        match self.send_rebuild(stripe, shard, content).await {
            Ok(()) => {
                member.count(ErrorCount::Corrected, sectors as u64);
                tracing::info!(member = member.index.0, stripe = ?stripe.address(), lost, "shard rebuilt");
            }
            Err(error) => tracing::warn!(member = member.index.0, %error, "shard could not be rebuilt"),
        }
    }

    /// Replaces a shard by what it should hold. Called under the stripe lock.
    pub(super) async fn send_rebuild(
        &self,
        stripe: &StripeRef,
        shard: Shard,
        content: Content,
    ) -> Result<(), RebuildError> {
        let place = stripe.place(shard);
        let token: v1::Version = self.versions.take().into();
        let rebuild = Operation::Rebuild(v1::RebuildOperation {
            unit: place.unit,
            identity: Some(place.identity.into()),
            token: Some(token),
            version: Some(content.summary.vector[usize::from(shard.0)].into()),
            runs: content.runs(),
            lost: Bytes::copy_from_slice(content.lost.as_bytes()),
            summary: stripe
                .geometry()
                .profile()
                .has_summary(usize::from(shard.0))
                .then(|| summary_to_wire(&content.summary)),
        });
        match self.member_of(stripe, shard).link.call(rebuild, 0).await? {
            Outcome::Rebuild(outcome) if outcome.token == Some(token) => Ok(()),
            _ => Err(CallError::Unfit.into()),
        }
    }

    /// What a shard should hold, from the others; `None` while that cannot be known.
    pub(super) fn content(&self, stripe: &StripeRef, shard: Shard, gathered: Gathered) -> Option<Content> {
        let geometry = stripe.geometry();
        let (k, unit_sectors) = (geometry.profile().data_shards(), geometry.unit_sectors());
        let index = usize::from(shard.0);
        if gathered.absent_might_help {
            return None;
        }
        if index < k {
            let summary = gathered.summary?;
            let column = gathered.data.into_iter().nth(index)?;
            let mut written = Bits::new(unit_sectors);
            (0..unit_sectors).for_each(|s| written.set(s, summary.written.get(index * unit_sectors + s)));
            return Some(Content { bytes: column.bytes, written, lost: column.lost, summary });
        }
        let summary = match gathered.summary.clone() {
            Some(summary) => summary,
            None => summary_from_data(stripe, &gathered)?,
        };
        let data: Vec<Bytes> = gathered.data.iter().map(|column| column.bytes.clone()).collect();
        let parity = self.encode(stripe, &data, unit_sectors * SECTOR_BYTES);
        let (mut written, mut lost) = (Bits::new(unit_sectors), Bits::new(unit_sectors));
        for sector in 0..unit_sectors {
            written.set(sector, (0..k).any(|data| summary.written.get(data * unit_sectors + sector)));
            lost.set(sector, gathered.data.iter().any(|column| column.lost.get(sector)));
        }
        Some(Content { bytes: parity.into_iter().nth(index - k)?, written, lost, summary })
    }
}

/// Why a shard was not rebuilt.
#[derive(Debug, Error)]
pub enum RebuildError {
    /// What it should hold cannot be known before another member is back.
    #[error("what the shard should hold is not known now")]
    NotNow,
    /// Its member did not take it.
    #[error(transparent)]
    Call(#[from] CallError),
}

/// What a shard should hold.
pub(super) struct Content {
    bytes: Bytes,
    written: Bits,
    lost: Bits,
    summary: Summary,
}

impl Content {
    fn runs(&self) -> Vec<v1::SectorRun> {
        let wanted = |sector: usize| self.written.get(sector) && !self.lost.get(sector);
        let run = |(first, count): (usize, usize)| {
            let data = self.bytes.slice(first * SECTOR_BYTES..(first + count) * SECTOR_BYTES);
            let checksums = checksum::of_sectors(&data);
            v1::SectorRun { first_sector: first as u32, data, checksums }
        };
        runs(self.written.len(), wanted).into_iter().map(run).collect()
    }
}

/// What the parities should know when none of them does: every data shard has to have answered. Of sectors whose bytes are
/// lost it is what their own records say: they were written, and are not zeros. The version of such a parity is the highest
/// in the vector.
fn summary_from_data(stripe: &StripeRef, gathered: &Gathered) -> Option<Summary> {
    let geometry = stripe.geometry();
    let k = geometry.profile().data_shards();
    let mut summary = Summary::empty(geometry);
    for (shard, column) in gathered.data.iter().enumerate() {
        summary.vector[shard] = column.version?;
        let record = column.record.as_ref()?;
        for (sector, checksum) in record.checksums.iter().enumerate() {
            if record.written.get(sector) || column.lost.get(sector) {
                summary.write(shard * geometry.unit_sectors() + sector, *checksum);
            }
        }
    }
    let highest = summary.vector[..k].iter().copied().max()?;
    summary.vector[k..].fill(highest);
    Some(summary)
}

/// Runs of verticals that have bad sectors and no lost one.
fn repairable(gathered: &Gathered) -> Vec<Gather> {
    let sectors = gathered.sectors as usize;
    let mut wanted = Bits::new(sectors);
    for damage in &gathered.damage {
        if let Damage::Sectors { bad, .. } = damage {
            bad.iter_ones().for_each(|sector| wanted.set(sector, true));
        }
    }
    for column in &gathered.data {
        column.lost.iter_ones().for_each(|sector| wanted.set(sector, false));
    }
    let mut ranges: Vec<Gather> = Vec::new();
    for sector in wanted.iter_ones() {
        let at = gathered.first_sector + sector as u32;
        match ranges.last_mut() {
            Some(last) if last.first_sector + last.sectors == at => last.sectors += 1,
            _ => ranges.push(Gather { first_sector: at, sectors: 1, patient: true, without: 0 }),
        }
    }
    ranges
}
