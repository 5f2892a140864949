//! Checksums of sectors: crc32c (Castagnoli, as iSCSI and btrfs use it).

use crate::SECTOR_BYTES;

/// Checksum of a sector of zeros, and so of one that was never written.
pub const ZERO_SECTOR: u32 = 0x98f9_4189;

/// Checksum of one sector.
pub fn of_sector(sector: &[u8]) -> u32 {
    crc32c::crc32c(sector)
}

/// Checksums of whole sectors in a row. Panics if the bytes are not whole sectors.
pub fn of_sectors(bytes: &[u8]) -> Vec<u32> {
    assert!(bytes.len().is_multiple_of(SECTOR_BYTES), "{} bytes are not whole sectors", bytes.len());
    bytes.chunks_exact(SECTOR_BYTES).map(of_sector).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_constant_is_the_checksum_of_zeros() {
        assert_eq!(of_sector(&[0; SECTOR_BYTES]), ZERO_SECTOR);
    }

    #[test]
    fn it_is_crc32c() {
        // RFC 3720, appendix B.4: 32 bytes of zeros, and of ones.
        assert_eq!(of_sector(&[0; 32]), 0x8a91_36aa);
        assert_eq!(of_sector(&[0xff; 32]), 0x62a8_ab43);
    }
}
