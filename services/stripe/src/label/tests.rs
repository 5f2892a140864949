use super::*;
use crate::geometry::{ChunkIndex, Row};

const EPOCH: Epoch = Epoch { number: 2, incarnation: 7 };

fn label() -> Label {
    let member = |id: u128| LabelMember { disk_id: Uuid::from_u128(id), address: String::new(), out: None };
    Label {
        array_id: Uuid::from_u128(99),
        revision: Revision { epoch: Epoch { number: 1, incarnation: 3 }, number: 5 },
        unit_bytes: 4096,
        slice_bytes: 4096,
        shards_max: 3,
        data_shards_max: 2,
        members: (0..3).map(member).collect(),
        may_follow: vec![],
    }
}

fn out(sequence: u64) -> Out {
    Out { since: Version { epoch: EPOCH, sequence }, cursor: StripeAddress::default(), reason: String::new() }
}

fn row(row: u32) -> StripeAddress {
    StripeAddress { chunk: ChunkIndex(0), row: Row(row) }
}

fn outs(label: &Label) -> Vec<usize> {
    (0..label.members.len()).filter(|member| label.members[*member].out.is_some()).collect()
}

fn in_force(revisions: &mut Revisions, change: &Change) {
    let revision = revisions.begin(change).revision;
    assert!(revisions.came_into_force(revision));
}

#[test]
fn revisions_of_a_later_epoch_are_newer_and_numbers_go_on() {
    let mut revisions = Revisions::new(label(), true, EPOCH);
    let first = revisions.begin(&Change::Nothing).revision;
    assert!(first > label().revision);
    assert_eq!(first, Revision { epoch: EPOCH, number: 6 });
    let second = revisions.begin(&Change::Nothing).revision;
    assert_eq!(second.number, 7);
    assert!(!revisions.came_into_force(first), "the first has a successor");
    assert!(revisions.came_into_force(second));
    assert_eq!(revisions.proposed(), None);
}

#[test]
fn what_an_unfinished_revision_takes_out_stays_out() {
    let mut revisions = Revisions::new(label(), true, EPOCH);
    revisions.begin(&Change::TakeOut(vec![(0, out(4))]));
    assert_eq!(outs(revisions.in_force()), [] as [usize; 0]);
    let next = revisions.begin(&Change::TakeOut(vec![(2, out(9))]));
    assert_eq!(outs(&next), [0, 2]);
    assert_eq!(next.members[0].out, Some(out(4)));
}

#[test]
fn what_an_unfinished_revision_lets_in_a_successor_drops() {
    let mut revisions = Revisions::new(label(), true, EPOCH);
    in_force(&mut revisions, &Change::TakeOut(vec![(0, out(4))]));
    let lets_in = revisions.begin(&Change::LetIn { member: 0, below: None });
    assert_eq!((outs(&lets_in), revisions.letting_in()), (vec![], Some(0)));
    let next = revisions.begin(&Change::TakeOut(vec![(1, out(6))]));
    assert_eq!((outs(&next), revisions.letting_in()), (vec![0, 1], None));
    assert_eq!(next.members[0].out, Some(out(4)));
    // Moving the cursor is letting in a part.
    let moved = revisions.begin(&Change::LetIn { member: 0, below: Some(row(3)) });
    assert!(moved.members[0].counts_at(row(2)) && !moved.members[0].counts_at(row(3)));
    assert!(!revisions.begin(&Change::Nothing).members[0].counts_at(row(2)));
}

#[test]
fn a_member_that_fails_while_it_is_taken_back_is_out_since_it_was_and_everywhere() {
    let mut revisions = Revisions::new(label(), true, EPOCH);
    in_force(&mut revisions, &Change::TakeOut(vec![(0, out(4))]));
    in_force(&mut revisions, &Change::LetIn { member: 0, below: Some(row(8)) });
    assert!(revisions.in_force().members[0].counts_at(row(7)));
    in_force(&mut revisions, &Change::TakeOut(vec![(0, out(50))]));
    assert_eq!(revisions.in_force().members[0].out, Some(out(4)));
}

#[test]
fn another_disk_is_out_from_the_first_version_on() {
    let mut revisions = Revisions::new(label(), true, EPOCH);
    let change = Change::Replace { member: 1, disk_id: Uuid::from_u128(50), address: "host:1".to_owned() };
    // It stays even if the revision does not come into force: bytes may be on their way to that disk.
    revisions.begin(&change);
    in_force(&mut revisions, &Change::Nothing);
    let label = revisions.in_force();
    assert_eq!(label.member_of(Uuid::from_u128(50)), Some(1));
    assert_eq!(label.member_of(Uuid::from_u128(1)), None);
    assert_eq!(label.members[1].out.as_ref().map(|out| out.since), Some(Version::NONE));
    assert_eq!(label.in_sync().collect::<Vec<_>>(), [0, 2]);
}

#[test]
fn a_label_says_after_which_it_may_come() {
    let set = |members: &[usize]| members.iter().copied().collect::<MemberSet>();
    let mut found = label();
    found.members[2].out = Some(out(1));
    found.may_follow = vec![set(&[0, 1, 2])];
    // Not known to have come into force: either may be the last one that did.
    let mut revisions = Revisions::new(found.clone(), false, EPOCH);
    let first = revisions.begin(&Change::TakeOut(vec![(1, out(3))]));
    assert_eq!(first.may_follow, [set(&[0, 1, 2]), set(&[0, 1])]);
    assert_eq!(revisions.next(&Change::Nothing).may_follow, first.may_follow, "nothing came into force yet");
    assert!(!first.follows_its_like());
    assert!(revisions.came_into_force(first.revision));
    let second = revisions.next(&Change::Nothing);
    assert_eq!(second.may_follow, [set(&[0])]);
    assert!(second.follows_its_like());
    assert_eq!(first.in_doubt(), [set(&[0, 1, 2]), set(&[0, 1]), set(&[0])]);
    let known = Revisions::new(found, true, EPOCH);
    assert_eq!(known.next(&Change::Nothing).may_follow, [set(&[0, 1])]);
}
