//! The data stream's messages to operations and back. Checks all that can be checked without the disk: lengths, order,
//! numbers, and the checksum of every sector against its bytes. What depends on the layout is checked by the store.

use bytes::Bytes;
use stripeset_proto::{
    convert::{self, ConvertError, Identity},
    limits::UNITS_MAX,
    v1::{self, RefusalKind, session_request, session_response},
};
use stripeset_stripe::{SECTOR_BYTES, Version, bits::Bits, checksum};
use thiserror::Error;

use crate::{
    layout::{SHARDS_MAX, UNIT_SECTORS_MAX},
    operation::{
        Entry, Operation, Outcome, PendingWrite, Prepare, Read, ReadOutcome, Rebuild, Run, UnitVersion,
    },
    record::Summary,
    refusal::Refusal,
};

/// A message that is not an operation.
#[derive(Debug, Error, PartialEq, Eq)]
pub(crate) enum Malformed {
    #[error(transparent)]
    Convert(#[from] ConvertError),
    #[error("{0} units in one request: 1 to {UNITS_MAX} are allowed")]
    Units(usize),
    #[error("a run of {bytes} bytes: it has to be a multiple of {SECTOR_BYTES}, and not empty")]
    RunLength { bytes: usize },
    #[error("a run of {sectors} sectors with {checksums} checksums")]
    Checksums { sectors: usize, checksums: usize },
    #[error("a run starts at sector {first_sector}, the one before ends at {end}")]
    Order { first_sector: usize, end: usize },
    #[error("sectors up to {end}: a unit has at most {UNIT_SECTORS_MAX}")]
    Sectors { end: usize },
    #[error("sector {sector} has checksum {found:#010x}, the request says {given:#010x}")]
    Checksum { sector: usize, given: u32, found: u32 },
    #[error("participants have to be ascending shard indices below {SHARDS_MAX}, and not none; {0} is not")]
    Participants(u64),
    #[error("a summary with a vector of {0}: 1 to {SHARDS_MAX} are allowed")]
    Vector(usize),
    #[error(
        "a summary with {checksums} checksums and {bytes} bytes of bits: one of each for each data sector"
    )]
    SummaryBits { checksums: usize, bytes: usize },
    #[error("a version of 0 for what the request takes")]
    NoVersion,
}

impl TryFrom<session_request::Operation> for Operation {
    type Error = Malformed;

    fn try_from(wire: session_request::Operation) -> Result<Self, Malformed> {
        use session_request::Operation as Wire;
        Ok(match wire {
            // A ping never gets here: the session answers it.
            Wire::Ping(_) => return Err(ConvertError::Missing("operation").into()),
            Wire::Prepare(prepare) => Operation::Prepare(prepare.try_into()?),
            Wire::Commit(commit) => Operation::Commit(unit_versions(commit.writes)?),
            Wire::Abort(abort) => Operation::Abort(unit_versions(abort.writes)?),
            Wire::Read(read) => Operation::Read(read.try_into()?),
            Wire::Discard(discard) => Operation::Discard(unit_versions(discard.writes)?),
            Wire::Rebuild(rebuild) => Operation::Rebuild(rebuild.try_into()?),
            Wire::SetLabel(set) => {
                let label = set.label.ok_or(ConvertError::Missing("label"))?;
                Operation::SetLabel(Box::new(label.try_into()?))
            }
        })
    }
}

impl TryFrom<v1::PrepareOperation> for Prepare {
    type Error = Malformed;

    fn try_from(wire: v1::PrepareOperation) -> Result<Self, Malformed> {
        Ok(Prepare {
            unit: wire.unit,
            identity: identity(wire.identity)?,
            version: taken(wire.version)?,
            entry: if wire.fresh { Entry::Fresh } else { Entry::Over(convert::version(wire.base)) },
            participants: participants(&wire.participants)?,
            runs: runs(wire.runs)?,
            summary: wire.summary.map(summary).transpose()?,
        })
    }
}

impl TryFrom<v1::ReadOperation> for Read {
    type Error = Malformed;

    fn try_from(wire: v1::ReadOperation) -> Result<Self, Malformed> {
        let (first_sector, sectors) = (wire.first_sector as usize, wire.sectors as usize);
        let end = first_sector.saturating_add(sectors);
        if end > UNIT_SECTORS_MAX {
            return Err(Malformed::Sectors { end });
        }
        Ok(Read {
            unit: wire.unit,
            identity: identity(wire.identity)?,
            version: convert::version(wire.version),
            first_sector,
            sectors,
            summary: wire.summary,
        })
    }
}

impl TryFrom<v1::RebuildOperation> for Rebuild {
    type Error = Malformed;

    fn try_from(wire: v1::RebuildOperation) -> Result<Self, Malformed> {
        Ok(Rebuild {
            unit: wire.unit,
            identity: identity(wire.identity)?,
            token: taken(wire.token)?,
            version: taken(wire.version)?,
            runs: runs(wire.runs)?,
            lost: wire.lost,
            summary: wire.summary.map(summary).transpose()?,
        })
    }
}

fn identity(field: Option<v1::UnitIdentity>) -> Result<Identity, Malformed> {
    Ok(field.ok_or(ConvertError::Missing("identity"))?.try_into()?)
}

/// A version that a coordinator has taken: not the one that stands for none.
fn taken(field: Option<v1::Version>) -> Result<Version, Malformed> {
    let version = convert::version(field);
    if version.is_none() { Err(Malformed::NoVersion) } else { Ok(version) }
}

fn unit_versions(wire: Vec<v1::UnitVersion>) -> Result<Vec<UnitVersion>, Malformed> {
    if !(1..=UNITS_MAX).contains(&wire.len()) {
        return Err(Malformed::Units(wire.len()));
    }
    let unit_version =
        |write: v1::UnitVersion| Ok(UnitVersion { unit: write.unit, version: taken(write.version)? });
    wire.into_iter().map(unit_version).collect()
}

fn participants(shards: &[u32]) -> Result<u32, Malformed> {
    let mut mask = 0_u32;
    for shard in shards {
        // Ascending: no bit at or above this one is set yet.
        if *shard as usize >= SHARDS_MAX || mask >> shard != 0 {
            return Err(Malformed::Participants(u64::from(*shard)));
        }
        mask |= 1 << shard;
    }
    if mask == 0 { Err(Malformed::Participants(0)) } else { Ok(mask) }
}

/// The checksum is compared here, where the bytes arrive: what a wire or a buffer damaged never reaches a disk under a
/// matching checksum.
fn runs(wire: Vec<v1::SectorRun>) -> Result<Vec<Run>, Malformed> {
    if wire.len() > UNIT_SECTORS_MAX {
        return Err(Malformed::Sectors { end: wire.len() });
    }
    let mut runs: Vec<Run> = Vec::with_capacity(wire.len());
    let mut end = 0;
    for run in wire {
        let (bytes, first_sector) = (run.data.len(), run.first_sector as usize);
        if bytes == 0 || !bytes.is_multiple_of(SECTOR_BYTES) {
            return Err(Malformed::RunLength { bytes });
        }
        let sectors = bytes / SECTOR_BYTES;
        if sectors != run.checksums.len() {
            return Err(Malformed::Checksums { sectors, checksums: run.checksums.len() });
        }
        if first_sector < end {
            return Err(Malformed::Order { first_sector, end });
        }
        end = first_sector + sectors;
        if end > UNIT_SECTORS_MAX {
            return Err(Malformed::Sectors { end });
        }
        for (index, sector) in run.data.chunks_exact(SECTOR_BYTES).enumerate() {
            let (given, found) = (run.checksums[index], checksum::of_sector(sector));
            if given != found {
                return Err(Malformed::Checksum { sector: first_sector + index, given, found });
            }
        }
        runs.push(Run { first_sector, data: run.data, checksums: run.checksums });
    }
    Ok(runs)
}

fn summary(wire: v1::StripeSummary) -> Result<Summary, Malformed> {
    if !(1..=SHARDS_MAX).contains(&wire.vector.len()) {
        return Err(Malformed::Vector(wire.vector.len()));
    }
    let checksums = wire.checksums.len();
    let Some(written) = Bits::from_bytes(&wire.written, checksums) else {
        return Err(Malformed::SummaryBits { checksums, bytes: wire.written.len() });
    };
    let vector = wire.vector.into_iter().map(Version::from).collect();
    Ok(Summary { vector, written, checksums: wire.checksums })
}

impl From<Summary> for v1::StripeSummary {
    fn from(summary: Summary) -> Self {
        v1::StripeSummary {
            vector: summary.vector.into_iter().map(v1::Version::from).collect(),
            written: bits_bytes(&summary.written),
            checksums: summary.checksums,
        }
    }
}

impl From<ReadOutcome> for v1::ReadOutcome {
    fn from(outcome: ReadOutcome) -> Self {
        v1::ReadOutcome {
            version: Some(outcome.version.into()),
            data: outcome.data,
            checksums: outcome.checksums,
            written: bits_bytes(&outcome.written),
            bad: bits_bytes(&outcome.bad),
            summary: outcome.summary.map(v1::StripeSummary::from),
        }
    }
}

impl From<Outcome> for session_response::Outcome {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Done => session_response::Outcome::Done(v1::DoneOutcome {}),
            Outcome::Read(read) => session_response::Outcome::Read(read.into()),
            Outcome::Rebuilt(token) => {
                session_response::Outcome::Rebuild(v1::RebuildOutcome { token: Some(token.into()) })
            }
        }
    }
}

impl From<Refusal> for v1::Refusal {
    fn from(refusal: Refusal) -> Self {
        let message = refusal.to_string();
        let (kind, version, epoch) = match refusal {
            Refusal::Invalid(_) | Refusal::Blank | Refusal::OlderLabel { .. } => {
                (RefusalKind::Invalid, None, None)
            }
            Refusal::WrongDisk { .. } => (RefusalKind::WrongDisk, None, None),
            Refusal::Fenced { own, .. } => (RefusalKind::Fenced, None, Some(own)),
            Refusal::NotFenced { own, .. } => (RefusalKind::NotFenced, None, Some(own)),
            Refusal::VersionMismatch { found, .. } | Refusal::OtherIdentity { found, .. } => {
                (RefusalKind::VersionMismatch, Some(found), None)
            }
            Refusal::Empty { .. } => (RefusalKind::VersionMismatch, Some(Version::NONE), None),
            Refusal::BelowFloor { floor, .. } => (RefusalKind::BelowFloor, Some(floor), None),
            Refusal::Busy { pending, .. } => (RefusalKind::Busy, Some(pending), None),
            Refusal::Limit { .. } | Refusal::Full => (RefusalKind::ResourceExhausted, None, None),
            Refusal::Damaged { .. } => (RefusalKind::Damaged, None, None),
            Refusal::Expired => (RefusalKind::Expired, None, None),
            Refusal::DiskFailed(_) => (RefusalKind::DiskFailed, None, None),
        };
        let (version, epoch) = (version.map(v1::Version::from), epoch.map(v1::Epoch::from));
        v1::Refusal { kind: kind.into(), message, version, epoch }
    }
}

impl From<PendingWrite> for v1::PendingWrite {
    fn from(pending: PendingWrite) -> Self {
        v1::PendingWrite {
            unit: pending.unit,
            identity: Some(pending.identity.into()),
            version: Some(pending.version.into()),
            fresh: pending.fresh,
            participants: (0..u32::BITS).filter(|shard| pending.participants >> shard & 1 == 1).collect(),
        }
    }
}

/// A row of bits on the wire.
pub(crate) fn bits_bytes(bits: &Bits) -> Bytes {
    Bytes::copy_from_slice(bits.as_bytes())
}
