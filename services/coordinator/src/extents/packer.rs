//! Packs small pieces of data, the ends of objects among them, into an open stripe, one batch at a time. What waits
//! while a batch is being written goes into the next one together, so many small objects share a stripe write.
//!
//! 1. At most one batch is being written.
//! 2. The open stripe is taken whole from the allocator; what of it is handed out is freed by its owners, and what is
//!    left when it closes is given back.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use futures_util::future::join_all;
use stripeset_stripe::{
    SECTOR_BYTES,
    geometry::{Geometry, Logical, Shard, StripeAddress},
};
use tokio::sync::{mpsc, oneshot};

use super::{AllocateError, space::Piece};
use crate::{
    engine::{Edit, Engine, WriteError},
    meta::{Extent, MetaError},
};

/// Pieces waiting; more wait for a place.
const WAITING_MAX: usize = 256;

/// Stripes' worth of data in one batch.
const BATCH_STRIPES_MAX: usize = 4;

/// Why a piece was not stored.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// No room.
    #[error(transparent)]
    Allocate(#[from] Arc<AllocateError>),
    /// A stripe could not be written.
    #[error(transparent)]
    Write(#[from] Arc<WriteError>),
    /// The process is stopping.
    #[error("the coordinator is stopping")]
    Stopping,
}

impl StoreError {
    /// The outcome is open: the sectors must not be used for anything else.
    pub fn is_open(&self) -> bool {
        matches!(self, StoreError::Write(error) if matches!(**error, WriteError::Open { .. }))
    }
}

impl From<MetaError> for StoreError {
    fn from(error: MetaError) -> Self {
        StoreError::Allocate(Arc::new(error.into()))
    }
}

struct Waiting {
    data: Bytes,
    reply: oneshot::Sender<Result<Vec<Extent>, StoreError>>,
}

/// Stores pieces smaller than a stripe.
#[derive(Clone)]
pub struct Packer {
    waiting: mpsc::Sender<Waiting>,
}

impl Packer {
    /// Starts the task; it ends when the last [`Packer`] is gone.
    pub fn start(engine: Arc<Engine>) -> Self {
        let (waiting, queue) = mpsc::channel(WAITING_MAX);
        let open = None;
        tokio::spawn(Packing { engine, open }.run(queue));
        Packer { waiting }
    }

    /// Stores whole sectors, at most a stripe of them; where they are now, in order.
    pub async fn store(&self, data: Bytes) -> Result<Vec<Extent>, StoreError> {
        let (reply, answer) = oneshot::channel();
        if self.waiting.send(Waiting { data, reply }).await.is_err() {
            return Err(StoreError::Stopping);
        }
        answer.await.unwrap_or(Err(StoreError::Stopping))
    }
}

/// The stripe that is being filled.
#[derive(Clone, Copy)]
struct OpenStripe {
    address: StripeAddress,
    next_sector: usize,
    /// Nothing was written to it yet.
    fresh: bool,
}

struct Packing {
    engine: Arc<Engine>,
    open: Option<OpenStripe>,
}

/// What one batch writes to one stripe.
struct StripeWrite {
    address: StripeAddress,
    fresh: bool,
    /// First sector in the stripe, and bytes, in order.
    parts: Vec<(usize, Bytes)>,
}

impl Packing {
    async fn run(mut self, mut queue: mpsc::Receiver<Waiting>) {
        let limit = BATCH_STRIPES_MAX * self.engine.extents.geometry().stripe_bytes() as usize;
        while let Some(first) = queue.recv().await {
            let (mut batch, mut bytes) = (vec![], first.data.len());
            batch.push(first);
            while bytes < limit
                && let Ok(waiting) = queue.try_recv()
            {
                bytes += waiting.data.len();
                batch.push(waiting);
            }
            self.write_batch(batch).await;
        }
        self.close();
    }

    async fn write_batch(&mut self, batch: Vec<Waiting>) {
        let mut writes: Vec<StripeWrite> = Vec::new();
        let mut placed = Vec::with_capacity(batch.len());
        for waiting in batch {
            let pieces = self.place(waiting.data.len() / SECTOR_BYTES).await;
            if let Ok(pieces) = &pieces {
                let mut data = waiting.data;
                for (piece, fresh) in pieces {
                    let part = data.split_to(piece.sectors * SECTOR_BYTES);
                    add(&mut writes, *piece, *fresh, part);
                }
            }
            placed.push((pieces, waiting.reply));
        }
        let outcomes = join_all(writes.iter().map(|write| self.write(write))).await;
        let outcome = |address: StripeAddress| {
            let index = writes.iter().position(|write| write.address == address);
            index.map_or(Err(StoreError::Stopping), |index| outcomes[index].clone())
        };
        if let Some(open) = &mut self.open {
            match outcome(open.address) {
                Ok(_) => open.fresh = false,
                // Its lock is held until a member comes back: nothing more goes there.
                Err(error) if error.is_open() => self.open = None,
                Err(_) if writes.iter().any(|write| write.address == open.address) => self.close(),
                Err(_) => {}
            }
        }
        for (pieces, reply) in placed {
            let stored = pieces.and_then(|pieces| self.settle(&pieces, &outcome));
            // A caller that is gone has no use for its extents: nothing refers to them, and they are freed.
            if let Err(Ok(extents)) = reply.send(stored) {
                self.free(&extents);
            }
        }
    }

    /// The extents of one piece of data, or none of them.
    fn settle(
        &self,
        pieces: &[(Piece, bool)],
        outcome: &impl Fn(StripeAddress) -> Result<stripeset_stripe::Version, StoreError>,
    ) -> Result<Vec<Extent>, StoreError> {
        let geometry = self.engine.extents.geometry();
        let mut extents = Vec::with_capacity(pieces.len());
        let mut failed = None;
        for (piece, _) in pieces {
            match outcome(piece.stripe) {
                Ok(version) => extents.push(piece.extent(geometry, version)),
                Err(error) => {
                    failed = Some(error.clone());
                    if !error.is_open() {
                        self.free(&[piece.extent(geometry, stripeset_stripe::Version::NONE)]);
                    }
                }
            }
        }
        match failed {
            None => Ok(extents),
            Some(error) => {
                self.free(&extents);
                Err(error)
            }
        }
    }

    fn free(&self, extents: &[Extent]) {
        for extent in extents {
            self.engine.free(Logical(extent.logical), extent.length);
        }
    }

    /// Sectors for one piece of data: from the open stripe, else from a new one, else from holes. With each, whether
    /// its stripe is fresh.
    async fn place(&mut self, sectors: usize) -> Result<Vec<(Piece, bool)>, StoreError> {
        let stripe_sectors = self.engine.extents.geometry().stripe_sectors();
        if let Some(hinted) = self.engine.extents.take_hinted(sectors) {
            return Ok(vec![hinted]);
        }
        let (mut pieces, mut missing) = (Vec::new(), sectors);
        while missing > 0 {
            let Some(open) = &mut self.open else {
                match self.engine.extents.take_stripe().await {
                    Ok(Some(stripe)) => {
                        self.open =
                            Some(OpenStripe { address: stripe.address(), next_sector: 0, fresh: true });
                    }
                    Ok(None) => match self.engine.extents.take_holes(missing) {
                        Ok(holes) => {
                            pieces.extend(holes.into_iter().map(|piece| (piece, false)));
                            missing = 0;
                        }
                        Err(error) => return Err(self.give_back(&pieces, Arc::new(error).into())),
                    },
                    Err(error) => return Err(self.give_back(&pieces, error.into())),
                }
                continue;
            };
            let sectors = missing.min(stripe_sectors - open.next_sector);
            pieces
                .push((Piece { stripe: open.address, first_sector: open.next_sector, sectors }, open.fresh));
            open.next_sector += sectors;
            missing -= sectors;
            if open.next_sector == stripe_sectors {
                self.open = None;
            }
        }
        Ok(pieces)
    }

    fn give_back(&self, pieces: &[(Piece, bool)], error: StoreError) -> StoreError {
        let geometry = self.engine.extents.geometry();
        let extent = |(piece, _): &(Piece, bool)| piece.extent(geometry, stripeset_stripe::Version::NONE);
        self.free(&pieces.iter().map(extent).collect::<Vec<_>>());
        error
    }

    /// Gives back what is left of the open stripe.
    fn close(&mut self) {
        let Some(open) = self.open.take() else { return };
        let sectors = self.engine.extents.geometry().stripe_sectors() - open.next_sector;
        let rest = Piece { stripe: open.address, first_sector: open.next_sector, sectors };
        self.give_back(&[(rest, false)], StoreError::Stopping);
    }

    async fn write(&self, write: &StripeWrite) -> Result<stripeset_stripe::Version, StoreError> {
        let stripe = self.engine.extents.stripe(write.address);
        let written = if write.fresh {
            self.engine
                .write_fresh(&stripe, &columns(stripe.geometry(), &write.parts))
                .await
                .map_err(Arc::new)
        } else {
            self.engine.write_partial(&stripe, edits(stripe.geometry(), &write.parts)).await
        };
        Ok(written?)
    }
}

impl Piece {
    fn extent(&self, geometry: &Geometry, version: stripeset_stripe::Version) -> Extent {
        Extent {
            logical: geometry.stripe_start(self.stripe).0 + (self.first_sector * SECTOR_BYTES) as u64,
            length: (self.sectors * SECTOR_BYTES) as u64,
            version,
        }
    }
}

fn add(writes: &mut Vec<StripeWrite>, piece: Piece, fresh: bool, data: Bytes) {
    let part = (piece.first_sector, data);
    match writes.iter_mut().find(|write| write.address == piece.stripe) {
        Some(write) => write.parts.push(part),
        None => writes.push(StripeWrite { address: piece.stripe, fresh, parts: vec![part] }),
    }
}

/// Data shards of a fresh stripe. What no part covers before the last one, because its owner got no room, is zeros.
fn columns(geometry: &Geometry, parts: &[(usize, Bytes)]) -> Vec<Bytes> {
    let end = parts.iter().map(|(first, data)| first * SECTOR_BYTES + data.len()).max().unwrap_or(0);
    let mut whole = BytesMut::zeroed(end);
    for (first, data) in parts {
        whole[first * SECTOR_BYTES..][..data.len()].copy_from_slice(data);
    }
    split_columns(geometry, whole.freeze())
}

/// The start of a stripe's data, cut into its data shards.
pub fn split_columns(geometry: &Geometry, mut data: Bytes) -> Vec<Bytes> {
    let shards = geometry.profile().data_shards();
    (0..shards).map(|_| data.split_to(data.len().min(geometry.unit_bytes()))).collect()
}

/// Parts of a stripe as edits, cut at the ends of its units.
fn edits(geometry: &Geometry, parts: &[(usize, Bytes)]) -> Vec<Edit> {
    let mut edits = Vec::new();
    for (first_sector, data) in parts {
        let (mut sector, mut data) = (*first_sector, data.clone());
        while !data.is_empty() {
            let (shard, in_unit) = (sector / geometry.unit_sectors(), sector % geometry.unit_sectors());
            let sectors = (geometry.unit_sectors() - in_unit).min(data.len() / SECTOR_BYTES);
            let first_sector = in_unit as u32;
            let part = data.split_to(sectors * SECTOR_BYTES);
            edits.push(Edit { shard: Shard(shard as u8), first_sector, data: part });
            sector += sectors;
        }
    }
    edits
}
