//! Makes an array from blank agents: everything is checked before the first disk is touched.

use std::collections::BTreeSet;

use futures_util::future::{join_all, try_join_all};
use stripeset_proto::{Error, ErrorKind, convert, v1};
use stripeset_stripe::{
    Profile, ProfileSpec,
    geometry::Geometry,
    label::{Label, LabelMember, Revision},
};
use tonic::transport::Channel;
use uuid::Uuid;

use crate::{
    members::{
        ErrorCounts, MemberRecord,
        connect::{agent_client, endpoint, timed, unreachable},
    },
    meta::ArrayRecord,
};

/// Stripe unit if none is given.
const UNIT_BYTES: u32 = 64 * 1024;

/// Longest slice that is chosen if none is given.
const SLICE_BYTES: u64 = 64 * 1024 * 1024;

/// Shortest slice that is chosen if none is given.
const SLICE_BYTES_SMALL: u64 = 1024 * 1024;

/// Slices that the smallest disk should have at least, if none is given.
const SLICES_WANTED: u64 = 16;

/// What to make.
#[derive(Clone, Debug)]
pub struct Plan {
    agents: Vec<String>,
    data: Profile,
    metadata: Profile,
    unit_bytes: u32,
    slice_bytes: u64,
}

struct Blank {
    address: String,
    channel: Channel,
    disk_id: Uuid,
    disk_bytes: u64,
}

impl Plan {
    /// Checks everything that can be checked without the agents.
    pub fn new(request: v1::CreateArrayRequest) -> Result<Self, Error> {
        let bare = |address: &String| address.trim_start_matches("http://").trim_end_matches('/').to_owned();
        let agents: Vec<String> = request.agents.iter().map(bare).collect();
        if agents.is_empty() {
            return Err(Error::invalid("no agents given: an array needs at least one"));
        }
        for (index, address) in agents.iter().enumerate() {
            endpoint(address)?;
            if agents[..index].contains(address) {
                return Err(Error::invalid(format!("agent {address} is given twice")));
            }
        }
        let profile = |what: &str, word: &str| -> Result<Profile, Error> {
            let wrong = |error: stripeset_stripe::profile::ProfileError| {
                Error::invalid(format!("{what} profile: {error}"))
            };
            word.parse::<ProfileSpec>().map_err(wrong)?.resolve(agents.len()).map_err(wrong)
        };
        let data = profile("data", &request.data_profile)?;
        let metadata = profile("metadata", &request.metadata_profile)?;
        let unit_bytes = if request.unit_bytes == 0 { UNIT_BYTES } else { request.unit_bytes };
        let slice_bytes = request.slice_bytes;
        let checked = if slice_bytes == 0 { SLICE_BYTES } else { slice_bytes };
        Geometry::new(data, unit_bytes, checked).map_err(|error| Error::invalid(error.to_string()))?;
        Ok(Plan { agents, data, metadata, unit_bytes, slice_bytes })
    }

    /// Reaches the agents, checks that all are blank, and joins them.
    pub async fn carry_out(self) -> Result<(ArrayRecord, Vec<MemberRecord>, Label), Error> {
        let blanks = try_join_all(self.agents.iter().map(|address| reach(address))).await?;
        let disks: BTreeSet<Uuid> = blanks.iter().map(|blank| blank.disk_id).collect();
        if disks.len() < blanks.len() {
            return Err(Error::invalid("two of the addresses lead to the same disk: give each agent once"));
        }
        let array = ArrayRecord {
            array_id: Uuid::new_v4(),
            data_profile: self.data.to_string(),
            metadata_profile: self.metadata.to_string(),
            unit_bytes: self.unit_bytes,
            slice_bytes: self.slice_bytes(&blanks)?,
        };
        // All at once: each writes out its journal and table, which takes a while on large disks.
        let label = label(&array, [self.data, self.metadata], &blanks);
        let joining = blanks.iter().map(|blank| join(blank, label.clone().into()));
        let (joined, failed): (Vec<_>, Vec<_>) =
            blanks.iter().zip(join_all(joining).await).partition(|(_, outcome)| outcome.is_ok());
        if let Some((blank, Err(error))) = failed.into_iter().next() {
            let joined: Vec<&Blank> = joined.into_iter().map(|(blank, _)| blank).collect();
            return Err(half_made(error, &joined, blank));
        }
        let member = |(blank, slices): (&Blank, Result<u64, Error>)| {
            Ok(MemberRecord {
                disk_id: blank.disk_id,
                address: blank.address.clone(),
                slices: slices?,
                disk_bytes: blank.disk_bytes,
                errors: ErrorCounts::default(),
            })
        };
        let members = joined.into_iter().map(member).collect::<Result<_, Error>>()?;
        Ok((array, members, label))
    }

    /// The slice given, or one that suits the smallest disk.
    fn slice_bytes(&self, blanks: &[Blank]) -> Result<u64, Error> {
        let Some(smallest) = blanks.iter().min_by_key(|blank| blank.disk_bytes) else {
            return Err(Error::invalid("no agents given"));
        };
        let mut chosen = self.slice_bytes;
        if chosen == 0 {
            chosen = SLICE_BYTES;
            while chosen > SLICE_BYTES_SMALL && chosen * SLICES_WANTED > smallest.disk_bytes {
                chosen /= 2;
            }
        }
        if chosen > smallest.disk_bytes / 2 {
            return Err(Error::invalid(format!(
                "the disk of agent {} has {} bytes: too small for slices of {chosen} bytes and the records beside them",
                smallest.address, smallest.disk_bytes
            )));
        }
        Ok(chosen)
    }
}

async fn reach(address: &str) -> Result<Blank, Error> {
    let channel = match endpoint(address)?.connect().await {
        Ok(channel) => channel,
        Err(error) => return Err(unreachable(address, &error)),
    };
    let described = agent_client(channel.clone()).describe(timed(v1::DescribeRequest {})).await?.into_inner();
    let disk_id = convert::uuid("disk_id", &described.disk_id)?;
    if let Some(label) = described.label.map(Label::try_from).transpose()? {
        let message = format!(
            "agent {address} is not blank: its disk {} is member {} of array {}; give a blank disk",
            described.path,
            label.member_of(disk_id).unwrap_or_default(),
            label.array_id
        );
        return Err(Error::new(ErrorKind::Precondition, message));
    }
    Ok(Blank { address: address.to_owned(), channel, disk_id, disk_bytes: described.disk_bytes })
}

/// Makes a blank disk a member. Returns the slices that fit. No deadline but the connection's: how long a disk takes to
/// write out its table depends on its length.
async fn join(blank: &Blank, label: v1::Label) -> Result<u64, Error> {
    let request = v1::JoinRequest { disk_id: convert::uuid_bytes(blank.disk_id), label: Some(label) };
    Ok(agent_client(blank.channel.clone()).join(request).await?.into_inner().slices)
}

fn label(array: &ArrayRecord, profiles: [Profile; 2], blanks: &[Blank]) -> Label {
    let most = |count: fn(Profile) -> usize| profiles.into_iter().map(count).max().unwrap_or_default() as u32;
    let members = blanks.iter().map(|blank| LabelMember {
        disk_id: blank.disk_id,
        address: blank.address.clone(),
        out: None,
    });
    Label {
        array_id: array.array_id,
        revision: Revision { number: 1, ..Revision::default() },
        unit_bytes: array.unit_bytes,
        slice_bytes: array.slice_bytes,
        members: members.collect(),
        shards_max: most(Profile::shards),
        data_shards_max: most(Profile::data_shards),
        may_follow: Vec::new(),
    }
}

fn half_made(mut error: Error, joined: &[&Blank], failed: &Blank) -> Error {
    error.message = format!("agent {}: {}", failed.address, error.message);
    if !joined.is_empty() {
        let joined: Vec<&str> = joined.iter().map(|blank| blank.address.as_str()).collect();
        error.message += &format!(
            "; no array was made, but the disks of {} already carry its label: start those agents on new disks",
            joined.join(", ")
        );
    }
    error
}
