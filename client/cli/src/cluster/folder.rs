//! The folder of a cluster on this machine: where everything lies in it, and that one process at a time uses it.
//!
//! ```text
//! D/lock  D/control  D/cluster.toml
//! D/agents/N/disk  D/agents/N/pid  D/agents/N/log
//! D/coordinator/pid  D/coordinator/log  D/coordinator/state/
//! ```

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use rustix::fs::{FlockOperation, flock};
use tempfile::TempDir;

use super::ProcessName;
use crate::failure::Failure;

/// A folder, locked for as long as this lives.
#[derive(Debug)]
pub(crate) struct Folder {
    root: PathBuf,
    /// Removes the folder when dropped.
    temporary: Option<TempDir>,
    _lock: File,
}

impl Folder {
    /// Opens `root`, which is made if it is not there.
    pub(crate) fn open(root: &Path) -> Result<Folder, Failure> {
        let cannot =
            |error: io::Error| Failure::failed(format!("cannot use folder {}: {error}", root.display()));
        if root.exists() && !root.is_dir() {
            return Err(Failure::usage(format!("{} is a file: give a folder", root.display())));
        }
        fs::create_dir_all(root).map_err(cannot)?;
        let root = fs::canonicalize(root).map_err(cannot)?;
        let lock = lock(&root)?;
        Ok(Folder { root, temporary: None, _lock: lock })
    }

    /// Makes a folder that is removed at the end.
    pub(crate) fn temporary() -> Result<Folder, Failure> {
        let place = std::env::temp_dir();
        let temporary = tempfile::Builder::new().prefix("stripeset-").tempdir().map_err(|error| {
            Failure::failed(format!(
                "cannot make a temporary folder in {} (TMPDIR): {error}",
                place.display()
            ))
        })?;
        let root = fs::canonicalize(temporary.path())?;
        let lock = lock(&root)?;
        Ok(Folder { root, temporary: Some(temporary), _lock: lock })
    }

    pub(crate) fn is_temporary(&self) -> bool {
        self.temporary.is_some()
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// What the cluster was made with.
    pub(crate) fn memory(&self) -> PathBuf {
        self.root.join("cluster.toml")
    }

    /// The folder of one process, made if it is not there.
    pub(crate) fn process(&self, name: ProcessName) -> io::Result<PathBuf> {
        let path = match name {
            ProcessName::Agent(index) => self.root.join("agents").join(index.to_string()),
            ProcessName::Coordinator => self.root.join("coordinator"),
        };
        fs::create_dir_all(&path)?;
        Ok(path)
    }

    /// Removes a temporary folder, and says so if that fails.
    pub(crate) fn remove(self) -> Result<(), Failure> {
        let Some(temporary) = self.temporary else { return Ok(()) };
        temporary.close().map_err(|error| {
            Failure::failed(format!("cannot remove the temporary folder {}: {error}", self.root.display()))
        })
    }
}

fn lock(root: &Path) -> Result<File, Failure> {
    let path = root.join("lock");
    let cannot = |error: io::Error| Failure::failed(format!("cannot use folder {}: {error}", root.display()));
    let file = File::options().create(true).append(true).open(&path).map_err(cannot)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(Failure::failed(format!(
            "folder {} is in use by another `stripeset dev`: stop it first, or give another --dir",
            root.display()
        ))),
        Err(error) => Err(cannot(error.into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_process_at_a_time_uses_a_folder() {
        let place = tempfile::tempdir().unwrap();
        let root = place.path().join("new");
        let folder = Folder::open(&root).unwrap();
        let refused = Folder::open(&root).unwrap_err();
        assert!(refused.message.contains("in use"), "{}", refused.message);
        drop(folder);
        Folder::open(&root).unwrap();
    }

    #[test]
    fn a_temporary_folder_goes_away() {
        let folder = Folder::temporary().unwrap();
        let root = folder.root().to_owned();
        assert!(root.is_dir());
        folder.remove().unwrap();
        assert!(!root.exists());
    }
}
