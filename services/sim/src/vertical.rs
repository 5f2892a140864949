//! A stripe as it is on the disks: read around engine and agents, judged by the checksums alone.

use stripeset_coordinator::{extents::StripeRef, members::MemberIndex};
use stripeset_proto::{
    convert::{Identity, version},
    v1::UnitState,
};
use stripeset_stripe::{SECTOR_BYTES, Version, bits::Bits, checksum, summary::Summary};

use crate::cluster::{Cluster, Coordinator};

/// The sectors at one offset in all shards of a stripe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vertical {
    /// Which one of the stripe.
    pub index: usize,
    /// What each shard holds, data first; none if it is bad: of an old version, not matching a checksum, or its member
    /// is out.
    pub shards: Vec<Option<Vec<u8>>>,
    /// Data shards whose sector belongs to an extent.
    pub live: Vec<bool>,
}

impl Vertical {
    /// Shards that are bad.
    pub fn bad(&self) -> usize {
        self.shards.iter().filter(|shard| shard.is_none()).count()
    }

    /// Whether anything of it is in use.
    pub fn any_live(&self) -> bool {
        self.live.iter().any(|live| *live)
    }
}

struct RawShard {
    version: Version,
    sectors: Vec<Vec<u8>>,
    checksums: Vec<u32>,
    lost: Bits,
    summary: Option<Summary>,
}

/// A stripe on its disks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawStripe {
    /// What its newest parity knows, if any is in reach.
    pub summary: Option<Summary>,
    /// Its verticals.
    pub verticals: Vec<Vertical>,
    /// What the record of each shard says, for people.
    pub states: String,
}

/// A stripe as it is. Pending writes have to be applied (`Coordinator::settle`).
pub fn of_stripe(cluster: &Cluster, coordinator: &Coordinator, stripe: &StripeRef) -> RawStripe {
    let geometry = stripe.geometry();
    let (k, units) = (geometry.profile().data_shards(), geometry.unit_sectors());
    let count = geometry.profile().shards();
    let raw: Vec<Option<RawShard>> =
        (0..count).map(|shard| read(cluster, coordinator, stripe, shard)).collect();
    let newest =
        raw.iter().flatten().filter(|shard| shard.summary.is_some()).max_by_key(|shard| shard.version);
    let summary = newest.and_then(|shard| shard.summary.as_ref());
    let good = |shard: usize, sector: usize| {
        let raw = raw[shard].as_ref()?;
        let sum = checksum::of_sector(&raw.sectors[sector]);
        // With every parity out nobody but the shard itself vouches for it.
        let vouched = match summary {
            Some(summary) => {
                let same = shard >= k || sum == summary.checksums[shard * units + sector];
                same && raw.version == summary.vector[shard]
            }
            None => true,
        };
        (sum == raw.checksums[sector] && vouched && !raw.lost.get(sector))
            .then(|| raw.sectors[sector].clone())
    };
    let live = |shard: usize, sector: usize| {
        coordinator.engine.extents.live(stripe.address(), shard * units + sector)
    };
    let verticals = (0..units).map(|index| Vertical {
        index,
        shards: (0..count).map(|shard| good(shard, index)).collect(),
        live: (0..k).map(|shard| live(shard, index)).collect(),
    });
    let states: Vec<String> = (0..count).map(|shard| state(cluster, coordinator, stripe, shard)).collect();
    RawStripe { verticals: verticals.collect(), summary: summary.cloned(), states: states.join("; ") }
}

fn state(cluster: &Cluster, coordinator: &Coordinator, stripe: &StripeRef, shard: usize) -> String {
    let (member, unit) = coordinator.place(stripe, shard);
    if !coordinator.engine.members.get(MemberIndex(member as u32)).counts_at(stripe.address()) {
        return format!("member {member} is out");
    }
    match cluster.lines()[member].agent().unit(unit) {
        Ok(record) => format!(
            "member {member} {:?} committed {} pending {}",
            record.state(),
            version(record.committed_version),
            version(record.pending_version)
        ),
        Err(error) => format!("member {member} {error}"),
    }
}

fn read(cluster: &Cluster, coordinator: &Coordinator, stripe: &StripeRef, shard: usize) -> Option<RawShard> {
    let place = stripe.place(stripeset_stripe::geometry::Shard(shard as u8));
    if !coordinator.engine.members.get(place.member).counts_at(stripe.address()) {
        return None;
    }
    let mut agent = cluster.lines()[place.member.0 as usize].agent();
    let record = agent.unit(place.unit).ok()?;
    let identity = record.identity.map(Identity::try_from)?.ok()?;
    if record.state() != UnitState::Committed || identity != place.identity {
        return None;
    }
    let units = stripe.geometry().unit_sectors();
    let written = Bits::from_bytes(&record.written, units)?;
    let lost = Bits::from_bytes(&record.lost, units)?;
    let (mut sectors, mut checksums) = (Vec::with_capacity(units), Vec::with_capacity(units));
    for sector in 0..units {
        if written.get(sector) {
            sectors.push(agent.raw_sector(place.unit, sector).ok()?);
            checksums.push(*record.checksums.get(sector)?);
        } else {
            sectors.push(vec![0; SECTOR_BYTES]);
            checksums.push(checksum::ZERO_SECTOR);
        }
    }
    let summary = match record.summary {
        Some(summary) => Some(Summary {
            vector: summary.vector.into_iter().map(Version::from).collect(),
            written: Bits::from_bytes(&summary.written, stripe.geometry().stripe_sectors())?,
            checksums: summary.checksums,
        }),
        None => None,
    };
    Some(RawShard { version: version(record.committed_version), sectors, checksums, lost, summary })
}
