//! Keeps a member connected: reaches its agent, makes sure it is the disk it should be, fences it, opens the session,
//! and starts over when the session ends.
//!
//! Does not decide when a fenced member serves: its pending writes are resolved first, by whoever was given to
//! [`keep_connected`] as the receiver of arrivals.

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;
use stripeset_proto::{
    Error, ErrorKind, convert, limits, transport,
    v1::{self, agent_data_service_client::AgentDataServiceClient, agent_service_client::AgentServiceClient},
};
use stripeset_stripe::{
    Epoch,
    label::{Label, Revision},
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{
    Request,
    transport::{Channel, Endpoint},
};
use uuid::Uuid;

use super::{DiskLayout, Member, MemberIndex, Members, Service, inspect::Units, link};

/// Longest wait for a TCP connection.
const CONNECT_LIMIT: Duration = Duration::from_secs(2);

/// Longest wait for a unary call that touches no more than a few blocks of the disk.
pub const UNARY_LIMIT: Duration = Duration::from_secs(10);

/// How long a start waits for the epochs of members.
const SURVEY_LIMIT: Duration = Duration::from_millis(500);

/// First and longest pause before the next attempt.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));

/// What the members of an array have in common.
#[derive(Clone, Copy, Debug)]
pub struct Claim {
    /// UUID of the array.
    pub array_id: Uuid,
    /// Epoch of this coordinator.
    pub epoch: Epoch,
    /// Name of its state folder.
    pub folder: Uuid,
}

/// What a fenced disk says.
#[derive(Clone, Debug, Default)]
pub struct FencedDisk {
    /// UUID of the disk.
    pub disk_id: Uuid,
    /// Its label.
    pub label: Option<Label>,
    /// State folders from which it was fenced since it took that label.
    pub fenced_by: Vec<Uuid>,
    /// What is pending on it.
    pub pending: Vec<v1::PendingWrite>,
}

/// What the rest of the coordinator hears of a member.
#[derive(Debug)]
pub enum Arrival {
    /// The member is fenced and can be called. Once what is pending there is resolved, it can be set in service.
    Fenced {
        /// The member.
        member: MemberIndex,
        /// What its disk says.
        disk: FencedDisk,
    },
    /// The disk has been fenced for a higher epoch: this coordinator is deposed.
    Deposed {
        /// The member.
        member: MemberIndex,
        /// What the agent said.
        message: String,
    },
}

/// An agent's address as an endpoint, with the transport settings that both ends agree on.
pub fn endpoint(address: &str) -> Result<Endpoint, Error> {
    let address = address.strip_prefix("http://").unwrap_or(address);
    let wrong =
        |_| Error::invalid(format!("agent address {address:?}: it has to be host:port, as in 10.0.0.7:7421"));
    let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(wrong)?;
    Ok(transport::endpoint(endpoint).connect_timeout(CONNECT_LIMIT))
}

/// A request with a deadline.
pub fn timed<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(UNARY_LIMIT);
    request
}

/// The inspection service at the other end of a channel.
pub fn agent_client(channel: Channel) -> AgentServiceClient<Channel> {
    AgentServiceClient::new(channel)
        .max_decoding_message_size(limits::MESSAGE_BYTES_MAX)
        .max_encoding_message_size(limits::MESSAGE_BYTES_MAX)
}

/// Connects and reconnects for as long as the future is polled.
pub async fn keep_connected(
    members: Arc<Members>,
    index: MemberIndex,
    claim: Claim,
    arrivals: mpsc::Sender<Arrival>,
) {
    let member = members.get(index);
    let mut pause = PAUSES.0;
    loop {
        let started = tokio::time::Instant::now();
        let reason = match session(&members, member, claim, &arrivals).await {
            Ok(ended) => ended,
            Err(error) => {
                if error.kind == ErrorKind::Stale {
                    let deposed = Arrival::Deposed { member: member.index, message: error.message.clone() };
                    // Nobody listens any more when the coordinator is stopping.
                    let _ = arrivals.send(deposed).await;
                }
                error.message
            }
        };
        if member.service() != Service::Absent(reason.clone()) {
            tracing::warn!(member = member.index.0, address = member.address(), reason, "member is away");
        }
        member.set_service(Service::Absent(reason));
        if started.elapsed() > PAUSES.1 {
            pause = PAUSES.0;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSES.1);
    }
}

async fn session(
    members: &Members,
    member: &Member,
    claim: Claim,
    arrivals: &mpsc::Sender<Arrival>,
) -> Result<String, Error> {
    let (address, disk_id) = (member.address(), member.disk_id());
    let channel = match endpoint(&address)?.connect().await {
        Ok(channel) => channel,
        Err(error) => return Err(unreachable(&address, &error)),
    };
    let mut agent = agent_client(channel.clone());
    let described = agent.describe(timed(v1::DescribeRequest {})).await?.into_inner();
    if let Some(label) = recognise(members, member, claim, &described).await? {
        // No deadline but the connection's: how long a disk takes to write out its table depends on its length.
        let join = v1::JoinRequest { disk_id: convert::uuid_bytes(disk_id), label: Some(label.into()) };
        agent.join(join).await?;
    }
    member.set_layout(DiskLayout {
        first_unit_offset: described.first_unit_offset,
        unit_stride_bytes: described.unit_stride_bytes,
    });
    let fence = v1::FenceRequest {
        disk_id: convert::uuid_bytes(disk_id),
        epoch: Some(claim.epoch.into()),
        folder_id: convert::uuid_bytes(claim.folder),
    };
    let disk = FencedDisk::read(disk_id, agent.fence(timed(fence)).await?.into_inner())?;
    let (requests, queue) = link::request_queue();
    let mut data = AgentDataServiceClient::new(channel.clone())
        .max_decoding_message_size(limits::MESSAGE_BYTES_MAX)
        .max_encoding_message_size(limits::MESSAGE_BYTES_MAX);
    let answers = data.session(ReceiverStream::new(queue)).await?.into_inner();
    let opened = async {
        member.set_service(Service::Fenced);
        tracing::info!(member = member.index.0, pending = disk.pending.len(), "member fenced");
        let arrival = Arrival::Fenced { member: member.index, disk };
        // Nobody listens any more when the coordinator is stopping.
        let _ = arrivals.send(arrival).await;
    };
    Ok(member.link.run(Units::Agent(channel), requests, answers, opened).await)
}

/// What went wrong while connecting, down to the cause that a person can act on.
pub fn unreachable(address: &str, error: &tonic::transport::Error) -> Error {
    let mut cause: &dyn std::error::Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    Error::new(ErrorKind::Unavailable, format!("cannot reach the agent at {address}: {cause}"))
}

impl FencedDisk {
    /// What a disk answered to `Fence`.
    pub fn read(disk_id: Uuid, answer: v1::FenceResponse) -> Result<FencedDisk, Error> {
        let folder = |id| convert::uuid("fenced_by", id);
        Ok(FencedDisk {
            disk_id,
            label: answer.label.map(Label::try_from).transpose()?,
            fenced_by: answer.fenced_by.iter().map(|id| folder(id)).collect::<Result<_, _>>()?,
            pending: answer.pending,
        })
    }

    /// The revision of its label.
    pub fn revision(&self) -> Revision {
        self.label.as_ref().map_or(Revision::default(), |label| label.revision)
    }
}

/// The highest number of an epoch for which any agent that answers at once was fenced. Before an epoch is claimed.
pub async fn survey(addresses: impl IntoIterator<Item = String>) -> u64 {
    let ask = |address: String| async move {
        let channel = endpoint(&address)?.connect().await.map_err(|error| unreachable(&address, &error))?;
        let described = agent_client(channel).describe(timed(v1::DescribeRequest {})).await?.into_inner();
        Ok::<u64, Error>(convert::epoch(described.epoch).number)
    };
    let ask_in_time = |address| tokio::time::timeout(SURVEY_LIMIT, ask(address));
    let answers = join_all(addresses.into_iter().map(ask_in_time)).await;
    // Who does not answer refuses this coordinator later, if it is behind.
    answers.into_iter().filter_map(|answer| answer.ok()?.ok()).max().unwrap_or(0)
}

/// Makes sure that this is the disk that it should be. Returns the label that it has to join with, if it is the blank disk
/// that was put in the member's place.
async fn recognise(
    members: &Members,
    member: &Member,
    claim: Claim,
    described: &v1::DescribeResponse,
) -> Result<Option<Label>, Error> {
    let found = convert::uuid("disk_id", &described.disk_id)?;
    let precondition = |message| Err(Error::new(ErrorKind::Precondition, message));
    if found != member.disk_id() {
        let what = match &described.label {
            Some(_) => "another disk",
            None => "a blank disk",
        };
        return precondition(format!(
            "{what}, {found}, stands at {}, where this member's disk {} should be",
            member.address(),
            member.disk_id()
        ));
    }
    let array =
        described.label.as_ref().map(|label| convert::uuid("array_id", &label.array_id)).transpose()?;
    match array {
        Some(array) if array == claim.array_id => Ok(None),
        Some(array) => precondition(format!("the disk belongs to array {array}, not to {}", claim.array_id)),
        None => match members.labels.in_force().await.filter(|label| label.is_blank(member.index.0 as usize))
        {
            Some(label) => Ok(Some(label)),
            None => precondition("the disk has forgotten its array: its label is gone".to_owned()),
        },
    }
}
