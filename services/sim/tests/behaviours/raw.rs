//! A stripe as it is on the disks: bytes and records read behind everybody's back, and what has to hold of them at rest.
//!
//! Only for a stripe that nobody writes, after [`Coordinator::settle`]. Shards of members that are out count as lost.

use stripeset_agent::simulation::SimulationError;
use stripeset_proto::{convert::version, v1};
use stripeset_stripe::{Version, checksum, code::Codec, geometry::Geometry};
use thiserror::Error;

use stripeset_coordinator::{extents::StripeRef, members::MemberIndex};
use stripeset_sim::cluster::{Cluster, Coordinator};

/// Why a stripe cannot be seen.
#[derive(Debug, Error)]
pub(super) enum RawError {
    /// An agent did not show it.
    #[error(transparent)]
    Agent(#[from] SimulationError),
    /// A shard is neither empty nor committed.
    #[error("shard {shard} is {state:?}")]
    State {
        /// The shard.
        shard: usize,
        /// What its member shows.
        state: v1::UnitState,
    },
}

/// One shard.
#[derive(Clone, Debug)]
pub(super) struct RawShard {
    /// Its committed version.
    pub(super) version: Version,
    /// Its sectors; zeros where nothing was ever written.
    pub(super) sectors: Vec<Vec<u8>>,
    /// On parities and copies: what they know of the stripe.
    pub(super) summary: Option<v1::StripeSummary>,
}

/// All shards of a stripe.
#[derive(Clone, Debug)]
pub(super) struct RawStripe {
    geometry: Geometry,
    codec: Codec,
    /// By shard; none where the member is out.
    pub(super) shards: Vec<Option<RawShard>>,
}

impl RawStripe {
    /// Looks at a stripe.
    pub(super) fn look(
        cluster: &Cluster,
        coordinator: &Coordinator,
        stripe: &StripeRef,
    ) -> Result<RawStripe, RawError> {
        let geometry = *stripe.geometry();
        let shards = (0..geometry.profile().shards()).map(|shard| {
            let (member, _) = coordinator.place(stripe, shard);
            let is_out = coordinator.engine.members.get(MemberIndex(member as u32)).is_out();
            (!is_out).then(|| RawShard::look(cluster, coordinator, stripe, shard)).transpose()
        });
        let shards = shards.collect::<Result<_, _>>()?;
        Ok(RawStripe { geometry, codec: Codec::new(geometry.profile()), shards })
    }

    /// All shards of a vertical, those of `lost` and of members that are out computed from the others; none if they are
    /// too many.
    pub(super) fn without(&self, vertical: usize, lost: &[usize]) -> Option<Vec<Vec<u8>>> {
        let known = |(index, shard): (usize, &Option<RawShard>)| {
            shard.as_ref().filter(|_| !lost.contains(&index)).map(|shard| shard.sectors[vertical].clone())
        };
        let mut all: Vec<Option<Vec<u8>>> = self.shards.iter().enumerate().map(known).collect();
        let given = all.clone();
        let given: Vec<Option<&[u8]>> = given.iter().map(Option::as_deref).collect();
        let missing: Vec<usize> = (0..all.len()).filter(|shard| all[*shard].is_none()).collect();
        let mut computed = vec![vec![0; stripeset_stripe::SECTOR_BYTES]; missing.len()];
        let mut wanted: Vec<(usize, &mut [u8])> =
            missing.iter().copied().zip(computed.iter_mut().map(Vec::as_mut_slice)).collect();
        self.codec.reconstruct(&given, &mut wanted).ok()?;
        missing.into_iter().zip(computed).for_each(|(shard, bytes)| all[shard] = Some(bytes));
        all.into_iter().collect()
    }

    /// Whether the shards of a vertical belong together: any k of them give the others. `false` too if there are less.
    pub(super) fn is_code_word(&self, vertical: usize) -> bool {
        let present: Vec<usize> =
            (0..self.shards.len()).filter(|shard| self.shards[*shard].is_some()).collect();
        let basis = self.geometry.profile().data_shards().min(present.len());
        let others = &present[basis..];
        let Some(computed) = self.without(vertical, others) else { return false };
        let same = |shard: &usize| {
            self.shards[*shard].as_ref().is_some_and(|raw| raw.sectors[vertical] == computed[*shard])
        };
        others.iter().all(same)
    }

    /// Whether what a shard knows of the stripe is so: the version of every shard, and the checksum of every data sector,
    /// counted through the data shards, that is `live`. True of shards that know nothing.
    pub(super) fn summary_is_right(&self, shard: usize, live: impl Fn(usize) -> bool) -> bool {
        let Some(summary) = self.shards[shard].as_ref().and_then(|raw| raw.summary.as_ref()) else {
            return true;
        };
        let unit_sectors = self.geometry.unit_sectors();
        self.shards.iter().enumerate().all(|(index, raw)| {
            let Some(raw) = raw else { return true };
            let at = |sector: usize| index * unit_sectors + sector;
            let is_data = index < self.geometry.profile().data_shards();
            let right = |(sector, bytes): (usize, &Vec<u8>)| {
                !is_data
                    || !live(at(sector))
                    || summary.checksums.get(at(sector)) == Some(&checksum::of_sector(bytes))
            };
            let versions = summary.vector.get(index).map(|known| Version::from(*known));
            versions == Some(raw.version) && raw.sectors.iter().enumerate().all(right)
        })
    }
}

impl RawShard {
    fn look(
        cluster: &Cluster,
        coordinator: &Coordinator,
        stripe: &StripeRef,
        shard: usize,
    ) -> Result<RawShard, RawError> {
        let (member, unit) = coordinator.place(stripe, shard);
        let mut agent = cluster.lines()[member].agent();
        let record = agent.unit(unit)?;
        let state = record.state();
        if !matches!(state, v1::UnitState::Committed | v1::UnitState::Empty) {
            return Err(RawError::State { shard, state });
        }
        let written = |sector: usize| {
            state == v1::UnitState::Committed
                && record.written.get(sector / 8).is_some_and(|bits| bits >> (sector % 8) & 1 == 1)
        };
        let sectors = (0..stripe.geometry().unit_sectors()).map(|sector| match written(sector) {
            true => agent.raw_sector(unit, sector),
            false => Ok(vec![0; stripeset_stripe::SECTOR_BYTES]),
        });
        let sectors = sectors.collect::<Result<_, _>>()?;
        Ok(RawShard { version: version(record.committed_version), sectors, summary: record.summary })
    }
}
