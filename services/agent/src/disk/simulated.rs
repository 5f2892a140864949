//! A disk in memory that loses power on demand: what was synced stays, of the rest any pieces of 512 bytes may be there.
//! It also fails, fills up, and reads short, as a test asks. For tests alone.

use std::{
    io::{self, ErrorKind, IoSlice},
    ops::Range,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
};

use super::{Disk, Traffic};

/// What a disk writes whole or not at all.
const ATOM_BYTES: usize = 512;

/// A source of bits that is the same in each run of a test.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    /// The next of an xorshift sequence.
    pub(crate) fn roll(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// A handle to a disk: the store has one, the test another.
#[derive(Clone)]
pub(crate) struct SimulatedDisk {
    state: Arc<Mutex<State>>,
    released: Arc<Condvar>,
}

#[derive(Default)]
struct State {
    /// What survives a loss of power for certain.
    durable: Vec<u8>,
    /// What a read sees.
    current: Vec<u8>,
    /// Writes since the last sync, in order.
    unsynced: Vec<(usize, Vec<u8>)>,
    /// Writes, syncs and punches so far.
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
    traffic: Traffic,
}

impl SimulatedDisk {
    pub(crate) fn new(bytes: usize) -> SimulatedDisk {
        SimulatedDisk::with(vec![0; bytes])
    }

    fn with(durable: Vec<u8>) -> SimulatedDisk {
        let current = durable.clone();
        let state = Arc::new(Mutex::new(State { durable, current, ..State::default() }));
        SimulatedDisk { state, released: Arc::default() }
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

    /// Changes bytes under everything, as a medium does that rots.
    pub(crate) fn flip(&self, offset: u64) {
        let (mut state, offset) = (self.state(), offset as usize);
        state.current[offset] ^= 0x10;
        state.durable[offset] ^= 0x10;
    }

    /// The bytes that a read sees.
    pub(crate) fn peek(&self, bytes: Range<u64>) -> Vec<u8> {
        self.state().current[bytes.start as usize..bytes.end as usize].to_vec()
    }

    /// The disk after a loss of power: of each unsynced write, each piece is there if the dice say so.
    pub(crate) fn after_power_loss(&self, dice: &mut Dice) -> SimulatedDisk {
        let state = self.state();
        let mut durable = state.durable.clone();
        // Some crashes keep nearly all, some nearly nothing, the others a mixture.
        let kept_of_8 = dice.roll() % 9;
        for (offset, bytes) in &state.unsynced {
            for (index, piece) in bytes.chunks(ATOM_BYTES).enumerate() {
                if dice.roll() % 8 < kept_of_8 {
                    let start = offset + index * ATOM_BYTES;
                    durable[start..start + piece.len()].copy_from_slice(piece);
                }
            }
        }
        SimulatedDisk::with(durable)
    }

    /// The disk as the next process finds it if the machine stays up.
    pub(crate) fn after_restart(&self) -> SimulatedDisk {
        SimulatedDisk::with(self.state().current.clone())
    }
}

impl State {
    fn begin(&mut self) -> io::Result<()> {
        self.operations += 1;
        if self.power_lost_at.is_some_and(|at| self.operations >= at) {
            return Err(io::Error::other("power lost"));
        }
        Ok(())
    }

    fn put(&mut self, offset: usize, bytes: Vec<u8>) {
        self.current[offset..offset + bytes.len()].copy_from_slice(&bytes);
        self.unsynced.push((offset, bytes));
    }
}

impl Disk for SimulatedDisk {
    fn bytes(&self) -> u64 {
        self.state().current.len() as u64
    }

    fn read(&mut self, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        let mut state = self.state();
        let end = offset + length as u64;
        if state.unreadable.iter().any(|bad| bad.start < end && offset < bad.end) {
            return Err(io::Error::other("unreadable"));
        }
        let length = length.min(state.read_bytes_max.unwrap_or(length));
        state.traffic.bytes_read += length as u64;
        let end = (offset as usize + length).min(state.current.len());
        Ok(state.current[offset as usize..end].to_vec())
    }

    fn write(&mut self, offset: u64, pieces: &mut [IoSlice<'_>]) -> io::Result<()> {
        let mut state = self.state();
        let bytes: Vec<u8> = pieces.iter().flat_map(|piece| piece.iter().copied()).collect();
        let running = state.power_lost_at.is_none_or(|at| state.operations < at);
        let begun = state.begin();
        if begun.is_err() && !running {
            return begun;
        }
        if let Some(kind) = state.write_fails {
            return Err(kind.into());
        }
        state.traffic.bytes_written += bytes.len() as u64;
        // The write at which power is lost may be there in part.
        state.put(offset as usize, bytes);
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
        let State { durable, unsynced, .. } = &mut *state;
        for (offset, bytes) in unsynced.drain(..) {
            durable[offset..offset + bytes.len()].copy_from_slice(&bytes);
        }
        Ok(())
    }

    fn punch(&mut self, offset: u64, length: u64) -> io::Result<()> {
        let mut state = self.state();
        state.begin()?;
        state.put(offset as usize, vec![0; length as usize]);
        Ok(())
    }

    fn allocate(&mut self, _offset: u64, _length: u64) -> io::Result<()> {
        if self.state().allocate_fails { Err(ErrorKind::StorageFull.into()) } else { Ok(()) }
    }

    fn data_from(&mut self, offset: u64) -> io::Result<Option<u64>> {
        let state = self.state();
        let blocks = state.current[offset as usize..].chunks(4096);
        let found = blocks.enumerate().find(|(_, block)| **block != [0; 4096][..block.len()]);
        Ok(found.map(|(index, _)| offset + index as u64 * 4096))
    }

    fn traffic(&self) -> Traffic {
        self.state().traffic
    }
}
