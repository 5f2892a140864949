//! The command line: names, flags, help. Stable: tests, benchmarks and people's scripts call it.
//!
//! Decides what is accepted; what it means is decided by the modules that carry the commands out.

mod fault;

use std::{net::SocketAddr, path::PathBuf};

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use stripeset_stripe::profile::ProfileSpec;

pub(crate) use self::fault::{DiskPlace, FaultCommand, LogicalPlace, StepArgument};
use crate::{address, quantity};

/// Stores objects on a parity array of disks on several hosts.
///
/// Begin with `stripeset demo`, which shows all of it in one go, or with `stripeset dev`, which runs a cluster on
/// this machine for the other commands to talk to.
#[derive(Debug, Parser)]
#[command(name = "stripeset", version, propagate_version = true, max_term_width = 110, after_help = EXIT_CODES)]
pub(crate) struct Arguments {
    /// URL of the coordinator
    #[arg(long, global = true, env = "STRIPESET_ENDPOINT", value_name = "URL")]
    #[arg(default_value = "http://127.0.0.1:7420", hide_env_values = true)]
    pub(crate) endpoint: String,

    /// How to print: a table for people, or one JSON document on stdout
    #[arg(long, global = true, value_enum, value_name = "FORMAT", default_value = "table")]
    pub(crate) output: Format,

    #[command(subcommand)]
    pub(crate) command: Command,
}

const EXIT_CODES: &str = "\
Exit codes: 0 done, 1 failed, 2 wrong usage, 3 not found, 4 data loss.
Sizes are bytes or have a unit: 4096, 64KiB, 1.5GiB. Durations: 250ms, 5s, 2m, 1h.

Examples:
  stripeset demo ~/Pictures        store a folder, kill a disk, read everything back
  stripeset dev --dir cluster      run a cluster here until Ctrl-C, keeping its data in ./cluster
  stripeset put backup.tar backups/monday
  stripeset get backups/monday - | tar t
  stripeset status --output json";

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people.
    Table,
    /// One JSON document on stdout, every field always there.
    Json,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show the whole job in a temporary folder: store, kill disks, read back, compare
    #[command(after_help = DEMO_EXAMPLES)]
    Demo(DemoArguments),
    /// Run a cluster on this machine until Ctrl-C
    #[command(after_help = DEV_EXAMPLES)]
    Dev(DevArguments),
    /// Serve one disk (a service)
    Agent(AgentArguments),
    /// Serve an array of agents (a service)
    Coordinator(CoordinatorArguments),
    /// Make an array, or show how it was made
    #[command(subcommand)]
    Array(ArrayCommand),
    /// Store a file as an object, replacing the object atomically
    #[command(
        after_help = "Examples:\n  stripeset put disk.img vm/disk\n  pg_dump db | stripeset put - dumps/db"
    )]
    Put(PutArguments),
    /// Write an object into a file, replacing the file atomically
    #[command(after_help = GET_EXAMPLES)]
    Get(GetArguments),
    /// List objects
    Ls {
        /// Only names that begin with this
        #[arg(default_value = "", hide_default_value = true)]
        prefix: String,
    },
    /// Show what is known of an object
    Stat {
        /// Name of the object
        name: String,
    },
    /// Remove an object
    Rm {
        /// Name of the object
        name: String,
    },
    /// Show whether the array serves, its members and its capacity; exits 0 only if reads and writes are served
    Status,
    /// Look at the members of the array
    #[command(subcommand)]
    Member(MemberCommand),
    /// Show where bytes are on the disks, and how a write there would be done
    #[command(after_help = "Example:\n  stripeset explain vm/disk --offset 1MiB --length 16KiB")]
    Explain(ExplainArguments),
    /// Look at the rbio cache, which spares small writes their reads, or change it
    #[command(subcommand, after_help = CACHE_EXAMPLES)]
    Cache(CacheCommand),
    /// Make disks and processes misbehave, in a cluster that was started with --faults: for drills and tests
    #[command(subcommand, after_help = fault::EXAMPLES)]
    Fault(FaultCommand),
    /// Ask a service whether it serves; exits 0 if it does, within 2 s
    Health {
        /// Address of an agent or a coordinator, HOST:PORT
        #[arg(value_name = "ADDR", value_parser = address::parse)]
        address: String,
    },
    /// Print a script that completes commands in a shell
    #[command(after_help = "Example:\n  stripeset completions bash > /etc/bash_completion.d/stripeset")]
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Print the version
    Version,
}

const DEMO_EXAMPLES: &str = "\
Examples:
  stripeset demo                               store this program itself
  stripeset demo ~/Documents ~/Pictures
  stripeset demo --data raid6 --agents 8 /usr/share
The temporary folder is made where TMPDIR says and removed at the end.";

#[derive(Args, Debug)]
pub(crate) struct DemoArguments {
    /// Files and folders to store; this program itself if none are given. Symbolic links are skipped
    #[arg(value_name = "PATH")]
    pub(crate) paths: Vec<PathBuf>,
    /// Profile for data: single, dup, mirror2, mirror3, raid5, raid6, raid5-K+1, raid6-K+2 or rs-K+M
    #[arg(long, value_name = "PROFILE", default_value = "raid5")]
    pub(crate) data: ProfileSpecArgument,
    /// Number of agents [default: 5, or as many as the profile needs]
    #[arg(long, value_name = "N")]
    pub(crate) agents: Option<usize>,
    /// Number of agents to kill before reading back [default: what the profile bears]
    #[arg(long, value_name = "M")]
    pub(crate) kill: Option<usize>,
}

const DEV_EXAMPLES: &str = "\
Examples:
  stripeset dev                                  a cluster that is gone at the end
  stripeset dev --dir cluster --data raid6 --agents 6
  kill -9 $(cat cluster/agents/3/pid)            lose a disk's host, then bring it back:
  stripeset dev start agent-3 --dir cluster";

#[derive(Args, Debug)]
pub(crate) struct DevArguments {
    #[command(subcommand)]
    pub(crate) command: Option<DevCommand>,
    #[command(flatten)]
    pub(crate) cluster: DevClusterArguments,
}

#[derive(Debug, Subcommand)]
pub(crate) enum DevCommand {
    /// Start an agent or the coordinator of a running `dev` again after it has died
    Start(DevStartArguments),
}

#[derive(Args, Debug)]
pub(crate) struct DevStartArguments {
    /// What to start: agent-N or coordinator
    pub(crate) name: String,
    /// Folder of the running `dev`
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
}

#[derive(Args, Debug, Default, PartialEq, Eq)]
pub(crate) struct DevClusterArguments {
    /// Folder that keeps the cluster's data from one start to the next [default: a temporary one]
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// Number of agents [default: 5, or as many as the profiles need]
    #[arg(long, value_name = "N")]
    pub(crate) agents: Option<usize>,
    /// Size of each agent's disk, a sparse file [default: 4GiB]
    #[arg(long, value_name = "SIZE", value_parser = quantity::size)]
    pub(crate) agent_size: Option<u64>,
    /// Profile for data: single, dup, mirror2, mirror3, raid5, raid6, raid5-K+1, raid6-K+2 or rs-K+M [default: raid5]
    #[arg(long, value_name = "PROFILE")]
    pub(crate) data: Option<ProfileSpecArgument>,
    /// Profile for metadata [default: raid5, on one agent dup]
    #[arg(long, value_name = "PROFILE")]
    pub(crate) metadata: Option<ProfileSpecArgument>,
    /// Length of a stripe unit, a power of two from 4KiB to 1MiB [default: 64KiB]
    #[arg(long, value_name = "SIZE", value_parser = quantity::unit)]
    pub(crate) unit: Option<u32>,
    /// Where small writes go: into an empty stripe, or into holes [default: fresh]
    #[arg(long, value_enum, value_name = "POLICY")]
    pub(crate) policy: Option<Policy>,
    /// Address of the coordinator; port 0 takes a free one [default: 127.0.0.1:7420]
    #[arg(long, value_name = "ADDR", value_parser = address::parse_socket)]
    pub(crate) listen: Option<SocketAddr>,
    /// Bytes of memory for the coordinator's rbio cache [default: 256MiB]
    #[arg(long, value_name = "SIZE", value_parser = quantity::size)]
    pub(crate) cache_size: Option<u64>,
    /// Let `fault` commands damage things on purpose
    #[arg(long)]
    pub(crate) faults: bool,
    /// Let cache modes be chosen that leave the window for parity poisoning open
    #[arg(long)]
    pub(crate) r#unsafe: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Policy {
    /// Empty stripes first.
    Fresh,
    /// Holes first.
    Reuse,
}

/// A profile that is known to be one, as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProfileSpecArgument {
    pub(crate) word: String,
    pub(crate) spec: ProfileSpec,
}

impl std::str::FromStr for ProfileSpecArgument {
    type Err = stripeset_stripe::profile::ProfileError;

    fn from_str(word: &str) -> Result<Self, Self::Err> {
        Ok(ProfileSpecArgument { word: word.to_owned(), spec: word.parse()? })
    }
}

#[derive(Args, Debug)]
#[command(after_help = "\
Each setting is taken from its flag, else from its environment variable (STRIPESET_AGENT_DISK, ...), else from the
TOML file (disk = \"...\"), else its default.")]
pub(crate) struct AgentArguments {
    /// TOML file with settings
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// File or block device that is the disk; a file is made if there is none
    #[arg(long, value_name = "PATH")]
    pub(crate) disk: Option<String>,
    /// Length of the disk, for a file that is to be made
    #[arg(long, value_name = "SIZE")]
    pub(crate) size: Option<String>,
    /// Address to serve on [default: 127.0.0.1:7421]
    #[arg(long, value_name = "ADDR")]
    pub(crate) listen: Option<String>,
    /// Serve the fault commands: for drills and tests, never for data that matters
    #[arg(long)]
    pub(crate) faults: bool,
    /// Print the settings and where each comes from, and do not serve
    #[arg(long)]
    pub(crate) print_config: bool,
    #[arg(long, value_name = "PID", hide = true)]
    pub(crate) child_of: Option<u32>,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Each setting is taken from its flag, else from its environment variable (STRIPESET_COORDINATOR_STATE, ...), else from
the TOML file (state = \"...\"), else its default.")]
pub(crate) struct CoordinatorArguments {
    /// TOML file with settings
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Folder for the coordinator's own state
    #[arg(long, value_name = "DIR")]
    pub(crate) state: Option<String>,
    /// Address to serve on [default: 127.0.0.1:7420]
    #[arg(long, value_name = "ADDR")]
    pub(crate) listen: Option<String>,
    /// At a start, how long to wait for members that do not answer while the others suffice [default: 5s]
    #[arg(long, value_name = "DURATION")]
    pub(crate) start_patience: Option<String>,
    /// Bytes of memory for the rbio cache [default: 256MiB]
    #[arg(long, value_name = "SIZE")]
    pub(crate) cache_size: Option<String>,
    /// Let cache modes be chosen in which parity can be poisoned, for experiments
    #[arg(long)]
    pub(crate) r#unsafe: bool,
    /// Serve the fault commands: for drills and tests, never for data that matters
    #[arg(long)]
    pub(crate) faults: bool,
    /// Start although members that do not answer may hold newer data: what they alone hold is lost then. They are waited
    /// for first. A flag only, to be given when it is needed
    #[arg(long)]
    pub(crate) force: bool,
    /// Print the settings and where each comes from, and do not serve
    #[arg(long)]
    pub(crate) print_config: bool,
    #[arg(long, value_name = "PID", hide = true)]
    pub(crate) child_of: Option<u32>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ArrayCommand {
    /// Make an array from agents whose disks are blank; others are refused
    #[command(after_help = "\
Example:
  stripeset array create --agent a:7421 --agent b:7421 --agent c:7421 --data raid5 --metadata raid5")]
    Create(ArrayCreateArguments),
    /// Show how the array was made, and its chunks
    Show,
}

#[derive(Args, Debug)]
pub(crate) struct ArrayCreateArguments {
    /// Address of an agent, HOST:PORT, as the coordinator reaches it; in the order of the member indices
    #[arg(long = "agent", value_name = "ADDR", required = true, num_args = 1.., value_parser = address::parse)]
    pub(crate) agents: Vec<String>,
    /// Profile for data: single, dup, mirror2, mirror3, raid5, raid6, raid5-K+1, raid6-K+2 or rs-K+M
    #[arg(long, value_name = "PROFILE")]
    pub(crate) data: ProfileSpecArgument,
    /// Profile for metadata
    #[arg(long, value_name = "PROFILE")]
    pub(crate) metadata: ProfileSpecArgument,
    /// Length of a stripe unit, a power of two from 4KiB to 1MiB
    #[arg(long, value_name = "SIZE", value_parser = quantity::unit, default_value = "64KiB")]
    pub(crate) unit: u32,
}

#[derive(Args, Debug)]
pub(crate) struct PutArguments {
    /// File to store; - is standard input
    pub(crate) local: PathBuf,
    /// Name of the object
    pub(crate) name: String,
}

const GET_EXAMPLES: &str = "\
Examples:
  stripeset get vm/disk disk.img
  stripeset get vm/disk - --offset 1MiB --length 512 | xxd";

#[derive(Args, Debug)]
pub(crate) struct GetArguments {
    /// Name of the object
    pub(crate) name: String,
    /// File to write; - is standard output
    pub(crate) local: PathBuf,
    /// First byte to read
    #[arg(long, value_name = "SIZE", value_parser = quantity::size, default_value = "0")]
    pub(crate) offset: u64,
    /// Number of bytes to read, cut at the end of the object [default: all]
    #[arg(long, value_name = "SIZE", value_parser = quantity::size)]
    pub(crate) length: Option<u64>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum MemberCommand {
    /// List the members: which disks they are, how far they are trusted, their errors
    List,
}

const CACHE_EXAMPLES: &str = "\
Examples:
  stripeset cache stats
  stripeset cache set-size 1GiB
  stripeset cache set-mode off";

#[derive(Debug, Subcommand)]
pub(crate) enum CacheCommand {
    /// Show what is in it, and what it counted since the coordinator started
    Stats,
    /// Change what happens to cached sectors that are freed; a change empties the cache
    SetMode {
        /// drop: they are dropped. off: nothing is cached. stock (keep them, as the Linux kernel does) and mark (count what
        /// dropping would cost) let parity be poisoned, and need a coordinator started with --unsafe
        #[arg(value_name = "MODE")]
        mode: stripeset_client::CacheMode,
        /// With drop: drop the whole entry instead of the sectors that are freed
        #[arg(long)]
        whole: bool,
    },
    /// Change how many bytes it may take, until the coordinator stops
    SetSize {
        /// Bytes; 0 keeps nothing
        #[arg(value_name = "BYTES", value_parser = quantity::size)]
        bytes: u64,
    },
    /// Empty it
    Drop,
}

#[derive(Args, Debug)]
pub(crate) struct ExplainArguments {
    /// Name of the object; or give --logical
    #[arg(conflicts_with = "logical")]
    pub(crate) name: Option<String>,
    /// First byte in the object
    #[arg(long, value_name = "SIZE", value_parser = quantity::size, default_value = "0")]
    pub(crate) offset: u64,
    /// Number of bytes
    #[arg(long, value_name = "SIZE", value_parser = quantity::size, default_value = "1")]
    pub(crate) length: u64,
    /// A byte of the array's logical address space, instead of an object
    #[arg(long, value_name = "ADDRESS", value_parser = quantity::size)]
    pub(crate) logical: Option<u64>,
}
