//! The arithmetic of parity stripes. Pure: no async, no I/O, no clock, no randomness.
//!
//! Where bytes are ([`geometry`]), what the parity over them is ([`code`]), whether they are the right ones
//! ([`checksum`], [`summary`]), which write is newer ([`version`]), what a write has to read ([`plan`]) and what of that is
//! in memory ([`cache`]), what becomes of a write that a crash interrupted ([`resolve`]), which disks are trusted ([`label`])
//! and who may begin with them ([`start`]).

pub mod bits;
pub mod cache;
pub mod checksum;
pub mod code;
pub mod geometry;
pub mod label;
pub mod plan;
pub mod profile;
pub mod resolve;
pub mod start;
pub mod summary;
pub mod version;

pub use profile::{Profile, ProfileSpec};
pub use version::{Epoch, Version};

/// Bytes in a sector, the unit of checksum.
pub const SECTOR_BYTES: usize = 4096;
