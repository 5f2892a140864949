//! What a write makes of a stripe: the bytes for each shard that takes part, parity computed, and what the parities know
//! afterwards. Pure but for the encoder; where the old bytes came from, and whether they are right, others decided.

use std::collections::BTreeMap;

use bytes::{Bytes, BytesMut};
use stripeset_proto::v1;
use stripeset_stripe::{
    SECTOR_BYTES, Version, bits::Bits, checksum, code::Codec, geometry::Shard, summary::Summary,
};

use super::{
    fetch::{parity_shard, runs_of},
    new_bytes::NewBytes,
    shard::summary_to_wire,
};
use crate::extents::StripeRef;

/// First phases of a write, by shard.
pub(super) type Operations = Vec<(Shard, v1::PrepareOperation)>;

const ZEROS: &[u8] = &[0; SECTOR_BYTES];

/// A write into a stripe that holds others.
pub(super) struct Change<'a> {
    pub(super) stripe: &'a StripeRef,
    pub(super) version: Version,
    pub(super) new: &'a NewBytes,
    /// Verticals whose parity is written.
    pub(super) touched: &'a Bits,
    /// Of those, the ones whose parity is the old one and a difference.
    pub(super) delta: &'a Bits,
    /// As the parities know it before.
    pub(super) before: Summary,
    /// Committed version of each shard, as far as it is known.
    pub(super) bases: Vec<Option<Version>>,
}

impl Change<'_> {
    /// First phases for all shards that take part, and the summary afterwards. `old` has the bytes of data sectors as they
    /// are, `old_parity` those of parities by number and vertical: whatever the plan needs. What has none is zeros.
    pub(super) fn operations(
        self,
        codec: &Codec,
        old: impl Fn(usize) -> Option<Bytes>,
        old_parity: impl Fn(usize, usize) -> Option<Bytes>,
    ) -> (Operations, Summary) {
        let geometry = *self.stripe.geometry();
        let (profile, unit_sectors) = (geometry.profile(), geometry.unit_sectors());
        let mut after = self.before.clone();
        let mut runs: BTreeMap<Shard, Vec<v1::SectorRun>> = BTreeMap::new();
        for (first, data) in self.new.pieces() {
            let checksums = checksum::of_sectors(data);
            for (sector, checksum) in (first..).zip(&checksums) {
                after.write(sector, *checksum);
            }
            let (shard, first_sector) = (first / unit_sectors, (first % unit_sectors) as u32);
            let run = v1::SectorRun { first_sector, data: data.clone(), checksums };
            runs.entry(Shard(shard as u8)).or_default().push(run);
        }
        for (first, count) in runs_of(self.touched) {
            let parities = self.parities(codec, first, count, &old, &old_parity);
            for (parity, data) in parities.into_iter().enumerate() {
                let checksums = checksum::of_sectors(&data);
                let run = v1::SectorRun { first_sector: first as u32, data, checksums };
                runs.entry(parity_shard(self.stripe, parity)).or_default().push(run);
            }
        }
        // Copies of a mirror all carry the summary, so all take part.
        for shard in self.stripe.shards().filter(|shard| profile.has_summary(usize::from(shard.0))) {
            runs.entry(shard).or_default();
        }
        runs.keys().for_each(|shard| after.vector[usize::from(shard.0)] = self.version);
        let participants: Vec<u32> = runs.keys().map(|shard| u32::from(shard.0)).collect();
        let operation = |(shard, runs): (Shard, Vec<v1::SectorRun>)| {
            let (place, index) = (self.stripe.place(shard), usize::from(shard.0));
            let operation = v1::PrepareOperation {
                unit: place.unit,
                identity: Some(place.identity.into()),
                version: Some(self.version.into()),
                // Without a base nothing is known of the shard, and its agent will refuse.
                base: self.bases[index].map(v1::Version::from),
                fresh: false,
                participants: participants.clone(),
                runs,
                summary: profile.has_summary(index).then(|| summary_to_wire(&after)),
            };
            (shard, operation)
        };
        (runs.into_iter().map(operation).collect(), after)
    }

    /// Parities of neighbouring verticals.
    fn parities(
        &self,
        codec: &Codec,
        first: usize,
        count: usize,
        old: &impl Fn(usize) -> Option<Bytes>,
        old_parity: &impl Fn(usize, usize) -> Option<Bytes>,
    ) -> Vec<Bytes> {
        let geometry = self.stripe.geometry();
        let (k, m) = (geometry.profile().data_shards(), geometry.profile().parity_shards());
        let mut parities: Vec<BytesMut> = (0..m).map(|_| BytesMut::zeroed(count * SECTOR_BYTES)).collect();
        for (index, vertical) in (first..first + count).enumerate() {
            let is_delta = self.delta.get(vertical);
            let column = |shard: usize| {
                let sector = shard * geometry.unit_sectors() + vertical;
                match (self.new.sector(sector), is_delta) {
                    (Some(new), true) => Some(old(sector).map_or(new.clone(), |old| sum(&new, &old))),
                    (Some(new), false) => Some(new),
                    (None, true) => None,
                    (None, false) => old(sector),
                }
            };
            let columns: Vec<Option<Bytes>> = (0..k).map(column).collect();
            let sources: Vec<&[u8]> =
                columns.iter().map(|column| column.as_deref().unwrap_or(ZEROS)).collect();
            let bytes = index * SECTOR_BYTES..(index + 1) * SECTOR_BYTES;
            let mut targets: Vec<&mut [u8]> =
                parities.iter_mut().map(|parity| &mut parity[bytes.clone()]).collect();
            codec.encode(&sources, &mut targets);
            if is_delta {
                for (parity, target) in targets.into_iter().enumerate() {
                    if let Some(old) = old_parity(parity, vertical) {
                        add(target, &old);
                    }
                }
            }
        }
        parities.into_iter().map(BytesMut::freeze).collect()
    }
}

fn add(target: &mut [u8], other: &[u8]) {
    target.iter_mut().zip(other).for_each(|(byte, other)| *byte ^= other);
}

fn sum(a: &[u8], b: &[u8]) -> Bytes {
    let mut sum = BytesMut::from(a);
    add(&mut sum, b);
    sum.freeze()
}
