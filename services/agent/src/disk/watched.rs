//! A disk that another one is behind: counts operations, measures what they take, and judges by that how the disk does.

use std::{
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use super::{
    Buffer, Disk, Traffic,
    health::{Bad, Health, HealthState, SLOW},
    is_full,
};

/// Buckets of a histogram: 1 us, 2 us, 4 us and so on to half a minute, and one for all that takes longer.
pub(crate) const BUCKETS: usize = 26;

/// What one kind of operation took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Latency {
    pub(crate) operations: u64,
    pub(crate) errors: u64,
    pub(crate) buckets: [u64; BUCKETS],
    pub(crate) max: Duration,
}

/// What the operations of a disk took.
#[derive(Clone, Debug, Default)]
pub(crate) struct DiskStats {
    pub(crate) read: Latency,
    pub(crate) write: Latency,
    pub(crate) sync: Latency,
    pub(crate) health: HealthState,
    pub(crate) health_reason: String,
}

#[derive(Debug, Default)]
struct Watch {
    read: Latency,
    write: Latency,
    sync: Latency,
    health: Health,
}

/// Looks at the counters while the disk works.
#[derive(Clone, Debug, Default)]
pub(crate) struct DiskWatch(Arc<Mutex<Watch>>);

/// A disk whose operations are measured.
pub(crate) struct Watched {
    disk: Box<dyn Disk>,
    watch: DiskWatch,
}

/// Kinds of operations that are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Read,
    Write,
    Sync,
}

impl Latency {
    fn add(&mut self, took: Duration, failed: bool) {
        self.operations += 1;
        self.errors += u64::from(failed);
        // Longer than 2^64 us nothing takes.
        let micros = took.as_micros() as u64;
        let bucket = u64::BITS - micros.saturating_sub(1).leading_zeros();
        self.buckets[(bucket as usize).min(BUCKETS - 1)] += 1;
        self.max = self.max.max(took);
    }
}

impl DiskWatch {
    fn lock(&self) -> MutexGuard<'_, Watch> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was counted since the disk was opened.
    pub(crate) fn stats(&self) -> DiskStats {
        let watch = self.lock();
        DiskStats {
            read: watch.read,
            write: watch.write,
            sync: watch.sync,
            health: watch.health.state(),
            health_reason: watch.health.reason().to_owned(),
        }
    }
}

impl Watched {
    /// Watches a disk. The second value sees what is counted.
    pub(crate) fn new(disk: Box<dyn Disk>) -> (Watched, DiskWatch) {
        let watch = DiskWatch::default();
        (Watched { disk, watch: watch.clone() }, watch)
    }

    fn measured<T>(
        &mut self,
        kind: Kind,
        operation: impl FnOnce(&mut dyn Disk) -> io::Result<T>,
    ) -> io::Result<T> {
        let start = Instant::now();
        let outcome = operation(&mut *self.disk);
        let now = Instant::now();
        let took = now.duration_since(start);
        // A full disk does what it should.
        let failed = outcome.as_ref().is_err_and(|error| !is_full(error));
        let bad = match (failed, kind) {
            (true, Kind::Read) => Some(Bad::Failed),
            (true, Kind::Write | Kind::Sync) => Some(Bad::Lost),
            (false, _) => (took > SLOW).then_some(Bad::Slow(took)),
        };
        let mut watch = self.watch.lock();
        let (name, latency) = match kind {
            Kind::Read => ("read", &mut watch.read),
            Kind::Write => ("write", &mut watch.write),
            Kind::Sync => ("sync", &mut watch.sync),
        };
        latency.add(took, failed);
        watch.health.observe(now, name, bad);
        outcome
    }
}

impl Disk for Watched {
    fn bytes(&self) -> u64 {
        self.disk.bytes()
    }

    fn read(&mut self, offset: u64, into: &mut Buffer) -> io::Result<usize> {
        self.measured(Kind::Read, |disk| disk.read(offset, into))
    }

    fn write(&mut self, offset: u64, bytes: &Buffer) -> io::Result<()> {
        self.measured(Kind::Write, |disk| disk.write(offset, bytes))
    }

    fn sync(&mut self) -> io::Result<()> {
        self.measured(Kind::Sync, |disk| disk.sync())
    }

    fn discard(&mut self, offset: u64, length: u64) -> io::Result<()> {
        self.disk.discard(offset, length)
    }

    fn allocate(&mut self, offset: u64, length: u64) -> io::Result<()> {
        self.disk.allocate(offset, length)
    }

    fn zero(&mut self, offset: u64, length: u64) -> io::Result<()> {
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

    #[test]
    fn buckets_double() {
        let mut latency = Latency::default();
        for micros in [0, 1, 2, 3, 4, 5, 1 << 24, (1 << 24) + 1, 1 << 40] {
            latency.add(Duration::from_micros(micros), false);
        }
        let mut expected = [0; BUCKETS];
        (expected[0], expected[1], expected[2], expected[3]) = (2, 1, 2, 1);
        (expected[24], expected[25]) = (1, 2);
        assert_eq!(latency.buckets, expected);
        assert_eq!((latency.operations, latency.max), (9, Duration::from_micros(1 << 40)));
    }

    #[test]
    fn operations_and_failures_are_counted_and_judged() {
        let simulated = SimulatedDisk::new(16 * BLOCK_BYTES);
        let (mut disk, watch) = Watched::new(Box::new(simulated.clone()));
        let mut block = Buffer::zeroed(BLOCK_BYTES);
        disk.write(0, &block).unwrap();
        simulated.make_unreadable(0..512);
        assert!(disk.read(0, &mut block).is_err());
        simulated.fail_writes(Some(io::ErrorKind::StorageFull));
        assert!(disk.write(0, &block).is_err());
        let stats = watch.stats();
        assert_eq!((stats.read.operations, stats.read.errors), (1, 1));
        assert_eq!((stats.write.operations, stats.write.errors), (2, 0), "full is not failed");
        assert_eq!(stats.health, HealthState::Online);
        simulated.fail_syncs();
        assert!(disk.sync().is_err());
        let stats = watch.stats();
        assert_eq!((stats.sync.errors, stats.health), (1, HealthState::Failed));
        assert_eq!(stats.health_reason, "a sync failed");
    }
}
