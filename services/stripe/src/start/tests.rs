use super::*;
use crate::{
    geometry::StripeAddress,
    label::{LabelMember, Out},
    version::{Epoch, Version},
};

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
    assert_eq!(started, Ok(Start { label: label.clone(), silent: vec![1], older: vec![] }));
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
    // In the folder alone.
    let answers = [0, 1, 2].map(|member| answer(member, &old, &[OWN]));
    let started = start(&answers, &witness(&new, false), &raid5(), false);
    assert_eq!(started.map(|started| started.label), Ok(new));
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
