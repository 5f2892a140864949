//! The SDK against a real coordinator and real agents, all in this process.
//!
//! Decides nothing about faults of the network, which `faults.rs` plays.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

use futures_util::{StreamExt, TryStreamExt, stream};
use stripeset_client::{Client, ErrorKind, PutOptions};
use stripeset_testing::Cluster;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Bytes that no shift or swap of sectors leaves the same.
fn bytes(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 24) as u8
    };
    std::iter::repeat_with(next).take(length).collect()
}

async fn connect(cluster: &Cluster) -> Client {
    Client::connect(cluster.endpoint()).await.unwrap()
}

#[tokio::test]
async fn what_goes_in_comes_out_whatever_its_length() {
    let cluster = Cluster::start(5, "raid5").await;
    let client = connect(&cluster).await;
    let lengths = [0, 1, 4095, 4096, 4097, 65536, 262_143, 262_144, 262_145, 1_000_001, 5_000_000];
    for (seed, length) in lengths.into_iter().enumerate() {
        let sent = bytes(length, seed as u64);
        // Over the object of the length before.
        let object = client.put("a", &sent[..]).await.unwrap();
        assert_eq!((object.size_bytes, object.crc32c), (length as u64, crc32c::crc32c(&sent)));
        assert_eq!(client.stat("a").await.unwrap(), object);
        let reader = client.get("a").await.unwrap();
        assert_eq!(reader.object(), &object);
        assert!(reader.bytes().await.unwrap() == sent, "{length}");
    }
}

#[tokio::test]
async fn ranges_are_those_of_the_object() {
    let cluster = Cluster::start(4, "raid6").await;
    let client = connect(&cluster).await;
    let sent = bytes(600_000, 1);
    client.put_bytes("a", sent.clone()).await.unwrap();
    for offset in [0, 1, 4095, 4096, 65_535, 131_072, 599_999, 600_000] {
        for length in [None, Some(0), Some(1), Some(4096), Some(300_000), Some(u64::MAX)] {
            let end =
                length.map_or(sent.len(), |length| (offset + length.min(700_000) as usize).min(sent.len()));
            let reader = client.get_range("a", offset as u64, length).await.unwrap();
            assert_eq!((reader.offset(), reader.length()), (offset as u64, (end - offset) as u64));
            assert!(reader.bytes().await.unwrap() == sent[offset..end], "{offset} {length:?}");
        }
    }
    let beyond = client.get_range("a", 600_001, None).await.unwrap_err();
    assert_eq!(beyond.kind(), ErrorKind::InvalidArgument);
}

#[tokio::test]
async fn a_list_goes_on_over_its_pages_in_order() {
    let cluster = Cluster::start(3, "raid5").await;
    let client = &connect(&cluster).await;
    let mut names: Vec<String> = (0..1005).map(|n| format!("many/{n}")).collect();
    let puts = stream::iter(&names).map(|name| client.put_bytes(name, "x")).buffer_unordered(32);
    puts.try_for_each(async |_| Ok(())).await.unwrap();
    client.put_bytes("other", "x").await.unwrap();
    names.sort();
    let listed: Vec<String> = client.list("many/").map_ok(|object| object.name).try_collect().await.unwrap();
    assert_eq!(listed, names);
    assert_eq!(client.list("").try_collect::<Vec<_>>().await.unwrap().len(), 1006);
    assert!(client.list("nothing").try_next().await.unwrap().is_none());
}

#[tokio::test]
async fn a_put_that_does_not_end_changes_nothing() {
    let cluster = Cluster::start(3, "raid5").await;
    let client = connect(&cluster).await;
    client.put_bytes("a", "old").await.unwrap();
    let (mut writer, source) = tokio::io::duplex(4096);
    {
        let mut put = Box::pin(client.put("a", source));
        let fill = async {
            for _ in 0..100 {
                writer.write_all(&bytes(10_000, 3)).await.unwrap();
            }
        };
        tokio::select! {
            end = &mut put => panic!("{end:?}"),
            () = fill => {}
        }
    }
    assert_eq!(client.get("a").await.unwrap().bytes().await.unwrap(), "old");

    let wrong = PutOptions { size_bytes: Some(4), create_only: false };
    let error = client.put_with("a", &b"12345"[..], wrong).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    assert_eq!(client.get("a").await.unwrap().bytes().await.unwrap(), "old");
}

#[tokio::test]
async fn a_reader_keeps_to_its_generation() {
    let cluster = Cluster::start(3, "raid5").await;
    let client = connect(&cluster).await;
    let old = bytes(3_000_000, 4);
    client.put_bytes("a", old.clone()).await.unwrap();
    let mut reader = client.get("a").await.unwrap();
    let mut head = vec![0; 1000];
    reader.read_exact(&mut head).await.unwrap();
    client.put_bytes("a", bytes(3_000_000, 5)).await.unwrap();
    let mut tail = Vec::new();
    reader.read_to_end(&mut tail).await.unwrap();
    assert!([head, tail].concat() == old);
}

#[tokio::test]
async fn names_that_cannot_be_are_refused() {
    let cluster = Cluster::start(3, "raid5").await;
    let client = connect(&cluster).await;
    let long = "x".repeat(1025);
    for name in ["", "a\0b", long.as_str()] {
        let error = client.put_bytes(name, "x").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{name:?}: {error}");
    }
    client.put_bytes(&long[1..], "x").await.unwrap();
    for missing in [client.stat("b").await.err(), client.delete("b").await.err(), client.get("b").await.err()]
    {
        assert_eq!(missing.unwrap().kind(), ErrorKind::NotFound);
    }
}
