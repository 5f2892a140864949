//! Changes on demand: what readers see of them, also after a restart.

use super::*;

fn offset(rig: &Rig, unit: u64, sector: usize) -> u64 {
    rig.layout().sector_offset(unit, sector)
}

/// A sector in which the bytes given are inverted is filled with no one byte, so whole sectors are changed here.
fn whole(offset: u64) -> std::ops::Range<u64> {
    offset..offset + SECTOR_BYTES as u64
}

fn invert(bytes: &mut [u8]) {
    bytes.iter_mut().for_each(|byte| *byte = !*byte);
}

#[test]
fn under_the_checksum_it_is_bad_and_with_it_it_is_good() {
    let mut rig = Rig::new();
    rig.committed(1, 2, &[1, 2, 3, 4]);
    let (second, third) = (offset(&rig, 1, 1), offset(&rig, 1, 2));
    rig.store.change_bytes(second + 7..second + 8, invert).unwrap();
    rig.store.invert_sealed(whole(third)).unwrap();
    for _ in 0..2 {
        assert_eq!(rig.read(1, 2), Ok((2, vec![Fill(1), Bad, Fill(!3), Fill(4)])));
        rig.restart();
    }
    rig.store.invert_sealed(third..third + 2 * SECTOR_BYTES as u64).unwrap();
    rig.store.change_bytes(whole(offset(&rig, 1, 0)), |bytes| bytes.fill(0)).unwrap();
    assert_eq!(rig.read(1, 2), Ok((2, vec![Bad, Bad, Fill(3), Fill(!4)])));
}

#[test]
fn a_saved_sector_comes_back_under_the_newer_version() {
    let mut rig = Rig::new();
    rig.committed(1, 2, &[1, 2, 3, 4]);
    let second = offset(&rig, 1, 1) + 9;
    let saved = rig.store.save_sector(second).unwrap();
    rig.done(over(1, 3, 2, vec![run(1, &[9])]));
    let busy = Refusal::Busy { unit: 1, pending: v(3) };
    assert_eq!(rig.store.restore_sector(&saved), Err(busy.clone()));
    assert_eq!(rig.store.invert_sealed(whole(offset(&rig, 1, 0))), Err(busy));
    rig.done(commit(1, 3));
    assert_eq!(rig.read(1, 3), Ok((3, vec![Fill(1), Fill(9), Fill(3), Fill(4)])));
    rig.store.restore_sector(&saved).unwrap();
    for _ in 0..2 {
        assert_eq!(rig.read(1, 3), Ok((3, vec![Fill(1), Fill(2), Fill(3), Fill(4)])));
        rig.restart();
    }
}

#[test]
fn what_cannot_be_changed_is_refused() {
    let mut rig = Rig::new();
    rig.committed(1, 2, &[1, 2]);
    let first = offset(&rig, 1, 0);
    let disk_bytes = DISK_BYTES as u64;
    let invalid =
        |refused: Result<(), Refusal>| assert!(matches!(refused, Err(Refusal::Invalid(_))), "{refused:?}");
    invalid(rig.store.change_bytes(disk_bytes - 1..disk_bytes + 1, invert));
    invalid(rig.store.change_bytes(first..first, invert));
    invalid(rig.store.invert_sealed(0..1));
    invalid(rig.store.invert_sealed(whole(offset(&rig, 1, 2))));
    invalid(rig.store.invert_sealed(first + 3 * SECTOR_BYTES as u64..first + 5 * SECTOR_BYTES as u64));
    invalid(rig.store.invert_sealed(whole(offset(&rig, 2, 0))));
    invalid(rig.store.save_sector(0).map(|_| ()));
    assert_eq!(rig.read(1, 2), Ok((2, vec![Fill(1), Fill(2), NeverWritten, NeverWritten])));
}
