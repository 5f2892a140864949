//! What a start makes of a disk whose unsynced writes were kept in part (A8). Each case is built by hand; `crash` tries
//! all the others.

use super::*;

#[test]
fn a_fresh_write_that_lost_bytes_was_never_prepared() {
    let mut rig = Rig::new();
    rig.committed(1, 2, &[1; 4]);
    let sector = rig.layout().sector_offset(1, 2);
    let lost = Before::of(&rig, sector..sector + 4096);
    rig.done(fresh(1, 3, vec![run(0, &[5; 4])]));
    lost.put_back(&mut rig);
    rig.restart();
    for _ in 0..2 {
        assert_eq!((rig.pending(), rig.floor(1)), (vec![], 3), "dropped, but the floor stays");
        assert_eq!(rig.read(1, 0), Ok((0, vec![NeverWritten; 4])));
        assert_eq!(rig.store.used_bytes(), 0);
        rig.lose_power();
    }
    rig.done(fresh(1, 4, vec![run(0, &[6; 4])]));
}

#[test]
fn a_rebuild_that_lost_bytes_leaves_a_damaged_unit() {
    let mut rig = Rig::new();
    rig.committed(1, 2, &[1; 4]);
    let sector = rig.layout().sector_offset(1, 2);
    let lost = Before::of(&rig, sector..sector + 4096);
    rig.done(rebuild(1, 8, 3, vec![run(0, &[5; 4])], &[]));
    lost.put_back(&mut rig);
    rig.restart();
    for _ in 0..2 {
        assert_eq!((rig.read(1, 3), rig.floor(1)), (Err(Refusal::Damaged { unit: 1 }), 8));
        rig.lose_power();
    }
    rig.done(rebuild(1, 9, 3, vec![run(0, &[5; 4])], &[]));
    assert_eq!(rig.read(1, 3), Ok((3, vec![Fill(5); 4])));
}

#[test]
fn a_group_that_is_not_whole_was_never_answered() {
    let mut rig = Rig::new();
    rig.committed(1, 2, &[1; 4]);
    rig.committed(2, 2, &[2; 4]);
    // The commits are on the disk too then.
    assert_eq!(rig.pending(), []);
    let end = rig.last_group().end;
    let before = Before::of(&rig, end..end + 65_536);
    // One group: two partial writes, an abort, a fresh write.
    for operation in [
        over(1, 3, 2, vec![run(2, &[9])]),
        over(2, 4, 2, vec![run(0, &[9])]),
        abort(3, 5),
        fresh(4, 6, vec![run(0, &[7; 4])]),
    ] {
        rig.store.carry_out(operation).unwrap();
    }
    rig.store.sync().unwrap();
    let group = rig.last_group();
    for atom in (group.start..group.end).step_by(512) {
        let mut torn = Rig::open(rig.disk.after_restart());
        let old = before.1[(atom - end) as usize..][..512].to_vec();
        if rig.disk.peek(atom..atom + 512) == old {
            continue;
        }
        let block = atom / 4096 * 4096;
        let mut bytes = rig.disk.peek(block..block + 4096);
        bytes[(atom - block) as usize..][..512].copy_from_slice(&old);
        put(&torn, block, &bytes);
        torn.restart();
        for _ in 0..2 {
            assert_eq!(torn.pending(), [], "without the atom at {atom}");
            assert_eq!((torn.floor(1), torn.floor(2), torn.floor(3)), (2, 2, 0));
            assert_eq!(torn.read(1, 2), Ok((2, vec![Fill(1); 4])));
            torn.lose_power();
        }
        torn.done(over(1, 3, 2, vec![run(2, &[9])]));
        torn.lose_power();
        assert_eq!(torn.pending(), [(1, 3, false)]);
    }
}

/// Groups of different lengths at the end of the ring: one that did not fit, was put at the start, and torn, must not be
/// taken for the one that is written after it.
#[test]
fn what_is_left_of_a_torn_group_is_never_taken_for_a_later_one() {
    let mut rig = Rig::new();
    rig.committed(1, 2, &[1; 4]);
    let ring_start = crate::layout::RING_OFFSET;
    let mut version = 3;
    // Until a long group begins at the start again.
    while rig.last_group().start != ring_start || version == 3 {
        rig.done(over(1, version, version - 1, vec![run(0, &[version as u8; 4])]));
        version += 1;
    }
    let torn = rig.last_group();
    // Its last sector never came.
    put(&rig, torn.end - 4096, &[0; 4096]);
    rig.restart();
    assert_eq!(rig.pending(), [(1, version - 2, false)]);
    // A short one fits where the long one did not.
    rig.done(abort(2, 9));
    rig.done(abort(2, 10));
    rig.lose_power();
    assert_eq!((rig.floor(2), rig.pending()), (10, vec![(1, version - 2, false)]));
}

#[test]
fn a_group_that_was_damaged_after_it_was_answered_is_said() {
    let mut rig = Rig::new();
    rig.committed(1, 2, &[1; 4]);
    rig.done(over(1, 3, 2, vec![run(0, &[8])]));
    let group = rig.last_group();
    rig.done(abort(2, 9));
    rig.disk.flip(group.start + 200);
    let error = Store::open(Box::new(rig.disk.after_restart())).err().unwrap();
    assert!(
        matches!(error, OpenError::Journal(JournalError::Damaged { offset }) if offset == group.start),
        "{error}"
    );
}

#[test]
fn rot_in_the_bytes_of_a_pending_write_loses_the_sector_and_not_the_write() {
    let mut rig = Rig::new();
    rig.committed(1, 2, &[1; 4]);
    rig.done(over(1, 3, 2, vec![run(0, &[8, 9])]));
    let group = rig.last_group();
    rig.done(abort(2, 9));
    rig.disk.flip(group.end - 100);
    rig.restart();
    let expected = Ok((3, vec![Fill(8), Bad, Fill(1), Fill(1)]));
    assert_eq!((rig.pending(), rig.read(1, 3)), (vec![(1, 3, false)], expected.clone()));
    assert_eq!(rig.read(1, 2), Ok((2, vec![Fill(1); 4])));
    rig.done(commit(1, 3));
    for _ in 0..2 {
        assert_eq!(rig.read(1, 3), expected, "decided is decided, the sector is lost");
        rig.apply();
        rig.restart();
    }
    rig.done(over(1, 4, 3, vec![run(1, &[9])]));
    assert_eq!(rig.read(1, 4).unwrap().1[1], Fill(9));
}

#[test]
fn a_head_of_the_journal_may_be_lost_both_may_not() {
    let mut rig = Rig::new();
    rig.committed(1, 2, &[1; 4]);
    rig.apply();
    rig.done(over(1, 3, 2, vec![run(0, &[8])]));
    let [first, second] = crate::layout::JOURNAL_HEAD_OFFSETS;
    for lost in [first, second] {
        let mut one = Rig::open(rig.disk.after_restart());
        one.disk.flip(lost + 40);
        one.restart();
        assert_eq!(one.pending(), [(1, 3, false)]);
        // The next step of the journal writes both.
        one.apply();
        one.disk.flip(if lost == first { second } else { first } + 40);
        one.restart();
        assert_eq!(one.pending(), [(1, 3, false)]);
    }
    rig.disk.flip(first + 40);
    rig.disk.flip(second + 40);
    let error = Store::open(Box::new(rig.disk.after_restart())).err().unwrap();
    assert!(matches!(error, OpenError::Journal(JournalError::NoHead)), "{error}");
}

#[test]
fn a8_old_redo_is_not_applied_over_a_fresh_write_a_discard_or_a_rebuild() {
    let newer: [fn() -> Operation; 3] = [
        || fresh(1, 5, vec![run(0, &[7; 4])]),
        || discard(1, 5),
        || rebuild(1, 5, 3, vec![run(0, &[7; 4])], &[]),
    ];
    for newer in newer {
        for committed in [false, true] {
            let mut rig = Rig::new();
            rig.committed(1, 2, &[1; 4]);
            rig.done(over(1, 3, 2, vec![run(0, &[9])]));
            if committed {
                rig.done(commit(1, 3));
            }
            rig.done(newer());
            rig.restart();
            rig.done(commit(1, 5));
            for _ in 0..2 {
                assert_eq!(rig.pending(), []);
                let (_, sectors) = rig.read(1, 0).unwrap();
                assert!(sectors.iter().all(|sector| matches!(sector, Fill(7) | NeverWritten)), "{sectors:?}");
                rig.apply();
                rig.lose_power();
            }
        }
    }
}

#[test]
fn a_start_reads_the_journal_and_not_the_disk() {
    let mut rig = Rig::sized(1 << 30);
    let units = rig.layout().units();
    assert!(units > 50_000);
    for unit in (0..units).step_by(97) {
        rig.done(fresh(unit, 2, vec![run(0, &[1])]));
        rig.done(commit(unit, 2));
    }
    rig.apply();
    rig.done(fresh(units - 1, 9, vec![run(0, &[1])]));
    rig.restart();
    let (read, ring) = (rig.store.traffic().bytes_read, rig.store.journal_view().ring_bytes);
    // Superblocks, the journal's end, the directory: the same for a disk on which nothing was ever written.
    assert!(read < ring / 2, "{read} bytes read, the ring has {ring}");
    assert_eq!((rig.pending(), rig.read(97, 2).unwrap().1[0]), (vec![(units - 1, 9, true)], Fill(1)));
    assert_eq!(
        rig.store.used_bytes() / u64::from(UNIT_BYTES),
        units.div_ceil(97) + u64::from(!(units - 1).is_multiple_of(97))
    );
}

#[test]
fn a_superblock_that_was_lost_is_written_again() {
    let mut rig = Rig::new();
    for offset in crate::layout::SUPERBLOCK_OFFSETS {
        rig.disk.flip(offset + 50);
        rig.restart();
        assert_eq!(rig.store.superblock().epoch, epoch());
    }
}
