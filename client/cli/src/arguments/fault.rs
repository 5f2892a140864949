//! The arguments of `fault`.

use std::{path::PathBuf, time::Duration};

use clap::{Args, Subcommand, ValueEnum};

use crate::quantity;

pub(super) const EXAMPLES: &str = "\
Examples:
  stripeset fault flip vm/disk --offset 1MiB                   a byte changes on its disk; the next read repairs it
  stripeset fault read-without vm/disk - --members 2 | cksum   what the other members make of it
  stripeset fault freeze --member 3                            and: stripeset fault thaw --member 3
  stripeset fault crash rmw-prepared                           and: stripeset dev start coordinator --dir D";

#[derive(Debug, Subcommand)]
pub(crate) enum FaultCommand {
    /// Invert bytes on a member's disk, under their checksum
    Flip {
        #[command(flatten)]
        place: DiskPlace,
        /// Number of bytes
        #[arg(long, value_name = "SIZE", value_parser = quantity::size, default_value = "1")]
        length: u64,
        /// Rewrite the checksum of the sectors to match, in the records of that disk alone
        #[arg(long)]
        rewrite_checksum: bool,
    },
    /// Make bytes on a member's disk zeros, under their checksum
    Punch {
        #[command(flatten)]
        place: DiskPlace,
        /// Number of bytes
        #[arg(long, value_name = "SIZE", value_parser = quantity::size, default_value = "4KiB")]
        length: u64,
    },
    /// Have a member's agent remember a sector, with its checksum
    Save {
        #[command(flatten)]
        place: DiskPlace,
    },
    /// Put a remembered sector back, with its older checksum, under the version that is there now
    Restore {
        #[command(flatten)]
        place: DiskPlace,
    },
    /// Lose writes of a member's disk that are said to be done
    DropWrites {
        #[command(flatten)]
        member: MemberOption,
        /// How many; 0 ends it
        #[arg(long, value_name = "N", default_value = "1")]
        count: u64,
    },
    /// End reads of a member's disk early
    ShortReads {
        #[command(flatten)]
        member: MemberOption,
        /// Bytes that such a read gives
        #[arg(long, value_name = "SIZE", value_parser = quantity::size, default_value = "512")]
        bytes: u64,
        /// How many reads; 0 ends it
        #[arg(long, value_name = "N", default_value = "1")]
        count: u64,
    },
    /// Make operations of a member's disk fail
    IoErrors {
        #[command(flatten)]
        member: MemberOption,
        /// How many reads
        #[arg(long, value_name = "N", default_value = "0")]
        reads: u64,
        /// How many writes and syncs
        #[arg(long, value_name = "N", default_value = "0")]
        writes: u64,
    },
    /// Make every operation of a member's disk wait; 0ms ends it
    Delay {
        #[command(flatten)]
        member: MemberOption,
        /// How long, at most 1m
        #[arg(value_name = "DURATION", value_parser = quantity::duration)]
        delay: Duration,
    },
    /// Have a member's disk answer nothing until it thaws
    Freeze {
        #[command(flatten)]
        member: MemberOption,
    },
    /// Let a frozen disk go on
    Thaw {
        #[command(flatten)]
        member: MemberOption,
    },
    /// End every fault of a member that lasts; what was changed stays changed
    Clear {
        #[command(flatten)]
        member: MemberOption,
    },
    /// Invert bytes in the coordinator's rbio cache, and on no disk
    CacheBytes {
        #[command(flatten)]
        place: LogicalPlace,
        /// Number of bytes: all sectors touched are changed
        #[arg(long, value_name = "SIZE", value_parser = quantity::size, default_value = "1")]
        length: u64,
    },
    /// Read up to 1 MiB of an object as if members were lost; changes nothing
    ReadWithout {
        /// Name of the object
        name: String,
        /// File to write; - is standard output
        local: PathBuf,
        /// Indices of the members, with commas between
        #[arg(long, value_name = "N,N", required = true, value_delimiter = ',')]
        members: Vec<u32>,
        /// First byte to read
        #[arg(long, value_name = "SIZE", value_parser = quantity::size, default_value = "0")]
        offset: u64,
        /// Number of bytes to read [default: to the end]
        #[arg(long, value_name = "SIZE", value_parser = quantity::size)]
        length: Option<u64>,
    },
    /// Stop a partial write at a step, until `fault resume`
    Pause {
        /// The step
        step: StepArgument,
        /// Let so many writes pass before
        #[arg(long, value_name = "N", default_value = "0")]
        after: u32,
        /// Longest that it stays stopped, at most 1m
        #[arg(long, value_name = "DURATION", value_parser = quantity::duration, default_value = "1m")]
        limit: Duration,
    },
    /// Have the coordinator's process die when a partial write comes to a step
    Crash {
        /// The step
        step: StepArgument,
        /// Let so many writes pass before
        #[arg(long, value_name = "N", default_value = "0")]
        after: u32,
    },
    /// Let stopped writes go on, and disarm all steps
    Resume,
    /// Say where in the logical space the next object smaller than a stripe is stored
    AllocateAt {
        /// First byte; a multiple of 4KiB that nothing uses
        #[arg(value_name = "ADDRESS", value_parser = quantity::size)]
        logical: u64,
    },
}

/// A place on a member's disk: where an object has a byte, or an offset on the disk.
#[derive(Args, Clone, Debug)]
pub(crate) struct DiskPlace {
    /// Name of an object; or give --member and --disk-offset
    #[arg(required_unless_present = "disk_offset", conflicts_with_all = ["member", "disk_offset"])]
    pub(crate) name: Option<String>,
    /// Byte in the object
    #[arg(long, value_name = "SIZE", value_parser = quantity::size, default_value = "0")]
    pub(crate) offset: u64,
    /// Index of the member
    #[arg(long, value_name = "N", requires = "disk_offset")]
    pub(crate) member: Option<u32>,
    /// Byte on its disk, as `explain` shows it
    #[arg(long, value_name = "SIZE", value_parser = quantity::size, requires = "member")]
    pub(crate) disk_offset: Option<u64>,
}

/// A place in the logical space: where an object has a byte, or an address.
#[derive(Args, Clone, Debug)]
pub(crate) struct LogicalPlace {
    /// Name of an object; or give --logical
    #[arg(required_unless_present = "logical", conflicts_with = "logical")]
    pub(crate) name: Option<String>,
    /// Byte in the object
    #[arg(long, value_name = "SIZE", value_parser = quantity::size, default_value = "0")]
    pub(crate) offset: u64,
    /// A byte of the array's logical address space
    #[arg(long, value_name = "ADDRESS", value_parser = quantity::size)]
    pub(crate) logical: Option<u64>,
}

#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct MemberOption {
    /// Index of the member
    #[arg(long, value_name = "N")]
    pub(crate) member: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum StepArgument {
    /// What was needed is read, nothing is prepared
    RmwRead,
    /// Every member has prepared, and nothing is decided yet
    RmwPrepared,
    /// Decided; nothing is cached yet
    RmwDecided,
    /// Done; the caller does not know yet
    Acknowledge,
}
