//! What a cluster on this machine is to be: from what is wished for and what the folder holds already.

use std::{fs, net::SocketAddr};

use stripeset_stripe::profile::{ProfileError, ProfileSpec};

use super::{Folder, Memory, Wish, ports};
use crate::{failure::Failure, quantity::exact_size};

/// Most agents on one machine.
pub(crate) const AGENTS_MAX: usize = 64;

const AGENTS: usize = 5;
const AGENT_BYTES: u64 = 4 << 30;
const UNIT_BYTES: u32 = 64 << 10;
const LISTEN: SocketAddr = SocketAddr::new(ports::AGENT_HOST, 7420);
const PROFILE: &str = "raid5";
const PROFILE_OF_ONE: &str = "dup";

/// What the folder remembers, unless that contradicts the wish; for a new cluster, the wish filled up with defaults,
/// which is then remembered.
pub(super) fn settle(folder: &Folder, wish: &Wish) -> Result<Memory, Failure> {
    match Memory::read(&folder.memory())? {
        Some(mut memory) if memory.made => {
            memory.check(wish, folder.root())?;
            match wish.listen {
                // Any port will do, so the one from last time does.
                Some(listen) if listen.port() == 0 && listen.ip() == memory.listen.ip() => {}
                Some(listen) => memory.listen = listener(listen, &memory.agents)?,
                None => {}
            }
            memory.write(&folder.memory())?;
            Ok(memory)
        }
        // An earlier start was cut off before the array was made: nothing is stored there.
        Some(_) => {
            for name in ["agents", "coordinator"] {
                match fs::remove_dir_all(folder.root().join(name)) {
                    Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
                    _ => {}
                }
            }
            begin(folder, wish)
        }
        None => {
            let strange =
                ["agents", "coordinator"].into_iter().find(|name| folder.root().join(name).exists());
            if let Some(name) = strange {
                let root = folder.root().display();
                return Err(Failure::usage(format!(
                    "folder {root} has {name} in it but no cluster.toml, so it is no cluster of `stripeset dev`: \
                     give an empty folder"
                )));
            }
            begin(folder, wish)
        }
    }
}

fn begin(folder: &Folder, wish: &Wish) -> Result<Memory, Failure> {
    let data = wish.data.clone().unwrap_or_else(|| PROFILE.to_owned());
    let agents = match wish.agents {
        Some(agents) => agents,
        None => {
            let for_metadata = wish.metadata.as_deref().map_or(Ok(AGENTS), agents_for)?;
            agents_for(&data)?.max(for_metadata)
        }
    };
    if !(1..=AGENTS_MAX).contains(&agents) {
        return Err(Failure::usage(format!("--agents {agents}: from 1 to {AGENTS_MAX} are possible")));
    }
    let default_metadata = if agents == 1 { PROFILE_OF_ONE } else { PROFILE };
    let metadata = wish.metadata.clone().unwrap_or_else(|| default_metadata.to_owned());
    for (flag, word) in [("--data", &data), ("--metadata", &metadata)] {
        let resolved = word.parse::<ProfileSpec>().and_then(|spec| spec.resolve(agents));
        if let Err(error) = resolved {
            return Err(Failure::usage(format!(
                "{flag} {word}: {error}: give more --agents or another profile"
            )));
        }
    }
    let agent_bytes = wish.agent_bytes.unwrap_or(AGENT_BYTES);
    let unit_bytes = wish.unit_bytes.unwrap_or(UNIT_BYTES);
    check_agent_bytes(agent_bytes, unit_bytes)?;
    let agents: Vec<SocketAddr> = ports::choose(ports::AGENT_HOST, agents, &[])?
        .into_iter()
        .map(|port| SocketAddr::new(ports::AGENT_HOST, port))
        .collect();
    let listen = listener(wish.listen.unwrap_or(LISTEN), &agents)?;
    let memory = Memory { agent_bytes, data, metadata, unit_bytes, listen, agents, made: false };
    memory.write(&folder.memory())?;
    Ok(memory)
}

/// Length of a slice, and of what goes with it: a record of one sector or more for each stripe unit.
pub(crate) fn slice_disk_bytes(unit_bytes: u32) -> u64 {
    const SLICE_BYTES: u64 = 64 << 20;
    const RECORD_BYTES: u64 = 4096;
    SLICE_BYTES + SLICE_BYTES / u64::from(unit_bytes) * RECORD_BYTES
}

/// What a disk needs besides its slices: superblocks, and the journal, which has a share of the disk up to a limit.
pub(crate) fn fixed_disk_bytes(slices_bytes: u64) -> u64 {
    const SUPERBLOCKS_BYTES: u64 = 2 << 20;
    const JOURNAL_BYTES_MIN: u64 = 16 << 20;
    const JOURNAL_BYTES_MAX: u64 = 68 << 20;
    SUPERBLOCKS_BYTES + (slices_bytes / 16).clamp(JOURNAL_BYTES_MIN, JOURNAL_BYTES_MAX)
}

fn check_agent_bytes(agent_bytes: u64, unit_bytes: u32) -> Result<(), Failure> {
    let slice = slice_disk_bytes(unit_bytes);
    let least = (slice + fixed_disk_bytes(slice)).next_multiple_of(1 << 20);
    if agent_bytes >= least {
        return Ok(());
    }
    let (given, least) = (exact_size(agent_bytes), exact_size(least));
    Err(Failure::usage(format!("--agent-size {given}: a disk with one slice and its journal needs {least}")))
}

/// How many agents a cluster has if nobody says so: five, or as many as the profile needs.
pub(crate) fn agents_for(profile: &str) -> Result<usize, Failure> {
    let resolved = profile.parse::<ProfileSpec>().and_then(|spec| spec.resolve(AGENTS));
    match resolved {
        Ok(_) => Ok(AGENTS),
        Err(ProfileError::TooFewMembers { needed, .. }) => Ok(needed),
        Err(error) => Err(Failure::usage(error.to_string())),
    }
}

/// Gives an address with port 0 a free one.
fn listener(address: SocketAddr, agents: &[SocketAddr]) -> Result<SocketAddr, Failure> {
    if address.port() != 0 {
        return Ok(address);
    }
    let taken: Vec<u16> = agents.iter().map(SocketAddr::port).collect();
    let ports = ports::choose(address.ip(), 1, &taken)?;
    Ok(ports.first().map_or(address, |port| SocketAddr::new(address.ip(), *port)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settle_in(folder: &Folder, wish: Wish) -> Result<Memory, Failure> {
        settle(folder, &Wish { listen: Some("127.0.0.1:0".parse().unwrap()), ..wish })
    }

    #[test]
    fn a_new_cluster_has_the_agents_that_its_profile_needs() {
        for (data, agents, metadata) in [
            (None, 5, "raid5"),
            (Some("rs-8+3"), 11, "raid5"),
            (Some("raid6"), 5, "raid5"),
            (Some("single"), 5, "raid5"),
        ] {
            let folder = Folder::temporary().unwrap();
            let memory =
                settle_in(&folder, Wish { data: data.map(str::to_owned), ..Wish::default() }).unwrap();
            assert_eq!((memory.agents.len(), memory.metadata.as_str()), (agents, metadata), "{data:?}");
            assert_ne!(memory.listen.port(), 0);
        }
        let folder = Folder::temporary().unwrap();
        let one = Wish { agents: Some(1), data: Some("single".to_owned()), ..Wish::default() };
        assert_eq!(settle_in(&folder, one).unwrap().metadata, "dup");
    }

    #[test]
    fn what_cannot_be_is_refused_before_anything_is_made() {
        let raid6 = || Some("raid6".to_owned());
        for (wish, part) in [
            (Wish { agents: Some(0), ..Wish::default() }, "from 1 to 64"),
            (Wish { agents: Some(65), ..Wish::default() }, "from 1 to 64"),
            (Wish { agents: Some(2), data: raid6(), ..Wish::default() }, "--data raid6"),
            (Wish { agents: Some(2), metadata: raid6(), ..Wish::default() }, "--metadata raid6"),
            (Wish { agent_bytes: Some(1 << 20), ..Wish::default() }, "--agent-size 1MiB"),
        ] {
            let folder = Folder::temporary().unwrap();
            let message = settle_in(&folder, wish).unwrap_err().message;
            assert!(message.contains(part), "{message}");
            assert!(!folder.memory().exists());
        }
    }

    #[test]
    fn a_start_that_was_cut_off_is_done_anew_and_a_strange_folder_is_left_alone() {
        let folder = Folder::temporary().unwrap();
        settle_in(&folder, Wish::default()).unwrap();
        let disk = folder.root().join("agents/0/disk");
        fs::create_dir_all(disk.parent().unwrap()).unwrap();
        fs::write(&disk, "x").unwrap();
        let other = Wish { data: Some("raid6".to_owned()), ..Wish::default() };
        let mut memory = settle_in(&folder, other).unwrap();
        assert!(!disk.exists());

        memory.made = true;
        memory.write(&folder.memory()).unwrap();
        fs::create_dir_all(disk.parent().unwrap()).unwrap();
        let again = settle_in(&folder, Wish::default()).unwrap();
        assert_eq!(again, memory);

        fs::remove_file(folder.memory()).unwrap();
        assert!(settle_in(&folder, Wish::default()).unwrap_err().message.contains("no cluster.toml"));
        assert!(disk.parent().unwrap().exists());
    }
}
