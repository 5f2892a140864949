//! How to write a set of data sectors into a stripe that holds others: what has to be read for the parity, and what the
//! parity is computed from. Pure; who reads, and what is done when a read brings something bad, is the engine's.
//!
//! For each vertical there are two ways. *Reconstruct-write* needs every data sector of it: those that are written, those
//! in memory, and the rest from the members. *Parity delta* needs the old bytes of what is written and the old parities,
//! and adds the difference. The one that moves fewer sectors is taken.
//!
//! Invariants:
//! 1. What is planned suffices: with the sectors of the plan read, the parity of every touched vertical can be computed.
//! 2. No vertical takes the delta in which a sector may differ between its member and the old parity: the parity would go
//!    on describing bytes that no disk holds. Reconstruct-write heals such a vertical.
//! 3. No plan reads a sector that is written whole, or known, without need (except [`Reading::Whole`], which is there to be
//!    compared with).

use crate::{bits::Bits, geometry::Geometry};

/// What is known of the bytes that a data sector has now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// They are in memory, or it was never written and they are zeros.
    Known,
    /// They are not in memory; the parity was computed from what its member holds.
    Agreed,
    /// They are not in memory, and nobody has vouched for them: a sector that belongs to nothing any more.
    Unsure,
}

/// How much is read when something is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reading {
    /// What is needed.
    #[default]
    Needed,
    /// The stripe whole, data and parity, as the Linux kernel's raid56 does it: for comparison.
    Whole,
}

/// How a write is done, in a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It covers the stripe.
    Full,
    /// All that is needed is in memory.
    Pages,
    /// Neighbours are read.
    Reconstruct,
    /// Old parity is read, in some verticals at least.
    Delta,
    /// The whole stripe is read.
    Whole,
}

/// What to read, and what to compute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// In a word.
    pub kind: Kind,
    /// Verticals that are touched, by sector of the unit.
    pub touched: Bits,
    /// Of those, the ones whose parity is the old one and a difference.
    pub delta: Bits,
    /// Data sectors to read, counted through the data shards.
    pub read: Bits,
    /// Verticals whose parities are to be read.
    pub read_parity: Bits,
}

impl Plan {
    /// Whether any sector is read.
    pub fn reads(&self) -> bool {
        !self.read.none() || !self.read_parity.none()
    }

    /// Sectors that are read from members.
    pub fn sectors_read(&self, geometry: &Geometry) -> usize {
        self.read.count() + self.read_parity.count() * geometry.profile().parity_shards()
    }
}

impl Kind {
    /// For people and programs.
    pub fn word(self) -> &'static str {
        match self {
            Kind::Full => "full",
            Kind::Pages => "pages",
            Kind::Reconstruct => "reconstruct-write",
            Kind::Delta => "parity-delta",
            Kind::Whole => "whole-stripe",
        }
    }
}

/// Plans a write of the `covered` data sectors, counted through the data shards. `content` says what is known of a
/// sector.
pub fn plan(
    geometry: &Geometry,
    covered: &Bits,
    content: impl Fn(usize) -> Content,
    reading: Reading,
) -> Plan {
    let profile = geometry.profile();
    let (k, unit_sectors) = (profile.data_shards(), geometry.unit_sectors());
    let mut plan = Plan {
        kind: if covered.all() { Kind::Full } else { Kind::Pages },
        touched: Bits::new(unit_sectors),
        delta: Bits::new(unit_sectors),
        read: Bits::new(geometry.stripe_sectors()),
        read_parity: Bits::new(unit_sectors),
    };
    for vertical in 0..unit_sectors {
        let sectors = || (0..k).map(|shard| shard * unit_sectors + vertical);
        if !sectors().any(|sector| covered.get(sector)) {
            continue;
        }
        plan.touched.set(vertical, true);
        let unknown = |sector: &usize| content(*sector) != Content::Known;
        let around = || sectors().filter(|sector| !covered.get(*sector)).filter(unknown);
        let below = || sectors().filter(|sector| covered.get(*sector)).filter(unknown);
        let agrees = sectors().all(|sector| content(sector) != Content::Unsure);
        let delta = agrees && below().count() + profile.parity_shards() < around().count();
        if delta {
            plan.delta.set(vertical, true);
            plan.read_parity.set(vertical, true);
            below().for_each(|sector| plan.read.set(sector, true));
        } else {
            around().for_each(|sector| plan.read.set(sector, true));
        }
    }
    if !plan.reads() {
        return plan;
    }
    if reading == Reading::Whole {
        plan.kind = Kind::Whole;
        plan.delta = Bits::new(unit_sectors);
        plan.read = Bits::ones(geometry.stripe_sectors());
        plan.read_parity = Bits::ones(unit_sectors);
    } else {
        plan.kind = if plan.delta.none() { Kind::Reconstruct } else { Kind::Delta };
    }
    plan
}

#[cfg(test)]
mod tests;
