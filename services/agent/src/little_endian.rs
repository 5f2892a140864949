//! Numbers in on-disk structures: little endian, one after the other. Decides nothing about what they mean.

use stripeset_stripe::{Epoch, Version};

/// Bytes of a version on disk.
pub(crate) const VERSION_BYTES: usize = 24;

/// What a disk counts comes nowhere near: a larger number was never written, and could not be counted on from.
const COUNT_MAX: u64 = 1 << 62;

/// Fills a buffer from its start. Panics past its end: lengths are computed from the same structures before.
pub(crate) struct Writer<'a> {
    out: &'a mut [u8],
    at: usize,
}

impl<'a> Writer<'a> {
    pub(crate) fn new(out: &'a mut [u8]) -> Self {
        Writer { out, at: 0 }
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.out[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
    }

    pub(crate) fn u8(&mut self, value: u8) {
        self.bytes(&[value]);
    }

    pub(crate) fn u16(&mut self, value: u16) {
        self.bytes(&value.to_le_bytes());
    }

    pub(crate) fn u32(&mut self, value: u32) {
        self.bytes(&value.to_le_bytes());
    }

    pub(crate) fn u64(&mut self, value: u64) {
        self.bytes(&value.to_le_bytes());
    }

    pub(crate) fn version(&mut self, version: Version) {
        self.u64(version.epoch.number);
        self.u64(version.epoch.incarnation);
        self.u64(version.sequence);
    }
}

/// Reads a buffer from its start; `None` past its end.
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(rest: &'a [u8]) -> Self {
        Reader { rest }
    }

    /// What has not been read.
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    pub(crate) fn bytes(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(taken)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N)?.try_into().ok()
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// A number that is counted on from.
    pub(crate) fn count(&mut self) -> Option<u64> {
        self.u64().filter(|count| *count < COUNT_MAX)
    }

    pub(crate) fn version(&mut self) -> Option<Version> {
        let epoch = Epoch { number: self.u64()?, incarnation: self.u64()? };
        Some(Version { epoch, sequence: self.u64()? })
    }
}
