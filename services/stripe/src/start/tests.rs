use super::*;
use crate::version::Epoch;

const OWN: Uuid = Uuid::from_u128(1);
const OTHER: Uuid = Uuid::from_u128(2);

fn label(members: usize, number: u64, out: &[usize]) -> Label {
    let member = |index: usize| LabelMember {
        disk_id: Uuid::from_u128(100 + index as u128),
        address: String::new(),
        out: out.contains(&index).then(|| Out {
            since: Version::NONE,
            cursor: StripeAddress::default(),
            reason: String::new(),
        }),
    };
    Label {
        array_id: Uuid::from_u128(99),
        revision: Revision { epoch: Epoch { number: 1, incarnation: 1 }, number },
        unit_bytes: 4096,
        slice_bytes: 4096,
        shards_max: 3,
        data_shards_max: 2,
        members: (0..members).map(member).collect(),
        may_follow: vec![],
    }
}

fn answer(member: usize, label: &Label, fenced_by: &[Uuid]) -> Answer {
    Answer {
        disk_id: label.members[member].disk_id,
        label: Some(label.clone()),
        fenced_by: fenced_by.to_vec(),
    }
}

fn witness(label: &Label, in_force: bool) -> Witness {
    Witness { folder: OWN, label: Some(label.clone()), in_force }
}

fn raid5() -> Vec<Group> {
    vec![Group { members: vec![0, 1, 2], needed: 2 }]
}

fn mirror() -> Vec<Group> {
    vec![Group { members: vec![0, 1], needed: 1 }]
}

#[test]
fn parity_starts_without_a_witness_while_fewer_than_k_are_silent() {
    let label = label(3, 4, &[]);
    let answers = [answer(0, &label, &[OTHER]), answer(2, &label, &[OTHER])];
    let started = start(&answers, &Witness::default(), &raid5(), false);
    assert_eq!(
        started,
        Ok(Start { label: label.clone(), in_force: false, silent: vec![1], older: vec![], partly: vec![] })
    );
    let refused = Refusal::TooFew { needed: 2, left: 1, missing: vec![1, 2] };
    assert_eq!(start(&answers[..1], &Witness::default(), &raid5(), true), Err(refused));
}

#[test]
fn half_a_mirror_starts_only_beside_a_witness_or_by_force() {
    let label = label(2, 4, &[]);
    let alone = [answer(0, &label, &[OWN])];
    let refused = Err(Refusal::MayBeOld { missing: vec![1] });
    assert_eq!(start(&alone, &Witness::default(), &mirror(), false), refused);
    assert_eq!(start(&alone, &witness(&label, false), &mirror(), false), refused, "not known to be in force");
    assert!(start(&alone, &witness(&label, true), &mirror(), false).is_ok());
    let elsewhere = [answer(0, &label, &[OWN, OTHER])];
    assert_eq!(
        start(&elsewhere, &witness(&label, true), &mirror(), false),
        refused,
        "somebody else was there"
    );
    assert!(start(&elsewhere, &Witness::default(), &mirror(), true).is_ok());
}

#[test]
fn the_newest_label_counts_wherever_it_is() {
    let (old, new) = (label(3, 4, &[]), label(3, 5, &[1]));
    // On one disk.
    let answers = [answer(0, &new, &[OWN]), answer(1, &old, &[OWN]), answer(2, &old, &[OWN])];
    let started = start(&answers, &Witness::default(), &raid5(), false);
    assert_eq!(started.map(|started| started.label), Ok(new.clone()));
    // In the folder alone, which knows that it came into force: then what answers is older copies.
    let answers = [0, 1, 2].map(|member| answer(member, &old, &[OWN]));
    let refused = Refusal::TooFew { needed: 2, left: 0, missing: vec![0, 2] };
    assert_eq!(start(&answers, &witness(&new, true), &raid5(), false), Err(refused));
}

/// A coordinator wrote a label into its folder and died before it sent it; another one went on, from elsewhere, with other
/// members.
#[test]
fn a_label_that_no_disk_may_have_is_nothing_to_begin_from() {
    let (old, written) = (label(2, 4, &[]), label(2, 5, &[1]));
    let alone = [answer(0, &old, &[OWN, OTHER])];
    let refused = Err(Refusal::MayBeOld { missing: vec![1] });
    assert_eq!(start(&alone, &witness(&written, false), &mirror(), false), refused);
}

#[test]
fn a_member_that_is_out_does_not_help_nor_a_disk_without_its_label() {
    let label = label(3, 4, &[1]);
    let answers = [answer(0, &label, &[OWN]), answer(1, &label, &[OWN])];
    let refused = Refusal::TooFew { needed: 2, left: 1, missing: vec![2] };
    assert_eq!(start(&answers, &witness(&label, true), &raid5(), true), Err(refused.clone()));
    let blank = Answer { disk_id: label.members[2].disk_id, label: None, fenced_by: vec![] };
    let answers = [answers[0].clone(), blank];
    assert_eq!(start(&answers, &witness(&label, true), &raid5(), true), Err(refused));
    assert_eq!(start(&[], &Witness::default(), &raid5(), true), Err(Refusal::NoLabel));
}

#[test]
fn an_older_copy_of_a_disk_is_told_from_the_disk() {
    let (old, new) = (label(3, 4, &[]), label(3, 5, &[]));
    let answers = [answer(0, &new, &[OWN]), answer(1, &old, &[OWN]), answer(2, &new, &[OWN])];
    let started = start(&answers, &witness(&new, true), &raid5(), false);
    assert_eq!(started.map(|started| started.older), Ok(vec![(1, old.revision)]));
    // A revision that may not have reached it says nothing.
    let started = start(&answers, &witness(&new, false), &raid5(), false);
    assert_eq!(started.map(|started| started.older), Ok(vec![]));
}

#[test]
fn a_member_taken_back_in_part_that_does_not_answer_does_not_count_any_more() {
    let mut label = label(3, 4, &[1]);
    if let Some(out) = &mut label.members[1].out {
        out.cursor.row.0 = 7;
    }
    let all: Vec<Answer> = (0..3).map(|member| answer(member, &label, &[OWN])).collect();
    let started = start(&all, &witness(&label, true), &raid5(), false).unwrap();
    assert_eq!((started.silent, started.partly), (vec![], vec![]));
    let others = [all[0].clone(), all[2].clone()];
    let started = start(&others, &witness(&label, true), &raid5(), false).unwrap();
    assert_eq!((started.silent, started.partly), (vec![], vec![1]));
}

/// One coordinator marked member 0 out on member 2 alone; another one, which had not heard from member 2, may have gone on
/// from the label before with the members 0 and 1.
#[test]
fn a_label_that_may_not_have_come_into_force_counts_on_the_members_of_those_before_it_too() {
    let of_four = [Group { members: vec![0, 1, 2, 3], needed: 2 }];
    let (before, mut out) = (label(4, 4, &[]), label(4, 5, &[0]));
    out.may_follow = vec![before.in_sync_set()];
    let answers = [answer(2, &out, &[OWN]), answer(3, &before, &[OWN])];
    let refused = Refusal::MayBeOld { missing: vec![0, 1] };
    assert_eq!(start(&answers, &Witness::default(), &of_four, false), Err(refused));
    // As if it was known to have come into force.
    out.may_follow = vec![out.in_sync_set()];
    let started = start(&answers[..1], &witness(&out, true), &of_four, false);
    assert!(matches!(started, Err(Refusal::TooFew { .. })));
    let answers = [answer(2, &out, &[OWN]), answer(3, &out, &[OWN])];
    assert!(start(&answers, &Witness::default(), &of_four, false).is_ok());
}

/// A label let member 0 in, on member 0 alone perhaps; without it member 1 may have gone on.
#[test]
fn a_member_that_was_perhaps_let_in_does_not_stand_for_those_that_were_there_before() {
    let (before, mut let_in) = (label(2, 4, &[0]), label(2, 5, &[]));
    let_in.may_follow = vec![before.in_sync_set()];
    let alone = [answer(0, &let_in, &[OWN])];
    let refused = Refusal::TooFew { needed: 1, left: 0, missing: vec![1] };
    assert_eq!(start(&alone, &witness(&let_in, false), &mirror(), false), Err(refused));
    assert!(start(&alone, &witness(&let_in, true), &mirror(), false).is_ok());
    assert!(start(&alone, &Witness::default(), &mirror(), true).unwrap().in_force, "forced");
    let both = [alone[0].clone(), answer(1, &before, &[OWN])];
    assert!(!start(&both, &Witness::default(), &mirror(), false).unwrap().in_force);
}

#[test]
fn the_first_label_takes_out_who_was_not_heard_and_what_was_copied() {
    let version = |number, sequence| Version { epoch: Epoch { number, incarnation: 1 }, sequence };
    let whole =
        Start { label: label(4, 5, &[2]), in_force: true, silent: vec![], older: vec![], partly: vec![] };
    assert_eq!(whole.change(version(3, 9)), Change::Nothing);
    let revision = Revision { epoch: Epoch { number: 2, incarnation: 1 }, number: 4 };
    let start = Start { silent: vec![0], older: vec![(1, revision)], partly: vec![2], ..whole };
    let Change::TakeOut(outs) = start.change(version(3, 9)) else { panic!("nothing") };
    let since = |member| outs.iter().find(|(index, _)| *index == member).map(|(_, out)| out.since);
    assert_eq!(
        [0, 1, 2, 3].map(since),
        [Some(version(3, 9)), Some(version(2, 0)), Some(version(3, 9)), None]
    );
    let Change::TakeOut(outs) = start.change(version(1, 4)) else { panic!("nothing") };
    assert!(outs.iter().all(|(_, out)| out.since == version(1, 4)), "nobody has what was not decided");
}
