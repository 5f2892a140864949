//! Faults of the coordinator on demand, and those that it passes on to agents: for drills and tests. Served only where it
//! was asked for at the start.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use stripeset_proto::{
    Error, ErrorKind,
    v1::{self, agent_fault_service_client::AgentFaultServiceClient},
};
use stripeset_stripe::{SECTOR_BYTES, geometry::Logical};

use crate::{
    array::Array,
    engine::steps::{Action, STOPPED_MAX, Step},
    members::{
        Member, MemberIndex,
        connect::{endpoint, timed, unreachable},
    },
    objects::{check_name, not_found},
};

/// Most bytes that are read without members at a time.
const READ_BYTES_MAX: u64 = 1024 * 1024;

impl Array {
    /// Passes a fault on to a member's agent.
    pub async fn inject_member_fault(&self, request: v1::InjectMemberFaultRequest) -> Result<(), Error> {
        let member = self.member(request.member)?;
        let channel = match endpoint(&member.address())?.connect().await {
            Ok(channel) => channel,
            Err(error) => return Err(unreachable(&member.address(), &error)),
        };
        let mut agent = AgentFaultServiceClient::new(channel);
        let request = v1::InjectDiskFaultRequest { fault: request.fault };
        match agent.inject_disk_fault(timed(request)).await {
            Ok(_) => Ok(()),
            Err(status) if status.code() == tonic::Code::Unimplemented => {
                let (index, address) = (member.index, member.address());
                let message =
                    format!("the agent of member {index} at {address} was not started with --faults");
                Err(Error::new(ErrorKind::Precondition, message))
            }
            Err(status) => Err(status.into()),
        }
    }

    fn member(&self, index: u32) -> Result<&Arc<Member>, Error> {
        let members = &self.engine.members;
        match (index as usize) < members.count() {
            true => Ok(members.get(MemberIndex(index))),
            false => {
                let last = members.count() - 1;
                Err(Error::invalid(format!("member {index}: the members of this array are 0 to {last}")))
            }
        }
    }

    /// Inverts the bytes of cached sectors of one stripe; how many there were.
    pub fn corrupt_cache(&self, request: v1::CorruptCacheRequest) -> Result<u64, Error> {
        let geometry = *self.engine.extents.geometry();
        let (logical, length) = (request.logical, request.length.max(1));
        let address = geometry.place(Logical(logical)).stripe;
        let start = geometry.stripe_start(address).0;
        if self.engine.extents.chunks.get(address.chunk).is_none() {
            return Err(Error::invalid(format!("logical address {logical} is in no chunk")));
        }
        if length > geometry.stripe_bytes() || logical + length > start + geometry.stripe_bytes() {
            let message = format!("{length} bytes from logical {logical} on are not all in one stripe");
            return Err(Error::invalid(message));
        }
        let key = self.engine.cache_key(&self.engine.extents.stripe(address));
        let mut cache = self.engine.cache();
        let Some(pages) = cache.peek_mut(&key) else { return Ok(0) };
        let sectors = (logical - start) as usize / SECTOR_BYTES
            ..((logical + length - start) as usize).div_ceil(SECTOR_BYTES);
        let mut changed = 0;
        for sector in sectors {
            let Some(page) = pages.get(sector) else { continue };
            let wrong: Vec<u8> = page.iter().map(|byte| !byte).collect();
            pages.set(sector, Bytes::from(wrong));
            changed += 1;
        }
        tracing::warn!(logical, sectors = changed, "the cache was changed, as it was asked to be");
        Ok(changed)
    }

    /// Bytes of an object as they are without some members.
    pub async fn read_object_without(
        self: &Arc<Self>,
        request: v1::ReadWithoutRequest,
    ) -> Result<Bytes, Error> {
        check_name(&request.name)?;
        let members = request.members.iter().map(|index| self.member(*index).map(|member| member.index));
        let members = members.collect::<Result<Vec<_>, Error>>()?;
        // What is freed meanwhile stays.
        let _pin = self.pins.pin();
        let snapshot = self.meta.snapshot()?;
        let object = snapshot.object(&request.name)?.ok_or_else(|| not_found(&request.name))?;
        let (offset, size) = (request.offset, object.size);
        if offset > size {
            return Err(Error::invalid(format!(
                "offset {offset} is past the end of {:?}, which has {size} bytes",
                request.name
            )));
        }
        let wanted = if request.length == 0 { size - offset } else { request.length.min(size - offset) };
        if wanted > READ_BYTES_MAX {
            let message =
                format!("{wanted} bytes: at most {READ_BYTES_MAX} can be read without members at a time");
            return Err(Error::invalid(message));
        }
        if wanted == 0 {
            return Ok(Bytes::new());
        }
        let extents = snapshot.extents(object.id, offset, wanted)?;
        self.read_without(&extents, offset..offset + wanted, &members).await
    }

    /// Arms a step of partial writes.
    pub fn arm_step(&self, request: v1::ArmStepRequest) -> Result<(), Error> {
        let step = match request.step() {
            v1::WriteStep::Unspecified => return Err(Error::invalid("no step given")),
            v1::WriteStep::RmwRead => Step::RmwRead,
            v1::WriteStep::RmwPrepared => Step::RmwPrepared,
            v1::WriteStep::RmwDecided => Step::RmwDecided,
            v1::WriteStep::Acknowledge => Step::Acknowledge,
        };
        let limit = Duration::from_millis(request.limit_millis.into());
        if limit > STOPPED_MAX {
            return Err(Error::invalid(format!(
                "{limit:?}: a write stays stopped for {STOPPED_MAX:?} at most"
            )));
        }
        let limit = if limit.is_zero() { STOPPED_MAX } else { limit };
        let action = if request.crash { Action::Crash } else { Action::Stop(limit) };
        self.engine.steps.arm(step, action, request.after);
        tracing::warn!(?step, ?action, after = request.after, "a step is armed");
        Ok(())
    }

    /// Says where the next small write goes.
    pub fn hint_allocation(&self, request: v1::HintAllocationRequest) -> Result<(), Error> {
        let logical = request.logical;
        if !logical.is_multiple_of(SECTOR_BYTES as u64) {
            let message = format!("logical address {logical}: it has to be a multiple of {SECTOR_BYTES}");
            return Err(Error::invalid(message));
        }
        let geometry = *self.engine.extents.geometry();
        let stripe = geometry.place(Logical(logical)).stripe;
        let Some(chunk) = self.engine.extents.chunks.get(stripe.chunk) else {
            return Err(Error::invalid(format!("logical address {logical} is in no chunk")));
        };
        let sector = (logical - geometry.stripe_start(stripe).0) as usize / SECTOR_BYTES;
        if self.engine.extents.live(stripe, sector) {
            let message = format!("the sector at logical {logical}, in chunk {}, is in use", chunk.index.0);
            return Err(Error::new(ErrorKind::Precondition, message));
        }
        self.engine.extents.hint(Logical(logical));
        Ok(())
    }
}
