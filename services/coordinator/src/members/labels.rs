//! Revises the label: durable on every member that it leaves in sync, and only then gone by.
//!
//! 1. One revision is under way at a time. It stands in the state folder before it is sent.
//! 2. Nothing follows from a revision before it is in force: no member counts as out that the members do not know to be.
//! 3. A member that does not take a revision is taken out by the next one, while every chunk keeps k without it.
//! 4. A revision keeps k members of each chunk of every label that it may follow (`stripeset_stripe::label`), so that
//!    whoever does not hear of it does not find enough. One that changed who is in sync is followed by its like: then
//!    nobody has to count on what was before.
//! 5. While a revision that lets a member in may be on a disk, and no later one is in force, whoever asked for it keeps
//!    writes away from the stripes that it is about ([`Members::let_in`]).
//!
//! What revisions are is in `stripeset_stripe::label`; who may begin, in `stripeset_stripe::start`.

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;
use stripeset_proto::v1::{self, RefusalKind, session_request::Operation};
use stripeset_stripe::{
    Version,
    geometry::StripeAddress,
    label::{Change, Label, Out, Revisions},
    start::{Group, OLDER_COPY, Start, Witness, copied},
};
use thiserror::Error;
use tokio::sync::Mutex;
use uuid::Uuid;

use super::{MemberIndex, Members, Standing, link::CallError};
use crate::{
    extents::Chunks,
    state::{StateError, StateFolder},
    versions::VersionSequence,
};

/// How often a revision is sent to those that did not take it before they are taken out.
const TRIES: u32 = 3;

/// Pause before it is sent again.
const PAUSE: Duration = Duration::from_millis(50);

/// Pause before a revision that could not come into force is followed by the next.
const UNFINISHED_PAUSE: Duration = Duration::from_millis(250);

/// Longest reason that a label keeps, in bytes.
const REASON_BYTES_MAX: usize = 200;

/// Why the label was not revised.
#[derive(Debug, Error)]
pub enum ReviseError {
    /// A chunk would be left with too few members.
    #[error("chunk {chunk} would keep {left} members in sync, and needs {needed}")]
    TooFewLeft {
        /// The chunk.
        chunk: u64,
        /// Members in sync that it would keep.
        left: usize,
        /// Members that it needs: k.
        needed: usize,
    },
    /// Members that are needed did not take the revision. It may come into force later.
    #[error("the label could not be revised: {members} did not answer and cannot be done without")]
    NotInForce {
        /// The members, for people.
        members: String,
    },
    /// The label could not be stored.
    #[error(transparent)]
    Store(#[from] StateError),
    /// Another coordinator has taken the array over.
    #[error("another coordinator has taken the array over: {0}")]
    Deposed(String),
    /// The start rule has not been passed yet.
    #[error("the array is starting")]
    NotStarted,
}

/// The label and its revisions.
pub struct Labels {
    // `None` until the start.
    revisions: Mutex<Option<Revisions>>,
    versions: Arc<VersionSequence>,
    folder: StateFolder,
}

impl Labels {
    pub(super) fn new(versions: Arc<VersionSequence>, folder: StateFolder) -> Self {
        Labels { revisions: Mutex::new(None), versions, folder }
    }

    /// What the state folder can say at a start.
    pub fn witness(&self) -> Witness {
        self.folder.witness()
    }

    /// Name of the state folder.
    pub fn folder(&self) -> Uuid {
        self.folder.name()
    }

    /// The label in force; `None` before the start.
    pub async fn in_force(&self) -> Option<Label> {
        self.revisions.lock().await.as_ref().map(|revisions| revisions.in_force().clone())
    }
}

/// Slices that belong together, with how many of them are needed.
pub fn groups(members: &Members, chunks: &Chunks, data_shards: usize) -> Vec<Group> {
    let mut groups: Vec<Group> = chunks
        .all()
        .iter()
        .map(|chunk| Group {
            members: chunk.slices.iter().map(|slice| slice.member.0 as usize).collect(),
            needed: chunk.geometry.profile().data_shards(),
        })
        .collect();
    if groups.is_empty() {
        // Whatever will be stored has to find its place.
        let needed = data_shards.min(members.count());
        groups.push(Group { members: (0..members.count()).collect(), needed });
    }
    groups
}

impl Members {
    /// Begins from what the start rule gave: one revision in the new epoch, without those that do not answer. If that fails it
    /// can be tried again, with the same start.
    pub async fn begin(&self, start: Start, chunks: &Chunks) -> Result<(), ReviseError> {
        let change = start.change(self.labels.versions.decided_up_to());
        let mut revisions = self.labels.revisions.lock().await;
        let epoch = self.labels.versions.epoch();
        let revisions = revisions.get_or_insert_with(|| Revisions::new(start.label, start.in_force, epoch));
        self.revise(revisions, change, chunks).await
    }

    /// Marks members out, durably, for a reason. Those that are out already stay as they are, but nothing of them counts
    /// any more.
    pub async fn mark_out(
        &self,
        failed: &[(MemberIndex, String)],
        chunks: &Chunks,
    ) -> Result<(), ReviseError> {
        self.mark_out_since(failed, None, chunks).await
    }

    /// Marks a member out whose disk is an older copy of itself: what it has missed began in the epoch of its label.
    pub async fn mark_older(
        &self,
        member: MemberIndex,
        label: &Label,
        chunks: &Chunks,
    ) -> Result<(), ReviseError> {
        let copied = copied(label.revision);
        self.mark_out_since(&[(member, OLDER_COPY.to_owned())], Some(copied), chunks).await
    }

    async fn mark_out_since(
        &self,
        failed: &[(MemberIndex, String)],
        at_most: Option<Version>,
        chunks: &Chunks,
    ) -> Result<(), ReviseError> {
        let mut revisions = self.labels.revisions.lock().await;
        let Some(revisions) = revisions.as_mut() else { return Err(ReviseError::NotStarted) };
        let since = self.labels.versions.decided_up_to();
        let since = at_most.map_or(since, |at_most| at_most.min(since));
        let news = |index: MemberIndex| {
            let known = &revisions.in_force().members[index.0 as usize].out;
            known.as_ref().is_none_or(|out| out.cursor != StripeAddress::default())
        };
        let outs: Vec<(usize, Out)> = failed
            .iter()
            .filter(|(index, _)| news(*index))
            .map(|(index, reason)| (index.0 as usize, out_since(since, reason)))
            .collect();
        if outs.is_empty() {
            return Ok(());
        }
        self.revise(revisions, Change::TakeOut(outs), chunks).await
    }

    /// Lets a member in: the stripes below the cursor, or all. `false` if a later revision came into force instead, which
    /// leaves the member as it was. Returns only once one or the other is so: until then the caller has to keep writes
    /// away from these stripes.
    pub async fn let_in(
        &self,
        member: MemberIndex,
        below: Option<StripeAddress>,
        chunks: &Chunks,
    ) -> Result<bool, ReviseError> {
        let mut change = Change::LetIn { member: member.0 as usize, below };
        loop {
            {
                let mut revisions = self.labels.revisions.lock().await;
                let Some(revisions) = revisions.as_mut() else { return Err(ReviseError::NotStarted) };
                match self.revise(revisions, change, chunks).await {
                    Ok(()) => {
                        let out = &revisions.in_force().members[member.0 as usize].out;
                        return Ok(match (out, below) {
                            (None, _) => true,
                            (Some(out), Some(below)) => out.cursor == below,
                            (Some(_), None) => false,
                        });
                    }
                    Err(error @ ReviseError::Deposed(_)) => return Err(error),
                    Err(error) => tracing::warn!(%error, member = member.0, "a member is not let in yet"),
                }
            }
            change = Change::Nothing;
            tokio::time::sleep(UNFINISHED_PAUSE).await;
        }
    }

    /// Puts another, blank disk in the place of a member. It joins when it is met: it is in the label before the first byte
    /// goes to it.
    pub async fn replace(
        &self,
        member: MemberIndex,
        disk_id: Uuid,
        address: String,
        chunks: &Chunks,
    ) -> Result<(), ReviseError> {
        let mut revisions = self.labels.revisions.lock().await;
        let Some(revisions) = revisions.as_mut() else { return Err(ReviseError::NotStarted) };
        let index = member.0 as usize;
        if revisions.in_force().members[index].out.is_none() {
            // Labels speak of members by index: the old disk has to be out before another one has its place.
            let since = self.labels.versions.decided_up_to();
            let out = vec![(index, out_since(since, "its disk is being replaced"))];
            self.revise(revisions, Change::TakeOut(out), chunks).await?;
        }
        let change = Change::Replace { member: index, disk_id, address };
        self.revise(revisions, change, chunks).await
    }

    /// Makes revisions until one is in force that makes the change, or must not be, and follows its like.
    async fn revise(
        &self,
        revisions: &mut Revisions,
        change: Change,
        chunks: &Chunks,
    ) -> Result<(), ReviseError> {
        self.bring_into_force(revisions, change, chunks).await?;
        if revisions.in_force().follows_its_like() {
            return Ok(());
        }
        match self.bring_into_force(revisions, Change::Nothing, chunks).await {
            Ok(()) => Ok(()),
            Err(error @ ReviseError::Deposed(_)) => Err(error),
            // The change itself is in force; what follows says less than it could.
            Err(error) => {
                tracing::warn!(%error, "the label in force is not followed by its like");
                Ok(())
            }
        }
    }

    async fn bring_into_force(
        &self,
        revisions: &mut Revisions,
        mut change: Change,
        chunks: &Chunks,
    ) -> Result<(), ReviseError> {
        loop {
            left_in_sync(&revisions.next(&change), chunks)?;
            let label = revisions.begin(&change);
            self.labels.folder.remember(label.clone(), false).await?;
            let silent = self.send(&label).await?;
            if silent.is_empty() {
                revisions.came_into_force(label.revision);
                self.labels.folder.remember(label.clone(), true).await?;
                self.show(&label);
                return Ok(());
            }
            let since = self.labels.versions.decided_up_to();
            let names = names(&silent);
            let outs = silent.into_iter().map(|(index, why)| (index, out_since(since, &why))).collect();
            change = Change::TakeOut(outs);
            if left_in_sync(&revisions.next(&change), chunks).is_err() {
                return Err(ReviseError::NotInForce { members: names });
            }
        }
    }

    /// Sends a revision to those that it leaves in sync; those that did not take it, and why.
    async fn send(&self, label: &Label) -> Result<Vec<(usize, String)>, ReviseError> {
        let set = |index: usize| async move {
            let member = &self.all[index];
            let mut tries = 1;
            loop {
                let set = v1::SetLabelOperation { label: Some(label.clone().into()) };
                match member.link.call(Operation::SetLabel(set), 0).await {
                    Ok(_) => return Ok(None),
                    Err(CallError::Refused(refusal)) if refusal.kind == RefusalKind::Fenced => {
                        return Err(ReviseError::Deposed(refusal.message));
                    }
                    // A session that has just broken may be opened again at once.
                    Err(CallError::Away | CallError::Broken) if tries < TRIES => {
                        tries += 1;
                        tokio::time::sleep(PAUSE).await;
                    }
                    Err(error) => return Ok(Some((index, format!("the label was not taken: {error}")))),
                }
            }
        };
        let sent = join_all(label.in_sync().map(set)).await;
        let silent = sent.into_iter().collect::<Result<Vec<_>, _>>()?;
        Ok(silent.into_iter().flatten().collect())
    }

    /// Goes by a label from now on.
    pub(super) fn show(&self, label: &Label) {
        for (member, entry) in self.all.iter().zip(&label.members) {
            let before = member.standing();
            let standing =
                Standing { disk_id: entry.disk_id, address: entry.address.clone(), out: entry.out.clone() };
            match (&before.out, &standing.out) {
                (None, Some(out)) => {
                    let (index, address) = (member.index.0, &standing.address);
                    tracing::error!(member = index, address, reason = out.reason, since = %out.since, "member is out");
                }
                (Some(_), None) => tracing::info!(member = member.index.0, "member is in sync again"),
                _ => {}
            }
            if before != standing {
                member.set_standing(standing);
            }
        }
    }
}

fn out_since(since: Version, reason: &str) -> Out {
    let mut end = reason.len().min(REASON_BYTES_MAX);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    Out { since, cursor: StripeAddress::default(), reason: reason[..end].to_owned() }
}

fn names(members: &[(usize, String)]) -> String {
    let name = |(index, why): &(usize, String)| format!("member {index} ({why})");
    members.iter().map(name).collect::<Vec<_>>().join(", ")
}

/// Refuses a label that leaves too few members in sync of those of any label that it may follow. One that is just being
/// let in is not among these.
fn left_in_sync(label: &Label, chunks: &Chunks) -> Result<(), ReviseError> {
    for (chunk, set) in
        chunks.all().iter().flat_map(|chunk| label.may_follow.iter().map(move |set| (chunk, set)))
    {
        let stays = |index: usize| label.members[index].out.is_none() && set.contains(index);
        let left = chunk.slices.iter().filter(|slice| stays(slice.member.0 as usize)).count();
        let needed = chunk.geometry.profile().data_shards();
        if left < needed {
            return Err(ReviseError::TooFewLeft { chunk: chunk.index.0, left, needed });
        }
    }
    Ok(())
}
