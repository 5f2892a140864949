//! The members of the array: which are trusted, which answer, and what went wrong at each.
//!
//! 1. A member that may have missed a write that was acknowledged is out, by a label that is in force, before the
//!    acknowledgement (`members::labels`).
//! 2. A member that is out is never a source of reads, nor waited for by writes, but for the stripes that were taken back
//!    already.
//! 3. A member is marked out only while every chunk keeps k members that are in sync.
//! 4. A member serves only after its pending writes were resolved (`engine::resolve`).

pub mod connect;
pub mod inspect;
pub mod labels;
pub mod link;

use std::{
    fmt,
    pin::pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering},
    },
};

use stripeset_stripe::{Epoch, geometry::StripeAddress, label::Out};
use tokio::sync::Notify;
use uuid::Uuid;

use self::{labels::Labels, link::Link};
use crate::{state::StateFolder, versions::VersionSequence};

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

/// How far a member that is out has been taken back. Words are for people.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Rejoin {
    /// Nobody is taking it back.
    #[default]
    Idle,
    /// It is being taken back; how far.
    Running(String),
    /// It could not be taken back the last time; why not.
    Failed(String),
}

/// Where the units of a member's disk are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskLayout {
    /// First byte of the first sector of unit 0.
    pub first_unit_offset: u64,
    /// Distance of neighbouring units in bytes; 0 while unknown.
    pub unit_stride_bytes: u64,
}

/// What the label in force says of a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// UUID of its disk.
    pub disk_id: Uuid,
    /// Address of its agent.
    pub address: String,
    /// Set while it is out.
    pub out: Option<Out>,
}

/// One member.
pub struct Member {
    /// Its index.
    pub index: MemberIndex,
    /// Slices that fit on its disk.
    pub slices: u64,
    /// Length of its disk in bytes.
    pub disk_bytes: u64,
    /// The session to its agent.
    pub link: Link,
    standing: RwLock<Standing>,
    rejoin: Mutex<Rejoin>,
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
            slices: record.slices,
            disk_bytes: record.disk_bytes,
            link: Link::new(record.disk_id, epoch),
            standing: RwLock::new(Standing { disk_id: record.disk_id, address: record.address, out: None }),
            rejoin: Mutex::default(),
            service: Mutex::new(Service::Absent("not reached yet".to_owned())),
            service_changed: Notify::new(),
            layout: Mutex::new(DiskLayout::default()),
            errors: [checksum, version, read, write, corrected].map(AtomicU64::new),
        }
    }

    /// What the label says of it.
    pub fn standing(&self) -> Standing {
        self.standing.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_standing(&self, standing: Standing) {
        self.link.set_disk(standing.disk_id);
        *self.standing.write().unwrap_or_else(PoisonError::into_inner) = standing;
    }

    /// UUID of its disk.
    pub fn disk_id(&self) -> Uuid {
        self.standing.read().unwrap_or_else(PoisonError::into_inner).disk_id
    }

    /// Address of its agent.
    pub fn address(&self) -> String {
        self.standing().address
    }

    /// Whether it is out, of some stripes at least.
    pub fn is_out(&self) -> bool {
        self.standing.read().unwrap_or_else(PoisonError::into_inner).out.is_some()
    }

    /// Whether its shard of a stripe is to be trusted, and has to take part in writes.
    pub fn counts_at(&self, stripe: StripeAddress) -> bool {
        let standing = self.standing.read().unwrap_or_else(PoisonError::into_inner);
        standing.out.as_ref().is_none_or(|out| stripe < out.cursor)
    }

    /// How far it has been taken back.
    pub fn rejoin(&self) -> Rejoin {
        self.rejoin.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Says how far it has been taken back.
    pub fn set_rejoin(&self, progress: Rejoin) {
        *self.rejoin.lock().unwrap_or_else(PoisonError::into_inner) = progress;
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

    /// Whether it is connected and its pending writes are resolved.
    pub fn in_service(&self) -> bool {
        *self.service_lock() == Service::InService
    }

    /// Whether it is trusted, whole, and serves.
    pub fn usable(&self) -> bool {
        !self.is_out() && self.in_service()
    }

    /// Whether reads of a stripe should ask it: it is trusted there, serves, and answers.
    pub fn worth_asking_at(&self, stripe: StripeAddress) -> bool {
        self.counts_at(stripe) && self.in_service() && self.link.responsive()
    }

    /// Whether reads should ask it, whatever the stripe.
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

/// All members of the array.
pub struct Members {
    all: Vec<Arc<Member>>,
    /// The label, and who revises it.
    pub labels: Labels,
}

impl Members {
    /// The members as they are stored, and as the label in the folder has them. Nobody is trusted before there is a label
    /// in force in this epoch (`Members::begin`).
    pub fn new(records: Vec<MemberRecord>, versions: Arc<VersionSequence>, folder: StateFolder) -> Self {
        let epoch = versions.epoch();
        let member = |(index, record)| Arc::new(Member::new(MemberIndex(index), record, epoch));
        let members = Members {
            all: (0..).zip(records).map(member).collect(),
            labels: Labels::new(versions, folder.clone()),
        };
        if let Some(label) = folder.label() {
            members.show(&label);
        }
        members
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
}
