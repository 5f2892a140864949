//! Reading the metadata as of one commit.

use redb::{ReadTransaction, ReadableTable, ReadableTableMetadata};
use uuid::Uuid;

use super::{
    ArrayRecord, ChunkRecord, Extent, MetaError, ObjectRecord,
    tables::{self, CHUNKS, ERRORS, EXTENTS, MEMBERS, NUMBERS, OBJECTS, SLICES, WORDS},
};
use crate::members::{MemberIndex, MemberRecord};

/// The metadata as of one commit.
pub struct Snapshot {
    transaction: ReadTransaction,
}

/// One page of a list of objects.
#[derive(Debug, Default)]
pub struct ObjectPage {
    /// Name, record and allocated bytes of each.
    pub objects: Vec<(String, ObjectRecord, u64)>,
    /// There are more.
    pub truncated: bool,
}

impl Snapshot {
    pub(super) fn new(transaction: ReadTransaction) -> Self {
        Snapshot { transaction }
    }

    /// The array, if one was made.
    pub fn array(&self) -> Result<Option<ArrayRecord>, MetaError> {
        let words = self.transaction.open_table(WORDS)?;
        let numbers = self.transaction.open_table(NUMBERS)?;
        let word = |name: &str| -> Result<String, MetaError> {
            Ok(words.get(name)?.map(|word| word.value().to_owned()).unwrap_or_default())
        };
        let number = |name: &str| -> Result<u64, MetaError> {
            Ok(numbers.get(name)?.map_or(0, |number| number.value()))
        };
        let id = word("array_id")?;
        if id.is_empty() {
            return Ok(None);
        }
        let Ok(array_id) = Uuid::parse_str(&id) else {
            return Err(MetaError::Damaged(format!("array UUID {id:?}")));
        };
        let Ok(unit_bytes) = u32::try_from(number("unit_bytes")?) else {
            return Err(MetaError::Damaged("length of the stripe unit".to_owned()));
        };
        Ok(Some(ArrayRecord {
            array_id,
            data_profile: word("data_profile")?,
            metadata_profile: word("metadata_profile")?,
            unit_bytes,
            slice_bytes: number("slice_bytes")?,
        }))
    }

    /// Sequence number of the commit.
    pub fn commit(&self) -> Result<u64, MetaError> {
        let numbers = self.transaction.open_table(NUMBERS)?;
        Ok(numbers.get("commit")?.map_or(0, |number| number.value()))
    }

    /// The members, by index.
    pub fn members(&self) -> Result<Vec<MemberRecord>, MetaError> {
        let members = self.transaction.open_table(MEMBERS)?;
        let errors = self.transaction.open_table(ERRORS)?;
        let mut records = Vec::new();
        for row in members.iter()? {
            let (index, row) = row?;
            let (disk_id, address, slices, disk_bytes) = row.value();
            records.push(MemberRecord {
                disk_id: Uuid::from_u128(disk_id),
                address: address.to_owned(),
                slices,
                disk_bytes,
                errors: errors.get(index.value())?.map(|row| tables::errors(row.value())).unwrap_or_default(),
            });
        }
        Ok(records)
    }

    /// The chunks, by index.
    pub fn chunks(&self) -> Result<Vec<ChunkRecord>, MetaError> {
        let (chunks, slices) = (self.transaction.open_table(CHUNKS)?, self.transaction.open_table(SLICES)?);
        let mut records = Vec::new();
        for row in chunks.iter()? {
            let (index, incarnation) = row?;
            let index = index.value();
            let mut record =
                ChunkRecord { index, incarnation: tables::version(incarnation.value()), slices: Vec::new() };
            for row in slices.range((index, 0)..=(index, u32::MAX))? {
                let (member, slice) = row?.1.value();
                record.slices.push((MemberIndex(member), slice));
            }
            records.push(record);
        }
        Ok(records)
    }

    /// Number of objects.
    pub fn object_count(&self) -> Result<u64, MetaError> {
        Ok(self.transaction.open_table(OBJECTS)?.len()?)
    }

    /// One object.
    pub fn object(&self, name: &str) -> Result<Option<ObjectRecord>, MetaError> {
        let objects = self.transaction.open_table(OBJECTS)?;
        Ok(objects.get(name)?.map(|row| tables::object(row.value())))
    }

    /// Extents of an object that touch a range of it, with their offsets in the object, ascending.
    pub fn extents(&self, id: u64, offset: u64, length: u64) -> Result<Vec<(u64, Extent)>, MetaError> {
        let extents = self.transaction.open_table(EXTENTS)?;
        let end = offset.saturating_add(length);
        // The extent that the range begins in has its key at or before it.
        let mut found = Vec::new();
        if let Some(row) = extents.range((id, 0)..=(id, offset))?.next_back() {
            let (key, row) = row?;
            let (first, extent) = (key.value().1, tables::extent(row.value()));
            if first < offset && first + extent.length > offset {
                found.push((first, extent));
            }
        }
        for row in extents.range((id, offset)..(id, end))? {
            let (key, row) = row?;
            found.push((key.value().1, tables::extent(row.value())));
        }
        Ok(found)
    }

    /// Bytes of logical space that an object takes.
    pub fn allocated(&self, id: u64) -> Result<u64, MetaError> {
        let extents = self.transaction.open_table(EXTENTS)?;
        let mut allocated = 0;
        for row in extents.range(tables::extents_of(id))? {
            allocated += tables::extent(row?.1.value()).length;
        }
        Ok(allocated)
    }

    /// Every extent of every object, in no particular order.
    pub fn for_each_extent(&self, mut visit: impl FnMut(Extent)) -> Result<(), MetaError> {
        for row in self.transaction.open_table(EXTENTS)?.iter()? {
            visit(tables::extent(row?.1.value()));
        }
        Ok(())
    }

    /// Up to `limit` objects whose names begin with `prefix` and come after `start_after`.
    pub fn list(&self, prefix: &str, start_after: &str, limit: usize) -> Result<ObjectPage, MetaError> {
        let objects = self.transaction.open_table(OBJECTS)?;
        let mut page = ObjectPage::default();
        let from = if start_after > prefix { start_after } else { prefix };
        for row in objects.range::<&str>(from..)? {
            let (name, row) = row?;
            let name = name.value();
            if !name.starts_with(prefix) {
                break;
            }
            // An empty start is no name.
            if name == start_after {
                continue;
            }
            if page.objects.len() == limit {
                page.truncated = true;
                break;
            }
            let object = tables::object(row.value());
            page.objects.push((name.to_owned(), object, self.allocated(object.id)?));
        }
        Ok(page)
    }
}
