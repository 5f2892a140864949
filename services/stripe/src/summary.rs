//! What parity shards, and every copy of a mirror, know of their whole stripe: the version that each shard should have,
//! which data sectors were ever written, and the checksum of each.

use crate::{Version, bits::Bits, checksum, geometry::Geometry};

/// The summary of one stripe. Invariant: lengths are those of its geometry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Version that each of the n shards should have.
    pub vector: Vec<Version>,
    /// Data sectors, counted through the data shards, that were ever written.
    pub written: Bits,
    /// Checksum of each data sector; of one never written that of zeros.
    pub checksums: Vec<u32>,
}

impl Summary {
    /// Of a stripe in which nothing was ever written.
    pub fn empty(geometry: &Geometry) -> Self {
        Summary {
            vector: vec![Version::NONE; geometry.profile().shards()],
            written: Bits::new(geometry.stripe_sectors()),
            checksums: vec![checksum::ZERO_SECTOR; geometry.stripe_sectors()],
        }
    }

    /// Notes new bytes of a data sector.
    pub fn write(&mut self, sector: usize, checksum: u32) {
        self.written.set(sector, true);
        self.checksums[sector] = checksum;
    }

    /// Notes that a data sector is as if it had never been written.
    pub fn reset(&mut self, sector: usize) {
        self.written.set(sector, false);
        self.checksums[sector] = checksum::ZERO_SECTOR;
    }
}
