//! A disk in memory that loses power on demand, fails, fills up, and lies. For tests alone.
//!
//! What a loss of power does: disks write 512 bytes whole or not at all, an *atom*. Of each atom that was written since the
//! last sync, what is there afterwards is what was there at the sync, or what any one of the writes since put there: so
//! writes are lost, kept, torn between atoms, and overtaken by later ones, in every combination. What was synced stays.
//!
//! Blocks are shared between disks until one is written, so that a disk is copied in no time.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, ErrorKind},
    ops::Range,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
};

use super::{BLOCK_BYTES, Buffer, Disk, Traffic};

/// What a disk writes whole or not at all.
const ATOM_BYTES: usize = 512;

/// Up to so many outcomes of a loss of power are all tried.
const OUTCOMES_ALL_MAX: usize = 256;

/// Faults that come by themselves come as often as this of so many operations.
const ODDS: u64 = 1000;

/// A source of bits that is the same in each run of a test.
#[derive(Clone, Debug)]
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    /// The next of an xorshift sequence.
    pub(crate) fn roll(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// True so many times of [`ODDS`].
    fn happens(&mut self, odds: u64) -> bool {
        self.roll() % ODDS < odds
    }
}

/// How often a disk does what it should not, of a thousand operations that could go wrong that way.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    /// A bit of what is written flips on the medium.
    pub(crate) rot: u64,
    /// A block that is written cannot be read until it is written again.
    pub(crate) latent_errors: u64,
    /// A write lands a block too far; the caller is told that all is well.
    pub(crate) misdirected_writes: u64,
    /// A write lands nowhere; the caller is told that all is well.
    pub(crate) dropped_writes: u64,
    /// A write finds no space where there were no bytes before.
    pub(crate) full: u64,
    /// An operation takes long.
    pub(crate) stalls: u64,
}

/// How often each fault was injected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Injected {
    pub(crate) rot: u64,
    pub(crate) latent_errors: u64,
    pub(crate) misdirected_writes: u64,
    pub(crate) dropped_writes: u64,
    pub(crate) full: u64,
    pub(crate) stalls: u64,
}

/// A handle to a disk: the store has one, the test another.
#[derive(Clone)]
pub(crate) struct SimulatedDisk {
    state: Arc<Mutex<State>>,
    released: Arc<Condvar>,
}

/// Blocks of a disk; those that were never written are zeros.
#[derive(Clone, Default)]
struct Blocks(Vec<Option<Arc<[u8; BLOCK_BYTES]>>>);

#[derive(Default)]
struct State {
    bytes: u64,
    /// What survives a loss of power for certain.
    durable: Blocks,
    /// What a read sees.
    current: Blocks,
    /// Writes since the last sync, in order.
    unsynced: Vec<(usize, Vec<u8>)>,
    /// Blocks that have space although they may be zeros.
    allocated: BTreeSet<usize>,
    /// Writes, syncs, discards and zeroings so far.
    operations: u64,
    /// Power is lost at this operation: of it, and of all later ones, the caller sees an error.
    power_lost_at: Option<u64>,
    sync_fails: bool,
    /// Syncs do not return.
    frozen: bool,
    /// Syncs that wait for that to end.
    held: u32,
    write_fails: Option<ErrorKind>,
    allocate_fails: bool,
    /// Bytes that cannot be read.
    unreadable: Vec<Range<u64>>,
    /// No read gives more bytes than this.
    read_bytes_max: Option<usize>,
    faults: Option<(Faults, Dice)>,
    injected: Injected,
    traffic: Traffic,
}

impl Blocks {
    fn read(&self, offset: usize, into: &mut [u8]) {
        let mut at = 0;
        while at < into.len() {
            let (block, start) = ((offset + at) / BLOCK_BYTES, (offset + at) % BLOCK_BYTES);
            let length = (BLOCK_BYTES - start).min(into.len() - at);
            match self.0.get(block).and_then(Option::as_ref) {
                Some(bytes) => into[at..at + length].copy_from_slice(&bytes[start..start + length]),
                None => into[at..at + length].fill(0),
            }
            at += length;
        }
    }

    fn write(&mut self, offset: usize, bytes: &[u8]) {
        let mut at = 0;
        while at < bytes.len() {
            let (block, start) = ((offset + at) / BLOCK_BYTES, (offset + at) % BLOCK_BYTES);
            let length = (BLOCK_BYTES - start).min(bytes.len() - at);
            let old = self.0[block].get_or_insert_with(|| Arc::new([0; BLOCK_BYTES]));
            Arc::make_mut(old)[start..start + length].copy_from_slice(&bytes[at..at + length]);
            at += length;
        }
    }
}

impl SimulatedDisk {
    pub(crate) fn new(bytes: usize) -> SimulatedDisk {
        SimulatedDisk::with(bytes as u64, Blocks(vec![None; bytes.div_ceil(BLOCK_BYTES)]))
    }

    fn with(bytes: u64, blocks: Blocks) -> SimulatedDisk {
        let state = State { bytes, durable: blocks.clone(), current: blocks, ..State::default() };
        SimulatedDisk { state: Arc::new(Mutex::new(state)), released: Arc::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn operations(&self) -> u64 {
        self.state().operations
    }

    pub(crate) fn lose_power_at(&self, operation: u64) {
        self.state().power_lost_at = Some(operation);
    }

    pub(crate) fn fail_syncs(&self) {
        self.state().sync_fails = true;
    }

    /// Lets syncs wait until [`SimulatedDisk::thaw`].
    pub(crate) fn freeze(&self) {
        self.state().frozen = true;
    }

    pub(crate) fn thaw(&self) {
        self.state().frozen = false;
        self.released.notify_all();
    }

    /// Whether a sync waits for [`SimulatedDisk::thaw`].
    pub(crate) fn holds_a_sync(&self) -> bool {
        self.state().held > 0
    }

    pub(crate) fn fail_writes(&self, kind: Option<ErrorKind>) {
        self.state().write_fails = kind;
    }

    /// There is no space but where there are bytes already.
    pub(crate) fn fail_allocations(&self) {
        self.state().allocate_fails = true;
    }

    pub(crate) fn make_unreadable(&self, bytes: Range<u64>) {
        self.state().unreadable.push(bytes);
    }

    pub(crate) fn read_at_most(&self, bytes: usize) {
        self.state().read_bytes_max = Some(bytes);
    }

    /// From now on the disk does what it should not, as often as `faults` says.
    pub(crate) fn misbehave(&self, faults: Faults, seed: u64) {
        self.state().faults = Some((faults, Dice(seed | 1)));
    }

    /// From now on it does what it should.
    pub(crate) fn behave(&self) {
        self.state().faults = None;
    }

    /// What was injected so far.
    pub(crate) fn injected(&self) -> Injected {
        self.state().injected
    }

    /// Changes bytes under everything, as a medium does that rots.
    pub(crate) fn flip(&self, offset: u64) {
        self.state().flip(offset as usize);
    }

    /// The bytes that a read sees.
    pub(crate) fn peek(&self, bytes: Range<u64>) -> Vec<u8> {
        let mut into = vec![0; (bytes.end - bytes.start) as usize];
        self.state().current.read(bytes.start as usize, &mut into);
        into
    }

    /// The disk after a loss of power: one of the outcomes, as the dice say.
    pub(crate) fn after_power_loss(&self, dice: &mut Dice) -> SimulatedDisk {
        let state = self.state();
        state.outcome(&state.atoms().random(dice))
    }

    /// Disks as a loss of power may leave this one. All of them if there are few; else those in which each write is there
    /// whole, or not at all, or in half, alone or with all others, and `samples` in which every atom is by chance.
    pub(crate) fn crash_outcomes(&self, dice: &mut Dice, samples: usize) -> Vec<SimulatedDisk> {
        let state = self.state();
        let atoms = state.atoms();
        let mut outcomes: BTreeSet<Vec<usize>> = BTreeSet::new();
        if atoms.outcomes() <= OUTCOMES_ALL_MAX {
            outcomes.extend(atoms.all());
        } else {
            outcomes.extend(atoms.by_write(state.unsynced.len()));
            outcomes.extend((0..samples).map(|_| atoms.random(dice)));
        }
        outcomes.iter().map(|picks| state.outcome(picks)).collect()
    }

    /// The disk as the next process finds it if the machine stays up.
    pub(crate) fn after_restart(&self) -> SimulatedDisk {
        let state = self.state();
        SimulatedDisk::with(state.bytes, state.current.clone())
    }
}

/// Atoms that a loss of power leaves open: for each, where it is, and the writes that may be what is there.
struct Atoms(Vec<(usize, Vec<usize>)>);

impl Atoms {
    /// How many outcomes there are; a large number if very many.
    fn outcomes(&self) -> usize {
        self.0.iter().fold(1, |product: usize, (_, writes)| product.saturating_mul(writes.len() + 1))
    }

    /// Every outcome: for each atom 0, or the place of a write in its list from 1.
    fn all(&self) -> Vec<Vec<usize>> {
        let mut all = vec![Vec::new()];
        for (_, writes) in &self.0 {
            let longer = |picks: Vec<usize>| {
                (0..=writes.len()).map(move |pick| picks.iter().copied().chain([pick]).collect())
            };
            all = all.into_iter().flat_map(longer).collect();
        }
        all
    }

    /// Each write whole, lost, its first or its second half; alone, or with all others.
    fn by_write(&self, writes: usize) -> Vec<Vec<usize>> {
        let latest = |list: &Vec<usize>| list.len();
        let mut outcomes = vec![vec![0; self.0.len()], self.0.iter().map(|(_, list)| latest(list)).collect()];
        for write in 0..writes {
            let own: Vec<usize> = (0..self.0.len()).filter(|atom| self.0[*atom].1.contains(&write)).collect();
            for chosen in [&own[..], &own[..own.len() / 2], &own[own.len() / 2..], &own[..own.len().min(1)]] {
                let place = |atom: usize| {
                    self.0[atom].1.iter().position(|listed| *listed == write).map_or(0, |at| at + 1)
                };
                let alone = |atom| if chosen.contains(&atom) { place(atom) } else { 0 };
                outcomes.push((0..self.0.len()).map(alone).collect());
                // Without these atoms: as if the write had been lost, or overtaken by the ones before it.
                let without = |atom: usize| {
                    if chosen.contains(&atom) { place(atom) - 1 } else { latest(&self.0[atom].1) }
                };
                outcomes.push((0..self.0.len()).map(without).collect());
            }
        }
        outcomes
    }

    /// Some crashes keep nearly all, some nearly nothing, the others a mixture.
    fn random(&self, dice: &mut Dice) -> Vec<usize> {
        let kept_of_8 = dice.roll() % 9;
        let pick = |(_, writes): &(usize, Vec<usize>)| {
            if dice.roll() % 8 < kept_of_8 { 1 + dice.roll() as usize % writes.len() } else { 0 }
        };
        self.0.iter().map(pick).collect()
    }
}

impl State {
    /// Power may be lost at this operation, or was before.
    fn begin(&mut self) -> io::Result<()> {
        self.operations += 1;
        if self.power_lost_at.is_some_and(|at| self.operations >= at) {
            return Err(io::Error::other("power lost"));
        }
        Ok(())
    }

    fn is_off(&self) -> bool {
        self.power_lost_at.is_some_and(|at| self.operations >= at)
    }

    fn put(&mut self, offset: usize, bytes: Vec<u8>) {
        self.current.write(offset, &bytes);
        let end = (offset + bytes.len()) as u64;
        // A block that is written can be read again.
        self.unreadable.retain(|bad| bad.end <= offset as u64 || end <= bad.start);
        self.unsynced.push((offset, bytes));
    }

    fn flip(&mut self, offset: usize) {
        for blocks in [&mut self.current, &mut self.durable] {
            let mut byte = [0];
            blocks.read(offset, &mut byte);
            blocks.write(offset, &[byte[0] ^ 0x10]);
        }
    }

    /// The atoms that differ between what is durable and the writes since.
    fn atoms(&self) -> Atoms {
        let mut atoms: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        let mut durable = [0; ATOM_BYTES];
        for (write, (offset, bytes)) in self.unsynced.iter().enumerate() {
            for (index, atom) in bytes.chunks_exact(ATOM_BYTES).enumerate() {
                let at = offset + index * ATOM_BYTES;
                let open = atoms.entry(at).or_default();
                self.durable.read(at, &mut durable);
                let newest = open.last().map_or(&durable[..], |earlier| {
                    let (offset, bytes) = &self.unsynced[*earlier];
                    &bytes[at - offset..at - offset + ATOM_BYTES]
                });
                if newest != atom {
                    open.push(write);
                }
            }
        }
        Atoms(atoms.into_iter().filter(|(_, writes)| !writes.is_empty()).collect())
    }

    fn outcome(&self, picks: &[usize]) -> SimulatedDisk {
        let mut blocks = self.durable.clone();
        for ((at, writes), pick) in self.atoms().0.iter().zip(picks) {
            if let Some(write) = pick.checked_sub(1) {
                let (offset, bytes) = &self.unsynced[writes[write]];
                blocks.write(*at, &bytes[at - offset..at - offset + ATOM_BYTES]);
            }
        }
        SimulatedDisk::with(self.bytes, blocks)
    }

    /// Does to a write what a bad disk does. Returns where it lands, if anywhere.
    fn mistreat(&mut self, offset: usize, length: usize) -> io::Result<Option<usize>> {
        let Some((faults, mut dice)) = self.faults.take() else { return Ok(Some(offset)) };
        let mut lands = Some(offset);
        let mut outcome = Ok(());
        let blocks = offset / BLOCK_BYTES..(offset + length) / BLOCK_BYTES;
        let needs_space = |block: usize| self.current.0[block].is_none() && !self.allocated.contains(&block);
        if dice.happens(faults.full) && blocks.clone().any(needs_space) {
            self.injected.full += 1;
            outcome = Err(ErrorKind::StorageFull.into());
        } else if dice.happens(faults.dropped_writes) {
            self.injected.dropped_writes += 1;
            lands = None;
        } else if dice.happens(faults.misdirected_writes)
            && offset + length + BLOCK_BYTES <= self.bytes as usize
        {
            self.injected.misdirected_writes += 1;
            lands = Some(offset + BLOCK_BYTES);
        }
        self.injected.stalls += u64::from(dice.happens(faults.stalls));
        self.faults = Some((faults, dice));
        outcome.map(|()| lands)
    }

    /// Makes a block of what was written unreadable.
    fn wear(&mut self, offset: usize, length: usize) {
        let Some((faults, dice)) = &mut self.faults else { return };
        if dice.happens(faults.latent_errors) {
            self.injected.latent_errors += 1;
            let start = offset + dice.roll() as usize % length / BLOCK_BYTES * BLOCK_BYTES;
            self.unreadable.push(start as u64..(start + BLOCK_BYTES) as u64);
        }
    }

    fn rot(&mut self, offset: usize, bytes: &mut [u8]) {
        let Some((faults, dice)) = &mut self.faults else { return };
        if dice.happens(faults.rot) {
            self.injected.rot += 1;
            let at = dice.roll() as usize % bytes.len();
            bytes[at] ^= 1 << (offset % 8);
        }
    }
}

fn check_aligned(offset: u64, length: usize) {
    let aligned = offset.is_multiple_of(BLOCK_BYTES as u64) && length.is_multiple_of(BLOCK_BYTES);
    assert!(aligned, "{length} bytes at {offset} are not whole blocks");
}

impl Disk for SimulatedDisk {
    fn bytes(&self) -> u64 {
        self.state().bytes
    }

    fn read(&mut self, offset: u64, into: &mut Buffer) -> io::Result<usize> {
        check_aligned(offset, into.len());
        let mut state = self.state();
        let end = (offset + into.len() as u64).min(state.bytes);
        let bad = state.unreadable.iter().filter(|bad| bad.start < end && offset < bad.end);
        let first_bad = bad.map(|bad| bad.start).min();
        if first_bad.is_some_and(|first| first <= offset) {
            return Err(io::Error::other("unreadable"));
        }
        let end = first_bad.map_or(end, |first| first.min(end));
        let length = (end.saturating_sub(offset) as usize).min(state.read_bytes_max.unwrap_or(usize::MAX));
        state.traffic.bytes_read += length as u64;
        state.current.read(offset as usize, &mut into[..length]);
        Ok(length)
    }

    fn write(&mut self, offset: u64, bytes: &Buffer) -> io::Result<()> {
        check_aligned(offset, bytes.len());
        let mut state = self.state();
        let was_off = state.is_off();
        let begun = state.begin();
        if was_off {
            return begun;
        }
        if let Some(kind) = state.write_fails {
            return Err(kind.into());
        }
        assert!(offset + bytes.len() as u64 <= state.bytes, "a write behind the end of the disk");
        let mut bytes = bytes.to_vec();
        if let Some(offset) = state.mistreat(offset as usize, bytes.len())? {
            state.rot(offset, &mut bytes);
            state.traffic.bytes_written += bytes.len() as u64;
            // The write at which power is lost may be there in part.
            let length = bytes.len();
            state.put(offset, bytes);
            state.wear(offset, length);
        }
        begun
    }

    fn sync(&mut self) -> io::Result<()> {
        let mut state = self.state();
        state.held += 1;
        let waited = self.released.wait_while(state, |state| state.frozen);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        state.held -= 1;
        state.begin()?;
        if state.sync_fails {
            return Err(io::Error::other("sync failed"));
        }
        state.traffic.syncs += 1;
        state.durable = state.current.clone();
        state.unsynced.clear();
        Ok(())
    }

    fn discard(&mut self, offset: u64, length: u64) -> io::Result<()> {
        self.zero(offset, length)?;
        let blocks = offset as usize / BLOCK_BYTES..(offset + length) as usize / BLOCK_BYTES;
        self.state().allocated.retain(|block| !blocks.contains(block));
        Ok(())
    }

    fn allocate(&mut self, offset: u64, length: u64) -> io::Result<()> {
        let mut state = self.state();
        if state.allocate_fails {
            return Err(ErrorKind::StorageFull.into());
        }
        state.allocated.extend(offset as usize / BLOCK_BYTES..(offset + length) as usize / BLOCK_BYTES);
        Ok(())
    }

    fn zero(&mut self, offset: u64, length: u64) -> io::Result<()> {
        check_aligned(offset, length as usize);
        let mut state = self.state();
        let was_off = state.is_off();
        let begun = state.begin();
        if !was_off {
            state.put(offset as usize, vec![0; length as usize]);
            state.allocated.extend(offset as usize / BLOCK_BYTES..(offset + length) as usize / BLOCK_BYTES);
        }
        begun
    }

    fn traffic(&self) -> Traffic {
        self.state().traffic
    }
}

#[cfg(test)]
mod tests;
