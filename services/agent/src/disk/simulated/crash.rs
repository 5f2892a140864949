//! What a loss of power may leave of the writes since the last sync. Pure: blocks and writes come in, blocks go out.
//!
//! Disks write 512 bytes whole or not at all, an *atom*. Of each atom that was written since the last sync, what is there
//! afterwards is what was there at the sync, or what any one of the writes since put there, whatever became of the atoms
//! beside it: so writes are lost, kept, torn, and overtaken by later and by earlier ones, in every combination. An atom that
//! no write changed is not open. How many of the combinations are tried is in [`OpenAtoms::outcomes`].

use std::collections::{BTreeMap, BTreeSet};

use super::{blocks::Blocks, faults::Dice};

/// What a disk writes whole or not at all.
pub(super) const ATOM_BYTES: usize = 512;

/// Up to so many outcomes are all tried: those of eight atoms that were written once.
const OUTCOMES_ALL_MAX: usize = 1 << 8;

/// Up to so many writes are lost and kept whole in every combination.
const WRITES_ALL_MAX: usize = 5;

/// So many atoms, evenly spread, are lost each alone.
const ATOMS_LOST_ALONE: usize = 8;

/// A write that no sync followed yet.
pub(super) struct Write {
    pub(super) offset: usize,
    pub(super) bytes: Vec<u8>,
}

/// An atom of which a loss of power may leave one content or another.
#[derive(Default)]
struct OpenAtom {
    offset: usize,
    /// What it may be beside what is durable; no content twice.
    contents: Vec<[u8; ATOM_BYTES]>,
    /// Which writes touched it, in order, and the pick that stands for what each put there.
    writes: Vec<(usize, usize)>,
}

/// For each open atom what it is after the crash: 0 for what is durable, else the place of a content, from 1.
type Picks = Vec<usize>;

/// The atoms that a loss of power leaves open.
pub(super) struct OpenAtoms(Vec<OpenAtom>);

impl OpenAtom {
    /// What it is if of its writes those that are `kept` reach the disk in their order.
    fn after(&self, kept: impl Fn(usize) -> bool) -> usize {
        self.writes.iter().rev().find(|(write, _)| kept(*write)).map_or(0, |(_, pick)| *pick)
    }

    /// The pick for one write, if it touched this atom.
    fn pick_of(&self, write: usize) -> Option<usize> {
        self.writes.iter().find(|(touched, _)| *touched == write).map(|(_, pick)| *pick)
    }
}

impl OpenAtoms {
    /// Compares the writes since the last sync with what is durable.
    pub(super) fn new(durable: &Blocks, writes: &[Write]) -> OpenAtoms {
        let mut atoms: BTreeMap<usize, OpenAtom> = BTreeMap::new();
        for (write, Write { offset, bytes }) in writes.iter().enumerate() {
            for (index, chunk) in bytes.as_chunks::<ATOM_BYTES>().0.iter().enumerate() {
                let offset = offset + index * ATOM_BYTES;
                let atom = atoms.entry(offset).or_insert_with(|| OpenAtom { offset, ..OpenAtom::default() });
                let mut before = [0; ATOM_BYTES];
                durable.read(offset, &mut before);
                let pick = if *chunk == before {
                    0
                } else {
                    let known = atom.contents.iter().position(|content| content == chunk);
                    1 + known.unwrap_or_else(|| {
                        atom.contents.push(*chunk);
                        atom.contents.len() - 1
                    })
                };
                atom.writes.push((write, pick));
            }
        }
        OpenAtoms(atoms.into_values().filter(|atom| !atom.contents.is_empty()).collect())
    }

    /// The blocks as an outcome leaves them.
    pub(super) fn blocks(&self, durable: &Blocks, picks: &[usize]) -> Blocks {
        let mut blocks = durable.clone();
        for (atom, pick) in self.0.iter().zip(picks) {
            if let Some(content) = pick.checked_sub(1) {
                blocks.write(atom.offset, &atom.contents[content]);
            }
        }
        blocks
    }

    /// Outcomes to try, none twice. All there are, if these are at most [`OUTCOMES_ALL_MAX`]. Else:
    ///
    /// - nothing and everything;
    /// - up to [`WRITES_ALL_MAX`] writes in every combination, each whole or not at all;
    /// - of any number of writes each one alone, all but it, and all with it landing last;
    /// - each write torn: alone after one atom, half of them, all but one, its second half, and its first half with all
    ///   other writes;
    /// - everything but one atom, for [`ATOMS_LOST_ALONE`] of them;
    /// - `samples` in which every atom is by chance.
    pub(super) fn outcomes(&self, dice: &mut Dice, samples: usize) -> BTreeSet<Picks> {
        let count = self.0.iter().fold(1, |all: usize, atom| all.saturating_mul(atom.contents.len() + 1));
        if count <= OUTCOMES_ALL_MAX {
            return self.all();
        }
        let everything = self.replay(|_, _| true);
        let mut outcomes = BTreeSet::from([vec![0; self.0.len()], everything.clone()]);
        self.add_writes(&mut outcomes);
        let last = self.0.len() - 1;
        for index in 0..ATOMS_LOST_ALONE {
            let atom = index * last / (ATOMS_LOST_ALONE - 1);
            let mut picks = everything.clone();
            picks[atom] = 0;
            outcomes.insert(picks);
        }
        outcomes.extend((0..samples).map(|_| self.random(dice)));
        outcomes
    }

    /// Some crashes keep nearly all, some nearly nothing, the others a mixture.
    pub(super) fn random(&self, dice: &mut Dice) -> Picks {
        let kept_of_8 = dice.roll() % 9;
        let pick = |atom: &OpenAtom| {
            if dice.roll() % 8 < kept_of_8 { 1 + dice.roll() as usize % atom.contents.len() } else { 0 }
        };
        self.0.iter().map(pick).collect()
    }

    fn all(&self) -> BTreeSet<Picks> {
        let mut all = vec![Picks::new()];
        for atom in &self.0 {
            let longer = |picks: Picks| {
                (0..=atom.contents.len()).map(move |pick| picks.iter().copied().chain([pick]).collect())
            };
            all = all.into_iter().flat_map(longer).collect();
        }
        all.into_iter().collect()
    }

    /// The outcome if of each write those atoms reach the disk that are `kept`, in the order of the writes.
    fn replay(&self, kept: impl Fn(usize, usize) -> bool) -> Picks {
        self.0.iter().map(|atom| atom.after(|write| kept(write, atom.offset))).collect()
    }

    fn add_writes(&self, outcomes: &mut BTreeSet<Picks>) {
        // Where each write touched open atoms, in ascending order. One that touched none is not listed: no outcome rests
        // on it.
        let mut places: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for atom in &self.0 {
            for (write, _) in &atom.writes {
                places.entry(*write).or_default().push(atom.offset);
            }
        }
        if places.len() <= WRITES_ALL_MAX {
            let writes: Vec<usize> = places.keys().copied().collect();
            let kept = |subset: usize, write: usize| {
                writes.iter().position(|one| *one == write).is_some_and(|at| subset >> at & 1 == 1)
            };
            outcomes.extend((0..1 << writes.len()).map(|subset| self.replay(|write, _| kept(subset, write))));
        }
        for (one, places) in &places {
            let alone =
                |range: &[usize]| self.replay(|write, at| write == *one && range.binary_search(&at).is_ok());
            let (first, second) = places.split_at(places.len() / 2);
            for range in [places, first, second, &places[..1], &places[..places.len() - 1]] {
                outcomes.insert(alone(range));
            }
            outcomes.insert(self.replay(|write, _| write != *one));
            outcomes.insert(self.replay(|write, at| write != *one || first.binary_search(&at).is_ok()));
            let last = |atom: &OpenAtom| atom.pick_of(*one).unwrap_or_else(|| atom.after(|_| true));
            outcomes.insert(self.0.iter().map(last).collect());
        }
    }
}
