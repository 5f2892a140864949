//! The `stripeset` command as users run it: real processes, real ports, real disks, `kill -9`.
//!
//! `command/harness.rs` starts and stops; the other files each test one side of the command line's promise. What the
//! services do inside is tested in their own crates.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

#[path = "command/agent_kill.rs"]
mod agent_kill;
#[path = "command/cache.rs"]
mod cache;
#[path = "command/crash.rs"]
mod crash;
#[path = "command/demo.rs"]
mod demo;
#[path = "command/dev.rs"]
mod dev;
#[path = "command/faults.rs"]
mod faults;
#[path = "command/frozen.rs"]
mod frozen;
#[path = "command/harness.rs"]
mod harness;
#[path = "command/kills.rs"]
mod kills;
#[path = "command/losses.rs"]
mod losses;
#[path = "command/objects.rs"]
mod objects;
#[path = "command/services.rs"]
mod services;
#[path = "command/stored.rs"]
mod stored;
#[path = "command/usage.rs"]
mod usage;
