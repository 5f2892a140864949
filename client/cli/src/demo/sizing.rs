//! How large the disks of the demo have to be, and whether there is room for what will be written.

use std::path::Path;

use rustix::fs::statvfs;
use stripeset_stripe::profile::Profile;

use super::files::SourceFile;
use crate::{
    cluster::{fixed_disk_bytes, slice_disk_bytes},
    failure::Failure,
    quantity::show_size,
};

const SECTOR_BYTES: u64 = 4096;
const UNIT_BYTES: u32 = 64 << 10;
const SLICE_BYTES: u64 = 64 << 20;

/// Chunks beyond those that the bytes fill: one that small writes are packed into, one that large ones begin anew.
const CHUNKS_SPARE: u64 = 2;

/// Room for the coordinator's own state, in all and for each object.
const STATE_BYTES: u64 = 32 << 20;
const STATE_BYTES_PER_OBJECT: u64 = 1024;

/// What the demo needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sizes {
    /// Length of each agent's disk. The files are sparse, so it costs nothing to be generous here.
    pub(super) agent_bytes: u64,
    /// Bytes that will really be written, about.
    pub(super) written_bytes: u64,
}

pub(super) fn sizes(files: &[SourceFile], profile: Profile, agents: usize) -> Sizes {
    let (data, shards, agents) = (profile.data_shards() as u64, profile.shards() as u64, agents as u64);
    let stripe_bytes = data * u64::from(UNIT_BYTES);
    let sectors: u64 = files.iter().map(|file| file.bytes.next_multiple_of(SECTOR_BYTES)).sum();
    // A large file takes whole stripes and may leave most of its last one empty.
    let large = files.iter().filter(|file| file.bytes > stripe_bytes / 2).count() as u64;
    let logical = sectors + large * stripe_bytes;
    let chunks = logical.div_ceil(data * SLICE_BYTES) + CHUNKS_SPARE;
    let slices = (chunks * shards).div_ceil(agents) + 1;
    let slices_bytes = slices * slice_disk_bytes(UNIT_BYTES);
    let agent_bytes = (slices_bytes + fixed_disk_bytes(slices_bytes)).next_multiple_of(1 << 20);
    // With each unit that holds something, its record.
    let shards_bytes = (sectors * shards).div_ceil(data);
    let records_bytes = shards_bytes.div_ceil(u64::from(UNIT_BYTES)) * SECTOR_BYTES;
    let fixed =
        agents * fixed_disk_bytes(slices_bytes) + STATE_BYTES + files.len() as u64 * STATE_BYTES_PER_OBJECT;
    Sizes { agent_bytes, written_bytes: shards_bytes + records_bytes + fixed }
}

/// Fails if the file system of `folder` has less room than that.
pub(super) fn check_room(folder: &Path, sizes: Sizes) -> Result<(), Failure> {
    let system = statvfs(folder).map_err(std::io::Error::from)?;
    let free = system.f_bavail.saturating_mul(system.f_frsize);
    if free >= sizes.written_bytes {
        return Ok(());
    }
    let place = folder.parent().unwrap_or(folder).display();
    let (need, free) = (show_size(sizes.written_bytes), show_size(free));
    Err(Failure::failed(format!(
        "the demo would write about {need}, and {place} has {free} free: set TMPDIR to a folder with more room, or \
         store less"
    )))
}

#[cfg(test)]
mod tests {
    use stripeset_stripe::profile::ProfileSpec;

    use super::*;

    fn sizes_of(word: &str, agents: usize, files: &[u64]) -> Sizes {
        let profile = word.parse::<ProfileSpec>().unwrap().resolve(agents).unwrap();
        let file = |bytes: &u64| SourceFile { path: "x".into(), name: "x".to_owned(), bytes: *bytes };
        sizes(&files.iter().map(file).collect::<Vec<_>>(), profile, agents)
    }

    #[test]
    fn disks_hold_what_is_stored_and_its_parity() {
        let gib = 1u64 << 30;
        for (word, agents, factor) in
            [("raid5", 5, 1.25), ("raid6", 6, 1.5), ("mirror3", 7, 3.0), ("dup", 3, 2.0)]
        {
            let sizes = sizes_of(word, agents, &[10 * gib, 1, 1]);
            let raw = (10 * gib) as f64 * factor;
            assert!((sizes.agent_bytes * agents as u64) as f64 > raw * 1.0625, "{word}");
            assert!((sizes.agent_bytes * agents as u64) as f64 <= raw * 1.4, "{word}: {sizes:?}");
            assert!(sizes.written_bytes as f64 > raw && (sizes.written_bytes as f64) < raw * 1.15, "{word}");
        }
    }

    #[test]
    fn many_small_files_take_a_sector_each() {
        let sizes = sizes_of("raid5", 5, &vec![1; 1_000_000]);
        assert!(sizes.written_bytes > 5_000_000_000, "{sizes:?}");
        assert!(sizes.agent_bytes > 1_000_000_000, "{sizes:?}");
    }

    #[test]
    fn a_file_system_without_room_is_told() {
        let sizes = Sizes { agent_bytes: 0, written_bytes: u64::MAX };
        let message = check_room(Path::new("/tmp"), sizes).unwrap_err().message;
        assert!(message.contains("set TMPDIR"), "{message}");
    }
}
