//! What a coordinator is told when it starts.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use crate::engine::CACHE_BYTES;

/// Configuration of one coordinator.
#[derive(Clone, Debug)]
pub struct CoordinatorConfig {
    /// Address to serve on.
    pub listen: SocketAddr,
    /// Folder that holds the object map and what is known of the array. Made if absent; used by one process at a time.
    pub state: PathBuf,
    /// At a start, how long to wait for members that do not answer while the others suffice to serve.
    pub start_patience: Duration,
    /// Bytes of memory for the rbio cache.
    pub cache_bytes: usize,
    /// Modes of the cache may be chosen in which parity can be poisoned.
    pub is_unsafe: bool,
    /// Faults are injected on demand.
    pub faults: bool,
    /// Start also where members that do not answer may hold newer data than those that do.
    pub force: bool,
}

impl CoordinatorConfig {
    /// Default of [`CoordinatorConfig::start_patience`].
    pub const START_PATIENCE: Duration = Duration::from_secs(5);

    /// A configuration with defaults for all but the two that have none.
    pub fn new(listen: SocketAddr, state: PathBuf) -> Self {
        CoordinatorConfig {
            listen,
            state,
            start_patience: Self::START_PATIENCE,
            cache_bytes: CACHE_BYTES,
            is_unsafe: false,
            faults: false,
            force: false,
        }
    }
}
