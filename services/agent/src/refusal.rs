//! Why an operation of the data stream was not carried out. Decides nothing: the rules are in `store`.

use std::io;

use stripeset_stripe::{Epoch, Version, label::Revision};
use thiserror::Error;
use uuid::Uuid;

use crate::disk;

/// Nothing was done, and why. Every variant has both sides of the comparison that failed.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub(crate) enum Refusal {
    #[error("{0}")]
    Invalid(String),
    #[error("the disk is blank: it has to be joined to an array first")]
    Blank,
    #[error("the request is for disk {given}, this is disk {own}")]
    WrongDisk { given: Uuid, own: Uuid },
    #[error("epoch {given} is deposed: the disk was fenced for {own}")]
    Fenced { given: Epoch, own: Epoch },
    #[error("epoch {given} has to fence the disk first: it was fenced for {own}")]
    NotFenced { given: Epoch, own: Epoch },
    #[error("label revision {given} is not newer than the disk's, {own}")]
    OlderLabel { given: Revision, own: Revision },
    #[error("unit {unit} has committed version {found}, the request needs {wanted}")]
    VersionMismatch { unit: u64, wanted: Version, found: Version },
    #[error("unit {unit} is for another shard, at version {found}")]
    OtherIdentity { unit: u64, found: Version },
    #[error("unit {unit} is empty: only a fresh write enters it")]
    Empty { unit: u64 },
    #[error("version {given} is not above the floor of unit {unit}, {floor}")]
    BelowFloor { unit: u64, given: Version, floor: Version },
    #[error("write {pending} is pending on unit {unit}")]
    Busy { unit: u64, pending: Version },
    #[error("{what}: the limit is {limit}")]
    Limit { what: &'static str, limit: u64 },
    #[error("no space left on the disk")]
    Full,
    #[error("the record of unit {unit} is damaged")]
    Damaged { unit: u64 },
    #[error("the time given was over before the work began")]
    Expired,
    #[error("the disk failed: {0}")]
    DiskFailed(String),
}

impl Refusal {
    /// A disk that refuses an operation: full, which passes, or failed.
    pub(crate) fn of_disk(error: &io::Error) -> Refusal {
        if disk::is_full(error) { Refusal::Full } else { Refusal::DiskFailed(error.to_string()) }
    }
}
