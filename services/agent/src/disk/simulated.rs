//! A disk in memory that loses power on demand, fails, fills up, and lies. For tests alone.
//!
//! What was synced stays; what a loss of power may leave of the rest is decided in [`crash`], what the disk does wrong by
//! itself in [`faults`]. What a medium has lost stays lost over restarts and crashes; settings that a test made do not.
//!
//! Blocks are shared between disks until one is written ([`blocks`]), so that a disk is copied in no time.

use std::{
    io::{self, ErrorKind},
    ops::Range,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
};

use self::{
    blocks::Blocks,
    crash::{OpenAtoms, Write},
    faults::{Injector, NextWrite},
};
use super::{Buffer, Disk, Traffic, buffer::assert_blocks};

mod blocks;
mod crash;
mod faults;
#[cfg(test)]
mod tests;

pub(crate) use faults::{Dice, Faults, Injected};

/// A handle to a disk: the store has one, the test another.
#[derive(Clone)]
pub(crate) struct SimulatedDisk {
    state: Arc<Mutex<State>>,
    released: Arc<Condvar>,
}

#[derive(Default)]
struct State {
    bytes: usize,
    /// What survives a loss of power for certain.
    durable: Blocks,
    /// What a read sees.
    current: Blocks,
    /// Writes since the last sync, in order.
    unsynced: Vec<Write>,
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
    /// Bytes that cannot be read until they are written.
    unreadable: Vec<Range<u64>>,
    /// No read gives more bytes than this.
    read_bytes_max: Option<usize>,
    injector: Injector,
    traffic: Traffic,
}

impl SimulatedDisk {
    pub(crate) fn new(bytes: usize) -> SimulatedDisk {
        SimulatedDisk::with(bytes, Blocks::new(bytes), Vec::new())
    }

    fn with(bytes: usize, blocks: Blocks, unreadable: Vec<Range<u64>>) -> SimulatedDisk {
        let state = State { bytes, durable: blocks.clone(), current: blocks, unreadable, ..State::default() };
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

    /// No space can be taken by [`Disk::allocate`].
    pub(crate) fn fail_allocations(&self) {
        self.state().allocate_fails = true;
    }

    /// Until they are written these bytes cannot be read.
    pub(crate) fn make_unreadable(&self, bytes: Range<u64>) {
        self.state().unreadable.push(bytes);
    }

    pub(crate) fn read_at_most(&self, bytes: usize) {
        self.state().read_bytes_max = Some(bytes);
    }

    /// From now on the disk does what it should not, as often as `faults` says.
    pub(crate) fn misbehave(&self, faults: Faults, seed: u64) {
        let injector = &mut self.state().injector;
        (injector.rates, injector.dice) = (faults, Dice(seed | 1));
    }

    /// From now on it does what it should.
    pub(crate) fn behave(&self) {
        let injector = &mut self.state().injector;
        (injector.rates, injector.next_write) = (Faults::default(), None);
    }

    /// Of the next write nothing lands; the caller is told that all is well.
    pub(crate) fn drop_next_write(&self) {
        self.state().injector.next_write = Some(NextWrite::Dropped);
    }

    /// The next write lands so many bytes further; the caller is told that all is well.
    pub(crate) fn misdirect_next_write(&self, by: usize) {
        assert_blocks(0, by as u64);
        self.state().injector.next_write = Some(NextWrite::Misdirected(by));
    }

    /// Calls `stalled` for each operation that takes long: time is the test's. It must not touch the disk.
    pub(crate) fn on_stall(&self, stalled: impl FnMut() + Send + 'static) {
        self.state().injector.on_stall = Some(Box::new(stalled));
    }

    /// What was injected so far.
    pub(crate) fn injected(&self) -> Injected {
        self.state().injector.injected
    }

    /// Changes bytes under everything, as a medium does that rots.
    pub(crate) fn flip(&self, offset: u64) {
        let (mut state, offset) = (self.state(), offset as usize);
        let State { current, durable, .. } = &mut *state;
        for blocks in [current, durable] {
            let mut byte = [0];
            blocks.read(offset, &mut byte);
            blocks.write(offset, &[byte[0] ^ 0x10]);
        }
    }

    /// The bytes that a read sees.
    pub(crate) fn peek(&self, bytes: Range<u64>) -> Vec<u8> {
        let mut into = vec![0; (bytes.end - bytes.start) as usize];
        self.state().current.read(bytes.start as usize, &mut into);
        into
    }

    /// The disk after a loss of power: one of the outcomes, as the dice say. Dice that roll zeros lose all there is to lose.
    pub(crate) fn after_power_loss(&self, dice: &mut Dice) -> SimulatedDisk {
        let state = self.state();
        let atoms = OpenAtoms::new(&state.durable, &state.unsynced);
        let blocks = atoms.blocks(&state.durable, &atoms.random(dice));
        SimulatedDisk::with(state.bytes, blocks, state.unreadable.clone())
    }

    /// Disks as a loss of power may leave this one, none twice: all of them if there are few, else the telling ones and
    /// `samples` by chance, as [`OpenAtoms::outcomes`] lists them.
    pub(crate) fn crash_outcomes(
        &self,
        dice: &mut Dice,
        samples: usize,
    ) -> impl Iterator<Item = SimulatedDisk> + use<> {
        let state = self.state();
        let atoms = OpenAtoms::new(&state.durable, &state.unsynced);
        let outcomes = atoms.outcomes(dice, samples);
        let (bytes, durable, unreadable) = (state.bytes, state.durable.clone(), state.unreadable.clone());
        outcomes
            .into_iter()
            .map(move |picks| SimulatedDisk::with(bytes, atoms.blocks(&durable, &picks), unreadable.clone()))
    }

    /// The disk as the next process finds it if the machine stays up.
    pub(crate) fn after_restart(&self) -> SimulatedDisk {
        let state = self.state();
        SimulatedDisk::with(state.bytes, state.current.clone(), state.unreadable.clone())
    }
}

impl State {
    fn is_off(&self) -> bool {
        self.power_lost_at.is_some_and(|at| self.operations >= at)
    }

    /// Counts an operation. An error if there is no power, or none any more.
    fn begin(&mut self) -> io::Result<()> {
        self.operations += 1;
        if self.is_off() {
            return Err(io::Error::other("power lost"));
        }
        self.injector.stall();
        Ok(())
    }

    fn put(&mut self, offset: usize, bytes: Vec<u8>) {
        self.current.write(offset, &bytes);
        let (start, end) = (offset as u64, (offset + bytes.len()) as u64);
        let unwritten = |bad: Range<u64>| [bad.start..bad.end.min(start), bad.start.max(end)..bad.end];
        let unreadable = std::mem::take(&mut self.unreadable).into_iter().flat_map(unwritten);
        self.unreadable = unreadable.filter(|bad| !bad.is_empty()).collect();
        self.unsynced.push(Write { offset, bytes });
    }

    fn put_zeros(&mut self, offset: u64, length: u64) -> io::Result<()> {
        assert_blocks(offset, length);
        let was_off = self.is_off();
        let begun = self.begin();
        if !was_off {
            self.put(offset as usize, vec![0; length as usize]);
        }
        begun
    }
}

impl Disk for SimulatedDisk {
    fn bytes(&self) -> u64 {
        self.state().bytes as u64
    }

    fn read(&mut self, offset: u64, into: &mut Buffer) -> io::Result<usize> {
        assert_blocks(offset, into.len() as u64);
        let mut state = self.state();
        state.injector.stall();
        let end = (offset + into.len() as u64).min(state.bytes as u64);
        let bad = state.unreadable.iter().filter(|bad| bad.start < end && offset < bad.end);
        let first_bad = bad.map(|bad| bad.start).min();
        if first_bad.is_some_and(|first| first <= offset) {
            return Err(io::Error::other("unreadable"));
        }
        let end = first_bad.unwrap_or(end);
        let length = (end.saturating_sub(offset) as usize).min(state.read_bytes_max.unwrap_or(usize::MAX));
        state.traffic.bytes_read += length as u64;
        state.current.read(offset as usize, &mut into[..length]);
        Ok(length)
    }

    fn write(&mut self, offset: u64, bytes: &Buffer) -> io::Result<()> {
        assert_blocks(offset, bytes.len() as u64);
        let mut state = self.state();
        let was_off = state.is_off();
        let begun = state.begin();
        if was_off {
            return begun;
        }
        if let Some(kind) = state.write_fails {
            return Err(kind.into());
        }
        let (start, length, end) = (offset as usize, bytes.len(), state.bytes);
        assert!(start + length <= end, "a write behind the end of the disk");
        let lacks_space = state.current.lacks_space(start, length);
        let landing = state.injector.landing(start..start + length, end, lacks_space)?;
        state.traffic.bytes_written += length as u64;
        if let Some(start) = landing {
            let mut bytes = bytes.to_vec();
            state.injector.rot(&mut bytes);
            // The write at which power is lost may be there in part.
            state.put(start, bytes);
            let bad = state.injector.latent_error(start..start + length);
            state.unreadable.extend(bad);
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
        let State { durable, current, unsynced, .. } = &mut *state;
        for Write { offset, bytes } in unsynced.drain(..) {
            durable.share(current, offset, bytes.len());
        }
        Ok(())
    }

    fn discard(&mut self, offset: u64, length: u64) -> io::Result<()> {
        let mut state = self.state();
        state.put_zeros(offset, length)?;
        state.current.give_back(offset as usize, length as usize);
        Ok(())
    }

    fn allocate(&mut self, offset: u64, length: u64) -> io::Result<()> {
        assert_blocks(offset, length);
        let mut state = self.state();
        let lacks_space = state.current.lacks_space(offset as usize, length as usize);
        if state.allocate_fails || state.injector.finds_no_space(lacks_space) {
            return Err(ErrorKind::StorageFull.into());
        }
        // A file system keeps its own journal: space that was taken is not lost with the power.
        let State { durable, current, .. } = &mut *state;
        for blocks in [durable, current] {
            blocks.take_space(offset as usize, length as usize);
        }
        Ok(())
    }

    fn zero(&mut self, offset: u64, length: u64) -> io::Result<()> {
        self.state().put_zeros(offset, length)
    }

    fn traffic(&self) -> Traffic {
        self.state().traffic
    }
}
