//! Which disks an agent opens, and what it says of the others. Nothing that is refused is changed.

#![expect(clippy::unwrap_used, reason = "a test; the lint knows only functions marked as one")]

use std::{
    fs::{self, File},
    os::unix::fs::{FileExt, MetadataExt},
    path::{Path, PathBuf},
};

use stripeset_agent::{Agent, AgentConfig, AgentError};
use tempfile::TempDir;

const MIB: u64 = 1024 * 1024;

async fn bind(disk: &Path, size: Option<u64>) -> Result<Agent, AgentError> {
    Agent::bind(AgentConfig {
        disk: disk.to_owned(),
        size,
        listen: "127.0.0.1:0".parse().unwrap(),
        faults: false,
    })
    .await
}

/// Why it is not opened; the message has to say which disk is meant.
async fn refused(disk: &Path, size: Option<u64>) -> AgentError {
    let error = bind(disk, size).await.unwrap_err();
    assert!(error.to_string().contains(&disk.display().to_string()), "{error}");
    error
}

fn folder() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let disk = folder.path().join("disk");
    (folder, disk)
}

#[tokio::test]
async fn an_absent_disk_is_created_sparse_if_a_size_is_given() {
    let (_folder, disk) = folder();
    assert!(matches!(refused(&disk, None).await, AgentError::Absent { .. }));
    assert!(!disk.exists());
    drop(bind(&disk, Some(1 << 30)).await.unwrap());
    let metadata = fs::metadata(&disk).unwrap();
    assert_eq!(metadata.len(), 1 << 30);
    assert!(metadata.blocks() * 512 < MIB, "{} blocks", metadata.blocks());
    drop(bind(&disk, None).await.unwrap());
    drop(bind(&disk, Some(1 << 30)).await.unwrap());
}

#[tokio::test]
async fn an_empty_file_is_taken_if_a_size_is_given() {
    let (_folder, disk) = folder();
    File::create(&disk).unwrap();
    assert!(matches!(refused(&disk, None).await, AgentError::Absent { .. }));
    drop(bind(&disk, Some(8 * MIB)).await.unwrap());
    assert_eq!(fs::metadata(&disk).unwrap().len(), 8 * MIB);
}

#[tokio::test]
async fn a_file_that_was_created_but_not_formatted_is_taken() {
    let (_folder, disk) = folder();
    File::create(&disk).unwrap().set_len(8 * MIB).unwrap();
    drop(bind(&disk, Some(8 * MIB)).await.unwrap());
}

#[tokio::test]
async fn a_disk_that_is_too_small_is_refused() {
    let (_folder, disk) = folder();
    assert!(matches!(refused(&disk, Some(8 * MIB - 1)).await, AgentError::TooSmall { .. }));
    assert!(!disk.exists());
    File::create(&disk).unwrap().set_len(MIB).unwrap();
    assert!(matches!(refused(&disk, None).await, AgentError::TooSmall { bytes: MIB, .. }));
}

#[tokio::test]
async fn another_size_is_refused() {
    let (_folder, disk) = folder();
    drop(bind(&disk, Some(8 * MIB)).await.unwrap());
    let error = refused(&disk, Some(9 * MIB)).await;
    assert!(
        matches!(error, AgentError::SizeMismatch { size, bytes, .. } if size == 9 * MIB && bytes == 8 * MIB)
    );
    File::options().write(true).open(&disk).unwrap().set_len(9 * MIB).unwrap();
    let error = refused(&disk, None).await;
    assert!(matches!(error, AgentError::LengthChanged { formatted, .. } if formatted == 8 * MIB));
}

#[tokio::test]
async fn a_disk_in_use_is_refused_until_it_is_not() {
    let (_folder, disk) = folder();
    let agent = bind(&disk, Some(8 * MIB)).await.unwrap();
    assert!(matches!(refused(&disk, None).await, AgentError::InUse { .. }));
    drop(agent);
    drop(bind(&disk, None).await.unwrap());
}

#[tokio::test]
async fn what_is_not_ours_is_refused_and_left_as_it_is() {
    let (_folder, disk) = folder();
    for content in [vec![0; 8 * MIB as usize], b"important letters ".repeat(500_000)] {
        fs::write(&disk, &content).unwrap();
        for size in [None, Some(content.len() as u64)] {
            assert!(matches!(refused(&disk, size).await, AgentError::NotOurs { .. }));
        }
        assert_eq!(fs::read(&disk).unwrap(), content);
    }
}

/// Changes bytes of a superblock, and its checksum with them.
fn forge(disk: &Path, copy: u64, place: usize, bytes: &[u8]) {
    let file = File::options().read(true).write(true).open(disk).unwrap();
    let mut superblock = vec![0; 64 * 1024];
    file.read_exact_at(&mut superblock, copy * 64 * 1024).unwrap();
    superblock[place..place + bytes.len()].copy_from_slice(bytes);
    let crc = crc32c::crc32c(&superblock[12..]);
    superblock[8..12].copy_from_slice(&crc.to_le_bytes());
    file.write_all_at(&superblock, copy * 64 * 1024).unwrap();
}

#[tokio::test]
async fn a_newer_format_is_refused_even_if_one_copy_alone_has_it() {
    let (_folder, disk) = folder();
    drop(bind(&disk, Some(8 * MIB)).await.unwrap());
    forge(&disk, 1, 12, &7_u32.to_le_bytes());
    assert!(matches!(refused(&disk, None).await, AgentError::OtherFormat { found: 7, known: 2, .. }));
}

#[tokio::test]
async fn one_damaged_superblock_is_repaired_two_are_refused() {
    let (_folder, disk) = folder();
    drop(bind(&disk, Some(8 * MIB)).await.unwrap());
    let file = File::options().read(true).write(true).open(&disk).unwrap();
    for copy in [0, 1] {
        file.write_all_at(b"damage", copy * 64 * 1024 + 40).unwrap();
        drop(bind(&disk, None).await.unwrap());
    }
    for copy in [0, 1] {
        file.write_all_at(b"damage", copy * 64 * 1024 + 40).unwrap();
    }
    assert!(matches!(refused(&disk, None).await, AgentError::SuperblocksDamaged { .. }));
}

#[tokio::test]
async fn a_label_that_cannot_be_is_damage() {
    let (_folder, disk) = folder();
    drop(bind(&disk, Some(8 * MIB)).await.unwrap());
    for copy in [0, 1] {
        // The byte that says whether a label follows: what follows here is zeros.
        forge(&disk, copy, 64, &[1]);
    }
    assert!(matches!(refused(&disk, None).await, AgentError::SuperblocksDamaged { .. }));
}

#[tokio::test]
async fn folders_and_other_things_are_refused() {
    let (folder, _) = folder();
    assert!(matches!(refused(folder.path(), None).await, AgentError::Directory { .. }));
    assert!(matches!(refused(Path::new("/dev/null"), None).await, AgentError::NotAFile { .. }));
    let inside_nothing = folder.path().join("no/such/disk");
    assert!(matches!(refused(&inside_nothing, Some(8 * MIB)).await, AgentError::Disk { .. }));
}

#[tokio::test]
async fn an_address_in_use_is_refused_before_a_disk_is_created() {
    let (folder, disk) = folder();
    let agent = bind(&disk, Some(8 * MIB)).await.unwrap();
    let other = folder.path().join("other");
    let config =
        AgentConfig { disk: other.clone(), size: Some(8 * MIB), listen: agent.local_addr(), faults: false };
    let error = Agent::bind(config).await.unwrap_err();
    assert!(matches!(error, AgentError::AddressInUse { address } if address == agent.local_addr()));
    assert!(!other.exists());
    let listen = "192.0.2.1:1".parse().unwrap();
    let error = Agent::bind(AgentConfig { disk: other, size: Some(8 * MIB), listen, faults: false })
        .await
        .unwrap_err();
    assert!(matches!(error, AgentError::Listen { .. }));
}
