//! Disks that rot, fail, fill up and read short.

use std::io::ErrorKind;

use super::*;

#[test]
fn a_flipped_byte_is_found_and_nothing_else_is_called_bad() {
    let mut rig = Rig::new();
    rig.committed(1, 2, &[1, 2, 3, 4]);
    let offset = rig.layout().sector_offset(1, 2) + 100;
    rig.disk.flip(offset);
    assert_eq!(rig.read(1, 2), Ok((2, vec![Fill(1), Fill(2), Bad, Fill(4)])));
    assert_eq!(rig.store.counters().checksum_errors, 1);
    let verified = rig.store.verify(1).unwrap();
    assert_eq!((verified.sectors, verified.bad), (4, vec![(2, offset - 100)]));
    rig.done(over(1, 3, 2, vec![run(2, &[3])]));
    rig.done(commit(1, 3));
    assert_eq!(rig.read(1, 3), Ok((3, vec![Fill(1), Fill(2), Fill(3), Fill(4)])), "a write repairs it");
}

#[test]
fn a_flipped_byte_in_a_slot_is_found_before_and_after_commit() {
    let mut rig = Rig::new();
    rig.committed(1, 2, &[1, 2, 3, 4]);
    rig.done(over(1, 3, 2, vec![run(0, &[8, 9])]));
    let layout = rig.layout();
    rig.disk.flip(layout.slot_offset(0) + layout.record_bytes() as u64 + 5000);
    let expected = Ok((3, vec![Fill(8), Bad, Fill(3), Fill(4)]));
    assert_eq!(rig.read(1, 3), expected);
    rig.done(commit(1, 3));
    assert_eq!(rig.read(1, 3), expected, "decided is decided, the sector is lost");
    rig.restart();
    assert_eq!(rig.read(1, 3), expected);
}

#[test]
fn a_damaged_slot_record_of_a_decided_write_damages_the_unit() {
    let mut rig = Rig::new();
    rig.committed(1, 2, &[1; 4]);
    rig.done(over(1, 3, 2, vec![run(0, &[8])]));
    rig.disk.flip(rig.layout().slot_offset(0) + 530);
    assert_eq!(rig.read(1, 3), Err(Refusal::Damaged { unit: 1 }));
    rig.done(commit(1, 3));
    assert_eq!(rig.read(1, 2), Err(Refusal::Damaged { unit: 1 }), "not the old version under a new name");
    rig.restart();
    assert_eq!((rig.read(1, 2), rig.floor(1)), (Err(Refusal::Damaged { unit: 1 }), 3));
}

#[test]
fn a_damaged_record_says_so_until_the_unit_is_rebuilt_or_entered() {
    for part in [0, 100, 530] {
        let mut rig = Rig::new();
        rig.committed(1, 2, &[1; 4]);
        rig.committed(2, 6, &[1; 4]);
        rig.disk.flip(rig.layout().record_offset(1) + part);
        for _ in 0..2 {
            let damaged = Refusal::Damaged { unit: 1 };
            assert_eq!(rig.read(1, 2), Err(damaged.clone()), "flipped at {part}");
            assert_eq!(rig.ask(over(1, 9, 2, vec![])), Err(damaged));
            assert!(rig.store.verify(1).unwrap().damaged);
            rig.restart();
        }
        rig.done(abort(1, 7));
        rig.restart();
        assert_eq!(rig.read(1, 2), Err(Refusal::Damaged { unit: 1 }), "an abort does not make it whole");
        let mut entered = Rig::open(rig.disk.after_restart());
        entered.done(fresh(1, 8, vec![run(0, &[4; 4])]));
        assert_eq!(entered.read(1, 8), Ok((8, vec![Fill(4); 4])));
        rig.done(rebuild(1, 8, 2, vec![run(0, &[1; 4])], &[]));
        rig.restart();
        assert_eq!(rig.read(1, 2), Ok((2, vec![Fill(1); 4])));
    }
}

#[test]
fn a_forgotten_floor_is_replaced_by_the_newest_version_on_the_disk() {
    let mut rig = Rig::new();
    rig.committed(1, 2, &[1; 4]);
    rig.committed(2, 6, &[1; 4]);
    rig.disk.flip(rig.layout().record_offset(1));
    rig.restart();
    let refused = Refusal::BelowFloor { unit: 1, given: v(6), floor: v(6) };
    assert_eq!(
        rig.ask(fresh(1, 6, vec![])),
        Err(refused),
        "a late request may be meant for before the damage"
    );
}

#[test]
fn a_pending_write_over_a_damaged_record_is_still_listed() {
    let mut rig = Rig::new();
    rig.committed(1, 2, &[1; 4]);
    rig.done(over(1, 3, 2, vec![run(0, &[8])]));
    for damage in [0, 530] {
        let mut rig = Rig::open(rig.disk.after_restart());
        rig.disk.flip(rig.layout().record_offset(1) + damage);
        rig.restart();
        assert_eq!(rig.pending(), [(1, 3, false)], "it may have been acknowledged");
        rig.done(commit(1, 3));
        assert_eq!(rig.read(1, 3), Ok((3, vec![Fill(8), Fill(1), Fill(1), Fill(1)])));
    }
}

#[test]
fn another_units_record_in_the_place_of_a_unit_is_damage() {
    let mut rig = Rig::new();
    rig.committed(1, 2, &[1; 4]);
    rig.committed(2, 3, &[2; 4]);
    let layout = rig.layout();
    let (one, two) = (layout.record_offset(1), layout.record_offset(2));
    let stray = rig.disk.peek(two..two + layout.stride());
    rig.disk.clone().write(one, &mut [IoSlice::new(&stray)]).unwrap();
    assert_eq!(rig.read(1, 2), Err(Refusal::Damaged { unit: 1 }));
    rig.restart();
    assert_eq!(rig.read(1, 2), Err(Refusal::Damaged { unit: 1 }));
}

#[test]
fn what_cannot_be_read_is_bad_and_nothing_stands_in_its_place() {
    let mut rig = Rig::new();
    rig.committed(1, 2, &[1, 2, 3, 4]);
    let (bad, record) = (rig.layout().sector_offset(1, 1), rig.layout().record_offset(1));
    rig.disk.make_unreadable(bad..bad + 1);
    assert_eq!(rig.read(1, 2), Ok((2, vec![Fill(1), Bad, Fill(3), Fill(4)])));
    assert_eq!(rig.store.counters().disk_errors, 1);
    rig.disk.make_unreadable(record..record + 1);
    assert!(matches!(rig.read(1, 2), Err(Refusal::DiskFailed(_))));
    rig.done(fresh(2, 3, vec![run(0, &[1; 4])]));
}

#[test]
fn a_short_read_makes_bad_sectors_never_shifted_ones() {
    let mut rig = Rig::new();
    rig.committed(1, 2, &[1, 2, 3, 4]);
    // Whole records and sectors still come, longer reads are cut in the middle of a sector.
    rig.disk.read_at_most(4096);
    assert_eq!(rig.read(1, 2), Ok((2, vec![Fill(1), Fill(2), Fill(3), Fill(4)])));
    rig.disk.read_at_most(4095);
    assert!(matches!(rig.read(1, 2), Err(Refusal::DiskFailed(_))));
}

#[test]
fn after_a_failed_sync_nothing_is_written_and_reads_go_on() {
    let mut rig = Rig::new();
    rig.committed(1, 2, &[1; 4]);
    rig.disk.fail_syncs();
    assert!(matches!(rig.ask(fresh(2, 3, vec![run(0, &[5])])), Err(Refusal::DiskFailed(_))));
    let written = rig.store.traffic().bytes_written;
    let operations: [fn() -> Operation; 6] = [
        || fresh(3, 4, vec![run(0, &[5])]),
        || over(1, 4, 2, vec![]),
        || commit(2, 3),
        || abort(2, 9),
        || discard(1, 9),
        || rebuild(1, 9, 2, vec![], &[]),
    ];
    for operation in operations {
        assert!(matches!(rig.ask(operation()), Err(Refusal::DiskFailed(_))));
    }
    assert!(matches!(rig.store.fence(Epoch { number: 9, incarnation: 1 }), Err(Refusal::DiskFailed(_))));
    assert_eq!(rig.store.traffic().bytes_written, written);
    assert_eq!(rig.read(1, 2), Ok((2, vec![Fill(1); 4])));
    assert!(rig.store.failure().is_some());
}

#[test]
fn a_failed_write_is_never_reported_and_ends_writing() {
    let mut rig = Rig::new();
    rig.disk.fail_writes(Some(ErrorKind::Other));
    assert!(matches!(rig.ask(fresh(2, 3, vec![run(0, &[5])])), Err(Refusal::DiskFailed(_))));
    rig.disk.fail_writes(None);
    assert!(matches!(rig.ask(fresh(2, 4, vec![run(0, &[5])])), Err(Refusal::DiskFailed(_))));
}

#[test]
fn a_full_disk_refuses_and_goes_on_when_there_is_space() {
    let mut rig = Rig::new();
    rig.committed(1, 2, &[1; 4]);
    rig.done(over(1, 3, 2, vec![run(0, &[8])]));
    rig.disk.fail_writes(Some(ErrorKind::StorageFull));
    assert_eq!(rig.ask(fresh(2, 3, vec![run(0, &[5])])), Err(Refusal::Full));
    assert_eq!(rig.ask(over(1, 4, 3, vec![run(1, &[9])])), Err(Refusal::Full));
    assert_eq!(rig.ask(commit(1, 3)), Err(Refusal::Full), "nothing is lost: it stays pending");
    rig.disk.fail_writes(None);
    assert_eq!(rig.pending(), [(1, 3, false)]);
    rig.done(commit(1, 3));
    assert_eq!(rig.read(1, 3).unwrap().1[0], Fill(8));
    rig.done(fresh(2, 4, vec![run(0, &[5])]));
    assert!(rig.store.failure().is_none());
}

#[test]
fn space_for_a_partial_write_is_taken_before_it_is_prepared() {
    let mut rig = Rig::new();
    rig.done(fresh(1, 2, vec![run(0, &[1])]));
    rig.done(commit(1, 2));
    rig.disk.fail_allocations();
    assert_eq!(rig.ask(over(1, 3, 2, vec![run(0, &[8]), run(2, &[9])])), Err(Refusal::Full));
    rig.done(over(1, 4, 2, vec![run(0, &[8])]));
}
