//! Disks that rot, fail, fill up and read short.

use std::io::ErrorKind;

use super::*;
use crate::disk::simulated::Faults;

#[test]
fn a_flipped_byte_is_found_and_nothing_else_is_called_bad() {
    let mut rig = Rig::new();
    rig.committed(1, 2, &[1, 2, 3, 4]);
    rig.apply();
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
fn a_damaged_record_says_so_until_the_unit_is_rebuilt_or_entered() {
    for part in [0, 4, 100, 165] {
        let mut rig = Rig::new();
        rig.committed(1, 2, &[1; 4]);
        rig.committed(2, 6, &[1; 4]);
        flip_record(&mut rig, 1, part);
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

/// Flips a byte of a unit's record in the table, and lets the store forget what it has read.
fn flip_record(rig: &mut Rig, unit: u64, byte: u64) {
    rig.apply();
    let place = record_place(rig, unit);
    rig.disk.flip(place + byte);
    rig.restart();
}

/// Where the record of a unit of the first page is.
fn record_place(rig: &Rig, unit: u64) -> u64 {
    let layout = rig.layout();
    assert!(unit < layout.page_units());
    layout.page_offset(0) + unit * layout.place_bytes() as u64
}

#[test]
fn a_forgotten_floor_is_replaced_by_the_newest_near_it() {
    let mut rig = Rig::new();
    rig.committed(1, 2, &[1; 4]);
    rig.committed(2, 6, &[1; 4]);
    flip_record(&mut rig, 1, 0);
    let refused = Refusal::BelowFloor { unit: 1, given: v(6), floor: v(6) };
    assert_eq!(
        rig.ask(fresh(1, 6, vec![])),
        Err(refused),
        "a late request may be meant for before the damage"
    );
    assert_eq!(rig.read(2, 6), Ok((6, vec![Fill(1); 4])), "its neighbours are what they were");
}

#[test]
fn a_pending_write_over_a_damaged_record_is_still_listed() {
    let mut rig = Rig::new();
    rig.committed(1, 2, &[1; 4]);
    rig.apply();
    rig.done(over(1, 3, 2, vec![run(0, &[8])]));
    for damage in [0, 100] {
        let mut rig = Rig::open(rig.disk.after_restart());
        rig.disk.flip(record_place(&rig, 1) + damage);
        rig.restart();
        assert_eq!(rig.pending(), [(1, 3, false)], "it may have been acknowledged");
        rig.done(commit(1, 3));
        assert_eq!(rig.read(1, 3), Ok((3, vec![Fill(8), Fill(1), Fill(1), Fill(1)])));
        rig.apply();
        rig.restart();
        assert_eq!(rig.read(1, 3), Ok((3, vec![Fill(8), Fill(1), Fill(1), Fill(1)])), "and makes it whole");
    }
}

#[test]
fn another_units_record_in_the_place_of_a_unit_is_damage() {
    let mut rig = Rig::new();
    rig.committed(1, 2, &[1; 4]);
    rig.committed(2, 3, &[2; 4]);
    rig.apply();
    let (layout, page) = (rig.layout(), rig.layout().page_offset(0));
    let mut bytes = rig.disk.peek(page..page + layout.page_bytes() as u64);
    let place = layout.place_bytes();
    bytes.copy_within(2 * place..3 * place, place);
    put(&rig, page, &bytes);
    rig.restart();
    assert_eq!(rig.read(1, 2), Err(Refusal::Damaged { unit: 1 }));
    assert_eq!(rig.read(2, 3), Ok((3, vec![Fill(2); 4])));
}

#[test]
fn a_page_that_cannot_be_read_is_damage_until_it_is_written_anew() {
    let mut rig = Rig::new();
    (0..3).for_each(|unit| rig.committed(unit, 2 + unit, &[1; 4]));
    rig.apply();
    rig.restart();
    let page = rig.layout().page_offset(0);
    rig.disk.make_unreadable(page..page + 1);
    assert_eq!(rig.read(1, 3), Err(Refusal::Damaged { unit: 1 }));
    assert!(rig.store.failure().is_none(), "what can be read and written still can");
    rig.done(rebuild(1, 9, 3, vec![run(0, &[1; 4])], &[]));
    rig.apply();
    rig.restart();
    assert_eq!(rig.read(1, 3), Ok((3, vec![Fill(1); 4])));
    assert_eq!(
        (rig.read(0, 2), rig.floor(0)),
        (Err(Refusal::Damaged { unit: 0 }), 4),
        "said, and not forgotten"
    );
}

#[test]
fn what_cannot_be_read_is_bad_and_nothing_stands_in_its_place() {
    let mut rig = Rig::new();
    rig.committed(1, 2, &[1, 2, 3, 4]);
    let bad = rig.layout().sector_offset(1, 1);
    rig.disk.make_unreadable(bad..bad + 1);
    assert_eq!(rig.read(1, 2), Ok((2, vec![Fill(1), Bad, Fill(3), Fill(4)])));
    assert_eq!(rig.store.counters().disk_errors, 1);
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
    assert_eq!(rig.read(1, 2), Ok((2, vec![Bad; 4])));
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
    assert!(matches!(
        rig.store.fence(Epoch { number: 9, incarnation: 1 }, FOLDER),
        Err(Refusal::DiskFailed(_))
    ));
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
    // Journal and table have their space; only bytes that go to new places find none.
    rig.disk.misbehave(Faults { full: 1000, ..Faults::default() }, 1);
    assert_eq!(rig.ask(fresh(2, 3, vec![run(0, &[5])])), Err(Refusal::Full));
    assert_eq!(rig.ask(rebuild(3, 9, 3, vec![run(0, &[5])], &[])), Err(Refusal::Full));
    rig.done(commit(1, 3));
    rig.done(over(1, 4, 3, vec![run(1, &[9])]));
    rig.done(discard(4, 9));
    for _ in 0..2 {
        assert_eq!((rig.pending(), rig.floor(2)), (vec![(1, 4, false)], 3));
        assert_eq!(rig.read(2, 0), Ok((0, vec![NeverWritten; 4])));
        assert_eq!(rig.read(3, 0), Err(Refusal::Damaged { unit: 3 }));
        rig.lose_power();
    }
    rig.disk.behave();
    assert_eq!(rig.read(1, 3).unwrap().1[0], Fill(8));
    rig.done(fresh(2, 4, vec![run(0, &[5])]));
    rig.done(rebuild(3, 10, 3, vec![run(0, &[5])], &[]));
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

#[test]
fn units_that_find_no_space_do_not_take_their_group_along() {
    let mut rig = Rig::new();
    // 1 has space, 5 has none.
    rig.committed(1, 2, &[1; 4]);
    rig.disk.misbehave(Faults { full: 1000, ..Faults::default() }, 1);
    for operation in [fresh(1, 3, vec![run(0, &[7; 4])]), fresh(5, 4, vec![run(0, &[7; 4])]), abort(6, 5)] {
        rig.store.carry_out(operation).unwrap();
    }
    assert_eq!(rig.store.sync().unwrap().into_iter().collect::<Vec<_>>(), [5]);
    assert_eq!(rig.store.sync().unwrap().len(), 0, "said once");
    for _ in 0..2 {
        assert_eq!((rig.pending(), rig.floor(5), rig.floor(6)), (vec![(1, 3, true)], 4, 5));
        rig.lose_power();
    }
}
