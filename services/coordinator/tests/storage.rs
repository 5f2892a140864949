//! What was put comes back: in every size and profile, with members away, after restarts, with damage on disks.
//!
//! Real agents and a real coordinator in one process, talked to through the SDK; damage is done to the disk files.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on stops")]

use std::{os::unix::fs::FileExt, time::Duration};

use stripeset_client::{CacheMode, Client, ErrorKind, MemberState, Place, RetryPolicy, SectorPlace};
use stripeset_proto::v1::{self, agent_service_client::AgentServiceClient};
use stripeset_testing::{Cluster, DISK_BYTES};
use tokio::time::Instant;

const MIB: usize = 1024 * 1024;

/// Bytes that differ everywhere, from a seed.
fn content(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    (0..length.div_ceil(8)).flat_map(|_| next()).take(length).collect()
}

async fn describe(cluster: &Cluster, agent: usize) -> v1::DescribeResponse {
    let address = format!("http://{}", cluster.agent_address(agent));
    let mut agent = AgentServiceClient::connect(address).await.unwrap();
    agent.describe(v1::DescribeRequest {}).await.unwrap().into_inner()
}

async fn client(cluster: &Cluster) -> Client {
    Client::builder(cluster.endpoint()).retry(RetryPolicy::never()).connect().await.unwrap()
}

async fn read(client: &Client, name: &str) -> Vec<u8> {
    client.get(name).await.unwrap().bytes().await.unwrap().to_vec()
}

/// Compares without printing megabytes.
#[track_caller]
fn same(found: &[u8], expected: &[u8], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let differs = found.iter().zip(expected).position(|(found, expected)| found != expected);
    assert_eq!(differs, None, "{what}: first byte that differs");
}

async fn sectors(client: &Client, name: &str, offset: u64, length: u64) -> Vec<SectorPlace> {
    let place = Place::Object { name: name.to_owned(), offset, length };
    client.array().explain(place).await.unwrap().sectors
}

fn flip(cluster: &Cluster, member: u32, offset: u64, bytes: usize) {
    let disk =
        std::fs::OpenOptions::new().read(true).write(true).open(cluster.disk(member as usize)).unwrap();
    let mut buffer = vec![0; bytes];
    disk.read_exact_at(&mut buffer, offset).unwrap();
    buffer.iter_mut().for_each(|byte| *byte ^= 0x5a);
    disk.write_all_at(&buffer, offset).unwrap();
}

fn on_disk(cluster: &Cluster, place: &SectorPlace) -> Vec<u8> {
    let mut sector = vec![0; 4096];
    let disk = std::fs::File::open(cluster.disk(place.member as usize)).unwrap();
    disk.read_exact_at(&mut sector, place.disk_offset).unwrap();
    sector
}

/// Polls until `done`, at most for `limit`.
async fn within(limit: Duration, what: &str, mut done: impl AsyncFnMut() -> bool) {
    let started = Instant::now();
    while !done().await {
        assert!(started.elapsed() < limit, "not within {limit:?}: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn objects_of_every_size_come_back_whole_and_in_ranges() {
    let cluster = Cluster::start(5, "raid5").await;
    let client = client(&cluster).await;
    let stripe = 256 * 1024;
    let sizes = [0, 1, 4095, 4096, 4097, stripe - 1, stripe, stripe + 1, 3 * stripe + 5000, 5 * MIB + 77];
    for (seed, size) in (0..).zip(sizes) {
        let bytes = content(seed, size);
        let info = client.put_bytes(&format!("o/{size}"), bytes.clone()).await.unwrap();
        assert_eq!(info.crc32c, crc32c::crc32c(&bytes));
        assert_eq!(info.allocated_bytes, size.next_multiple_of(4096) as u64);
    }
    for (seed, size) in (0..).zip(sizes) {
        let (name, bytes) = (format!("o/{size}"), content(seed, size));
        same(&read(&client, &name).await, &bytes, &name);
        for (offset, length) in [(0, 1), (size / 2, 5000), (size.saturating_sub(3), 10), (size, 1)] {
            let range = client.get_range(&name, offset as u64, length as u64).await.unwrap();
            let end = size.min(offset + length);
            same(
                &range.bytes().await.unwrap(),
                &bytes[offset.min(size)..end],
                &format!("{name} {offset}+{length}"),
            );
        }
    }
    let past = client.get_range("o/4096", 4097, 1).await.unwrap_err();
    assert_eq!(past.kind(), ErrorKind::InvalidArgument);
}

#[tokio::test]
async fn any_m_members_may_be_away() {
    let profiles = [("mirror2", 2, 1), ("mirror3", 3, 2), ("raid5", 3, 1), ("raid6", 5, 2), ("rs-4+3", 7, 3)];
    for (profile, members, bears) in profiles {
        let mut cluster = Cluster::start(members, profile).await;
        let client = client(&cluster).await;
        let (large, small) = (content(1, 2 * MIB + 333), content(2, 9000));
        client.put_bytes("large", large.clone()).await.unwrap();
        client.put_bytes("small", small.clone()).await.unwrap();
        for first in 0..members {
            let away: Vec<usize> = (first..first + bears).map(|member| member % members).collect();
            for member in &away {
                cluster.stop_agent(*member).await;
            }
            same(&read(&client, "large").await, &large, &format!("{profile} without {away:?}"));
            same(&read(&client, "small").await, &small, &format!("{profile} without {away:?}"));
            for member in away {
                cluster.start_agent(member).await;
            }
            cluster.wait_served().await;
        }
        let members = client.array().members().await.unwrap();
        assert!(members.iter().all(|member| member.state == MemberState::InSync), "{profile}: {members:?}");
    }
}

#[tokio::test]
async fn more_than_m_away_is_unavailable_and_comes_back_by_itself() {
    for (profile, members) in [("raid5", 3), ("single", 1), ("dup", 1)] {
        let mut cluster = Cluster::start(members, profile).await;
        let client = client(&cluster).await;
        let bytes = content(3, MIB);
        client.put_bytes("o", bytes.clone()).await.unwrap();
        let away = members.div_ceil(2);
        for member in 0..away {
            cluster.stop_agent(member).await;
        }
        let error = match client.get("o").await {
            Ok(reader) => reader.bytes().await.unwrap_err(),
            Err(error) => error,
        };
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{profile}: {error}");
        let put = client.put_bytes("p", vec![1; 5000]).await.unwrap_err();
        assert_eq!(put.kind(), ErrorKind::Unavailable, "{profile}: {put}");
        let status = client.array().status().await.unwrap();
        assert!(!status.reads_served && !status.writes_served, "{profile}");
        for member in 0..away {
            cluster.start_agent(member).await;
        }
        cluster.wait_served().await;
        same(&read(&client, "o").await, &bytes, profile);
        assert_eq!(client.stat("p").await.unwrap_err().kind(), ErrorKind::NotFound, "{profile}");
        client.put_bytes("p", vec![1; 5000]).await.unwrap();
    }
}

#[tokio::test]
async fn a_member_that_missed_a_write_is_out_until_it_is_back() {
    let mut cluster = Cluster::start(5, "raid5").await;
    let client = client(&cluster).await;
    let (before, after) = (content(4, MIB), content(5, MIB + 100));
    client.put_bytes("o", before).await.unwrap();
    cluster.stop_agent(2).await;
    client.put_bytes("o", after.clone()).await.unwrap();
    let state = async |client: &Client| client.array().members().await.unwrap()[2].state;
    assert_eq!(state(&client).await, MemberState::Out);
    cluster.stop_coordinator().await;
    cluster.start_coordinator().await;
    cluster.wait_served().await;
    assert_eq!(state(&client).await, MemberState::Out, "the mark is durable");
    same(&read(&client, "o").await, &after, "after a restart");
    cluster.start_agent(2).await;
    same(&read(&client, "o").await, &after, "with the stale member back");
    within(Duration::from_secs(30), "it is taken back", async || state(&client).await == MemberState::InSync)
        .await;
    // It stands for another one now.
    cluster.stop_agent(0).await;
    same(&read(&client, "o").await, &after, "rebuilt with what it was given");
    client.put_bytes("o", content(6, MIB)).await.unwrap();
    same(&read(&client, "o").await, &content(6, MIB), "written without another one");
}

#[tokio::test]
async fn everything_is_there_after_all_processes_were_restarted() {
    let mut cluster = Cluster::start(5, "raid5").await;
    let client = client(&cluster).await;
    let mut objects = Vec::new();
    for index in 0..40 {
        let bytes = content(index, (index as usize * 7919) % 60_000 + 1);
        client.put_bytes(&format!("o/{index:02}"), bytes.clone()).await.unwrap();
        objects.push(bytes);
    }
    client.delete("o/07").await.unwrap();
    cluster.stop_coordinator().await;
    for index in 0..5 {
        cluster.stop_agent(index).await;
        cluster.start_agent(index).await;
    }
    cluster.start_coordinator().await;
    cluster.wait_served().await;
    for (index, bytes) in objects.iter().enumerate() {
        let name = format!("o/{index:02}");
        match index {
            7 => assert_eq!(client.stat(&name).await.unwrap_err().kind(), ErrorKind::NotFound),
            _ => same(&read(&client, &name).await, bytes, &name),
        }
    }
    assert_eq!(client.array().status().await.unwrap().objects, 39);
}

#[tokio::test]
async fn flipped_bytes_are_found_repaired_and_counted() {
    for (profile, members) in [("raid5", 5), ("raid6", 5), ("mirror2", 2), ("rs-2+3", 5)] {
        let cluster = Cluster::start(members, profile).await;
        let client = client(&cluster).await;
        for size in [10_000, MIB] {
            let (name, bytes) = (format!("o{size}"), content(6, size));
            client.put_bytes(&name, bytes.clone()).await.unwrap();
            let place = sectors(&client, &name, 5000, 1).await.remove(0);
            assert_eq!(place.offset, 4096);
            same(
                &on_disk(&cluster, &place),
                &bytes[4096..8192],
                "where explain says, the object's bytes are",
            );
            let before = client.array().members().await.unwrap();
            flip(&cluster, place.member, place.disk_offset + 17, 3);
            same(&read(&client, &name).await, &bytes, profile);
            within(Duration::from_secs(1), "repaired on disk", async || {
                on_disk(&cluster, &place) == bytes[4096..8192]
            })
            .await;
            within(Duration::from_secs(1), "counted", async || {
                let after = client.array().members().await.unwrap();
                let counted = |index: usize| {
                    let (before, after) = (&before[index].errors, &after[index].errors);
                    let found = after.checksum - before.checksum;
                    (found, after.corrected - before.corrected)
                };
                (0..members).all(|index| {
                    let expected = if index == place.member as usize { (1, 1) } else { (0, 0) };
                    counted(index) == expected
                })
            })
            .await;
        }
    }
}

#[tokio::test]
async fn units_and_records_of_one_disk_may_be_overwritten() {
    let mut cluster = Cluster::start(5, "raid5").await;
    let client = client(&cluster).await;
    let bytes = content(7, 6 * MIB);
    client.put_bytes("o", bytes.clone()).await.unwrap();
    let places = sectors(&client, "o", 0, bytes.len() as u64).await;
    let described = describe(&cluster, 1).await;
    cluster.stop_agent(1).await;
    for place in places.iter().filter(|place| place.member == 1 && place.offset % (64 * 1024) == 0) {
        flip(&cluster, 1, place.disk_offset, 64 * 1024);
        let unit = (place.disk_offset - described.first_unit_offset) / described.unit_stride_bytes;
        let page_units = u64::from(described.page_bytes / described.record_bytes);
        let in_page = unit % page_units * u64::from(described.record_bytes);
        let record = described.table_offset + unit / page_units * u64::from(described.page_bytes) + in_page;
        flip(&cluster, 1, record, 64);
    }
    cluster.start_agent(1).await;
    cluster.wait_served().await;
    same(&read(&client, "o").await, &bytes, "with the damage");
    // Reading what is left by itself proves that the damage is gone from member 1.
    within(Duration::from_secs(5), "everything repaired", async || {
        places.iter().filter(|place| place.member == 1).all(|place| {
            let offset = place.offset as usize;
            on_disk(&cluster, place) == bytes[offset..offset + 4096]
        })
    })
    .await;
    cluster.stop_agent(0).await;
    same(&read(&client, "o").await, &bytes, "from the repaired member, with another one away");
}

#[tokio::test]
async fn damage_beyond_tolerance_is_said_and_never_served() {
    let cluster = Cluster::start(5, "raid5").await;
    let client = client(&cluster).await;
    let bytes = content(8, MIB);
    client.put_bytes("o", bytes.clone()).await.unwrap();
    // Two data sectors of one vertical: the first sectors of shards 0 and 1 of the first stripe.
    for offset in [0, 64 * 1024] {
        let place = sectors(&client, "o", offset, 1).await.remove(0);
        flip(&cluster, place.member, place.disk_offset, 1);
    }
    let error = client.get("o").await.unwrap().bytes().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DataLoss, "{error}");
    let whole = client.get_range("o", 4096, 60 * 1024).await.unwrap().bytes().await.unwrap();
    same(&whole, &bytes[4096..64 * 1024], "the rest of the stripe is still there");
}

#[tokio::test]
async fn a_rotten_neighbour_is_repaired_before_parity_is_computed() {
    let mut cluster = Cluster::start(5, "raid5").await;
    let client = client(&cluster).await;
    // A write that takes its neighbours from the cache does not meet what is on the disks.
    client.array().set_cache_mode(CacheMode::Off, false).await.unwrap();
    let neighbour = content(9, 4096);
    client.put_bytes("neighbour", neighbour.clone()).await.unwrap();
    let place = sectors(&client, "neighbour", 0, 1).await.remove(0);
    flip(&cluster, place.member, place.disk_offset, 4096);
    // Small objects go into the same stripe; enough of them come to the neighbour's vertical in every shard.
    for index in 0..63 {
        client.put_bytes(&format!("small/{index}"), content(index, 4096)).await.unwrap();
    }
    within(Duration::from_secs(1), "the write repaired it", async || on_disk(&cluster, &place) == neighbour)
        .await;
    for away in 0..5 {
        cluster.stop_agent(away).await;
        same(&read(&client, "neighbour").await, &neighbour, "with any one member away");
        for index in 0..63 {
            same(&read(&client, &format!("small/{index}")).await, &content(index, 4096), "small");
        }
        cluster.start_agent(away).await;
        cluster.wait_served().await;
    }
}

#[tokio::test]
async fn a_full_array_says_so_and_takes_objects_again_after_a_delete() {
    let cluster = Cluster::start(3, "raid5").await;
    let client = client(&cluster).await;
    let piece = content(10, 40 * MIB);
    let mut stored = 0;
    let full = loop {
        match client.put_bytes(&format!("o/{stored}"), piece.clone()).await {
            Ok(_) => stored += 1,
            Err(error) => break error,
        }
        assert!(stored * piece.len() <= 2 * DISK_BYTES as usize, "more was stored than the disks hold");
    };
    assert_eq!(full.kind(), ErrorKind::Full, "{full}");
    let free = client.array().status().await.unwrap().capacity.free_bytes as usize;
    assert!(free < piece.len());
    assert_eq!(client.stat(&format!("o/{stored}")).await.unwrap_err().kind(), ErrorKind::NotFound);
    // What is left can be used to the last sector, by small objects too.
    client.put_bytes("rest", content(11, free / 2 - 3 * 4096)).await.unwrap();
    let left = client.array().status().await.unwrap().capacity.free_bytes as usize;
    client.put_bytes("last", content(12, left)).await.unwrap();
    assert_eq!(client.array().status().await.unwrap().capacity.free_bytes, 0);
    assert_eq!(client.put_bytes("more", vec![1]).await.unwrap_err().kind(), ErrorKind::Full);
    client.put_bytes("empty", Vec::new()).await.unwrap();
    client.delete("o/0").await.unwrap();
    client.put_bytes("again", piece.clone()).await.unwrap();
    same(&read(&client, "again").await, &piece, "again");
    same(&read(&client, "last").await, &content(12, left), "last");
    same(&read(&client, "o/1").await, &piece, "o/1");
}

#[tokio::test]
async fn holes_between_live_sectors_are_used_when_empty_stripes_run_out() {
    let mut cluster = Cluster::start(3, "raid5").await;
    let client = client(&cluster).await;
    let free = client.array().status().await.unwrap().capacity.free_bytes as usize;
    // Pairs of small objects side by side, then one large object over all the rest.
    for index in 0..400 {
        client.put_bytes(&format!("small/{index:03}"), content(index, 8192)).await.unwrap();
    }
    let left = client.array().status().await.unwrap().capacity.free_bytes as usize;
    assert!(free - left >= 400 * 8192);
    client.put_bytes("large", content(1000, left)).await.unwrap();
    for index in (0..400).step_by(2) {
        client.delete(&format!("small/{index:03}")).await.unwrap();
    }
    let scattered = content(1001, 200 * 8192);
    client.put_bytes("scattered", scattered.clone()).await.unwrap();
    for away in 0..3 {
        cluster.stop_agent(away).await;
        same(&read(&client, "scattered").await, &scattered, "scattered");
        for index in (1..400).step_by(2) {
            let name = format!("small/{index:03}");
            same(&read(&client, &name).await, &content(index, 8192), &name);
        }
        cluster.start_agent(away).await;
        cluster.wait_served().await;
    }
}

#[tokio::test]
async fn a_get_sees_the_old_bytes_to_the_end() {
    let cluster = Cluster::start(3, "raid5").await;
    let client = client(&cluster).await;
    let old = content(13, 30 * MIB);
    client.put_bytes("o", old.clone()).await.unwrap();
    let reader = client.get("o").await.unwrap();
    client.put_bytes("o", content(14, 1000)).await.unwrap();
    // Fill what is free, so that a sector freed too early would be overwritten.
    let free = client.array().status().await.unwrap().capacity.free_bytes as usize;
    client.put_bytes("filler", content(15, free)).await.unwrap();
    same(&reader.bytes().await.unwrap(), &old, "the object as it was");
    within(Duration::from_secs(2), "the old bytes are free again", async || {
        client.array().status().await.unwrap().capacity.free_bytes as usize >= old.len()
    })
    .await;
}
