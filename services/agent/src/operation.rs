//! What can be asked of a store, and what it answers: domain types. From and to the wire is in `wire`.

use bytes::Bytes;
use stripeset_proto::convert::Identity;
use stripeset_stripe::{SECTOR_BYTES, Version, bits::Bits, label::Label};

use crate::record::Summary;

/// Neighbouring sectors with their checksums. Invariant: whole sectors, one checksum for each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) first_sector: usize,
    pub(crate) data: Bytes,
    pub(crate) checksums: Vec<u32>,
}

impl Run {
    /// Number of sectors.
    pub(crate) fn sectors(&self) -> usize {
        self.data.len() / SECTOR_BYTES
    }

    /// The sector after the last one.
    pub(crate) fn end(&self) -> usize {
        self.first_sector + self.sectors()
    }
}

/// How a write enters its unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// The stripe is empty: the bytes go straight home.
    Fresh,
    /// Over the committed version given.
    Over(Version),
}

/// First phase of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Prepare {
    pub(crate) unit: u64,
    pub(crate) identity: Identity,
    pub(crate) version: Version,
    pub(crate) entry: Entry,
    /// One bit for each shard that takes part.
    pub(crate) participants: u32,
    /// Ascending, not overlapping.
    pub(crate) runs: Vec<Run>,
    pub(crate) summary: Option<Summary>,
}

/// A write to a unit, by its version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UnitVersion {
    pub(crate) unit: u64,
    pub(crate) version: Version,
}

/// Reads neighbouring sectors of one unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Read {
    pub(crate) unit: u64,
    pub(crate) identity: Identity,
    pub(crate) version: Version,
    pub(crate) first_sector: usize,
    /// 0 reads the record alone.
    pub(crate) sectors: usize,
    pub(crate) summary: bool,
}

/// Replaces a unit whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rebuild {
    pub(crate) unit: u64,
    pub(crate) identity: Identity,
    pub(crate) token: Version,
    pub(crate) version: Version,
    /// Ascending, not overlapping.
    pub(crate) runs: Vec<Run>,
    /// As on the wire: how many bits there have to be is known only on a joined disk. Empty is none.
    pub(crate) lost: Bytes,
    pub(crate) summary: Option<Summary>,
}

/// An operation of the data stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Prepare(Prepare),
    Commit(Vec<UnitVersion>),
    Abort(Vec<UnitVersion>),
    Read(Read),
    Discard(Vec<UnitVersion>),
    Rebuild(Rebuild),
    SetLabel(Box<Label>),
}

impl Operation {
    /// The unit whose bytes go straight home, if any do: they may find no space after the operation was carried out.
    pub(crate) fn enters(&self) -> Option<u64> {
        match self {
            Operation::Prepare(Prepare { entry: Entry::Fresh, unit, .. })
            | Operation::Rebuild(Rebuild { unit, .. }) => Some(*unit),
            _ => None,
        }
    }
}

/// What a read found: bytes, checksums and bits of one version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReadOutcome {
    pub(crate) version: Version,
    /// Zeros for never written and bad sectors.
    pub(crate) data: Bytes,
    pub(crate) checksums: Vec<u32>,
    pub(crate) written: Bits,
    pub(crate) bad: Bits,
    pub(crate) summary: Option<Summary>,
}

/// What came of an operation that was not refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Done,
    Read(ReadOutcome),
    /// With the token of the attempt.
    Rebuilt(Version),
}

/// A write that was neither committed nor aborted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PendingWrite {
    pub(crate) unit: u64,
    pub(crate) identity: Identity,
    pub(crate) version: Version,
    pub(crate) fresh: bool,
    pub(crate) participants: u32,
}
