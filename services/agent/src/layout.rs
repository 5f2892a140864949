//! Where things are on a disk: superblocks, journal, directory and table, units. Pure arithmetic; the same is said in
//! docs/ON_DISK.md.
//!
//! Invariants:
//! 1. Every region starts at a multiple of 4 KiB, and so does every sector of every unit.
//! 2. No two regions overlap, and the last one ends within the disk.
//! 3. A layout is a function of the disk's length and the label alone: an open disk is laid out as it was at Join.

use std::ops::Range;

use stripeset_stripe::{
    SECTOR_BYTES,
    profile::{DATA_SHARDS_MAX, PARITY_SHARDS_MAX},
};
use thiserror::Error;

use crate::{record::record_bytes_max, store::VERSIONS_IN_PAGE};

/// Bytes reserved for each copy of the superblock.
pub(crate) const SUPERBLOCK_BYTES: u64 = 64 * 1024;

/// Where the copies of the superblock start.
pub(crate) const SUPERBLOCK_OFFSETS: [u64; 2] = [0, SUPERBLOCK_BYTES];

/// Where the copies of the journal's head are.
pub(crate) const JOURNAL_HEAD_OFFSETS: [u64; 2] = [128 * 1024, 192 * 1024];

/// Where the journal's ring starts. What lies between the heads and it is reserved.
pub(crate) const RING_OFFSET: u64 = 1024 * 1024;

/// Smallest disk: the first MiB, a ring of its least size with 64 KiB units, and room for units worth having.
pub(crate) const DISK_BYTES_MIN: u64 = 8 * 1024 * 1024;

/// The ring takes one part in so many of the disk.
const RING_SHARE: u64 = 32;

/// Most bytes of ring: a start reads them all, and what is pending or not yet applied is held in memory.
const RING_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// The largest prepare takes at most one part in so many of the ring: the limits in `store` count in such parts.
pub(crate) const RING_PARTS: u64 = 16;

/// Most shards in a stripe.
pub(crate) const SHARDS_MAX: usize = DATA_SHARDS_MAX as usize + PARITY_SHARDS_MAX as usize;

/// Most sectors in a unit of the largest length.
pub(crate) const UNIT_SECTORS_MAX: usize = stripeset_stripe::geometry::UNIT_BYTES_MAX as usize / SECTOR_BYTES;

/// Most data sectors in a stripe.
pub(crate) const DATA_SECTORS_MAX: usize = DATA_SHARDS_MAX as usize * UNIT_SECTORS_MAX;

/// Pages of the table that share one entry of the directory: 1 MiB with small pages.
const REGION_PAGES: u64 = 256;

const BLOCK_BYTES: u64 = crate::disk::BLOCK_BYTES as u64;

/// What the stripes of an array need room for in a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) shards: usize,
    pub(crate) data_shards: usize,
}

/// The disk has no room for a slice.
#[derive(Debug, Error, PartialEq, Eq)]
#[error(
    "no slice of {slice_bytes} bytes fits: {disk_bytes} bytes of disk have room for {units} units of {unit_bytes} bytes \
     next to superblocks, journal and table, a slice takes {slice_units}; use smaller slices or a larger disk"
)]
pub(crate) struct NoRoom {
    disk_bytes: u64,
    unit_bytes: u32,
    slice_bytes: u64,
    slice_units: u64,
    units: u64,
}

/// The layout of a joined disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    unit_sectors: usize,
    shape: Shape,
    ring_bytes: u64,
    place_bytes: usize,
    page_bytes: usize,
    units: u64,
    slices: u64,
}

impl Layout {
    /// Lays out a disk. `unit_bytes`, `slice_bytes` and `shape` are those of a checked label.
    pub(crate) fn new(
        disk_bytes: u64,
        unit_bytes: u32,
        slice_bytes: u64,
        shape: Shape,
    ) -> Result<Layout, NoRoom> {
        let unit_sectors = unit_bytes as usize / SECTOR_BYTES;
        let place_bytes = record_bytes_max(unit_sectors, shape.shards, shape.data_shards * unit_sectors);
        let page_bytes = place_bytes.next_multiple_of(BLOCK_BYTES as usize);
        let part_max = u64::from(unit_bytes) + page_bytes as u64 + BLOCK_BYTES;
        let share = (disk_bytes / RING_SHARE).min(RING_BYTES_MAX);
        let ring_bytes = share.max(RING_PARTS * part_max).next_multiple_of(RING_PARTS * BLOCK_BYTES);
        let layout = |slices: u64| {
            let units = slices * (slice_bytes / u64::from(unit_bytes));
            Layout { unit_sectors, shape, ring_bytes, place_bytes, page_bytes, units, slices }
        };
        // From above: as if records took nothing. What they do take is a few percent.
        let mut slices = disk_bytes / slice_bytes;
        while slices > 0 && layout(slices).end() > disk_bytes {
            let over = layout(slices).end() - disk_bytes;
            slices = slices.saturating_sub((over / (2 * slice_bytes)).max(1));
        }
        let fitting = layout(slices);
        if slices == 0 {
            let room = disk_bytes.saturating_sub(fitting.data_offset());
            let units = room / (u64::from(unit_bytes) + place_bytes as u64);
            let slice_units = slice_bytes / u64::from(unit_bytes);
            return Err(NoRoom { disk_bytes, unit_bytes, slice_bytes, slice_units, units });
        }
        Ok(fitting)
    }

    /// Sectors in a unit.
    pub(crate) fn unit_sectors(&self) -> usize {
        self.unit_sectors
    }

    /// Bytes in a unit.
    pub(crate) fn unit_bytes(&self) -> usize {
        self.unit_sectors * SECTOR_BYTES
    }

    /// What stripes the records have room for.
    pub(crate) fn shape(&self) -> Shape {
        self.shape
    }

    /// Slices on the disk.
    pub(crate) fn slices(&self) -> u64 {
        self.slices
    }

    /// Units on the disk; they are numbered from 0.
    pub(crate) fn units(&self) -> u64 {
        self.units
    }

    /// Bytes of the journal's ring; a multiple of [`RING_PARTS`] blocks.
    pub(crate) fn ring_bytes(&self) -> u64 {
        self.ring_bytes
    }

    /// What is written out when the disk joins: ring, directory, table.
    pub(crate) fn written_out(&self) -> Range<u64> {
        RING_OFFSET..self.table_end()
    }

    /// Bytes in the place of a record in the table.
    pub(crate) fn place_bytes(&self) -> usize {
        self.place_bytes
    }

    /// Bytes in a page of the table.
    pub(crate) fn page_bytes(&self) -> usize {
        self.page_bytes
    }

    /// Units whose records are in one page.
    pub(crate) fn page_units(&self) -> u64 {
        (self.page_bytes / self.place_bytes) as u64
    }

    /// Pages in the table.
    pub(crate) fn pages(&self) -> u64 {
        self.units.div_ceil(self.page_units())
    }

    /// Units whose records are in one region of the table.
    pub(crate) fn region_units(&self) -> u64 {
        REGION_PAGES * self.page_units()
    }

    /// Regions of the table, each with an entry in the directory.
    pub(crate) fn regions(&self) -> u64 {
        self.pages().div_ceil(REGION_PAGES)
    }

    /// The region of a unit.
    pub(crate) fn region_of(&self, unit: u64) -> u64 {
        unit / self.region_units()
    }

    /// Where the directory starts.
    pub(crate) fn directory_offset(&self) -> u64 {
        RING_OFFSET + self.ring_bytes
    }

    /// Where a page of the table starts.
    pub(crate) fn page_offset(&self, page: u64) -> u64 {
        let directory_pages = self.regions().div_ceil(VERSIONS_IN_PAGE as u64);
        self.directory_offset() + directory_pages * BLOCK_BYTES + page * self.page_bytes as u64
    }

    fn table_end(&self) -> u64 {
        self.page_offset(self.pages())
    }

    /// Where the first unit starts: at a multiple of the unit's length.
    pub(crate) fn data_offset(&self) -> u64 {
        self.table_end().next_multiple_of(self.unit_bytes() as u64)
    }

    fn end(&self) -> u64 {
        self.data_offset() + self.units * self.unit_bytes() as u64
    }

    /// The unit and the sector that a byte of the disk is in.
    pub(crate) fn place_of(&self, offset: u64) -> Option<(u64, usize)> {
        let into = offset.checked_sub(self.data_offset())?;
        let unit = into / self.unit_bytes() as u64;
        let sector = (into % self.unit_bytes() as u64) as usize / SECTOR_BYTES;
        (unit < self.units).then_some((unit, sector))
    }

    /// Where a sector of a unit starts.
    pub(crate) fn sector_offset(&self, unit: u64, sector: usize) -> u64 {
        self.data_offset() + unit * self.unit_bytes() as u64 + (sector * SECTOR_BYTES) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1024;
    const MIB: u64 = 1024 * KIB;
    const RAID5: Shape = Shape { shards: 5, data_shards: 4 };
    const LARGEST: Shape = Shape { shards: SHARDS_MAX, data_shards: DATA_SHARDS_MAX as usize };

    #[test]
    fn regions_are_aligned_and_do_not_overlap() {
        for disk_bytes in [DISK_BYTES_MIN, 64 * MIB, 4096 * MIB, 4096 * MIB + 12_345, 1 << 44] {
            for unit_bytes in [4096, 65_536, 1_048_576_u32] {
                for shape in [RAID5, LARGEST] {
                    let Ok(layout) = Layout::new(disk_bytes, unit_bytes, MIB, shape) else {
                        assert!(disk_bytes == DISK_BYTES_MIN && unit_bytes == 1_048_576);
                        continue;
                    };
                    assert!(
                        JOURNAL_HEAD_OFFSETS[0] >= SUPERBLOCK_OFFSETS[1] + SUPERBLOCK_BYTES,
                        "invariant 2"
                    );
                    assert!(JOURNAL_HEAD_OFFSETS[1] + BLOCK_BYTES <= RING_OFFSET, "invariant 2");
                    assert!(layout.directory_offset() + BLOCK_BYTES <= layout.page_offset(0), "invariant 2");
                    assert!(layout.page_offset(layout.pages()) <= layout.data_offset(), "invariant 2");
                    assert!(layout.pages() * layout.page_units() >= layout.units());
                    assert!(layout.end() <= disk_bytes, "invariant 2");
                    for offset in
                        [layout.directory_offset(), layout.page_offset(1), layout.sector_offset(1, 0)]
                    {
                        assert!(offset.is_multiple_of(BLOCK_BYTES), "invariant 1");
                    }
                    let more = Layout {
                        slices: layout.slices + 1,
                        units: layout.units + MIB / u64::from(unit_bytes),
                        ..layout
                    };
                    assert!(more.end() > disk_bytes, "no slice is left out");
                }
            }
        }
    }

    #[test]
    fn a_byte_of_the_disk_is_in_one_sector() {
        let layout = Layout::new(64 * MIB, 65_536, MIB, RAID5).unwrap();
        for (unit, sector) in [(0, 0), (0, 15), (1, 0), (layout.units() - 1, 15)] {
            let offset = layout.sector_offset(unit, sector);
            for byte in [0, 1, 4095] {
                assert_eq!(layout.place_of(offset + byte), Some((unit, sector)));
            }
        }
        assert_eq!(layout.place_of(layout.data_offset() - 1), None);
        assert_eq!(layout.place_of(layout.end()), None);
    }

    #[test]
    fn the_largest_prepare_takes_one_part_of_the_ring() {
        for unit_bytes in [4096, 65_536, 1_048_576_u32] {
            let layout = Layout::new(1 << 30, unit_bytes, MIB, LARGEST).unwrap();
            let largest = u64::from(unit_bytes) + layout.place_bytes() as u64 + 256;
            assert!(layout.ring_bytes() / RING_PARTS >= largest.next_multiple_of(BLOCK_BYTES));
        }
    }

    #[test]
    fn a_disk_without_room_for_a_slice_is_refused() {
        let error = Layout::new(DISK_BYTES_MIN, 65_536, 64 * MIB, RAID5).unwrap_err();
        assert_eq!(error.slice_units, 1024);
        assert!((80..=100).contains(&error.units), "{error}");
    }

    #[test]
    fn records_of_common_arrays_share_pages() {
        let layout = |unit_bytes, shape| Layout::new(1 << 32, unit_bytes, 64 * MIB, shape).unwrap();
        assert_eq!(layout(65_536, RAID5).page_units(), 6);
        assert_eq!(layout(65_536, Shape { shards: 2, data_shards: 1 }).page_units(), 12);
        assert_eq!(layout(65_536, LARGEST).page_units(), 2);
        assert_eq!(layout(1_048_576, RAID5).page_bytes(), 8192);
    }
}
