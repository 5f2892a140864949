//! Objects: names, puts, gets, lists and deletes, over extents and the engine.
//!
//! 1. A put becomes visible with one commit, after all of its bytes are decided on the members.
//! 2. A put that fails gives back every sector that it took.
//! 3. A get sees the object as it was when it began, to the end.

pub mod get;
pub mod put;

use stripeset_proto::{Error, ErrorKind, limits, v1};

use crate::{
    array::Array,
    engine::{ReadError, WriteError},
    extents::{AllocateError, packer::StoreError},
    meta::{MetaError, ObjectPage, ObjectRecord, Rejection},
};

/// Checks a name: UTF-8 is given, 1 to 1024 bytes, no NUL.
pub fn check_name(name: &str) -> Result<(), Error> {
    if name.is_empty() {
        return Err(Error::invalid("the name is empty: it has to have 1 to 1024 bytes"));
    }
    if name.len() > limits::NAME_BYTES_MAX {
        let (length, limit) = (name.len(), limits::NAME_BYTES_MAX);
        return Err(Error::invalid(format!("the name has {length} bytes: at most {limit} are allowed")));
    }
    if name.contains('\0') {
        return Err(Error::invalid("the name contains a NUL"));
    }
    Ok(())
}

/// An object as the outside sees it.
pub fn info(name: &str, object: ObjectRecord, allocated: u64) -> v1::ObjectInfo {
    v1::ObjectInfo {
        name: name.to_owned(),
        size_bytes: object.size,
        crc32c: object.crc32c,
        modified_unix_millis: object.modified_millis,
        allocated_bytes: allocated,
        generation: object.id,
    }
}

/// There is no such object.
pub fn not_found(name: &str) -> Error {
    Error::new(ErrorKind::NotFound, format!("there is no object named {name:?}"))
}

fn rejected(rejection: Rejection, name: &str) -> Error {
    match rejection {
        Rejection::Exists => {
            Error::new(ErrorKind::AlreadyExists, format!("there is an object named {name:?} already"))
        }
        Rejection::NotFound => not_found(name),
    }
}

impl Array {
    /// What is known of an object.
    pub fn stat(&self, name: &str) -> Result<v1::ObjectInfo, Error> {
        check_name(name)?;
        let snapshot = self.meta.snapshot()?;
        let object = snapshot.object(name)?.ok_or_else(|| not_found(name))?;
        Ok(info(name, object, snapshot.allocated(object.id)?))
    }

    /// One page of a list.
    pub fn list(&self, prefix: &str, start_after: &str, limit: u32) -> Result<ObjectPage, Error> {
        if limit > limits::LIST_OBJECTS_MAX {
            let most = limits::LIST_OBJECTS_MAX;
            return Err(Error::invalid(format!("a page of {limit} objects: at most {most} are allowed")));
        }
        let limit = if limit == 0 { limits::LIST_OBJECTS_MAX } else { limit };
        Ok(self.meta.snapshot()?.list(prefix, start_after, limit as usize)?)
    }

    /// Deletes an object; answers when that is durable.
    pub async fn delete(&self, name: String) -> Result<v1::ObjectInfo, Error> {
        check_name(&name)?;
        let committed = self.meta.delete_object(name.clone()).await?;
        let committed = committed.map_err(|rejection| rejected(rejection, &name))?;
        self.committed(&committed);
        Ok(info(&name, committed.object, committed.allocated))
    }
}

impl From<MetaError> for Error {
    fn from(error: MetaError) -> Self {
        Error::new(ErrorKind::Internal, error.to_string())
    }
}

impl From<ReadError> for Error {
    fn from(error: ReadError) -> Self {
        let kind = match error {
            ReadError::Unavailable { .. } => ErrorKind::Unavailable,
            ReadError::Lost { .. } => ErrorKind::DataLoss,
        };
        Error::new(kind, error.to_string())
    }
}

impl From<&WriteError> for Error {
    fn from(error: &WriteError) -> Self {
        let kind = match error {
            // The map was not changed: nothing of the put is visible, whatever becomes of the stripe.
            WriteError::TooFewMembers { .. }
            | WriteError::Open { .. }
            | WriteError::NeighbourAway { .. }
            | WriteError::NeighbourLost { .. }
            | WriteError::ParityStale
            | WriteError::BeingResolved
            | WriteError::Held { .. }
            | WriteError::Stopping => ErrorKind::Unavailable,
            WriteError::Refused { refusal, .. } => match refusal.kind {
                v1::RefusalKind::ResourceExhausted => ErrorKind::Busy,
                _ => ErrorKind::Internal,
            },
            WriteError::Deposed => ErrorKind::Stale,
        };
        Error::new(kind, format!("not stored: {error}"))
    }
}

impl From<&AllocateError> for Error {
    fn from(error: &AllocateError) -> Self {
        let kind = match error {
            AllocateError::Full { .. } => ErrorKind::Full,
            AllocateError::Store(_) => ErrorKind::Internal,
        };
        Error::new(kind, format!("not stored: {error}"))
    }
}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Allocate(error) => Error::from(&*error),
            StoreError::Write(error) => Error::from(&*error),
            StoreError::Stopping => Error::new(ErrorKind::Unavailable, error.to_string()),
        }
    }
}
