//! Changes to the metadata: what each does to the tables, and what it answers once the commit is durable.

use redb::ReadableTable;
use tokio::sync::oneshot;

use super::{
    ArrayRecord, ChunkRecord, Extent, MetaError, ObjectRecord,
    tables::{self, Tables},
};
use crate::members::{ErrorCounts, MemberRecord};

/// Answers once the commit is durable.
pub(super) type Answer = Box<dyn FnOnce()>;

type Reply<T> = oneshot::Sender<Result<T, MetaError>>;

/// An object to put.
#[derive(Clone, Debug)]
pub struct PutObject {
    /// Its name.
    pub name: String,
    /// Its length in bytes.
    pub size: u64,
    /// crc32c of all bytes.
    pub crc32c: u32,
    /// When, in milliseconds since 1970.
    pub modified_millis: i64,
    /// Its extents with their offsets in the object, ascending.
    pub extents: Vec<(u64, Extent)>,
    /// Reject if there is an object of that name.
    pub create_only: bool,
}

/// What a put or delete did.
#[derive(Clone, Debug)]
pub struct Committed {
    /// The object put, or deleted.
    pub object: ObjectRecord,
    /// Bytes of logical space that it takes, or took.
    pub allocated: u64,
    /// Extents that are no longer referenced.
    pub freed: Vec<Extent>,
    /// Sequence number of the commit.
    pub commit: u64,
    /// The change in the number of objects.
    pub objects_change: i64,
}

/// Why a put or delete was not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejection {
    /// There is an object of that name.
    Exists,
    /// There is none.
    NotFound,
}

pub(super) enum Change {
    CreateArray { array: ArrayRecord, members: Vec<MemberRecord>, reply: Reply<()> },
    AddChunk { chunk: ChunkRecord, reply: Reply<()> },
    SetErrors { errors: Vec<ErrorCounts>, reply: Reply<()> },
    Put { put: PutObject, reply: Reply<Result<Committed, Rejection>> },
    Delete { name: String, reply: Reply<Result<Committed, Rejection>> },
}

impl Change {
    pub(super) fn apply(self, tables: &mut Tables<'_>, commit: u64) -> Result<Answer, MetaError> {
        Ok(match self {
            Change::CreateArray { array, members, reply } => {
                create_array(tables, &array, &members)?;
                answer(reply, ())
            }
            Change::AddChunk { chunk, reply } => {
                tables.chunks.insert(chunk.index, tables::version_numbers(chunk.incarnation))?;
                for (position, (member, slice)) in (0..).zip(&chunk.slices) {
                    tables.slices.insert((chunk.index, position), (member.0, *slice))?;
                }
                answer(reply, ())
            }
            Change::SetErrors { errors, reply } => {
                for (member, errors) in (0..).zip(errors) {
                    tables.errors.insert(member, tables::error_numbers(errors))?;
                }
                answer(reply, ())
            }
            Change::Put { put, reply } => answer(reply, put_object(tables, put, commit)?),
            Change::Delete { name, reply } => answer(reply, delete_object(tables, &name, commit)?),
        })
    }
}

fn answer<T: 'static>(reply: Reply<T>, value: T) -> Answer {
    Box::new(move || {
        // Whoever asked may have stopped waiting; the change is made all the same.
        let _ = reply.send(Ok(value));
    })
}

fn create_array(
    tables: &mut Tables<'_>,
    array: &ArrayRecord,
    members: &[MemberRecord],
) -> Result<(), MetaError> {
    tables.words.insert("array_id", array.array_id.to_string().as_str())?;
    tables.words.insert("data_profile", array.data_profile.as_str())?;
    tables.words.insert("metadata_profile", array.metadata_profile.as_str())?;
    tables.numbers.insert("unit_bytes", u64::from(array.unit_bytes))?;
    tables.numbers.insert("slice_bytes", array.slice_bytes)?;
    for (index, member) in (0..).zip(members) {
        let row = (member.disk_id.as_u128(), member.address.as_str(), member.slices, member.disk_bytes);
        tables.members.insert(index, row)?;
    }
    Ok(())
}

fn put_object(
    tables: &mut Tables<'_>,
    put: PutObject,
    commit: u64,
) -> Result<Result<Committed, Rejection>, MetaError> {
    let old = tables.objects.get(put.name.as_str())?.map(|row| tables::object(row.value()));
    if put.create_only && old.is_some() {
        return Ok(Err(Rejection::Exists));
    }
    let freed = match &old {
        Some(old) => take_extents(tables, old.id)?,
        None => Vec::new(),
    };
    let object = ObjectRecord {
        id: tables.next_object()?,
        size: put.size,
        crc32c: put.crc32c,
        modified_millis: put.modified_millis,
    };
    let row = (object.id, object.size, object.crc32c, object.modified_millis);
    tables.objects.insert(put.name.as_str(), row)?;
    for (offset, extent) in &put.extents {
        let row = (extent.logical, extent.length, tables::version_numbers(extent.version));
        tables.extents.insert((object.id, *offset), row)?;
    }
    let allocated = put.extents.iter().map(|(_, extent)| extent.length).sum();
    let objects_change = if old.is_some() { 0 } else { 1 };
    Ok(Ok(Committed { object, allocated, freed, commit, objects_change }))
}

fn delete_object(
    tables: &mut Tables<'_>,
    name: &str,
    commit: u64,
) -> Result<Result<Committed, Rejection>, MetaError> {
    let Some(object) = tables.objects.remove(name)?.map(|row| tables::object(row.value())) else {
        return Ok(Err(Rejection::NotFound));
    };
    let freed = take_extents(tables, object.id)?;
    let allocated = freed.iter().map(|extent| extent.length).sum();
    Ok(Ok(Committed { object, allocated, freed, commit, objects_change: -1 }))
}

fn take_extents(tables: &mut Tables<'_>, id: u64) -> Result<Vec<Extent>, MetaError> {
    let mut taken = Vec::new();
    for row in tables.extents.extract_from_if(tables::extents_of(id), |_, _| true)? {
        taken.push(tables::extent(row?.1.value()));
    }
    Ok(taken)
}
