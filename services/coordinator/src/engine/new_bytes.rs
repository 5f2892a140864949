//! The new bytes of a write: edits of one stripe in the order in which they were submitted, each over those before it.
//!
//! Invariant: pieces do not overlap, hold whole sectors, and none crosses from one shard into the next.

use std::collections::BTreeMap;

use bytes::Bytes;
use stripeset_stripe::{SECTOR_BYTES, bits::Bits, geometry::Geometry};

use super::Edit;

/// New bytes of data sectors.
#[derive(Clone, Debug, Default)]
pub(super) struct NewBytes {
    /// By the first data sector, counted through the data shards.
    pieces: BTreeMap<usize, Bytes>,
}

impl NewBytes {
    /// Edits, each over those before it.
    pub(super) fn new<'a>(geometry: &Geometry, edits: impl IntoIterator<Item = &'a Edit>) -> Self {
        let mut new = NewBytes::default();
        for edit in edits {
            let first = usize::from(edit.shard.0) * geometry.unit_sectors() + edit.first_sector as usize;
            new.put(first, edit.data.clone());
        }
        new
    }

    /// Puts bytes over what is there.
    pub(super) fn put(&mut self, first: usize, data: Bytes) {
        let end = first + sectors(&data);
        // Only the last piece that begins before can reach in.
        if let Some((&start, before)) = self.pieces.range_mut(..first).next_back() {
            let cut = (first - start) * SECTOR_BYTES;
            if before.len() > cut {
                let mut rest = before.split_off(cut);
                if sectors(&rest) > end - first {
                    let after = rest.split_off((end - first) * SECTOR_BYTES);
                    self.pieces.insert(end, after);
                }
            }
        }
        while let Some((&start, _)) = self.pieces.range(first..end).next() {
            let Some(mut covered) = self.pieces.remove(&start) else { continue };
            if start + sectors(&covered) > end {
                self.pieces.insert(end, covered.split_off((end - start) * SECTOR_BYTES));
            }
        }
        self.pieces.insert(first, data);
    }

    /// First data sector and bytes of each piece, ascending.
    pub(super) fn pieces(&self) -> impl Iterator<Item = (usize, &Bytes)> {
        self.pieces.iter().map(|(first, data)| (*first, data))
    }

    /// Data sectors that are written.
    pub(super) fn covered(&self, stripe_sectors: usize) -> Bits {
        let mut covered = Bits::new(stripe_sectors);
        for (first, data) in self.pieces() {
            (first..first + sectors(data)).for_each(|sector| covered.set(sector, true));
        }
        covered
    }

    /// New bytes of one sector.
    pub(super) fn sector(&self, sector: usize) -> Option<Bytes> {
        let (first, data) = self.pieces.range(..=sector).next_back()?;
        let start = (sector - first) * SECTOR_BYTES;
        (start < data.len()).then(|| data.slice(start..start + SECTOR_BYTES))
    }
}

fn sectors(data: &Bytes) -> usize {
    data.len() / SECTOR_BYTES
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    proptest! {
        #[test]
        fn the_last_edit_of_a_sector_counts(puts in vec((0..20_usize, 1..8_usize), 1..30)) {
            let mut new = NewBytes::default();
            let mut plain = [None; 28];
            for (fill, (first, count)) in (1_u8..).zip(puts) {
                let data: Vec<u8> = (0..count).flat_map(|_| [fill; SECTOR_BYTES]).collect();
                new.put(first, data.into());
                plain[first..first + count].fill(Some(fill));
            }
            let covered = new.covered(plain.len());
            let mut end = 0;
            for (first, data) in new.pieces() {
                prop_assert!(first >= end && !data.is_empty(), "pieces do not overlap");
                end = first + sectors(data);
            }
            for (sector, fill) in plain.into_iter().enumerate() {
                prop_assert_eq!(covered.get(sector), fill.is_some());
                let found = new.sector(sector);
                prop_assert_eq!(found.as_ref().map(|bytes| bytes[0]), fill);
                prop_assert!(found.is_none_or(|bytes| bytes[..] == [bytes[0]; SECTOR_BYTES]));
            }
        }
    }
}
