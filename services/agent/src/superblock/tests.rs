//! Superblocks: what is written is read back, the newer copy counts, and no bytes make decoding panic.

use proptest::{collection::vec, prelude::*};

use super::*;
use crate::{
    disk::simulated::SimulatedDisk,
    label::{ADDRESS_BYTES_MAX, LabelMember, MEMBERS_MAX},
};

const DISK_BYTES: usize = 1024 * 1024;

fn labels() -> impl Strategy<Value = Label> {
    let member = (any::<u128>(), "[a-z0-9.:]{0,40}")
        .prop_map(|(id, address)| LabelMember { disk_id: Uuid::from_u128(id), address });
    let shape = (any::<u32>(), any::<u32>());
    (any::<u128>(), any::<u64>(), any::<u32>(), any::<u32>(), any::<u64>(), shape, vec(member, 0..20))
        .prop_map(
            |(array, revision, member, unit_bytes, slice_bytes, (shards_max, data_shards_max), members)| {
                let array_id = Uuid::from_u128(array);
                Label {
                    array_id,
                    revision,
                    member,
                    unit_bytes,
                    slice_bytes,
                    shards_max,
                    data_shards_max,
                    members,
                }
            },
        )
}

fn superblocks() -> impl Strategy<Value = Superblock> {
    (0..1_u64 << 62, any::<u128>(), any::<(u64, u64)>(), proptest::option::of(labels())).prop_map(
        |(generation, id, (number, incarnation), label)| Superblock {
            generation,
            disk_id: Uuid::from_u128(id),
            disk_bytes: DISK_BYTES as u64,
            epoch: Epoch { number, incarnation },
            label,
        },
    )
}

proptest! {
    #[test]
    fn a_superblock_comes_back(superblock in superblocks()) {
        let mut disk = SimulatedDisk::new(DISK_BYTES);
        superblock.write(&mut disk).unwrap();
        prop_assert_eq!(Superblock::read(&mut disk).unwrap(), (superblock, true));
    }

    #[test]
    fn a_flipped_bit_is_damage(superblock in superblocks(), place in 8_usize..SUPERBLOCK_BYTES as usize) {
        let mut bytes = superblock.encode();
        bytes[place] ^= 4;
        prop_assert_eq!(Superblock::decode(&bytes), Copy::Damaged);
    }

    #[test]
    fn no_bytes_make_decoding_panic(mut bytes in vec(any::<u8>(), 0..400), whole: bool) {
        if whole && bytes.len() > 64 {
            // Past the checksum: what only the fields themselves can refuse.
            bytes.resize(SUPERBLOCK_BYTES as usize, 0);
            bytes[..8].copy_from_slice(&MAGIC);
            bytes[12..16].copy_from_slice(&FORMAT.to_le_bytes());
            bytes[64] %= 2;
            let crc = crc32c::crc32c(&bytes[CRC_END..]);
            bytes[8..CRC_END].copy_from_slice(&crc.to_le_bytes());
        }
        let _ = Superblock::decode(&bytes);
    }
}

#[test]
fn the_newer_of_two_copies_counts() {
    let mut disk = SimulatedDisk::new(DISK_BYTES);
    let old = Superblock::blank(Uuid::from_u128(3), DISK_BYTES as u64);
    let new = Superblock { generation: 2, epoch: Epoch { number: 5, incarnation: 1 }, ..old.clone() };
    for newer in SUPERBLOCK_OFFSETS {
        old.write(&mut disk).unwrap();
        disk.write(newer, &new.encode()).unwrap();
        assert_eq!(Superblock::read(&mut disk).unwrap(), (new.clone(), false));
    }
}

#[test]
fn damage_to_one_copy_takes_nothing_back() {
    let mut disk = SimulatedDisk::new(DISK_BYTES);
    let old = Superblock::blank(Uuid::from_u128(3), DISK_BYTES as u64);
    old.write(&mut disk).unwrap();
    let new = Superblock { generation: 2, epoch: Epoch { number: 5, incarnation: 1 }, ..old };
    new.write(&mut disk).unwrap();
    for damaged in SUPERBLOCK_OFFSETS {
        disk.flip(damaged + 50);
        assert_eq!(Superblock::read(&mut disk).unwrap(), (new.clone(), false));
        disk.make_unreadable(damaged..damaged + 1);
        assert_eq!(Superblock::read(&mut disk).unwrap(), (new.clone(), false));
        disk = SimulatedDisk::new(DISK_BYTES);
        new.write(&mut disk).unwrap();
    }
}

#[test]
fn the_largest_label_fits() {
    let member = LabelMember { disk_id: Uuid::nil(), address: "a".repeat(ADDRESS_BYTES_MAX) };
    let label = Label {
        array_id: Uuid::nil(),
        revision: 1,
        member: 0,
        unit_bytes: 4096,
        slice_bytes: 4096,
        shards_max: 24,
        data_shards_max: 16,
        members: vec![member; MEMBERS_MAX],
    };
    assert_eq!(label.check(Uuid::nil()), Ok(()));
    let superblock = Superblock { label: Some(label), ..Superblock::blank(Uuid::nil(), 0) };
    assert_eq!(Superblock::decode(&superblock.encode()), Copy::Whole(superblock));
}

#[test]
fn no_format_older_than_the_first_is_believed() {
    let mut bytes = Superblock::blank(Uuid::from_u128(3), 0).encode();
    bytes[12..16].copy_from_slice(&0_u32.to_le_bytes());
    seal(&mut bytes);
    assert_eq!(Superblock::decode(&bytes), Copy::Damaged);
}

#[test]
fn a_generation_that_could_not_be_counted_on_from_is_damage() {
    for (generation, is_whole) in [((1 << 62) - 1, true), (1 << 62, false), (u64::MAX, false)] {
        let superblock = Superblock { generation, ..Superblock::blank(Uuid::from_u128(3), 0) };
        let decoded = Superblock::decode(&superblock.encode());
        assert_eq!(decoded, if is_whole { Copy::Whole(superblock) } else { Copy::Damaged });
    }
}
