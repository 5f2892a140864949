//! `fault`: faults on demand, of a cluster that was started for them.

use std::{io::Write, path::Path};

use serde::Serialize;
use stripeset_client::{Client, DiskFault, FaultClient, Place, SectorPlace, StepAction, WriteStep};

use crate::{
    arguments::{DiskPlace, FaultCommand, LogicalPlace, StepArgument},
    failure::Failure,
    output::Output,
};

/// What was done. Fields that a command has nothing to say of are null.
#[derive(Default, Serialize)]
struct Done {
    done: bool,
    member: Option<u32>,
    disk_offset: Option<u64>,
    /// Cached sectors that were changed.
    sectors: Option<u64>,
    /// Writes that go on.
    resumed: Option<u32>,
    /// Bytes that were read.
    length: Option<u64>,
}

pub(super) async fn run(client: &Client, command: FaultCommand, output: Output) -> Result<(), Failure> {
    let faults = client.faults();
    let done = match command {
        FaultCommand::Flip { place, length, rewrite_checksum } => {
            at(client, place, |disk_offset| DiskFault::Flip { disk_offset, length, rewrite_checksum }).await?
        }
        FaultCommand::Punch { place, length } => {
            at(client, place, |disk_offset| DiskFault::Punch { disk_offset, length }).await?
        }
        FaultCommand::Save { place } => {
            at(client, place, |disk_offset| DiskFault::SaveSector { disk_offset }).await?
        }
        FaultCommand::Restore { place } => {
            at(client, place, |disk_offset| DiskFault::RestoreSector { disk_offset }).await?
        }
        FaultCommand::DropWrites { member, count } => {
            of(&faults, member.member, DiskFault::DropWrites { count }).await?
        }
        FaultCommand::ShortReads { member, bytes, count } => {
            of(&faults, member.member, DiskFault::ShortReads { bytes, count }).await?
        }
        FaultCommand::IoErrors { member, reads, writes } => {
            if reads == 0 && writes == 0 {
                return Err(Failure::usage("give --reads N or --writes N; `fault clear` ends them"));
            }
            of(&faults, member.member, DiskFault::IoErrors { reads, writes }).await?
        }
        FaultCommand::Delay { member, delay } => of(&faults, member.member, DiskFault::Delay(delay)).await?,
        FaultCommand::Freeze { member } => of(&faults, member.member, DiskFault::Freeze).await?,
        FaultCommand::Thaw { member } => of(&faults, member.member, DiskFault::Thaw).await?,
        FaultCommand::Clear { member } => of(&faults, member.member, DiskFault::Clear).await?,
        FaultCommand::CacheBytes { place, length } => {
            let logical = logical(client, place).await?;
            Done { sectors: Some(faults.corrupt_cache(logical, length).await?), ..Done::default() }
        }
        FaultCommand::ReadWithout { name, local, members, offset, length } => {
            let bytes = faults.read_without(&name, offset, length, &members).await?;
            if write(&local, &bytes, output)? {
                return Ok(());
            }
            Done { length: Some(bytes.len() as u64), ..Done::default() }
        }
        FaultCommand::Pause { step, after, limit } => {
            faults.arm_step(step.into(), StepAction::Stop(limit), after).await?;
            Done::default()
        }
        FaultCommand::Crash { step, after } => {
            faults.arm_step(step.into(), StepAction::Crash, after).await?;
            Done::default()
        }
        FaultCommand::Resume => Done { resumed: Some(faults.resume_steps().await?), ..Done::default() },
        FaultCommand::AllocateAt { logical } => {
            faults.hint_allocation(logical).await?;
            Done::default()
        }
    };
    output.show(&Done { done: true, ..done }, String::new)
}

/// A fault at a place of a disk.
async fn at(
    client: &Client,
    place: DiskPlace,
    fault: impl FnOnce(u64) -> DiskFault,
) -> Result<Done, Failure> {
    let (member, disk_offset) = match (place.name, place.member, place.disk_offset) {
        (Some(name), _, _) => {
            let sector = sector(client, name, place.offset).await?;
            (sector.member, sector.disk_offset + place.offset % stripeset_stripe::SECTOR_BYTES as u64)
        }
        (None, Some(member), Some(disk_offset)) => (member, disk_offset),
        (None, _, _) => {
            return Err(Failure::usage("give the NAME of an object, or --member and --disk-offset"));
        }
    };
    client.faults().inject(member, fault(disk_offset)).await?;
    Ok(Done { member: Some(member), disk_offset: Some(disk_offset), ..Done::default() })
}

/// A fault of a member that has no place.
async fn of(faults: &FaultClient, member: u32, fault: DiskFault) -> Result<Done, Failure> {
    faults.inject(member, fault).await?;
    Ok(Done { member: Some(member), ..Done::default() })
}

async fn sector(client: &Client, name: String, offset: u64) -> Result<SectorPlace, Failure> {
    let place = Place::Object { name: name.clone(), offset, length: 1 };
    let explained = client.array().explain(place).await?;
    let nothing = || Failure::failed(format!("{name:?} has no bytes stored at offset {offset}"));
    explained.sectors.into_iter().next().ok_or_else(nothing)
}

async fn logical(client: &Client, place: LogicalPlace) -> Result<u64, Failure> {
    match (place.name, place.logical) {
        (_, Some(logical)) => Ok(logical),
        (Some(name), None) => Ok(sector(client, name, place.offset).await?.logical),
        (None, None) => Err(Failure::usage("give the NAME of an object, or --logical")),
    }
}

/// Writes what was read; whether it went to standard output.
fn write(local: &Path, bytes: &[u8], output: Output) -> Result<bool, Failure> {
    if local != Path::new("-") {
        let failed = |error| Failure::failed(format!("cannot write {}: {error}", local.display()));
        std::fs::write(local, bytes).map_err(failed)?;
        return Ok(false);
    }
    if output.is_json() {
        return Err(Failure::usage(
            "with --output json standard output is one JSON document: give a file, not -",
        ));
    }
    let mut out = std::io::stdout();
    out.write_all(bytes)?;
    out.flush()?;
    Ok(true)
}

impl From<StepArgument> for WriteStep {
    fn from(step: StepArgument) -> WriteStep {
        match step {
            StepArgument::RmwRead => WriteStep::RmwRead,
            StepArgument::RmwPrepared => WriteStep::RmwPrepared,
            StepArgument::RmwDecided => WriteStep::RmwDecided,
            StepArgument::Acknowledge => WriteStep::Acknowledge,
        }
    }
}
