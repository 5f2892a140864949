//! The table: the record of every unit, in pages, and the directory, which knows of each region of the table the highest
//! floor in it. Pages are read when they are needed and kept up to a limit; the directory is held whole.
//!
//! Invariants:
//! 1. What is kept of a page is what the disk holds.
//! 2. A page is written only while the journal still has every record that changes in it: a write that is torn damages
//!    no other record, because of those the old bytes and the new are the same.
//! 3. No floor in a region is above the region's entry in the directory; a region whose entry is none is zeros.

use std::{io, num::NonZeroUsize};

use lru::LruCache;
use stripeset_stripe::Version;
use uuid::Uuid;

use crate::{
    disk::{BLOCK_BYTES, Buffer, Disk},
    layout::Layout,
    little_endian::{Reader, VERSION_BYTES, Writer},
    record::{Record, State},
};

/// Most bytes of pages that are kept.
const CACHE_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Pages that are read by one call when the one before is kept already: records of neighbouring units are mostly needed
/// one after the other.
const READ_AHEAD_PAGES: u64 = 16;

/// Most bytes of neighbouring pages that are written by one call.
const WRITE_BYTES_MAX: usize = 1024 * 1024;

/// Versions in a page of the directory.
pub(crate) const VERSIONS_IN_PAGE: usize = (BLOCK_BYTES - DIRECTORY_HEAD_BYTES) / VERSION_BYTES;

/// Bytes of a directory's page before its versions: checksum, number of the page, UUID of the disk.
const DIRECTORY_HEAD_BYTES: usize = 4 + 4 + 16;

/// The table of an open disk.
pub(super) struct Table {
    disk_id: Uuid,
    layout: Layout,
    pages: LruCache<u64, Box<[u8]>>,
    /// By region: the highest floor in it.
    directory: Vec<Version>,
}

impl Table {
    /// Writes the directory of a table of zeros.
    pub(super) fn format(disk: &mut dyn Disk, disk_id: Uuid, layout: &Layout) -> io::Result<()> {
        for page in 0..layout.regions().div_ceil(VERSIONS_IN_PAGE as u64) {
            let block = encode_directory_page(&[], disk_id, page);
            disk.write(directory_page_offset(layout, page), &block)?;
        }
        Ok(())
    }

    /// Reads the directory. Of a page that is damaged `newest` is taken for all entries: that costs looks at pages, no
    /// more.
    pub(super) fn open(
        disk: &mut dyn Disk,
        disk_id: Uuid,
        layout: Layout,
        newest: Version,
    ) -> io::Result<Table> {
        // Reserved at once, so that it never moves: 4 MiB for 16 TiB of disk.
        let mut directory = Vec::with_capacity(layout.regions() as usize);
        let mut block = Buffer::zeroed(BLOCK_BYTES);
        for page in 0..layout.regions().div_ceil(VERSIONS_IN_PAGE as u64) {
            let got = disk.read(directory_page_offset(&layout, page), &mut block);
            let versions = match got {
                Ok(BLOCK_BYTES) => decode_directory_page(&block, disk_id, page),
                Ok(_) | Err(_) => None,
            };
            if versions.is_none() {
                tracing::warn!(page, "a page of the directory is damaged; it is written anew in time");
            }
            let count = VERSIONS_IN_PAGE.min(layout.regions() as usize - directory.len());
            directory.extend(versions.unwrap_or_else(|| vec![newest; count]).into_iter().take(count));
        }
        let kept = (CACHE_BYTES_MAX / layout.page_bytes()).max(READ_AHEAD_PAGES as usize);
        let pages = LruCache::new(NonZeroUsize::new(kept).unwrap_or(NonZeroUsize::MIN));
        Ok(Table { disk_id, layout, pages, directory })
    }

    /// The record of a unit. A page that cannot be read has damaged records; what is damaged has the floor of its region.
    pub(super) fn record(&mut self, disk: &mut dyn Disk, unit: u64) -> io::Result<Record> {
        let sectors = self.layout.unit_sectors();
        let newest = self.newest_near(unit);
        if newest.is_none() {
            return Ok(Record::bare(State::Empty, unit, sectors, Version::NONE));
        }
        let (page, place) = self.place_of(unit);
        let (disk_id, place_bytes) = (self.disk_id, self.layout.place_bytes());
        let bytes = self.page(disk, page)?;
        Ok(decode_place(&bytes[place..place + place_bytes], disk_id, unit, sectors, newest))
    }

    /// Highest floor that any unit in the region of this one can have in the table.
    pub(super) fn newest_near(&self, unit: u64) -> Version {
        self.directory[self.layout.region_of(unit) as usize]
    }

    /// All records of the region of a unit, from that unit on, as the disk has them; not kept.
    pub(super) fn region_from(&mut self, disk: &mut dyn Disk, unit: u64) -> io::Result<Vec<Record>> {
        let layout = self.layout;
        let newest = self.newest_near(unit);
        let end = ((layout.region_of(unit) + 1) * layout.region_units()).min(layout.units());
        let (first, last) = (unit / layout.page_units(), (end - 1) / layout.page_units());
        let mut pages = Buffer::zeroed((last - first + 1) as usize * layout.page_bytes());
        let got = disk.read(layout.page_offset(first), &mut pages)?;
        if got < pages.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let record = |unit: u64| {
            let (page, place) = self.place_of(unit);
            let start = (page - first) as usize * layout.page_bytes() + place;
            let bytes = &pages[start..start + layout.place_bytes()];
            decode_place(bytes, self.disk_id, unit, layout.unit_sectors(), newest)
        };
        Ok((unit..end).map(record).collect())
    }

    /// Writes records, given in the order of their units, and the directory where their floors raise it (invariant 2 is
    /// the caller's).
    pub(super) fn write(&mut self, disk: &mut dyn Disk, records: &[&Record]) -> io::Result<()> {
        let mut changed = Vec::new();
        let layout = self.layout;
        let page_of = |record: &Record| record.unit / layout.page_units();
        for on_page in records.chunk_by(|a, b| page_of(a) == page_of(b)) {
            let page = page_of(on_page[0]);
            changed.push((page, self.changed_page(disk, page, on_page)));
        }
        let pages_max = (WRITE_BYTES_MAX / self.layout.page_bytes()).max(1);
        let mut rest = changed.as_slice();
        let mut buffer = Buffer::default();
        while let Some((first, _)) = rest.first() {
            let neighbours = (0_u64..).zip(rest).take(pages_max);
            let count = neighbours.take_while(|(index, (page, _))| *page == first + index).count();
            let (run, others) = rest.split_at(count);
            buffer.resize(count * self.layout.page_bytes());
            for (into, (_, bytes)) in buffer.chunks_exact_mut(self.layout.page_bytes()).zip(run) {
                into.copy_from_slice(bytes);
            }
            disk.write(self.layout.page_offset(*first), &buffer)?;
            rest = others;
        }
        for (page, bytes) in changed {
            self.pages.put(page, bytes);
        }
        self.raise_directory(disk, records)
    }

    /// A page with some records replaced. If it cannot be read the others are damaged from now on: their units have to be
    /// rebuilt, and the page can be written again.
    fn changed_page(&mut self, disk: &mut dyn Disk, page: u64, records: &[&Record]) -> Box<[u8]> {
        let (layout, disk_id) = (self.layout, self.disk_id);
        let newest = self.newest_near(records[0].unit);
        let mut bytes = match self.page(disk, page) {
            _ if newest.is_none() => vec![0; layout.page_bytes()].into(),
            Ok(bytes) => bytes.to_vec().into_boxed_slice(),
            Err(error) => {
                tracing::error!(page, %error, "a page of the table cannot be read; its units have to be rebuilt");
                let units = (page * layout.page_units()..).take(layout.page_units() as usize);
                let mut bytes = vec![0; layout.page_bytes()].into_boxed_slice();
                for (unit, place) in units.zip(bytes.chunks_exact_mut(layout.place_bytes())) {
                    put(&Record::bare(State::Damaged, unit, layout.unit_sectors(), newest), disk_id, place);
                }
                bytes
            }
        };
        for record in records {
            let (_, place) = self.place_of(record.unit);
            put(record, disk_id, &mut bytes[place..place + layout.place_bytes()]);
        }
        bytes
    }

    fn raise_directory(&mut self, disk: &mut dyn Disk, records: &[&Record]) -> io::Result<()> {
        let mut raised = Vec::new();
        for record in records {
            let region = self.layout.region_of(record.unit) as usize;
            if self.directory[region] < record.floor {
                self.directory[region] = record.floor;
                raised.push(region / VERSIONS_IN_PAGE);
            }
        }
        raised.dedup();
        for page in raised {
            let first = page * VERSIONS_IN_PAGE;
            let last = (first + VERSIONS_IN_PAGE).min(self.directory.len());
            let block = encode_directory_page(&self.directory[first..last], self.disk_id, page as u64);
            disk.write(directory_page_offset(&self.layout, page as u64), &block)?;
        }
        Ok(())
    }

    /// A page, from memory or disk. A failed read is tried once more: what fails twice is bad.
    fn page(&mut self, disk: &mut dyn Disk, page: u64) -> io::Result<&[u8]> {
        if !self.pages.contains(&page) {
            let ahead = page > 0 && self.pages.contains(&(page - 1));
            let count = if ahead { READ_AHEAD_PAGES.min(self.layout.pages() - page) } else { 1 };
            if count == 1 || self.read_pages(disk, page, count).is_err() {
                self.read_pages(disk, page, 1).or_else(|_| self.read_pages(disk, page, 1))?;
            }
        }
        self.pages.get(&page).map(|bytes| &bytes[..]).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn read_pages(&mut self, disk: &mut dyn Disk, first: u64, count: u64) -> io::Result<()> {
        let mut bytes = Buffer::zeroed(count as usize * self.layout.page_bytes());
        if disk.read(self.layout.page_offset(first), &mut bytes)? < bytes.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        // The one that is wanted last, so that it is the newest.
        for (page, bytes) in
            (first..).zip(bytes.chunks_exact(self.layout.page_bytes())).collect::<Vec<_>>().into_iter().rev()
        {
            // Kept ones are not older: invariant 1.
            self.pages.put(page, bytes.into());
        }
        Ok(())
    }

    /// Page of a unit, and where its place starts in it.
    fn place_of(&self, unit: u64) -> (u64, usize) {
        let in_page = (unit % self.layout.page_units()) as usize;
        (unit / self.layout.page_units(), in_page * self.layout.place_bytes())
    }
}

fn decode_place(bytes: &[u8], disk: Uuid, unit: u64, sectors: usize, newest: Version) -> Record {
    match Record::decode(bytes, disk, sectors) {
        Some(record) if record.unit == unit => record,
        None if bytes.iter().all(|byte| *byte == 0) => {
            Record::bare(State::Empty, unit, sectors, Version::NONE)
        }
        // Another unit's record is a write that went to a wrong place.
        Some(_) | None => Record::bare(State::Damaged, unit, sectors, newest),
    }
}

fn put(record: &Record, disk: Uuid, place: &mut [u8]) {
    let mut bytes = Vec::with_capacity(place.len());
    record.encode(disk, &mut bytes);
    place[..bytes.len()].copy_from_slice(&bytes);
    place[bytes.len()..].fill(0);
}

fn directory_page_offset(layout: &Layout, page: u64) -> u64 {
    layout.directory_offset() + page * BLOCK_BYTES as u64
}

fn encode_directory_page(versions: &[Version], disk: Uuid, page: u64) -> Buffer {
    let mut block = Buffer::zeroed(BLOCK_BYTES);
    let mut writer = Writer::new(&mut block);
    writer.u32(0);
    // A directory of so many pages would be of a disk of 2^66 bytes.
    writer.u32(page as u32);
    writer.bytes(disk.as_bytes());
    versions.iter().for_each(|version| writer.version(*version));
    let crc = crc32c::crc32c(&block[4..]);
    block[..4].copy_from_slice(&crc.to_le_bytes());
    block
}

/// The versions in a page of the directory. Zeros are damage: every page is written when the disk joins.
pub(super) fn decode_directory_page(block: &[u8], disk: Uuid, page: u64) -> Option<Vec<Version>> {
    let mut from = Reader::new(block);
    let (crc, number, owner) = (from.u32()?, from.u32()?, from.array::<16>()?);
    let ours = crc == crc32c::crc32c(&block[4..]) && u64::from(number) == page && owner == *disk.as_bytes();
    if !ours {
        return None;
    }
    (0..VERSIONS_IN_PAGE).map(|_| from.version()).collect()
}

/// Makes the checksum of a block of the directory right.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn seal_directory_page(block: &mut [u8]) {
    let crc = crc32c::crc32c(&block[4..]);
    block[..4].copy_from_slice(&crc.to_le_bytes());
}

/// Decodes bytes as a block of the directory, for [`crate::fuzzing`]. What is decoded comes back when it is encoded.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn try_directory_page(block: &mut [u8], disk: Uuid, forge: bool) -> bool {
    if forge {
        block[4..8].fill(0);
        block[8..24].copy_from_slice(disk.as_bytes());
        seal_directory_page(block);
    }
    let Some(versions) = decode_directory_page(block, disk, 0) else { return false };
    let again = encode_directory_page(&versions, disk, 0);
    assert_eq!(decode_directory_page(&again, disk, 0), Some(versions));
    true
}
