//! The protocol walk: the rules alone, without bytes, disks and sockets, in random walks as fast as the machine goes. A
//! million of them take minutes; what the simulation of the real code would meet once a year shows here.
//!
//! An array has one stripe of data, with two verticals, and a log of two stripes, which is what makes transactions durable.
//! Transactions write sectors that are free, and free others; readers hold what they read. Two hosts, each with its state
//! folder, start coordinators, several at a time. Messages are lost, repeated, late and out of order, links are cut; agents
//! crash and forget commits that were not synced, or tear a fresh prepare; disks are lost, and blank ones stand in their
//! place. In the end all is mended, a last coordinator takes over, and everything is looked at.
//!
//! What recovers ([`resolve`](mod@stripeset_stripe::resolve)), who begins ([`start`](mod@stripeset_stripe::start)) and how
//! labels are revised ([`label`](stripeset_stripe::label)) is the code that the coordinator runs. The agents' rules and the
//! steps of a write are written down here once more, as the protocol says them: [`agent`], [`coordinator`], [`rejoin`].
//! [`world`] is what happens to them, [`end`] how it ends and what has to hold then, [`rules`] what can be left out, to see that
//! it is missed.

pub mod agent;
pub mod coordinator;
pub mod counts;
pub mod end;
pub mod many;
pub mod rejoin;
pub mod rules;
pub mod world;

use stripeset_stripe::{
    Version,
    geometry::{ChunkIndex, Row, StripeAddress},
};

pub use self::{
    counts::Counts,
    many::{Met, Walked, walk_many},
    rules::{Broken, Rule},
    world::World,
};

/// Most data shards of a walk.
pub const DATA_MAX: usize = 4;

/// Most members.
pub const MEMBERS_MAX: usize = 6;

/// Verticals of the largest stripe.
pub const VERTICALS_MAX: usize = 2;

/// The stripe of data, and the two of the log.
pub const STRIPES: usize = 3;

/// The stripe of data.
pub const DATA: usize = 0;

/// Verticals by stripe.
pub const VERTICALS: [usize; STRIPES] = [2, 1, 1];

/// Steps of a walk.
pub const STEPS: usize = 600;

/// What a shard has in one vertical: a data shard one value, a parity those of all data shards. So that a parity is right
/// exactly if it equals them.
pub type Cell = [u32; DATA_MAX];

/// A version for each shard.
pub type Vector = [Version; MEMBERS_MAX];

/// Data and parity shards. Each shard has a member of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// k.
    pub data: usize,
    /// m.
    pub parity: usize,
}

impl Shape {
    /// `2+1`, say; `None` if it is none, or too large.
    pub fn parse(word: &str) -> Option<Shape> {
        let (data, parity) = word.split_once('+')?;
        let shape = Shape { data: data.parse().ok()?, parity: parity.parse().ok()? };
        let fits = (1..=DATA_MAX).contains(&shape.data) && shape.parity > 0 && shape.members() <= MEMBERS_MAX;
        fits.then_some(shape)
    }

    /// n.
    pub fn members(self) -> usize {
        self.data + self.parity
    }
}

/// The address of a stripe: rows of one chunk.
pub fn address(stripe: usize) -> StripeAddress {
    StripeAddress { chunk: ChunkIndex(0), row: Row(stripe as u32) }
}

/// One walk: what was counted, and what did not hold. `trace` hears of everything.
pub fn walk(
    shape: Shape,
    seed: u64,
    broken: Broken,
    trace: Option<&mut Vec<String>>,
) -> (Counts, Result<(), String>) {
    let mut world = World::new(shape, seed, broken, trace.is_some());
    let outcome = world.run();
    let counts = world.counts();
    if let Some(trace) = trace {
        *trace = world.into_trace();
    }
    (counts, outcome)
}
