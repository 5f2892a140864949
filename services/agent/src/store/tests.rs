//! Tests of the store on a simulated disk. Here: the rig that the files below share.
//!
//! Sectors are told apart by the one byte that fills them. Units have four sectors, so that a unit is quickly named.

use bytes::Bytes;
use stripeset_proto::convert::Identity;
use stripeset_stripe::{
    SECTOR_BYTES,
    geometry::{ChunkIndex, Row, Shard},
    label::{LabelMember, MemberSet, Revision},
};

use super::*;
use crate::{
    disk::{
        Buffer,
        simulated::{Dice, SimulatedDisk},
    },
    operation::{Entry, Prepare, Read, Rebuild, Run, UnitVersion},
    record::Summary,
};

mod crash;
mod damage;
mod find;
mod histories;
mod lies;
mod model;
mod restart;
mod rules;
mod tamper;

const UNIT_BYTES: u32 = 16 * 1024;
const SECTORS: usize = UNIT_BYTES as usize / SECTOR_BYTES;
const DISK_BYTES: usize = 2 * 1024 * 1024;

/// Name of the state folder that fences.
const FOLDER: Uuid = Uuid::from_u128(0xf01d);

/// What a read says of a sector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Sector {
    NeverWritten,
    /// Filled with this byte.
    Fill(u8),
    Bad,
}

use Sector::{Bad, Fill, NeverWritten};

fn epoch() -> Epoch {
    Epoch { number: 1, incarnation: 7 }
}

/// A version of [`epoch`]; 0 is none.
fn v(sequence: u64) -> Version {
    if sequence == 0 { Version::NONE } else { Version { epoch: epoch(), sequence } }
}

fn identity(row: u32) -> Identity {
    Identity { chunk: ChunkIndex(3), incarnation: v(1), row: Row(row), shard: Shard(2) }
}

/// Sectors from `first` on, each filled with one of the bytes given.
fn run(first_sector: usize, fills: &[u8]) -> Run {
    let data: Vec<u8> = fills.iter().flat_map(|fill| [*fill; SECTOR_BYTES]).collect();
    Run { first_sector, checksums: stripeset_stripe::checksum::of_sectors(&data), data: data.into() }
}

fn fresh(unit: u64, version: u64, runs: Vec<Run>) -> Operation {
    Operation::Prepare(Prepare {
        unit,
        identity: identity(unit as u32),
        version: v(version),
        entry: Entry::Fresh,
        participants: 0b10100,
        runs,
        summary: None,
    })
}

fn over(unit: u64, version: u64, base: u64, runs: Vec<Run>) -> Operation {
    let Operation::Prepare(prepare) = fresh(unit, version, runs) else { unreachable!() };
    Operation::Prepare(Prepare { entry: Entry::Over(v(base)), ..prepare })
}

fn writes(unit: u64, version: u64) -> Vec<UnitVersion> {
    vec![UnitVersion { unit, version: v(version) }]
}

fn commit(unit: u64, version: u64) -> Operation {
    Operation::Commit(writes(unit, version))
}

fn abort(unit: u64, version: u64) -> Operation {
    Operation::Abort(writes(unit, version))
}

fn discard(unit: u64, version: u64) -> Operation {
    Operation::Discard(writes(unit, version))
}

fn rebuild(unit: u64, token: u64, version: u64, runs: Vec<Run>, lost: &'static [u8]) -> Operation {
    let lost = Bytes::from_static(lost);
    let (identity, token, version) = (identity(unit as u32), v(token), v(version));
    Operation::Rebuild(Rebuild { unit, identity, token, version, runs, lost, summary: None })
}

fn read_of(unit: u64, version: u64, first_sector: usize, sectors: usize) -> Read {
    let identity = identity(unit as u32);
    Read { unit, identity, version: v(version), first_sector, sectors, summary: true }
}

fn label(disk_id: Uuid) -> Label {
    Label {
        array_id: Uuid::from_u128(5),
        revision: Revision { number: 1, ..Revision::default() },
        unit_bytes: UNIT_BYTES,
        slice_bytes: u64::from(UNIT_BYTES),
        shards_max: 3,
        data_shards_max: 2,
        members: vec![LabelMember { disk_id, address: "a:1".to_owned(), out: None }],
        may_follow: vec![MemberSet(1)],
    }
}

/// An open store, and the disk under it.
struct Rig {
    disk: SimulatedDisk,
    store: Store,
}

impl Rig {
    /// A disk that has joined, and is fenced for [`epoch`].
    fn new() -> Rig {
        Rig::sized(DISK_BYTES)
    }

    /// The same, with a disk of this length.
    fn sized(disk_bytes: usize) -> Rig {
        let disk = SimulatedDisk::new(disk_bytes);
        let disk_id = Uuid::from_u128(77);
        Store::format(&mut disk.clone(), disk_id).unwrap();
        let mut rig = Rig::open(disk);
        assert!(rig.store.join(disk_id, label(disk_id)).unwrap() >= 8);
        rig.store.fence(epoch(), FOLDER).unwrap();
        rig
    }

    fn open(disk: SimulatedDisk) -> Rig {
        let store = Store::open(Box::new(disk.clone())).unwrap();
        Rig { disk, store }
    }

    /// With a store that is broken in this way.
    fn open_weak(disk: SimulatedDisk, weakness: Option<Weak>) -> Result<Rig, OpenError> {
        let mut store = Store::open_superblock(Box::new(disk.clone()))?;
        store.weakness = weakness;
        if let Some(layout) = store.layout {
            store.replay(layout)?;
        }
        Ok(Rig { disk, store })
    }

    /// The process ends without a word, the machine stays up.
    fn restart(&mut self) {
        *self = Rig::open(self.disk.after_restart());
    }

    /// Power is lost; nothing unsynced survives.
    fn lose_power(&mut self) {
        // With a zero state the dice roll zeros for ever.
        *self = Rig::open(self.disk.after_power_loss(&mut Dice(0)));
    }

    /// Carries out an operation as a group of its own.
    fn ask(&mut self, operation: Operation) -> Result<Outcome, Refusal> {
        let enters = operation.enters();
        let outcome = self.store.carry_out(operation);
        let full = self.store.sync()?;
        if enters.is_some_and(|unit| full.contains(&unit)) { Err(Refusal::Full) } else { outcome }
    }

    /// Puts everything that is committed home.
    fn apply(&mut self) {
        self.store.close(|| true).unwrap();
    }

    /// Where the newest group of the journal is on the disk.
    fn last_group(&mut self) -> std::ops::Range<u64> {
        self.store.journal.last_group()
    }

    /// The same, and it has to be done.
    fn done(&mut self, operation: Operation) {
        let asked = format!("{operation:?}");
        let outcome = self.ask(operation);
        assert!(outcome.is_ok(), "{asked:.200}: {outcome:?}");
    }

    /// A unit with `fills` committed at `version`.
    fn committed(&mut self, unit: u64, version: u64, fills: &[u8]) {
        self.done(fresh(unit, version, vec![run(0, fills)]));
        self.done(commit(unit, version));
    }

    /// What a read of the whole unit gives: its version, and what each sector is.
    fn read(&mut self, unit: u64, version: u64) -> Result<(u64, Vec<Sector>), Refusal> {
        let outcome = self.store.read(&read_of(unit, version, 0, SECTORS))?;
        Ok((outcome.version.sequence, sectors(&outcome)))
    }

    fn floor(&mut self, unit: u64) -> u64 {
        self.store.view(unit).unwrap().floor.sequence
    }

    fn pending(&mut self) -> Vec<(u64, u64, bool)> {
        let listed = self.store.fence(epoch(), FOLDER).unwrap();
        listed.iter().map(|write| (write.unit, write.version.sequence, write.fresh)).collect()
    }

    fn layout(&self) -> Layout {
        self.store.layout().unwrap()
    }
}

/// What each sector of an answer is. Checks that zeros stand for what has no bytes, and that bytes fit their checksums.
fn sectors(outcome: &crate::operation::ReadOutcome) -> Vec<Sector> {
    assert_eq!(outcome.data.len(), outcome.checksums.len() * SECTOR_BYTES);
    let sector = |(index, bytes): (usize, &[u8])| {
        let (written, bad) = (outcome.written.get(index), outcome.bad.get(index));
        let fill = bytes[0];
        assert!(*bytes == [fill; SECTOR_BYTES], "one sector is one byte everywhere");
        if bad || !written {
            assert_eq!(fill, 0);
        } else {
            assert_eq!(outcome.checksums[index], stripeset_stripe::checksum::of_sector(bytes));
        }
        match (bad, written) {
            (true, _) => Bad,
            (false, false) => NeverWritten,
            (false, true) => Fill(fill),
        }
    };
    outcome.data.chunks_exact(SECTOR_BYTES).enumerate().map(sector).collect()
}

/// Takes a copy of a range now, to put it back later: what was written in between was lost.
struct Before(u64, Vec<u8>);

impl Before {
    fn of(rig: &Rig, range: std::ops::Range<u64>) -> Before {
        Before(range.start, rig.disk.peek(range))
    }

    fn put_back(self, rig: &mut Rig) {
        put(rig, self.0, &self.1);
    }
}

/// Writes bytes under the store.
fn put(rig: &Rig, offset: u64, bytes: &[u8]) {
    let mut buffer = Buffer::zeroed(bytes.len());
    buffer.copy_from_slice(bytes);
    rig.disk.clone().write(offset, &buffer).unwrap();
}

/// A summary as a parity shard of a stripe with two data shards has it.
fn summary(version: u64) -> Summary {
    Summary {
        vector: vec![v(version); 3],
        written: Bits::ones(2 * SECTORS),
        checksums: (0..2 * SECTORS as u32).collect(),
    }
}
