//! What a cluster on this machine was made with, and that a later start does not contradict it.

use std::{io::Write, net::SocketAddr, path::Path};

use serde::{Deserialize, Serialize};

use crate::{failure::Failure, quantity::exact_size};

/// What a cluster was made with. Kept in its folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Memory {
    /// Length of each agent's disk.
    pub(crate) agent_bytes: u64,
    /// Profile for data, as it was given.
    pub(crate) data: String,
    /// Profile for metadata, as it was given.
    pub(crate) metadata: String,
    /// Length of a stripe unit.
    pub(crate) unit_bytes: u32,
    /// Where the coordinator listens. The one thing that may change: nothing on the disks refers to it.
    pub(crate) listen: SocketAddr,
    /// Where the agents listen, by index. The array's label has these addresses.
    pub(crate) agents: Vec<SocketAddr>,
    /// The array was made. Until then nothing is stored, and a start that was cut off is done anew.
    pub(crate) made: bool,
}

/// What a start asks for; none is whatever the cluster has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wish {
    pub(crate) agents: Option<usize>,
    pub(crate) agent_bytes: Option<u64>,
    pub(crate) data: Option<String>,
    pub(crate) metadata: Option<String>,
    pub(crate) unit_bytes: Option<u32>,
    pub(crate) listen: Option<SocketAddr>,
    /// For this run alone; so is what follows.
    pub(crate) is_unsafe: bool,
    pub(crate) cache_bytes: Option<u64>,
    pub(crate) faults: bool,
}

impl Memory {
    /// Reads what is kept at `path`; none if there is nothing yet.
    pub(crate) fn read(path: &Path) -> Result<Option<Memory>, Failure> {
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Failure::failed(format!("cannot read {}: {error}", path.display()))),
        };
        match toml::from_str(&text) {
            Ok(memory) => Ok(Some(memory)),
            Err(error) => Err(Failure::failed(format!("{} is damaged: {error}", path.display()))),
        }
    }

    /// Keeps this at `path`, durably and at once: a start that is cut off leaves the old or the new.
    pub(crate) fn write(&self, path: &Path) -> Result<(), Failure> {
        let text = toml::to_string(self).map_err(|error| Failure::failed(error.to_string()))?;
        let folder = path.parent().unwrap_or(Path::new("."));
        let mut file = tempfile::NamedTempFile::new_in(folder)?;
        file.write_all(b"# What this cluster was made with. Written by `stripeset dev`; not for editing.\n")?;
        file.write_all(text.as_bytes())?;
        file.as_file().sync_all()?;
        file.persist(path).map_err(|error| error.error)?;
        Ok(())
    }

    /// Refuses a wish for something else than there is. All contradictions are told at once.
    pub(crate) fn check(&self, wish: &Wish, root: &Path) -> Result<(), Failure> {
        let size = |bytes: u64| exact_size(bytes);
        let wishes = [
            ("--agents", wish.agents.map(|n| n.to_string()), self.agents.len().to_string()),
            ("--agent-size", wish.agent_bytes.map(size), size(self.agent_bytes)),
            ("--data", wish.data.clone(), self.data.clone()),
            ("--metadata", wish.metadata.clone(), self.metadata.clone()),
            ("--unit", wish.unit_bytes.map(|bytes| size(bytes.into())), size(self.unit_bytes.into())),
        ];
        let contradictions: Vec<String> = wishes
            .into_iter()
            .filter_map(|(flag, wished, kept)| {
                let wished = wished.filter(|wished| *wished != kept)?;
                Some(format!("{flag} {wished} was given, but the cluster was made with {kept}"))
            })
            .collect();
        if contradictions.is_empty() {
            return Ok(());
        }
        Err(Failure::usage(format!(
            "folder {} holds a cluster already:\n  {}\nleave these flags out, or give another --dir",
            root.display(),
            contradictions.join("\n  ")
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory() -> Memory {
        Memory {
            agent_bytes: 4 << 30,
            data: "raid5".to_owned(),
            metadata: "raid5".to_owned(),
            unit_bytes: 65536,
            listen: "127.0.0.1:7420".parse().unwrap(),
            agents: vec!["127.0.0.1:1000".parse().unwrap(), "127.0.0.1:1001".parse().unwrap()],
            made: true,
        }
    }

    #[test]
    fn what_is_written_is_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cluster.toml");
        assert_eq!(Memory::read(&path).unwrap(), None);
        memory().write(&path).unwrap();
        assert_eq!(Memory::read(&path).unwrap(), Some(memory()));
        std::fs::write(&path, "agents = 5").unwrap();
        assert!(Memory::read(&path).unwrap_err().message.contains("damaged"));
    }

    #[test]
    fn the_same_again_is_fine_and_another_cluster_is_not() {
        let root = Path::new("/d");
        memory().check(&Wish::default(), root).unwrap();
        let same = Wish { agents: Some(2), agent_bytes: Some(4 << 30), ..Wish::default() };
        memory().check(&same, root).unwrap();
        memory().check(&Wish { listen: Some("127.0.0.1:9".parse().unwrap()), ..same }, root).unwrap();
        let other = Wish { agents: Some(3), data: Some("raid6".to_owned()), ..Wish::default() };
        let message = memory().check(&other, root).unwrap_err().message;
        assert!(message.contains("--agents 3 was given, but the cluster was made with 2"), "{message}");
        assert!(message.contains("--data raid6"), "{message}");
    }
}
