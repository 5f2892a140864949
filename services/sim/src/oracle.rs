//! What every sector may hold: the bytes of the last write that was acknowledged to it, or of one whose outcome nobody
//! knows. The oracle never guesses; it says which bytes are permitted.
//!
//! 1. Of what is acknowledged nothing older is permitted any more.
//! 2. Of a write that failed nothing is permitted.
//! 3. A write whose outcome is unknown may show or not; once it has shown, nothing older is permitted.

use std::collections::BTreeMap;

use bytes::Bytes;
use stripeset_stripe::{SECTOR_BYTES, Version, geometry::StripeAddress};

use crate::dice::Dice;

/// Number of a write, from 1, in the order in which writes were submitted. Decides its bytes.
pub type Order = u64;

/// A data sector of a stripe, counted through its data shards.
pub type Sector = (StripeAddress, usize);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    InFlight,
    Done(Version),
    Unknown,
}

#[derive(Clone, Copy, Debug)]
struct Candidate {
    order: Order,
    outcome: Outcome,
}

/// What a reader may be given of one sector; taken before it asks.
#[derive(Clone, Debug)]
pub struct Expected {
    sector: Sector,
    orders: Vec<Order>,
    // Writes from here on may come in between.
    submitted: Order,
    /// Version below which no answer will do.
    pub version: Version,
}

/// The oracle.
#[derive(Debug, Default)]
pub struct Oracle {
    submitted: Order,
    sectors: BTreeMap<Sector, Vec<Candidate>>,
}

/// The bytes that a write puts into a sector: other ones for every write and sector.
pub fn bytes(order: Order, (stripe, sector): Sector) -> Bytes {
    let place = stripe.chunk.0 << 40 | u64::from(stripe.row.0) << 20 | sector as u64;
    let mut dice = Dice::new(order.rotate_left(32) ^ place);
    let mut bytes = Vec::with_capacity(SECTOR_BYTES);
    bytes.extend(order.to_le_bytes());
    while bytes.len() < SECTOR_BYTES {
        bytes.extend(dice.draw().to_le_bytes());
    }
    bytes.into()
}

/// The write whose bytes these are, if it is one to this sector.
fn order_of(found: &[u8], sector: Sector) -> Option<Order> {
    let order = Order::from_le_bytes(found.get(..8)?.try_into().ok()?);
    (bytes(order, sector) == found).then_some(order)
}

impl Oracle {
    /// Number of the next write, which covers these sectors.
    pub fn submit(&mut self, sectors: &[Sector]) -> Order {
        self.submitted += 1;
        let candidate = Candidate { order: self.submitted, outcome: Outcome::InFlight };
        for sector in sectors {
            self.sectors.entry(*sector).or_default().push(candidate);
        }
        self.submitted
    }

    /// The write was acknowledged.
    pub fn acknowledged(&mut self, order: Order, sectors: &[Sector], version: Version) {
        for sector in sectors {
            let Some(candidates) = self.sectors.get_mut(sector) else { continue };
            let newer = |candidate: &Candidate| {
                candidate.order > order && matches!(candidate.outcome, Outcome::Done(_))
            };
            if candidates.iter().any(newer) {
                candidates.retain(|candidate| candidate.order != order);
                continue;
            }
            candidates.retain(|candidate| candidate.order >= order);
            for candidate in candidates.iter_mut().filter(|candidate| candidate.order == order) {
                candidate.outcome = Outcome::Done(version);
            }
        }
    }

    /// The write failed: nothing of it remains.
    pub fn failed(&mut self, order: Order, sectors: &[Sector]) {
        for sector in sectors {
            if let Some(candidates) = self.sectors.get_mut(sector) {
                candidates.retain(|candidate| candidate.order != order);
            }
        }
    }

    /// Nobody knows what became of the write.
    pub fn unknown(&mut self, order: Order, sectors: &[Sector]) {
        for sector in sectors {
            for candidate in self.sectors.get_mut(sector).into_iter().flatten() {
                if candidate.order == order {
                    candidate.outcome = Outcome::Unknown;
                }
            }
        }
    }

    /// The coordinator died: of all that was in flight the outcome is unknown.
    pub fn crashed(&mut self) {
        for candidate in self.sectors.values_mut().flatten() {
            if candidate.outcome == Outcome::InFlight {
                candidate.outcome = Outcome::Unknown;
            }
        }
    }

    /// The sector belongs to nothing any more.
    pub fn forget(&mut self, sector: Sector) {
        self.sectors.remove(&sector);
    }

    /// What a reader that asks now may be given.
    pub fn expect(&self, sector: Sector) -> Expected {
        let candidates = self.sectors.get(&sector).map_or(&[][..], Vec::as_slice);
        let versions = candidates.iter().filter_map(|candidate| match candidate.outcome {
            Outcome::Done(version) => Some(version),
            Outcome::InFlight | Outcome::Unknown => None,
        });
        Expected {
            sector,
            orders: candidates.iter().map(|candidate| candidate.order).collect(),
            submitted: self.submitted,
            version: versions.max().unwrap_or(Version::NONE),
        }
    }

    /// Whether a reader may be given these bytes. Notes what they show.
    pub fn observe(&mut self, expected: &Expected, found: &[u8]) -> Result<Order, String> {
        let sector = expected.sector;
        let Some(order) = order_of(found, sector) else {
            return Err(format!("{sector:?} holds bytes that no write to it had, {}", describe(found)));
        };
        if !expected.orders.contains(&order) && order <= expected.submitted {
            return Err(format!("{sector:?} holds write {order}, permitted are {:?}", expected.orders));
        }
        if let Some(candidates) = self.sectors.get_mut(&sector) {
            candidates.retain(|candidate| candidate.order >= order);
        }
        Ok(order)
    }

    /// Whether these bytes are what the sector may hold now. Notes nothing.
    pub fn permits(&self, sector: Sector, found: &[u8]) -> bool {
        let order = order_of(found, sector);
        let candidates = self.sectors.get(&sector).map_or(&[][..], Vec::as_slice);
        candidates.iter().any(|candidate| Some(candidate.order) == order)
    }

    /// Whether a write's outcome for a sector is settled: nothing is in flight there.
    pub fn is_quiet(&self, sector: Sector) -> bool {
        let candidates = self.sectors.get(&sector).map_or(&[][..], Vec::as_slice);
        candidates.iter().all(|candidate| candidate.outcome != Outcome::InFlight)
    }

    /// Sectors that a write of unknown outcome covers, by write: all of them show it, or none.
    pub fn unknowns(&self) -> BTreeMap<Order, Vec<Sector>> {
        let mut unknowns: BTreeMap<Order, Vec<Sector>> = BTreeMap::new();
        for (sector, candidates) in &self.sectors {
            for candidate in candidates.iter().filter(|candidate| candidate.outcome == Outcome::Unknown) {
                unknowns.entry(candidate.order).or_default().push(*sector);
            }
        }
        unknowns
    }
}

fn describe(found: &[u8]) -> String {
    match found.iter().all(|byte| *byte == 0) {
        true => "zeros".to_owned(),
        false => format!("{:02x?}... crc {:08x}", &found[..16], stripeset_stripe::checksum::of_sector(found)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECTOR: Sector = (
        StripeAddress {
            chunk: stripeset_stripe::geometry::ChunkIndex(1),
            row: stripeset_stripe::geometry::Row(2),
        },
        3,
    );

    fn permitted(oracle: &Oracle) -> Vec<Order> {
        oracle.expect(SECTOR).orders
    }

    #[test]
    fn an_acknowledged_write_replaces_older_ones_and_a_failed_one_leaves_nothing() {
        let mut oracle = Oracle::default();
        let first = oracle.submit(&[SECTOR]);
        let second = oracle.submit(&[SECTOR]);
        let third = oracle.submit(&[SECTOR]);
        assert_eq!(permitted(&oracle), [first, second, third]);
        oracle.acknowledged(second, &[SECTOR], Version::NONE);
        // The older one is answered later: it was below the newer one all along.
        oracle.acknowledged(first, &[SECTOR], Version::NONE);
        assert_eq!(permitted(&oracle), [second, third]);
        oracle.failed(third, &[SECTOR]);
        assert_eq!(permitted(&oracle), [second]);
        assert!(
            oracle.permits(SECTOR, &bytes(second, SECTOR)) && !oracle.permits(SECTOR, &bytes(first, SECTOR))
        );
    }

    #[test]
    fn an_unknown_write_may_show_and_then_stays() {
        let mut oracle = Oracle::default();
        let first = oracle.submit(&[SECTOR]);
        oracle.acknowledged(first, &[SECTOR], Version::NONE);
        let second = oracle.submit(&[SECTOR]);
        oracle.crashed();
        let expected = oracle.expect(SECTOR);
        assert_eq!(oracle.observe(&expected, &bytes(first, SECTOR)), Ok(first));
        assert_eq!(oracle.observe(&expected, &bytes(second, SECTOR)), Ok(second));
        let expected = oracle.expect(SECTOR);
        assert!(oracle.observe(&expected, &bytes(first, SECTOR)).is_err());
        assert!(oracle.observe(&expected, &[0; SECTOR_BYTES]).is_err());
        assert!(oracle.observe(&expected, &bytes(second, (SECTOR.0, 4))).is_err());
    }
}
