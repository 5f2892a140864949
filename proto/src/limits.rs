//! Limits of messages and transport settings that both ends of a connection must agree on.

/// Most data bytes in one message of an object stream, and the length that our own ends use: 256 KiB to 1 MiB
/// cost the same per byte, and less memory is in flight with less.
pub const OBJECT_DATA_BYTES_MAX: usize = 1024 * 1024;

/// Data bytes per message that clients and the coordinator send.
pub const OBJECT_DATA_BYTES: usize = 256 * 1024;

/// Largest message on the wire. A stripe unit of 1 MiB with its checksums, or object data of 1 MiB, and room for
/// what goes with them.
pub const MESSAGE_BYTES_MAX: usize = 4 * 1024 * 1024;

/// HTTP/2 frame size on both ends. Large frames cost a fifth to two fifths less CPU than the default of 16 KiB.
pub const FRAME_BYTES_MAX: u32 = 1024 * 1024;

/// HTTP/2 flow-control window of a stream, in bytes.
pub const STREAM_WINDOW_BYTES: u32 = 4 * 1024 * 1024;

/// HTTP/2 flow-control window of a connection, in bytes.
pub const CONNECTION_WINDOW_BYTES: u32 = 16 * 1024 * 1024;

/// Longest object name in bytes.
pub const NAME_BYTES_MAX: usize = 1024;

/// Most objects in one page of a list.
pub const LIST_OBJECTS_MAX: u32 = 1000;

/// Most units in one Commit, Abort or Discard, and in one page of ListUnits.
pub const UNITS_MAX: usize = 1024;
