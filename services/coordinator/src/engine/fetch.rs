//! Reads what a plan asks for, from the members that hold it, and checks it against what the parities know.
//!
//! It is the quick way of a write whose stripe is as it should be. Where anything is missing, late or wrong it gives
//! nothing, and the stripe is looked at as a whole (`gather`). Called with the stripe held.

use std::collections::BTreeMap;

use bytes::Bytes;
use futures_util::future::join_all;
use stripeset_stripe::{
    SECTOR_BYTES, Version,
    bits::Bits,
    geometry::Shard,
    plan::{Plan, Reading},
    summary::Summary,
};

use super::{
    Engine, HEDGE, Weak,
    shard::{ShardRead, ShardRequest},
};
use crate::extents::StripeRef;

/// What was read, all of it verified.
#[derive(Debug)]
pub(super) struct Fetched {
    /// What the parities know.
    pub(super) summary: Summary,
    /// By data sector, counted through the data shards.
    pub(super) data: BTreeMap<usize, Bytes>,
    /// By parity, from 0, and vertical.
    pub(super) parity: BTreeMap<(usize, usize), Bytes>,
}

impl Engine {
    /// Reads the sectors of the plan, and the summary unless it is known. `None` if all is not well.
    pub(super) async fn fetch(
        &self,
        stripe: &StripeRef,
        plan: &Plan,
        known: Option<&Summary>,
    ) -> Option<Fetched> {
        let requests = requests(stripe, plan, known);
        if !requests
            .iter()
            .all(|request| self.member_of(stripe, request.shard).worth_asking_at(stripe.address()))
        {
            return None;
        }
        let reads = requests.iter().map(|request| async {
            let read = tokio::time::timeout(HEDGE, self.read_shard(stripe, *request)).await;
            if read.is_err() {
                self.member_of(stripe, request.shard).link.suspect();
            }
            read.ok()?.ok().map(|read| (*request, read))
        });
        let reads = join_all(reads).await.into_iter().collect::<Option<Vec<_>>>()?;
        let summary = match known {
            Some(known) => known.clone(),
            None => {
                let with_summary = reads.iter().filter(|(_, read)| read.summary.is_some());
                with_summary.max_by_key(|(_, read)| read.version)?.1.summary.clone()?
            }
        };
        let mut fetched = Fetched { summary, data: BTreeMap::new(), parity: BTreeMap::new() };
        let believed = self.is_weak(Weak::NeighboursUnverified);
        reads
            .into_iter()
            .all(|(request, read)| fetched.take(stripe, request, &read) || believed)
            .then_some(fetched)
    }

    /// How much is read when something is.
    pub fn set_reading(&self, reading: Reading) {
        *self.reading.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = reading;
    }

    pub(super) fn reading(&self) -> Reading {
        *self.reading.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl Fetched {
    /// Takes one answer in; `false` if it is not what the summary says.
    fn take(&mut self, stripe: &StripeRef, request: ShardRequest, read: &ShardRead) -> bool {
        let (k, unit_sectors) = (stripe.geometry().profile().data_shards(), stripe.geometry().unit_sectors());
        let shard = usize::from(request.shard.0);
        let mut right = read.version == self.summary.vector[shard] && read.bad.none();
        for (index, checksum) in read.checksums.iter().enumerate() {
            let vertical = request.first_sector as usize + index;
            let bytes = read.data.slice(index * SECTOR_BYTES..(index + 1) * SECTOR_BYTES);
            if shard >= k {
                self.parity.insert((shard - k, vertical), bytes);
                continue;
            }
            let sector = shard * unit_sectors + vertical;
            right &= *checksum == self.summary.checksums[sector];
            self.data.insert(sector, bytes);
        }
        right
    }
}

fn requests(stripe: &StripeRef, plan: &Plan, known: Option<&Summary>) -> Vec<ShardRequest> {
    let geometry = stripe.geometry();
    let (profile, unit_sectors) = (geometry.profile(), geometry.unit_sectors());
    let mut requests = Vec::new();
    for shard in stripe.shards() {
        let index = usize::from(shard.0);
        let wanted = |vertical: usize| match index < profile.data_shards() {
            true => plan.read.get(index * unit_sectors + vertical),
            false => plan.read_parity.get(vertical),
        };
        let version = known.map_or(Version::NONE, |summary| summary.vector[index]);
        let request = |first: usize, sectors: usize, summary: bool| ShardRequest {
            shard,
            first_sector: first as u32,
            sectors: sectors as u32,
            version,
            summary,
        };
        let mut summary = known.is_none() && profile.has_summary(index);
        for (first, sectors) in runs(unit_sectors, wanted) {
            requests.push(request(first, sectors, std::mem::take(&mut summary)));
        }
        if summary {
            // The record alone.
            requests.push(request(0, 0, true));
        }
    }
    requests
}

/// Runs of neighbours for which something holds: first and number.
pub(super) fn runs(length: usize, holds: impl Fn(usize) -> bool) -> Vec<(usize, usize)> {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for index in (0..length).filter(|index| holds(*index)) {
        match runs.last_mut() {
            Some((first, count)) if *first + *count == index => *count += 1,
            _ => runs.push((index, 1)),
        }
    }
    runs
}

/// Runs of ones.
pub(super) fn runs_of(bits: &Bits) -> Vec<(usize, usize)> {
    runs(bits.len(), |index| bits.get(index))
}

/// Shards of parity, and further copies, by their number.
pub(super) fn parity_shard(stripe: &StripeRef, parity: usize) -> Shard {
    Shard((stripe.geometry().profile().data_shards() + parity) as u8)
}
