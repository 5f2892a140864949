//! The wire: generated types of `stripeset.v1`, their conversion to and from domain types, and the one mapping of
//! errors to gRPC status. Decides nothing about what the services do.

pub mod convert;
pub mod error;
pub mod limits;
#[cfg(feature = "server")]
pub mod reflection;
pub mod transport;

pub use error::{Error, ErrorKind};

/// Generated from `stripeset/v1/*.proto`; the comments there are the documentation.
#[expect(clippy::all, clippy::allow_attributes_without_reason, reason = "generated code")]
#[expect(unused_qualifications, reason = "generated code")]
pub mod v1 {
    tonic::include_proto!("stripeset.v1");
}

/// File descriptors of `stripeset.v1`, for reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

/// File descriptors of everything a stripeset server can send: our own and those of `google.rpc` error details.
pub fn descriptor_sets() -> [&'static [u8]; 2] {
    [DESCRIPTORS, tonic_types::pb::FILE_DESCRIPTOR_SET]
}
