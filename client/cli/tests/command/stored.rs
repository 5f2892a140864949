//! Objects that are put while things die, and what may be found of them afterwards: what was acknowledged last, or what was
//! on its way, whole.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use stripeset_client::{Client, ErrorKind, RetryPolicy};
use tokio::task::JoinHandle;

use super::harness::{Dev, until};

/// Puts that are on their way at a time.
pub(crate) const WRITERS: usize = 6;

/// Names that each writer puts to, in turns.
const NAMES: usize = 8;

/// Lengths of objects, to which less than a sector is added: from part of a sector to some stripes.
const LENGTHS: [usize; 6] = [700, 4096, 9_000, 70_000, 300_000, 900_000];

/// Longest object.
pub(crate) const LENGTH_MAX: usize = 900_000 + 512;

/// What may be stored under a name: what was acknowledged last, and what was on its way when something died.
#[derive(Clone, Default)]
struct Allowed {
    acknowledged: Option<u64>,
    on_its_way: Option<u64>,
}

/// All names and what may be stored there.
#[derive(Clone, Default)]
pub(crate) struct Stored {
    names: Arc<Mutex<BTreeMap<String, Allowed>>>,
    puts: Arc<AtomicUsize>,
}

/// Bytes that only this put of this object has.
fn content(name: &str, put: u64) -> Vec<u8> {
    let seed = u64::from(crc32c::crc32c(format!("{name} {put}").as_bytes()));
    let length = LENGTHS[seed as usize % LENGTHS.len()] + (seed % 512) as usize;
    (0..length as u64).map(|n| ((n ^ seed << 20).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as u8).collect()
}

/// A client that never tries again.
pub(crate) async fn client(dev: &Dev) -> Client {
    Client::builder(&*dev.endpoint).retry(RetryPolicy::never()).connect().await.unwrap()
}

impl Stored {
    /// Puts that were acknowledged.
    pub(crate) fn puts(&self) -> usize {
        self.puts.load(Ordering::Relaxed)
    }

    /// Begins to put from so many writers, each until its first failure. Waits until so many puts were acknowledged.
    pub(crate) async fn load(&self, dev: &Dev, writers: usize, puts: usize) -> Vec<JoinHandle<()>> {
        let goal = self.puts() + puts;
        let mut running = Vec::new();
        for writer in 0..writers {
            running.push(tokio::spawn(self.clone().write(client(dev).await, writer)));
        }
        until("enough puts", async || self.puts() >= goal).await;
        running
    }

    async fn write(self, client: Client, writer: usize) {
        for turn in 0.. {
            let name = format!("w{writer}/{}", turn % NAMES);
            let put = {
                let mut names = self.names.lock().unwrap();
                let allowed = names.entry(name.clone()).or_default();
                let put = allowed.acknowledged.map_or(0, |put| put + 1);
                allowed.on_its_way = Some(put);
                put
            };
            if client.put_bytes(&name, content(&name, put)).await.is_err() {
                return;
            }
            let acknowledged = Allowed { acknowledged: Some(put), on_its_way: None };
            self.names.lock().unwrap().insert(name, acknowledged);
            self.puts.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Reads everything back; from then on, what was found is what was acknowledged.
    pub(crate) async fn check(&self, client: &Client) {
        let names: Vec<(String, Allowed)> = self.names.lock().unwrap().clone().into_iter().collect();
        for (name, allowed) in names {
            let found = match client.get(&name).await {
                Ok(reader) => Some(reader.bytes().await.unwrap_or_else(|error| panic!("{name}: {error}"))),
                Err(error) if error.kind() == ErrorKind::NotFound => None,
                Err(error) => panic!("{name}: {error}"),
            };
            let candidates = [allowed.on_its_way.map(Some), Some(allowed.acknowledged)];
            let is = |put: &Option<u64>| match (put, &found) {
                (Some(put), Some(found)) => content(&name, *put) == found[..],
                (None, None) => true,
                _ => false,
            };
            let stored = candidates.into_iter().flatten().find(is);
            let stored =
                stored.unwrap_or_else(|| panic!("{name} is neither old nor new: {:?}", allowed.acknowledged));
            self.names.lock().unwrap().insert(name, Allowed { acknowledged: stored, on_its_way: None });
        }
    }
}
