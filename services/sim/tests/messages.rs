//! What writes send to members: counted on the lines, so that a message more than needed is seen.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on stops")]

use bytes::Bytes;
use stripeset_coordinator::{
    engine::{Edit, ReadRange},
    extents::{StripeRef, packer::split_columns},
};
use stripeset_sim::{
    cluster::{Cluster, Coordinator, Settings},
    network::Counts,
    trace::Trace,
};
use stripeset_stripe::{Profile, SECTOR_BYTES, Version, geometry::Shard};

fn profile(word: &str) -> Profile {
    word.parse::<stripeset_stripe::profile::ProfileSpec>().unwrap().resolve(16).unwrap()
}

fn sector(byte: u8) -> Bytes {
    vec![byte; SECTOR_BYTES].into()
}

fn edit(shard: u8, first_sector: u32, byte: u8) -> Edit {
    Edit { shard: Shard(shard), first_sector, data: sector(byte) }
}

/// What was sent to all members together since `before`.
fn sent(cluster: &Cluster, before: &[Counts]) -> (u64, u64, u64) {
    let now = cluster.lines().iter().map(|line| line.counts());
    now.zip(before).fold((0, 0, 0), |(prepares, commits, reads), (now, before)| {
        (
            prepares + now.prepares - before.prepares,
            commits + now.commits - before.commits,
            reads + now.reads - before.reads,
        )
    })
}

fn counts(cluster: &Cluster) -> Vec<Counts> {
    cluster.lines().iter().map(|line| line.counts()).collect()
}

async fn open_stripe(coordinator: &Coordinator) -> StripeRef {
    let stripe = coordinator.engine.extents.take_stripe().await.unwrap().unwrap();
    let columns = split_columns(stripe.geometry(), sector(1));
    coordinator.engine.write_fresh(&stripe, &columns).await.unwrap();
    stripe
}

#[test]
fn a_small_write_to_a_cached_stripe_reads_nothing_and_prepares_on_one_data_shard_and_the_parities() {
    for (word, prepares) in
        [("raid5-4+1", 2), ("raid6-4+2", 3), ("mirror2", 2), ("mirror3", 3), ("rs-4+3", 4)]
    {
        let mut cluster = Cluster::new(Settings::small(profile(word), 1), Trace::default()).unwrap();
        let life = async |cluster: &Cluster, coordinator: &Coordinator| {
            let stripe = open_stripe(coordinator).await;
            coordinator.settle(cluster).await.unwrap();
            for round in 1..4 {
                let before = counts(cluster);
                coordinator.engine.write_partial(&stripe, vec![edit(0, round, 7)]).await.unwrap();
                assert_eq!(sent(cluster, &before), (prepares, 0, 0), "{word}, round {round}");
            }
            let range = ReadRange { shard: Shard(0), first_sector: 0, sectors: 4, version: Version::NONE };
            let bytes = coordinator.engine.read(&stripe, &[range]).await.unwrap();
            assert_eq!(bytes[0], [sector(1), sector(7), sector(7), sector(7)].concat());
        };
        cluster.run(&[], life).unwrap();
    }
}
