//! The label: which disks an array has, and which of them are trusted, in numbered revisions.
//!
//! Every member's disk carries the label, so the array knows itself without anybody else. A revision is *in force* once it
//! is durable on every member that it leaves in sync.
//!
//! 1. One revision is under way at a time, and each is newer than all before it.
//! 2. What a revision takes out stays out in its successors, also when it did not come into force.
//! 3. A revision says after which labels it may come ([`Label::may_follow`]), and keeps enough members of each of them. A
//!    coordinator that finds a revision cannot know whether it came into force: so it counts on the members of all of
//!    these. One that came into force is followed by another one that follows nothing but it.
//! 4. What a revision lets in is not in before it is in force, and a successor drops it. From the moment at which such a
//!    revision may be on a disk until it, or a later one, is in force, nothing may be acknowledged without that member:
//!    whoever finds the revision on a disk takes it as it stands.
//!
//! Does not store labels, nor decide who is to be trusted. Who may begin from which label is in [`crate::start`].

use std::fmt;

use uuid::Uuid;

use crate::{
    geometry::StripeAddress,
    version::{Epoch, Version},
};

/// Orders the revisions of a label: by the epoch that made them, then by number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision {
    /// Epoch of the coordinator that made it.
    pub epoch: Epoch,
    /// From 1 upward, over all epochs.
    pub number: u64,
}

/// What is known of an array from any of its disks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    /// UUID of the array.
    pub array_id: Uuid,
    /// Which revision this is.
    pub revision: Revision,
    /// Length of a stripe unit in bytes.
    pub unit_bytes: u32,
    /// Length of a slice in bytes.
    pub slice_bytes: u64,
    /// Most shards of a stripe of any profile.
    pub shards_max: u32,
    /// Most data shards of a stripe of any profile.
    pub data_shards_max: u32,
    /// The members, by index.
    pub members: Vec<LabelMember>,
    /// The last label in force before this one called one of these sets of members in sync.
    pub may_follow: Vec<MemberSet>,
}

/// A set of members, by index: one bit for each, so up to 128.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemberSet(pub u128);

impl MemberSet {
    /// Whether a member is in it.
    pub fn contains(self, member: usize) -> bool {
        self.0 >> member & 1 == 1
    }

    /// Its members, ascending.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        (0..u128::BITS as usize).filter(move |member| self.contains(*member))
    }
}

impl FromIterator<usize> for MemberSet {
    fn from_iter<T: IntoIterator<Item = usize>>(members: T) -> Self {
        MemberSet(members.into_iter().fold(0, |set, member| set | 1 << member))
    }
}

/// One member in a label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabelMember {
    /// UUID of its disk.
    pub disk_id: Uuid,
    /// Address of its agent, host:port.
    pub address: String,
    /// Set while it is not to be trusted.
    pub out: Option<Out>,
}

/// What is known of a member that is out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Out {
    /// It has every write up to this version that was decided.
    pub since: Version,
    /// Stripes below this one are in sync all the same: they were taken back.
    pub cursor: StripeAddress,
    /// Why, for people.
    pub reason: String,
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of epoch {}", self.number, self.epoch)
    }
}

impl Label {
    /// Members that are in sync whole, by index.
    pub fn in_sync(&self) -> impl Iterator<Item = usize> {
        (0..).zip(&self.members).filter(|(_, member)| member.out.is_none()).map(|(index, _)| index)
    }

    /// The members that are in sync whole, as a set.
    pub fn in_sync_set(&self) -> MemberSet {
        self.in_sync().collect()
    }

    /// Sets of members in sync, of which one is that of the last label in force, if this one may be it or not.
    pub fn in_doubt(&self) -> Vec<MemberSet> {
        let own = self.in_sync_set();
        let mut sets = self.may_follow.clone();
        if !sets.contains(&own) {
            sets.push(own);
        }
        sets
    }

    /// Whether it says of itself that the last label in force before it called the same members in sync.
    pub fn follows_its_like(&self) -> bool {
        self.may_follow == [self.in_sync_set()]
    }

    /// Whether the label puts a blank disk in a member's place, of which nothing counts yet.
    pub fn is_blank(&self, member: usize) -> bool {
        let nothing = |out: &Out| out.since.is_none() && out.cursor == StripeAddress::default();
        self.members[member].out.as_ref().is_some_and(nothing)
    }

    /// Index of the member with this disk.
    pub fn member_of(&self, disk_id: Uuid) -> Option<usize> {
        self.members.iter().position(|member| member.disk_id == disk_id)
    }
}

impl LabelMember {
    /// Whether its shard of a stripe is to be trusted.
    pub fn counts_at(&self, stripe: StripeAddress) -> bool {
        self.out.as_ref().is_none_or(|out| stripe < out.cursor)
    }
}

/// What a revision changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Nothing but the epoch.
    Nothing,
    /// Members are not to be trusted from now on. Of one that is out already `since` stays, and nothing of it is in sync.
    TakeOut(Vec<(usize, Out)>),
    /// Stripes of a member that is out are in sync again: those below the cursor, or all of them.
    LetIn {
        /// The member.
        member: usize,
        /// Where it is still out; `None` if nowhere.
        below: Option<StripeAddress>,
    },
    /// Another, blank disk stands for a member. Nothing of it is in sync.
    Replace {
        /// The member.
        member: usize,
        /// UUID of the new disk.
        disk_id: Uuid,
        /// Address of its agent.
        address: String,
    },
}

/// The revisions of one coordinator: the one that it goes by, and the one that is under way.
#[derive(Clone, Debug)]
pub struct Revisions {
    epoch: Epoch,
    in_force: Label,
    may_follow: Vec<MemberSet>,
    proposed: Option<Proposed>,
    last: u64,
}

#[derive(Clone, Debug)]
struct Proposed {
    label: Label,
    lets_in: Option<usize>,
}

impl Revisions {
    /// Begins in a new epoch from the label that was found, and that is known to have come into force, or not.
    pub fn new(found: Label, known_in_force: bool, epoch: Epoch) -> Self {
        let may_follow = if known_in_force { vec![found.in_sync_set()] } else { found.in_doubt() };
        Revisions { epoch, last: found.revision.number, in_force: found, may_follow, proposed: None }
    }

    /// The label to go by.
    pub fn in_force(&self) -> &Label {
        &self.in_force
    }

    /// The revision that is under way.
    pub fn proposed(&self) -> Option<&Label> {
        self.proposed.as_ref().map(|proposed| &proposed.label)
    }

    /// The member that the revision under way lets in, in part or whole.
    pub fn letting_in(&self) -> Option<usize> {
        self.proposed.as_ref().and_then(|proposed| proposed.lets_in)
    }

    /// What the next revision with this change would be. It is under way once it is given to [`Revisions::begin`].
    pub fn next(&self, change: &Change) -> Label {
        let mut label = self.in_force.clone();
        if let Some(Proposed { label: unfinished, lets_in }) = &self.proposed {
            for (index, member) in unfinished.members.iter().enumerate() {
                if *lets_in != Some(index) {
                    label.members[index] = member.clone();
                }
            }
        }
        label.revision = Revision { epoch: self.epoch, number: self.last + 1 };
        label.may_follow = self.may_follow.clone();
        match change {
            Change::Nothing => {}
            Change::TakeOut(outs) => {
                for (index, out) in outs {
                    let entry = &mut label.members[*index].out;
                    *entry = Some(match entry.take() {
                        Some(before) => Out { cursor: StripeAddress::default(), ..before },
                        None => out.clone(),
                    });
                }
            }
            Change::LetIn { member, below } => {
                let entry = &mut label.members[*member].out;
                *entry = match (entry.take(), below) {
                    (Some(out), Some(below)) => Some(Out { cursor: *below, ..out }),
                    (_, None) | (None, _) => None,
                };
            }
            Change::Replace { member, disk_id, address } => {
                let out = Out {
                    since: Version::NONE,
                    cursor: StripeAddress::default(),
                    reason: "its disk was replaced".to_owned(),
                };
                label.members[*member] =
                    LabelMember { disk_id: *disk_id, address: address.clone(), out: Some(out) };
            }
        }
        label
    }

    /// The next revision with this change is under way.
    pub fn begin(&mut self, change: &Change) -> Label {
        let label = self.next(change);
        self.last = label.revision.number;
        let lets_in = if let Change::LetIn { member, .. } = change { Some(*member) } else { None };
        self.proposed = Some(Proposed { label: label.clone(), lets_in });
        label
    }

    /// The revision under way is durable on every member that it leaves in sync. `false` if it is not this one.
    pub fn came_into_force(&mut self, revision: Revision) -> bool {
        match self.proposed.take() {
            Some(proposed) if proposed.label.revision == revision => {
                self.may_follow = vec![proposed.label.in_sync_set()];
                self.in_force = proposed.label;
                true
            }
            other => {
                self.proposed = other;
                false
            }
        }
    }
}

#[cfg(test)]
mod tests;
