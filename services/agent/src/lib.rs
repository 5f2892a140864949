//! The stripeset agent: one disk, a file or a block device, served over gRPC.
//!
//! An agent keeps stripe units and says of each which version it holds, with a checksum for every sector. It knows
//! nothing of parity, objects or other agents: a coordinator decides, and the agent holds it to the rules that keep two
//! coordinators, or a late request, from doing harm.
//!
//! From the outside in: [`Agent`] starts and stops; `service` and `session` are the gRPC ends; `wire` turns messages into
//! `operation`s; `queue` is the disk's thread, which gathers them; `group` carries them out around one sync; `store` is the
//! rules; `record`, `superblock` and `layout` are the bytes on disk (docs/ON_DISK.md); `disk` is the file or device.

mod agent;
mod disk;
mod error;
mod fault_service;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod group;
mod label;
mod layout;
mod little_endian;
mod operation;
mod queue;
mod record;
mod refusal;
mod service;
mod session;
#[cfg(feature = "simulation")]
pub mod simulation;
mod store;
mod superblock;
mod wire;

pub use agent::{Agent, AgentConfig};
pub use error::AgentError;
