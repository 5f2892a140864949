//! Putting an object: bytes come in as they please, go out as whole stripes, several at a time, and the rest as a
//! small piece. Memory is bounded however large the object.

use std::{collections::VecDeque, sync::Arc};

use bytes::{Bytes, BytesMut};
use stripeset_proto::{Error, ErrorKind, v1};
use stripeset_stripe::{SECTOR_BYTES, Version, geometry::Logical};
use tokio::{sync::OwnedSemaphorePermit, task::JoinSet};

use super::{check_name, info, rejected};
use crate::{
    array::Array,
    extents::{
        StripeRef,
        packer::{StoreError, split_columns},
    },
    meta::{Extent, PutObject},
};

/// Stripes of one put that are on their way at a time. With more, the agents sync less often per byte.
const STRIPES_IN_FLIGHT_MAX: usize = 64;

/// Most stripes that a put takes from the allocator at a time. They are in one map entry if they are neighbours.
const RUN_STRIPES_MAX: usize = 64;

type Stored = (u64, Result<Vec<Extent>, StoreError>);

/// An object being put. To be finished or abandoned; either waits for what is on its way.
pub struct ObjectWriter {
    array: Arc<Array>,
    name: String,
    create_only: bool,
    /// Not yet a whole stripe.
    buffer: BytesMut,
    buffer_permit: Option<OwnedSemaphorePermit>,
    /// Where the buffer starts in the object.
    offset: u64,
    crc32c: u32,
    /// Empty stripes taken and not yet used, and a version above everything that was ever written to them.
    run: VecDeque<StripeRef>,
    run_version: Version,
    run_length: usize,
    expected: Option<u64>,
    in_flight: JoinSet<Stored>,
    extents: Vec<(u64, Extent)>,
    failed: Option<StoreError>,
}

impl ObjectWriter {
    /// Begins a put. Refuses at once what could not be stored: a wrong name, an object that exists or has no room.
    pub fn begin(array: Arc<Array>, header: v1::PutObjectHeader) -> Result<Self, Error> {
        check_name(&header.name)?;
        if header.create_only && array.meta.snapshot()?.object(&header.name)?.is_some() {
            return Err(rejected(crate::meta::Rejection::Exists, &header.name));
        }
        let free = array.engine.extents.free_bytes();
        if let Some(size) = header.size_bytes
            && size.div_ceil(SECTOR_BYTES as u64).saturating_mul(SECTOR_BYTES as u64) > free
        {
            let message = format!(
                "the array is full: {size} bytes needed, {free} bytes free; delete objects to make room"
            );
            return Err(Error::new(ErrorKind::Full, message));
        }
        Ok(ObjectWriter {
            array,
            name: header.name,
            create_only: header.create_only,
            buffer: BytesMut::new(),
            buffer_permit: None,
            offset: 0,
            crc32c: 0,
            run: VecDeque::new(),
            run_version: Version::NONE,
            run_length: 1,
            expected: header.size_bytes,
            in_flight: JoinSet::new(),
            extents: Vec::new(),
            failed: None,
        })
    }

    /// Bytes taken so far.
    pub fn size(&self) -> u64 {
        self.offset + self.buffer.len() as u64
    }

    fn stripe_bytes(&self) -> usize {
        self.array.engine.extents.geometry().stripe_bytes() as usize
    }

    /// Takes more bytes. Waits while too much is on its way.
    pub async fn write(&mut self, mut data: Bytes) -> Result<(), Error> {
        let size = self.size() + data.len() as u64;
        if let Some(expected) = self.expected.filter(|expected| size > *expected) {
            return Err(Error::invalid(format!(
                "more bytes than the header said: {size} so far, {expected} were announced"
            )));
        }
        // A second pass over the bytes costs a third of combining two checksums.
        self.crc32c = crc32c::crc32c_append(self.crc32c, &data);
        while !data.is_empty() {
            if self.buffer_permit.is_none() {
                self.buffer_permit = Some(self.permit().await?);
            }
            if self.buffer.is_empty() && data.len() >= self.stripe_bytes() {
                // A whole stripe at once is sent as it came, without a copy.
                self.send_stripe(data.split_to(self.stripe_bytes())).await?;
                continue;
            }
            let taken = data.len().min(self.stripe_bytes() - self.buffer.len());
            self.buffer.extend_from_slice(&data.split_to(taken));
            if self.buffer.len() == self.stripe_bytes() {
                let stripe = self.buffer.split().freeze();
                self.send_stripe(stripe).await?;
            }
        }
        Ok(())
    }

    async fn permit(&self) -> Result<OwnedSemaphorePermit, Error> {
        let permits = self.array.write_bytes.clone().acquire_many_owned(self.stripe_bytes() as u32).await;
        permits.map_err(|_closed| Error::new(ErrorKind::Unavailable, "the coordinator is stopping"))
    }

    async fn send_stripe(&mut self, data: Bytes) -> Result<(), Error> {
        let (offset, permit) = (self.offset, self.buffer_permit.take());
        self.offset += data.len() as u64;
        while self.in_flight.len() >= STRIPES_IN_FLIGHT_MAX {
            self.collect_one().await;
        }
        while let Some(done) = self.in_flight.try_join_next() {
            self.take_in(done);
        }
        if let Some(error) = &self.failed {
            return Err(error.clone().into());
        }
        let array = self.array.clone();
        match self.next_stripe().await? {
            Some(stripe) => {
                let version = self.run_version;
                self.in_flight.spawn(async move {
                    let stored = store_stripe(&array, &stripe, version, data).await;
                    drop(permit);
                    (offset, stored)
                });
            }
            // No empty stripe is left: into the holes of others.
            None => {
                self.in_flight.spawn(async move {
                    let stored = array.packer.store(data).await;
                    drop(permit);
                    (offset, stored)
                });
            }
        }
        Ok(())
    }

    /// An empty stripe from the run, or from a new one. The version is taken after the stripes: whatever was written to
    /// them before is older, so it can stand in the map for all of them.
    async fn next_stripe(&mut self) -> Result<Option<StripeRef>, Error> {
        if self.run.is_empty() {
            let left = self.expected.map_or(u64::MAX, |expected| expected.saturating_sub(self.offset));
            let wanted = 1 + (left / self.stripe_bytes() as u64).min(self.run_length as u64 - 1);
            for _ in 0..wanted {
                match self.array.engine.extents.take_stripe().await? {
                    Some(stripe) => self.run.push_back(stripe),
                    None => break,
                }
            }
            self.run_version = self.array.versions.take();
            self.run_length = (self.run_length * 2).min(RUN_STRIPES_MAX);
        }
        Ok(self.run.pop_front())
    }

    async fn collect_one(&mut self) {
        if let Some(done) = self.in_flight.join_next().await {
            self.take_in(done);
        }
    }

    fn take_in(&mut self, done: Result<Stored, tokio::task::JoinError>) {
        match done {
            Ok((offset, Ok(extents))) => {
                let mut at = offset;
                for extent in extents {
                    self.extents.push((at, extent));
                    at += extent.length;
                }
            }
            Ok((_, Err(error))) => self.failed = Some(error),
            Err(_) => self.failed = Some(StoreError::Stopping),
        }
        // Many entries of a run become one early, so that the list stays short however large the object.
        if self.extents.len().is_power_of_two() {
            self.extents = merged(std::mem::take(&mut self.extents));
        }
    }

    /// Ends the put: when it returns without error, the object is durable and visible.
    pub async fn finish(
        mut self,
        trailer: v1::PutObjectTrailer,
        modified_millis: i64,
    ) -> Result<v1::ObjectInfo, Error> {
        let checked = self.check(&trailer);
        let stored = match checked {
            Ok(()) => self.send_rest().await,
            Err(error) => Err(error),
        };
        if let Err(error) = stored {
            self.abandon().await;
            return Err(error);
        }
        let size = self.size();
        self.give_back_run();
        let put = PutObject {
            name: self.name.clone(),
            size,
            crc32c: self.crc32c,
            modified_millis,
            extents: merged(std::mem::take(&mut self.extents)),
            create_only: self.create_only,
        };
        let extents = put.extents.clone();
        match self.array.meta.put_object(put).await {
            Ok(Ok(committed)) => {
                self.array.committed(&committed);
                Ok(info(&self.name, committed.object, committed.allocated))
            }
            Ok(Err(rejection)) => {
                self.extents = extents;
                let error = rejected(rejection, &self.name);
                self.abandon().await;
                Err(error)
            }
            // Whether it became durable is not known: the sectors must not be used for anything else.
            Err(error) => Err(error.into()),
        }
    }

    fn check(&self, trailer: &v1::PutObjectTrailer) -> Result<(), Error> {
        let size = self.size();
        if trailer.size_bytes != size {
            let told = trailer.size_bytes;
            return Err(Error::invalid(format!(
                "the trailer says {told} bytes, {size} came: nothing was stored"
            )));
        }
        if let Some(expected) = self.expected.filter(|expected| *expected != size) {
            return Err(Error::invalid(format!(
                "the header announced {expected} bytes, {size} came: nothing was stored"
            )));
        }
        match trailer.crc32c {
            Some(told) if told != self.crc32c => Err(Error::invalid(format!(
                "the bytes that came have crc32c {:08x}, the trailer says {told:08x}: nothing was stored",
                self.crc32c
            ))),
            _ => Ok(()),
        }
    }

    async fn send_rest(&mut self) -> Result<(), Error> {
        if !self.buffer.is_empty() {
            let (offset, mut rest) = (self.offset, self.buffer.split());
            self.offset += rest.len() as u64;
            rest.resize(rest.len().next_multiple_of(SECTOR_BYTES), 0);
            let (array, permit) = (self.array.clone(), self.buffer_permit.take());
            self.in_flight.spawn(async move {
                let stored = array.packer.store(rest.freeze()).await;
                drop(permit);
                (offset, stored)
            });
        }
        while !self.in_flight.is_empty() {
            self.collect_one().await;
        }
        self.failed.clone().map_or(Ok(()), |error| Err(error.into()))
    }

    fn give_back_run(&mut self) {
        let engine = &self.array.engine;
        for stripe in self.run.drain(..) {
            let geometry = stripe.geometry();
            engine.free(geometry.stripe_start(stripe.address()), geometry.stripe_bytes());
        }
    }

    /// Gives back everything that was taken, once what is on its way has ended.
    pub async fn abandon(mut self) {
        while !self.in_flight.is_empty() {
            self.collect_one().await;
        }
        self.give_back_run();
        for (_, extent) in std::mem::take(&mut self.extents) {
            self.array.engine.free(Logical(extent.logical), extent.length);
        }
    }
}

async fn store_stripe(
    array: &Array,
    stripe: &StripeRef,
    version: Version,
    data: Bytes,
) -> Result<Vec<Extent>, StoreError> {
    let geometry = stripe.geometry();
    let (logical, length) = (geometry.stripe_start(stripe.address()), geometry.stripe_bytes());
    match array.engine.write_fresh(stripe, &split_columns(geometry, data)).await {
        Ok(_) => Ok(vec![Extent { logical: logical.0, length, version }]),
        Err(error) => {
            let error = StoreError::Write(Arc::new(error));
            if !error.is_open() {
                array.engine.free(logical, length);
            }
            Err(error)
        }
    }
}

/// Sorted by offset, neighbours of one version joined.
fn merged(mut extents: Vec<(u64, Extent)>) -> Vec<(u64, Extent)> {
    extents.sort_unstable_by_key(|(offset, _)| *offset);
    let mut merged: Vec<(u64, Extent)> = Vec::new();
    for (offset, extent) in extents {
        match merged.last_mut() {
            Some((start, last))
                if *start + last.length == offset
                    && last.logical + last.length == extent.logical
                    && last.version == extent.version =>
            {
                last.length += extent.length;
            }
            _ => merged.push((offset, extent)),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use stripeset_stripe::Epoch;

    use super::*;

    fn extent(logical: u64, length: u64, sequence: u64) -> Extent {
        Extent { logical, length, version: Version { epoch: Epoch::default(), sequence } }
    }

    #[test]
    fn neighbours_of_one_version_become_one() {
        let extents = vec![
            (8, extent(108, 8, 1)),
            (0, extent(100, 8, 1)),
            (16, extent(116, 4, 2)),
            (20, extent(200, 4, 2)),
        ];
        let expected = vec![(0, extent(100, 16, 1)), (16, extent(116, 4, 2)), (20, extent(200, 4, 2))];
        assert_eq!(merged(extents), expected);
    }
}
