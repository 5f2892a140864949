//! Writing into an empty stripe: parity from the new bytes alone, to all shards, nothing read.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use stripeset_proto::v1;
use stripeset_stripe::{
    SECTOR_BYTES, Version,
    cache::{Class, Insert, Mode, Pages},
    checksum,
    summary::Summary,
};

use super::{
    Engine,
    change::Operations,
    shard::summary_to_wire,
    write::{Tries, WriteError},
};
use crate::extents::StripeRef;

impl Engine {
    /// Writes into an empty stripe. `data` has the first bytes of each data shard, whole sectors, none longer than a
    /// unit; what they do not cover becomes never written. Goes on when the caller is gone.
    pub async fn write_fresh(
        self: &Arc<Self>,
        stripe: &StripeRef,
        data: &[Bytes],
    ) -> Result<Version, WriteError> {
        let (engine, stripe, data) = (self.clone(), stripe.clone(), data.to_vec());
        let work = async move {
            let mut tries = Tries::new();
            loop {
                match engine.write_fresh_once(&stripe, &data).await {
                    Err(error) if tries.again(&error).await => {}
                    done => return done,
                }
            }
        };
        tokio::spawn(work).await.unwrap_or(Err(WriteError::Stopping))
    }

    async fn write_fresh_once(
        self: &Arc<Self>,
        stripe: &StripeRef,
        data: &[Bytes],
    ) -> Result<Version, WriteError> {
        let mut owned = self.own_to_write(stripe).await?;
        owned.begin_without_pages();
        let write = self.versions.take_for_write();
        let version = write.version();
        let (operations, summary) = self.fresh_operations(stripe, version, data);
        let owned = self.decide(owned, stripe, write, operations).await?;
        // One that fills its stripe will not be added to.
        if !summary.written.all() && self.cache().mode() != Mode::Off {
            let mut pages = Pages::new(Class::Data, summary);
            for (shard, bytes) in data.iter().enumerate() {
                let first = shard * stripe.geometry().unit_sectors();
                for (sector, page) in (first..).zip(bytes.chunks_exact(SECTOR_BYTES)) {
                    pages.set(sector, Bytes::copy_from_slice(page));
                }
            }
            owned.finish(pages, Insert::Fresh);
        }
        Ok(version)
    }

    fn fresh_operations(
        &self,
        stripe: &StripeRef,
        version: Version,
        data: &[Bytes],
    ) -> (Operations, Summary) {
        let geometry = stripe.geometry();
        let profile = geometry.profile();
        let longest = data.iter().map(Bytes::len).max().unwrap_or(0);
        let padded: Vec<Bytes> = data.iter().map(|bytes| padded(bytes, longest)).collect();
        let parity = self.encode(stripe, &padded, longest);
        let mut summary = Summary::empty(geometry);
        summary.vector.fill(version);
        let mut runs = Vec::with_capacity(profile.shards());
        for (shard, bytes) in data.iter().enumerate() {
            let checksums = checksum::of_sectors(bytes);
            for (sector, checksum) in (shard * geometry.unit_sectors()..).zip(&checksums) {
                summary.write(sector, *checksum);
            }
            runs.push(v1::SectorRun { first_sector: 0, data: bytes.clone(), checksums });
        }
        runs.extend(parity.into_iter().map(|data| {
            let checksums = checksum::of_sectors(&data);
            v1::SectorRun { first_sector: 0, data, checksums }
        }));
        let participants: Vec<u32> = (0..profile.shards() as u32).collect();
        let operations = stripe.shards().zip(runs).map(|(shard, run)| {
            let place = stripe.place(shard);
            let operation = v1::PrepareOperation {
                unit: place.unit,
                identity: Some(place.identity.into()),
                version: Some(version.into()),
                base: None,
                fresh: true,
                participants: participants.clone(),
                runs: if run.data.is_empty() { Vec::new() } else { vec![run] },
                summary: profile.has_summary(usize::from(shard.0)).then(|| summary_to_wire(&summary)),
            };
            (shard, operation)
        });
        (operations.collect(), summary)
    }

    pub(super) fn encode(&self, stripe: &StripeRef, data: &[Bytes], length: usize) -> Vec<Bytes> {
        let parities = stripe.geometry().profile().parity_shards();
        let mut buffers: Vec<BytesMut> = (0..parities).map(|_| BytesMut::zeroed(length)).collect();
        if length > 0 {
            let sources: Vec<&[u8]> = data.iter().map(|bytes| &bytes[..]).collect();
            let mut targets: Vec<&mut [u8]> = buffers.iter_mut().map(|buffer| &mut buffer[..]).collect();
            self.codec.encode(&sources, &mut targets);
        }
        buffers.into_iter().map(BytesMut::freeze).collect()
    }
}

fn padded(bytes: &Bytes, length: usize) -> Bytes {
    if bytes.len() == length {
        return bytes.clone();
    }
    let mut longer = BytesMut::zeroed(length);
    longer[..bytes.len()].copy_from_slice(bytes);
    longer.freeze()
}
