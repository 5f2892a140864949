//! The journal: a ring of groups, each with the changes of many units and the bytes of their partial writes. Where a
//! group goes, how it is encoded, how it is found again. What the changes mean is in [`super::replay`].
//!
//! Invariants:
//! 1. A group is written only after the one before it was synced: so only the last one can be torn, and one that is not
//!    whole although a later one is there was damaged after it had been told of.
//! 2. Nothing from the tail on is overwritten. The tail moves only when what it leaves behind is durable elsewhere, and
//!    the space is used again only when a head that says so is durable in both copies.
//! 3. A head is 512 bytes, which disks write whole or not at all: a loss of power leaves the old one or the new one.
//! 4. No bytes whatever make decoding panic, or take more memory than a small multiple of the group's length. What is
//!    decoded can be carried out on a disk with this layout: its units are there, its records fit their places.

use std::{collections::VecDeque, io};

use bytes::Bytes;
use stripeset_stripe::{SECTOR_BYTES, Version};
use uuid::Uuid;

use super::change::Change;
use crate::{
    disk::{BLOCK_BYTES, Buffer, Disk},
    layout::{JOURNAL_HEAD_OFFSETS, Layout, RING_OFFSET, RING_PARTS},
    little_endian::{Reader, Writer},
};

/// A place in the journal: bytes since its beginning, of all rounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place(pub(crate) u64);

/// First bytes of every group.
const GROUP_MAGIC: [u8; 8] = *b"ssgroup\x01";

/// Bytes of a group before its changes.
const GROUP_HEAD_BYTES: usize = 88;

/// First bytes of every head.
const HEAD_MAGIC: [u8; 8] = *b"sshead\x01\n";

/// Bytes of a head.
const HEAD_BYTES: usize = 512;

/// Bytes before those that the checksum of a group or a head covers.
const CRC_END: usize = 12;

/// What a group says of the disk as a whole, as it is after its changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    /// Highest floor of any unit.
    pub(crate) newest: Version,
    /// Units that hold something.
    pub(crate) used: u64,
}

/// Where the journal begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    generation: u64,
    tail: Place,
    /// Of the group at the tail.
    sequence: u64,
    totals: Totals,
}

/// A group as it was found.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) place: Place,
    pub(crate) changes: Vec<Change>,
    pub(crate) totals: Totals,
    /// Bytes of the partial writes, in the order of the changes.
    pub(crate) data: Bytes,
    end: Place,
    sequence: u64,
}

/// A group that is being put together.
#[derive(Debug, Default)]
pub(crate) struct Staged {
    changes: Vec<u8>,
    count: u32,
    data: Vec<Bytes>,
    data_bytes: usize,
}

/// The ring of an open disk.
#[derive(Debug)]
pub(crate) struct Journal {
    ring_bytes: u64,
    /// Where the next group begins.
    end: Place,
    /// Its number.
    sequence: u64,
    tail: Place,
    /// From the tail on: place and number.
    groups: VecDeque<(Place, u64)>,
    /// Of the head.
    generation: u64,
    /// Kept for its memory.
    buffer: Buffer,
}

/// Why the journal of a disk cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum JournalError {
    #[error("both copies of the journal's head are damaged")]
    NoHead,
    #[error("the journal is damaged at offset {offset}: writes that were acknowledged are lost")]
    Damaged { offset: u64 },
    #[error("the journal cannot be read")]
    Io(#[from] io::Error),
}

impl Staged {
    /// Adds a change, and the bytes of a partial write.
    pub(crate) fn push(&mut self, disk: Uuid, change: &Change, data: impl Iterator<Item = Bytes>) {
        change.encode(disk, &mut self.changes);
        self.count += 1;
        for bytes in data {
            self.data_bytes += bytes.len();
            self.data.push(bytes);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Bytes that the group takes in the ring.
    pub(crate) fn bytes(&self) -> u64 {
        group_bytes(self.changes.len(), self.data_bytes)
    }

    fn clear(&mut self) {
        self.changes.clear();
        self.count = 0;
        self.data.clear();
        self.data_bytes = 0;
    }
}

/// Bytes that changes and data of these lengths take in the ring: each begins with a block.
fn group_bytes(changes: usize, data: usize) -> u64 {
    ((GROUP_HEAD_BYTES + changes).next_multiple_of(BLOCK_BYTES) + data) as u64
}

impl Journal {
    /// An empty ring of no length: the journal of a blank disk.
    pub(crate) fn none() -> Journal {
        Journal {
            ring_bytes: 0,
            end: Place(0),
            sequence: 1,
            tail: Place(0),
            groups: VecDeque::new(),
            generation: 0,
            buffer: Buffer::default(),
        }
    }

    /// Writes the heads of a ring of zeros.
    pub(crate) fn format(disk: &mut dyn Disk, disk_id: Uuid) -> io::Result<()> {
        Journal::none().write_head(disk, disk_id, Totals::default())
    }

    /// Finds the newest head. The journal ends at its tail until [`Journal::next`] has found what follows.
    pub(crate) fn open(
        disk: &mut dyn Disk,
        disk_id: Uuid,
        layout: &Layout,
    ) -> Result<(Journal, Totals), JournalError> {
        let mut newest: Option<Head> = None;
        let mut block = Buffer::zeroed(BLOCK_BYTES);
        for offset in JOURNAL_HEAD_OFFSETS {
            match disk.read(offset, &mut block) {
                Ok(BLOCK_BYTES) => {}
                // One copy that cannot be read is what the other one is for.
                Ok(_) | Err(_) => continue,
            }
            let found = Head::decode(&block, disk_id).filter(|head| head.totals.used <= layout.units());
            newest = newest.into_iter().chain(found).max_by_key(|head| head.generation);
        }
        let Some(head) = newest else { return Err(JournalError::NoHead) };
        let journal = Journal {
            ring_bytes: layout.ring_bytes(),
            end: head.tail,
            sequence: head.sequence,
            tail: head.tail,
            groups: VecDeque::new(),
            generation: head.generation,
            buffer: Buffer::default(),
        };
        Ok((journal, head.totals))
    }

    /// Reads the group at the end, and moves the end behind it. `None` if there is none, or it is not whole and the last.
    pub(crate) fn next(
        &mut self,
        disk: &mut dyn Disk,
        disk_id: Uuid,
        layout: &Layout,
    ) -> Result<Option<Group>, JournalError> {
        for place in [self.end, self.round_end(self.end)] {
            if let Some(group) = self.read_group(disk, disk_id, layout, place)? {
                (self.end, self.sequence) = (group.end, group.sequence + 1);
                self.groups.push_back((group.place, group.sequence));
                return Ok(Some(group));
            }
        }
        self.check_end(disk, disk_id)?;
        Ok(None)
    }

    /// Takes the last group off again: it was never whole.
    pub(crate) fn drop_last(&mut self, group: &Group) {
        (self.end, self.sequence) = (group.place, group.sequence);
        self.groups.pop_back();
    }

    fn read_group(
        &mut self,
        disk: &mut dyn Disk,
        disk_id: Uuid,
        layout: &Layout,
        place: Place,
    ) -> io::Result<Option<Group>> {
        let sequence = self.sequence;
        let mut block = Buffer::zeroed(BLOCK_BYTES);
        if disk.read(self.offset(place), &mut block)? != BLOCK_BYTES {
            return Ok(None);
        }
        let Some(head) = GroupHead::decode(&block, disk_id, place, sequence) else { return Ok(None) };
        let total = head.group_bytes();
        let end = Place(place.0 + total);
        let in_ring = self.offset(place) + total <= self.ring_end() && end.0 - self.tail.0 <= self.ring_bytes;
        if total > 2 * self.part_bytes() || !in_ring {
            return Ok(None);
        }
        let mut whole = Buffer::zeroed(total as usize);
        let got = disk.read(self.offset(place), &mut whole)?;
        let data_start = whole.len() - head.data_bytes;
        if got < data_start {
            return Ok(None);
        }
        // Sectors that cannot be read do not match their checksums.
        whole[got..].fill(0);
        let Some(changes) = head.decode_changes(&whole, disk_id, layout) else { return Ok(None) };
        let data = whole.into_bytes().slice(data_start..);
        Ok(Some(Group { place, changes, totals: head.totals, data, end, sequence }))
    }

    /// Where no group is found the journal ends - unless the next one is there (invariant 1).
    fn check_end(&self, disk: &mut dyn Disk, disk_id: Uuid) -> Result<(), JournalError> {
        // The next group begins at most two parts behind, and two more if the ring's end comes before.
        let mut place = self.end.0;
        let last = place + 4 * self.part_bytes();
        let mut chunk = Buffer::zeroed(self.part_bytes() as usize);
        while place < last {
            let length = chunk.len().min((self.ring_end() - self.offset(Place(place))) as usize);
            chunk.resize(length);
            let got = disk.read(self.offset(Place(place)), &mut chunk)?;
            for start in (0..got / BLOCK_BYTES).map(|block| block * BLOCK_BYTES) {
                let at = Place(place + start as u64);
                let block = &chunk[start..start + BLOCK_BYTES];
                if GroupHead::decode(block, disk_id, at, self.sequence + 1).is_some() {
                    return Err(JournalError::Damaged { offset: self.offset(self.end) });
                }
            }
            place += length as u64;
            chunk.resize(self.part_bytes() as usize);
        }
        Ok(())
    }

    /// Writes what is staged as one group, and returns where. Whoever calls syncs before anything else is written.
    pub(crate) fn write(
        &mut self,
        disk: &mut dyn Disk,
        disk_id: Uuid,
        staged: &mut Staged,
        totals: Totals,
    ) -> io::Result<Place> {
        let total = staged.bytes() as usize;
        let mut place = self.end;
        if self.offset(place) + total as u64 > self.ring_end() {
            place = self.round_end(place);
        }
        assert!(place.0 + total as u64 - self.tail.0 <= self.ring_bytes, "invariant 2");
        self.buffer.resize(total);
        let data_start = total - staged.data_bytes;
        let head_end = GROUP_HEAD_BYTES + staged.changes.len();
        self.buffer[GROUP_HEAD_BYTES..head_end].copy_from_slice(&staged.changes);
        self.buffer[head_end..data_start].fill(0);
        let mut at = data_start;
        for bytes in &staged.data {
            self.buffer[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        }
        let head = GroupHead {
            crc: 0,
            changes_bytes: staged.changes.len(),
            data_bytes: staged.data_bytes,
            changes: staged.count,
            totals,
        };
        head.encode(&mut self.buffer[..head_end], disk_id, place, self.sequence);
        disk.write(self.offset(place), &self.buffer)?;
        staged.clear();
        self.groups.push_back((place, self.sequence));
        self.end = Place(place.0 + total as u64);
        self.sequence += 1;
        Ok(place)
    }

    /// Moves the tail as far as nothing at or behind `needed` is left behind, and writes both heads. The space is free
    /// once they are synced: whoever calls does that before the next group.
    pub(crate) fn move_tail(
        &mut self,
        disk: &mut dyn Disk,
        disk_id: Uuid,
        needed: Option<Place>,
        totals: Totals,
    ) -> io::Result<()> {
        let needed = needed.unwrap_or(self.end);
        while self.groups.front().is_some_and(|(place, _)| *place < needed) {
            self.groups.pop_front();
        }
        self.tail = self.groups.front().map_or(self.end, |(place, _)| *place);
        self.write_head(disk, disk_id, totals)
    }

    fn write_head(&mut self, disk: &mut dyn Disk, disk_id: Uuid, totals: Totals) -> io::Result<()> {
        self.generation += 1;
        let sequence = self.groups.front().map_or(self.sequence, |(_, sequence)| *sequence);
        let head = Head { generation: self.generation, tail: self.tail, sequence, totals };
        let mut block = Buffer::zeroed(BLOCK_BYTES);
        head.encode(disk_id, &mut block);
        JOURNAL_HEAD_OFFSETS.iter().try_for_each(|offset| disk.write(*offset, &block))
    }

    /// Takes the beginning of a group that was never whole off the disk, so that it is never taken for the one that is
    /// written next. Whoever calls syncs.
    pub(crate) fn clear_end(&mut self, disk: &mut dyn Disk, disk_id: Uuid) -> io::Result<()> {
        for place in [self.end, self.round_end(self.end)] {
            let mut block = Buffer::zeroed(BLOCK_BYTES);
            let got = disk.read(self.offset(place), &mut block)?;
            if got == BLOCK_BYTES && GroupHead::decode(&block, disk_id, place, self.sequence).is_some() {
                block.fill(0);
                disk.write(self.offset(place), &block)?;
            }
        }
        Ok(())
    }

    /// Where the next group begins, at the earliest.
    pub(crate) fn end(&self) -> Place {
        self.end
    }

    /// Where the newest group is on the disk.
    #[cfg(test)]
    pub(crate) fn last_group(&self) -> std::ops::Range<u64> {
        let last = self.groups.back().map_or(self.end, |(place, _)| *place);
        self.offset(last)..self.offset(last) + (self.end.0 - last.0)
    }

    /// Bytes between tail and end.
    pub(crate) fn used_bytes(&self) -> u64 {
        self.end.0 - self.tail.0
    }

    /// Bytes of the ring.
    pub(crate) fn ring_bytes(&self) -> u64 {
        self.ring_bytes
    }

    /// Groups between tail and end.
    pub(crate) fn groups(&self) -> usize {
        self.groups.len()
    }

    /// Bytes of one part of the ring, in which limits are counted.
    pub(crate) fn part_bytes(&self) -> u64 {
        self.ring_bytes / RING_PARTS
    }

    /// The start of the next round; the place itself if it is one.
    fn round_end(&self, place: Place) -> Place {
        Place(place.0.next_multiple_of(self.ring_bytes))
    }

    fn offset(&self, place: Place) -> u64 {
        RING_OFFSET + place.0 % self.ring_bytes
    }

    fn ring_end(&self) -> u64 {
        RING_OFFSET + self.ring_bytes
    }
}

impl Head {
    fn encode(&self, disk: Uuid, out: &mut [u8]) {
        let mut writer = Writer::new(out);
        writer.bytes(&HEAD_MAGIC);
        writer.u32(0);
        writer.u32(0);
        writer.bytes(disk.as_bytes());
        writer.u64(self.generation);
        writer.u64(self.tail.0);
        writer.u64(self.sequence);
        writer.version(self.totals.newest);
        writer.u64(self.totals.used);
        let crc = crc32c::crc32c(&out[CRC_END..HEAD_BYTES]);
        out[8..CRC_END].copy_from_slice(&crc.to_le_bytes());
    }

    fn decode(bytes: &[u8], disk: Uuid) -> Option<Head> {
        let bytes = bytes.get(..HEAD_BYTES)?;
        let mut from = Reader::new(bytes);
        if from.array()? != HEAD_MAGIC || from.u32()? != crc32c::crc32c(&bytes[CRC_END..]) {
            return None;
        }
        let _reserved = from.u32()?;
        if from.array()? != *disk.as_bytes() {
            return None;
        }
        let (generation, tail, sequence) = (from.count()?, Place(from.count()?), from.count()?);
        let totals = Totals { newest: from.version()?, used: from.u64()? };
        let aligned = tail.0.is_multiple_of(BLOCK_BYTES as u64);
        aligned.then_some(Head { generation, tail, sequence, totals })
    }
}

/// The beginning of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct GroupHead {
    /// Of what follows it, and of the changes.
    crc: u32,
    changes_bytes: usize,
    data_bytes: usize,
    changes: u32,
    totals: Totals,
}

impl GroupHead {
    fn encode(&self, group: &mut [u8], disk: Uuid, place: Place, sequence: u64) {
        let mut writer = Writer::new(group);
        writer.bytes(&GROUP_MAGIC);
        writer.u32(0);
        // Both are parts of a ring of at most 64 MiB.
        writer.u32(self.changes_bytes as u32);
        writer.u32((self.data_bytes / SECTOR_BYTES) as u32);
        writer.u32(self.changes);
        writer.bytes(disk.as_bytes());
        writer.u64(place.0);
        writer.u64(sequence);
        writer.version(self.totals.newest);
        writer.u64(self.totals.used);
        let crc = crc32c::crc32c(&group[CRC_END..]);
        group[8..CRC_END].copy_from_slice(&crc.to_le_bytes());
    }

    /// Bytes that the group takes in the ring.
    fn group_bytes(&self) -> u64 {
        group_bytes(self.changes_bytes, self.data_bytes)
    }

    /// The changes of the group that this is the head of; `None` if they are not whole, or are not those of the data.
    fn decode_changes(&self, group: &[u8], disk: Uuid, layout: &Layout) -> Option<Vec<Change>> {
        let end = GROUP_HEAD_BYTES + self.changes_bytes;
        if self.crc != crc32c::crc32c(group.get(CRC_END..end)?) {
            return None;
        }
        let mut rest = &group[GROUP_HEAD_BYTES..end];
        let mut changes = Vec::new();
        for _ in 0..self.changes {
            changes.push(Change::decode(&mut rest, disk, layout)?);
        }
        let sectors = changes.iter().map(Change::redo_sectors).sum::<usize>();
        let fits = sectors * SECTOR_BYTES == self.data_bytes && self.totals.used <= layout.units();
        fits.then_some(changes)
    }

    /// Decodes the head of the group with this place and number. Whether its changes are whole is for the caller.
    fn decode(block: &[u8], disk: Uuid, place: Place, sequence: u64) -> Option<GroupHead> {
        let mut from = Reader::new(block);
        if from.array()? != GROUP_MAGIC {
            return None;
        }
        let crc = from.u32()?;
        let (changes_bytes, sectors, changes) = (from.u32()? as usize, from.u32()? as usize, from.u32()?);
        let ours = from.array()? == *disk.as_bytes() && from.u64()? == place.0 && from.u64()? == sequence;
        let totals = Totals { newest: from.version()?, used: from.u64()? };
        let data_bytes = sectors.checked_mul(SECTOR_BYTES)?;
        ours.then_some(GroupHead { crc, changes_bytes, data_bytes, changes, totals })
    }
}

/// Makes the checksum of a head right.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn seal_head(bytes: &mut [u8]) {
    let crc = crc32c::crc32c(&bytes[CRC_END..HEAD_BYTES]);
    bytes[8..CRC_END].copy_from_slice(&crc.to_le_bytes());
}

/// Makes the checksums of a group and of the records in it right. What does not begin like a group is left alone.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn seal_group(bytes: &mut [u8], disk: Uuid) {
    if bytes.len() < GROUP_HEAD_BYTES || !bytes.starts_with(&GROUP_MAGIC) {
        return;
    }
    let changes_bytes = u32::from_le_bytes([bytes[12], bytes[13], bytes[14], bytes[15]]) as usize;
    let end = bytes.len().min(GROUP_HEAD_BYTES + changes_bytes);
    super::change::seal(&mut bytes[GROUP_HEAD_BYTES..end], disk);
    let crc = crc32c::crc32c(&bytes[CRC_END..end]);
    bytes[8..CRC_END].copy_from_slice(&crc.to_le_bytes());
}

/// Decodes bytes as a head of a journal, for [`crate::fuzzing`]. What is decoded comes back when it is encoded.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn try_head(bytes: &mut [u8], disk: Uuid, forge: bool) -> bool {
    if forge && bytes.len() >= HEAD_BYTES {
        bytes[..8].copy_from_slice(&HEAD_MAGIC);
        bytes[16..32].copy_from_slice(disk.as_bytes());
        seal_head(bytes);
    }
    let Some(head) = Head::decode(bytes, disk) else { return false };
    let mut again = [0; HEAD_BYTES];
    head.encode(disk, &mut again);
    assert_eq!(Head::decode(&again, disk), Some(head));
    true
}

/// Decodes bytes as a group, for [`crate::fuzzing`]. What is decoded comes back when it is encoded.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn try_group(bytes: &mut [u8], disk: Uuid, layout: &Layout, forge: bool) -> bool {
    let (place, sequence) = (Place(3 * BLOCK_BYTES as u64), 5_u64);
    if forge && bytes.len() > GROUP_HEAD_BYTES {
        bytes[..8].copy_from_slice(&GROUP_MAGIC);
        let changes_bytes = (bytes.len() - GROUP_HEAD_BYTES) as u32;
        bytes[12..16].copy_from_slice(&changes_bytes.to_le_bytes());
        bytes[24..40].copy_from_slice(disk.as_bytes());
        bytes[40..48].copy_from_slice(&place.0.to_le_bytes());
        bytes[48..56].copy_from_slice(&sequence.to_le_bytes());
        seal_group(bytes, disk);
    }
    let Some(head) = GroupHead::decode(bytes, disk, place, sequence) else { return false };
    let Some(changes) = head.decode_changes(bytes, disk, layout) else { return false };
    let mut again = Staged::default();
    for change in &changes {
        again.push(disk, change, std::iter::empty());
    }
    let mut rest = again.changes.as_slice();
    for change in &changes {
        assert_eq!(Change::decode(&mut rest, disk, layout).as_ref(), Some(change));
    }
    true
}
