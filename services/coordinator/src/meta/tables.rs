//! The tables of the metadata database, and the encoding of what stands in them.

use redb::{Database, ReadableDatabase, ReadableTable, Table, TableDefinition, WriteTransaction};
use stripeset_stripe::{Epoch, Version};

use super::{Extent, MetaError, ObjectRecord};
use crate::members::ErrorCounts;

/// Newest format of the database that this program knows, and the one it writes.
const FORMAT: u64 = 1;

/// Numbers by name: format, the last commit and object id, lengths.
pub(super) const NUMBERS: TableDefinition<&str, u64> = TableDefinition::new("numbers");

/// Words by name: UUID and profiles of the array.
pub(super) const WORDS: TableDefinition<&str, &str> = TableDefinition::new("words");

/// Member index to (disk UUID, address, slices, disk bytes).
pub(super) const MEMBERS: TableDefinition<u32, (u128, &str, u64, u64)> = TableDefinition::new("members");

/// Member index to its error counts: checksum, version, read, write, corrected.
pub(super) const ERRORS: TableDefinition<u32, [u64; 5]> = TableDefinition::new("errors");

/// Chunk index to its incarnation.
pub(super) const CHUNKS: TableDefinition<u64, [u64; 3]> = TableDefinition::new("chunks");

/// (Chunk index, position) to (member, slice number).
pub(super) const SLICES: TableDefinition<(u64, u32), (u32, u64)> = TableDefinition::new("slices");

/// Name to (id, size, crc32c, modified).
pub(super) const OBJECTS: TableDefinition<&str, (u64, u64, u32, i64)> = TableDefinition::new("objects");

/// (Object id, offset in the object) to (logical, length, version).
pub(super) const EXTENTS: TableDefinition<(u64, u64), (u64, u64, [u64; 3])> = TableDefinition::new("extents");

/// Tables that changes write to.
pub(super) struct Tables<'t> {
    pub(super) numbers: Table<'t, &'static str, u64>,
    pub(super) words: Table<'t, &'static str, &'static str>,
    pub(super) members: Table<'t, u32, (u128, &'static str, u64, u64)>,
    pub(super) errors: Table<'t, u32, [u64; 5]>,
    pub(super) chunks: Table<'t, u64, [u64; 3]>,
    pub(super) slices: Table<'t, (u64, u32), (u32, u64)>,
    pub(super) objects: Table<'t, &'static str, (u64, u64, u32, i64)>,
    pub(super) extents: Table<'t, (u64, u64), (u64, u64, [u64; 3])>,
}

impl<'t> Tables<'t> {
    pub(super) fn open(transaction: &'t WriteTransaction) -> Result<Self, MetaError> {
        Ok(Tables {
            numbers: transaction.open_table(NUMBERS)?,
            words: transaction.open_table(WORDS)?,
            members: transaction.open_table(MEMBERS)?,
            errors: transaction.open_table(ERRORS)?,
            chunks: transaction.open_table(CHUNKS)?,
            slices: transaction.open_table(SLICES)?,
            objects: transaction.open_table(OBJECTS)?,
            extents: transaction.open_table(EXTENTS)?,
        })
    }

    pub(super) fn number(&self, name: &str) -> Result<u64, MetaError> {
        Ok(self.numbers.get(name)?.map_or(0, |number| number.value()))
    }

    fn next(&mut self, name: &'static str) -> Result<u64, MetaError> {
        let next = self.number(name)? + 1;
        self.numbers.insert(name, next)?;
        Ok(next)
    }

    /// Sequence number of the commit being made.
    pub(super) fn next_commit(&mut self) -> Result<u64, MetaError> {
        self.next("commit")
    }

    /// An object id that was never used.
    pub(super) fn next_object(&mut self) -> Result<u64, MetaError> {
        self.next("object")
    }
}

/// Makes the tables if there are none; refuses a database of a newer format.
pub(super) fn prepare(database: &Database) -> Result<(), MetaError> {
    let transaction = database.begin_write()?;
    {
        let mut tables = Tables::open(&transaction)?;
        let found = tables.number("format")?;
        if found > FORMAT {
            return Err(MetaError::Newer { found, known: FORMAT });
        }
        tables.numbers.insert("format", FORMAT)?;
    }
    transaction.commit()?;
    // A read proves that what was written can be read before anything rests on it.
    database.begin_read()?.open_table(NUMBERS)?;
    Ok(())
}

pub(super) fn version_numbers(version: Version) -> [u64; 3] {
    [version.epoch.number, version.epoch.incarnation, version.sequence]
}

pub(super) fn version([number, incarnation, sequence]: [u64; 3]) -> Version {
    Version { epoch: Epoch { number, incarnation }, sequence }
}

pub(super) fn object((id, size, crc32c, modified_millis): (u64, u64, u32, i64)) -> ObjectRecord {
    ObjectRecord { id, size, crc32c, modified_millis }
}

pub(super) fn extent((logical, length, numbers): (u64, u64, [u64; 3])) -> Extent {
    Extent { logical, length, version: version(numbers) }
}

pub(super) fn errors([checksum, version, read, write, corrected]: [u64; 5]) -> ErrorCounts {
    ErrorCounts { checksum, version, read, write, corrected }
}

pub(super) fn error_numbers(errors: ErrorCounts) -> [u64; 5] {
    [errors.checksum, errors.version, errors.read, errors.write, errors.corrected]
}

/// All extents of one object are within this range of keys.
pub(super) fn extents_of(id: u64) -> std::ops::RangeInclusive<(u64, u64)> {
    (id, 0)..=(id, u64::MAX)
}
