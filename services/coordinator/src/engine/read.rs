//! Reading data sectors: straight from the members that hold them, and round those that cannot give them.

use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use stripeset_stripe::{SECTOR_BYTES, Version, geometry::Shard};

use super::{
    Engine, HEDGE, ReadError,
    gather::{Gather, Gathered},
    shard::ShardRequest,
};
use crate::{
    extents::StripeRef,
    members::{MemberIndex, link::CALL_LIMIT},
};

/// Neighbouring sectors of one data shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadRange {
    /// The data shard.
    pub shard: Shard,
    /// First sector in it.
    pub first_sector: u32,
    /// Number of sectors.
    pub sectors: u32,
    /// Oldest version that will do.
    pub version: Version,
}

/// Longest that one read of a stripe may take in all, waits for its lock included: a write that holds it may have to find
/// out that a member is silent, which takes [`CALL_LIMIT`].
const READ_LIMIT: Duration = CALL_LIMIT.saturating_add(Duration::from_secs(10));

impl Engine {
    /// Reads ranges of one stripe; one `Bytes` for each, in order.
    pub async fn read(
        self: &std::sync::Arc<Self>,
        stripe: &StripeRef,
        ranges: &[ReadRange],
    ) -> Result<Vec<Bytes>, ReadError> {
        let asked = |range: &ReadRange| self.member_of(stripe, range.shard).worth_asking_at(stripe.address());
        if ranges.iter().all(asked)
            && let Some(bytes) = self.read_direct(stripe, ranges).await
        {
            return Ok(bytes);
        }
        let around = tokio::time::timeout(READ_LIMIT, self.read_around(stripe, ranges)).await;
        around.unwrap_or_else(|_| Err(ReadError::Unavailable { members: self.away(stripe) }))
    }

    /// `None` unless every sector came as it should be, and soon enough.
    async fn read_direct(&self, stripe: &StripeRef, ranges: &[ReadRange]) -> Option<Vec<Bytes>> {
        let reads = ranges.iter().map(|range| async move {
            let request = ShardRequest {
                shard: range.shard,
                first_sector: range.first_sector,
                sectors: range.sectors,
                version: range.version,
                summary: false,
            };
            let Ok(read) = tokio::time::timeout(HEDGE, self.read_shard(stripe, request)).await else {
                self.member_of(stripe, range.shard).link.suspect();
                return None;
            };
            read.ok().filter(|read| read.bad.none()).map(|read| read.data)
        });
        join_all(reads).await.into_iter().collect()
    }

    /// What was asked for, out of what was gathered.
    fn taken_from(
        &self,
        stripe: &StripeRef,
        gathered: &Gathered,
        ranges: &[ReadRange],
    ) -> Result<Vec<Bytes>, ReadError> {
        let mut answer = Vec::with_capacity(ranges.len());
        let mut lost: Vec<u64> = Vec::new();
        for range in ranges {
            let column = &gathered.data[usize::from(range.shard.0)];
            let offset = (range.first_sector - gathered.first_sector) as usize;
            for sector in offset..offset + range.sectors as usize {
                let short = column.version.is_some_and(|version| version < range.version);
                if column.lost.get(sector) || short {
                    lost.push(gathered.logical(stripe, range.shard, sector).0);
                }
            }
            let bytes = offset * SECTOR_BYTES..(offset + range.sectors as usize) * SECTOR_BYTES;
            answer.push(column.bytes.slice(bytes));
        }
        match lost.first() {
            None => Ok(answer),
            Some(_) if gathered.absent_might_help => {
                Err(ReadError::Unavailable { members: self.away(stripe) })
            }
            Some(logical) => Err(ReadError::Lost { logical: *logical, sectors: lost.len() }),
        }
    }

    /// Reads ranges as if members were lost: what they hold is rebuilt from the others, and compared with its stored
    /// checksum. Repairs nothing, blames nobody.
    pub async fn read_without(
        self: &std::sync::Arc<Self>,
        stripe: &StripeRef,
        ranges: &[ReadRange],
        members: &[MemberIndex],
    ) -> Result<Vec<Bytes>, ReadError> {
        let left_out = stripe.shards().filter(|shard| members.contains(&stripe.place(*shard).member));
        let without = left_out.fold(0, |without, shard| without | 1 << shard.0);
        let _owned = self.own(stripe).await;
        let gathered = self.gather(stripe, Gather { patient: true, without, ..around(ranges) }).await;
        self.taken_from(stripe, &gathered, ranges)
    }

    /// Reads the verticals from all shards, under the lock, and rebuilds what is not there. What is found bad is
    /// repaired afterwards, before the lock is given back, but the caller does not wait for it.
    async fn read_around(
        self: &std::sync::Arc<Self>,
        stripe: &StripeRef,
        ranges: &[ReadRange],
    ) -> Result<Vec<Bytes>, ReadError> {
        let owned = self.own(stripe).await;
        let range = around(ranges);
        let mut gathered = self.gather(stripe, range).await;
        if gathered.absent_might_help {
            gathered = self.gather(stripe, Gather { patient: true, ..range }).await;
        }
        self.count_damage(stripe, &gathered);
        let result = self.taken_from(stripe, &gathered, ranges);
        if !gathered.damage.is_empty() {
            let (engine, stripe) = (self.clone(), stripe.clone());
            tokio::spawn(async move { engine.repair(owned, &stripe, gathered).await });
        }
        result
    }
}

/// The verticals that ranges are in.
fn around(ranges: &[ReadRange]) -> Gather {
    let first = ranges.iter().map(|range| range.first_sector).min().unwrap_or(0);
    let end = ranges.iter().map(|range| range.first_sector + range.sectors).max().unwrap_or(0);
    Gather { first_sector: first, sectors: end - first, patient: false, without: 0 }
}
