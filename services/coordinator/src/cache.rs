//! The rbio cache as its operators see it: what it counted, and its settings.

use stripeset_proto::{Error, ErrorKind, v1};
use stripeset_stripe::cache::{Class, Counters, Granularity, Mode};

use crate::array::Array;

impl Array {
    /// The cache at this moment.
    pub fn cache_stats(&self) -> v1::GetCacheStatsResponse {
        let cache = self.engine.cache();
        let by_class = Class::ALL.map(|class| (class, cache.counters(class)));
        let total = by_class.iter().fold(Counters::default(), |sum, (_, counters)| sum + *counters);
        let class = |(class, counters): (Class, Counters)| v1::CacheClassCounters {
            class: class.word().to_owned(),
            counters: Some(counters_to_wire(counters)),
        };
        v1::GetCacheStatsResponse {
            mode: mode_to_wire(cache.mode()).into(),
            whole: cache.granularity() == Granularity::Whole,
            entries: cache.entries() as u64,
            bytes: cache.bytes() as u64,
            capacity_bytes: cache.capacity_bytes() as u64,
            total: Some(counters_to_wire(total)),
            by_class: by_class.into_iter().map(class).collect(),
        }
    }

    /// Changes the mode of the cache. Those that leave the window for parity poisoning open are for experiments.
    pub fn set_cache_mode(&self, request: v1::SetCacheModeRequest, is_unsafe: bool) -> Result<(), Error> {
        let mode = match request.mode() {
            v1::CacheMode::Unspecified => return Err(Error::invalid("no cache mode given")),
            v1::CacheMode::Drop => Mode::Drop,
            v1::CacheMode::Stock => Mode::Stock,
            v1::CacheMode::Mark => Mode::Mark,
            v1::CacheMode::Off => Mode::Off,
        };
        if request.whole && mode != Mode::Drop {
            return Err(Error::invalid("whole entries are dropped in mode drop alone"));
        }
        if matches!(mode, Mode::Stock | Mode::Mark) && !is_unsafe {
            let message = "modes stock and mark keep cached sectors that were freed, and parity can be poisoned by them: \
                           start the coordinator with --unsafe to use them for an experiment";
            return Err(Error::new(ErrorKind::Precondition, message));
        }
        let granularity = if request.whole { Granularity::Whole } else { Granularity::Sector };
        self.engine.cache().set_mode(mode, granularity);
        tracing::info!(?mode, ?granularity, "cache mode changed");
        Ok(())
    }

    /// Changes the size of the cache.
    pub fn set_cache_size(&self, capacity_bytes: u64) -> Result<(), Error> {
        let Ok(bytes) = usize::try_from(capacity_bytes) else {
            return Err(Error::invalid(format!(
                "{capacity_bytes} bytes: more than this machine can address"
            )));
        };
        self.engine.cache().set_capacity(bytes);
        tracing::info!(bytes, "cache size changed");
        Ok(())
    }
}

fn mode_to_wire(mode: Mode) -> v1::CacheMode {
    match mode {
        Mode::Drop => v1::CacheMode::Drop,
        Mode::Stock => v1::CacheMode::Stock,
        Mode::Mark => v1::CacheMode::Mark,
        Mode::Off => v1::CacheMode::Off,
    }
}

fn counters_to_wire(counters: Counters) -> v1::CacheCounters {
    v1::CacheCounters {
        inserts: counters.inserts,
        inserts_fresh: counters.inserts_fresh,
        steals: counters.steals,
        steal_partial: counters.steal_partial,
        steals_other: counters.steals_other,
        rmw_partial: counters.rmw_partial,
        rmw_reads: counters.rmw_reads,
        rmw_skips: counters.rmw_skips,
        skips_free: counters.skips_free,
        stale_marked: counters.stale_marked,
        stale_steals: counters.stale_steals,
        stale_skips: counters.stale_skips,
        stale_skips_sector: counters.stale_skips_sector,
        evicted: counters.evicted,
        evicted_marked: counters.evicted_marked,
    }
}
