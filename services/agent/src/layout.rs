//! Where things are on a disk: superblocks, journal slots, units. Pure arithmetic; the table is in docs/ON_DISK.md.
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

use crate::record;

/// Bytes reserved for each copy of the superblock.
pub(crate) const SUPERBLOCK_BYTES: u64 = 64 * 1024;

/// Where the copies of the superblock start.
pub(crate) const SUPERBLOCK_OFFSETS: [u64; 2] = [0, SUPERBLOCK_BYTES];

/// Where the journal starts. What lies between the superblocks and it is reserved.
pub(crate) const JOURNAL_OFFSET: u64 = 1024 * 1024;

/// Smallest disk: the first MiB, a journal of its least size with 64 KiB units, and room for units worth having.
pub(crate) const DISK_BYTES_MIN: u64 = 8 * 1024 * 1024;

/// Most journal slots. A coordinator commits within 50 ms or 256 writes, so more would only be listed at a start.
const SLOTS_MAX: u64 = 1024;

/// Fewest journal slots: with less, writes to a handful of stripes would wait for commits.
const SLOTS_MIN: u64 = 8;

/// The journal takes one part in so many of the disk.
const JOURNAL_SHARE: u64 = 32;

/// Most bytes of journal: what 1024 slots take with the default unit of 64 KiB. Larger units get fewer slots.
const JOURNAL_BYTES_MAX: u64 = 68 * 1024 * 1024;

/// Most shards in a stripe.
pub(crate) const SHARDS_MAX: usize = DATA_SHARDS_MAX as usize + PARITY_SHARDS_MAX as usize;

/// Most sectors in a unit of the largest length.
pub(crate) const UNIT_SECTORS_MAX: usize = stripeset_stripe::geometry::UNIT_BYTES_MAX as usize / SECTOR_BYTES;

/// The disk has no room for a slice.
#[derive(Debug, Error, PartialEq, Eq)]
#[error(
    "no slice of {slice_bytes} bytes fits: {disk_bytes} bytes of disk have room for {units} units of {unit_bytes} bytes \
     next to superblocks and journal, a slice takes {slice_units}; use smaller slices or a larger disk"
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
    record_bytes: usize,
    slots: u32,
    data_offset: u64,
    slices: u64,
    units: u64,
}

impl Layout {
    /// Lays out a disk. `unit_bytes` and `slice_bytes` are those of a checked label.
    pub(crate) fn new(disk_bytes: u64, unit_bytes: u32, slice_bytes: u64) -> Result<Layout, NoRoom> {
        let unit_sectors = unit_bytes as usize / SECTOR_BYTES;
        let record_bytes = record::record_bytes(unit_sectors);
        let stride = record_bytes as u64 + u64::from(unit_bytes);
        let share = (disk_bytes / JOURNAL_SHARE).min(JOURNAL_BYTES_MAX);
        let slots = (share / stride).clamp(SLOTS_MIN, SLOTS_MAX);
        let data_offset = JOURNAL_OFFSET + slots * stride;
        let fitting = disk_bytes.saturating_sub(data_offset) / stride;
        let slice_units = slice_bytes / u64::from(unit_bytes);
        let slices = fitting / slice_units;
        if slices == 0 {
            return Err(NoRoom { disk_bytes, unit_bytes, slice_bytes, slice_units, units: fitting });
        }
        let units = slices * slice_units;
        // SLOTS_MAX fits.
        Ok(Layout { unit_sectors, record_bytes, slots: slots as u32, data_offset, slices, units })
    }

    /// Sectors in a unit.
    pub(crate) fn unit_sectors(&self) -> usize {
        self.unit_sectors
    }

    /// Bytes in a unit, its record apart.
    pub(crate) fn unit_bytes(&self) -> usize {
        self.unit_sectors * SECTOR_BYTES
    }

    /// Bytes in a record.
    pub(crate) fn record_bytes(&self) -> usize {
        self.record_bytes
    }

    /// Journal slots.
    pub(crate) fn slots(&self) -> u32 {
        self.slots
    }

    /// Slices on the disk.
    pub(crate) fn slices(&self) -> u64 {
        self.slices
    }

    /// Units on the disk; they are numbered from 0.
    pub(crate) fn units(&self) -> u64 {
        self.units
    }

    /// The journal, in bytes of the disk.
    pub(crate) fn journal(&self) -> Range<u64> {
        JOURNAL_OFFSET..self.data_offset
    }

    /// Where the record of a journal slot starts; its bytes follow.
    pub(crate) fn slot_offset(&self, slot: u32) -> u64 {
        JOURNAL_OFFSET + u64::from(slot) * self.stride()
    }

    /// Where the record of a unit starts.
    pub(crate) fn record_offset(&self, unit: u64) -> u64 {
        self.data_offset + unit * self.stride()
    }

    /// Where a sector of a unit starts.
    pub(crate) fn sector_offset(&self, unit: u64, sector: usize) -> u64 {
        self.record_offset(unit) + self.record_bytes as u64 + (sector * SECTOR_BYTES) as u64
    }

    /// The first unit whose record starts at `offset` or later; past the last one if there is none.
    pub(crate) fn unit_from(&self, offset: u64) -> u64 {
        offset.saturating_sub(self.data_offset).div_ceil(self.stride()).min(self.units)
    }

    /// Bytes from one record to the next, and so from the first sector of a unit to that of the next.
    pub(crate) fn stride(&self) -> u64 {
        (self.record_bytes + self.unit_bytes()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1024;
    const MIB: u64 = 1024 * KIB;

    #[test]
    fn regions_are_aligned_and_do_not_overlap() {
        for disk_bytes in [DISK_BYTES_MIN, 64 * MIB, 4096 * MIB, 4096 * MIB + 12_345, 1 << 44] {
            for unit_bytes in [4096, 65_536, 1_048_576_u32] {
                let Ok(layout) = Layout::new(disk_bytes, unit_bytes, MIB) else {
                    assert!(disk_bytes == DISK_BYTES_MIN && unit_bytes == 1_048_576);
                    continue;
                };
                assert!(layout.slot_offset(0) >= SUPERBLOCK_OFFSETS[1] + SUPERBLOCK_BYTES, "invariant 2");
                assert_eq!(layout.slot_offset(layout.slots()), layout.record_offset(0), "invariant 2");
                let last = layout.units() - 1;
                let end = layout.sector_offset(last, layout.unit_sectors());
                assert!(end <= disk_bytes, "invariant 2");
                for offset in [layout.slot_offset(1), layout.record_offset(1), layout.sector_offset(last, 0)]
                {
                    assert!(offset.is_multiple_of(4 * KIB), "invariant 1");
                }
            }
        }
    }

    #[test]
    fn a_disk_without_room_for_a_slice_is_refused() {
        let error = Layout::new(DISK_BYTES_MIN, 65_536, 64 * MIB).unwrap_err();
        assert_eq!((error.slice_units, error.units), (1024, 97));
    }

    #[test]
    fn a_scan_that_lands_inside_a_unit_goes_on_with_the_next() {
        let layout = Layout::new(64 * MIB, 65_536, MIB).unwrap();
        assert_eq!(layout.unit_from(0), 0);
        assert_eq!(layout.unit_from(layout.record_offset(3)), 3);
        assert_eq!(layout.unit_from(layout.record_offset(3) + 1), 4);
        assert_eq!(layout.unit_from(u64::MAX), layout.units());
    }
}
