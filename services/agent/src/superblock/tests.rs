//! Superblocks: what is written is read back, the newer copy counts, and no bytes make decoding panic.

use proptest::{collection::vec, prelude::*};

use stripeset_stripe::{
    Version,
    geometry::{ChunkIndex, Row, StripeAddress},
    label::{LabelMember, MemberSet, Out, Revision},
};

use super::*;
use crate::{
    disk::simulated::SimulatedDisk,
    label::{ADDRESS_BYTES_MAX, MAY_FOLLOW_MAX, MEMBERS_MAX, REASON_BYTES_MAX},
};

const DISK_BYTES: usize = 1024 * 1024;

fn versions() -> impl Strategy<Value = Version> {
    any::<(u64, u64, u64)>().prop_map(|(number, incarnation, sequence)| Version {
        epoch: Epoch { number, incarnation },
        sequence,
    })
}

fn members() -> impl Strategy<Value = LabelMember> {
    let cursor = any::<(u64, u32)>()
        .prop_map(|(chunk, row)| StripeAddress { chunk: ChunkIndex(chunk), row: Row(row) });
    let out = (versions(), cursor, "[a-z ]{0,30}").prop_map(|(since, cursor, reason)| Out {
        since,
        cursor,
        reason,
    });
    (any::<u128>(), "[a-z0-9.:]{0,40}", proptest::option::of(out))
        .prop_map(|(id, address, out)| LabelMember { disk_id: Uuid::from_u128(id), address, out })
}

fn labels() -> impl Strategy<Value = Label> {
    let lengths = any::<(u32, u64, u32, u32)>();
    let may_follow = vec(any::<u128>().prop_map(MemberSet), 0..5);
    (any::<u128>(), versions(), lengths, vec(members(), 0..20), may_follow).prop_map(
        |(array, revision, lengths, members, may_follow)| {
            let (unit_bytes, slice_bytes, shards_max, data_shards_max) = lengths;
            Label {
                array_id: Uuid::from_u128(array),
                revision: Revision { epoch: revision.epoch, number: revision.sequence },
                unit_bytes,
                slice_bytes,
                shards_max,
                data_shards_max,
                members,
                may_follow,
            }
        },
    )
}

fn superblocks() -> impl Strategy<Value = Superblock> {
    let fenced_by = vec(any::<u128>().prop_map(Uuid::from_u128), 0..FENCERS_MAX);
    (0..1_u64 << 62, any::<u128>(), any::<(u64, u64)>(), proptest::option::of(labels()), fenced_by).prop_map(
        |(generation, id, (number, incarnation), label, fenced_by)| Superblock {
            generation,
            disk_id: Uuid::from_u128(id),
            disk_bytes: DISK_BYTES as u64,
            epoch: Epoch { number, incarnation },
            label,
            fenced_by,
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
    let out =
        Out { since: Version::NONE, cursor: StripeAddress::default(), reason: "r".repeat(REASON_BYTES_MAX) };
    let member = |id: usize| LabelMember {
        disk_id: Uuid::from_u128(id as u128),
        address: "a".repeat(ADDRESS_BYTES_MAX),
        out: Some(out.clone()),
    };
    let label = Label {
        array_id: Uuid::nil(),
        revision: Revision { number: 1, ..Revision::default() },
        unit_bytes: 4096,
        slice_bytes: 4096,
        shards_max: 24,
        data_shards_max: 16,
        members: (0..MEMBERS_MAX).map(member).collect(),
        may_follow: vec![MemberSet(u128::MAX); MAY_FOLLOW_MAX],
    };
    let own = Uuid::nil();
    assert_eq!(label::check(&label, own), Ok(()));
    let fenced_by = vec![own; FENCERS_MAX];
    let superblock = Superblock { label: Some(label), fenced_by, ..Superblock::blank(own, 0) };
    assert_eq!(Superblock::decode(&superblock.encode()), Copy::Whole(superblock));
}

#[test]
fn format_0_is_damage() {
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
