//! The members of the array: which are trusted, which answer, and what went wrong at each.
//!
//! 1. A member that may have missed a write that was acknowledged is out, and its out-mark is durable before the
//!    acknowledgement.
//! 2. A member that is out is never a source of reads, nor waited for by writes.
//! 3. A member is marked out only while every chunk keeps k members that are not.
//! 4. A member serves only after its pending writes were resolved (`engine::resolve`).

pub mod connect;
pub mod link;

use std::{
    fmt,
    pin::pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering},
    },
};

use stripeset_stripe::Epoch;
use thiserror::Error;
use tokio::sync::Notify;
use uuid::Uuid;

use self::link::Link;
use crate::{
    extents::Chunks,
    meta::{Meta, MetaError},
};

/// Index of a member in its array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberIndex(pub u32);

impl fmt::Display for MemberIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// What is stored of a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberRecord {
    /// UUID of its disk.
    pub disk_id: Uuid,
    /// Address of its agent, host:port.
    pub address: String,
    /// Slices that fit on the disk.
    pub slices: u64,
    /// Length of the disk in bytes.
    pub disk_bytes: u64,
    /// Why it is out, if it is.
    pub out: Option<String>,
    /// Errors counted so far.
    pub errors: ErrorCounts,
}

/// Errors of one member since the array was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ErrorCounts {
    /// Sectors that did not match their checksum.
    pub checksum: u64,
    /// Units with another version than expected, or with a damaged record.
    pub version: u64,
    /// Reads that failed or were not answered.
    pub read: u64,
    /// Writes that failed or were not answered.
    pub write: u64,
    /// Bad sectors that were repaired.
    pub corrected: u64,
}

/// The kinds of [`ErrorCounts`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorCount {
    /// See [`ErrorCounts::checksum`].
    Checksum,
    /// See [`ErrorCounts::version`].
    Version,
    /// See [`ErrorCounts::read`].
    Read,
    /// See [`ErrorCounts::write`].
    Write,
    /// See [`ErrorCounts::corrected`].
    Corrected,
}

/// How far the connection to a member has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Service {
    /// No session; why not.
    Absent(String),
    /// Fenced, with a session, its pending writes not yet resolved.
    Fenced,
    /// Serves.
    InService,
}

/// Where the units of a member's disk are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskLayout {
    /// First byte of the first sector of unit 0.
    pub first_unit_offset: u64,
    /// Distance of neighbouring units in bytes; 0 while unknown.
    pub unit_stride_bytes: u64,
}

/// One member.
pub struct Member {
    /// Its index.
    pub index: MemberIndex,
    /// UUID of its disk.
    pub disk_id: Uuid,
    /// Address of its agent.
    pub address: String,
    /// Slices that fit on its disk.
    pub slices: u64,
    /// Length of its disk in bytes.
    pub disk_bytes: u64,
    /// The session to its agent.
    pub link: Link,
    out: RwLock<Option<String>>,
    service: Mutex<Service>,
    // Told of every change of it. Wakes in the order of the waits, which a watch would not.
    service_changed: Notify,
    layout: Mutex<DiskLayout>,
    errors: [AtomicU64; 5],
}

impl Member {
    fn new(index: MemberIndex, record: MemberRecord, epoch: Epoch) -> Self {
        let ErrorCounts { checksum, version, read, write, corrected } = record.errors;
        Member {
            index,
            disk_id: record.disk_id,
            address: record.address,
            slices: record.slices,
            disk_bytes: record.disk_bytes,
            link: Link::new(record.disk_id, epoch),
            out: RwLock::new(record.out),
            service: Mutex::new(Service::Absent("not reached yet".to_owned())),
            service_changed: Notify::new(),
            layout: Mutex::new(DiskLayout::default()),
            errors: [checksum, version, read, write, corrected].map(AtomicU64::new),
        }
    }

    /// Whether it is out.
    pub fn is_out(&self) -> bool {
        self.out.read().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Why it is out, if it is.
    pub fn out_reason(&self) -> Option<String> {
        self.out.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How far the connection has come.
    pub fn service(&self) -> Service {
        self.service_lock().clone()
    }

    fn service_lock(&self) -> MutexGuard<'_, Service> {
        self.service.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns when the member serves or is absent: at once, unless it is fenced and its pending writes are being resolved.
    pub async fn resolved(&self) {
        loop {
            let mut changed = pin!(self.service_changed.notified());
            // From here on a change is heard, so none is missed between the comparison and the wait.
            changed.as_mut().enable();
            if *self.service_lock() != Service::Fenced {
                return;
            }
            changed.await;
        }
    }

    /// Whether it is trusted and serves.
    pub fn usable(&self) -> bool {
        !self.is_out() && *self.service_lock() == Service::InService
    }

    /// Whether reads should ask it: it is usable, and answers.
    pub fn worth_asking(&self) -> bool {
        self.usable() && self.link.responsive()
    }

    /// Says how far the connection has come. For whoever keeps the member connected.
    pub fn set_service(&self, service: Service) {
        *self.service_lock() = service;
        self.service_changed.notify_waiters();
    }

    /// Puts a fenced member in service. One that has gone away meanwhile stays away.
    pub fn serve(&self) {
        let mut service = self.service_lock();
        if *service == Service::Fenced {
            *service = Service::InService;
            self.service_changed.notify_waiters();
        }
    }

    /// Where its units are; zeros while that is unknown.
    pub fn layout(&self) -> DiskLayout {
        *self.layout.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_layout(&self, layout: DiskLayout) {
        *self.layout.lock().unwrap_or_else(PoisonError::into_inner) = layout;
    }

    /// Counts errors against it.
    pub fn count(&self, kind: ErrorCount, errors: u64) {
        self.errors[kind as usize].fetch_add(errors, Ordering::Relaxed);
    }

    /// Errors counted so far.
    pub fn errors(&self) -> ErrorCounts {
        let [checksum, version, read, write, corrected] = [0, 1, 2, 3, 4].map(|kind: usize| {
            let count: &AtomicU64 = &self.errors[kind];
            count.load(Ordering::Relaxed)
        });
        ErrorCounts { checksum, version, read, write, corrected }
    }
}

/// Why members could not be marked out.
#[derive(Debug, Error)]
pub enum MarkOutError {
    /// A chunk would be left with too few members.
    #[error("chunk {chunk} would keep {left} members in sync, and needs {needed}")]
    TooFewLeft {
        /// The chunk.
        chunk: u64,
        /// Members in sync that it would keep.
        left: usize,
        /// Members that it needs: k.
        needed: usize,
    },
    /// The mark could not be made durable.
    #[error("the out-mark could not be stored")]
    Store(#[from] MetaError),
}

/// All members of the array.
pub struct Members {
    all: Vec<Arc<Member>>,
    marking: tokio::sync::Mutex<()>,
}

impl Members {
    /// The members as they are stored.
    pub fn new(records: Vec<MemberRecord>, epoch: Epoch) -> Self {
        let member = |(index, record)| Arc::new(Member::new(MemberIndex(index), record, epoch));
        Members { all: (0..).zip(records).map(member).collect(), marking: tokio::sync::Mutex::new(()) }
    }

    /// By index.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Member>> {
        self.all.iter()
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.all.len()
    }

    /// One member. Panics on an index that the array does not have: indices come from its own records.
    pub fn get(&self, index: MemberIndex) -> &Arc<Member> {
        &self.all[index.0 as usize]
    }

    /// Marks members out, durably, for a reason. Members that are out already stay as they are.
    pub async fn mark_out(
        &self,
        failed: &[(MemberIndex, String)],
        chunks: &Chunks,
        meta: &Meta,
    ) -> Result<(), MarkOutError> {
        // One at a time, so that two marks together do not leave a chunk with too few members.
        let _marking = self.marking.lock().await;
        let new: Vec<_> = failed.iter().filter(|(index, _)| !self.get(*index).is_out()).collect();
        for chunk in chunks.all() {
            let stays = |member: MemberIndex| {
                !self.get(member).is_out() && !new.iter().any(|(index, _)| *index == member)
            };
            let left = chunk.slices.iter().filter(|slice| stays(slice.member)).count();
            let needed = chunk.geometry.profile().data_shards();
            if left < needed {
                return Err(MarkOutError::TooFewLeft { chunk: chunk.index.0, left, needed });
            }
        }
        for (index, reason) in new {
            meta.mark_out(*index, reason.clone()).await?;
            let member = self.get(*index);
            *member.out.write().unwrap_or_else(PoisonError::into_inner) = Some(reason.clone());
            tracing::error!(member = index.0, address = member.address, reason, "member marked out");
        }
        Ok(())
    }
}
