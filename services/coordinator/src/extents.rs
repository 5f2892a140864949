//! Chunks, and which of their sectors are free.
//!
//! 1. A sector belongs to at most one extent or write at a time.
//! 2. A sector is free again only when no committed map refers to it and no reader of an older map is left (`pins`).
//! 3. A chunk is durable before anything is allocated in it.
//!
//! Decides where new bytes go. Does not move them.

pub mod packer;
pub mod pins;
pub mod space;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock},
};

use stripeset_proto::convert::Identity;
use stripeset_stripe::{
    Version,
    geometry::{ChunkIndex, Geometry, Logical, Row, Shard, StripeAddress},
};
use thiserror::Error;

use self::space::{Piece, Space};
use crate::{
    members::{MemberIndex, Members},
    meta::{ChunkRecord, Extent, Meta, MetaError},
    versions::VersionSequence,
};

/// One slice of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// The member.
    pub member: MemberIndex,
    /// Its number on that member's disk.
    pub number: u64,
}

/// A chunk.
#[derive(Debug)]
pub struct Chunk {
    /// Index in the logical space.
    pub index: ChunkIndex,
    /// Version at which it was made.
    pub incarnation: Version,
    /// Lengths and profile.
    pub geometry: Geometry,
    /// Its n slices.
    pub slices: Vec<Slice>,
}

/// One stripe of a chunk.
#[derive(Clone, Debug)]
pub struct StripeRef {
    /// The chunk.
    pub chunk: Arc<Chunk>,
    /// The row in it.
    pub row: Row,
}

/// Where one shard of a stripe is.
#[derive(Clone, Copy, Debug)]
pub struct ShardPlace {
    /// The member.
    pub member: MemberIndex,
    /// Number of the unit on its disk.
    pub unit: u64,
    /// What the unit is for.
    pub identity: Identity,
}

impl StripeRef {
    /// Its address.
    pub fn address(&self) -> StripeAddress {
        StripeAddress { chunk: self.chunk.index, row: self.row }
    }

    /// Lengths and profile.
    pub fn geometry(&self) -> &Geometry {
        &self.chunk.geometry
    }

    /// Where a shard is.
    pub fn place(&self, shard: Shard) -> ShardPlace {
        let slice = self.chunk.slices[self.geometry().slice_of(self.row, shard)];
        let identity =
            Identity { chunk: self.chunk.index, incarnation: self.chunk.incarnation, row: self.row, shard };
        ShardPlace { member: slice.member, unit: self.geometry().unit(slice.number, self.row), identity }
    }

    /// All its shards: data, then parity.
    pub fn shards(&self) -> impl Iterator<Item = Shard> + use<> {
        (0..self.geometry().profile().shards() as u8).map(Shard)
    }
}

/// The chunks of the array.
#[derive(Default)]
pub struct Chunks {
    by_index: RwLock<BTreeMap<u64, Arc<Chunk>>>,
}

impl Chunks {
    /// All chunks, by index.
    pub fn all(&self) -> Vec<Arc<Chunk>> {
        self.by_index.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// One chunk.
    pub fn get(&self, index: ChunkIndex) -> Option<Arc<Chunk>> {
        self.by_index.read().unwrap_or_else(PoisonError::into_inner).get(&index.0).cloned()
    }

    fn insert(&self, chunk: Arc<Chunk>) {
        self.by_index.write().unwrap_or_else(PoisonError::into_inner).insert(chunk.index.0, chunk);
    }
}

/// Why nothing could be allocated.
#[derive(Debug, Error)]
pub enum AllocateError {
    /// No room.
    #[error("the array is full: {needed} bytes needed, {free} bytes free; delete objects to make room")]
    Full {
        /// Bytes asked for.
        needed: u64,
        /// Bytes free.
        free: u64,
    },
    /// A new chunk could not be stored.
    #[error("a new chunk could not be stored")]
    Store(#[from] MetaError),
}

/// Why stored chunks or extents do not make sense.
#[derive(Debug, Error)]
pub enum MapError {
    /// A chunk without the right number of slices, or on a member that is not there.
    #[error("chunk {0} is damaged in the metadata database")]
    Chunk(u64),
    /// An extent outside all chunks, or one that overlaps another.
    #[error("extent at logical {logical}, {length} bytes: outside all chunks, or allocated twice")]
    Extent {
        /// First byte.
        logical: u64,
        /// Bytes.
        length: u64,
    },
}

/// All space of the array.
pub struct Extents {
    /// The chunks.
    pub chunks: Chunks,
    geometry: Geometry,
    space: Mutex<Space>,
    growing: tokio::sync::Mutex<()>,
    // Where the next small write goes, if somebody said so.
    hint: Mutex<Option<Logical>>,
    meta: Meta,
    members: Arc<Members>,
    versions: Arc<VersionSequence>,
}

impl Extents {
    /// Space without chunks.
    pub fn new(
        geometry: Geometry,
        meta: Meta,
        members: Arc<Members>,
        versions: Arc<VersionSequence>,
    ) -> Self {
        let space = Mutex::new(Space::new(geometry));
        let growing = tokio::sync::Mutex::new(());
        let hint = Mutex::default();
        Extents { chunks: Chunks::default(), geometry, space, growing, hint, meta, members, versions }
    }

    /// Lengths and profile of all chunks.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Takes a stored chunk in.
    pub fn load_chunk(&self, record: &ChunkRecord) -> Result<(), MapError> {
        let known = record.slices.iter().all(|(member, _)| (member.0 as usize) < self.members.count());
        if record.slices.len() != self.geometry.profile().shards() || !known {
            return Err(MapError::Chunk(record.index));
        }
        self.add(record);
        Ok(())
    }

    /// Takes a stored extent in: its sectors are in use.
    pub fn load_extent(&self, extent: Extent) -> Result<(), MapError> {
        let Extent { logical, length, .. } = extent;
        if self.space().take(Logical(logical), length) {
            Ok(())
        } else {
            Err(MapError::Extent { logical, length })
        }
    }

    fn add(&self, record: &ChunkRecord) {
        let slices = record.slices.iter().map(|(member, number)| Slice { member: *member, number: *number });
        self.chunks.insert(Arc::new(Chunk {
            index: ChunkIndex(record.index),
            incarnation: record.incarnation,
            geometry: self.geometry,
            slices: slices.collect(),
        }));
        self.space().add_chunk(ChunkIndex(record.index));
    }

    fn space(&self) -> MutexGuard<'_, Space> {
        self.space.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The stripe at an address. Panics if there is no such chunk: addresses come from the allocator and from maps
    /// that were checked when they were loaded.
    pub fn stripe(&self, address: StripeAddress) -> StripeRef {
        let Some(chunk) = self.chunks.get(address.chunk) else {
            panic!("stripe {address:?} is in no chunk");
        };
        StripeRef { chunk, row: address.row }
    }

    /// Takes one empty stripe whole, from a new chunk if need be; `None` when there is none.
    pub async fn take_stripe(&self) -> Result<Option<StripeRef>, MetaError> {
        loop {
            let taken = self.space().take_empty_row();
            if let Some(address) = taken {
                return Ok(Some(self.stripe(address)));
            }
            if !self.grow().await? {
                return Ok(None);
            }
        }
    }

    /// Takes free sectors in stripes that hold others, when no empty stripe is left.
    pub fn take_holes(&self, sectors: usize) -> Result<Vec<Piece>, AllocateError> {
        let pieces = self.space().take_holes(sectors);
        pieces.ok_or_else(|| AllocateError::Full {
            needed: (sectors * stripeset_stripe::SECTOR_BYTES) as u64,
            free: self.free_bytes(),
        })
    }

    /// The next small write is to begin at this sector, if it is free then.
    pub fn hint(&self, logical: Logical) {
        *self.hint.lock().unwrap_or_else(PoisonError::into_inner) = Some(logical);
    }

    /// Takes sectors where the last hint said, and whether their stripe was empty; `None` if there was no hint, or they are
    /// not free.
    pub fn take_hinted(&self, sectors: usize) -> Option<(Piece, bool)> {
        let logical = self.hint.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        let taken = self.space().take_at(logical, sectors);
        if taken.is_none() {
            tracing::warn!(logical = logical.0, sectors, "what was hinted at is not free");
        }
        taken
    }

    /// Gives sectors back.
    pub fn free(&self, logical: Logical, length: u64) {
        self.space().free(logical, length);
    }

    /// Whether a data sector of a stripe, counted through its data shards, is in use.
    pub fn live(&self, stripe: StripeAddress, sector: usize) -> bool {
        self.space().used(stripe, sector)
    }

    /// Whether no sector of a stripe is in use, or taken for a write.
    pub fn is_empty(&self, stripe: StripeAddress) -> bool {
        self.space().is_empty(stripe)
    }

    /// Bytes in use.
    pub fn used_bytes(&self) -> u64 {
        self.space().used_bytes()
    }

    /// Bytes in use in one chunk.
    pub fn used_in_chunk(&self, chunk: ChunkIndex) -> u64 {
        self.space().used_in_chunk(chunk)
    }

    /// Bytes that can still be allocated, in chunks not yet made too.
    pub fn free_bytes(&self) -> u64 {
        self.space().free_bytes() + self.chunks_possible() * self.geometry.chunk_bytes()
    }

    fn free_slices(&self) -> Vec<u64> {
        let mut free: Vec<u64> = self.members.iter().map(|member| member.slices).collect();
        for chunk in self.chunks.all() {
            for slice in &chunk.slices {
                free[slice.member.0 as usize] = free[slice.member.0 as usize].saturating_sub(1);
            }
        }
        free
    }

    /// Slices of a member that are part of a chunk.
    pub fn slices_used(&self, member: MemberIndex) -> u64 {
        let in_chunk =
            |chunk: &Arc<Chunk>| chunk.slices.iter().filter(|slice| slice.member == member).count() as u64;
        self.chunks.all().iter().map(in_chunk).sum()
    }

    /// How many more chunks fit.
    pub fn chunks_possible(&self) -> u64 {
        let profile = self.geometry.profile();
        let (members, per_member) = (profile.members(), (profile.shards() / profile.members()) as u64);
        let free: Vec<u64> = self.free_slices().iter().map(|free| free / per_member).collect();
        // c chunks fit if the members can give c * n slices with at most c each.
        let fits = |chunks: u64| {
            free.iter().map(|free| u128::from(*free.min(&chunks))).sum::<u128>()
                >= u128::from(chunks) * members as u128
        };
        let (mut low, mut high) = (0, free.iter().max().copied().unwrap_or(0));
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            if fits(middle) { low = middle } else { high = middle - 1 }
        }
        low
    }

    /// Makes one more chunk; `false` if none fits.
    async fn grow(&self) -> Result<bool, MetaError> {
        let _growing = self.growing.lock().await;
        // Another caller may have made one meanwhile.
        if self.space().has_empty_row() {
            return Ok(true);
        }
        let Some(slices) = self.place_chunk() else { return Ok(false) };
        let index = self.chunks.all().last().map_or(0, |chunk| chunk.index.0 + 1);
        let record = ChunkRecord { index, incarnation: self.versions.take(), slices };
        self.meta.add_chunk(record.clone()).await?;
        tracing::info!(chunk = index, "chunk made");
        self.add(&record);
        Ok(true)
    }

    /// Members and slice numbers for a new chunk: members that are not out first, then those with most room.
    fn place_chunk(&self) -> Option<Vec<(MemberIndex, u64)>> {
        let profile = self.geometry.profile();
        let per_member = profile.shards() / profile.members();
        let free = self.free_slices();
        let mut candidates: Vec<_> =
            self.members.iter().filter(|member| free[member.index.0 as usize] >= per_member as u64).collect();
        candidates
            .sort_by_key(|member| (member.is_out(), u64::MAX - free[member.index.0 as usize], member.index));
        candidates.truncate(profile.members());
        let in_sync = candidates.iter().filter(|member| !member.is_out()).count();
        if candidates.len() < profile.members() || in_sync * per_member < profile.data_shards() {
            return None;
        }
        candidates.sort_by_key(|member| member.index);
        let mut slices = Vec::new();
        for member in candidates {
            let mut used: Vec<u64> = Vec::new();
            for chunk in self.chunks.all() {
                used.extend(chunk.slices.iter().filter(|s| s.member == member.index).map(|s| s.number));
            }
            let unused = (0..member.slices).filter(|number| !used.contains(number));
            slices.extend(unused.take(per_member).map(|number| (member.index, number)));
        }
        (slices.len() == profile.shards()).then_some(slices)
    }
}
