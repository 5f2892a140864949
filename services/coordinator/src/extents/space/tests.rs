//! The space of an array against a plain set of sectors.

use std::collections::BTreeSet;

use proptest::prelude::*;
use stripeset_stripe::Profile;

use super::*;

fn geometry() -> Geometry {
    let profile: Profile = "raid5-3+1".parse().unwrap();
    // 3 data units of 2 sectors: 6 sectors in a stripe, 4 stripes in a chunk.
    Geometry::new(profile, 8192, 4 * 8192).unwrap()
}

fn logical(geometry: &Geometry, stripe: StripeAddress, sector: usize) -> u64 {
    geometry.stripe_start(stripe).0 / SECTOR_BYTES as u64 + sector as u64
}

#[derive(Clone, Debug)]
enum Step {
    AddChunk,
    TakeRow,
    TakeHoles(usize),
    // Frees the n-th of what is held, modulo how much there is.
    Free(usize),
    FreeSome(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        1 => Just(Step::AddChunk),
        4 => Just(Step::TakeRow),
        4 => (1..20usize).prop_map(Step::TakeHoles),
        4 => any::<usize>().prop_map(Step::Free),
        4 => any::<usize>().prop_map(Step::FreeSome),
    ]
}

/// A model: the sectors in use, and what was taken together.
#[derive(Default)]
struct Model {
    used: BTreeSet<u64>,
    held: Vec<Vec<u64>>,
    chunks: u64,
}

impl Model {
    fn take(&mut self, sectors: Vec<u64>) {
        for sector in &sectors {
            assert!(self.used.insert(*sector), "sector {sector} was allocated twice");
            assert!(*sector < self.chunks * 24);
        }
        self.held.push(sectors);
    }

    fn empty_rows(&self) -> usize {
        (0..self.chunks * 4)
            .filter(|row| (row * 6..row * 6 + 6).all(|sector| !self.used.contains(&sector)))
            .count()
    }

    fn holes(&self) -> usize {
        (self.chunks * 24) as usize - self.used.len() - self.empty_rows() * 6
    }
}

fn free(space: &mut Space, model: &mut Model, sectors: &[u64]) {
    for sector in sectors {
        space.free(Logical(sector * SECTOR_BYTES as u64), SECTOR_BYTES as u64);
        model.used.remove(sector);
    }
}

fn run(space: &mut Space, model: &mut Model, step: Step) {
    let geometry = geometry();
    match step {
        Step::AddChunk => {
            space.add_chunk(ChunkIndex(model.chunks));
            model.chunks += 1;
        }
        Step::TakeRow => match space.take_empty_row() {
            Some(row) => model.take((0..6).map(|sector| logical(&geometry, row, sector)).collect()),
            None => assert_eq!(model.empty_rows(), 0),
        },
        Step::TakeHoles(sectors) => match space.take_holes(sectors) {
            Some(pieces) => {
                let sector = |piece: &Piece| {
                    let first = logical(&geometry, piece.stripe, piece.first_sector);
                    first..first + piece.sectors as u64
                };
                let taken: Vec<u64> = pieces.iter().flat_map(sector).collect();
                assert_eq!(taken.len(), sectors);
                model.take(taken);
            }
            None => assert!(model.holes() < sectors),
        },
        Step::Free(index) if !model.held.is_empty() => {
            let index = index % model.held.len();
            let sectors = model.held.swap_remove(index);
            free(space, model, &sectors);
        }
        Step::FreeSome(index) if !model.held.is_empty() => {
            let index = index % model.held.len();
            let half = model.held[index].len().div_ceil(2);
            let sectors: Vec<u64> = model.held[index].drain(..half).collect();
            model.held.retain(|held| !held.is_empty());
            free(space, model, &sectors);
        }
        Step::Free(_) | Step::FreeSome(_) => {}
    }
}

proptest! {
    #[test]
    fn no_sector_is_given_twice_and_none_is_lost(steps in prop::collection::vec(step(), 1..120)) {
        let (mut space, mut model) = (Space::new(geometry()), Model::default());
        for step in steps {
            run(&mut space, &mut model, step);
            prop_assert_eq!(space.used_bytes(), model.used.len() as u64 * SECTOR_BYTES as u64);
            prop_assert_eq!(space.has_empty_row(), model.empty_rows() > 0);
            prop_assert_eq!(space.free_bytes(), (model.chunks * 24 - model.used.len() as u64) * SECTOR_BYTES as u64);
        }
    }
}

#[test]
fn a_stored_extent_is_in_use_and_cannot_be_stored_twice() {
    let mut space = Space::new(geometry());
    space.add_chunk(ChunkIndex(0));
    assert!(space.take(Logical(4096), 8 * 4096), "over two stripes");
    assert!(!space.take(Logical(8 * 4096), 4096));
    assert!(!space.take(Logical(24 * 4096), 4096), "outside all chunks");
    assert_eq!(space.take_empty_row().map(|row| row.row), Some(Row(2)));
}

#[test]
#[should_panic(expected = "freed twice")]
fn freeing_twice_stops_the_process() {
    let mut space = Space::new(geometry());
    space.add_chunk(ChunkIndex(0));
    space.free(Logical(0), 4096);
}
