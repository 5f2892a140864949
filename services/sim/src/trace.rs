//! What happened, in order: the last events for people, and a fingerprint of all of them.

use std::{
    collections::VecDeque,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Events that are kept.
const KEPT: usize = 400;

#[derive(Debug, Default)]
struct Events {
    kept: VecDeque<String>,
    count: u64,
    fingerprint: u64,
    aloud: bool,
}

/// The trace of one seed. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Trace(Arc<Mutex<Events>>);

impl Trace {
    /// A trace that prints every event to the standard error as well.
    pub fn aloud() -> Self {
        let trace = Trace::default();
        trace.lock().aloud = true;
        trace
    }

    /// Adds an event.
    pub fn add(&self, event: fmt::Arguments<'_>) {
        let event = event.to_string();
        let mut events = self.lock();
        for byte in event.bytes() {
            events.fingerprint = (events.fingerprint ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        events.count += 1;
        if events.aloud {
            use std::io::Write;
            // Who watches may have gone.
            let _ = writeln!(std::io::stderr(), "{:6} {event}", events.count);
        }
        if events.kept.len() == KEPT {
            events.kept.pop_front();
        }
        events.kept.push_back(event);
    }

    /// Number of events, and a number that is another one if any of them differs.
    pub fn fingerprint(&self) -> (u64, u64) {
        let events = self.lock();
        (events.count, events.fingerprint)
    }

    /// The last events, one on a line.
    pub fn last(&self, count: usize) -> String {
        let events = self.lock();
        let from = events.kept.len().saturating_sub(count);
        events.kept.range(from..).map(|event| format!("  {event}\n")).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Events> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Adds an event to a trace, as `format!` makes a string.
#[macro_export]
macro_rules! event {
    ($trace:expr, $($arguments:tt)*) => { $trace.add(format_args!($($arguments)*)) };
}
