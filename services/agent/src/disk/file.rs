//! A file or a block device as a disk. Reads and writes go through the page cache; only a sync makes them durable.
//!
//! How it is found, created and locked is in [`super::open`].

use std::{
    fs::File,
    io::{self, IoSlice},
};

use rustix::{
    buffer::spare_capacity,
    fs::{FallocateFlags, SeekFrom, fallocate, fdatasync, seek},
    io::{Errno, pread, pwritev, retry_on_intr},
};

use super::{Disk, Traffic};

/// Bytes zeroed by one write where the device cannot zero a range itself.
const ZERO_BYTES: usize = 1024 * 1024;

/// An open, locked file or device. The lock ends when it is dropped.
pub(crate) struct FileDisk {
    file: File,
    bytes: u64,
    device: bool,
    traffic: Traffic,
}

impl FileDisk {
    pub(crate) fn new(file: File, bytes: u64, device: bool) -> FileDisk {
        FileDisk { file, bytes, device, traffic: Traffic::default() }
    }

    /// Makes a whole device read as zeros: records are told from leftovers of an earlier use by that alone.
    pub(crate) fn zero(&mut self) -> io::Result<()> {
        match fallocate(&self.file, FallocateFlags::ZERO_RANGE, 0, self.bytes) {
            Ok(()) => Ok(()),
            Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS) => self.zero_by_writing(),
            Err(error) => Err(error.into()),
        }
    }

    fn zero_by_writing(&mut self) -> io::Result<()> {
        let zeros = vec![0; ZERO_BYTES];
        let mut offset = 0;
        while offset < self.bytes {
            // At most ZERO_BYTES.
            let length = (self.bytes - offset).min(ZERO_BYTES as u64) as usize;
            self.write(offset, &mut [IoSlice::new(&zeros[..length])])?;
            offset += length as u64;
        }
        Ok(())
    }
}

impl Disk for FileDisk {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn read(&mut self, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::with_capacity(length);
        while bytes.len() < length {
            let from = offset + bytes.len() as u64;
            let read = retry_on_intr(|| pread(&self.file, spare_capacity(&mut bytes), from));
            match read {
                Ok(0) => break,
                Ok(_) => {}
                Err(error) if bytes.is_empty() => return Err(error.into()),
                // The bytes before the bad place are good: a short read, and the caller sees where it ends.
                Err(_) => break,
            }
        }
        // The allocator may give more than was asked for.
        bytes.truncate(length);
        self.traffic.bytes_read += bytes.len() as u64;
        Ok(bytes)
    }

    fn write(&mut self, offset: u64, mut pieces: &mut [IoSlice<'_>]) -> io::Result<()> {
        let mut at = offset;
        while !pieces.is_empty() {
            let written = retry_on_intr(|| pwritev(&self.file, pieces, at))?;
            if written == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            at += written as u64;
            IoSlice::advance_slices(&mut pieces, written);
        }
        self.traffic.bytes_written += at - offset;
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        self.traffic.syncs += 1;
        // Not retried after any error: the kernel may have forgotten which pages it failed to write.
        Ok(fdatasync(&self.file)?)
    }

    fn punch(&mut self, offset: u64, length: u64) -> io::Result<()> {
        match fallocate(&self.file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, length) {
            // Space is not given back then; what the range holds was of no meaning before either.
            Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS) | Ok(()) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn allocate(&mut self, offset: u64, length: u64) -> io::Result<()> {
        if self.device {
            return Ok(());
        }
        match fallocate(&self.file, FallocateFlags::KEEP_SIZE, offset, length) {
            // A file system that cannot reserve tells at the write itself.
            Err(Errno::OPNOTSUPP | Errno::NOSYS) | Ok(()) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn data_from(&mut self, offset: u64) -> io::Result<Option<u64>> {
        if self.device {
            return Ok((offset < self.bytes).then_some(offset));
        }
        match seek(&self.file, SeekFrom::Data(offset)) {
            Ok(found) => Ok(Some(found)),
            Err(Errno::NXIO) => Ok(None),
            Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok((offset < self.bytes).then_some(offset)),
            Err(error) => Err(error.into()),
        }
    }

    fn traffic(&self) -> Traffic {
        self.traffic
    }
}
