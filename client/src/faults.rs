//! [`FaultClient`]: faults on demand, for drills and for tests. Of a cluster that was started with `--faults` alone.

use std::time::Duration;

use bytes::Bytes;
use stripeset_proto::{
    ErrorKind, limits,
    v1::{self, disk_fault::Fault, fault_service_client::FaultServiceClient},
};
use tonic::transport::Channel;

use crate::{Client, Error, retry::Repeat};

/// One fault of a member's disk or its agent. Offsets are bytes on the disk, as [`SectorPlace`](crate::SectorPlace) has
/// them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskFault {
    /// Inverts bytes, 1 to 65536; with `rewrite_checksum` the checksums of their sectors are rewritten to match, in this
    /// disk's records alone.
    Flip {
        /// First byte.
        disk_offset: u64,
        /// Number of bytes.
        length: u64,
        /// Rewrite the checksums.
        rewrite_checksum: bool,
    },
    /// Makes bytes zeros, 1 to 1 MiB, under their checksums.
    Punch {
        /// First byte.
        disk_offset: u64,
        /// Number of bytes.
        length: u64,
    },
    /// Remembers a sector, with its checksum, until the agent stops.
    SaveSector {
        /// A byte in it.
        disk_offset: u64,
    },
    /// Puts a remembered sector back, with its checksum, under the version that its unit has now.
    RestoreSector {
        /// A byte in it.
        disk_offset: u64,
    },
    /// Loses so many writes of the data area, and says that they are done.
    DropWrites {
        /// How many; 0 ends it.
        count: u64,
    },
    /// Ends so many reads of the data area after some bytes.
    ShortReads {
        /// Bytes that a read gives.
        bytes: u64,
        /// How many reads; 0 ends it.
        count: u64,
    },
    /// Makes so many operations fail.
    IoErrors {
        /// Reads of the data area.
        reads: u64,
        /// Writes and syncs.
        writes: u64,
    },
    /// Makes every operation of the disk wait, at most a minute; zero ends it.
    Delay(Duration),
    /// Nothing is answered until it thaws.
    Freeze,
    /// A frozen disk goes on.
    Thaw,
    /// Every fault that lasts is over.
    Clear,
}

/// A step of a partial write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteStep {
    /// What was needed is read, nothing is prepared.
    RmwRead,
    /// Every member has prepared, and nothing is decided yet.
    RmwPrepared,
    /// Decided; nothing is cached yet.
    RmwDecided,
    /// Done; the caller does not know yet.
    Acknowledge,
}

/// What happens at a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepAction {
    /// The write stops until it is resumed, or for so long, at most a minute.
    Stop(Duration),
    /// The coordinator's process dies.
    Crash,
}

/// Injects faults. Made by [`Client::faults`]. Every call fails with `Precondition` unless the cluster was started with
/// `--faults`.
#[derive(Clone, Debug)]
pub struct FaultClient {
    pub(crate) client: Client,
}

impl FaultClient {
    /// Injects a fault at a member; it is in effect when this returns.
    ///
    /// # Errors
    /// `InvalidArgument` for a member, offset or length that there is not; `Precondition` for a sector that cannot be
    /// changed now; `Unavailable` if the agent does not answer.
    pub async fn inject(&self, member: u32, fault: DiskFault) -> Result<(), Error> {
        let fault = Some(v1::DiskFault { fault: Some(fault.into()) });
        let send = |request| {
            let mut service = self.service();
            async move { service.inject_member_fault(request).await }
        };
        let message = v1::InjectMemberFaultRequest { member, fault };
        self.said(self.client.call(Repeat::Refused, message, send).await.map(|_| ()))
    }

    /// Inverts bytes of cached sectors, in one stripe, without a change on any disk; how many sectors were cached.
    ///
    /// # Errors
    /// `InvalidArgument` if the range is in no chunk, or not in one stripe.
    pub async fn corrupt_cache(&self, logical: u64, length: u64) -> Result<u64, Error> {
        let send = |request| {
            let mut service = self.service();
            async move { service.corrupt_cache(request).await }
        };
        let message = v1::CorruptCacheRequest { logical, length };
        let answer = self.client.call(Repeat::Refused, message, send).await;
        self.said(answer.map(|answer| answer.sectors))
    }

    /// Reads at most 1 MiB of an object as if members were lost; to the end of the object if no length is given.
    ///
    /// # Errors
    /// `DataLoss` if the bytes cannot be rebuilt without them; `NotFound`; `InvalidArgument`.
    pub async fn read_without(
        &self,
        name: &str,
        offset: u64,
        length: Option<u64>,
        members: &[u32],
    ) -> Result<Bytes, Error> {
        let send = |request| {
            let mut service = self.service();
            async move { service.read_without(request).await }
        };
        let message = v1::ReadWithoutRequest {
            name: name.to_owned(),
            offset,
            length: length.unwrap_or_default(),
            members: members.to_vec(),
        };
        let answer = self.client.call(Repeat::Always, message, send).await;
        self.said(answer.map(|answer| answer.data))
    }

    /// Says what happens to the partial write after the next `after` ones, at a step.
    ///
    /// # Errors
    /// `InvalidArgument` if it is to stop for more than a minute.
    pub async fn arm_step(&self, step: WriteStep, action: StepAction, after: u32) -> Result<(), Error> {
        let step = match step {
            WriteStep::RmwRead => v1::WriteStep::RmwRead,
            WriteStep::RmwPrepared => v1::WriteStep::RmwPrepared,
            WriteStep::RmwDecided => v1::WriteStep::RmwDecided,
            WriteStep::Acknowledge => v1::WriteStep::Acknowledge,
        };
        let (crash, limit_millis) = match action {
            StepAction::Crash => (true, 0),
            StepAction::Stop(limit) => (false, millis(limit)),
        };
        let send = |request| {
            let mut service = self.service();
            async move { service.arm_step(request).await }
        };
        let message = v1::ArmStepRequest { step: step.into(), crash, after, limit_millis };
        self.said(self.client.call(Repeat::Always, message, send).await.map(|_| ()))
    }

    /// Disarms all steps, and lets writes go on that are stopped; how many.
    ///
    /// # Errors
    /// Those of every call.
    pub async fn resume_steps(&self) -> Result<u32, Error> {
        let send = |request| {
            let mut service = self.service();
            async move { service.resume_steps(request).await }
        };
        let answer = self.client.call(Repeat::Always, v1::ResumeStepsRequest {}, send).await;
        self.said(answer.map(|answer| answer.resumed))
    }

    /// Says where in the logical space the next write smaller than a stripe is stored, if it is free there.
    ///
    /// # Errors
    /// `InvalidArgument` if it is no multiple of 4 KiB or in no chunk; `Precondition` if it is in use.
    pub async fn hint_allocation(&self, logical: u64) -> Result<(), Error> {
        let send = |request| {
            let mut service = self.service();
            async move { service.hint_allocation(request).await }
        };
        let message = v1::HintAllocationRequest { logical };
        self.said(self.client.call(Repeat::Always, message, send).await.map(|_| ()))
    }

    /// A server without the service says no more than that.
    fn said<T>(&self, answer: Result<T, Error>) -> Result<T, Error> {
        answer.map_err(|error| match error.kind() == ErrorKind::Precondition && error.message().is_empty() {
            true => Error::new(
                ErrorKind::Precondition,
                "this coordinator injects no faults: start the cluster with --faults",
            ),
            false => error,
        })
    }

    fn service(&self) -> FaultServiceClient<Channel> {
        FaultServiceClient::new(self.client.channel.clone())
            .max_decoding_message_size(limits::MESSAGE_BYTES_MAX)
            .max_encoding_message_size(limits::MESSAGE_BYTES_MAX)
    }
}

/// Whole milliseconds, at least one unless it is zero, so that the least delay is not none.
fn millis(duration: Duration) -> u32 {
    u32::try_from(duration.as_micros().div_ceil(1000)).unwrap_or(u32::MAX)
}

impl From<DiskFault> for Fault {
    fn from(fault: DiskFault) -> Fault {
        match fault {
            DiskFault::Flip { disk_offset, length, rewrite_checksum } => {
                Fault::Flip(v1::FlipFault { disk_offset, length, rewrite_checksum })
            }
            DiskFault::Punch { disk_offset, length } => Fault::Punch(v1::PunchFault { disk_offset, length }),
            DiskFault::SaveSector { disk_offset } => Fault::SaveSector(v1::SaveSectorFault { disk_offset }),
            DiskFault::RestoreSector { disk_offset } => {
                Fault::RestoreSector(v1::RestoreSectorFault { disk_offset })
            }
            DiskFault::DropWrites { count } => Fault::DropWrites(v1::DropWritesFault { count }),
            DiskFault::ShortReads { bytes, count } => Fault::ShortReads(v1::ShortReadsFault { bytes, count }),
            DiskFault::IoErrors { reads, writes } => Fault::IoErrors(v1::IoErrorsFault { reads, writes }),
            DiskFault::Delay(delay) => Fault::Delay(v1::DelayFault { millis: millis(delay) }),
            DiskFault::Freeze => Fault::Freeze(v1::FreezeFault {}),
            DiskFault::Thaw => Fault::Thaw(v1::ThawFault {}),
            DiskFault::Clear => Fault::Clear(v1::ClearFaults {}),
        }
    }
}
