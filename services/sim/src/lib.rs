//! The seeded simulation: the coordinator's engine and the agents' stores, the real ones, in one thread under a clock that
//! jumps, on disks that rot, drop and lie and over lines that lose, delay, repeat and reorder. One seed decides all of it.
//!
//! [`cluster`] is the stage, [`network`] the lines to the agents, [`trace`] what happened in order.
//!
//! Not simulated: gRPC itself, real disks, two coordinators at once, members that come back from being out.

pub mod cluster;
pub mod dice;
pub mod network;
pub mod trace;
