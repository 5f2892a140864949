//! Getting a range of an object: stripes are read ahead, bytes leave in order, memory is bounded.

use std::{sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt, stream};
use stripeset_proto::{Error, ErrorKind, limits, v1};
use stripeset_stripe::{
    SECTOR_BYTES,
    geometry::{Geometry, Logical, Shard},
};
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use super::{check_name, info, not_found};
use crate::{
    array::{Array, READ_BYTES_MAX},
    engine::ReadRange,
    extents::{StripeRef, pins::Pin},
    members::MemberIndex,
    meta::{Extent, ObjectRecord},
};

/// Bytes read ahead of what the reader has taken, if a stripe is not longer.
const AHEAD_BYTES: u64 = 1024 * 1024;

/// Most stripes read ahead.
const STRIPES_AHEAD_MAX: u64 = 16;

/// Longest time that a reader may take nothing. After it, its memory and the extents that it holds are given back.
const GET_IDLE_LIMIT: Duration = Duration::from_secs(300);

/// When to try again after the memory for gets was used up.
const BUSY_PAUSE: Duration = Duration::from_millis(100);

/// Pieces shorter than this are joined before they are sent.
const MESSAGE_BYTES_SMALL: usize = 64 * 1024;

/// A range of an object, as it was when the get began.
pub struct ObjectReader {
    array: Arc<Array>,
    name: String,
    object: ObjectRecord,
    allocated: u64,
    offset: u64,
    length: u64,
    extents: Vec<(u64, Extent)>,
    // Keeps the extents from being used again.
    _pin: Pin,
    _memory: OwnedSemaphorePermit,
}

/// What one read of a stripe gives.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Part {
    stripe: stripeset_stripe::geometry::StripeAddress,
    ranges: Vec<ReadRange>,
    /// Bytes to leave out at the front of the first range.
    skip: usize,
    /// Bytes to give after that.
    take: usize,
}

impl ObjectReader {
    /// Begins a get of a range; up to the end if no length is given.
    pub fn begin(array: Arc<Array>, request: v1::GetObjectRequest) -> Result<Self, Error> {
        check_name(&request.name)?;
        // The pin comes first: what is freed after it stays.
        let pin = array.pins.pin();
        let snapshot = array.meta.snapshot()?;
        let object = snapshot.object(&request.name)?.ok_or_else(|| not_found(&request.name))?;
        let offset = request.offset_bytes;
        if offset > object.size {
            return Err(Error::invalid(format!(
                "offset {offset} is past the end of {:?}, which has {} bytes",
                request.name, object.size
            )));
        }
        let length = request.length_bytes.unwrap_or(u64::MAX).min(object.size - offset);
        let extents = if length > 0 { snapshot.extents(object.id, offset, length)? } else { Vec::new() };
        let allocated = snapshot.allocated(object.id)?;
        let memory = memory(&array, length)?;
        Ok(ObjectReader {
            array,
            name: request.name,
            object,
            allocated,
            offset,
            length,
            extents,
            _pin: pin,
            _memory: memory,
        })
    }

    /// Sends the header and then the bytes; ends early when nobody takes them any more.
    pub async fn send(self, messages: mpsc::Sender<Result<v1::GetObjectResponse, Error>>) {
        let header = v1::GetObjectHeader {
            object: Some(info(&self.name, self.object, self.allocated)),
            offset_bytes: self.offset,
            length_bytes: self.length,
        };
        let header = v1::get_object_response::Part::Header(header);
        if messages.send(Ok(v1::GetObjectResponse { part: Some(header) })).await.is_err() {
            return;
        }
        if let Err(error) = self.send_data(&messages).await {
            // The reader may be gone; then nobody is left to tell.
            let _ = tokio::time::timeout(GET_IDLE_LIMIT, messages.send(Err(error))).await;
        }
    }

    async fn send_data(
        self,
        messages: &mpsc::Sender<Result<v1::GetObjectResponse, Error>>,
    ) -> Result<(), Error> {
        let geometry = *self.array.engine.extents.geometry();
        let covered = covered(&self.extents, self.offset, self.length);
        if covered != self.length {
            let message = format!("the map of {:?} covers {covered} of {} bytes", self.name, self.length);
            return Err(Error::new(ErrorKind::Internal, message));
        }
        let (array, ahead) = (&self.array, stripes_ahead(&geometry));
        let parts = parts(geometry, &self.extents, self.offset, self.length);
        let reads = stream::iter(parts).map(|part| read_part(array, part)).buffered(ahead);
        let mut reads = std::pin::pin!(reads);
        let mut small = BytesMut::new();
        while let Some(read) = reads.next().await {
            for piece in read.map_err(|error| self.placed(error))? {
                if small.is_empty() && piece.len() >= MESSAGE_BYTES_SMALL {
                    send_bytes(messages, piece).await?;
                    continue;
                }
                small.extend_from_slice(&piece);
                if small.len() >= MESSAGE_BYTES_SMALL {
                    send_bytes(messages, small.split().freeze()).await?;
                }
            }
        }
        if !small.is_empty() {
            send_bytes(messages, small.freeze()).await?;
        }
        Ok(())
    }

    fn placed(&self, mut error: Error) -> Error {
        error.message = format!("object {:?}: {}", self.name, error.message);
        error
    }
}

async fn send_bytes(
    messages: &mpsc::Sender<Result<v1::GetObjectResponse, Error>>,
    mut bytes: Bytes,
) -> Result<(), Error> {
    while !bytes.is_empty() {
        let data = bytes.split_to(bytes.len().min(limits::OBJECT_DATA_BYTES));
        let crc32c = crc32c::crc32c(&data);
        let part = v1::get_object_response::Part::Data(v1::GetObjectData { data, crc32c });
        let send = messages.send(Ok(v1::GetObjectResponse { part: Some(part) }));
        match tokio::time::timeout(GET_IDLE_LIMIT, send).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return Err(Error::new(ErrorKind::Unavailable, "the reader is gone")),
            Err(_) => {
                let message = format!("the reader took nothing for {GET_IDLE_LIMIT:?}");
                return Err(Error::new(ErrorKind::DeadlineExceeded, message));
            }
        }
    }
    Ok(())
}

/// How many stripes may be in memory at a time.
fn stripes_ahead(geometry: &Geometry) -> usize {
    (AHEAD_BYTES / geometry.stripe_bytes()).clamp(1, STRIPES_AHEAD_MAX) as usize
}

/// The share of the memory for gets that this one may need, for as long as it lasts.
fn memory(array: &Array, length: u64) -> Result<OwnedSemaphorePermit, Error> {
    let geometry = array.engine.extents.geometry();
    let most = geometry.stripe_bytes() * stripes_ahead(geometry) as u64;
    let bytes = length.clamp(MESSAGE_BYTES_SMALL as u64, most.max(MESSAGE_BYTES_SMALL as u64));
    let permit = array.read_bytes.clone().try_acquire_many_owned(bytes as u32);
    permit.map_err(|_exhausted| {
        let limit = READ_BYTES_MAX;
        Error::busy(format!("gets under way already use {limit} bytes of memory: try again"), BUSY_PAUSE)
    })
}

async fn read_part(array: &Arc<Array>, part: Part) -> Result<Vec<Bytes>, Error> {
    let stripe: StripeRef = array.engine.extents.stripe(part.stripe);
    let pieces = array.engine.read(&stripe, &part.ranges).await?;
    Ok(cut(&part, pieces))
}

impl Array {
    /// Bytes of a range of an object as they are without some members: `extents` cover the range.
    pub(crate) async fn read_without(
        self: &Arc<Self>,
        extents: &[(u64, Extent)],
        range: std::ops::Range<u64>,
        members: &[MemberIndex],
    ) -> Result<Bytes, Error> {
        let mut bytes = BytesMut::new();
        let geometry = *self.engine.extents.geometry();
        for part in parts(geometry, extents, range.start, range.end - range.start) {
            let stripe = self.engine.extents.stripe(part.stripe);
            let pieces = self.engine.read_without(&stripe, &part.ranges, members).await?;
            cut(&part, pieces).iter().for_each(|piece| bytes.extend_from_slice(piece));
        }
        Ok(bytes.freeze())
    }
}

/// Leaves out what was read around the bytes asked for.
fn cut(part: &Part, mut pieces: Vec<Bytes>) -> Vec<Bytes> {
    let (mut skip, mut take) = (part.skip, part.take);
    for piece in &mut pieces {
        let front = piece.len().min(skip);
        skip -= front;
        let _ = piece.split_to(front);
        piece.truncate(take);
        take -= piece.len();
    }
    pieces
}

/// Bytes of a range of an object that its extents cover.
fn covered(extents: &[(u64, Extent)], offset: u64, length: u64) -> u64 {
    let end = offset + length;
    let within =
        |(start, extent): &(u64, Extent)| end.min(start + extent.length).saturating_sub(offset.max(*start));
    extents.iter().map(within).sum()
}

/// Cuts a range of an object into reads of stripes, as they are asked for.
fn parts(
    geometry: Geometry,
    extents: &[(u64, Extent)],
    offset: u64,
    length: u64,
) -> impl Iterator<Item = Part> {
    let (sector_bytes, end) = (SECTOR_BYTES as u64, offset + length);
    extents.iter().flat_map(move |(start, extent)| {
        let (mut from, to) = (offset.max(*start), end.min(start + extent.length));
        std::iter::from_fn(move || {
            if from >= to {
                return None;
            }
            let logical = extent.logical + (from - start);
            let place = geometry.place(Logical(logical));
            let stripe_end = geometry.stripe_start(place.stripe).0 + geometry.stripe_bytes();
            let take = (to - from).min(stripe_end - logical);
            let first = logical / sector_bytes * sector_bytes;
            let last = (logical + take).next_multiple_of(sector_bytes);
            from += take;
            Some(Part {
                stripe: place.stripe,
                ranges: ranges(&geometry, first, last, extent),
                skip: (logical - first) as usize,
                take: take as usize,
            })
        })
    })
}

/// Whole sectors of one stripe, cut at the ends of its units.
fn ranges(geometry: &Geometry, first: u64, end: u64, extent: &Extent) -> Vec<ReadRange> {
    let (mut ranges, mut at) = (Vec::new(), first);
    while at < end {
        let place = geometry.place(Logical(at));
        let unit_left = (geometry.unit_sectors() as u32 - place.sector) as u64 * SECTOR_BYTES as u64;
        let bytes = unit_left.min(end - at);
        ranges.push(ReadRange {
            shard: Shard(place.shard.0),
            first_sector: place.sector,
            sectors: (bytes / SECTOR_BYTES as u64) as u32,
            version: extent.version,
        });
        at += bytes;
    }
    ranges
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use stripeset_stripe::{Profile, Version};

    use super::*;

    proptest! {
        #[test]
        fn every_byte_of_a_range_is_read_once_and_in_order(offset in 0..200_000u64, length in 0..200_000u64) {
            let profile: Profile = "raid5-3+1".parse().unwrap();
            let geometry = Geometry::new(profile, 8192, 65536).unwrap();
            // Two extents of an object of 200 KiB, out of order on the array.
            let extent = |logical, length| Extent { logical, length, version: Version::NONE };
            let extents = [(0, extent(12 * 4096, 30 * 4096)), (30 * 4096, extent(4096, 20 * 4096))];
            let length = length.min(50 * 4096 - offset.min(50 * 4096));
            let offset = offset.min(50 * 4096);
            let mut at = offset;
            for part in parts(geometry, &extents, offset, length) {
                let first = &part.ranges[0];
                let place = stripeset_stripe::geometry::Place {
                    stripe: part.stripe, shard: first.shard, sector: first.first_sector, byte: 0,
                };
                let logical = geometry.logical(place).0 + part.skip as u64;
                let expected = if at < 30 * 4096 { 12 * 4096 + at } else { 4096 + at - 30 * 4096 };
                prop_assert_eq!(logical, expected);
                let sectors: u32 = part.ranges.iter().map(|range| range.sectors).sum();
                prop_assert!(part.skip < 4096 && part.skip + part.take <= sectors as usize * 4096);
                prop_assert!(part.skip + part.take + 4096 > sectors as usize * 4096);
                at += part.take as u64;
            }
            prop_assert_eq!(at, offset + length);
            prop_assert_eq!(covered(&extents, offset, length), length);
        }
    }
}
