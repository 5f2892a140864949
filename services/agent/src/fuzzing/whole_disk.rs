//! A disk in use whose bytes were changed, with every checksum made right again: it is refused, or it can be used. The
//! decoders let through only what the store can go on with; that is what this looks at.

use std::{ops::Range, sync::LazyLock};

use bytes::Bytes;
use stripeset_proto::convert::Identity;
use stripeset_stripe::{
    Epoch, SECTOR_BYTES, Version, checksum,
    geometry::{ChunkIndex, Row, Shard},
    label::{Label, LabelMember, MemberSet, Revision},
};
use uuid::Uuid;

use super::DISK;
use crate::{
    disk::{BLOCK_BYTES, Buffer, Disk, simulated::SimulatedDisk},
    layout::{JOURNAL_HEAD_OFFSETS, Layout, RING_OFFSET, SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS},
    operation::{Entry, Operation, Prepare, Read, Rebuild, Run, UnitVersion},
    record::{self, Summary},
    store::{
        OpenError, Store,
        inspect::Wanted,
        journal::{self, JournalError},
        seal_directory_page,
    },
    superblock,
};

const EPOCH: Epoch = Epoch { number: 1, incarnation: 7 };

/// Units that are written, and looked at later.
const UNITS: u64 = 12;

/// A disk in use, and what of it can be changed.
struct Template {
    disk: SimulatedDisk,
    layout: Layout,
    /// One behind the other they are what an edit's place counts in.
    places: Vec<Range<u64>>,
}

static TEMPLATE: LazyLock<Option<Template>> = LazyLock::new(Template::new);

/// Opens a disk with changed bytes, and uses it. After the first byte the input is edits: place (2 bytes), number of bytes
/// (1 byte), bytes. Returns whether it could be opened.
pub fn whole_disk(input: &[u8]) -> bool {
    let (Some(template), Some((mode, mut edits))) = (&*TEMPLATE, input.split_first()) else { return false };
    let disk = template.disk.after_restart();
    while let [low, high, length, rest @ ..] = edits {
        let (bytes, others) = rest.split_at(usize::from(*length).min(rest.len()));
        template.edit(&disk, u64::from(u16::from_le_bytes([*low, *high])), bytes);
        edits = others;
    }
    if mode & 1 == 1 {
        template.seal(&disk);
    }
    let Ok(mut store) = Store::open(Box::new(disk.clone())) else { return false };
    use_all(&mut store);
    let closed = store.close(|| true);
    assert!(closed.is_ok(), "the disk does nothing wrong by itself: {closed:?}");
    drop(store);
    let again = Store::open(Box::new(disk));
    // Changed bytes may number a group so that it follows one that is written only now; no disk has such a group.
    let from_the_future = matches!(&again, Err(OpenError::Journal(JournalError::Damaged { .. })));
    assert!(again.is_ok() || from_the_future, "what was opened and closed opens again: {:?}", again.err());
    true
}

impl Template {
    fn new() -> Option<Template> {
        let disk = SimulatedDisk::new(2 * 1024 * 1024);
        Store::format(&mut disk.clone(), DISK).ok()?;
        let mut store = Store::open(Box::new(disk.clone())).ok()?;
        let label = Label {
            array_id: Uuid::from_u128(5),
            revision: Revision { number: 1, ..Revision::default() },
            unit_bytes: 4 * SECTOR_BYTES as u32,
            slice_bytes: 4 * SECTOR_BYTES as u64,
            shards_max: 3,
            data_shards_max: 2,
            members: vec![LabelMember { disk_id: DISK, address: "a:1".to_owned(), out: None }],
            may_follow: vec![MemberSet(1)],
        };
        store.join(DISK, label).ok()?;
        store.fence(EPOCH, Uuid::nil()).ok()?;
        let mut sequence = 1;
        let mut ask = |store: &mut Store, operation: fn(u64, u64) -> Operation, unit: u64| {
            sequence += 1;
            store.carry_out(operation(unit, sequence)).ok()?;
            if matches!(operation(unit, sequence), Operation::Prepare(_)) && unit % 4 != 3 {
                let writes = vec![UnitVersion { unit, version: version(sequence) }];
                store.carry_out(Operation::Commit(writes)).ok()?;
            }
            store.sync().ok()
        };
        for unit in 0..UNITS / 2 {
            ask(&mut store, fresh, unit)?;
        }
        // What is committed goes to the table; what comes now stays in the journal.
        store.close(|| true).ok()?;
        for unit in UNITS / 2..UNITS {
            ask(&mut store, fresh, unit)?;
        }
        let committed = |store: &mut Store, unit| store.view(unit).ok().map(|view| view.committed);
        for unit in [0, 1, 8] {
            let base = committed(&mut store, unit)?;
            let over = Operation::Prepare(Prepare { entry: Entry::Over(base), ..prepare(unit, 60 + unit) });
            store.carry_out(over).ok()?;
        }
        ask(&mut store, |unit, sequence| Operation::Abort(one(unit, sequence + 50)), 1)?;
        ask(&mut store, |unit, sequence| Operation::Discard(one(unit, sequence + 50)), 4)?;
        ask(&mut store, |unit, sequence| rebuild(unit, sequence + 50), 5)?;
        let layout = store.layout()?;
        let block = BLOCK_BYTES as u64;
        let table = layout.page_offset(0);
        let places = [
            SUPERBLOCK_OFFSETS.map(|offset| offset..offset + 256),
            JOURNAL_HEAD_OFFSETS.map(|offset| offset..offset + 96),
            [
                layout.directory_offset()..layout.directory_offset() + 128,
                table..table + 2 * layout.page_bytes() as u64,
            ],
        ];
        let groups = (RING_OFFSET..RING_OFFSET + layout.ring_bytes())
            .step_by(BLOCK_BYTES)
            .map(|offset| offset..offset + block)
            .filter(|range| disk.peek(range.clone()).starts_with(b"ssgroup"))
            .map(|range| range.start..range.start + 1200);
        let places = places.into_iter().flatten().chain(groups).collect();
        Some(Template { disk: disk.after_restart(), layout, places })
    }

    /// Puts bytes to a place, as many as there is room for in its range.
    fn edit(&self, disk: &SimulatedDisk, place: u64, bytes: &[u8]) {
        let total: u64 = self.places.iter().map(|range| range.end - range.start).sum();
        let mut at = place % total;
        for range in &self.places {
            let length = range.end - range.start;
            if at < length {
                let room = bytes.len().min((length - at) as usize);
                return overwrite(disk, range.start + at, &bytes[..room]);
            }
            at -= length;
        }
    }

    /// Makes all checksums right.
    fn seal(&self, disk: &SimulatedDisk) {
        let block = BLOCK_BYTES as u64;
        for offset in SUPERBLOCK_OFFSETS {
            change(disk, offset..offset + SUPERBLOCK_BYTES, superblock::seal);
        }
        for offset in JOURNAL_HEAD_OFFSETS {
            change(disk, offset..offset + block, journal::seal_head);
        }
        let layout = &self.layout;
        let directory = layout.directory_offset();
        change(disk, directory..directory + block, seal_directory_page);
        for page in 0..2 {
            let start = layout.page_offset(page);
            change(disk, start..start + layout.page_bytes() as u64, |bytes| {
                for place in bytes.chunks_exact_mut(layout.place_bytes()) {
                    // Zeros are a record too.
                    if place.iter().any(|byte| *byte != 0) {
                        record::seal(place, DISK);
                    }
                }
            });
        }
        let ring_end = RING_OFFSET + layout.ring_bytes();
        for range in self.places.iter().filter(|range| (RING_OFFSET..ring_end).contains(&range.start)) {
            let end = ring_end.min(range.start + 16 * block);
            change(disk, range.start..end, |bytes| journal::seal_group(bytes, DISK));
        }
    }
}

fn overwrite(disk: &SimulatedDisk, offset: u64, bytes: &[u8]) {
    let block = BLOCK_BYTES as u64;
    let start = offset - offset % block;
    let end = (offset + bytes.len() as u64).next_multiple_of(block);
    let at = (offset - start) as usize;
    change(disk, start..end, |old| old[at..at + bytes.len()].copy_from_slice(bytes));
}

/// Changes blocks of the disk.
fn change(disk: &SimulatedDisk, blocks: Range<u64>, change: impl FnOnce(&mut [u8])) {
    let mut buffer = Buffer::zeroed((blocks.end - blocks.start) as usize);
    let mut disk = disk.clone();
    let read = disk.read(blocks.start, &mut buffer);
    change(&mut buffer);
    let written = disk.write(blocks.start, &buffer);
    assert!(read.is_ok() && written.is_ok(), "the disk does nothing wrong by itself");
}

fn version(sequence: u64) -> Version {
    Version { epoch: EPOCH, sequence }
}

fn one(unit: u64, sequence: u64) -> Vec<UnitVersion> {
    vec![UnitVersion { unit, version: version(sequence) }]
}

fn identity(unit: u64) -> Identity {
    Identity { chunk: ChunkIndex(3), incarnation: version(1), row: Row(unit as u32), shard: Shard(2) }
}

fn runs() -> Vec<Run> {
    let data = Bytes::from_static(&[7; 2 * SECTOR_BYTES]);
    vec![Run { first_sector: 1, checksums: checksum::of_sectors(&data), data }]
}

fn prepare(unit: u64, sequence: u64) -> Prepare {
    let summary = Summary {
        vector: vec![version(sequence); 3],
        written: stripeset_stripe::bits::Bits::ones(8),
        checksums: vec![3; 8],
    };
    Prepare {
        unit,
        identity: identity(unit),
        version: version(sequence),
        entry: Entry::Fresh,
        participants: 7,
        runs: runs(),
        summary: unit.is_multiple_of(2).then_some(summary),
    }
}

fn fresh(unit: u64, sequence: u64) -> Operation {
    Operation::Prepare(prepare(unit, sequence))
}

fn rebuild(unit: u64, sequence: u64) -> Operation {
    Operation::Rebuild(Rebuild {
        unit,
        identity: identity(unit),
        token: version(sequence),
        version: version(sequence),
        runs: runs(),
        lost: Bytes::new(),
        summary: None,
    })
}

/// Asks everything of every unit. What the answers are is not looked at: nobody knows what the bytes say.
fn use_all(store: &mut Store) {
    let epoch = store.superblock().epoch;
    let _ = store.fence(epoch, Uuid::nil());
    let mut sequence = 1 << 40;
    let Some(layout) = store.layout() else { return };
    for unit in 0..UNITS.min(layout.units()) {
        let Ok(view) = store.view(unit) else { continue };
        let read = Read {
            unit,
            identity: view.identity,
            version: view.committed,
            first_sector: 0,
            sectors: layout.unit_sectors(),
            summary: true,
        };
        let _ = store.carry_out(Operation::Read(read));
        let _ = store.carry_out(Operation::Commit(vec![UnitVersion { unit, version: view.pending }]));
        for entry in [Entry::Over(view.committed), Entry::Fresh] {
            sequence += 1;
            let version = Version { epoch, sequence };
            let prepare = Prepare { entry, version, identity: view.identity, ..prepare(unit, sequence) };
            let _ = store.carry_out(Operation::Prepare(prepare));
            if sequence % 3 > 0 {
                let _ = store.carry_out(Operation::Commit(vec![UnitVersion { unit, version }]));
            }
            let _ = store.sync();
        }
    }
    let _ = (store.pending(), store.used_bytes());
    let mut first = Some(0);
    while let Some(unit) = first {
        first = store.find(unit, Wanted::Holding).ok().and_then(|(_, next)| next);
    }
}
