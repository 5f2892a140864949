//! The agent's rules, one by one: each test fails if its rule is taken away.

use super::*;

#[test]
fn a0_another_disk_is_refused() {
    let rig = Rig::new();
    let (own, other) = (rig.store.superblock().disk_id, Uuid::from_u128(1));
    assert_eq!(rig.store.check(own, epoch()), Ok(()));
    assert_eq!(rig.store.check(other, epoch()), Err(Refusal::WrongDisk { given: other, own }));
}

#[test]
fn a1_only_the_epoch_of_the_last_fence_is_served() {
    let mut rig = Rig::new();
    let id = rig.store.superblock().disk_id;
    let epoch = |number, incarnation| Epoch { number, incarnation };
    rig.store.fence(epoch(2, 5), FOLDER).unwrap();
    for _ in 0..2 {
        let own = epoch(2, 5);
        for given in [epoch(1, 7), epoch(2, 4)] {
            assert_eq!(rig.store.check(id, given), Err(Refusal::Fenced { given, own }));
            assert_eq!(rig.store.fence(given, FOLDER), Err(Refusal::Fenced { given, own }));
        }
        for given in [epoch(2, 6), epoch(3, 0)] {
            assert_eq!(rig.store.check(id, given), Err(Refusal::NotFenced { given, own }));
        }
        assert_eq!(rig.store.check(id, own), Ok(()));
        assert_eq!(rig.store.fence(own, FOLDER), Ok(vec![]), "the same coordinator may ask again");
        rig.lose_power();
    }
    assert!(matches!(rig.store.fence(Epoch::default(), FOLDER), Err(Refusal::Invalid(_))));
}

#[test]
fn a1_what_a_fence_lists_is_durable() {
    let mut rig = Rig::new();
    // As after a kill of the process: the write is there for all to see, and nobody has synced it.
    rig.store.carry_out(fresh(1, 2, vec![run(0, &[1; 4])])).unwrap();
    assert_eq!(rig.pending(), [(1, 2, true)]);
    rig.lose_power();
    assert_eq!(rig.pending(), [(1, 2, true)]);
}

#[test]
fn a2_old_bytes_stay_readable_until_commit() {
    let mut rig = Rig::new();
    rig.committed(1, 2, &[1, 2, 3, 4]);
    rig.done(over(1, 3, 2, vec![run(1, &[9])]));
    assert_eq!(rig.read(1, 2), Ok((2, vec![Fill(1), Fill(2), Fill(3), Fill(4)])));
    assert_eq!(rig.read(1, 3), Ok((3, vec![Fill(1), Fill(9), Fill(3), Fill(4)])));
    rig.done(commit(1, 3));
    assert_eq!(rig.read(1, 2), Ok((3, vec![Fill(1), Fill(9), Fill(3), Fill(4)])));
}

#[test]
fn a2_a_prepare_is_durable_and_may_be_repeated() {
    let mut rig = Rig::new();
    rig.committed(1, 2, &[1, 2, 3, 4]);
    for _ in 0..2 {
        rig.done(over(1, 3, 2, vec![run(0, &[8]), run(2, &[9])]));
        rig.lose_power();
        assert_eq!(rig.pending(), [(1, 3, false)]);
        assert_eq!(rig.read(1, 3), Ok((3, vec![Fill(8), Fill(2), Fill(9), Fill(4)])));
    }
    rig.done(commit(1, 3));
    rig.done(over(1, 3, 2, vec![run(0, &[8])]));
    assert_eq!(rig.pending(), [], "committed already: the same answer, and nothing is done");
}

#[test]
fn a2_nothing_at_or_below_the_floor_is_prepared() {
    let mut rig = Rig::new();
    rig.committed(1, 2, &[1; 4]);
    rig.done(abort(1, 5));
    let floor = v(5);
    for given in [3, 5] {
        let refused = Err(Refusal::BelowFloor { unit: 1, given: v(given), floor });
        assert_eq!(rig.ask(over(1, given, 2, vec![run(0, &[9])])), refused);
        assert_eq!(rig.ask(fresh(1, given, vec![run(0, &[9])])), refused);
        assert_eq!(rig.ask(discard(1, given)), refused);
    }
    rig.done(over(1, 6, 2, vec![run(0, &[9])]));
}

#[test]
fn a2_a_pending_base_is_committed_first_another_pending_is_busy() {
    let mut rig = Rig::new();
    rig.done(fresh(1, 2, vec![run(0, &[1, 2, 3, 4])]));
    rig.done(over(1, 3, 2, vec![run(0, &[8])]));
    rig.done(over(1, 4, 3, vec![run(1, &[9])]));
    assert_eq!(rig.read(1, 3), Ok((3, vec![Fill(8), Fill(2), Fill(3), Fill(4)])));
    assert_eq!(rig.read(1, 4), Ok((4, vec![Fill(8), Fill(9), Fill(3), Fill(4)])));
    assert_eq!(rig.ask(over(1, 5, 3, vec![])), Err(Refusal::Busy { unit: 1, pending: v(4) }));
    assert_eq!(rig.pending(), [(1, 4, false)]);
}

#[test]
fn a2_another_base_is_a_mismatch_with_what_is_there() {
    let mut rig = Rig::new();
    rig.committed(1, 2, &[1; 4]);
    rig.done(over(1, 4, 2, vec![]));
    rig.done(commit(1, 4));
    let refused = Refusal::VersionMismatch { unit: 1, wanted: v(3), found: v(4) };
    assert_eq!(rig.ask(over(1, 5, 3, vec![])), Err(refused));
    assert_eq!(rig.ask(over(2, 5, 3, vec![])), Err(Refusal::Empty { unit: 2 }), "only fresh writes enter");
    rig.done(discard(1, 6));
    assert_eq!(rig.ask(over(1, 7, 4, vec![])), Err(Refusal::Empty { unit: 1 }));
}

#[test]
fn a2_another_shard_is_a_mismatch() {
    let mut rig = Rig::new();
    rig.committed(1, 2, &[1; 4]);
    let Operation::Prepare(mut prepare) = over(1, 3, 2, vec![run(0, &[9])]) else { unreachable!() };
    prepare.identity = identity(9);
    let refused = Err(Refusal::OtherIdentity { unit: 1, found: v(2) });
    assert_eq!(rig.ask(Operation::Prepare(prepare)), refused);
    let mut read = read_of(1, 2, 0, 1);
    read.identity = identity(9);
    assert_eq!(rig.ask(Operation::Read(read)), refused);
}

/// Prepares writes on one unit after the other until one is refused. Returns the unit of that one, and why.
fn fill_journal(rig: &mut Rig, units: std::ops::Range<u64>) -> Option<(u64, Refusal)> {
    units.into_iter().find_map(|unit| {
        let refused = rig.ask(over(unit, 100 + unit, 2, vec![run(0, &[9; 4])])).err()?;
        Some((unit, refused))
    })
}

#[test]
fn a2_a_journal_full_of_pending_writes_refuses_until_some_are_settled() {
    let mut rig = Rig::new();
    let units = rig.layout().units();
    (0..units).for_each(|unit| rig.committed(unit, 2, &[1; 4]));
    let Some((last, refused)) = fill_journal(&mut rig, 0..units) else {
        panic!("the journal took everything")
    };
    let limit = rig.store.journal_view().ring_bytes / 4;
    assert_eq!(refused, Refusal::Limit { what: "the journal is full of pending writes", limit });
    assert!(rig.store.journal_view().pending_bytes <= limit);
    assert_eq!(rig.read(last, 2).unwrap().0, 2, "reads go on");
    // To commit, to abort, to discard, to apply and to enter empty units needs no room that is not there.
    rig.done(commit(0, 100));
    rig.done(abort(1, 101));
    rig.done(discard(2, 300));
    rig.done(fresh(3, 301, vec![run(0, &[7; 4])]));
    rig.apply();
    rig.done(over(last, 400, 2, vec![run(0, &[9; 4])]));
    rig.lose_power();
    // 0, 1 and 2 are settled, 3 is fresh now.
    assert_eq!(rig.pending().len() as u64, last + 1 - 3);
    assert_eq!(rig.read(0, 100), Ok((100, vec![Fill(9); 4])));
    (4..last).for_each(|unit| assert_eq!(rig.read(unit, 100 + unit), Ok((100 + unit, vec![Fill(9); 4]))));
}

#[test]
fn a2_writes_that_pend_for_long_do_not_stop_the_journal() {
    let mut rig = Rig::new();
    rig.committed(0, 2, &[1; 4]);
    rig.done(over(0, 3, 2, vec![run(1, &[9, 8])]));
    rig.done(fresh(1, 2, vec![run(0, &[5; 4])]));
    rig.committed(2, 2, &[1; 4]);
    let ring = rig.store.journal_view().ring_bytes;
    let mut written = 0;
    for version in 3..200 {
        rig.done(over(2, version, version - 1, vec![run(0, &[version as u8; 4])]));
        let group = rig.last_group();
        written += group.end - group.start;
        assert!(rig.store.journal_view().used_bytes <= ring * 3 / 4);
    }
    assert!(written > 3 * ring, "several rounds");
    for _ in 0..2 {
        assert_eq!(rig.pending(), [(0, 3, false), (1, 2, true), (2, 199, false)]);
        assert_eq!(rig.read(0, 3), Ok((3, vec![Fill(1), Fill(9), Fill(8), Fill(1)])));
        assert_eq!(rig.read(0, 2), Ok((2, vec![Fill(1); 4])));
        assert_eq!(rig.read(1, 2), Ok((2, vec![Fill(5); 4])));
        assert_eq!(rig.read(2, 198), Ok((198, vec![Fill(198); 4])));
        rig.lose_power();
    }
    rig.done(commit(0, 3));
    rig.done(commit(1, 2));
    rig.apply();
    rig.lose_power();
    assert_eq!(rig.read(0, 3), Ok((3, vec![Fill(1), Fill(9), Fill(8), Fill(1)])));
    assert_eq!(rig.read(1, 2), Ok((2, vec![Fill(5); 4])));
}

/// Many writes that pend, many that are not home, and no order in what is settled: the ring's own assertion is what fails
/// if there ever is no room.
#[test]
fn a2_the_ring_never_overflows_whatever_pends() {
    for seed in 1..=12 {
        let mut dice = Dice(seed);
        // Few units are written often; of many, more change than one step applies.
        let mut rig = Rig::sized(if seed % 2 == 0 { DISK_BYTES } else { 64 << 20 });
        let units = rig.layout().units();
        let mut newest = vec![0; units as usize];
        // Some seeds commit often, some hardly ever.
        let settles = 1 + dice.roll() % 8;
        for version in 2..6000 {
            // One in eight of the units is written over and over, the others once.
            let unit =
                if dice.roll().is_multiple_of(2) { version % units } else { dice.roll() % units.div_ceil(8) };
            let base = newest[unit as usize];
            let fills = vec![version as u8; 1 + dice.roll() as usize % SECTORS];
            let outcome = if base == 0 || dice.roll().is_multiple_of(16) {
                rig.store.carry_out(fresh(unit, version, vec![run(0, &[version as u8; SECTORS])]))
            } else {
                rig.store.carry_out(over(unit, version, base, vec![run(0, &fills)]))
            };
            match outcome {
                Ok(_) => newest[unit as usize] = version,
                Err(Refusal::Limit { .. }) => {
                    let settled = dice.roll() % units;
                    rig.store.carry_out(commit(settled, newest[settled as usize].max(1))).unwrap();
                }
                Err(other) => panic!("seed {seed}: {other}"),
            }
            if dice.roll() % 8 < settles && unit >= units / 16 {
                rig.store.carry_out(commit(unit, newest[unit as usize].max(1))).unwrap();
            }
            if dice.roll().is_multiple_of(4) {
                rig.store.sync().unwrap();
            }
            if seed > 6 && dice.roll().is_multiple_of(32) {
                rig.store.apply_due().unwrap();
            }
        }
        rig.pending();
        rig.lose_power();
        for (unit, version) in newest.into_iter().enumerate().filter(|(_, version)| *version != 0) {
            let (found, sectors) = rig.read(unit as u64, version).unwrap();
            assert_eq!((found, sectors[0]), (version, Fill(version as u8)), "seed {seed}, unit {unit}");
        }
    }
}

/// As many units as a large ring takes are changed and pending at once: more than one step applies.
#[test]
fn a2_pending_writes_are_put_again_only_where_the_tail_then_passes_them() {
    let mut rig = Rig::sized(2 << 30);
    let (mut dice, units) = (Dice(3), 4096);
    let mut newest = vec![0; units];
    for version in 2..14_000 {
        let unit =
            if version < 2 + units as u64 { version as usize - 2 } else { dice.roll() as usize % units };
        let outcome = match newest[unit] {
            0 => rig.store.carry_out(fresh(unit as u64, version, vec![run(0, &[version as u8; SECTORS])])),
            base => rig.store.carry_out(over(unit as u64, version, base, vec![run(0, &[version as u8])])),
        };
        match outcome {
            Ok(_) => newest[unit] = version,
            Err(Refusal::Limit { .. }) => {
                rig.store.carry_out(commit(unit as u64, newest[unit])).unwrap();
            }
            Err(other) => panic!("{other}"),
        }
        if version % 64 == 0 {
            rig.store.sync().unwrap();
        }
    }
    rig.pending();
    rig.lose_power();
    for (unit, version) in newest.into_iter().enumerate() {
        let (found, sectors) = rig.read(unit as u64, version).unwrap();
        assert_eq!((found, sectors[0]), (version, Fill(version as u8)), "unit {unit}");
    }
}

#[test]
fn a2_a_chain_in_one_group_is_there_whole() {
    let mut rig = Rig::new();
    rig.committed(0, 2, &[1; 4]);
    for version in 3..60 {
        rig.store.carry_out(over(0, version, version - 1, vec![run(0, &[version as u8])])).unwrap();
    }
    rig.store.sync().unwrap();
    assert_eq!(rig.read(0, 59).unwrap().1[0], Fill(59));
    rig.lose_power();
    assert_eq!(rig.pending(), [(0, 59, false)]);
    assert_eq!(rig.read(0, 58).unwrap().1[0], Fill(58));
}

#[test]
fn a2_a_summary_is_brought_if_and_only_if_the_unit_has_one() {
    let mut rig = Rig::new();
    let with = |operation, summary| {
        let Operation::Prepare(prepare) = operation else { unreachable!() };
        Operation::Prepare(Prepare { summary, ..prepare })
    };
    rig.done(with(fresh(1, 2, vec![run(0, &[1; 4])]), Some(summary(2))));
    rig.done(commit(1, 2));
    assert_eq!(rig.store.read(&read_of(1, 2, 0, 0)).unwrap().summary, Some(summary(2)));
    assert!(matches!(rig.ask(over(1, 3, 2, vec![])), Err(Refusal::Invalid(_))));
    rig.done(with(over(1, 3, 2, vec![run(0, &[5])]), Some(summary(3))));
    assert_eq!(rig.store.read(&read_of(1, 2, 0, 0)).unwrap().summary, Some(summary(2)), "of one version");
    assert_eq!(rig.store.read(&read_of(1, 3, 0, 0)).unwrap().summary, Some(summary(3)));
    rig.committed(2, 2, &[1; 4]);
    assert!(matches!(rig.ask(with(over(2, 3, 2, vec![]), Some(summary(3)))), Err(Refusal::Invalid(_))));
}

#[test]
fn a2f_a_fresh_write_describes_the_whole_unit() {
    let mut rig = Rig::new();
    rig.committed(1, 2, &[1, 2, 3, 4]);
    rig.done(fresh(1, 3, vec![run(0, &[7]), run(2, &[9])]));
    let expected = Ok((3, vec![Fill(7), NeverWritten, Fill(9), NeverWritten]));
    assert_eq!(rig.read(1, 3), expected);
    rig.lose_power();
    assert_eq!((rig.read(1, 3), rig.pending()), (expected, vec![(1, 3, true)]));
    assert_eq!(
        rig.read(1, 2),
        Err(Refusal::VersionMismatch { unit: 1, wanted: v(2), found: Version::NONE }),
        "nothing is committed"
    );
}

#[test]
fn a2f_an_older_pending_write_is_dropped_with_its_redo() {
    let mut rig = Rig::new();
    rig.committed(1, 2, &[1; 4]);
    rig.done(over(1, 3, 2, vec![run(0, &[8])]));
    rig.done(fresh(1, 4, vec![run(0, &[5, 6])]));
    rig.done(commit(1, 3));
    let expected = vec![Fill(5), Fill(6), NeverWritten, NeverWritten];
    assert_eq!(rig.read(1, 4), Ok((4, expected.clone())));
    rig.done(fresh(1, 5, vec![run(0, &[5, 6])]));
    rig.done(commit(1, 4));
    assert_eq!(rig.pending(), [(1, 5, true)], "4 is gone: a commit of it comes too late");
    rig.lose_power();
    assert_eq!((rig.pending(), rig.read(1, 5)), (vec![(1, 5, true)], Ok((5, expected))));
}

#[test]
fn a3_commits_and_aborts_act_on_their_version_alone_and_may_be_repeated() {
    let mut rig = Rig::new();
    rig.committed(1, 2, &[1; 4]);
    rig.done(over(1, 5, 2, vec![run(0, &[8])]));
    rig.done(commit(1, 4));
    rig.done(abort(1, 3));
    assert_eq!(rig.pending(), [(1, 5, false)]);
    for _ in 0..2 {
        rig.done(abort(1, 5));
        rig.done(commit(1, 5));
        assert_eq!((rig.pending(), rig.read(1, 2).unwrap().1[0]), (vec![], Fill(1)));
    }
}

#[test]
fn a3_an_abort_of_a_pending_write_is_durable() {
    let mut rig = Rig::new();
    rig.committed(1, 2, &[1; 4]);
    rig.done(over(1, 5, 2, vec![run(0, &[8])]));
    rig.done(abort(1, 5));
    rig.lose_power();
    assert_eq!((rig.pending(), rig.floor(1)), (vec![], 5), "the journal still has it, and it means nothing");
    assert_eq!(rig.read(1, 2), Ok((2, vec![Fill(1); 4])));
}

#[test]
fn a3_a_prepare_is_durable_before_its_commit_begins() {
    let mut rig = Rig::new();
    rig.committed(1, 2, &[1; 4]);
    for prepare in [over(1, 3, 2, vec![run(0, &[8])]), fresh(1, 4, vec![run(0, &[8])])] {
        let Operation::Prepare(Prepare { version, .. }) = prepare else { unreachable!() };
        let syncs = rig.store.traffic().syncs;
        // The group does not end by itself between the two.
        rig.store.carry_out(prepare).unwrap();
        assert_eq!(rig.store.traffic().syncs, syncs);
        rig.store.carry_out(commit(1, version.sequence)).unwrap();
        assert_eq!(rig.store.traffic().syncs, syncs + 1);
    }
}

#[test]
fn a3_a_commit_costs_no_sync_and_a_lost_one_is_listed_again() {
    let mut rig = Rig::new();
    rig.done(fresh(1, 2, vec![run(0, &[1; 4])]));
    rig.committed(2, 2, &[1; 4]);
    rig.done(over(2, 3, 2, vec![run(0, &[9])]));
    let syncs = rig.store.traffic().syncs;
    rig.done(commit(1, 2));
    rig.done(commit(2, 3));
    assert_eq!(rig.store.traffic().syncs, syncs);
    rig.lose_power();
    assert_eq!(rig.pending(), [(1, 2, true), (2, 3, false)]);
    rig.done(commit(1, 2));
    rig.done(commit(2, 3));
    // The next group takes them along.
    rig.done(fresh(3, 2, vec![run(0, &[1])]));
    rig.lose_power();
    assert_eq!(rig.pending(), [(3, 2, true)]);
    assert_eq!((rig.read(1, 2).unwrap().1[0], rig.read(2, 3).unwrap().1[0]), (Fill(1), Fill(9)));
}

#[test]
fn a3_an_abort_raises_the_floor_durably_even_when_nothing_is_pending() {
    let mut rig = Rig::new();
    rig.done(abort(1, 5));
    rig.committed(2, 2, &[1; 4]);
    rig.done(abort(2, 5));
    rig.lose_power();
    for unit in [1, 2] {
        let refused = Refusal::BelowFloor { unit, given: v(5), floor: v(5) };
        assert_eq!(rig.ask(fresh(unit, 5, vec![])), Err(refused));
    }
    assert_eq!(rig.read(2, 2).unwrap().1, vec![Fill(1); 4], "what was committed stays");
}

#[test]
fn a3_an_abort_of_a_later_version_leaves_the_pending_write() {
    let mut rig = Rig::new();
    rig.committed(1, 2, &[1; 4]);
    rig.done(over(1, 3, 2, vec![run(0, &[9])]));
    rig.done(fresh(2, 2, vec![run(0, &[1; 4])]));
    rig.done(abort(1, 7));
    rig.done(abort(2, 7));
    rig.lose_power();
    assert_eq!(rig.pending(), [(1, 3, false), (2, 2, true)]);
    rig.done(commit(1, 3));
    rig.done(commit(2, 2));
    assert_eq!((rig.read(1, 3).unwrap().1[0], rig.read(2, 2).unwrap().1[0]), (Fill(9), Fill(1)));
    rig.apply();
    rig.lose_power();
    assert_eq!((rig.floor(1), rig.floor(2), rig.pending()), (7, 7, vec![]));
}

#[test]
fn a3_an_aborted_fresh_write_leaves_an_empty_unit() {
    let mut rig = Rig::new();
    rig.committed(1, 2, &[1; 4]);
    rig.done(fresh(1, 3, vec![run(0, &[5])]));
    rig.done(abort(1, 3));
    for _ in 0..2 {
        assert_eq!((rig.pending(), rig.floor(1), rig.store.used_bytes()), (vec![], 3, 0));
        assert_eq!(rig.read(1, 0), Ok((0, vec![NeverWritten; 4])));
        rig.lose_power();
    }
}

#[test]
fn a4_a_read_gets_the_pending_write_if_it_is_that_one_else_what_is_committed_and_not_older() {
    let mut rig = Rig::new();
    rig.committed(1, 3, &[1; 4]);
    rig.done(over(1, 6, 3, vec![run(0, &[9])]));
    for (asked, found) in [(0, Ok(3)), (2, Ok(3)), (3, Ok(3)), (4, Err(3)), (6, Ok(6)), (7, Err(3))] {
        let got = match rig.read(1, asked) {
            Ok((version, _)) => Ok(version),
            Err(Refusal::VersionMismatch { found, .. }) => Err(found.sequence),
            Err(other) => panic!("{other}"),
        };
        assert_eq!(got, found, "asked for {asked}");
    }
}

#[test]
fn a4_every_part_of_a_unit_can_be_read() {
    let mut rig = Rig::new();
    for unit in [1, 2] {
        rig.done(fresh(unit, 2, vec![run(0, &[1, 2]), run(3, &[4])]));
    }
    rig.done(over(2, 3, 2, vec![run(1, &[9])]));
    let whole = [Fill(1), Fill(2), NeverWritten, Fill(4)];
    let pending = [Fill(1), Fill(9), NeverWritten, Fill(4)];
    for first in 0..SECTORS {
        for count in 0..=SECTORS - first {
            let outcome = rig.store.read(&read_of(1, 2, first, count)).unwrap();
            assert_eq!(sectors(&outcome), whole[first..first + count]);
            let outcome = rig.store.read(&read_of(2, 3, first, count)).unwrap();
            assert_eq!(sectors(&outcome), pending[first..first + count]);
        }
    }
    assert!(matches!(rig.store.read(&read_of(1, 2, 1, SECTORS)), Err(Refusal::Invalid(_))));
}

#[test]
fn a5_a_rebuild_replaces_the_unit_and_drops_what_was_pending() {
    let mut rig = Rig::new();
    rig.committed(1, 2, &[1; 4]);
    rig.done(over(1, 3, 2, vec![run(0, &[9])]));
    let outcome = rig.ask(rebuild(1, 8, 3, vec![run(1, &[5, 6])], &[0b1000]));
    assert_eq!(outcome, Ok(Outcome::Rebuilt(v(8))));
    rig.done(commit(1, 3));
    for _ in 0..2 {
        let expected = vec![NeverWritten, Fill(5), Fill(6), Bad];
        assert_eq!((rig.read(1, 3), rig.pending(), rig.floor(1)), (Ok((3, expected)), vec![], 8));
        rig.lose_power();
    }
}

#[test]
fn a5_a_lost_sector_is_bad_until_it_is_written() {
    let mut rig = Rig::new();
    rig.done(rebuild(1, 8, 3, vec![run(0, &[5])], &[0b1110]));
    rig.done(over(1, 9, 3, vec![run(2, &[7])]));
    assert_eq!(rig.read(1, 9), Ok((9, vec![Fill(5), Bad, Fill(7), Bad])));
    rig.done(commit(1, 9));
    assert_eq!(rig.read(1, 9), Ok((9, vec![Fill(5), Bad, Fill(7), Bad])));
    rig.done(fresh(1, 10, vec![run(0, &[1; 4])]));
    assert_eq!(rig.read(1, 10), Ok((10, vec![Fill(1); 4])));
}

#[test]
fn a5_a_token_serves_one_attempt() {
    let mut rig = Rig::new();
    rig.committed(1, 2, &[1; 4]);
    rig.done(rebuild(1, 8, 3, vec![run(0, &[5])], &[]));
    rig.done(rebuild(1, 8, 3, vec![run(0, &[5])], &[]));
    let below = |given| Err(Refusal::BelowFloor { unit: 1, given: v(given), floor: v(8) });
    assert_eq!(rig.ask(rebuild(1, 7, 3, vec![], &[])), below(7));
    assert_eq!(rig.ask(rebuild(1, 8, 4, vec![], &[])), below(8), "the same token, but another version");
    rig.done(abort(2, 8));
    let refused = Refusal::BelowFloor { unit: 2, given: v(8), floor: v(8) };
    assert_eq!(rig.ask(rebuild(2, 8, 3, vec![], &[])), Err(refused), "the floor is not this attempt's");
    assert!(matches!(rig.ask(rebuild(1, 9, 10, vec![], &[])), Err(Refusal::Invalid(_))));
}

#[test]
fn a5_lost_bits_have_to_fit() {
    let mut rig = Rig::new();
    let sectors_and_lost: [(Vec<Run>, &'static [u8]); 3] =
        [(vec![], &[0x10]), (vec![], &[0, 0]), (vec![run(1, &[5])], &[0b10])];
    for (runs, lost) in sectors_and_lost {
        assert!(matches!(rig.ask(rebuild(1, 8, 3, runs, lost)), Err(Refusal::Invalid(_))), "{lost:?}");
    }
}

#[test]
fn a7_a_discarded_unit_is_never_written_and_its_bytes_are_given_back() {
    let mut rig = Rig::new();
    rig.committed(1, 2, &[1; 4]);
    rig.done(over(1, 3, 2, vec![run(0, &[9])]));
    rig.done(discard(1, 4));
    let layout = rig.layout();
    let bytes = rig.disk.peek(layout.sector_offset(1, 0)..layout.sector_offset(1, SECTORS));
    assert!(bytes.iter().all(|byte| *byte == 0));
    rig.done(commit(1, 3));
    for _ in 0..2 {
        assert_eq!(rig.read(1, 0), Ok((0, vec![NeverWritten; 4])));
        assert_eq!((rig.pending(), rig.floor(1), rig.store.used_bytes()), (vec![], 4, 0));
        rig.lose_power();
    }
    let refused = Refusal::BelowFloor { unit: 1, given: v(4), floor: v(4) };
    assert_eq!(rig.ask(discard(1, 4)), Err(refused), "no repetition");
}

#[test]
fn a7_a_batch_is_refused_whole() {
    let mut rig = Rig::new();
    rig.committed(1, 2, &[1; 4]);
    rig.committed(2, 5, &[2; 4]);
    let both = vec![UnitVersion { unit: 1, version: v(4) }, UnitVersion { unit: 2, version: v(4) }];
    assert!(matches!(rig.ask(Operation::Discard(both)), Err(Refusal::BelowFloor { unit: 2, .. })));
    assert_eq!(rig.read(1, 2).unwrap().1, vec![Fill(1); 4]);
    let outside = vec![UnitVersion { unit: 1, version: v(9) }, UnitVersion { unit: 9999, version: v(9) }];
    for operation in [Operation::Discard, Operation::Commit, Operation::Abort] {
        assert!(matches!(rig.ask(operation(outside.clone())), Err(Refusal::Invalid(_))));
    }
    assert_eq!(rig.floor(1), 2);
}

#[test]
fn a7_a_fresh_write_in_the_same_group_keeps_its_bytes() {
    let mut rig = Rig::new();
    rig.committed(1, 2, &[1; 4]);
    rig.store.carry_out(discard(1, 3)).unwrap();
    rig.store.carry_out(fresh(1, 4, vec![run(0, &[7; 4])])).unwrap();
    rig.store.sync().unwrap();
    rig.lose_power();
    assert_eq!(rig.read(1, 4), Ok((4, vec![Fill(7); 4])));
}

#[test]
fn a_blank_disk_serves_no_units_and_joins_once() {
    let disk = SimulatedDisk::new(DISK_BYTES);
    let disk_id = Uuid::from_u128(77);
    Store::format(&mut disk.clone(), disk_id).unwrap();
    let mut rig = Rig::open(disk);
    rig.store.fence(epoch(), FOLDER).unwrap();
    assert_eq!(rig.ask(fresh(0, 1, vec![])), Err(Refusal::Blank));
    assert_eq!(rig.read(0, 0), Err(Refusal::Blank));
    let mut joined = Rig::new();
    let label = joined.store.superblock().label.clone().unwrap();
    assert!(matches!(rig.store.join(Uuid::from_u128(1), label.clone()), Err(JoinError::WrongDisk { .. })));
    let stranger = Label { members: vec![other_member()], ..label.clone() };
    assert!(matches!(rig.store.join(disk_id, stranger), Err(JoinError::Label(LabelError::NotListed(_)))));
    let large = Label { slice_bytes: 1 << 30, ..label.clone() };
    assert!(matches!(rig.store.join(disk_id, large), Err(JoinError::Layout(_))));
    assert!(matches!(joined.store.join(disk_id, label.clone()), Err(JoinError::NotBlank { .. })));
    joined.lose_power();
    assert_eq!(joined.store.superblock().label, Some(label));
}

fn other_member() -> LabelMember {
    LabelMember { disk_id: Uuid::from_u128(6), address: "b:1".to_owned(), out: None }
}

/// The label of a rig's disk in a later revision, with another member beside it.
fn revised(rig: &Rig, epoch: Epoch, number: u64) -> Label {
    let mut label = rig.store.superblock().label.clone().unwrap();
    label.revision = Revision { epoch, number };
    label.members.push(other_member());
    label
}

fn set(label: Label) -> Operation {
    Operation::SetLabel(Box::new(label))
}

#[test]
fn a_disk_takes_newer_revisions_of_its_label_and_never_goes_back() {
    let mut rig = Rig::new();
    let (second, third) = (revised(&rig, epoch(), 2), revised(&rig, epoch(), 3));
    // A later epoch is newer, whatever the number.
    let later = revised(&rig, Epoch { number: 2, incarnation: 1 }, 1);
    assert_eq!(rig.ask(set(second.clone())), Ok(Outcome::Done));
    rig.lose_power();
    assert_eq!(rig.store.superblock().label, Some(second.clone()), "durable when it is answered");
    assert_eq!(rig.ask(set(second.clone())), Ok(Outcome::Done), "once more is no harm");
    let mut other = second.clone();
    other.members[1].address = "c:1".to_owned();
    assert!(matches!(rig.ask(set(other)), Err(Refusal::OlderLabel { .. })), "two labels of one revision");
    assert_eq!(rig.ask(set(third.clone())), Ok(Outcome::Done));
    assert!(matches!(rig.ask(set(second)), Err(Refusal::OlderLabel { .. })));
    assert_eq!(rig.ask(set(later.clone())), Ok(Outcome::Done));
    assert!(matches!(rig.ask(set(third)), Err(Refusal::OlderLabel { .. })));
    assert_eq!(rig.store.superblock().label, Some(later));
}

#[test]
fn a_label_that_is_not_for_this_disk_is_refused() {
    let mut rig = Rig::new();
    let own = revised(&rig, epoch(), 2);
    let labels = [
        Label { array_id: Uuid::from_u128(6), ..own.clone() },
        Label { unit_bytes: own.unit_bytes * 2, ..own.clone() },
        Label { slice_bytes: own.slice_bytes * 2, ..own.clone() },
        Label { shards_max: own.shards_max + 1, ..own.clone() },
        Label { members: vec![other_member()], ..own.clone() },
        Label { revision: Revision::default(), ..own },
    ];
    for label in labels {
        assert!(matches!(rig.ask(set(label)), Err(Refusal::Invalid(_) | Refusal::OlderLabel { .. })));
    }
    assert_eq!(rig.store.superblock().label.as_ref().unwrap().revision.number, 1);
}

#[test]
fn who_fenced_a_disk_is_remembered_until_it_takes_a_newer_label() {
    let mut rig = Rig::new();
    let folder = |n: u64| Uuid::from_u128(u128::from(n) + 1);
    let fence = |rig: &mut Rig, number: u64, by: u64| {
        rig.store.fence(Epoch { number, incarnation: 1 }, folder(by)).unwrap();
        rig.lose_power();
        rig.store.superblock().fenced_by.clone()
    };
    assert_eq!(fence(&mut rig, 2, 1), [FOLDER, folder(1)]);
    assert_eq!(fence(&mut rig, 3, 2), [FOLDER, folder(1), folder(2)]);
    assert_eq!(fence(&mut rig, 4, 1), [FOLDER, folder(2), folder(1)], "the last one stands last");
    let label = revised(&rig, Epoch { number: 4, incarnation: 1 }, 2);
    rig.store.set_label(label.clone()).unwrap();
    assert_eq!(rig.store.superblock().fenced_by, [folder(1)]);
    rig.store.set_label(label).unwrap();
    assert_eq!(fence(&mut rig, 5, 3), [folder(1), folder(3)]);
    // Many are not all remembered; that there were others is.
    for number in 6..40 {
        let by = fence(&mut rig, number, number);
        assert!(by.len() <= crate::superblock::FENCERS_MAX);
        assert!(by.contains(&folder(1)) && by.iter().any(|folder| folder.as_u128() > 1 || folder.is_nil()));
    }
    assert_eq!(rig.store.superblock().fenced_by.last(), Some(&Uuid::nil()));
}
