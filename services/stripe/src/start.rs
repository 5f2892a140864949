//! The start rule: from which label a new coordinator may begin, and with whom.
//!
//! It has fenced every member that answers, so nobody revises the label any more on those. Could a newer revision than the
//! newest that is seen be in force unseen? It would be on k members of each group of those that the last label in force
//! before it called in sync. They would all have to be silent. So if of each group fewer than k of them are silent, there
//! is none. Which label was the last in force the newest one does not know: it may be itself, or one that it may follow
//! ([`Label::may_follow`]). So the count has to hold for each of these; and so many members of each have to be there, for
//! the next label has to keep k of each as well.
//!
//! The newest label is that of a disk, or of the state folder if it is known there to have come into force: one that may be
//! on no disk has no successors, and others may have gone on without it.
//!
//! Where the count does not hold, a *witness* does as well: a state folder that holds this very revision, recorded as in force,
//! while every member that answers was fenced, since it took that revision, from this folder alone. Then nobody else can
//! have made a newer one.

use thiserror::Error;
use uuid::Uuid;

use crate::{
    geometry::StripeAddress,
    label::{Change, Label, LabelMember, MemberSet, Out, Revision},
    version::Version,
};

/// What a fenced disk says.
#[derive(Clone, Debug)]
pub struct Answer {
    /// UUID of the disk.
    pub disk_id: Uuid,
    /// Its label.
    pub label: Option<Label>,
    /// State folders from which it was fenced since it took that label, this time included.
    pub fenced_by: Vec<Uuid>,
}

/// What a state folder remembers.
#[derive(Clone, Debug, Default)]
pub struct Witness {
    /// Its name.
    pub folder: Uuid,
    /// The newest label that it was given.
    pub label: Option<Label>,
    /// That label is known to have come into force.
    pub in_force: bool,
}

/// Slices that belong together: so many of them are needed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Member of each slice.
    pub members: Vec<usize>,
    /// Slices that suffice: k.
    pub needed: usize,
}

/// How to begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Start {
    /// The label to go on from.
    pub label: Label,
    /// It is known to have come into force, or to be taken for that.
    pub in_force: bool,
    /// Members that it calls in sync and that did not answer: they have to go out.
    pub silent: Vec<usize>,
    /// Members that answer and have missed revisions that were in force: older copies of their disks, with the newest
    /// revision that each has. They have to go out too.
    pub older: Vec<(usize, Revision)>,
    /// Members that are out, were taken back in part, and did not answer: what is pending on them nobody knows, so nothing
    /// of them may count.
    pub partly: Vec<usize>,
}

impl Start {
    /// What the first label of the new epoch changes. `since`: every write up to this version was decided.
    pub fn change(&self, since: Version) -> Change {
        let out =
            |since, reason: &str| Out { since, cursor: StripeAddress::default(), reason: reason.to_owned() };
        let unheard = self.silent.iter().chain(&self.partly);
        let unheard = unheard.map(|index| (*index, out(since, "it did not answer at a start")));
        let older = self
            .older
            .iter()
            .map(|(index, revision)| (*index, out(since.min(copied(*revision)), OLDER_COPY)));
        let outs: Vec<(usize, Out)> = unheard.chain(older).collect();
        if outs.is_empty() { Change::Nothing } else { Change::TakeOut(outs) }
    }
}

/// Why a member is out whose disk is an older copy of itself.
pub const OLDER_COPY: &str = "its disk is an older copy of itself";

/// Up to which version a disk has everything that was copied at some time after it took this revision.
pub fn copied(revision: Revision) -> Version {
    Version { epoch: revision.epoch, sequence: 0 }
}

/// Why not to begin.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Refusal {
    /// No disk that answers has a label, and the folder knows of none that came into force.
    #[error("no disk that answers carries a label")]
    NoLabel,
    /// Of a group too few members answer that are in sync.
    #[error("{needed} members that are in sync are needed, {left} answer")]
    TooFew {
        /// Slices that a group needs.
        needed: usize,
        /// Slices of it that are there.
        left: usize,
        /// Members whose return would help.
        missing: Vec<usize>,
    },
    /// The members that do not answer may have gone on without those that do.
    #[error("the members that do not answer may hold newer data")]
    MayBeOld {
        /// Members whose return would help.
        missing: Vec<usize>,
    },
}

/// Whether to begin from what was heard. `forced`: also where members that do not answer may hold newer data.
pub fn start(
    answers: &[Answer],
    witness: &Witness,
    groups: &[Group],
    forced: bool,
) -> Result<Start, Refusal> {
    // What the folder has and no disk may ever have had says nothing of what others did since.
    let in_force = witness.label.iter().filter(|_| witness.in_force);
    let seen = answers.iter().filter_map(|answer| answer.label.as_ref()).chain(in_force);
    let Some(label) = seen.max_by_key(|label| label.revision) else { return Err(Refusal::NoLabel) };
    let known = witness.label.as_ref().is_some_and(|known| known.revision == label.revision);
    let in_force = known && witness.in_force;
    let (mut here, mut silent, mut older) = (Vec::new(), Vec::new(), Vec::new());
    let mut only_this_folder = true;
    // What the disk of a member says, and its revision, if it has a label.
    let heard = |index: usize| {
        let answer = answers.iter().find(|answer| answer.disk_id == label.members[index].disk_id)?;
        Some((answer, answer.label.as_ref()?.revision))
    };
    for index in label.in_sync() {
        match heard(index) {
            Some((_, revision)) if in_force && revision < label.revision => older.push((index, revision)),
            Some((answer, _)) => {
                here.push(index);
                only_this_folder &= answer.fenced_by.iter().all(|folder| *folder == witness.folder);
            }
            None => silent.push(index),
        }
    }
    let sets = if in_force || forced { vec![label.in_sync_set()] } else { label.in_doubt() };
    let is_older = |index: &usize| older.iter().any(|(older, _)| older == index);
    let missed = |index: &usize| sets.iter().any(|set| set.contains(*index)) && heard(*index).is_none();
    let missing: Vec<usize> =
        (0..label.members.len()).filter(|index| missed(index) || is_older(index)).collect();
    let of = |group: &Group, set: MemberSet, members: &[usize]| {
        let counts = |member: &&usize| set.contains(**member) && members.contains(member);
        group.members.iter().filter(counts).count()
    };
    let all = || groups.iter().flat_map(|group| sets.iter().map(move |set| (group, *set)));
    for (group, set) in all() {
        let (needed, left) = (group.needed, of(group, set, &here));
        if left < needed {
            return Err(Refusal::TooFew { needed, left, missing });
        }
    }
    let may_be_old = all().any(|(group, set)| of(group, set, &missing) >= group.needed);
    let is_witness = in_force && only_this_folder;
    if may_be_old && !is_witness && !forced {
        return Err(Refusal::MayBeOld { missing });
    }
    let partly = |(index, member): (usize, &LabelMember)| {
        let counts = member.out.as_ref().is_some_and(|out| out.cursor != StripeAddress::default());
        let answers = answers.iter().any(|answer| answer.disk_id == member.disk_id);
        (counts && !answers).then_some(index)
    };
    let partly = label.members.iter().enumerate().filter_map(partly).collect();
    Ok(Start { label: label.clone(), in_force: in_force || forced, silent, older, partly })
}

#[cfg(test)]
mod tests;
