//! Where bytes are: from a logical address to chunk, stripe, shard and sector, and on to a unit of a disk.
//!
//! The logical address space of an array is a row of chunks of equal length. A chunk holds `rows` stripes, one after
//! the other; a stripe holds the data of its k data shards, one unit after the other. Parity has no address. The
//! shards of row r rotate by r over the slices of the chunk, so parity visits every member.
//!
//! Does not decide which members a chunk is on, nor where on a disk a unit lies.

use thiserror::Error;

use crate::{SECTOR_BYTES, profile::Profile};

/// Smallest stripe unit in bytes.
pub const UNIT_BYTES_MIN: u32 = 4 * 1024;

/// Largest stripe unit in bytes.
pub const UNIT_BYTES_MAX: u32 = 1024 * 1024;

/// Most bytes in a slice: 64 GiB, so that rows fit 32 bits with the smallest unit.
pub const SLICE_BYTES_MAX: u64 = 64 * 1024 * 1024 * 1024;

/// Byte address in the logical space of an array.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Logical(pub u64);

/// Index of a chunk in the logical space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChunkIndex(pub u64);

/// Row of a stripe in its chunk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Row(pub u32);

/// Index of a shard in its stripe: data from 0, then parity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Shard(pub u8);

/// One stripe of an array.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StripeAddress {
    /// The chunk.
    pub chunk: ChunkIndex,
    /// The row in it.
    pub row: Row,
}

/// Place of one data byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The stripe.
    pub stripe: StripeAddress,
    /// The data shard.
    pub shard: Shard,
    /// The sector of the shard.
    pub sector: u32,
    /// The byte in the sector.
    pub byte: u32,
}

/// Why lengths do not make a geometry.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum GeometryError {
    /// The stripe unit has a wrong length.
    #[error("stripe unit of {0} bytes: it has to be a power of two from 4096 (4 KiB) to 1048576 (1 MiB)")]
    Unit(u32),
    /// The slice has a wrong length.
    #[error("slice of {slice} bytes: it has to be a multiple of the stripe unit ({unit}), at most 64 GiB")]
    Slice {
        /// Length given.
        slice: u64,
        /// Length of the stripe unit.
        unit: u32,
    },
}

/// Lengths of one profile's chunks. Invariants: unit is a power of two of sectors; slice is a multiple of unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    profile: Profile,
    unit_bytes: u32,
    slice_bytes: u64,
}

impl Geometry {
    /// Lengths in bytes; refuses those that do not fit together.
    pub fn new(profile: Profile, unit_bytes: u32, slice_bytes: u64) -> Result<Self, GeometryError> {
        if !unit_bytes.is_power_of_two() || !(UNIT_BYTES_MIN..=UNIT_BYTES_MAX).contains(&unit_bytes) {
            return Err(GeometryError::Unit(unit_bytes));
        }
        let fits = slice_bytes > 0 && slice_bytes.is_multiple_of(u64::from(unit_bytes));
        if !fits || slice_bytes > SLICE_BYTES_MAX {
            return Err(GeometryError::Slice { slice: slice_bytes, unit: unit_bytes });
        }
        Ok(Geometry { profile, unit_bytes, slice_bytes })
    }

    /// The profile.
    pub fn profile(&self) -> Profile {
        self.profile
    }

    /// Bytes in a stripe unit.
    pub fn unit_bytes(&self) -> usize {
        self.unit_bytes as usize
    }

    /// Bytes in a slice.
    pub fn slice_bytes(&self) -> u64 {
        self.slice_bytes
    }

    /// Sectors in a stripe unit.
    pub fn unit_sectors(&self) -> usize {
        self.unit_bytes() / SECTOR_BYTES
    }

    /// Stripes in a chunk; also units in a slice.
    pub fn rows(&self) -> u32 {
        // At most 64 GiB / 4 KiB = 2^24.
        (self.slice_bytes / u64::from(self.unit_bytes)) as u32
    }

    /// Data bytes in a stripe.
    pub fn stripe_bytes(&self) -> u64 {
        u64::from(self.unit_bytes) * self.profile.data_shards() as u64
    }

    /// Data sectors in a stripe.
    pub fn stripe_sectors(&self) -> usize {
        self.unit_sectors() * self.profile.data_shards()
    }

    /// Data bytes in a chunk.
    pub fn chunk_bytes(&self) -> u64 {
        self.stripe_bytes() * u64::from(self.rows())
    }

    /// First logical byte of a stripe.
    pub fn stripe_start(&self, stripe: StripeAddress) -> Logical {
        Logical(stripe.chunk.0 * self.chunk_bytes() + u64::from(stripe.row.0) * self.stripe_bytes())
    }

    /// Place of a logical byte.
    pub fn place(&self, logical: Logical) -> Place {
        let (chunk, in_chunk) = (logical.0 / self.chunk_bytes(), logical.0 % self.chunk_bytes());
        let (row, in_stripe) = (in_chunk / self.stripe_bytes(), in_chunk % self.stripe_bytes());
        let (shard, in_unit) =
            (in_stripe / u64::from(self.unit_bytes), in_stripe % u64::from(self.unit_bytes));
        let sector_bytes = SECTOR_BYTES as u64;
        Place {
            stripe: StripeAddress { chunk: ChunkIndex(chunk), row: Row(row as u32) },
            shard: Shard(shard as u8),
            sector: (in_unit / sector_bytes) as u32,
            byte: (in_unit % sector_bytes) as u32,
        }
    }

    /// Logical address of a place; the inverse of [`Geometry::place`].
    pub fn logical(&self, place: Place) -> Logical {
        let in_stripe = u64::from(place.shard.0) * u64::from(self.unit_bytes)
            + u64::from(place.sector) * SECTOR_BYTES as u64
            + u64::from(place.byte);
        Logical(self.stripe_start(place.stripe).0 + in_stripe)
    }

    /// Which slice of the chunk, counted in the chunk's order, holds a shard of a row.
    pub fn slice_of(&self, row: Row, shard: Shard) -> usize {
        let shards = self.profile.shards();
        (usize::from(shard.0) + row.0 as usize % shards) % shards
    }

    /// Which shard of a row a slice of the chunk holds; the inverse of [`Geometry::slice_of`].
    pub fn shard_of(&self, row: Row, slice: usize) -> Shard {
        let shards = self.profile.shards();
        Shard(((slice + shards - row.0 as usize % shards) % shards) as u8)
    }

    /// Number, on its disk, of the unit at `row` of slice `slice` of that disk.
    pub fn unit(&self, slice: u64, row: Row) -> u64 {
        slice * u64::from(self.rows()) + u64::from(row.0)
    }
}

#[cfg(test)]
mod tests;
