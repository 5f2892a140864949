//! Every decoder of bytes on disk, fed with bytes that nobody wrote. Not an interface: for the fuzz targets in `fuzz/`, and
//! for a short run of the same in the tests.
//!
//! No bytes make a decoder panic or take more memory than the longest thing it decodes; and what is decoded comes back when
//! it is encoded. The first byte of the input chooses whether what stands before the fields (magic, checksum, lengths,
//! UUID) is made right: past it random bytes would never come.

use uuid::Uuid;

use crate::{
    disk::BLOCK_BYTES,
    layout::SUPERBLOCK_BYTES,
    record::Record,
    store::{journal, try_directory_page},
    superblock,
};

/// The disk that all inputs are meant for.
const DISK: Uuid = Uuid::from_u128(0x5eed);

/// The mode, a number of sectors in a unit, and what is to be decoded.
fn split(input: &[u8]) -> Option<(bool, usize, Vec<u8>)> {
    let (mode, rest) = input.split_first()?;
    Some((mode & 1 == 1, 1 << (mode >> 1 & 7), rest.to_vec()))
}

/// A superblock with its label. Returns whether it was one.
pub fn superblock(input: &[u8]) -> bool {
    let Some((forge, _, mut bytes)) = split(input) else { return false };
    bytes.resize(SUPERBLOCK_BYTES as usize, 0);
    superblock::try_decode(&mut bytes, forge)
}

/// A record. Returns whether it was one.
pub fn record(input: &[u8]) -> bool {
    let Some((forge, unit_sectors, mut bytes)) = split(input) else { return false };
    if forge && bytes.len() >= 40 {
        let length = bytes.len() as u32;
        bytes[4..8].copy_from_slice(&length.to_le_bytes());
        bytes[8..24].copy_from_slice(DISK.as_bytes());
        let crc = crc32c::crc32c(&bytes[4..]);
        bytes[..4].copy_from_slice(&crc.to_le_bytes());
    }
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
    let Some((forge, unit_sectors, mut bytes)) = split(input) else { return false };
    journal::try_group(&mut bytes, DISK, unit_sectors, forge)
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
    }

    #[test]
    fn what_is_forged_is_decoded() {
        let mut group = vec![0; 88 + 40];
        // One change: committed, unit 0, version 0.
        (group[20], group[88]) = (1, 3);
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
    }
}
