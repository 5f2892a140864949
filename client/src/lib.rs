//! The Rust SDK of stripeset: store, read, list and delete objects, and look at the array that holds them.
//!
//! [`Client`] is where to begin: it has a method for each thing that can be done with an object. [`ArrayClient`] is
//! for whoever runs the array. Every error is an [`Error`], whose [`ErrorKind`] says what to do about it.
//!
//! ```
//! use stripeset_client::Client;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let cluster = stripeset_testing::Cluster::start(5, "raid5").await;
//! # let endpoint = cluster.endpoint();
//! // For example let endpoint = "http://127.0.0.1:7420";
//! let client = Client::connect(endpoint).await?;
//! client.put_bytes("greetings/hello", "hello, world").await?;
//! let bytes = client.get("greetings/hello").await?.bytes().await?;
//! assert_eq!(&bytes[..], b"hello, world");
//! # Ok(())
//! # }
//! ```
//!
//! What the SDK does on its own: it gives every call a deadline, tries again what may be repeated ([`RetryPolicy`]),
//! checks the checksum of every byte it hands out, and goes on where a broken connection cut a read off. What it
//! leaves to others: which bytes are stored where (the coordinator), and what people see (the `stripeset` command).

mod array;
mod array_types;
mod cache_types;
mod client;
mod connect;
mod error;
mod faults;
mod get;
mod list;
mod objects;
mod put;
mod retry;

pub use array::{ArrayClient, ArrayPlan};
pub use array_types::{
    Array, ArrayStatus, Capacity, Chunk, Explanation, Member, MemberErrors, MemberState, ParityPlace, Place,
    Redundancy, SectorPlace, StripePlan, Version,
};
pub use cache_types::{CacheCounters, CacheMode, CacheStats};
pub use client::{Client, ClientBuilder};
pub use error::Error;
pub use faults::{DiskFault, FaultClient, StepAction, WriteStep};
pub use get::ObjectReader;
pub use list::ObjectList;
pub use objects::ObjectInfo;
pub use put::PutOptions;
pub use retry::RetryPolicy;
pub use stripeset_proto::ErrorKind;
