//! The behaviours of a correct parity store, each a test by its number: what it says, on the real engine and the real
//! stores, over several profiles. `stage` has what they stand on, `holds` the checks, `raw` what they look at, `mix` a mix of all
//! writes.
//!
//! | file | behaviours |
//! |---|---|
//! | `parity` | 1 parity, 2 any m lost |
//! | `cached` | 3 a hit reads nothing, 5 full and fresh writes, 14 recovery ignores the cache |
//! | `counting` | 4 the identities of the counters |
//! | `merging` | 6 |
//! | `freeing` | 7 free invalidates, 8 free is not early |
//! | `flight` | 9 invalidate meets a write in flight |
//! | `failing` | 10 failed and uncertain writes |
//! | `crash` | 16 crashes at every step, and the protocol's table of what each leaves |
//! | `membership` | 11 tolerated failures, 18 epochs; members away, back, replaced; two coordinators |
//! | `damage` | 12 bad neighbours, 13 tolerance is per vertical, 17 short reads and holes |

#![expect(clippy::unwrap_used, reason = "a test that cannot go on stops")]

mod cached;
mod counting;
mod crash;
mod damage;
mod failing;
mod flight;
mod freeing;
mod holds;
mod membership;
mod merging;
mod mix;
mod parity;
mod raw;
mod stage;
