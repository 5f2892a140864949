//! What the coordinator remembers: the array, its members and chunks, and the map from objects to extents. A redb
//! database in the state folder, written by one thread that makes many changes durable with one commit.
//!
//! 1. A change is durable before it is answered.
//! 2. A commit is all or nothing, and so is every change in it: one that cannot be made leaves no trace.
//! 3. Frees are handed out with the sequence number of the commit that made them durable; readers pin such numbers
//!    (`extents::pins`).
//!
//! Does not decide where extents are, nor when a freed one may be used again.

mod change;
mod read;
mod tables;

use std::{io, path::Path, sync::Arc};

use redb::{Database, Durability, ReadableDatabase, backends::InMemoryBackend};
use stripeset_stripe::Version;
use thiserror::Error;
use tokio::sync::{mpsc, oneshot};
use uuid::Uuid;

use self::{change::Change, tables::Tables};
pub use self::{
    change::{Committed, PutObject, Rejection},
    read::{ObjectPage, Snapshot},
};
use crate::members::{ErrorCounts, MemberIndex, MemberRecord};

/// Changes waiting for the thread; more wait for a place.
const CHANGES_QUEUED_MAX: usize = 1024;

/// Most changes in one commit.
const CHANGES_PER_COMMIT_MAX: usize = 512;

/// Memory for cached pages of the database.
const CACHE_BYTES: usize = 48 * 1024 * 1024;

/// Why the metadata could not be read or written.
#[derive(Clone, Debug, Error)]
pub enum MetaError {
    /// The database failed.
    #[error("metadata database: {0}")]
    Database(Arc<redb::Error>),
    /// The database file cannot be opened.
    #[error("metadata database {path}: {source}")]
    Open {
        /// Its path.
        path: String,
        /// Why not.
        source: Arc<redb::DatabaseError>,
    },
    /// The database was written by a newer version.
    #[error(
        "metadata database is of format {found}, this program knows up to {known}: use the version that wrote it"
    )]
    Newer {
        /// Format found.
        found: u64,
        /// Newest format known.
        known: u64,
    },
    /// A record does not read as what it should be.
    #[error("metadata database: damaged record: {0}")]
    Damaged(String),
    /// The thread is gone: the database failed before, or the process is stopping.
    #[error("metadata database is closed")]
    Closed,
    /// The thread could not be started.
    #[error("metadata thread: {0}")]
    Thread(#[source] Arc<io::Error>),
}

/// What is stored of the array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArrayRecord {
    /// UUID.
    pub array_id: Uuid,
    /// Profile for data, with its numbers.
    pub data_profile: String,
    /// Profile for metadata, with its numbers.
    pub metadata_profile: String,
    /// Bytes in a stripe unit.
    pub unit_bytes: u32,
    /// Bytes in a slice.
    pub slice_bytes: u64,
}

/// What is stored of a chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkRecord {
    /// Index in the logical space.
    pub index: u64,
    /// Version at which it was made.
    pub incarnation: Version,
    /// Member and slice number, in the chunk's order.
    pub slices: Vec<(MemberIndex, u64)>,
}

/// What is stored of an object, without its extents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectRecord {
    /// Key of its extents; also its generation.
    pub id: u64,
    /// Length in bytes.
    pub size: u64,
    /// crc32c of all bytes.
    pub crc32c: u32,
    /// When it was put, in milliseconds since 1970.
    pub modified_millis: i64,
}

/// A run of sectors of the logical space that belongs to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// First byte in the logical space; a multiple of the sector.
    pub logical: u64,
    /// Bytes; a multiple of the sector.
    pub length: u64,
    /// No shard under it is older.
    pub version: Version,
}

/// The metadata. Cheap to clone.
#[derive(Clone)]
pub struct Meta {
    // Dropped before the sender, so that the thread's own reference is the last one.
    database: Arc<Database>,
    changes: mpsc::Sender<Change>,
}

impl Meta {
    /// Opens or makes the database in a folder that no other process uses. The second value is told when the database
    /// is closed, which it is once the last [`Meta`] is gone.
    pub fn open(folder: &Path) -> Result<(Meta, oneshot::Receiver<()>), MetaError> {
        let path = folder.join("metadata.redb");
        let mut builder = Database::builder();
        builder.set_cache_size(CACHE_BYTES);
        let database = match builder.create(&path) {
            Ok(database) => Arc::new(database),
            Err(source) => {
                return Err(MetaError::Open { path: path.display().to_string(), source: Arc::new(source) });
            }
        };
        tables::prepare(&database)?;
        let (changes, queue) = mpsc::channel(CHANGES_QUEUED_MAX);
        let writer = database.clone();
        let (close, closed) = oneshot::channel();
        let thread = std::thread::Builder::new().name("metadata".to_owned());
        let work = move || {
            write_until_closed(&writer, queue);
            drop(writer);
            // Nobody waits when the process simply ends.
            let _ = close.send(());
        };
        match thread.spawn(work) {
            Ok(_) => Ok((Meta { database, changes }, closed)),
            Err(error) => Err(MetaError::Thread(Arc::new(error))),
        }
    }

    /// An empty database in memory, for simulations: a task on the current runtime writes it, so that no thread and no
    /// disk decides when a change is made. It ends when the last [`Meta`] is gone.
    pub fn in_memory() -> Result<Meta, MetaError> {
        let database = match Database::builder().create_with_backend(InMemoryBackend::new()) {
            Ok(database) => Arc::new(database),
            Err(source) => {
                return Err(MetaError::Open { path: "in memory".to_owned(), source: Arc::new(source) });
            }
        };
        tables::prepare(&database)?;
        Ok(Meta::written_by_task(database))
    }

    /// What a coordinator finds after the one before it, and the runtime that it ran on, has died: the database in memory
    /// with its last commit.
    pub fn after_crash(&self) -> Meta {
        Meta::written_by_task(self.database.clone())
    }

    fn written_by_task(database: Arc<Database>) -> Meta {
        let (changes, mut queue) = mpsc::channel(CHANGES_QUEUED_MAX);
        let writer = database.clone();
        tokio::spawn(async move {
            while let Some(first) = queue.recv().await
                && write_waiting(&writer, first, &mut queue)
            {}
        });
        Meta { database, changes }
    }

    /// A frozen view of the last commit.
    pub fn snapshot(&self) -> Result<Snapshot, MetaError> {
        Ok(Snapshot::new(self.database.begin_read()?))
    }

    /// Stores a new array with its members.
    pub async fn create_array(
        &self,
        array: ArrayRecord,
        members: Vec<MemberRecord>,
    ) -> Result<(), MetaError> {
        self.send(|reply| Change::CreateArray { array, members, reply }).await
    }

    /// Stores a new chunk.
    pub async fn add_chunk(&self, chunk: ChunkRecord) -> Result<(), MetaError> {
        self.send(|reply| Change::AddChunk { chunk, reply }).await
    }

    /// Stores the error counts of all members.
    pub async fn set_errors(&self, errors: Vec<ErrorCounts>) -> Result<(), MetaError> {
        self.send(|reply| Change::SetErrors { errors, reply }).await
    }

    /// Puts an object in place of what had its name.
    pub async fn put_object(&self, put: PutObject) -> Result<Result<Committed, Rejection>, MetaError> {
        self.send(|reply| Change::Put { put, reply }).await
    }

    /// Deletes an object.
    pub async fn delete_object(&self, name: String) -> Result<Result<Committed, Rejection>, MetaError> {
        self.send(|reply| Change::Delete { name, reply }).await
    }

    async fn send<T>(
        &self,
        change: impl FnOnce(oneshot::Sender<Result<T, MetaError>>) -> Change,
    ) -> Result<T, MetaError> {
        let (reply, answer) = oneshot::channel();
        let closed = |_| MetaError::Closed;
        if self.changes.send(change(reply)).await.is_err() {
            return Err(MetaError::Closed);
        }
        answer.await.map_err(closed)?
    }
}

impl From<redb::TransactionError> for MetaError {
    fn from(error: redb::TransactionError) -> Self {
        MetaError::Database(Arc::new(error.into()))
    }
}

impl From<redb::TableError> for MetaError {
    fn from(error: redb::TableError) -> Self {
        MetaError::Database(Arc::new(error.into()))
    }
}

impl From<redb::StorageError> for MetaError {
    fn from(error: redb::StorageError) -> Self {
        MetaError::Database(Arc::new(error.into()))
    }
}

impl From<redb::CommitError> for MetaError {
    fn from(error: redb::CommitError) -> Self {
        MetaError::Database(Arc::new(error.into()))
    }
}

impl From<redb::SetDurabilityError> for MetaError {
    fn from(error: redb::SetDurabilityError) -> Self {
        MetaError::Database(Arc::new(error.into()))
    }
}

/// The thread: takes what is waiting, makes it durable together, answers. Ends when the last [`Meta`] is gone, or when
/// the database fails: then nothing more can be promised.
fn write_until_closed(database: &Database, mut queue: mpsc::Receiver<Change>) {
    while let Some(first) = queue.blocking_recv()
        && write_waiting(database, first, &mut queue)
    {}
}

/// Makes a change, and those that wait behind it, durable; `false` if the database failed.
fn write_waiting(database: &Database, first: Change, queue: &mut mpsc::Receiver<Change>) -> bool {
    let mut changes = vec![first];
    while changes.len() < CHANGES_PER_COMMIT_MAX
        && let Ok(change) = queue.try_recv()
    {
        changes.push(change);
    }
    let made = commit(database, changes);
    if let Err(error) = &made {
        tracing::error!(%error, "the metadata database failed: no more changes are taken");
    }
    made.is_ok()
}

fn commit(database: &Database, changes: Vec<Change>) -> Result<(), MetaError> {
    let mut transaction = database.begin_write()?;
    transaction.set_durability(Durability::Immediate)?;
    // Without it a start after a crash would walk the whole database.
    transaction.set_quick_repair(true);
    let mut answers = Vec::with_capacity(changes.len());
    {
        let mut tables = Tables::open(&transaction)?;
        let commit = tables.next_commit()?;
        for change in changes {
            answers.push(change.apply(&mut tables, commit)?);
        }
    }
    transaction.commit()?;
    for answer in answers {
        answer();
    }
    Ok(())
}
