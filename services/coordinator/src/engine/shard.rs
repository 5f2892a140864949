//! One shard of a stripe, read from its member: asks, checks that the answer fits, verifies the bytes once more on this
//! side of the network, and counts failed reads against the member. Bad sectors are counted where they are judged.

use bytes::Bytes;
use stripeset_proto::v1::{self, RefusalKind, session_request::Operation, session_response::Outcome};
use stripeset_stripe::{
    SECTOR_BYTES, Version,
    bits::Bits,
    checksum,
    geometry::{Geometry, Shard},
    summary::Summary,
};

use super::Engine;
use crate::{
    extents::StripeRef,
    members::{
        ErrorCount,
        link::{CallError, Refusal},
    },
};

/// The summary on the wire as one of this geometry; `None` if it is not.
fn summary_from_wire(wire: v1::StripeSummary, geometry: &Geometry) -> Option<Summary> {
    let written = Bits::from_bytes(&wire.written, geometry.stripe_sectors())?;
    let fits =
        wire.vector.len() == geometry.profile().shards() && wire.checksums.len() == geometry.stripe_sectors();
    let vector = wire.vector.into_iter().map(Version::from).collect();
    fits.then_some(Summary { vector, written, checksums: wire.checksums })
}

/// The summary as it goes over the wire.
pub(super) fn summary_to_wire(summary: &Summary) -> v1::StripeSummary {
    v1::StripeSummary {
        vector: summary.vector.iter().map(|version| (*version).into()).collect(),
        written: Bytes::copy_from_slice(summary.written.as_bytes()),
        checksums: summary.checksums.clone(),
    }
}

/// Sectors of one shard, all of one version.
#[derive(Clone, Debug)]
pub(super) struct ShardRead {
    pub(super) version: Version,
    pub(super) data: Bytes,
    pub(super) checksums: Vec<u32>,
    /// As its record says, also of bad ones.
    pub(super) written: Bits,
    pub(super) bad: Bits,
    pub(super) summary: Option<Summary>,
}

/// Why a shard gave nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ShardFault {
    /// Its member does not serve, or did not answer.
    Absent,
    /// It does not have the version that it should have.
    Stale,
    /// Its record is damaged.
    Damaged,
    /// Its disk could not be read.
    Failed,
}

/// What to read of a shard.
#[derive(Clone, Copy, Debug)]
pub(super) struct ShardRequest {
    pub(super) shard: Shard,
    pub(super) first_sector: u32,
    pub(super) sectors: u32,
    /// Oldest version that will do.
    pub(super) version: Version,
    pub(super) summary: bool,
}

impl Engine {
    /// Reads sectors of one shard at the version asked for or the newest one decided for it.
    pub(super) async fn read_shard(
        &self,
        stripe: &StripeRef,
        request: ShardRequest,
    ) -> Result<ShardRead, ShardFault> {
        let place = stripe.place(request.shard);
        let member = self.members.get(place.member);
        if !member.counts_at(stripe.address()) || !member.in_service() {
            return Err(ShardFault::Absent);
        }
        let version = request.version.max(self.decided_version(stripe, request.shard));
        let operation = Operation::Read(v1::ReadOperation {
            unit: place.unit,
            identity: Some(place.identity.into()),
            version: Some(version.into()),
            first_sector: request.first_sector,
            sectors: request.sectors,
            summary: request.summary,
        });
        let answer_bytes = request.sectors * SECTOR_BYTES as u32;
        let outcome = match member.link.call(operation, answer_bytes).await {
            Ok(Outcome::Read(outcome)) => {
                checked(stripe.geometry(), request, outcome).ok_or(CallError::Unfit)
            }
            Ok(_) => Err(CallError::Unfit),
            Err(error) => Err(error),
        };
        match outcome {
            Ok(read) => Ok(read),
            Err(error) => Err(self.blame(stripe, request.shard, &error)),
        }
    }

    fn blame(&self, stripe: &StripeRef, shard: Shard, error: &CallError) -> ShardFault {
        let member = self.member_of(stripe, shard);
        let fault = match error {
            CallError::Away => return ShardFault::Absent,
            // Counted with the damage that is found under the lock.
            CallError::Refused(Refusal { kind: RefusalKind::VersionMismatch, .. }) => {
                return ShardFault::Stale;
            }
            CallError::Refused(Refusal { kind: RefusalKind::Damaged, .. }) => return ShardFault::Damaged,
            CallError::Refused(Refusal { kind: RefusalKind::Fenced, message }) => {
                self.depose(format!("member {} refused this epoch: {message}", member.index));
                return ShardFault::Absent;
            }
            CallError::Refused(_) | CallError::Unfit => ShardFault::Failed,
            CallError::Broken | CallError::Silent | CallError::TooSlow => ShardFault::Absent,
        };
        member.count(ErrorCount::Read, 1);
        tracing::warn!(member = member.index.0, %error, "read failed");
        fault
    }
}

/// The answer in domain terms; `None` if it is not the one to this request. A short answer is no answer.
fn checked(geometry: &Geometry, request: ShardRequest, outcome: v1::ReadOutcome) -> Option<ShardRead> {
    let sectors = request.sectors as usize;
    let mut bad = Bits::from_bytes(&outcome.bad, sectors)?;
    let written = Bits::from_bytes(&outcome.written, sectors)?;
    if outcome.data.len() != sectors * SECTOR_BYTES || outcome.checksums.len() != sectors {
        return None;
    }
    let summary = match outcome.summary {
        Some(summary) if request.summary => Some(summary_from_wire(summary, geometry)?),
        _ => None,
    };
    let mut checksums = outcome.checksums;
    let pairs = outcome.data.chunks_exact(SECTOR_BYTES).zip(&mut checksums).enumerate();
    for (index, (sector, expected)) in pairs {
        if !written.get(index) && !bad.get(index) {
            *expected = checksum::ZERO_SECTOR;
        }
        if !bad.get(index) && checksum::of_sector(sector) != *expected {
            bad.set(index, true);
        }
    }
    let version = stripeset_proto::convert::version(outcome.version);
    Some(ShardRead { version, data: outcome.data, checksums, written, bad, summary })
}
