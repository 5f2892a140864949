//! The superblock: which disk this is, the highest epoch it was fenced for, its label, and who fenced it since it took
//! that. Two copies; byte layout here and in docs/ON_DISK.md.
//!
//! Invariants:
//! 1. Both copies are written at each change, one after the other with a sync after each: a loss of power leaves one
//!    whole, and later damage to either takes nothing back - a disk that forgot its newest epoch would let a deposed
//!    coordinator write again.
//! 2. Of two whole copies the one with the higher generation counts.
//! 3. No bytes whatever make decoding panic.

use std::io;

use stripeset_stripe::{Epoch, label::Label};
use thiserror::Error;
use uuid::Uuid;

use crate::{
    disk::{Buffer, Disk},
    label,
    layout::{SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS},
    little_endian::{Reader, Writer},
};

/// Version of the on-disk format that this code writes.
pub(crate) const FORMAT: u32 = 2;

/// Most state folders that are told apart; one of zeros stands for all others.
pub(crate) const FENCERS_MAX: usize = 17;

/// First bytes of every superblock, in every format.
const MAGIC: [u8; 8] = *b"stripes\n";

/// Bytes of a superblock before those that its checksum covers.
const CRC_END: usize = 12;

/// What a disk says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Superblock {
    pub(crate) generation: u64,
    pub(crate) disk_id: Uuid,
    pub(crate) disk_bytes: u64,
    pub(crate) epoch: Epoch,
    pub(crate) label: Option<Label>,
    /// State folders from which the disk was fenced since it took its label; the last one is the one that did last.
    pub(crate) fenced_by: Vec<Uuid>,
}

/// Why the superblocks of a disk cannot be used.
#[derive(Debug, Error)]
pub(crate) enum SuperblockError {
    #[error("no superblock is there")]
    None,
    #[error("format {0}")]
    OtherFormat(u32),
    #[error("both copies are damaged")]
    Damaged,
    #[error("the disk cannot be read")]
    Io(#[from] io::Error),
}

/// What one copy turned out to be.
#[derive(Debug, PartialEq, Eq)]
enum Copy {
    None,
    OtherFormat(u32),
    Damaged,
    Whole(Superblock),
}

impl Superblock {
    /// The superblock of a disk that was just formatted.
    pub(crate) fn blank(disk_id: Uuid, disk_bytes: u64) -> Superblock {
        Superblock {
            generation: 1,
            disk_id,
            disk_bytes,
            epoch: Epoch::default(),
            label: None,
            fenced_by: Vec::new(),
        }
    }

    /// Reads the newest whole copy, and says whether the other one is the same.
    pub(crate) fn read(disk: &mut dyn Disk) -> Result<(Superblock, bool), SuperblockError> {
        let mut copies = Vec::new();
        let mut bytes = Buffer::zeroed(SUPERBLOCK_BYTES as usize);
        for offset in SUPERBLOCK_OFFSETS {
            copies.push(match disk.read(offset, &mut bytes) {
                Ok(got) => Superblock::decode(&bytes[..got]),
                // One copy that cannot be read is what the other one is for.
                Err(error) => {
                    tracing::error!(offset, %error, "a superblock cannot be read");
                    Copy::Damaged
                }
            });
        }
        if let Some(found) = copies.iter().find_map(Copy::other_format) {
            return Err(SuperblockError::OtherFormat(found));
        }
        let same = copies[0] == copies[1];
        let absent = copies.iter().all(|copy| *copy == Copy::None);
        let whole = copies.into_iter().filter_map(Copy::whole).max_by_key(|superblock| superblock.generation);
        match whole {
            Some(superblock) => Ok((superblock, same)),
            None if absent => Err(SuperblockError::None),
            None => Err(SuperblockError::Damaged),
        }
    }

    /// Takes note that it was fenced from a state folder.
    pub(crate) fn note_fencer(&mut self, folder: Uuid) {
        let known = self.fenced_by.contains(&folder);
        let folder = if known || self.fenced_by.len() + 1 < FENCERS_MAX { folder } else { Uuid::nil() };
        // The last one is the one that did last.
        self.fenced_by.retain(|fencer| *fencer != folder);
        self.fenced_by.push(folder);
    }

    /// Writes both copies, durably (invariant 1).
    pub(crate) fn write(&self, disk: &mut dyn Disk) -> io::Result<()> {
        let bytes = self.encode();
        for offset in SUPERBLOCK_OFFSETS {
            disk.write(offset, &bytes)?;
            disk.sync()?;
        }
        Ok(())
    }

    fn encode(&self) -> Buffer {
        let mut bytes = Buffer::zeroed(SUPERBLOCK_BYTES as usize);
        let mut out = Writer::new(&mut bytes);
        out.bytes(&MAGIC);
        out.u32(0);
        out.u32(FORMAT);
        out.u64(self.generation);
        out.bytes(self.disk_id.as_bytes());
        out.u64(self.disk_bytes);
        out.u64(self.epoch.number);
        out.u64(self.epoch.incarnation);
        out.u8(u8::from(self.label.is_some()));
        if let Some(label) = &self.label {
            label::write(label, &mut out);
        }
        out.u8(self.fenced_by.len() as u8);
        self.fenced_by.iter().for_each(|folder| out.bytes(folder.as_bytes()));
        let crc = crc32c::crc32c(&bytes[CRC_END..]);
        bytes[8..CRC_END].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Copy {
        if !bytes.starts_with(&MAGIC) {
            // Zeros are what a disk has before its first superblock; anything else is not known to be ours.
            return Copy::None;
        }
        Superblock::decode_fields(bytes).unwrap_or(Copy::Damaged)
    }

    fn decode_fields(bytes: &[u8]) -> Option<Copy> {
        let mut from = Reader::new(bytes.get(8..)?);
        let crc = from.u32()?;
        if bytes.len() as u64 != SUPERBLOCK_BYTES || crc != crc32c::crc32c(&bytes[CRC_END..]) {
            return None;
        }
        // Every format keeps magic, checksum and format number where they are, so that this can be said of another one.
        let format = from.u32()?;
        if format == 0 {
            return None;
        }
        if format != FORMAT {
            return Some(Copy::OtherFormat(format));
        }
        let generation = from.count()?;
        let disk_id = Uuid::from_bytes(from.array()?);
        let disk_bytes = from.u64()?;
        let epoch = Epoch { number: from.u64()?, incarnation: from.u64()? };
        let label = match from.u8()? {
            0 => None,
            1 => Some(label::read(&mut from)?),
            _ => return None,
        };
        let mut fenced_by = Vec::new();
        let fencers = usize::from(from.u8()?);
        if fencers > FENCERS_MAX {
            return None;
        }
        for _ in 0..fencers {
            fenced_by.push(Uuid::from_bytes(from.array()?));
        }
        Some(Copy::Whole(Superblock { generation, disk_id, disk_bytes, epoch, label, fenced_by }))
    }
}

impl Copy {
    fn other_format(&self) -> Option<u32> {
        if let Copy::OtherFormat(format) = self { Some(*format) } else { None }
    }

    fn whole(self) -> Option<Superblock> {
        if let Copy::Whole(superblock) = self { Some(superblock) } else { None }
    }
}

/// Decodes bytes as a superblock, for [`crate::fuzzing`]. What is decoded comes back when it is encoded.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn try_decode(bytes: &mut [u8], forge: bool) -> bool {
    if forge {
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[12..16].copy_from_slice(&FORMAT.to_le_bytes());
        seal(bytes);
    }
    let Copy::Whole(superblock) = Superblock::decode(bytes) else { return false };
    // A label that no disk may have is refused when it is opened; it need not fit a superblock again.
    let kept = superblock.label.as_ref().is_none_or(|label| {
        label.members.len() <= label::MEMBERS_MAX && label.may_follow.len() <= label::MAY_FOLLOW_MAX
    });
    if kept {
        assert_eq!(Superblock::decode(&superblock.encode()), Copy::Whole(superblock));
    }
    true
}

/// Makes the checksum right.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn seal(bytes: &mut [u8]) {
    let crc = crc32c::crc32c(&bytes[CRC_END..]);
    bytes[8..CRC_END].copy_from_slice(&crc.to_le_bytes());
}

#[cfg(test)]
mod tests;
