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

pub(crate) fn records(unit_sectors: usize) -> impl Strategy<Value = Record> {
    let states = prop::sample::select(vec![State::Empty, State::Committed, State::Damaged]);
    let identity = (any::<u64>(), versions(), any::<u32>(), any::<u8>());
    let version = (versions(), versions(), versions());
    (states, any::<u64>(), identity, version, bodies(unit_sectors)).prop_map(
        move |(state, unit, identity, (version, token, floor), body)| {
            let (chunk, incarnation, row, shard) = identity;
            let identity =
                Identity { chunk: ChunkIndex(chunk), incarnation, row: Row(row), shard: Shard(shard) };
            // Only committed records say what their sectors are.
            let body = if state == State::Committed { body } else { Body::never_written(unit_sectors) };
            Record { state, unit, identity, version, token, floor, body }
        },
    )
}

fn sized_records() -> impl Strategy<Value = (usize, Record)> {
    prop::sample::select(vec![1_usize, 2, 16, 32, 256])
        .prop_flat_map(|unit_sectors| records(unit_sectors).prop_map(move |record| (unit_sectors, record)))
}

proptest! {
    #[test]
    fn a_record_comes_back((unit_sectors, record) in sized_records(), behind in 0_usize..100) {
        let mut bytes = Vec::new();
        record.encode(DISK, &mut bytes);
        prop_assert_eq!(bytes.len(), record.encoded_bytes());
        prop_assert!(bytes.len() <= record_bytes_max(unit_sectors, SHARDS_MAX, 16 * unit_sectors));
        bytes.resize(bytes.len() + behind, 7);
        prop_assert_eq!(Record::length_of(&bytes), Some(record.encoded_bytes()));
        prop_assert_eq!(Record::decode(&bytes, Uuid::nil(), unit_sectors), None);
        if record.state == State::Committed {
            prop_assert_eq!(Record::decode(&bytes, DISK, unit_sectors + 1), None);
        }
        prop_assert_eq!(Record::decode(&bytes, DISK, unit_sectors), Some(record));
    }

    #[test]
    fn a_flipped_bit_is_damage((unit_sectors, record) in sized_records(), place: usize, bit in 0_u32..8) {
        let mut bytes = Vec::new();
        record.encode(DISK, &mut bytes);
        let place = place % bytes.len();
        bytes[place] ^= 1_u8 << bit;
        prop_assert_eq!(Record::decode(&bytes, DISK, unit_sectors), None);
    }

    #[test]
    fn no_bytes_make_decoding_panic(mut bytes in vec(any::<u8>(), 0..6000), forge: bool, unit_sectors in 1_usize..=256) {
        if forge && bytes.len() >= FIXED_BYTES {
            // Past the checksum: what only the fields themselves can refuse.
            let length = bytes.len() as u32;
            bytes[4..8].copy_from_slice(&length.to_le_bytes());
            bytes[8..24].copy_from_slice(DISK.as_bytes());
            bytes[32] = 1 + bytes[32] % 3;
            bytes[34..36].copy_from_slice(&(unit_sectors as u16).to_le_bytes());
            let crc = crc32c::crc32c(&bytes[CRC_END..]);
            bytes[..CRC_END].copy_from_slice(&crc.to_le_bytes());
        }
        let _ = Record::decode(&bytes, DISK, unit_sectors);
    }
}

#[test]
fn zeros_and_a_cut_record_are_no_record() {
    assert_eq!(Record::decode(&[0; 640], DISK, 16), None);
    let mut bytes = Vec::new();
    Record::bare(State::Empty, 3, 16, Version::NONE).encode(DISK, &mut bytes);
    assert_eq!(Record::decode(&bytes[..bytes.len() - 1], DISK, 16), None);
}
