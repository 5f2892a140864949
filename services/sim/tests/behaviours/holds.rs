//! What has to hold of a stripe: what its reads give, and what is on its disks at rest.
//!
//! Checks say what is wrong and do not panic, so that they can be shown a broken world.

use crate::raw::RawStripe;
use bytes::Bytes;
use stripeset_coordinator::engine::{ReadError, ReadRange};
use stripeset_stripe::{Version, geometry::Shard};

use crate::stage::{At, Tested, patterns};

impl Tested<'_> {
    pub(crate) async fn read(&self, (shard, sector): At) -> Result<Bytes, ReadError> {
        let range = ReadRange {
            shard: Shard(shard as u8),
            first_sector: sector as u32,
            sectors: 1,
            version: Version::NONE,
        };
        Ok(self.engine().read(&self.stripe, &[range]).await?.remove(0))
    }

    /// The whole stripe in one read, by shard.
    pub(crate) async fn read_whole(&self) -> Result<Vec<Bytes>, ReadError> {
        let range = |shard| ReadRange {
            shard: Shard(shard),
            first_sector: 0,
            sectors: self.unit_sectors() as u32,
            version: Version::NONE,
        };
        let ranges: Vec<_> = (0..self.data_shards() as u8).map(range).collect();
        self.engine().read(&self.stripe, &ranges).await
    }

    /// What that should give of a shard.
    pub(crate) fn expected_shard(&self, shard: usize) -> Vec<u8> {
        (0..self.unit_sectors()).flat_map(|sector| self.expected((shard, sector)).unwrap()).collect()
    }

    /// Every live sector reads right.
    pub(crate) async fn reads_right(&self) -> Result<(), String> {
        for at in self.known() {
            let read = self.read(at).await.map_err(|error| format!("{at:?}: {error}"))?;
            if Some(&read) != self.expected(at).as_ref() {
                return Err(format!("{at:?} has other bytes"));
            }
        }
        Ok(())
    }

    /// At rest, on the disks: in every vertical with a live sector the parities are the code over the data, live sectors
    /// hold what they should, and parities know the versions and checksums of what is there.
    pub(crate) async fn at_rest(&self) -> Result<(), String> {
        self.settle().await;
        let raw = self.look()?;
        for vertical in self.live_verticals() {
            if !raw.is_code_word(vertical) {
                return Err(format!("vertical {vertical}: the parity is not the code over the data"));
            }
        }
        for (shard, sector) in self.known() {
            let found = raw.shards[shard].as_ref().map(|shard| &shard.sectors[sector][..]);
            if found.is_some_and(|found| Some(found) != self.expected((shard, sector)).as_deref()) {
                return Err(format!("sector {sector} of shard {shard} has other bytes on its disk"));
            }
        }
        let live = |sector: usize| self.engine().extents.live(self.stripe.address(), sector);
        match (0..raw.shards.len()).find(|shard| !raw.summary_is_right(*shard, live)) {
            Some(shard) => Err(format!("shard {shard} does not know the stripe")),
            None => Ok(()),
        }
    }

    /// At rest, on the disks: whichever m members are taken away, the others give every live sector.
    pub(crate) async fn any_m_may_be_lost(&self) -> Result<(), String> {
        self.settle().await;
        let raw = self.look()?;
        let out = raw.shards.iter().filter(|shard| shard.is_none()).count();
        for lost in patterns(raw.shards.len(), self.parity_shards() - out) {
            for vertical in self.live_verticals() {
                let whole = raw.without(vertical, &lost);
                let whole = whole.ok_or_else(|| format!("vertical {vertical} without {lost:?}: too few"))?;
                for (shard, sector) in self.known().into_iter().filter(|(_, sector)| *sector == vertical) {
                    if Some(&whole[shard][..]) != self.expected((shard, sector)).as_deref() {
                        return Err(format!("without {lost:?}: sector {sector} of shard {shard} is wrong"));
                    }
                }
            }
        }
        Ok(())
    }

    fn look(&self) -> Result<RawStripe, String> {
        RawStripe::look(self.cluster, self.coordinator, &self.stripe).map_err(|error| error.to_string())
    }

    fn live_verticals(&self) -> Vec<usize> {
        let live = |vertical: &usize| (0..self.data_shards()).any(|shard| self.is_live((shard, *vertical)));
        (0..self.unit_sectors()).filter(live).collect()
    }
}
