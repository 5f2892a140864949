//! How connections are set up, the same on both ends: frames, windows, and no waiting for more to send.
//!
//! Limits on calls, time and idle connections are each service's own.

use tonic::transport::{Endpoint, Server};

use crate::limits::{CONNECTION_WINDOW_BYTES, FRAME_BYTES_MAX, STREAM_WINDOW_BYTES};

/// A server that is set up like an [`endpoint()`]. That its sockets do not wait for more to send is for who accepts them.
pub fn server() -> Server {
    Server::builder()
        .max_frame_size(FRAME_BYTES_MAX)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
}

/// The endpoint, set up like a [`server()`].
pub fn endpoint(endpoint: Endpoint) -> Endpoint {
    endpoint
        .tcp_nodelay(true)
        .max_frame_size(FRAME_BYTES_MAX)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
}
