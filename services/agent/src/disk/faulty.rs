//! A disk that misbehaves on demand, before another one: for drills, and for tests of what others make of it. Only there
//! if an agent was started for it.
//!
//! Decides what an operation that meets a fault does. Which faults there are, the holder of the [`FaultHandle`] decides.

use std::{
    io,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use super::{Buffer, Disk, Traffic};

/// What is wrong now.
#[derive(Debug, Default)]
struct Faults {
    /// Where the data area starts; without one nothing is in it.
    data_offset: Option<u64>,
    dropped_writes: u64,
    short_reads: u64,
    short_bytes: u64,
    failed_reads: u64,
    failed_writes: u64,
    delay: Duration,
    frozen: bool,
    /// The process stops: nothing waits any more.
    stopping: bool,
}

#[derive(Debug, Default)]
struct Shared {
    faults: Mutex<Faults>,
    changed: Condvar,
}

/// Makes a disk misbehave.
#[derive(Clone, Debug, Default)]
pub(crate) struct FaultHandle(Arc<Shared>);

impl FaultHandle {
    fn faults(&self) -> MutexGuard<'_, Faults> {
        self.0.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut Faults)) {
        change(&mut self.faults());
        self.0.changed.notify_all();
    }

    /// Says where the data area starts.
    pub(crate) fn set_data_offset(&self, offset: Option<u64>) {
        self.change(|faults| faults.data_offset = offset);
    }

    /// The next writes to the data area go nowhere, and are said to be done.
    pub(crate) fn drop_writes(&self, count: u64) {
        self.change(|faults| faults.dropped_writes = count);
    }

    /// The next reads of the data area give no more bytes than these.
    pub(crate) fn shorten_reads(&self, bytes: u64, count: u64) {
        self.change(|faults| (faults.short_bytes, faults.short_reads) = (bytes, count));
    }

    /// The next reads of the data area fail, and the next writes and syncs.
    pub(crate) fn fail(&self, reads: u64, writes: u64) {
        self.change(|faults| (faults.failed_reads, faults.failed_writes) = (reads, writes));
    }

    /// Every operation waits.
    pub(crate) fn delay(&self, delay: Duration) {
        self.change(|faults| faults.delay = delay);
    }

    /// Nothing goes on, or it does again.
    pub(crate) fn freeze(&self, frozen: bool) {
        self.change(|faults| faults.frozen = frozen);
    }

    /// Whether it is frozen.
    pub(crate) fn is_frozen(&self) -> bool {
        self.faults().frozen
    }

    /// Every fault is over.
    pub(crate) fn clear(&self) {
        self.change(|faults| *faults = Faults { data_offset: faults.data_offset, ..Faults::default() });
    }

    /// Every fault is over, and none begins any more: the process stops.
    pub(crate) fn stop(&self) {
        self.clear();
        self.change(|faults| faults.stopping = true);
    }

    /// Waits as long as the faults say.
    fn begin(&self) -> MutexGuard<'_, Faults> {
        let waits = |faults: &mut Faults| !faults.stopping && !faults.frozen && !faults.delay.is_zero();
        let (faults, delay) = {
            let faults = self.faults();
            let delay = faults.delay;
            (faults, delay)
        };
        let faults = match self.0.changed.wait_timeout_while(faults, delay, waits) {
            Ok((faults, _)) => faults,
            Err(poisoned) => poisoned.into_inner().0,
        };
        let frozen = |faults: &mut Faults| faults.frozen && !faults.stopping;
        self.0.changed.wait_while(faults, frozen).unwrap_or_else(PoisonError::into_inner)
    }
}

impl Faults {
    fn is_data(&self, offset: u64) -> bool {
        self.data_offset.is_some_and(|data| offset >= data)
    }
}

/// One less, if there is any; whether there was.
fn take(count: &mut u64) -> bool {
    let any = *count > 0;
    *count = count.saturating_sub(1);
    any
}

fn injected() -> io::Error {
    io::Error::other("it was asked to fail")
}

/// A disk that misbehaves as its handle says.
pub(crate) struct FaultyDisk {
    disk: Box<dyn Disk>,
    handle: FaultHandle,
}

impl FaultyDisk {
    /// A disk that does well until its handle says otherwise.
    pub(crate) fn new(disk: Box<dyn Disk>, handle: FaultHandle) -> FaultyDisk {
        FaultyDisk { disk, handle }
    }
}

impl Disk for FaultyDisk {
    fn bytes(&self) -> u64 {
        self.disk.bytes()
    }

    fn read(&mut self, offset: u64, into: &mut Buffer) -> io::Result<usize> {
        let mut faults = self.handle.begin();
        let is_data = faults.is_data(offset);
        if is_data && take(&mut faults.failed_reads) {
            return Err(injected());
        }
        let most = if is_data && take(&mut faults.short_reads) { faults.short_bytes } else { u64::MAX };
        drop(faults);
        let read = self.disk.read(offset, into)?;
        Ok(read.min(usize::try_from(most).unwrap_or(usize::MAX)))
    }

    fn write(&mut self, offset: u64, bytes: &Buffer) -> io::Result<()> {
        let mut faults = self.handle.begin();
        if take(&mut faults.failed_writes) {
            return Err(injected());
        }
        if faults.is_data(offset) && take(&mut faults.dropped_writes) {
            return Ok(());
        }
        drop(faults);
        self.disk.write(offset, bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        if take(&mut self.handle.begin().failed_writes) {
            return Err(injected());
        }
        self.disk.sync()
    }

    fn discard(&mut self, offset: u64, length: u64) -> io::Result<()> {
        drop(self.handle.begin());
        self.disk.discard(offset, length)
    }

    fn allocate(&mut self, offset: u64, length: u64) -> io::Result<()> {
        drop(self.handle.begin());
        self.disk.allocate(offset, length)
    }

    fn zero(&mut self, offset: u64, length: u64) -> io::Result<()> {
        drop(self.handle.begin());
        self.disk.zero(offset, length)
    }

    fn traffic(&self) -> Traffic {
        self.disk.traffic()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::{BLOCK_BYTES, simulated::SimulatedDisk};

    fn block(byte: u8) -> Buffer {
        let mut block = Buffer::zeroed(BLOCK_BYTES);
        block.fill(byte);
        block
    }

    fn faulty() -> (FaultyDisk, FaultHandle) {
        let handle = FaultHandle::default();
        handle.set_data_offset(Some(8192));
        (FaultyDisk::new(Box::new(SimulatedDisk::new(1 << 20)), handle.clone()), handle)
    }

    fn read(disk: &mut FaultyDisk, offset: u64) -> io::Result<(usize, u8)> {
        let mut into = block(0xee);
        disk.read(offset, &mut into).map(|read| (read, into[0]))
    }

    #[test]
    fn faults_of_the_data_area_end_by_themselves_and_leave_the_rest_alone() {
        let (mut disk, handle) = faulty();
        handle.drop_writes(1);
        disk.write(0, &block(1)).unwrap();
        disk.write(8192, &block(1)).unwrap();
        assert_eq!((read(&mut disk, 0).unwrap(), read(&mut disk, 8192).unwrap()), ((4096, 1), (4096, 0)));
        disk.write(8192, &block(2)).unwrap();
        assert_eq!(read(&mut disk, 8192).unwrap(), (4096, 2));

        handle.shorten_reads(512, 2);
        assert_eq!(read(&mut disk, 0).unwrap().0, 4096);
        let lengths = [0; 3].map(|_| read(&mut disk, 8192).unwrap().0);
        assert_eq!(lengths, [512, 512, 4096]);

        handle.fail(1, 2);
        assert!(
            read(&mut disk, 0).is_ok() && read(&mut disk, 8192).is_err() && read(&mut disk, 8192).is_ok()
        );
        assert!(disk.sync().is_err() && disk.write(0, &block(3)).is_err());
        assert!(disk.sync().is_ok() && disk.write(0, &block(3)).is_ok());

        handle.fail(9, 9);
        handle.clear();
        assert!(read(&mut disk, 8192).is_ok() && disk.sync().is_ok());
    }

    #[test]
    fn a_frozen_disk_goes_on_when_it_thaws_or_the_process_stops() {
        for stops in [false, true] {
            let (mut disk, handle) = faulty();
            handle.freeze(true);
            assert!(handle.is_frozen());
            let reading = std::thread::spawn(move || read(&mut disk, 8192));
            if stops {
                handle.stop()
            } else {
                handle.freeze(false)
            }
            assert_eq!(reading.join().unwrap().unwrap().0, 4096);
        }
    }

    #[test]
    fn a_delay_is_waited_for_and_ends_when_it_is_cleared() {
        let (mut disk, handle) = faulty();
        let started = tokio::time::Instant::now();
        handle.delay(Duration::from_millis(20));
        disk.sync().unwrap();
        assert!(started.elapsed() >= Duration::from_millis(20));
        handle.delay(Duration::from_secs(3600));
        let syncing = std::thread::spawn(move || disk.sync());
        handle.clear();
        syncing.join().unwrap().unwrap();
    }
}
