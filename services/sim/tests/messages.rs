//! What writes send to members: counted on the lines, so that a message more than needed is seen.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on stops")]

use std::time::Duration;

use bytes::Bytes;
use stripeset_coordinator::{
    engine::{Edit, ReadRange},
    extents::{StripeRef, packer::split_columns},
    meta::Extent,
};
use stripeset_sim::{
    cluster::{Cluster, Coordinator, Settings},
    dice::Dice,
    invariants::parity,
    network::{Conduct, Counts, Kind},
    trace::Trace,
    vertical,
};
use stripeset_stripe::{
    Profile, SECTOR_BYTES, Version,
    bits::Bits,
    code::Codec,
    geometry::{Place, Shard},
    plan::{Kind as PlanKind, Plan, Reading},
};

fn profile(word: &str) -> Profile {
    word.parse::<stripeset_stripe::profile::ProfileSpec>().unwrap().resolve(16).unwrap()
}

fn sector(byte: u8) -> Bytes {
    vec![byte; SECTOR_BYTES].into()
}

fn edit(shard: u8, first_sector: u32, byte: u8) -> Edit {
    Edit { shard: Shard(shard), first_sector, data: sector(byte) }
}

fn counts(cluster: &Cluster) -> Vec<Counts> {
    cluster.lines().iter().map(|line| line.counts()).collect()
}

/// What was sent to one member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sent {
    prepares: u64,
    commits: u64,
    reads: u64,
    /// Sectors that the reads asked for.
    sectors: u64,
    /// Of no kind that a write that goes well needs.
    others: u64,
}

/// What was sent since `before`, by member.
fn sent_by_member(cluster: &Cluster, before: &[Counts]) -> Vec<Sent> {
    let since = |(now, before): (Counts, &Counts)| Sent {
        prepares: now.prepares - before.prepares,
        commits: now.commits - before.commits,
        reads: now.reads - before.reads,
        sectors: now.sectors_read - before.sectors_read,
        others: now.aborts + now.rebuilds - before.aborts - before.rebuilds,
    };
    counts(cluster).into_iter().zip(before).map(since).collect()
}

/// The same, by shard of a stripe.
fn sent_by_shard(
    cluster: &Cluster,
    coordinator: &Coordinator,
    stripe: &StripeRef,
    before: &[Counts],
) -> Vec<Sent> {
    let by_member = sent_by_member(cluster, before);
    stripe.shards().map(|shard| by_member[coordinator.place(stripe, usize::from(shard.0)).0]).collect()
}

/// Prepares, commits and reads sent since `before`, to all members together.
fn sent(cluster: &Cluster, before: &[Counts]) -> (u64, u64, u64) {
    let all = sent_by_member(cluster, before);
    let of = |count: fn(&Sent) -> u64| all.iter().map(count).sum();
    (of(|sent| sent.prepares), of(|sent| sent.commits), of(|sent| sent.reads))
}

async fn open_stripe(coordinator: &Coordinator) -> StripeRef {
    let stripe = coordinator.engine.extents.take_stripe().await.unwrap().unwrap();
    let columns = split_columns(stripe.geometry(), sector(1));
    coordinator.engine.write_fresh(&stripe, &columns).await.unwrap();
    stripe
}

async fn full_stripe(coordinator: &Coordinator) -> StripeRef {
    let stripe = coordinator.engine.extents.take_stripe().await.unwrap().unwrap();
    coordinator.engine.write_fresh(&stripe, &all_of(&stripe, 1)).await.unwrap();
    stripe
}

/// Bytes for a stripe, by data shard.
fn all_of(stripe: &StripeRef, byte: u8) -> Vec<Bytes> {
    split_columns(stripe.geometry(), vec![byte; stripe.geometry().stripe_bytes() as usize].into())
}

fn on(word: &str, life: impl AsyncFnOnce(&Cluster, &Coordinator)) {
    Cluster::new(Settings::small(profile(word), 1), Trace::default()).unwrap().run(&[], life).unwrap();
}

const PROFILES: [&str; 6] = ["raid5-2+1", "raid5-4+1", "raid6-4+2", "mirror2", "mirror3", "rs-4+3"];

#[test]
fn a_small_write_to_a_cached_stripe_reads_nothing_and_prepares_on_one_data_shard_and_the_parities() {
    for (word, prepares) in
        [("raid5-4+1", 2), ("raid6-4+2", 3), ("mirror2", 2), ("mirror3", 3), ("rs-4+3", 4)]
    {
        let mut cluster = Cluster::new(Settings::small(profile(word), 1), Trace::default()).unwrap();
        let life = async |cluster: &Cluster, coordinator: &Coordinator| {
            let stripe = open_stripe(coordinator).await;
            coordinator.settle().await.unwrap();
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

#[test]
fn a_small_write_contacts_its_own_shard_and_the_parities_alone() {
    for word in PROFILES {
        on(word, async |cluster, coordinator| {
            let stripe = full_stripe(coordinator).await;
            let k = profile(word).data_shards();
            coordinator.engine.set_reading(Reading::Whole);
            coordinator.engine.write_partial(&stripe, vec![edit(0, 0, 2)]).await.unwrap();
            coordinator.settle().await.unwrap();
            for shard in 0..k {
                let before = counts(cluster);
                coordinator.engine.write_partial(&stripe, vec![edit(shard as u8, 0, 3)]).await.unwrap();
                let sent = sent_by_shard(cluster, coordinator, &stripe, &before);
                for (other, sent) in sent.into_iter().enumerate() {
                    let prepares = u64::from(other == shard || other >= k);
                    let expected = Sent { prepares, commits: sent.commits, ..Sent::default() };
                    assert_eq!(sent, expected, "{word}, a write to {shard}, shard {other}");
                }
            }
        });
    }
}

/// The longest that a decided write waits until its commit is sent.
const COMMIT_DELAY: Duration = Duration::from_millis(50);

#[test]
fn commits_ride_on_the_next_prepare() {
    for word in PROFILES {
        on(word, async |cluster, coordinator| {
            let stripe = open_stripe(coordinator).await;
            coordinator.settle().await.unwrap();
            let k = profile(word).data_shards();
            let (before, begun) = (counts(cluster), tokio::time::Instant::now());
            const WRITES: u64 = 200;
            for write in 0..WRITES {
                coordinator.engine.write_partial(&stripe, vec![edit(0, 1, write as u8)]).await.unwrap();
            }
            // One batch for each delay that has passed, and one that was begun.
            let most = (begun.elapsed().as_millis() / COMMIT_DELAY.as_millis()) as u64 + 1;
            assert!(most * 10 <= WRITES, "{word}: the writes took {:?}", begun.elapsed());
            for (shard, sent) in sent_by_shard(cluster, coordinator, &stripe, &before).into_iter().enumerate()
            {
                let takes_part = shard == 0 || shard >= k;
                assert!(sent.commits <= most * u64::from(takes_part), "{word}, shard {shard}: {sent:?}");
                let prepares = WRITES * u64::from(takes_part);
                assert_eq!(
                    sent,
                    Sent { prepares, commits: sent.commits, ..Sent::default() },
                    "{word}, {shard}"
                );
            }
        });
    }
}

#[test]
fn a_prepare_commits_its_base() {
    for word in PROFILES {
        on(word, async |cluster, coordinator| {
            let stripe = open_stripe(coordinator).await;
            coordinator.settle().await.unwrap();
            let before = counts(cluster);
            let mut last = None;
            for byte in 0..8 {
                let written =
                    coordinator.engine.write_partial(&stripe, vec![edit(0, 1, byte)]).await.unwrap();
                let (member, unit) = coordinator.place(&stripe, 0);
                let record = cluster.lines()[member].agent().unit(unit).unwrap();
                assert_eq!(Version::from(record.pending_version.unwrap()), written, "{word}");
                if let Some(last) = last {
                    assert_eq!(Version::from(record.committed_version.unwrap()), last, "{word}");
                }
                last = Some(written);
            }
            assert_eq!(sent(cluster, &before).1, 0, "{word}: no commit was sent yet");
        });
    }
}

#[test]
fn a_flush_waits_for_commits_on_their_way() {
    for word in PROFILES {
        on(word, async |cluster, coordinator| {
            open_stripe(coordinator).await;
            let held = Conduct { held: vec![Kind::Commit], ..Conduct::default() };
            cluster.lines().iter().for_each(|line| line.set_conduct(held.clone()));
            let before = counts(cluster);
            while sent(cluster, &before).1 < cluster.lines().len() as u64 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            let flushed =
                tokio::time::timeout(Duration::from_millis(500), coordinator.engine.flush_commits());
            assert!(flushed.await.is_err(), "{word}: nobody has answered yet");
            cluster.lines().iter().for_each(|line| line.set_conduct(Conduct::default()));
            coordinator.engine.flush_commits().await;
            assert_eq!(sent(cluster, &before).1, cluster.lines().len() as u64, "{word}: each was sent once");
        });
    }
}

#[test]
fn a_whole_stripe_is_one_prepare_to_each_member_and_no_read() {
    for word in PROFILES {
        on(word, async |cluster, coordinator| {
            let one_each = vec![Sent { prepares: 1, ..Sent::default() }; cluster.lines().len()];
            let stripe = coordinator.engine.extents.take_stripe().await.unwrap().unwrap();
            let before = counts(cluster);
            coordinator.engine.write_fresh(&stripe, &all_of(&stripe, 1)).await.unwrap();
            assert_eq!(sent_by_member(cluster, &before), one_each, "{word}: fresh");

            let whole = |byte| -> Vec<Edit> {
                let edit = |(shard, data)| Edit { shard: Shard(shard), first_sector: 0, data };
                (0..).zip(all_of(&stripe, byte)).map(edit).collect()
            };
            coordinator.engine.write_partial(&stripe, vec![edit(0, 0, 2)]).await.unwrap();
            coordinator.settle().await.unwrap();
            let before = counts(cluster);
            coordinator.engine.write_partial(&stripe, whole(3)).await.unwrap();
            assert_eq!(sent_by_member(cluster, &before), one_each, "{word}: over a cached stripe");

            coordinator.settle().await.unwrap();
            let before = counts(cluster);
            coordinator.engine.write_partial(&stripe, whole(4)).await.unwrap();
            // Which versions it is written over, the parities have to say: their records are read, and no sector.
            let sent = sent_by_shard(cluster, coordinator, &stripe, &before);
            for (shard, sent) in sent.into_iter().enumerate() {
                let reads = u64::from(profile(word).has_summary(shard));
                assert_eq!(sent, Sent { prepares: 1, reads, ..Sent::default() }, "{word}: shard {shard}");
            }
        });
    }
}

#[test]
fn the_first_partial_write_to_a_stripe_reads_and_the_second_does_not() {
    for word in ["raid5-2+1", "raid5-4+1", "raid6-4+2", "rs-4+3"] {
        on(word, async |cluster, coordinator| {
            let (k, m) = (profile(word).data_shards() as u64, profile(word).parity_shards() as u64);
            let stripe = full_stripe(coordinator).await;
            let before = counts(cluster);
            coordinator.engine.write_partial(&stripe, vec![edit(0, 2, 2)]).await.unwrap();
            // A sector from each neighbour, and the record of each parity.
            let (prepares, _, reads) = sent(cluster, &before);
            assert_eq!((prepares, reads), (1 + m, k - 1 + m), "{word}");
            let before = counts(cluster);
            coordinator.engine.write_partial(&stripe, vec![edit(1, 2, 3)]).await.unwrap();
            let (prepares, _, reads) = sent(cluster, &before);
            assert_eq!((prepares, reads), (1 + m, 0), "{word}");
        });
    }
}

/// Reads and sectors that a plan asks of a shard: neighbours in one message, and a summary with it or alone.
fn planned(stripe: &StripeRef, plan: &Plan, known: bool, shard: usize) -> (u64, u64) {
    let (profile, unit_sectors) = (stripe.geometry().profile(), stripe.geometry().unit_sectors());
    let wanted = |sector: usize| match shard < profile.data_shards() {
        true => plan.read.get(shard * unit_sectors + sector),
        false => plan.read_parity.get(sector),
    };
    let begins = |sector: &usize| wanted(*sector) && (*sector == 0 || !wanted(*sector - 1));
    let runs = (0..unit_sectors).filter(begins).count() as u64;
    let sectors = (0..unit_sectors).filter(|sector| wanted(*sector)).count() as u64;
    let alone = u64::from(runs == 0 && !known && profile.has_summary(shard));
    (runs + alone, sectors)
}

#[test]
fn a_write_reads_what_the_plan_says() {
    let mut kinds = Vec::new();
    for word in ["raid5-2+1", "raid5-4+1", "raid6-4+2", "mirror2", "rs-4+3", "raid5-8+1"] {
        for (seed, reading) in (1..).zip([Reading::Needed, Reading::Needed, Reading::Whole]) {
            on(word, async |cluster, coordinator| {
                let stripe = full_stripe(coordinator).await;
                let geometry = *stripe.geometry();
                coordinator.engine.set_reading(reading);
                let mut dice = Dice::new(seed);
                for round in 0..60 {
                    if dice.of_thousand(400) {
                        coordinator.engine.cache().clear();
                    }
                    let mut covered = Bits::new(geometry.stripe_sectors());
                    for _ in 0..dice.between(1, 3) {
                        covered.set(dice.below(covered.len() as u64) as usize, true);
                    }
                    let key = coordinator.engine.cache_key(&stripe);
                    let pages = coordinator.engine.cache().peek(&key).cloned();
                    let plan = coordinator.engine.plan_partial(&stripe, &covered, pages.as_ref());
                    kinds.push(plan.kind);
                    let at =
                        |sector: usize| (sector / geometry.unit_sectors(), sector % geometry.unit_sectors());
                    let edits = covered.iter_ones().map(at);
                    let edits =
                        edits.map(|(shard, sector)| edit(shard as u8, sector as u32, round)).collect();
                    let before = counts(cluster);
                    coordinator.engine.write_partial(&stripe, edits).await.unwrap();
                    let sent = sent_by_shard(cluster, coordinator, &stripe, &before);
                    for (shard, sent) in sent.into_iter().enumerate() {
                        let planned = planned(&stripe, &plan, pages.is_some(), shard);
                        assert_eq!((sent.reads, sent.sectors), planned, "{word}, round {round}: {plan:?}");
                    }
                }
            });
        }
    }
    for kind in [PlanKind::Pages, PlanKind::Reconstruct, PlanKind::Whole] {
        assert!(kinds.contains(&kind), "no write was done as {kind:?}");
    }
}

#[test]
fn a_delta_reads_the_old_parities_alone() {
    for word in ["raid5-4+1", "raid6-4+2", "raid5-8+1"] {
        on(word, async |cluster, coordinator| {
            let stripe = full_stripe(coordinator).await;
            let (k, m) = (profile(word).data_shards(), profile(word).parity_shards());
            coordinator.engine.write_partial(&stripe, vec![edit(0, 0, 2)]).await.unwrap();
            // One more than there are parities leave the cache, and belong to somebody again.
            for shard in 1..=m + 1 {
                let place = Place { stripe: stripe.address(), shard: Shard(shard as u8), sector: 0, byte: 0 };
                let logical = stripe.geometry().logical(place);
                let length = SECTOR_BYTES as u64;
                coordinator.engine.free(logical, length);
                let extent = Extent { logical: logical.0, length, version: Version::NONE };
                coordinator.engine.extents.load_extent(extent).unwrap();
            }
            let before = counts(cluster);
            coordinator.engine.write_partial(&stripe, vec![edit(0, 0, 3)]).await.unwrap();
            let sent = sent_by_shard(cluster, coordinator, &stripe, &before);
            for (shard, sent) in sent.into_iter().enumerate() {
                let (prepares, reads) = (u64::from(shard == 0 || shard >= k), u64::from(shard >= k));
                let expected = Sent { prepares, reads, sectors: reads, commits: sent.commits, others: 0 };
                assert_eq!(sent, expected, "{word}: shard {shard}");
            }
            coordinator.settle().await.unwrap();
            let raw = vertical::of_stripe(cluster, coordinator, &stripe);
            let codec = Codec::new(stripe.geometry().profile());
            assert_eq!(parity::check(&codec, &raw.verticals[0]), Ok(true), "{word}");
        });
    }
}
