//! Keeps a member connected: reaches its agent, makes sure it is the disk it should be, fences it, opens the session,
//! and starts over when the session ends.
//!
//! Does not decide when a fenced member serves: its pending writes are resolved first, by whoever was given to
//! [`keep_connected`] as the receiver of arrivals.

use std::{sync::Arc, time::Duration};

use stripeset_proto::{
    Error, ErrorKind, convert, limits,
    v1::{self, agent_data_service_client::AgentDataServiceClient, agent_service_client::AgentServiceClient},
};
use stripeset_stripe::Epoch;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{
    Request,
    transport::{Channel, Endpoint},
};
use uuid::Uuid;

use super::{
    DiskLayout, Member, MemberIndex, Service,
    link::{self, Units},
};

/// Longest wait for a TCP connection.
const CONNECT_LIMIT: Duration = Duration::from_secs(2);

/// Longest wait for a unary call that touches no more than a few blocks of the disk.
pub const UNARY_LIMIT: Duration = Duration::from_secs(10);

/// First and longest pause before the next attempt.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));

/// What the members of an array have in common.
#[derive(Clone, Copy, Debug)]
pub struct Claim {
    /// UUID of the array.
    pub array_id: Uuid,
    /// Epoch of this coordinator.
    pub epoch: Epoch,
}

/// What the rest of the coordinator hears of a member.
#[derive(Debug)]
pub enum Arrival {
    /// The member is fenced and can be called. Once what is pending there is resolved, it can be set in service.
    Fenced {
        /// The member.
        member: MemberIndex,
        /// What is pending on its disk.
        pending: Vec<v1::PendingWrite>,
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
    Ok(endpoint
        .connect_timeout(CONNECT_LIMIT)
        .tcp_nodelay(true)
        .initial_stream_window_size(limits::STREAM_WINDOW_BYTES)
        .initial_connection_window_size(limits::CONNECTION_WINDOW_BYTES)
        .max_frame_size(limits::FRAME_BYTES_MAX))
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
pub async fn keep_connected(member: Arc<Member>, claim: Claim, arrivals: mpsc::Sender<Arrival>) {
    let mut pause = PAUSES.0;
    loop {
        let started = tokio::time::Instant::now();
        let reason = match session(&member, claim, &arrivals).await {
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
            tracing::warn!(member = member.index.0, address = member.address, reason, "member is away");
        }
        member.set_service(Service::Absent(reason));
        if started.elapsed() > PAUSES.1 {
            pause = PAUSES.0;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSES.1);
    }
}

async fn session(member: &Member, claim: Claim, arrivals: &mpsc::Sender<Arrival>) -> Result<String, Error> {
    let channel = match endpoint(&member.address)?.connect().await {
        Ok(channel) => channel,
        Err(error) => return Err(unreachable(&member.address, &error)),
    };
    let mut agent = agent_client(channel.clone());
    let described = agent.describe(timed(v1::DescribeRequest {})).await?.into_inner();
    recognise(member, claim, &described)?;
    member.set_layout(DiskLayout {
        first_unit_offset: described.first_unit_offset,
        unit_stride_bytes: described.unit_stride_bytes,
    });
    let fence =
        v1::FenceRequest { disk_id: convert::uuid_bytes(member.disk_id), epoch: Some(claim.epoch.into()) };
    let fenced = agent.fence(timed(fence)).await?.into_inner();
    let (requests, queue) = link::request_queue();
    let mut data = AgentDataServiceClient::new(channel.clone())
        .max_decoding_message_size(limits::MESSAGE_BYTES_MAX)
        .max_encoding_message_size(limits::MESSAGE_BYTES_MAX);
    let answers = data.session(ReceiverStream::new(queue)).await?.into_inner();
    let opened = async {
        member.set_service(Service::Fenced);
        tracing::info!(member = member.index.0, pending = fenced.pending.len(), "member fenced");
        let arrival = Arrival::Fenced { member: member.index, pending: fenced.pending };
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

fn recognise(member: &Member, claim: Claim, described: &v1::DescribeResponse) -> Result<(), Error> {
    let found = convert::uuid("disk_id", &described.disk_id)?;
    let precondition = |message| Err(Error::new(ErrorKind::Precondition, message));
    if found != member.disk_id {
        return precondition(format!(
            "the agent at {} serves disk {found}, but this member is disk {}: another or a blank disk stands there",
            member.address, member.disk_id
        ));
    }
    let array =
        described.label.as_ref().map(|label| convert::uuid("array_id", &label.array_id)).transpose()?;
    match array {
        Some(array) if array == claim.array_id => Ok(()),
        Some(array) => precondition(format!("the disk belongs to array {array}, not to {}", claim.array_id)),
        None => precondition("the disk has forgotten its array: its label is gone".to_owned()),
    }
}
