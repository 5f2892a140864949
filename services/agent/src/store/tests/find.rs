//! Which units hold something, which changed since a version: found without a look at the rest of the table.

use super::{
    inspect::Wanted::{ChangedSince, Holding},
    *,
};

/// A disk with several regions, and the first unit of each.
fn large() -> (Rig, Vec<u64>) {
    let rig = Rig::sized(256 << 20);
    let firsts: Vec<u64> = (0..rig.layout().units()).step_by(rig.layout().region_units() as usize).collect();
    assert!(firsts.len() > 3);
    (rig, firsts)
}

fn all(rig: &mut Rig, wanted: inspect::Wanted) -> Vec<u64> {
    let (mut found, mut next) = (Vec::new(), Some(0));
    while let Some(first) = next {
        let (more, rest) = rig.store.find(first, wanted).unwrap();
        found.extend(more);
        next = rest;
    }
    found
}

#[test]
fn units_are_found_in_journal_and_table_alike() {
    let (mut rig, firsts) = large();
    let (one, two) = (firsts[1] + 5, firsts[3]);
    rig.committed(one, 5, &[1]);
    rig.committed(two, 6, &[1]);
    rig.done(fresh(7, 7, vec![run(0, &[1])]));
    rig.committed(8, 8, &[1]);
    rig.done(discard(8, 9));
    rig.done(abort(9, 10));
    for _ in 0..2 {
        assert_eq!(all(&mut rig, Holding), [7, one, two]);
        assert_eq!(all(&mut rig, ChangedSince(v(5))), [7, 8, 9, two]);
        assert_eq!(all(&mut rig, ChangedSince(v(9))), [9]);
        assert_eq!(all(&mut rig, ChangedSince(v(10))), Vec::<u64>::new());
        rig.apply();
        rig.restart();
    }
    rig.done(over(one, 11, 5, vec![run(0, &[3])]));
    assert_eq!(all(&mut rig, ChangedSince(v(10))), [one], "a pending write is a change");
    rig.done(discard(two, 12));
    assert_eq!(all(&mut rig, Holding), [7, one], "the journal is newer than the table");
}

#[test]
fn regions_in_which_nothing_is_newer_are_not_read() {
    let (mut rig, firsts) = large();
    for (first, version) in firsts.iter().zip(2..) {
        rig.committed(*first, version, &[1]);
    }
    rig.apply();
    rig.restart();
    let newest = 1 + firsts.len() as u64;
    let before = rig.store.traffic().bytes_read;
    assert_eq!(all(&mut rig, ChangedSince(v(newest - 1))), [firsts[firsts.len() - 1]]);
    let region = 256 * rig.layout().page_bytes() as u64;
    assert!(rig.store.traffic().bytes_read - before <= region);
    let before = rig.store.traffic().bytes_read;
    assert_eq!(all(&mut rig, ChangedSince(v(newest))), Vec::<u64>::new());
    assert_eq!(rig.store.traffic().bytes_read, before);
}

#[test]
fn a_damaged_directory_costs_reads_and_nothing_else() {
    let (mut rig, firsts) = large();
    rig.committed(firsts[1], 5, &[1]);
    rig.committed(firsts[2], 6, &[1]);
    rig.apply();
    for flipped in [0, 30] {
        rig.disk.flip(rig.layout().directory_offset() + flipped);
        rig.restart();
        assert_eq!(all(&mut rig, Holding), [firsts[1], firsts[2]]);
        assert_eq!(all(&mut rig, ChangedSince(v(5))), [firsts[2]]);
        assert_eq!(rig.read(firsts[1], 5).unwrap().1[0], Fill(1));
    }
}
