//! A disk that another one is behind: counts operations, measures what they take, and judges by that how the disk does.

use std::{
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use super::{
    Buffer, Disk, Traffic,
    health::{Health, HealthState, Kind},
    is_full,
};

/// Buckets of a histogram: up to 1 us, 2 us, 4 us and so on to 17 s, and one for all that takes longer.
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

    /// How long `percent` of a hundred operations take at most: the upper end of a bucket, so up to twice too much. Zero
    /// before the first operation.
    pub(crate) fn quantile(&self, percent: u64) -> Duration {
        let rank = (self.operations * percent).div_ceil(100).max(1);
        let mut counted = 0;
        let bucket = self.buckets.iter().position(|operations| {
            counted += operations;
            counted >= rank
        });
        match bucket {
            None => Duration::ZERO,
            Some(bucket) if bucket == BUCKETS - 1 => self.max,
            Some(bucket) => Duration::from_micros(1 << bucket).min(self.max),
        }
    }
}

impl Watch {
    /// Returns whether the health of the disk is another one now.
    fn observe(&mut self, now: Instant, kind: Kind, took: Duration, failed: bool) -> bool {
        let latency = match kind {
            Kind::Read => &mut self.read,
            Kind::Write => &mut self.write,
            Kind::Sync => &mut self.sync,
        };
        latency.add(took, failed);
        let before = self.health.state();
        self.health.observe(now, kind, took, failed);
        self.health.state() != before
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

impl DiskStats {
    /// Tells people what became of the disk with an operation of this kind.
    fn log_health(&self, kind: Kind) {
        let latency = match kind {
            Kind::Read => &self.read,
            Kind::Write => &self.write,
            Kind::Sync => &self.sync,
        };
        let (kind, p50, p99) = (kind.name(), latency.quantile(50), latency.quantile(99));
        let reason = &self.health_reason;
        match self.health {
            HealthState::Online => tracing::info!(kind, ?p50, ?p99, "the disk does well again"),
            HealthState::Suspect => tracing::warn!(reason, kind, ?p50, ?p99, "the disk does badly"),
            HealthState::Failed => tracing::error!(reason, "the disk failed; replace it"),
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
        let changed = self.watch.lock().observe(now, kind, took, failed);
        if changed {
            self.watch.stats().log_health(kind);
        }
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
    fn quantiles_are_the_upper_ends_of_buckets() {
        let mut latency = Latency::default();
        assert_eq!(latency.quantile(99), Duration::ZERO);
        latency.add(Duration::from_micros(3), false);
        assert_eq!((latency.quantile(1), latency.quantile(100)), (latency.max, latency.max));
        (0..98).for_each(|_| latency.add(Duration::from_micros(100), false));
        latency.add(Duration::from_secs(20), true);
        assert_eq!(
            (latency.quantile(0), latency.quantile(1)),
            (Duration::from_micros(4), Duration::from_micros(4))
        );
        assert_eq!(latency.quantile(50), Duration::from_micros(128));
        assert_eq!(latency.quantile(99), Duration::from_micros(128));
        assert_eq!(latency.quantile(100), Duration::from_secs(20), "what no bucket ends is the longest");
        assert_eq!((latency.operations, latency.errors), (100, 1));
    }

    #[test]
    fn slow_operations_are_seen_from_outside() {
        let watch = DiskWatch::default();
        for _ in 0..3 {
            watch.lock().observe(Instant::now(), Kind::Write, Duration::from_secs(2), false);
        }
        let stats = watch.stats();
        assert_eq!((stats.write.operations, stats.write.errors), (3, 0));
        assert_eq!((stats.write.max, stats.health), (Duration::from_secs(2), HealthState::Suspect));
        assert!(stats.health_reason.contains("a write took 2.0 s"), "{}", stats.health_reason);
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
