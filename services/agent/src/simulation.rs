//! One agent without gRPC and without a thread: the store, on a disk in memory, that speaks the messages of the wire.
//! For services/sim.
//!
//! Requests are read, carried out and answered by the functions that serve the network. Decides nothing of what a disk
//! does wrong, nor when: whoever holds the agent does.
//!
//! 1. Nothing here depends on a clock, a random number or another thread; deadlines of requests follow tokio's clock.
//! 2. What was injected is counted over restarts and losses of power.

use std::ops::Range;

use stripeset_proto::{convert::uuid_bytes, v1};
use stripeset_stripe::{Epoch, SECTOR_BYTES, Version, label::Label};
use thiserror::Error;
use uuid::Uuid;

use crate::{
    disk::simulated::{Dice, Faults, SimulatedDisk},
    group,
    refusal::Refusal,
    session::{self, Asked},
    store::{
        Store,
        inspect::{ViewState, Wanted},
    },
};

/// How often the disk does what it should not, of a thousand operations that could go wrong that way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultRates {
    /// A bit of what is written flips on the medium.
    pub rot: u64,
    /// A block of what is written cannot be read until it is written again.
    pub latent_errors: u64,
    /// A write lands a block too far; the store is told that all is well.
    pub misdirected_writes: u64,
    /// A write lands nowhere; the store is told that all is well.
    pub dropped_writes: u64,
    /// A write, or an allocation, finds no space, where it has to take some.
    pub full: u64,
}

/// How often each fault was injected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCounts {
    /// See [`FaultRates::rot`].
    pub rot: u64,
    /// See [`FaultRates::latent_errors`].
    pub latent_errors: u64,
    /// See [`FaultRates::misdirected_writes`].
    pub misdirected_writes: u64,
    /// See [`FaultRates::dropped_writes`].
    pub dropped_writes: u64,
    /// See [`FaultRates::full`].
    pub full: u64,
}

/// Why an agent does not do what it was asked.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SimulationError {
    /// The disk cannot be opened again.
    #[error("the disk cannot be opened: {0}")]
    Open(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The disk cannot join.
    #[error("the disk cannot join: {0}")]
    Join(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The store refused.
    #[error("{0}")]
    Refused(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// An agent on a disk in memory.
pub struct SimulatedAgent {
    disk_id: Uuid,
    disk: SimulatedDisk,
    /// `None` once the disk could not be opened again: then nothing is answered.
    store: Option<Store>,
    /// What disks before this one had injected.
    injected_before: FaultCounts,
}

impl SimulatedAgent {
    /// An agent on a blank disk of `disk_bytes`.
    pub fn new(disk_id: Uuid, disk_bytes: usize) -> Result<SimulatedAgent, SimulationError> {
        let mut disk = SimulatedDisk::new(disk_bytes);
        if let Err(error) = Store::format(&mut disk, disk_id) {
            return Err(SimulationError::Open(error.into()));
        }
        let mut agent =
            SimulatedAgent { disk_id, disk, store: None, injected_before: FaultCounts::default() };
        agent.open()?;
        Ok(agent)
    }

    fn open(&mut self) -> Result<(), SimulationError> {
        let opened = Store::open(Box::new(self.disk.clone()));
        self.store = Some(opened.map_err(|error| SimulationError::Open(error.into()))?);
        Ok(())
    }

    /// UUID of the disk.
    pub fn disk_id(&self) -> Uuid {
        self.disk_id
    }

    /// Makes the disk a member of an array. Returns the slices that fit.
    pub fn join(&mut self, label: v1::Label) -> Result<u64, SimulationError> {
        let label = Label::try_from(label).map_err(|error| SimulationError::Join(error.into()))?;
        let disk_id = self.disk_id;
        self.store()?.join(disk_id, label).map_err(|error| SimulationError::Join(error.into()))
    }

    /// Makes the disk refuse every lower epoch, as `Fence` does, for a coordinator with this state folder.
    pub fn fence(&mut self, epoch: Epoch, folder: Uuid) -> Result<v1::FenceResponse, SimulationError> {
        let store = self.store()?;
        let pending = store.fence(epoch, folder).map_err(refused)?;
        let superblock = store.superblock();
        Ok(v1::FenceResponse {
            incarnation: 0,
            label: superblock.label.clone().map(v1::Label::from),
            pending: pending.into_iter().map(v1::PendingWrite::from).collect(),
            fenced_by: superblock.fenced_by.iter().copied().map(uuid_bytes).collect(),
        })
    }

    /// The highest epoch that the disk was fenced for.
    pub fn epoch(&self) -> Epoch {
        self.store.as_ref().map_or(Epoch::default(), |store| store.superblock().epoch)
    }

    /// Carries out what has come together, as one group, and returns the answers in the order in which they go out.
    pub fn handle(&mut self, requests: Vec<v1::SessionRequest>) -> Vec<v1::SessionResponse> {
        let (disk_id, Some(store)) = (self.disk_id, &mut self.store) else { return Vec::new() };
        let mut answers = Vec::with_capacity(requests.len());
        let mut group = Vec::with_capacity(requests.len());
        for request in requests {
            let request_id = request.request_id;
            let asked = Asked::of(request, disk_id);
            match asked.and_then(|asked| asked.map(|asked| asked.checked(disk_id, request_id)).transpose()) {
                Ok(Some(request)) => group.push(request),
                Ok(None) => answers.push(session::answer(request_id, Ok(crate::operation::Outcome::Done))),
                Err(refusal) => answers.push(session::answer(request_id, Err(refusal))),
            }
        }
        group::carry_out(store, group.into_iter(), |request_id, outcome| {
            answers.push(session::answer(request_id, outcome));
        });
        answers
    }

    /// Lets committed writes go home, as a few times a second.
    pub fn tick(&mut self) -> Result<(), SimulationError> {
        self.store()?.apply_due().map_err(refused)?;
        Ok(())
    }

    /// Lets everything that is committed go home.
    pub fn settle(&mut self) -> Result<(), SimulationError> {
        self.store()?.close(|| true).map_err(refused)
    }

    /// The process ends in the middle of things, and another opens the disk. The disk does nothing wrong from then on.
    pub fn restart(&mut self) -> Result<(), SimulationError> {
        let disk = self.disk.after_restart();
        self.replace_disk(disk)
    }

    /// Power is lost, and comes back. What that leaves of unsynced writes the seed decides. The disk does nothing wrong
    /// from then on.
    pub fn lose_power(&mut self, seed: u64) -> Result<(), SimulationError> {
        let disk = self.disk.after_power_loss(&mut Dice(seed | 1));
        self.replace_disk(disk)
    }

    fn replace_disk(&mut self, disk: SimulatedDisk) -> Result<(), SimulationError> {
        (self.injected_before, self.store) = (self.injected(), None);
        self.disk = disk;
        self.open()
    }

    /// The unit given, as `ListUnits` shows it.
    pub fn unit(&mut self, unit: u64) -> Result<v1::UnitRecord, SimulationError> {
        Ok(self.store()?.view(unit).map_err(refused)?.into())
    }

    /// Units of a range with a floor above a version, as `ListUnits` lists them.
    pub fn changed(&mut self, units: Range<u64>, since: Version) -> Result<Vec<u64>, SimulationError> {
        let store = self.store()?;
        let (mut changed, mut next) = (Vec::new(), Some(units.start));
        while let Some(first) = next.filter(|first| *first < units.end) {
            let (found, rest) = store.find(first, Wanted::ChangedSince(since)).map_err(refused)?;
            changed.extend(found.into_iter().filter(|unit| units.contains(unit)));
            next = rest;
        }
        Ok(changed)
    }

    /// Everything pending, as `ListPending` lists it.
    pub fn pending(&mut self) -> Result<Vec<v1::PendingWrite>, SimulationError> {
        Ok(self.store()?.pending().into_iter().map(v1::PendingWrite::from).collect())
    }

    /// Whether the disk could not be opened again.
    pub fn is_gone(&self) -> bool {
        self.store.is_none()
    }

    /// Whether the disk has joined no array.
    pub fn is_blank(&self) -> bool {
        self.store.as_ref().is_some_and(|store| store.superblock().label.is_none())
    }

    /// All units that hold something, as `ListUnits` shows them.
    pub fn list_units(&mut self) -> Result<Vec<v1::UnitRecord>, SimulationError> {
        let store = self.store()?;
        let (mut units, mut next) = (Vec::new(), Some(0));
        while let Some(first) = next {
            let (found, rest) = store.find(first, Wanted::Holding).map_err(refused)?;
            for unit in found {
                let view = store.view(unit).map_err(refused)?;
                if view.state != ViewState::Empty {
                    units.push(view.into());
                }
            }
            next = rest;
        }
        Ok(units)
    }

    /// Where a sector of a unit is on the disk.
    pub fn disk_offset(&mut self, unit: u64, sector: usize) -> Result<u64, SimulationError> {
        let layout = self.store()?.layout().ok_or_else(|| refused(Refusal::Blank))?;
        Ok(layout.sector_offset(unit, sector))
    }

    /// The bytes of a sector as they are on the disk: nobody's checksum was compared, nothing of the journal is in them.
    pub fn raw_sector(&mut self, unit: u64, sector: usize) -> Result<Vec<u8>, SimulationError> {
        let offset = self.disk_offset(unit, sector)?;
        Ok(self.disk.peek(offset..offset + SECTOR_BYTES as u64))
    }

    /// From now on the disk does what it should not, as often as the rates say.
    pub fn misbehave(&self, rates: FaultRates, seed: u64) {
        let FaultRates { rot, latent_errors, misdirected_writes, dropped_writes, full } = rates;
        let faults = Faults { rot, latent_errors, misdirected_writes, dropped_writes, full, stalls: 0 };
        self.disk.misbehave(faults, seed);
    }

    /// From now on it does what it should, and reads give all their bytes. What is bad already stays bad.
    pub fn behave(&self) {
        self.disk.behave();
        self.disk.read_at_most(usize::MAX);
    }

    /// Changes a bit on the medium.
    pub fn flip(&self, offset: u64) {
        self.disk.flip(offset);
    }

    /// These bytes cannot be read until they are written.
    pub fn make_unreadable(&self, bytes: Range<u64>) {
        self.disk.make_unreadable(bytes);
    }

    /// Nothing of the next write lands; the store is told that all is well.
    pub fn drop_next_write(&self) {
        self.disk.drop_next_write();
    }

    /// No read gives more bytes than this, until [`SimulatedAgent::behave`].
    pub fn read_at_most(&self, bytes: usize) {
        self.disk.read_at_most(bytes);
    }

    /// How often each fault was injected.
    pub fn injected(&self) -> FaultCounts {
        let (now, before) = (self.disk.injected(), self.injected_before);
        FaultCounts {
            rot: before.rot + now.rot,
            latent_errors: before.latent_errors + now.latent_errors,
            misdirected_writes: before.misdirected_writes + now.misdirected_writes,
            dropped_writes: before.dropped_writes + now.dropped_writes,
            full: before.full + now.full,
        }
    }

    /// Why the disk takes no more writes, if so.
    pub fn failure(&self) -> Option<&str> {
        self.store.as_ref().and_then(Store::failure)
    }

    fn store(&mut self) -> Result<&mut Store, SimulationError> {
        self.store.as_mut().ok_or_else(|| SimulationError::Open("it could not be before".into()))
    }
}

fn refused(refusal: Refusal) -> SimulationError {
    SimulationError::Refused(refusal.into())
}

impl std::fmt::Debug for SimulatedAgent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SimulatedAgent").field("disk_id", &self.disk_id).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use stripeset_proto::{
        convert::uuid_bytes,
        v1::{session_request::Operation, session_response::Outcome},
    };
    use stripeset_stripe::checksum;

    use super::*;

    const DISK_BYTES: usize = 2 * 1024 * 1024;
    const EPOCH: Epoch = Epoch { number: 1, incarnation: 7 };

    fn agent() -> SimulatedAgent {
        let disk_id = Uuid::from_u128(9);
        let mut agent = SimulatedAgent::new(disk_id, DISK_BYTES).unwrap();
        let member = v1::LabelMember { disk_id: uuid_bytes(disk_id), address: "a:1".to_owned(), out: None };
        let label = v1::Label {
            array_id: uuid_bytes(Uuid::from_u128(1)),
            revision: 1,
            unit_bytes: 16 * 1024,
            slice_bytes: 64 * 1024,
            members: vec![member],
            shards_max: 1,
            data_shards_max: 1,
            epoch: None,
            may_follow: Vec::new(),
        };
        assert!(agent.join(label).unwrap() > 0);
        assert!(agent.fence(EPOCH, Uuid::nil()).unwrap().pending.is_empty());
        agent
    }

    fn request(request_id: u64, operation: Operation) -> v1::SessionRequest {
        v1::SessionRequest {
            request_id,
            disk_id: uuid_bytes(Uuid::from_u128(9)),
            epoch: Some(EPOCH.into()),
            timeout_millis: 0,
            operation: Some(operation),
        }
    }

    fn version(sequence: u64) -> Option<v1::Version> {
        Some(v1::Version { epoch: Some(EPOCH.into()), sequence })
    }

    fn identity() -> Option<v1::UnitIdentity> {
        Some(v1::UnitIdentity { incarnation: version(1), ..Default::default() })
    }

    fn prepare(request_id: u64, sequence: u64) -> v1::SessionRequest {
        let data = Bytes::from(vec![0x5a; SECTOR_BYTES]);
        let checksums = checksum::of_sectors(&data);
        let operation = v1::PrepareOperation {
            unit: 3,
            identity: identity(),
            version: version(sequence),
            fresh: true,
            participants: vec![0],
            runs: vec![v1::SectorRun { first_sector: 1, data, checksums }],
            ..Default::default()
        };
        request(request_id, Operation::Prepare(operation))
    }

    fn read(request_id: u64) -> v1::SessionRequest {
        let operation = v1::ReadOperation { unit: 3, identity: identity(), sectors: 4, ..Default::default() };
        request(request_id, Operation::Read(operation))
    }

    fn commit(request_id: u64, sequence: u64) -> v1::SessionRequest {
        let writes = vec![v1::UnitVersion { unit: 3, version: version(sequence) }];
        request(request_id, Operation::Commit(v1::CommitOperation { writes }))
    }

    #[test]
    fn a_group_is_answered_reads_first() {
        let mut agent = agent();
        let ping = request(1, Operation::Ping(v1::PingOperation {}));
        let answers = agent.handle(vec![prepare(2, 2), read(3), ping]);
        assert_eq!(answers.iter().map(|answer| answer.request_id).collect::<Vec<_>>(), [1, 3, 2]);
        assert_eq!(answers[2].outcome, Some(Outcome::Done(v1::DoneOutcome {})));
        let other = v1::SessionRequest { disk_id: uuid_bytes(Uuid::from_u128(8)), ..read(4) };
        let answers = agent.handle(vec![other]);
        assert!(matches!(answers[0].outcome, Some(Outcome::Refusal(_))), "{answers:?}");
    }

    #[test]
    fn what_was_answered_survives_and_rot_is_seen() {
        let mut agent = agent();
        agent.handle(vec![prepare(1, 2), commit(2, 2)]);
        agent.settle().unwrap();
        agent.lose_power(3).unwrap();
        agent.restart().unwrap();
        let listed = agent.list_units().unwrap();
        assert_eq!(listed.len(), 1);
        assert_eq!(listed[0], agent.unit(3).unwrap());
        assert_eq!(listed[0].committed_version, version(2));
        assert_eq!(agent.raw_sector(3, 1).unwrap(), vec![0x5a; SECTOR_BYTES]);
        let offset = agent.disk_offset(3, 1).unwrap();
        agent.flip(offset);
        let answers = agent.handle(vec![read(3)]);
        let Some(Outcome::Read(outcome)) = &answers[0].outcome else { panic!("{answers:?}") };
        assert_eq!(outcome.bad.as_ref(), [0b10]);
    }

    #[test]
    fn what_was_injected_is_counted_over_restarts() {
        let mut agent = agent();
        agent.drop_next_write();
        agent.handle(vec![prepare(1, 2)]);
        assert_eq!(agent.injected().dropped_writes, 1);
        agent.restart().unwrap();
        assert_eq!(agent.injected().dropped_writes, 1);
    }
}
