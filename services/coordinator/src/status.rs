//! The array at one moment, as its operators see it. From memory alone: it answers also when nothing else does.

use stripeset_proto::{convert::uuid_bytes, v1};

use crate::{
    array::{Array, Phase},
    extents::Chunk,
    members::{Member, Rejoin, Service, link::TICK},
};

impl Array {
    /// How the array was made.
    pub fn describe(&self) -> v1::Array {
        v1::Array {
            array_id: uuid_bytes(self.record.array_id),
            data_profile: self.record.data_profile.clone(),
            metadata_profile: self.record.metadata_profile.clone(),
            unit_bytes: self.record.unit_bytes,
            slice_bytes: self.record.slice_bytes,
            members: self.engine.members.count() as u32,
            epoch: Some(self.versions.epoch().into()),
        }
    }

    /// The chunks.
    pub fn describe_chunks(&self) -> Vec<v1::Chunk> {
        let describe = |chunk: &Chunk| v1::Chunk {
            index: chunk.index.0,
            profile: chunk.geometry.profile().to_string(),
            logical: chunk.index.0 * chunk.geometry.chunk_bytes(),
            data_bytes: chunk.geometry.chunk_bytes(),
            members: chunk.slices.iter().map(|slice| slice.member.0).collect(),
            slices: chunk.slices.iter().map(|slice| slice.number).collect(),
            used_bytes: self.engine.extents.used_in_chunk(chunk.index),
        };
        self.engine.extents.chunks.all().iter().map(|chunk| describe(chunk)).collect()
    }

    /// The members.
    pub fn describe_members(&self) -> Vec<v1::Member> {
        self.engine.members.iter().map(|member| self.describe_member(member)).collect()
    }

    fn describe_member(&self, member: &Member) -> v1::Member {
        let (state, reason) = state(member);
        let errors = member.errors();
        v1::Member {
            index: member.index.0,
            disk_id: uuid_bytes(member.disk_id()),
            address: member.address(),
            state: state.into(),
            reason,
            size_bytes: member.disk_bytes,
            used_bytes: self.engine.extents.slices_used(member.index) * self.record.slice_bytes,
            errors: Some(v1::MemberErrors {
                checksum_errors: errors.checksum,
                version_errors: errors.version,
                read_errors: errors.read,
                write_errors: errors.write,
                corrected_errors: errors.corrected,
            }),
            connected: member.link.connected() && member.link.responsive(),
        }
    }

    /// Everything at a glance.
    pub fn status(&self) -> v1::GetStatusResponse {
        let profile = self.engine.extents.geometry().profile();
        let members = self.describe_members();
        let away = members.iter().filter(|member| member.state() != v1::MemberState::InSync).count();
        let left = self.losses_left();
        let served = self.check_serving().err().map(|error| error.message);
        let enough = left.is_some();
        let reason = match (&served, left) {
            (Some(reason), _) => reason.clone(),
            (None, None) => format!("too few members: {}", away_names(&members)),
            (None, Some(_)) if away > 0 => format!("degraded: {}", away_names(&members)),
            (None, Some(_)) => String::new(),
        };
        let extents = &self.engine.extents;
        let (used, free) = (extents.used_bytes(), extents.free_bytes());
        v1::GetStatusResponse {
            reads_served: served.is_none() && enough,
            writes_served: served.is_none() && enough,
            reason,
            array: Some(self.describe()),
            capacity: Some(v1::Capacity {
                raw_bytes: members.iter().map(|member| member.size_bytes).sum(),
                data_bytes: used + free,
                used_bytes: used,
                free_bytes: free,
            }),
            redundancy: Some(v1::Redundancy {
                tolerated: profile.tolerated_members() as u32,
                away: away as u32,
                left: left.unwrap_or(0) as u32,
            }),
            members,
            objects: self.object_count(),
        }
    }

    /// Members that can still be lost, whichever they are; `None` if too few are left already.
    fn losses_left(&self) -> Option<usize> {
        let geometry = self.engine.extents.geometry();
        let (k, tolerated) = (geometry.profile().data_shards(), geometry.profile().tolerated_members());
        let usable = |index| self.engine.members.get(index).worth_asking();
        let chunks = self.engine.extents.chunks.all();
        let left = chunks.iter().map(|chunk| {
            let at_hand = chunk.slices.iter().filter(|slice| usable(slice.member)).count();
            at_hand.checked_sub(k).map(|left| left.min(tolerated))
        });
        let members = self.engine.members.iter().filter(|member| member.worth_asking()).count();
        let whole =
            members.checked_sub(geometry.profile().members() - tolerated).map(|left| left.min(tolerated));
        left.chain(chunks.is_empty().then_some(whole)).min().flatten()
    }
}

/// State of a member, and why.
fn state(member: &Member) -> (v1::MemberState, String) {
    if let Some(out) = member.standing().out {
        return match (member.rejoin(), member.service()) {
            (Rejoin::Running(progress), _) => {
                (v1::MemberState::Rebuilding, format!("{progress}; it is out because {}", out.reason))
            }
            (_, Service::Absent(why)) => (v1::MemberState::Out, format!("{}; now: {why}", out.reason)),
            (Rejoin::Failed(why), _) => {
                (v1::MemberState::Out, format!("{}; it could not be taken back: {why}", out.reason))
            }
            (Rejoin::Idle, _) => (v1::MemberState::Out, out.reason),
        };
    }
    match member.service() {
        Service::Absent(reason) => (v1::MemberState::Missing, reason),
        Service::Fenced => (v1::MemberState::Missing, "its pending writes are being resolved".to_owned()),
        Service::InService if !member.link.responsive() => {
            let silent = TICK * member.link.silent_ticks();
            (v1::MemberState::Missing, format!("connected, but silent for {:.1} s", silent.as_secs_f64()))
        }
        Service::InService => (v1::MemberState::InSync, String::new()),
    }
}

fn away_names(members: &[v1::Member]) -> String {
    let away = members.iter().filter(|member| member.state() != v1::MemberState::InSync);
    let name = |member: &v1::Member| {
        let state = match member.state() {
            v1::MemberState::Out => "out",
            v1::MemberState::Rebuilding => "being taken back",
            _ => "missing",
        };
        format!("member {} is {state} ({})", member.index, member.reason)
    };
    away.map(name).collect::<Vec<_>>().join("; ")
}

impl From<&Phase> for v1::GetStatusResponse {
    /// The status before there is an array.
    fn from(phase: &Phase) -> Self {
        let reason = match phase {
            Phase::Starting(what) => what.clone(),
            Phase::Serving => String::new(),
        };
        v1::GetStatusResponse { reason, ..Default::default() }
    }
}
