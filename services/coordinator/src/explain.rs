//! Where bytes are: from an object or a logical address to the sectors of the members' disks.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::future::join_all;
use stripeset_proto::{Error, convert::Identity, v1};
use stripeset_stripe::{
    SECTOR_BYTES, Version,
    bits::Bits,
    geometry::{Logical, Place, Shard, StripeAddress},
};

use crate::{
    array::Array,
    extents::StripeRef,
    objects::{check_name, not_found},
};

/// Most bytes that are explained at a time.
const EXPLAIN_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// Sectors of the logical space, with where each stands in the object.
type Sectors = Vec<(u64, Logical)>;

impl Array {
    /// Explains a place.
    pub async fn explain(&self, place: v1::explain_request::Place) -> Result<v1::ExplainResponse, Error> {
        let sectors = match place {
            v1::explain_request::Place::Object(range) => self.object_sectors(&range)?,
            v1::explain_request::Place::Logical(logical) => {
                let sector = logical / SECTOR_BYTES as u64 * SECTOR_BYTES as u64;
                let chunk = self.engine.extents.geometry().place(Logical(sector)).stripe.chunk;
                if self.engine.extents.chunks.get(chunk).is_none() {
                    let end = self
                        .engine
                        .extents
                        .chunks
                        .all()
                        .last()
                        .map_or(0, |chunk| (chunk.index.0 + 1) * chunk.geometry.chunk_bytes());
                    let message = format!("logical address {logical}: the chunks end at {end}");
                    return Err(Error::invalid(message));
                }
                vec![(0, Logical(sector))]
            }
        };
        let versions = self.versions_of(&sectors).await;
        let place = |(offset, logical): &(u64, Logical)| self.sector(*offset, *logical, &versions);
        let stripe_plans = self.plans(&sectors);
        Ok(v1::ExplainResponse {
            sectors: sectors.iter().map(place).collect(),
            parity: self.parity(&sectors),
            plan: stripe_plans.first().map_or_else(|| "no sectors".to_owned(), sentence),
            stripe_plans,
        })
    }

    /// How a write of the sectors would be done, by stripe.
    fn plans(&self, sectors: &Sectors) -> Vec<v1::StripePlan> {
        let geometry = self.engine.extents.geometry();
        let mut covered: BTreeMap<StripeAddress, Bits> = BTreeMap::new();
        for (_, logical) in sectors {
            let place = geometry.place(*logical);
            let bits = covered.entry(place.stripe).or_insert_with(|| Bits::new(geometry.stripe_sectors()));
            bits.set(usize::from(place.shard.0) * geometry.unit_sectors() + place.sector as usize, true);
        }
        covered.iter().map(|(address, covered)| self.stripe_plan(*address, covered)).collect()
    }

    fn stripe_plan(&self, address: StripeAddress, covered: &Bits) -> v1::StripePlan {
        let stripe = self.engine.extents.stripe(address);
        let key = self.engine.cache_key(&stripe);
        let plan = self.engine.plan_partial(&stripe, covered, self.engine.cache().peek(&key));
        let geometry = stripe.geometry();
        let (k, unit_sectors) = (geometry.profile().data_shards(), geometry.unit_sectors());
        let reads = |shard: usize| match shard < k {
            true => (0..unit_sectors).any(|sector| plan.read.get(shard * unit_sectors + sector)),
            false => !plan.read_parity.none(),
        };
        let writes = |shard: usize| {
            shard >= k || (0..unit_sectors).any(|sector| covered.get(shard * unit_sectors + sector))
        };
        let members = |asked: &dyn Fn(usize) -> bool| {
            let shards = stripe.shards().filter(|shard| asked(usize::from(shard.0)));
            shards.map(|shard| stripe.place(shard).member.0).collect()
        };
        v1::StripePlan {
            chunk: address.chunk.0,
            stripe: address.row.0,
            kind: plan.kind.word().to_owned(),
            sectors_read: plan.sectors_read(geometry) as u32,
            read_members: members(&reads),
            write_members: members(&writes),
        }
    }

    fn object_sectors(&self, range: &v1::ObjectRange) -> Result<Sectors, Error> {
        check_name(&range.name)?;
        let snapshot = self.meta.snapshot()?;
        let object = snapshot.object(&range.name)?.ok_or_else(|| not_found(&range.name))?;
        let length = range.length_bytes.max(1);
        if range.offset_bytes >= object.size {
            let (offset, size) = (range.offset_bytes, object.size);
            return Err(Error::invalid(format!(
                "offset {offset} is past the end: the object has {size} bytes"
            )));
        }
        if length > EXPLAIN_BYTES_MAX {
            let message = format!("{length} bytes: at most {EXPLAIN_BYTES_MAX} can be explained at a time");
            return Err(Error::invalid(message));
        }
        let end = range.offset_bytes.saturating_add(length).min(object.size);
        let mut sectors = Sectors::new();
        for (start, extent) in snapshot.extents(object.id, range.offset_bytes, end - range.offset_bytes)? {
            let first = range.offset_bytes.max(start).saturating_sub(start) / SECTOR_BYTES as u64;
            let mut at = first * SECTOR_BYTES as u64;
            while at < extent.length && start + at < end {
                sectors.push((start + at, Logical(extent.logical + at)));
                at += SECTOR_BYTES as u64;
            }
        }
        Ok(sectors)
    }

    /// Where the first sector of a shard starts on its member's disk; 0 if that member was never reached.
    fn shard_offset(&self, stripe: &StripeRef, shard: Shard) -> u64 {
        let place = stripe.place(shard);
        let layout = self.engine.members.get(place.member).layout();
        layout.first_unit_offset + place.unit * layout.unit_stride_bytes
    }

    fn sector(
        &self,
        offset: u64,
        logical: Logical,
        versions: &BTreeMap<(StripeAddress, Shard), Version>,
    ) -> v1::SectorPlace {
        let Place { stripe: address, shard, sector, .. } = self.engine.extents.geometry().place(logical);
        let stripe = self.engine.extents.stripe(address);
        let in_stripe = usize::from(shard.0) * stripe.geometry().unit_sectors() + sector as usize;
        v1::SectorPlace {
            offset,
            logical: logical.0,
            chunk: address.chunk.0,
            stripe: address.row.0,
            shard: u32::from(shard.0),
            member: stripe.place(shard).member.0,
            disk_offset: self.shard_offset(&stripe, shard) + u64::from(sector) * SECTOR_BYTES as u64,
            version: versions.get(&(address, shard)).map(|version| (*version).into()),
            live: self.engine.extents.live(address, in_stripe),
            cached: self.is_cached(&stripe, in_stripe),
        }
    }

    fn is_cached(&self, stripe: &StripeRef, sector: usize) -> bool {
        let key = self.engine.cache_key(stripe);
        self.engine.cache().peek(&key).is_some_and(|pages| pages.get(sector).is_some())
    }

    /// Parity, or further copies, of the verticals touched; one entry for each run of neighbouring ones.
    fn parity(&self, sectors: &Sectors) -> Vec<v1::ParityPlace> {
        let geometry = self.engine.extents.geometry();
        let mut verticals: BTreeMap<StripeAddress, BTreeSet<u32>> = BTreeMap::new();
        for (_, logical) in sectors {
            let place = geometry.place(*logical);
            verticals.entry(place.stripe).or_default().insert(place.sector);
        }
        let mut parity = Vec::new();
        for (address, verticals) in verticals {
            let stripe = self.engine.extents.stripe(address);
            for shard in stripe.shards().skip(geometry.profile().data_shards()) {
                for (first, count) in neighbours(&verticals) {
                    parity.push(v1::ParityPlace {
                        stripe: address.row.0,
                        shard: u32::from(shard.0),
                        member: stripe.place(shard).member.0,
                        disk_offset: self.shard_offset(&stripe, shard)
                            + u64::from(first) * SECTOR_BYTES as u64,
                        length: u64::from(count) * SECTOR_BYTES as u64,
                        chunk: address.chunk.0,
                    });
                }
            }
        }
        parity
    }

    /// Committed versions of the shards, from the agents that answer.
    async fn versions_of(&self, sectors: &Sectors) -> BTreeMap<(StripeAddress, Shard), Version> {
        let geometry = self.engine.extents.geometry();
        let shards: BTreeSet<(StripeAddress, Shard)> = sectors
            .iter()
            .map(|(_, logical)| geometry.place(*logical))
            .map(|place| (place.stripe, place.shard))
            .collect();
        let versions = join_all(shards.into_iter().map(|(address, shard)| async move {
            let version = self.version_of(&self.engine.extents.stripe(address), shard).await?;
            Some(((address, shard), version))
        }))
        .await;
        versions.into_iter().flatten().collect()
    }

    async fn version_of(&self, stripe: &StripeRef, shard: Shard) -> Option<Version> {
        let place = stripe.place(shard);
        let member = self.engine.members.get(place.member);
        let units = member.link.units().filter(|_| member.link.responsive())?;
        let record =
            tokio::time::timeout(crate::engine::HEDGE, units.record(place.unit)).await.ok()?.ok()??;
        let same = record.identity.map(Identity::try_from)?.ok()? == place.identity;
        let pending = record.pending_version.map(Version::from);
        same.then(|| {
            pending.unwrap_or_default().max(stripeset_proto::convert::version(record.committed_version))
        })
    }
}

/// A plan for people.
fn sentence(plan: &v1::StripePlan) -> String {
    let writes = plan.write_members.len();
    if plan.sectors_read == 0 {
        return format!("{}: reads nothing, writes to {writes} members", plan.kind);
    }
    let (sectors, members) = (plan.sectors_read, plan.read_members.len());
    format!("{}: reads {sectors} sectors of {members} members, writes to {writes} members", plan.kind)
}

/// Runs of neighbouring numbers: first and count.
fn neighbours(numbers: &BTreeSet<u32>) -> Vec<(u32, u32)> {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for number in numbers {
        match runs.last_mut() {
            Some((first, count)) if *first + *count == *number => *count += 1,
            _ => runs.push((*number, 1)),
        }
    }
    runs
}
