//! Records: what is written is read back, and no bytes make decoding panic.

use proptest::{collection::vec, prelude::*};
use stripeset_stripe::Epoch;

use super::*;

const DISK: Uuid = Uuid::from_u128(0x1234_5678_9abc_def0);

fn versions() -> impl Strategy<Value = Version> {
    (any::<u64>(), any::<u64>(), any::<u64>()).prop_map(|(number, incarnation, sequence)| Version {
        epoch: Epoch { number, incarnation },
        sequence,
    })
}

fn bits(length: usize) -> impl Strategy<Value = Bits> {
    vec(any::<bool>(), length).prop_map(move |values| {
        let mut bits = Bits::new(length);
        values.into_iter().enumerate().for_each(|(index, value)| bits.set(index, value));
        bits
    })
}

fn summaries(unit_sectors: usize) -> impl Strategy<Value = Summary> {
    (1_usize..=16, 1..=SHARDS_MAX).prop_flat_map(move |(data_shards, shards)| {
        let sectors = data_shards * unit_sectors;
        (vec(versions(), shards), bits(sectors), vec(any::<u32>(), sectors))
            .prop_map(|(vector, written, checksums)| Summary { vector, written, checksums })
    })
}

fn bodies(unit_sectors: usize) -> impl Strategy<Value = Body> {
    let own = (bits(unit_sectors), bits(unit_sectors), vec(any::<u32>(), unit_sectors));
    (own, proptest::option::of(summaries(unit_sectors)))
        .prop_map(|((written, lost, checksums), summary)| Body { written, lost, checksums, summary })
}

fn heads() -> impl Strategy<Value = Head> {
    let states = prop::sample::select(vec![State::Committed, State::Fresh, State::Redo]);
    let identity = (any::<u64>(), versions(), any::<u32>(), any::<u8>());
    let own = (states, any::<bool>(), any::<u64>(), any::<u32>(), bits(UNIT_SECTORS_MAX));
    (own, identity, versions(), versions(), versions()).prop_map(|(own, identity, version, base, floor)| {
        let (state, rebuilt, unit, participants, redo) = own;
        let (chunk, incarnation, row, shard) = identity;
        let identity = Identity { chunk: ChunkIndex(chunk), incarnation, row: Row(row), shard: Shard(shard) };
        let bare = Head::bare(state, unit, floor);
        Head { rebuilt, identity, version, base, participants, redo, ..bare }
    })
}

fn records() -> impl Strategy<Value = (usize, Record)> {
    prop::sample::select(vec![1_usize, 2, 16, 32, 256]).prop_flat_map(|unit_sectors| {
        (heads(), bodies(unit_sectors)).prop_map(move |(head, body)| (unit_sectors, Record::new(head, body)))
    })
}

proptest! {
    #[test]
    fn a_record_comes_back((unit_sectors, mut record) in records()) {
        let mut bytes = Vec::new();
        record.encode(DISK, record_bytes(unit_sectors), &mut bytes);
        prop_assert_eq!(bytes.len(), record_bytes(unit_sectors));
        prop_assert_eq!(Head::decode(&bytes, DISK), Found::Whole(record.head.clone()));
        prop_assert_eq!(Record::decode(&bytes, DISK, unit_sectors), Found::Whole(record));
        prop_assert_eq!(Record::decode(&bytes, Uuid::nil(), unit_sectors), Found::Damaged);
    }

    #[test]
    fn a_flipped_bit_is_damage((unit_sectors, mut record) in records(), place: usize, bit in 0_u32..8) {
        let mut bytes = Vec::new();
        record.encode(DISK, record_bytes(unit_sectors), &mut bytes);
        // Behind the body nothing is read.
        let place = place % (HEAD_BYTES + record.head.body.bytes as usize);
        bytes[place] ^= 1_u8 << bit;
        prop_assert_eq!(Record::decode(&bytes, DISK, unit_sectors), Found::Damaged);
    }

    #[test]
    fn no_bytes_make_decoding_panic(mut bytes in vec(any::<u8>(), 0..6000), forge: bool, unit_sectors in 1_usize..=256) {
        if forge && bytes.len() >= HEAD_BYTES {
            // Past the checksums: what only the fields themselves can refuse.
            bytes[..8].copy_from_slice(&MAGIC);
            bytes[20] %= 5;
            bytes[32..48].copy_from_slice(DISK.as_bytes());
            let body = bytes.len() - HEAD_BYTES;
            let crc = crc32c::crc32c(&bytes[HEAD_BYTES..]);
            bytes[12..16].copy_from_slice(&crc.to_le_bytes());
            bytes[16..20].copy_from_slice(&(body as u32).to_le_bytes());
            let crc = head_crc(&bytes);
            bytes[8..12].copy_from_slice(&crc.to_le_bytes());
            prop_assert!(matches!(Head::decode(&bytes, DISK), Found::Whole(_)));
        }
        let _ = Record::decode(&bytes, DISK, unit_sectors);
    }
}

#[test]
fn zeros_are_blank_and_a_cut_record_is_damage() {
    assert_eq!(Record::decode(&[0; 4096], DISK, 16), Found::Blank);
    assert_eq!(Record::decode(&[0; 100], DISK, 16), Found::Damaged);
}

#[test]
fn records_of_common_units_take_one_sector() {
    let bytes = [1, 4, 16, 32, 64, 256].map(record_bytes);
    assert_eq!(bytes, [4096, 4096, 4096, 4096, 8192, 20480]);
}

#[test]
fn the_largest_body_fits() {
    for unit_sectors in [1, 2, 4, 8, 16, 32, 64, 128, 256] {
        let mut body = Body::never_written(unit_sectors);
        let sectors = 16 * unit_sectors;
        let vector = vec![Version::NONE; SHARDS_MAX];
        body.summary = Some(Summary { vector, written: Bits::new(sectors), checksums: vec![0; sectors] });
        let mut bytes = Vec::new();
        Record::new(Head::bare(State::Committed, 0, Version::NONE), body).encode(
            DISK,
            record_bytes(unit_sectors),
            &mut bytes,
        );
    }
}
