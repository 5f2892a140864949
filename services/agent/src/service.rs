//! The unary calls: inspection and control of one disk (`AgentService`), and the door to data streams
//! (`AgentDataService`).
//!
//! Checks and converts; the work is done by the disk's thread, in pieces short enough that data streams do not wait long
//! for a large verification.

use std::{collections::VecDeque, ops::Range, path::PathBuf, pin::Pin, sync::Arc};

use bytes::Bytes;
use stripeset_proto::{
    Error, ErrorKind, convert,
    limits::UNITS_MAX,
    v1::{self, agent_data_service_server::AgentDataService, agent_service_server::AgentService},
};
use stripeset_stripe::{Version, label::Label};
use stripeset_telemetry::shutdown::Shutdown;
use tokio::sync::Semaphore;
use tokio_stream::Stream;
use tonic::{Request, Response, Status, Streaming};
use uuid::Uuid;

use crate::{
    disk::{
        health::HealthState,
        watched::{DiskWatch, Latency},
    },
    layout::RING_OFFSET,
    queue::Queue,
    refusal::Refusal,
    session,
    store::{
        JoinError, PENDING_MAX, Store,
        inspect::{UnitView, ViewState, Wanted},
    },
    superblock::FORMAT,
    wire::bits_bytes,
};

/// Most data streams at a time: one for the coordinator, one for its successor, and what broken connections have not yet
/// given up.
pub(crate) const SESSIONS_MAX: usize = 16;

/// Most units in one Verify, as the interface says.
const VERIFY_UNITS_MAX: u32 = 4096;

/// Most bad sectors in the answer to one Verify: they have to fit a message.
const BAD_SECTORS_MAX: usize = 64 * 1024;

/// Bytes verified, or records read, by one piece of work.
const PIECE_BYTES: usize = 1024 * 1024;

/// Most bytes of records in one answer: half a message, as an estimate.
const LIST_BYTES_MAX: usize = stripeset_proto::limits::MESSAGE_BYTES_MAX / 2;

/// Serves one disk. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Service {
    queue: Queue,
    sessions: Arc<Semaphore>,
    shutdown: Shutdown,
    disk: ServedDisk,
    /// Random number of this start.
    incarnation: u64,
}

/// What is known of the disk without asking its thread.
#[derive(Clone)]
pub(crate) struct ServedDisk {
    pub(crate) path: Arc<PathBuf>,
    pub(crate) disk_id: Uuid,
    /// Reads and writes go past the page cache.
    pub(crate) direct: bool,
    pub(crate) watch: DiskWatch,
}

impl Service {
    pub(crate) fn new(queue: Queue, shutdown: Shutdown, disk: ServedDisk, incarnation: u64) -> Service {
        let sessions = Arc::new(Semaphore::new(SESSIONS_MAX));
        Service { queue, sessions, shutdown, disk, incarnation }
    }

    /// Reads one page of records, in pieces.
    async fn list(&self, request: v1::ListUnitsRequest) -> Result<v1::ListUnitsResponse, Error> {
        let limit = match request.limit as usize {
            0 => UNITS_MAX,
            limit => limit.min(UNITS_MAX),
        };
        if request.units.len() > UNITS_MAX {
            let message =
                format!("{} units: at most {UNITS_MAX} are listed by one call", request.units.len());
            return Err(Error::invalid(message));
        }
        let mut source = if request.units.is_empty() {
            let wanted = match request.since {
                Some(since) => Wanted::ChangedSince(since.into()),
                None => Wanted::Holding,
            };
            let end = if request.end_unit == 0 { u64::MAX } else { request.end_unit };
            let next = Some(request.first_unit).filter(|first| *first < end);
            Units::Found { wanted, found: VecDeque::new(), next, end }
        } else {
            Units::Given(request.units.into_iter().collect())
        };
        let mut units = Vec::new();
        let (mut bytes, mut next_unit) = (0, None);
        // Every piece takes at least one unit, or ends it.
        while units.len() < limit && bytes < LIST_BYTES_MAX {
            let wanted = limit - units.len();
            let (rest, views) = self.queue.look(move |store| take_views(store, source, wanted)).await?;
            source = rest;
            let views = views.map_err(of_refusal)?;
            if views.is_empty() && source.next_unit().is_none() {
                return Ok(v1::ListUnitsResponse { units, next_unit: None });
            }
            for view in views {
                if units.len() == limit || bytes >= LIST_BYTES_MAX {
                    next_unit = next_unit.or(Some(view.unit));
                    continue;
                }
                bytes += record_bytes_of(&view);
                units.push(v1::UnitRecord::from(view));
            }
        }
        if next_unit.is_none() {
            next_unit = source.next_unit();
        }
        if next_unit.is_some() && matches!(source, Units::Given(_)) {
            let message =
                format!("the records take more than one answer; ask for {} units or fewer", units.len());
            return Err(Error::invalid(message));
        }
        Ok(v1::ListUnitsResponse { units, next_unit })
    }

    async fn verify_units(&self, range: Range<u64>) -> Result<v1::VerifyResponse, Error> {
        let mut response = v1::VerifyResponse::default();
        let mut next = range.start;
        while next < range.end {
            let end = range.end;
            let (reached, pieces) = self.queue.look(move |store| verify_piece(store, next..end)).await?;
            next = reached;
            for (unit, verified) in pieces.map_err(of_refusal)? {
                response.sectors_verified += verified.sectors as u64;
                let bad = verified.bad.into_iter().map(|(sector, disk_offset)| v1::BadSector {
                    unit,
                    // A unit has at most 256 sectors.
                    sector: sector as u32,
                    disk_offset,
                });
                response.bad.extend(bad);
                if verified.damaged {
                    response.damaged_units.push(unit);
                }
            }
            if response.bad.len() > BAD_SECTORS_MAX {
                let message = format!(
                    "more than {BAD_SECTORS_MAX} bad sectors in units {} to {next}; verify fewer units by one call",
                    range.start
                );
                return Err(Error::invalid(message));
            }
        }
        Ok(response)
    }
}

#[tonic::async_trait]
impl AgentService for Service {
    async fn describe(
        &self,
        _request: Request<v1::DescribeRequest>,
    ) -> Result<Response<v1::DescribeResponse>, Status> {
        let (incarnation, path) = (self.incarnation, self.disk.path.display().to_string());
        let direct = self.disk.direct;
        let describe = move |store: &mut Store| {
            let (superblock, layout) = (store.superblock(), store.layout());
            v1::DescribeResponse {
                disk_id: convert::uuid_bytes(superblock.disk_id),
                incarnation,
                disk_bytes: superblock.disk_bytes,
                label: superblock.label.clone().map(v1::Label::from),
                epoch: Some(superblock.epoch.into()),
                slices: layout.map_or(0, |layout| layout.slices()),
                used_bytes: store.used_bytes(),
                format: FORMAT,
                path,
                first_unit_offset: layout.map_or(0, |layout| layout.sector_offset(0, 0)),
                unit_stride_bytes: layout.map_or(0, |layout| layout.unit_bytes() as u64),
                generation: superblock.generation,
                units: layout.map_or(0, |layout| layout.units()),
                ring_offset: layout.map_or(0, |_| RING_OFFSET),
                table_offset: layout.map_or(0, |layout| layout.page_offset(0)),
                direct,
                // Both are less than 32 KiB.
                page_bytes: layout.map_or(0, |layout| layout.page_bytes() as u32),
                record_bytes: layout.map_or(0, |layout| layout.place_bytes() as u32),
            }
        };
        Ok(Response::new(self.queue.look(describe).await?))
    }

    async fn join(&self, request: Request<v1::JoinRequest>) -> Result<Response<v1::JoinResponse>, Status> {
        let request = request.into_inner();
        let disk_id = convert::uuid("disk_id", &request.disk_id).map_err(Error::from)?;
        let wire = request.label.ok_or_else(|| Error::from(convert::ConvertError::Missing("label")))?;
        let label = Label::try_from(wire).map_err(Error::from)?;
        let joined = self.queue.look(move |store| store.join(disk_id, label)).await?;
        let slices = joined.map_err(of_join)?;
        Ok(Response::new(v1::JoinResponse { slices }))
    }

    async fn fence(&self, request: Request<v1::FenceRequest>) -> Result<Response<v1::FenceResponse>, Status> {
        let request = request.into_inner();
        let disk_id = convert::uuid("disk_id", &request.disk_id).map_err(Error::from)?;
        let epoch = convert::epoch(request.epoch);
        let folder = convert::uuid("folder_id", &request.folder_id).map_err(Error::from)?;
        let fence = move |store: &mut Store| {
            let own = store.superblock().disk_id;
            if disk_id != own {
                return Err(Refusal::WrongDisk { given: disk_id, own });
            }
            let pending = store.fence(epoch, folder)?;
            let superblock = store.superblock();
            Ok((superblock.label.clone(), superblock.fenced_by.clone(), pending))
        };
        let (label, fenced_by, pending) = self.queue.look(fence).await?.map_err(of_refusal)?;
        Ok(Response::new(v1::FenceResponse {
            incarnation: self.incarnation,
            label: label.map(v1::Label::from),
            pending: pending.into_iter().map(v1::PendingWrite::from).collect(),
            fenced_by: fenced_by.into_iter().map(convert::uuid_bytes).collect(),
        }))
    }

    async fn read(&self, request: Request<v1::ReadRequest>) -> Result<Response<v1::ReadResponse>, Status> {
        let v1::ReadRequest { unit, first_sector, sectors } = request.into_inner();
        let first = first_sector as usize;
        let range = first..first.saturating_add(sectors as usize);
        let read = move |store: &mut Store| {
            let view = store.view(unit)?;
            if view.state == ViewState::Damaged {
                return Ok((view, Bytes::new(), Vec::new()));
            }
            let (data, bad) = store.read_committed(unit, range)?;
            Ok((view, data, bad))
        };
        let (view, data, bad) = self.queue.look(read).await?.map_err(of_refusal)?;
        // A unit has at most 256 sectors.
        let bad_sectors = bad.into_iter().map(|sector| sector as u32).collect();
        Ok(Response::new(v1::ReadResponse { record: Some(view.into()), data, bad_sectors }))
    }

    async fn verify(
        &self,
        request: Request<v1::VerifyRequest>,
    ) -> Result<Response<v1::VerifyResponse>, Status> {
        let v1::VerifyRequest { first_unit, units } = request.into_inner();
        if !(1..=VERIFY_UNITS_MAX).contains(&units) {
            let message = format!("{units} units: one call verifies 1 to {VERIFY_UNITS_MAX}");
            return Err(Error::invalid(message).into());
        }
        let Some(end) = first_unit.checked_add(u64::from(units)) else {
            return Err(Error::invalid(format!("unit {first_unit} is on no disk")).into());
        };
        Ok(Response::new(self.verify_units(first_unit..end).await?))
    }

    async fn list_units(
        &self,
        request: Request<v1::ListUnitsRequest>,
    ) -> Result<Response<v1::ListUnitsResponse>, Status> {
        Ok(Response::new(self.list(request.into_inner()).await?))
    }

    async fn get_stats(
        &self,
        _request: Request<v1::GetStatsRequest>,
    ) -> Result<Response<v1::GetStatsResponse>, Status> {
        let refused_before = self.queue.refusals();
        let disk = self.disk.watch.stats();
        let stats = move |store: &mut Store| {
            let (counters, traffic, journal) = (store.counters(), store.traffic(), store.journal_view());
            v1::GetStatsResponse {
                prepares: counters.prepares,
                reads: counters.reads,
                bytes_written: traffic.bytes_written,
                bytes_read: traffic.bytes_read,
                syncs: traffic.syncs,
                checksum_errors: counters.checksum_errors,
                disk_errors: counters.disk_errors,
                refusals: counters.refusals + refused_before,
                pending: journal.pending_writes,
                journal_used_bytes: journal.used_bytes,
                journal_bytes: journal.ring_bytes,
                groups: counters.groups,
                applied_units: counters.applied_units,
                health: health(disk.health).into(),
                health_reason: disk.health_reason,
                read_latency: Some(disk.read.into()),
                write_latency: Some(disk.write.into()),
                sync_latency: Some(disk.sync.into()),
            }
        };
        Ok(Response::new(self.queue.look(stats).await?))
    }

    async fn list_pending(
        &self,
        request: Request<v1::ListPendingRequest>,
    ) -> Result<Response<v1::ListPendingResponse>, Status> {
        let v1::ListPendingRequest { first_unit, limit } = request.into_inner();
        let limit = if limit == 0 { PENDING_MAX } else { PENDING_MAX.min(limit as usize) };
        let pending = self.queue.look(|store| store.pending()).await?;
        let mut rest = pending.into_iter().filter(|write| write.unit >= first_unit);
        let pending = rest.by_ref().take(limit).map(v1::PendingWrite::from).collect();
        let next_unit = rest.next().map(|write| write.unit);
        Ok(Response::new(v1::ListPendingResponse { pending, next_unit }))
    }

    async fn get_journal(
        &self,
        _request: Request<v1::GetJournalRequest>,
    ) -> Result<Response<v1::GetJournalResponse>, Status> {
        let view = self.queue.look(|store| store.journal_view()).await?;
        Ok(Response::new(v1::GetJournalResponse {
            ring_bytes: view.ring_bytes,
            used_bytes: view.used_bytes,
            groups: view.groups,
            pending_writes: view.pending_writes,
            pending_bytes: view.pending_bytes,
            recent_units: view.recent_units,
        }))
    }
}

#[tonic::async_trait]
impl AgentDataService for Service {
    type SessionStream = Pin<Box<dyn Stream<Item = Result<v1::SessionResponse, Status>> + Send>>;

    async fn session(
        &self,
        request: Request<Streaming<v1::SessionRequest>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        let Ok(guard) = Arc::clone(&self.sessions).try_acquire_owned() else {
            let message = format!("{SESSIONS_MAX} data streams are open: the limit; close one, or try again");
            return Err(Error::busy(message, std::time::Duration::from_secs(1)).into());
        };
        let answers = session::serve(
            request.into_inner(),
            self.disk.disk_id,
            self.queue.clone(),
            self.shutdown.clone(),
            guard,
        );
        Ok(Response::new(Box::pin(answers)))
    }
}

/// Which units are to be listed, as far as they have not been.
enum Units {
    Given(VecDeque<u64>),
    /// Those that are wanted: found already, and to be looked for from `next` on.
    Found {
        wanted: Wanted,
        found: VecDeque<u64>,
        next: Option<u64>,
        /// The unit behind the last one that is looked for.
        end: u64,
    },
}

impl Units {
    /// The first unit that has not been listed, or may have to be.
    fn next_unit(&self) -> Option<u64> {
        match self {
            Units::Given(rest) => rest.front().copied(),
            Units::Found { found, next, .. } => found.front().copied().or(*next),
        }
    }
}

/// Views of the next units: as many as one piece of work reads, at most `wanted`. None at all if it read a part of the
/// table in which there were none.
fn take_views(store: &mut Store, mut units: Units, wanted: usize) -> (Units, Result<Vec<UnitView>, Refusal>) {
    let Some(layout) = store.layout() else { return (units, Err(Refusal::Blank)) };
    let piece = (PIECE_BYTES / layout.page_bytes()).clamp(1, wanted.max(1));
    let queue = match &mut units {
        Units::Given(rest) => rest,
        Units::Found { wanted, found, next, end } => {
            if let Some(first) = next.filter(|_| found.is_empty()) {
                match store.find(first, *wanted) {
                    Ok((mut more, rest)) => {
                        more.retain(|unit| unit < end);
                        (*next, *found) = (rest.filter(|next| next < end), more.into());
                    }
                    Err(refusal) => return (units, Err(refusal)),
                }
            }
            found
        }
    };
    let taken: Vec<u64> = queue.drain(..piece.min(queue.len())).collect();
    (units, taken.into_iter().map(|unit| store.view(unit)).collect())
}

type Pieces = Vec<(u64, crate::store::inspect::Verified)>;

/// Verifies the first units of a range: as many as one piece of work reads. Returns where to go on.
fn verify_piece(store: &mut Store, range: Range<u64>) -> (u64, Result<Pieces, Refusal>) {
    let Some(layout) = store.layout() else { return (range.end, Err(Refusal::Blank)) };
    let units = (PIECE_BYTES / layout.unit_bytes()).max(1) as u64;
    let end = range.end.min(range.start + units);
    let pieces = (range.start..end).map(|unit| Ok((unit, store.verify(unit)?))).collect();
    (end, pieces)
}

/// About what a record takes in a message: an estimate from above.
fn record_bytes_of(view: &UnitView) -> usize {
    // A version takes up to 32 bytes, the fields beside lists up to 256.
    let summary = view.summary.as_ref().map_or(0, |summary| {
        summary.vector.len() * 32 + summary.checksums.len() * 4 + summary.written.as_bytes().len()
    });
    256 + view.checksums.len() * 4 + 2 * view.written.as_bytes().len() + summary
}

fn health(state: HealthState) -> v1::DiskHealth {
    match state {
        HealthState::Online => v1::DiskHealth::Online,
        HealthState::Suspect => v1::DiskHealth::Suspect,
        HealthState::Failed => v1::DiskHealth::Failed,
    }
}

impl From<Latency> for v1::DiskLatency {
    fn from(latency: Latency) -> Self {
        v1::DiskLatency {
            operations: latency.operations,
            errors: latency.errors,
            buckets: latency.buckets.to_vec(),
            // Nothing takes half a million years.
            max_micros: latency.max.as_micros() as u64,
        }
    }
}

impl From<UnitView> for v1::UnitRecord {
    fn from(view: UnitView) -> Self {
        let version = |version: Version| (!version.is_none()).then(|| v1::Version::from(version));
        let state = match view.state {
            ViewState::Empty => v1::UnitState::Empty,
            ViewState::Committed => v1::UnitState::Committed,
            ViewState::Pending => v1::UnitState::Pending,
            ViewState::Damaged => v1::UnitState::Damaged,
        };
        v1::UnitRecord {
            unit: view.unit,
            state: state.into(),
            identity: (view.identity != crate::record::NOBODY).then(|| view.identity.into()),
            committed_version: version(view.committed),
            pending_version: version(view.pending),
            floor: version(view.floor),
            disk_offset: view.disk_offset,
            written: bits_bytes(&view.written),
            lost: bits_bytes(&view.lost),
            checksums: view.checksums,
            summary: view.summary.map(v1::StripeSummary::from),
        }
    }
}

/// What a refusal is to the caller of a unary call.
pub(crate) fn of_refusal(refusal: Refusal) -> Error {
    let message = refusal.to_string();
    let kind = match refusal {
        Refusal::Invalid(_) => ErrorKind::InvalidArgument,
        Refusal::OlderLabel { .. } => ErrorKind::Stale,
        Refusal::Blank => ErrorKind::Precondition,
        Refusal::WrongDisk { .. } | Refusal::Fenced { .. } | Refusal::NotFenced { .. } => ErrorKind::Stale,
        Refusal::VersionMismatch { .. } | Refusal::OtherIdentity { .. } | Refusal::Empty { .. } => {
            ErrorKind::Stale
        }
        Refusal::BelowFloor { .. } => ErrorKind::Stale,
        Refusal::Busy { .. } | Refusal::Limit { .. } => ErrorKind::Busy,
        Refusal::Full => ErrorKind::Full,
        Refusal::Damaged { .. } => ErrorKind::DataLoss,
        Refusal::Expired => ErrorKind::DeadlineExceeded,
        Refusal::DiskFailed(_) => ErrorKind::Unavailable,
    };
    Error::new(kind, message)
}

fn of_join(error: JoinError) -> Error {
    let message = error.to_string();
    let kind = match error {
        JoinError::WrongDisk { .. } => ErrorKind::Stale,
        JoinError::NotBlank { .. } => ErrorKind::Precondition,
        JoinError::Label(_) | JoinError::Layout(_) => ErrorKind::InvalidArgument,
        JoinError::Full => ErrorKind::Full,
        JoinError::DiskFailed(_) => ErrorKind::Unavailable,
    };
    Error::new(kind, message)
}
