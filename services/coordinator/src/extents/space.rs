//! Which sectors of which stripes are in use. Pure.
//!
//! A stripe is empty, full, or has a bit for each data sector.

use std::collections::BTreeMap;

use stripeset_stripe::{
    SECTOR_BYTES,
    geometry::{ChunkIndex, Geometry, Logical, Row, StripeAddress},
};

/// Free sectors that were taken in one stripe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The stripe.
    pub stripe: StripeAddress,
    /// First data sector, counted through the data shards.
    pub first_sector: usize,
    /// Number of sectors.
    pub sectors: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum RowSpace {
    Empty,
    Full,
    // One bit for each data sector, 1 in use; neither all zero nor all one.
    Partial(Box<[u64]>),
}

#[derive(Debug)]
struct ChunkSpace {
    rows: Vec<RowSpace>,
    empty_rows: usize,
    used_sectors: u64,
    // No row before this one is empty.
    first_empty: usize,
}

/// Space of all chunks.
#[derive(Debug)]
pub struct Space {
    geometry: Geometry,
    chunks: BTreeMap<u64, ChunkSpace>,
    // The chunk in which the search for holes goes on.
    hole_cursor: ChunkIndex,
}

impl RowSpace {
    fn bits(&self, sectors: usize) -> Box<[u64]> {
        let mut bits = vec![0; sectors.div_ceil(64)].into_boxed_slice();
        match self {
            RowSpace::Empty => {}
            RowSpace::Full => (0..sectors).for_each(|sector| bits[sector / 64] |= 1 << (sector % 64)),
            RowSpace::Partial(partial) => bits.copy_from_slice(partial),
        }
        bits
    }

    fn from_bits(bits: Box<[u64]>, sectors: usize) -> Self {
        match bits.iter().map(|word| word.count_ones() as usize).sum::<usize>() {
            0 => RowSpace::Empty,
            used if used == sectors => RowSpace::Full,
            _ => RowSpace::Partial(bits),
        }
    }

    fn used(&self, sector: usize) -> bool {
        match self {
            RowSpace::Empty => false,
            RowSpace::Full => true,
            RowSpace::Partial(bits) => bits[sector / 64] >> (sector % 64) & 1 == 1,
        }
    }
}

impl ChunkSpace {
    /// Sets sectors of a row to used or free. `false`, and nothing changed, if one of them was so already.
    fn set(&mut self, row: Row, first: usize, count: usize, used: bool, row_sectors: usize) -> bool {
        let index = row.0 as usize;
        let space = &mut self.rows[index];
        if (first..first + count).any(|sector| space.used(sector) == used) {
            return false;
        }
        let was_empty = *space == RowSpace::Empty;
        let mut bits = space.bits(row_sectors);
        for sector in first..first + count {
            bits[sector / 64] ^= 1 << (sector % 64);
        }
        *space = RowSpace::from_bits(bits, row_sectors);
        let is_empty = *space == RowSpace::Empty;
        if used {
            self.used_sectors += count as u64
        } else {
            self.used_sectors -= count as u64
        }
        if was_empty && !is_empty {
            self.empty_rows -= 1;
        } else if is_empty && !was_empty {
            self.empty_rows += 1;
            self.first_empty = self.first_empty.min(index);
        }
        true
    }
}

impl Space {
    /// No chunks.
    pub fn new(geometry: Geometry) -> Self {
        Space { geometry, chunks: BTreeMap::new(), hole_cursor: ChunkIndex::default() }
    }

    /// Adds an empty chunk.
    pub fn add_chunk(&mut self, index: ChunkIndex) {
        let rows = self.geometry.rows() as usize;
        let space = ChunkSpace {
            rows: vec![RowSpace::Empty; rows],
            empty_rows: rows,
            used_sectors: 0,
            first_empty: 0,
        };
        self.chunks.insert(index.0, space);
    }

    /// Whether there is an empty stripe.
    pub fn has_empty_row(&self) -> bool {
        self.chunks.values().any(|chunk| chunk.empty_rows > 0)
    }

    /// Takes the first empty stripe whole.
    pub fn take_empty_row(&mut self) -> Option<StripeAddress> {
        let sectors = self.geometry.stripe_sectors();
        let (index, chunk) = self.chunks.iter_mut().find(|(_, chunk)| chunk.empty_rows > 0)?;
        let from = chunk.first_empty;
        let row = from + chunk.rows[from..].iter().position(|row| *row == RowSpace::Empty)?;
        chunk.first_empty = row + 1;
        let address = StripeAddress { chunk: ChunkIndex(*index), row: Row(row as u32) };
        chunk.set(address.row, 0, sectors, true, sectors);
        Some(address)
    }

    /// Takes free sectors from stripes that hold others, going round the chunks; `None`, and nothing taken, if
    /// there are not so many.
    pub fn take_holes(&mut self, sectors: usize) -> Option<Vec<Piece>> {
        let row_sectors = self.geometry.stripe_sectors();
        let cursor = self.hole_cursor.0;
        let (mut pieces, mut missing) = (Vec::new(), sectors);
        let order = self.chunks.range(cursor..).chain(self.chunks.range(..cursor));
        'search: for (index, chunk) in order {
            for (row, space) in chunk.rows.iter().enumerate() {
                if !matches!(space, RowSpace::Partial(_)) {
                    continue;
                }
                let stripe = StripeAddress { chunk: ChunkIndex(*index), row: Row(row as u32) };
                missing -= collect_holes(space, stripe, row_sectors, missing, &mut pieces);
                if missing == 0 {
                    break 'search;
                }
            }
        }
        if missing > 0 {
            return None;
        }
        for piece in &pieces {
            self.hole_cursor = piece.stripe.chunk;
            let chunk = self.chunks.get_mut(&piece.stripe.chunk.0)?;
            chunk.set(piece.stripe.row, piece.first_sector, piece.sectors, true, row_sectors);
        }
        Some(pieces)
    }

    /// Takes sectors at a place, and says whether their stripe was empty; `None`, and nothing taken, if one of them is in
    /// use, or they are not all in one stripe of a chunk that there is.
    pub fn take_at(&mut self, logical: Logical, sectors: usize) -> Option<(Piece, bool)> {
        let row_sectors = self.geometry.stripe_sectors();
        let stripe = self.geometry.place(logical).stripe;
        let first_sector = (logical.0 - self.geometry.stripe_start(stripe).0) as usize / SECTOR_BYTES;
        let chunk = self.chunks.get_mut(&stripe.chunk.0)?;
        let was_empty = chunk.rows[stripe.row.0 as usize] == RowSpace::Empty;
        let fits = first_sector + sectors <= row_sectors;
        (fits && chunk.set(stripe.row, first_sector, sectors, true, row_sectors))
            .then_some((Piece { stripe, first_sector, sectors }, was_empty))
    }

    /// Marks a logical range used. `false` if it is outside all chunks or partly used; then some of it may be marked.
    pub fn take(&mut self, logical: Logical, length: u64) -> bool {
        self.set(logical, length, true)
    }

    /// Marks a logical range free. Panics if it was not in use: an extent would have been freed twice.
    pub fn free(&mut self, logical: Logical, length: u64) {
        assert!(self.set(logical, length, false), "freed twice: logical {}, {length} bytes", logical.0);
    }

    fn set(&mut self, logical: Logical, length: u64, used: bool) -> bool {
        let row_sectors = self.geometry.stripe_sectors();
        let sector_bytes = SECTOR_BYTES as u64;
        let (mut at, end) = (logical.0, logical.0.saturating_add(length));
        while at < end {
            let stripe = self.geometry.place(Logical(at)).stripe;
            let start = self.geometry.stripe_start(stripe).0;
            let stop = end.min(start + self.geometry.stripe_bytes());
            let (first, count) = ((at - start) / sector_bytes, (stop - at) / sector_bytes);
            let Some(chunk) = self.chunks.get_mut(&stripe.chunk.0) else { return false };
            if !chunk.set(stripe.row, first as usize, count as usize, used, row_sectors) {
                return false;
            }
            at = stop;
        }
        true
    }

    /// Whether a data sector of a stripe is in use.
    pub fn used(&self, stripe: StripeAddress, sector: usize) -> bool {
        self.chunks.get(&stripe.chunk.0).is_some_and(|chunk| chunk.rows[stripe.row.0 as usize].used(sector))
    }

    /// Whether no data sector of a stripe is in use.
    pub fn is_empty(&self, stripe: StripeAddress) -> bool {
        let row = self.chunks.get(&stripe.chunk.0).map(|chunk| &chunk.rows[stripe.row.0 as usize]);
        row.is_none_or(|row| *row == RowSpace::Empty)
    }

    /// Bytes in use.
    pub fn used_bytes(&self) -> u64 {
        self.chunks.values().map(|chunk| chunk.used_sectors).sum::<u64>() * SECTOR_BYTES as u64
    }

    /// Bytes in use in one chunk.
    pub fn used_in_chunk(&self, index: ChunkIndex) -> u64 {
        self.chunks.get(&index.0).map_or(0, |chunk| chunk.used_sectors * SECTOR_BYTES as u64)
    }

    /// Bytes free in chunks.
    pub fn free_bytes(&self) -> u64 {
        self.chunks.len() as u64 * self.geometry.chunk_bytes() - self.used_bytes()
    }
}

/// Adds the free runs of a row until `missing` sectors are found; how many it added.
fn collect_holes(
    space: &RowSpace,
    stripe: StripeAddress,
    row_sectors: usize,
    missing: usize,
    pieces: &mut Vec<Piece>,
) -> usize {
    let (mut sector, mut found) = (0, 0);
    while sector < row_sectors && found < missing {
        let first = sector;
        while sector < row_sectors && !space.used(sector) && found + (sector - first) < missing {
            sector += 1;
        }
        if sector > first {
            pieces.push(Piece { stripe, first_sector: first, sectors: sector - first });
            found += sector - first;
        } else {
            sector += 1;
        }
    }
    found
}

#[cfg(test)]
mod tests;
