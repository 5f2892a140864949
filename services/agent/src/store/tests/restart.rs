//! What a start makes of a disk whose unsynced writes were kept in part (A8). Each case is built by hand; `crash` tries
//! all the others.

use super::*;

/// Takes a copy of a range now, to put it back later: what was written in between was lost.
struct Before(u64, Vec<u8>);

impl Before {
    fn of(rig: &Rig, offset: u64, length: usize) -> Before {
        Before(offset, rig.disk.peek(offset..offset + length as u64))
    }

    fn put_back(self, rig: &mut Rig) {
        rig.disk.clone().write(self.0, &mut [IoSlice::new(&self.1)]).unwrap();
    }
}

#[test]
fn a_fresh_write_that_lost_bytes_was_never_prepared() {
    let mut rig = Rig::new();
    rig.committed(1, 2, &[1; 4]);
    let lost = Before::of(&rig, rig.layout().sector_offset(1, 2), 512);
    rig.done(fresh(1, 3, vec![run(0, &[5; 4])]));
    lost.put_back(&mut rig);
    rig.restart();
    for _ in 0..2 {
        assert_eq!((rig.pending(), rig.floor(1)), (vec![], 3), "dropped, but the floor stays");
        assert_eq!(rig.read(1, 0), Ok((0, vec![NeverWritten; 4])));
        rig.lose_power();
    }
    rig.done(fresh(1, 4, vec![run(0, &[6; 4])]));
}

#[test]
fn a_fresh_write_that_lost_its_head_leaves_a_unit_that_the_next_one_enters() {
    let mut rig = Rig::new();
    rig.committed(1, 2, &[1; 4]);
    let lost = Before::of(&rig, rig.layout().record_offset(1), HEAD_BYTES);
    rig.done(fresh(1, 3, vec![run(0, &[5; 4])]));
    lost.put_back(&mut rig);
    rig.restart();
    assert_eq!(rig.read(1, 2), Err(Refusal::Damaged { unit: 1 }), "the body is that of another version");
    assert_eq!(rig.floor(1), 2);
    rig.done(fresh(1, 4, vec![run(0, &[6; 4])]));
    assert_eq!(rig.read(1, 4), Ok((4, vec![Fill(6); 4])));
}

#[test]
fn a_partial_write_that_lost_bytes_was_never_prepared() {
    let mut rig = Rig::new();
    rig.committed(1, 2, &[1; 4]);
    let layout = rig.layout();
    let lost = Before::of(&rig, layout.slot_offset(0) + layout.record_bytes() as u64, 512);
    rig.done(over(1, 3, 2, vec![run(2, &[9])]));
    lost.put_back(&mut rig);
    rig.restart();
    assert_eq!((rig.pending(), rig.floor(1)), (vec![], 2));
    assert_eq!(rig.read(1, 2), Ok((2, vec![Fill(1); 4])));
    assert_eq!(rig.store.slots().0, 0);
}

#[test]
fn a_commit_that_lost_the_bytes_at_home_is_applied_again() {
    let mut rig = Rig::new();
    rig.committed(1, 2, &[1; 4]);
    rig.done(over(1, 3, 2, vec![run(2, &[9])]));
    for lost in [rig.layout().sector_offset(1, 2), rig.layout().record_offset(1) + 512] {
        let mut half = Rig::open(rig.disk.after_restart());
        let lost = Before::of(&half, lost, 512);
        half.done(commit(1, 3));
        lost.put_back(&mut half);
        half.restart();
        assert_eq!(half.pending(), [], "what says that it is committed was kept");
        assert_eq!(half.read(1, 3), Ok((3, vec![Fill(1), Fill(1), Fill(9), Fill(1)])));
    }
}

#[test]
fn a_commit_that_lost_its_head_is_pending_again() {
    let mut rig = Rig::new();
    rig.committed(1, 2, &[1; 4]);
    rig.done(over(1, 3, 2, vec![run(2, &[9])]));
    let lost = Before::of(&rig, rig.layout().record_offset(1), HEAD_BYTES);
    rig.done(commit(1, 3));
    lost.put_back(&mut rig);
    rig.restart();
    assert_eq!(rig.pending(), [(1, 3, false)]);
    assert_eq!(rig.read(1, 3), Ok((3, vec![Fill(1), Fill(1), Fill(9), Fill(1)])));
}

#[test]
fn a3_a_slot_is_used_again_only_after_the_sync_of_what_it_held() {
    let mut rig = Rig::new();
    rig.committed(0, 2, &[1; 4]);
    rig.committed(1, 2, &[1; 4]);
    rig.done(over(0, 3, 2, vec![run(0, &[9])]));
    let layout = rig.layout();
    let home = Before::of(&rig, layout.record_offset(0), layout.stride() as usize);
    // In one group: the commit goes home unsynced, and the next write must not take its slot.
    rig.store.carry_out(commit(0, 3)).unwrap();
    rig.store.carry_out(over(1, 4, 2, vec![run(0, &[7])])).unwrap();
    home.put_back(&mut rig);
    rig.restart();
    assert_eq!(rig.pending(), [(0, 3, false), (1, 4, false)]);
    assert_eq!(rig.read(0, 3).unwrap().1[0], Fill(9));
}

#[test]
fn a_base_in_a_slot_goes_home_before_the_write_over_it_is_pending() {
    let mut rig = Rig::new();
    rig.committed(1, 2, &[1; 4]);
    rig.done(over(1, 3, 2, vec![run(0, &[8])]));
    let layout = rig.layout();
    let home = Before::of(&rig, layout.record_offset(1), layout.stride() as usize);
    rig.done(over(1, 4, 3, vec![run(1, &[9])]));
    home.put_back(&mut rig);
    rig.restart();
    assert_eq!(rig.pending(), [(1, 4, false)]);
    assert_eq!(rig.read(1, 3), Ok((3, vec![Fill(8), Fill(1), Fill(1), Fill(1)])));
    rig.done(commit(1, 4));
    assert_eq!(rig.read(1, 4), Ok((4, vec![Fill(8), Fill(9), Fill(1), Fill(1)])));
}

#[test]
fn a_write_over_a_base_that_is_nowhere_is_void() {
    let mut rig = Rig::new();
    rig.committed(1, 2, &[1; 4]);
    rig.done(over(1, 3, 2, vec![run(0, &[8])]));
    let layout = rig.layout();
    let home = Before::of(&rig, layout.record_offset(1), layout.stride() as usize);
    rig.done(over(1, 4, 3, vec![run(1, &[9])]));
    home.put_back(&mut rig);
    rig.disk.flip(layout.slot_offset(0));
    rig.restart();
    assert_eq!((rig.pending(), rig.read(1, 2)), (vec![], Ok((2, vec![Fill(1); 4]))));
}

#[test]
fn a_fresh_base_whose_commit_was_lost_is_committed() {
    let mut rig = Rig::new();
    rig.done(fresh(1, 2, vec![run(0, &[1; 4])]));
    let head = Before::of(&rig, rig.layout().record_offset(1), HEAD_BYTES);
    rig.done(over(1, 3, 2, vec![run(1, &[9])]));
    head.put_back(&mut rig);
    rig.restart();
    assert_eq!(rig.pending(), [(1, 3, false)]);
    assert_eq!(rig.read(1, 2), Ok((2, vec![Fill(1); 4])));
}

#[test]
fn an_aborted_write_whose_abort_was_lost_is_void_beside_its_successor() {
    let mut rig = Rig::new();
    rig.committed(1, 2, &[1; 4]);
    rig.done(over(1, 3, 2, vec![run(0, &[8])]));
    let head = Before::of(&rig, rig.layout().record_offset(1), HEAD_BYTES);
    rig.store.carry_out(abort(1, 3)).unwrap();
    rig.done(over(1, 4, 2, vec![run(1, &[9])]));
    head.put_back(&mut rig);
    rig.restart();
    assert_eq!(rig.pending(), [(1, 4, false)]);
    assert_eq!(rig.read(1, 4), Ok((4, vec![Fill(1), Fill(9), Fill(1), Fill(1)])));
}

#[test]
fn a8_old_redo_is_not_applied_over_a_fresh_write_a_discard_or_a_rebuild() {
    let newer: [fn() -> Operation; 3] = [
        || fresh(1, 5, vec![run(0, &[7; 4])]),
        || discard(1, 5),
        || rebuild(1, 5, 3, vec![run(0, &[7; 4])], &[]),
    ];
    for newer in newer {
        let mut rig = Rig::new();
        rig.committed(1, 2, &[1; 4]);
        rig.done(over(1, 3, 2, vec![run(0, &[9])]));
        let slot = rig.layout().slot_offset(0);
        rig.done(newer());
        // The slot is still as it was: nobody needed it since.
        assert_ne!(rig.disk.peek(slot..slot + 8), [0; 8]);
        rig.restart();
        assert!(rig.pending().iter().all(|(_, version, _)| *version == 5));
        for asked in [0, 5] {
            if let Ok((_, sectors)) = rig.read(1, asked) {
                assert!(sectors.iter().all(|sector| matches!(sector, Fill(7) | NeverWritten)), "{sectors:?}");
            }
        }
    }
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

#[test]
fn a_scan_skips_what_was_never_written() {
    let mut rig = Rig::new();
    let last = rig.layout().units() - 1;
    rig.committed(last, 2, &[1; 4]);
    rig.committed(5, 2, &[2; 4]);
    rig.restart();
    assert_eq!((rig.read(last, 2).unwrap().1[0], rig.read(5, 2).unwrap().1[0]), (Fill(1), Fill(2)));
    assert_eq!((rig.store.used_from(0), rig.store.used_from(6)), (Some(5), Some(last)));
    assert_eq!(rig.store.used_bytes(), 2 * u64::from(UNIT_BYTES));
}
