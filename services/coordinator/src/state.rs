//! The state folder: who this coordinator is towards the agents, the epochs that it claimed, and a copy of the label.
//!
//! 1. One process uses a folder at a time.
//! 2. An epoch is claimed here, durably, before the first agent is fenced for it.
//! 3. A revision of the label stands here before it is sent to anybody, and that it came into force is noted only after it
//!    did: so the folder can be a witness (`stripeset_stripe::start`).
//!
//! Decides nothing about labels. A copy of a folder is not a second witness: it has the same name.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Write},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use prost::Message;
use stripeset_proto::{convert, v1};
use stripeset_stripe::{Epoch, label::Label, start::Witness};
use thiserror::Error;
use uuid::Uuid;

/// Bytes of the checksum before the message.
const CRC_BYTES: usize = 4;

/// Why the folder cannot be used.
#[derive(Clone, Debug, Error)]
pub enum StateError {
    /// It cannot be read or written.
    #[error("state folder {path}: {source}")]
    Io {
        /// The folder.
        path: PathBuf,
        /// Why not.
        source: Arc<io::Error>,
    },
    /// Another process uses it.
    #[error("state folder {path} is in use by another coordinator: stop it first, or give another folder")]
    InUse {
        /// The folder.
        path: PathBuf,
    },
    /// What it remembers is damaged.
    #[error(
        "{path} is damaged: remove it, and the array is found again from its members, where they need no witness"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
    },
}

#[derive(Clone, Debug)]
struct Kept {
    folder: Uuid,
    claimed: u64,
    label: Option<Label>,
    in_force: bool,
}

/// A state folder in use. Cheap to clone.
#[derive(Clone)]
pub struct StateFolder {
    kept: Arc<Mutex<Kept>>,
    // `None` in memory.
    disk: Option<Arc<OnDisk>>,
}

struct OnDisk {
    path: PathBuf,
    // Held for as long as the folder is in use.
    _lock: File,
}

impl StateFolder {
    /// Opens a folder, or makes it, for this process alone.
    pub fn open(path: &Path) -> Result<StateFolder, StateError> {
        let failed = |source: io::Error| StateError::Io { path: path.to_owned(), source: Arc::new(source) };
        fs::create_dir_all(path).map_err(failed)?;
        let lock = OpenOptions::new().create(true).truncate(false).write(true).open(path.join("lock"));
        let lock = lock.map_err(failed)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(StateError::InUse { path: path.to_owned() }),
            Err(TryLockError::Error(source)) => return Err(failed(source)),
        }
        let file = path.join("label");
        let kept = match fs::read(&file) {
            Ok(bytes) => decode(&bytes).ok_or(StateError::Damaged { path: file })?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Kept::named(Uuid::new_v4()),
            Err(error) => return Err(failed(error)),
        };
        let disk = OnDisk { path: path.to_owned(), _lock: lock };
        disk.write(&kept)?;
        Ok(StateFolder { kept: Arc::new(Mutex::new(kept)), disk: Some(Arc::new(disk)) })
    }

    /// A folder that nobody else sees, for simulations.
    pub fn in_memory(folder: Uuid) -> StateFolder {
        StateFolder { kept: Arc::new(Mutex::new(Kept::named(folder))), disk: None }
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its name.
    pub fn name(&self) -> Uuid {
        self.kept().folder
    }

    /// The newest label that it was given.
    pub fn label(&self) -> Option<Label> {
        self.kept().label.clone()
    }

    /// What it can say at a start.
    pub fn witness(&self) -> Witness {
        let Kept { folder, label, in_force, .. } = self.kept().clone();
        Witness { folder, label, in_force }
    }

    /// Claims an epoch for an incarnation: above every one claimed here, and above `met`.
    pub async fn claim_epoch(&self, incarnation: u64, met: u64) -> Result<Epoch, StateError> {
        let kept = self.change(|kept| {
            let labelled = kept.label.as_ref().map_or(0, |label| label.revision.epoch.number);
            kept.claimed = kept.claimed.max(met).max(labelled) + 1;
        });
        Ok(Epoch { number: kept.await?.claimed, incarnation })
    }

    /// Remembers a revision of the label, and whether it came into force.
    pub async fn remember(&self, label: Label, in_force: bool) -> Result<(), StateError> {
        self.change(|kept| (kept.label, kept.in_force) = (Some(label), in_force)).await.map(|_| ())
    }

    async fn change(&self, change: impl FnOnce(&mut Kept)) -> Result<Kept, StateError> {
        let Some(disk) = self.disk.clone() else {
            change(&mut self.kept());
            return Ok(self.kept().clone());
        };
        let mut changed = self.kept().clone();
        change(&mut changed);
        let written = changed.clone();
        let (path, work) = (disk.path.clone(), tokio::task::spawn_blocking(move || disk.write(&written)));
        // It is not taken back when the caller is gone.
        match work.await {
            Ok(outcome) => outcome?,
            Err(error) => {
                return Err(StateError::Io { path, source: Arc::new(io::Error::other(error)) });
            }
        }
        *self.kept() = changed.clone();
        Ok(changed)
    }
}

impl Kept {
    fn named(folder: Uuid) -> Kept {
        Kept { folder, claimed: 0, label: None, in_force: false }
    }
}

impl OnDisk {
    /// Replaces the file as a whole, durably.
    fn write(&self, kept: &Kept) -> Result<(), StateError> {
        let write = || -> io::Result<()> {
            let (new, file) = (self.path.join("label.new"), self.path.join("label"));
            let mut out = File::create(&new)?;
            out.write_all(&encode(kept))?;
            out.sync_all()?;
            fs::rename(&new, &file)?;
            File::open(&self.path)?.sync_all()
        };
        write().map_err(|source| StateError::Io { path: self.path.clone(), source: Arc::new(source) })
    }
}

fn encode(kept: &Kept) -> Vec<u8> {
    let message = v1::FolderState {
        folder_id: convert::uuid_bytes(kept.folder),
        claimed: kept.claimed,
        label: kept.label.clone().map(v1::Label::from),
        in_force: kept.in_force,
    };
    let body = message.encode_to_vec();
    let mut bytes = crc32c::crc32c(&body).to_le_bytes().to_vec();
    bytes.extend(body);
    bytes
}

fn decode(bytes: &[u8]) -> Option<Kept> {
    let (crc, body) = bytes.split_at_checked(CRC_BYTES)?;
    if crc != crc32c::crc32c(body).to_le_bytes() {
        return None;
    }
    let v1::FolderState { folder_id, claimed, label, in_force } = v1::FolderState::decode(body).ok()?;
    let label = label.map(Label::try_from).transpose().ok()?;
    Some(Kept { folder: Uuid::from_slice(&folder_id).ok()?, claimed, label, in_force })
}

#[cfg(test)]
mod tests {
    use stripeset_stripe::label::{LabelMember, MemberSet, Revision};

    use super::*;

    fn label() -> Label {
        Label {
            array_id: Uuid::from_u128(1),
            revision: Revision { epoch: Epoch { number: 7, incarnation: 3 }, number: 4 },
            unit_bytes: 4096,
            slice_bytes: 4096,
            shards_max: 1,
            data_shards_max: 1,
            members: vec![LabelMember { disk_id: Uuid::from_u128(2), address: "a:1".to_owned(), out: None }],
            may_follow: vec![MemberSet(1)],
        }
    }

    #[tokio::test]
    async fn what_a_folder_was_told_is_there_after_a_restart() {
        let place = tempfile::tempdir().unwrap();
        let folder = StateFolder::open(place.path()).unwrap();
        let name = folder.name();
        assert_eq!(folder.claim_epoch(9, 0).await.unwrap(), Epoch { number: 1, incarnation: 9 });
        folder.remember(label(), true).await.unwrap();
        drop(folder);
        let folder = StateFolder::open(place.path()).unwrap();
        let witness = folder.witness();
        assert_eq!((witness.folder, witness.label, witness.in_force), (name, Some(label()), true));
        assert_eq!(folder.claim_epoch(9, 0).await.unwrap().number, 8, "above the label's");
        assert_eq!(folder.claim_epoch(9, 20).await.unwrap().number, 21, "above what was met");
        folder.remember(label(), false).await.unwrap();
        assert!(!folder.witness().in_force);
    }

    #[tokio::test]
    async fn a_folder_is_used_by_one_process_and_not_when_it_is_damaged() {
        let place = tempfile::tempdir().unwrap();
        let folder = StateFolder::open(place.path()).unwrap();
        assert!(matches!(StateFolder::open(place.path()), Err(StateError::InUse { .. })));
        drop(folder);
        let mut bytes = fs::read(place.path().join("label")).unwrap();
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        fs::write(place.path().join("label"), &bytes).unwrap();
        assert!(matches!(StateFolder::open(place.path()), Err(StateError::Damaged { .. })));
        fs::write(place.path().join("label"), b"x").unwrap();
        assert!(matches!(StateFolder::open(place.path()), Err(StateError::Damaged { .. })));
    }
}
