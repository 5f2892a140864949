//! Changes behind everybody's back, on demand: bytes under their checksums, or with them. For drills and tests.
//!
//! What is committed goes home first: a change of bytes that are about to be written over nobody would notice.

use std::ops::Range;

use bytes::Bytes;
use stripeset_stripe::{SECTOR_BYTES, checksum};

use super::Store;
use crate::{
    disk::{BLOCK_BYTES, Buffer},
    record::{Record, State},
    refusal::Refusal,
};

/// A sector as it was.
#[derive(Clone, Debug)]
pub(crate) struct SavedSector {
    unit: u64,
    sector: usize,
    bytes: Bytes,
    checksum: u32,
    written: bool,
    lost: bool,
}

impl Store {
    /// Changes bytes of the disk, whatever they are.
    pub(crate) fn change_bytes(
        &mut self,
        range: Range<u64>,
        change: impl Fn(&mut [u8]),
    ) -> Result<(), Refusal> {
        self.check_range(&range)?;
        self.close(|| true)?;
        let block = BLOCK_BYTES as u64;
        let first = range.start / block * block;
        let mut buffer = Buffer::zeroed((range.end.next_multiple_of(block) - first) as usize);
        self.read_raw(first, &mut buffer)?;
        change(&mut buffer[(range.start - first) as usize..(range.end - first) as usize]);
        self.write_raw(first, &buffer)
    }

    /// Inverts bytes of one unit, and rewrites the checksums of their sectors, in this disk's record alone.
    pub(crate) fn invert_sealed(&mut self, range: Range<u64>) -> Result<(), Refusal> {
        self.check_range(&range)?;
        self.close(|| true)?;
        let (unit, first) = self.place(range.start)?;
        let (last_unit, last) = self.place(range.end - 1)?;
        if unit != last_unit {
            let message = format!("bytes {} to {} are in more than one unit", range.start, range.end);
            return Err(Refusal::Invalid(message));
        }
        let mut record = self.quiet_record(unit)?;
        if let Some(sector) = (first..=last).find(|sector| !record.body.written.get(*sector)) {
            return Err(Refusal::Invalid(format!("sector {sector} of unit {unit} was never written")));
        }
        self.change_bytes(range, |bytes| bytes.iter_mut().for_each(|byte| *byte = !*byte))?;
        for sector in first..=last {
            let bytes = self.sector_at_home(unit, sector)?;
            record.body.checksums[sector] = checksum::of_sector(&bytes);
            record.body.lost.set(sector, false);
        }
        self.write_record(&record)
    }

    /// A sector with its checksum.
    pub(crate) fn save_sector(&mut self, offset: u64) -> Result<SavedSector, Refusal> {
        self.close(|| true)?;
        let (unit, sector) = self.place(offset)?;
        let body = self.quiet_record(unit)?.body;
        let (checksum, written) = (body.checksums[sector], body.written.get(sector));
        let bytes = self.sector_at_home(unit, sector)?.into_bytes();
        Ok(SavedSector { unit, sector, bytes, checksum, written, lost: body.lost.get(sector) })
    }

    /// Puts a sector back as it was, under the version that its unit has now.
    pub(crate) fn restore_sector(&mut self, saved: &SavedSector) -> Result<(), Refusal> {
        let SavedSector { unit, sector, bytes, checksum, written, lost } = saved;
        self.close(|| true)?;
        let layout = self.writable()?;
        let mut record = self.quiet_record(*unit)?;
        let mut older = Buffer::zeroed(SECTOR_BYTES);
        older.copy_from_slice(bytes);
        self.write_raw(layout.sector_offset(*unit, *sector), &older)?;
        record.body.checksums[*sector] = *checksum;
        record.body.written.set(*sector, *written);
        record.body.lost.set(*sector, *lost);
        self.write_record(&record)
    }

    /// The unit and the sector that a byte of the disk is in.
    pub(crate) fn place(&self, offset: u64) -> Result<(u64, usize), Refusal> {
        let layout = self.writable()?;
        layout.place_of(offset).ok_or_else(|| {
            let (first, units) = (layout.data_offset(), layout.units());
            let end = first + units * layout.unit_bytes() as u64;
            Refusal::Invalid(format!(
                "byte {offset} of the disk is in no unit: they are from {first} to {end}"
            ))
        })
    }

    fn check_range(&self, range: &Range<u64>) -> Result<(), Refusal> {
        let bytes = self.disk.bytes() / BLOCK_BYTES as u64 * BLOCK_BYTES as u64;
        if range.is_empty() || range.end > bytes {
            let Range { start, end } = range;
            return Err(Refusal::Invalid(format!("bytes {start} to {end}: the disk has {bytes} bytes")));
        }
        Ok(())
    }

    /// The record of a unit that holds something, and on which nothing is pending.
    fn quiet_record(&mut self, unit: u64) -> Result<Record, Refusal> {
        if let Some(pending) = self.pending_of(unit) {
            return Err(Refusal::Busy { unit, pending: pending.record.version });
        }
        let record = self.record(unit)?;
        match record.state {
            State::Committed => Ok(record),
            State::Empty => Err(Refusal::Invalid(format!("unit {unit} holds nothing"))),
            State::Damaged => Err(Refusal::Damaged { unit }),
        }
    }

    fn sector_at_home(&mut self, unit: u64, sector: usize) -> Result<Buffer, Refusal> {
        let mut bytes = Buffer::zeroed(SECTOR_BYTES);
        let offset = self.writable()?.sector_offset(unit, sector);
        self.read_raw(offset, &mut bytes)?;
        Ok(bytes)
    }

    fn write_record(&mut self, record: &Record) -> Result<(), Refusal> {
        let Some(table) = &mut self.table else { return Err(Refusal::Blank) };
        if let Err(error) = table.write(&mut *self.disk, &[record]) {
            return Err(self.fail("writing the table", &error));
        }
        self.sync_disk()
    }

    fn read_raw(&mut self, offset: u64, into: &mut Buffer) -> Result<(), Refusal> {
        match self.disk.read(offset, into) {
            Ok(read) if read == into.len() => Ok(()),
            Ok(read) => Err(Refusal::DiskFailed(format!("a read gave {read} of {} bytes", into.len()))),
            Err(error) => Err(Refusal::DiskFailed(error.to_string())),
        }
    }

    fn write_raw(&mut self, offset: u64, bytes: &Buffer) -> Result<(), Refusal> {
        if let Err(error) = self.disk.write(offset, bytes) {
            return Err(self.fail("writing", &error));
        }
        self.sync_disk()
    }
}
