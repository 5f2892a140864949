//! Writing a stripe: fresh into an empty one, or partial into one with live sectors; prepare everywhere, decide,
//! commit later.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use futures_util::future::join_all;
use stripeset_proto::v1::{self, RefusalKind, session_request::Operation};
use stripeset_stripe::{SECTOR_BYTES, Version, bits::Bits, checksum, geometry::Shard, summary::Summary};
use thiserror::Error;

use super::{
    Engine, StripeGuard,
    commit::Decided,
    gather::{Damage, Gather, Gathered},
    shard::summary_to_wire,
};
use crate::{
    extents::StripeRef,
    members::{
        ErrorCount, MarkOutError, MemberIndex, Service,
        link::{CallError, Refusal},
    },
    meta::MetaError,
};

/// How often a write that an agent refused for a passing reason is tried in all.
const TRIES: u32 = 6;

/// Pause before the second try; doubled each time.
const FIRST_PAUSE: Duration = Duration::from_millis(20);

/// How long a write waits for a member that has just come back and whose pending writes are being resolved.
const RESOLVE_PATIENCE: Duration = Duration::from_secs(3);

/// How often an abort that was not answered is repeated while the stripe stays locked.
const ABORT_PAUSE: Duration = Duration::from_millis(500);

/// New bytes for neighbouring sectors of one data shard.
#[derive(Clone, Debug)]
pub struct Edit {
    /// The data shard.
    pub shard: Shard,
    /// First sector in it.
    pub first_sector: u32,
    /// The bytes; whole sectors.
    pub data: Bytes,
}

/// Why a stripe was not written. Nothing of the write remains, unless it says otherwise.
#[derive(Debug, Error)]
pub enum WriteError {
    /// Too few members to go on without those that failed.
    #[error("too few members: {failed}; {source}")]
    TooFewMembers {
        /// What failed, for people.
        failed: String,
        /// Why they could not be marked out.
        source: MarkOutError,
    },
    /// As [`WriteError::TooFewMembers`], and a member that may hold the write does not answer. The stripe stays locked
    /// until it does.
    #[error("too few members, and the outcome of the write is open: {failed}")]
    Open {
        /// What failed, for people.
        failed: String,
    },
    /// An agent refused, and went on refusing.
    #[error("member {member} refused the write: {refusal}")]
    Refused {
        /// The member.
        member: MemberIndex,
        /// What it said.
        refusal: Refusal,
    },
    /// A live neighbour in the stripe cannot be read or rebuilt, so no parity can be computed.
    #[error("live sector at logical {logical} in the same stripe is lost")]
    NeighbourLost {
        /// Its first byte in the logical space.
        logical: u64,
    },
    /// A live neighbour cannot be read until a member comes back.
    #[error("neighbours in the stripe cannot be read: {members} needed")]
    NeighbourAway {
        /// The members, for people.
        members: String,
    },
    /// An out-mark could not be stored.
    #[error(transparent)]
    Store(#[from] MetaError),
    /// Another coordinator has taken over.
    #[error("another coordinator has taken the array over")]
    Deposed,
}

impl WriteError {
    fn passes(&self) -> bool {
        use RefusalKind::{BelowFloor, Busy, Damaged, Expired, ResourceExhausted, VersionMismatch};
        let passing = [ResourceExhausted, Busy, Expired, BelowFloor, VersionMismatch, Damaged];
        matches!(self, WriteError::Refused { refusal, .. } if passing.contains(&refusal.kind))
    }
}

type Operations = Vec<(Shard, v1::PrepareOperation)>;

impl Engine {
    /// Writes into an empty stripe. `data` has the first bytes of each data shard, whole sectors, none longer than a
    /// unit; what they do not cover becomes never written.
    pub async fn write_fresh(
        self: &Arc<Self>,
        stripe: &StripeRef,
        data: &[Bytes],
    ) -> Result<Version, WriteError> {
        let mut pause = FIRST_PAUSE;
        for attempt in 1.. {
            let guard = self.locks.lock(stripe.address()).await;
            let version = self.versions.take();
            let operations = self.fresh_operations(stripe, version, data);
            match self.decide(guard, stripe, version, operations).await {
                Ok(_) => return Ok(version),
                Err(error) if attempt < TRIES && error.passes() => {
                    tokio::time::sleep(pause).await;
                    pause *= 2;
                }
                Err(error) => return Err(error),
            }
        }
        unreachable!("the loop returns")
    }

    fn fresh_operations(&self, stripe: &StripeRef, version: Version, data: &[Bytes]) -> Operations {
        let geometry = stripe.geometry();
        let profile = geometry.profile();
        let longest = data.iter().map(Bytes::len).max().unwrap_or(0);
        let padded: Vec<Bytes> = data.iter().map(|bytes| padded(bytes, longest)).collect();
        let parity = self.encode(stripe, &padded, longest);
        let mut summary = Summary::empty(geometry);
        summary.vector.fill(version);
        let mut runs = Vec::with_capacity(profile.shards());
        for (shard, bytes) in data.iter().enumerate() {
            let checksums = checksum::of_sectors(bytes);
            let first = shard * geometry.unit_sectors();
            for (sector, checksum) in checksums.iter().enumerate() {
                summary.checksums[first + sector] = *checksum;
                summary.written.set(first + sector, true);
            }
            runs.push(v1::SectorRun { first_sector: 0, data: bytes.clone(), checksums });
        }
        runs.extend(parity.into_iter().map(|data| {
            let checksums = checksum::of_sectors(&data);
            v1::SectorRun { first_sector: 0, data, checksums }
        }));
        let participants: Vec<u32> = (0..profile.shards() as u32).collect();
        stripe
            .shards()
            .zip(runs)
            .map(|(shard, run)| {
                let place = stripe.place(shard);
                let operation = v1::PrepareOperation {
                    unit: place.unit,
                    identity: Some(place.identity.into()),
                    version: Some(version.into()),
                    base: None,
                    fresh: true,
                    participants: participants.clone(),
                    runs: if run.data.is_empty() { Vec::new() } else { vec![run] },
                    summary: profile.has_summary(usize::from(shard.0)).then(|| summary_to_wire(&summary)),
                };
                (shard, operation)
            })
            .collect()
    }

    pub(super) fn encode(&self, stripe: &StripeRef, data: &[Bytes], length: usize) -> Vec<Bytes> {
        let parities = stripe.geometry().profile().parity_shards();
        let mut buffers: Vec<BytesMut> = (0..parities).map(|_| BytesMut::zeroed(length)).collect();
        if length > 0 {
            let sources: Vec<&[u8]> = data.iter().map(|bytes| &bytes[..]).collect();
            let mut targets: Vec<&mut [u8]> = buffers.iter_mut().map(|buffer| &mut buffer[..]).collect();
            self.codec.encode(&sources, &mut targets);
        }
        buffers.into_iter().map(BytesMut::freeze).collect()
    }

    /// Writes sectors of a stripe that holds others, which it leaves as they are.
    pub async fn write_partial(
        self: &Arc<Self>,
        stripe: &StripeRef,
        edits: &[Edit],
    ) -> Result<Version, WriteError> {
        let first = edits.iter().map(|edit| edit.first_sector).min().unwrap_or(0);
        let end = edits.iter().map(|edit| edit.first_sector + (edit.data.len() / SECTOR_BYTES) as u32).max();
        let range = Gather { first_sector: first, sectors: end.unwrap_or(0) - first, patient: true };
        let mut pause = FIRST_PAUSE;
        for attempt in 1.. {
            let guard = self.locks.lock(stripe.address()).await;
            let mut gathered = self.gather(stripe, range).await;
            self.count_damage(stripe, &gathered);
            if self.rebuild_damaged_shards(stripe, &gathered).await {
                gathered = self.gather(stripe, range).await;
            }
            match self.write_gathered(guard, stripe, &gathered, edits).await {
                Ok((version, _)) => return Ok(version),
                Err(error) if attempt < TRIES && error.passes() => {
                    tokio::time::sleep(pause).await;
                    pause *= 2;
                }
                Err(error) => return Err(error),
            }
        }
        unreachable!("the loop returns")
    }

    /// Writes edits, and with them the right bytes over bad sectors of the range, and parity over the whole range.
    pub(super) async fn write_gathered(
        self: &Arc<Self>,
        guard: StripeGuard,
        stripe: &StripeRef,
        gathered: &Gathered,
        edits: &[Edit],
    ) -> Result<(Version, StripeGuard), WriteError> {
        let mut columns = Columns::new(gathered);
        edits.iter().for_each(|edit| columns.overlay(edit));
        self.settle_lost(stripe, gathered, &mut columns)?;
        let version = self.versions.take();
        let operations = self.partial_operations(stripe, version, gathered, &columns);
        let guard = self.decide(guard, stripe, version, operations).await?;
        Ok((version, guard))
    }

    /// Lost sectors that no edit covers: a live one forbids the write, a dead one becomes zeros.
    fn settle_lost(
        &self,
        stripe: &StripeRef,
        gathered: &Gathered,
        columns: &mut Columns,
    ) -> Result<(), WriteError> {
        let unit_sectors = stripe.geometry().unit_sectors();
        for (shard, column) in gathered.data.iter().enumerate() {
            for sector in column.lost.iter_ones() {
                if columns.changed[shard].get(sector) {
                    continue;
                }
                let index = shard * unit_sectors + gathered.first_sector as usize + sector;
                if self.extents.live(stripe.address(), index) {
                    return Err(if gathered.absent_might_help {
                        WriteError::NeighbourAway { members: self.away(stripe) }
                    } else {
                        let logical = gathered.logical(stripe, Shard(shard as u8), sector).0;
                        WriteError::NeighbourLost { logical }
                    });
                }
                columns.set(shard, sector, &[0; SECTOR_BYTES]);
            }
        }
        for damage in &gathered.damage {
            if let Damage::Sectors { shard, bad } = damage
                && let Some(changed) = columns.changed.get_mut(usize::from(shard.0))
            {
                bad.iter_ones().for_each(|sector| changed.set(sector, true));
            }
        }
        Ok(())
    }

    fn partial_operations(
        &self,
        stripe: &StripeRef,
        version: Version,
        gathered: &Gathered,
        columns: &Columns,
    ) -> Operations {
        let geometry = stripe.geometry();
        let k = geometry.profile().data_shards();
        let data: Vec<Bytes> = columns.bytes.iter().map(|bytes| Bytes::copy_from_slice(bytes)).collect();
        let parity = self.encode(stripe, &data, gathered.sectors as usize * SECTOR_BYTES);
        let mut summary = gathered.summary.clone().unwrap_or_else(|| Summary::empty(geometry));
        let mut runs: BTreeMap<Shard, Vec<v1::SectorRun>> = BTreeMap::new();
        for (shard, changed) in columns.changed.iter().enumerate().filter(|(_, changed)| !changed.none()) {
            let shard_runs = changed_runs(&data[shard], changed, gathered.first_sector);
            for run in &shard_runs {
                let first = shard * geometry.unit_sectors() + run.first_sector as usize;
                for (sector, checksum) in run.checksums.iter().enumerate() {
                    summary.checksums[first + sector] = *checksum;
                    summary.written.set(first + sector, true);
                }
            }
            runs.insert(Shard(shard as u8), shard_runs);
        }
        for (shard, data) in (k as u8..).map(Shard).zip(parity) {
            let checksums = checksum::of_sectors(&data);
            runs.insert(shard, vec![v1::SectorRun { first_sector: gathered.first_sector, data, checksums }]);
        }
        // Copies of a mirror all carry the summary, so all take part.
        for shard in stripe.shards().filter(|shard| geometry.profile().has_summary(usize::from(shard.0))) {
            runs.entry(shard).or_default();
        }
        let base = |shard: Shard| match &gathered.summary {
            Some(summary) => Some(summary.vector[usize::from(shard.0)]),
            None => gathered.versions[usize::from(shard.0)],
        };
        let bases: BTreeMap<Shard, Option<Version>> =
            runs.keys().map(|shard| (*shard, base(*shard))).collect();
        runs.keys().for_each(|shard| summary.vector[usize::from(shard.0)] = version);
        let participants: Vec<u32> = runs.keys().map(|shard| u32::from(shard.0)).collect();
        let operation = |(shard, runs): (Shard, Vec<v1::SectorRun>)| {
            let place = stripe.place(shard);
            let has_summary = geometry.profile().has_summary(usize::from(shard.0));
            let operation = v1::PrepareOperation {
                unit: place.unit,
                identity: Some(place.identity.into()),
                version: Some(version.into()),
                // Without a base nothing is known of the shard, and its agent will refuse.
                base: bases[&shard].map(v1::Version::from),
                fresh: false,
                participants: participants.clone(),
                runs,
                summary: has_summary.then(|| summary_to_wire(&summary)),
            };
            (shard, operation)
        };
        runs.into_iter().map(operation).collect()
    }

    /// Prepares everywhere and decides. On success the write is decided, and the lock is given back to the caller.
    async fn decide(
        self: &Arc<Self>,
        guard: StripeGuard,
        stripe: &StripeRef,
        version: Version,
        operations: Operations,
    ) -> Result<StripeGuard, WriteError> {
        let shards: Vec<Shard> = operations.iter().map(|(shard, _)| *shard).collect();
        let prepares =
            operations.into_iter().map(|(shard, operation)| self.prepare(stripe, shard, operation));
        let outcomes = join_all(prepares).await;
        let (mut failed, mut refused) = (Vec::new(), None);
        for (shard, outcome) in shards.iter().zip(outcomes) {
            let Err(error) = outcome else { continue };
            let member = self.member_of(stripe, *shard);
            match error {
                CallError::Refused(refusal) if refusal.kind == RefusalKind::Fenced => {
                    self.depose(format!("member {} refused this epoch: {}", member.index, refusal.message));
                    return Err(WriteError::Deposed);
                }
                CallError::Refused(refusal) if !means_failed(refusal.kind) => {
                    refused = Some(WriteError::Refused { member: member.index, refusal });
                }
                error => {
                    member.count(ErrorCount::Write, 1);
                    failed.push((member.index, format!("a write failed there: {error}")));
                }
            }
        }
        if let Some(refused) = refused {
            return Err(self.abort(guard, stripe, version, shards, refused).await);
        }
        if !failed.is_empty()
            && let Err(error) = self.members.mark_out(&failed, &self.extents.chunks, &self.meta).await
        {
            let what = failed.iter().map(|(member, reason)| format!("member {member}: {reason}"));
            let failed = what.collect::<Vec<_>>().join("; ");
            let error = WriteError::TooFewMembers { failed, source: error };
            return Err(self.abort(guard, stripe, version, shards, error).await);
        }
        self.decided(stripe, version, &shards);
        Ok(guard)
    }

    fn decided(&self, stripe: &StripeRef, version: Version, shards: &[Shard]) {
        let address = stripe.address();
        for shard in shards {
            let place = stripe.place(*shard);
            if !self.members.get(place.member).is_out() {
                self.decided.insert((address, *shard), version);
                self.commits
                    .push(place.member, Decided { address, shard: *shard, unit: place.unit, version });
            }
        }
    }

    async fn prepare(
        &self,
        stripe: &StripeRef,
        shard: Shard,
        operation: v1::PrepareOperation,
    ) -> Result<(), CallError> {
        let member = self.member_of(stripe, shard);
        if member.is_out() {
            return Ok(());
        }
        if member.service() == Service::Fenced {
            let mut service = member.watch_service();
            let resolved = service.wait_for(|service| *service != Service::Fenced);
            // If it takes too long the call below says so.
            let _ = tokio::time::timeout(RESOLVE_PATIENCE, resolved).await;
        }
        if member.service() != Service::InService {
            return Err(CallError::Away);
        }
        member.link.call(Operation::Prepare(operation), 0).await.map(|_| ())
    }

    /// Takes an undecided write back everywhere. Where that is not answered, the stripe stays locked until it is; then
    /// the error says that the outcome is open.
    async fn abort(
        self: &Arc<Self>,
        guard: StripeGuard,
        stripe: &StripeRef,
        version: Version,
        shards: Vec<Shard>,
        error: WriteError,
    ) -> WriteError {
        let silent = self.abort_once(stripe, version, shards).await;
        if silent.is_empty() {
            return error;
        }
        let failed = error.to_string();
        let (engine, stripe) = (self.clone(), stripe.clone());
        tokio::spawn(async move {
            let mut silent = silent;
            while !silent.is_empty() && engine.deposed.borrow().is_none() {
                tokio::time::sleep(ABORT_PAUSE).await;
                silent = engine.abort_once(&stripe, version, silent).await;
            }
            drop(guard);
        });
        WriteError::Open { failed }
    }

    /// Sends Abort to the members of the shards; those that did not answer.
    async fn abort_once(&self, stripe: &StripeRef, version: Version, shards: Vec<Shard>) -> Vec<Shard> {
        let aborts = shards.into_iter().map(|shard| async move {
            let place = stripe.place(shard);
            let member = self.members.get(place.member);
            let writes = vec![v1::UnitVersion { unit: place.unit, version: Some(version.into()) }];
            let abort = Operation::Abort(v1::AbortOperation { writes });
            let done = member.is_out() || member.link.call(abort, 0).await.is_ok();
            (!done).then_some(shard)
        });
        join_all(aborts).await.into_iter().flatten().collect()
    }
}

/// Refusals that say that the member cannot take writes at all.
fn means_failed(kind: RefusalKind) -> bool {
    matches!(kind, RefusalKind::DiskFailed | RefusalKind::WrongDisk | RefusalKind::NotFenced)
}

fn padded(bytes: &Bytes, length: usize) -> Bytes {
    if bytes.len() == length {
        return bytes.clone();
    }
    let mut longer = BytesMut::zeroed(length);
    longer[..bytes.len()].copy_from_slice(bytes);
    longer.freeze()
}

/// The data columns of a range as they will be.
struct Columns {
    first_sector: u32,
    bytes: Vec<BytesMut>,
    changed: Vec<Bits>,
}

impl Columns {
    fn new(gathered: &Gathered) -> Self {
        let sectors = gathered.sectors as usize;
        Columns {
            first_sector: gathered.first_sector,
            bytes: gathered.data.iter().map(|column| BytesMut::from(&column.bytes[..])).collect(),
            changed: gathered.data.iter().map(|_| Bits::new(sectors)).collect(),
        }
    }

    fn set(&mut self, shard: usize, sector: usize, content: &[u8]) {
        self.bytes[shard][sector * SECTOR_BYTES..][..SECTOR_BYTES].copy_from_slice(content);
        self.changed[shard].set(sector, true);
    }

    fn overlay(&mut self, edit: &Edit) {
        let first = (edit.first_sector - self.first_sector) as usize;
        for (sector, content) in edit.data.chunks_exact(SECTOR_BYTES).enumerate() {
            self.set(usize::from(edit.shard.0), first + sector, content);
        }
    }
}

pub(super) fn changed_runs(bytes: &Bytes, changed: &Bits, first_sector: u32) -> Vec<v1::SectorRun> {
    let mut runs = Vec::new();
    let mut sector = 0;
    while sector < changed.len() {
        let from = sector;
        while sector < changed.len() && changed.get(sector) {
            sector += 1;
        }
        if sector > from {
            let data = bytes.slice(from * SECTOR_BYTES..sector * SECTOR_BYTES);
            let checksums = checksum::of_sectors(&data);
            runs.push(v1::SectorRun { first_sector: first_sector + from as u32, data, checksums });
        } else {
            sector += 1;
        }
    }
    runs
}
