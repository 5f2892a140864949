//! Records and bytes to and from their places: home, slots, heads alone. Decides how a failure of the disk is told
//! apart; what is written when is decided in [`super::prepare`] and [`super::settle`].

use std::io::{self, IoSlice};

use stripeset_stripe::{SECTOR_BYTES, bits::Bits};

use super::Store;
use crate::{
    disk,
    layout::{Layout, UNIT_SECTORS_MAX},
    operation::Run,
    record::{Body, Found, HEAD_BYTES, Head, Record, State},
    refusal::Refusal,
};

impl Store {
    /// Writes a record and its runs home, in one call where they touch. Returns the head as written.
    pub(super) fn write_home(
        &mut self,
        layout: &Layout,
        record: Record,
        runs: &[Run],
    ) -> Result<Head, Refusal> {
        let unit = record.head.unit;
        let place = |run: &Run| layout.sector_offset(unit, run.first_sector);
        self.write_record(layout, layout.record_offset(unit), record, runs, place)
    }

    /// Writes a record and its runs to a slot, packed one behind the other. Returns the head as written.
    pub(super) fn write_slot(
        &mut self,
        layout: &Layout,
        slot: u32,
        record: Record,
        runs: &[Run],
    ) -> Result<Head, Refusal> {
        let offset = layout.slot_offset(slot);
        let mut next = offset + layout.record_bytes() as u64;
        let place = |run: &Run| {
            let place = next;
            next += run.data.len() as u64;
            place
        };
        self.write_record(layout, offset, record, runs, place)
    }

    fn write_record(
        &mut self,
        layout: &Layout,
        offset: u64,
        mut record: Record,
        runs: &[Run],
        mut place: impl FnMut(&Run) -> u64,
    ) -> Result<Head, Refusal> {
        let mut bytes = std::mem::take(&mut self.record_bytes);
        record.encode(self.superblock.disk_id, layout.record_bytes(), &mut bytes);
        let mut pieces = vec![(offset, bytes.as_slice())];
        pieces.extend(runs.iter().map(|run| (place(run), &run.data[..])));
        let written = self.write_pieces(&pieces);
        self.record_bytes = bytes;
        written.map(|()| record.head)
    }

    /// Writes pieces, given with their offsets in ascending order; neighbours go in one call. A full disk is an answer,
    /// any other error the end of writing.
    pub(super) fn write_pieces(&mut self, pieces: &[(u64, &[u8])]) -> Result<(), Refusal> {
        if let Some(failure) = &self.failure {
            return Err(Refusal::DiskFailed(failure.clone()));
        }
        let mut rest = pieces;
        while let Some((start, _)) = rest.first() {
            let mut end = *start;
            let neighbours = rest.iter().take_while(|(offset, bytes)| {
                let joins = *offset == end;
                end += bytes.len() as u64;
                joins
            });
            let mut slices: Vec<_> = neighbours.map(|(_, bytes)| IoSlice::new(bytes)).collect();
            rest = &rest[slices.len()..];
            if let Err(error) = self.disk.write(*start, &mut slices) {
                if disk::is_full(&error) {
                    self.counters.disk_errors += 1;
                    return Err(Refusal::Full);
                }
                return Err(self.fail("writing", &error));
            }
        }
        Ok(())
    }

    /// Writes a head over the one at `offset`.
    pub(super) fn write_head(&mut self, offset: u64, head: &Head) -> Result<(), Refusal> {
        let bytes = head.encode(self.superblock.disk_id);
        self.write_pieces(&[(offset, &bytes)])
    }

    /// Reads the head of a unit's record at home.
    pub(super) fn read_head(&mut self, layout: &Layout, unit: u64) -> Result<Found<Head>, Refusal> {
        let bytes = self.read_whole(layout.record_offset(unit), HEAD_BYTES)?;
        Ok(match Head::decode(&bytes, self.superblock.disk_id) {
            Found::Whole(head) if !head.is_at_home(unit) => Found::Damaged,
            found => found,
        })
    }

    /// Decodes a unit's record at home.
    pub(super) fn decode_home(&self, layout: &Layout, unit: u64, bytes: &[u8]) -> Found<Record> {
        match Record::decode(bytes, self.superblock.disk_id, layout.unit_sectors()) {
            Found::Whole(record) if !record.head.is_at_home(unit) => Found::Damaged,
            found => found,
        }
    }

    /// Reads the record in a slot, and the bytes of its redo behind it.
    pub(super) fn read_slot(
        &mut self,
        layout: &Layout,
        slot: u32,
    ) -> Result<(Found<Record>, Vec<u8>), Refusal> {
        let (offset, record_bytes) = (layout.slot_offset(slot), layout.record_bytes());
        // Most redos are a sector or two: one read fetches all of those.
        let mut bytes =
            self.read_whole(offset, record_bytes + (2 * SECTOR_BYTES).min(layout.unit_bytes()))?;
        let found =
            match Record::decode(&bytes[..record_bytes], self.superblock.disk_id, layout.unit_sectors()) {
                Found::Whole(record) if record.head.state != State::Redo => Found::Damaged,
                found => found,
            };
        if let Found::Whole(record) = &found {
            let length = record_bytes + record.head.redo.count() * SECTOR_BYTES;
            if length > bytes.len() {
                let rest = self.read_whole(offset + bytes.len() as u64, length - bytes.len())?;
                bytes.extend_from_slice(&rest);
            }
            bytes.truncate(length);
        }
        Ok((found, bytes))
    }

    /// Reads bytes that are of no use unless all are there.
    pub(super) fn read_whole(&mut self, offset: u64, length: usize) -> Result<Vec<u8>, Refusal> {
        let error = match self.disk.read(offset, length) {
            Ok(bytes) if bytes.len() == length => return Ok(bytes),
            Ok(_) => io::Error::from(io::ErrorKind::UnexpectedEof),
            Err(error) => error,
        };
        self.counters.disk_errors += 1;
        tracing::warn!(offset, length, %error, "a read failed");
        Err(Refusal::DiskFailed(format!("reading: {error}")))
    }
}

impl Body {
    /// Enters runs as written, and returns which sectors they are.
    pub(super) fn enter(&mut self, runs: &[Run]) -> Bits {
        let mut entered = Bits::new(UNIT_SECTORS_MAX);
        for run in runs {
            for (sector, crc) in (run.first_sector..run.end()).zip(&run.checksums) {
                self.written.set(sector, true);
                self.lost.set(sector, false);
                self.checksums[sector] = *crc;
                entered.set(sector, true);
            }
        }
        entered
    }
}

impl Head {
    /// Whether this is what the record of `unit` can be: a redo at home, or another unit's record, is a write that went
    /// to a wrong place.
    pub(super) fn is_at_home(&self, unit: u64) -> bool {
        self.unit == unit && self.state != State::Redo
    }
}

/// The bytes of the redo that follows the record in a slot, sector by sector.
pub(super) fn redo_bytes<'a>(layout: &Layout, slot_bytes: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
    slot_bytes[layout.record_bytes()..].chunks_exact(SECTOR_BYTES)
}
