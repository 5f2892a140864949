//! A file or a block device as a disk. Past the page cache where the disk takes that (O_DIRECT), else through it; either
//! way only a sync makes a write durable.
//!
//! Why past it: bytes go to the disk from where they are, in the length that was asked for, which costs half the CPU and
//! less; and a failed write is told by the write itself, not by some later sync.
//!
//! How a disk is found, created and locked is in [`super::open`].

use std::{fs::File, io, time::Duration};

use rustix::{
    fs::{FallocateFlags, OFlags, fallocate, fcntl_getfl, fcntl_setfl, fdatasync},
    io::{Errno, pread, pwrite, retry_on_intr},
};
use tokio::time::Instant;

use super::{BLOCK_BYTES, Buffer, Disk, Traffic, buffer::assert_blocks};

/// Bytes zeroed by one write where the device cannot zero a range itself.
const ZERO_BYTES: usize = 1024 * 1024;

/// How often a long zeroing says how far it is.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);

/// An open, locked file or device. The lock ends when it is dropped.
pub(crate) struct FileDisk {
    file: File,
    bytes: u64,
    device: bool,
    direct: bool,
    traffic: Traffic,
}

impl FileDisk {
    /// Takes the page cache out of the way if the disk allows it.
    pub(crate) fn new(file: File, bytes: u64, device: bool) -> FileDisk {
        let mut disk = FileDisk { file, bytes, device, direct: false, traffic: Traffic::default() };
        disk.direct = disk.go_direct().is_ok();
        tracing::info!(bytes, device, direct = disk.direct, "disk opened");
        disk
    }

    /// Whether reads and writes go past the page cache.
    pub(crate) fn direct(&self) -> bool {
        self.direct
    }

    /// Some file systems take the flag, and refuse every read: it is believed after one, else undone.
    fn go_direct(&mut self) -> io::Result<()> {
        let flags = fcntl_getfl(&self.file)?;
        fcntl_setfl(&self.file, flags | OFlags::DIRECT)?;
        let tried = self.read(0, &mut Buffer::zeroed(BLOCK_BYTES));
        self.traffic = Traffic::default();
        if let Err(error) = tried {
            fcntl_setfl(&self.file, flags)?;
            return Err(error);
        }
        Ok(())
    }

    /// Goes through the page cache although it need not.
    #[cfg(test)]
    pub(crate) fn buffered(mut self) -> FileDisk {
        if let Ok(flags) = fcntl_getfl(&self.file) {
            self.direct = fcntl_setfl(&self.file, flags - OFlags::DIRECT).is_err();
        }
        self
    }

    fn zero_by_writing(&mut self, offset: u64, length: u64) -> io::Result<()> {
        let mut zeros = Buffer::zeroed(ZERO_BYTES);
        let (mut done, mut told) = (0, Instant::now());
        while done < length {
            // At most ZERO_BYTES.
            zeros.resize((length - done).min(ZERO_BYTES as u64) as usize);
            self.write(offset + done, &zeros)?;
            done += zeros.len() as u64;
            if told.elapsed() >= PROGRESS_INTERVAL {
                tracing::info!(done_bytes = done, bytes = length, "zeroing a part of the disk");
                told = Instant::now();
            }
        }
        Ok(())
    }
}

/// The kernel would refuse other memory with an error that looks like the disk's.
fn assert_takes(offset: u64, bytes: &Buffer) {
    assert_blocks(offset, bytes.len() as u64);
    assert!(bytes.is_empty() || bytes.as_ptr().addr().is_multiple_of(BLOCK_BYTES), "memory is not aligned");
}

impl Disk for FileDisk {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn read(&mut self, offset: u64, into: &mut Buffer) -> io::Result<usize> {
        assert_takes(offset, into);
        let mut got = 0;
        while got < into.len() {
            match retry_on_intr(|| pread(&self.file, &mut into[got..], offset + got as u64)) {
                Ok(0) => break,
                Ok(read) => got += read,
                Err(error) if got == 0 => return Err(error.into()),
                // The bytes before the bad place are good: a short read, and the caller sees where it ends.
                Err(_) => break,
            }
            // The end of a file within a block. To go on from there would not be aligned.
            if !got.is_multiple_of(BLOCK_BYTES) {
                break;
            }
        }
        self.traffic.bytes_read += got as u64;
        Ok(got)
    }

    fn write(&mut self, offset: u64, bytes: &Buffer) -> io::Result<()> {
        assert_takes(offset, bytes);
        // A file would grow.
        assert!(offset + bytes.len() as u64 <= self.bytes, "a write behind the end of the disk");
        let mut done = 0;
        while done < bytes.len() {
            let written = retry_on_intr(|| pwrite(&self.file, &bytes[done..], offset + done as u64))?;
            // To go on within a block would not be aligned.
            if written == 0 || self.direct && !written.is_multiple_of(BLOCK_BYTES) {
                return Err(io::ErrorKind::WriteZero.into());
            }
            done += written;
        }
        self.traffic.bytes_written += bytes.len() as u64;
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        self.traffic.syncs += 1;
        // Not retried after any error: the kernel may have forgotten which pages it failed to write.
        Ok(fdatasync(&self.file)?)
    }

    fn discard(&mut self, offset: u64, length: u64) -> io::Result<()> {
        assert_blocks(offset, length);
        match fallocate(&self.file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, length) {
            // Space is not given back then; what the range holds was of no meaning before either.
            Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS) | Ok(()) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn allocate(&mut self, offset: u64, length: u64) -> io::Result<()> {
        assert_blocks(offset, length);
        if self.device {
            return Ok(());
        }
        match fallocate(&self.file, FallocateFlags::KEEP_SIZE, offset, length) {
            // A file system that cannot reserve tells at the write itself.
            Err(Errno::OPNOTSUPP | Errno::NOSYS) | Ok(()) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn zero(&mut self, offset: u64, length: u64) -> io::Result<()> {
        assert_blocks(offset, length);
        // A file system would only note that the range reads as zeros, and have to change that note with each first write.
        if self.device && fallocate(&self.file, FallocateFlags::ZERO_RANGE, offset, length).is_ok() {
            return Ok(());
        }
        self.zero_by_writing(offset, length)
    }

    fn traffic(&self) -> Traffic {
        self.traffic
    }
}
