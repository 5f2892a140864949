//! Every decoder of bytes on disk, fed with bytes that nobody wrote. Not an interface: for the fuzz targets in `fuzz/`, and
//! for a short run of the same in the tests.
//!
//! No bytes make a decoder panic or take more memory than [`memory_max`]; and what is decoded comes back when it is
//! encoded. What a decoder lets through has to be fit for use as well: [`whole_disk`] opens a disk made of such bytes and
//! goes on with it.
//!
//! The first byte of an input chooses whether what stands before the fields (magic, checksum, lengths, UUID) is made
//! right, past which random bytes would never come, and how long the disk's units are.

use std::sync::LazyLock;

use uuid::Uuid;

use crate::{
    disk::BLOCK_BYTES,
    layout::{Layout, SHARDS_MAX, SUPERBLOCK_BYTES, Shape},
    record::{self, Record},
    store::{journal, try_directory_page},
    superblock,
};

mod whole_disk;

pub use whole_disk::whole_disk;

/// The disk that all inputs are meant for.
const DISK: Uuid = Uuid::from_u128(0x5eed);

/// Layouts of disks with units of 1, 2, 4 and up to 256 sectors, and the longest records.
static LAYOUTS: LazyLock<Vec<Layout>> = LazyLock::new(|| {
    let shape = Shape { shards: SHARDS_MAX, data_shards: 16 };
    let layout = |exponent: u32| Layout::new(1 << 28, 4096 << exponent, 1 << 20, shape).ok();
    (0..=8).filter_map(layout).collect()
});

/// The mode, the layout of the disk, and what is to be decoded.
fn split(input: &[u8]) -> Option<(bool, Layout, Vec<u8>)> {
    let (mode, rest) = input.split_first()?;
    Some((mode & 1 == 1, LAYOUTS[usize::from(mode >> 1) % LAYOUTS.len()], rest.to_vec()))
}

/// Most bytes of memory that decoding an input takes, with all that the functions here do around it: a superblock and its
/// copies, or, if that is more, a change without a record for each 40 bytes.
pub fn memory_max(input: &[u8]) -> usize {
    512 * 1024 + 128 * input.len()
}

/// A superblock with its label. Returns whether it was one.
pub fn superblock(input: &[u8]) -> bool {
    let Some((forge, _, mut bytes)) = split(input) else { return false };
    bytes.resize(SUPERBLOCK_BYTES as usize, 0);
    superblock::try_decode(&mut bytes, forge)
}

/// A record. Returns whether it was one.
pub fn record(input: &[u8]) -> bool {
    let Some((forge, layout, mut bytes)) = split(input) else { return false };
    if forge {
        record::seal(&mut bytes, DISK);
    }
    let unit_sectors = layout.unit_sectors();
    let Some(record) = Record::decode(&bytes, DISK, unit_sectors) else { return false };
    let mut again = Vec::new();
    record.encode(DISK, &mut again);
    assert_eq!(Record::decode(&again, DISK, unit_sectors), Some(record));
    true
}

/// A head of a journal. Returns whether it was one.
pub fn journal_head(input: &[u8]) -> bool {
    let Some((forge, _, mut bytes)) = split(input) else { return false };
    bytes.resize(BLOCK_BYTES, 0);
    journal::try_head(&mut bytes, DISK, forge)
}

/// A group of a journal. Returns whether it was one.
pub fn journal_group(input: &[u8]) -> bool {
    let Some((forge, layout, mut bytes)) = split(input) else { return false };
    journal::try_group(&mut bytes, DISK, &layout, forge)
}

/// A block of the directory. Returns whether it was one.
pub fn directory(input: &[u8]) -> bool {
    let Some((forge, _, mut bytes)) = split(input) else { return false };
    bytes.resize(BLOCK_BYTES, 0);
    try_directory_page(&mut bytes, DISK, forge)
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    proptest! {
        #[test]
        fn no_bytes_make_a_decoder_panic(input in vec(any::<u8>(), 0..4000)) {
            for decode in [superblock, record, journal_head, journal_group, directory] {
                decode(&input);
            }
        }

        #[test]
        fn what_is_opened_can_be_used(edits in vec((any::<u16>(), vec(any::<u8>(), 0..9)), 0..6)) {
            let edit = |(place, bytes): (u16, Vec<u8>)| {
                let length = [bytes.len() as u8];
                place.to_le_bytes().into_iter().chain(length).chain(bytes).collect::<Vec<_>>()
            };
            let input: Vec<u8> = [1].into_iter().chain(edits.into_iter().flat_map(edit)).collect();
            whole_disk(&input);
        }
    }

    #[test]
    fn what_is_forged_is_decoded() {
        let mut group = vec![0; 88 + 40];
        // One change: committed, unit 0, version 0.
        (group[20], group[88]) = (1, 3);
        group.insert(0, 1);
        assert!(journal_group(&group));
        // One change: a record of an empty unit.
        let mut group = vec![0; 88 + 8 + 152];
        (group[20], group[88], group[96 + 32]) = (1, 4, 1);
        group.insert(0, 1);
        assert!(journal_group(&group));
        for (decode, length) in
            [(journal_head as fn(&[u8]) -> bool, 512), (directory, 4096), (superblock, 4096)]
        {
            let mut input = vec![0; length];
            input[0] = 1;
            assert!(decode(&input));
        }
        let mut empty = vec![0; 153];
        (empty[0], empty[1 + 32]) = (1, 1);
        assert!(record(&empty));
        assert!(whole_disk(&[1]), "a disk that nobody changed is opened");
    }
}
