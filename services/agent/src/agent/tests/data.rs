//! The data stream: answers, refusals, limits, and what a frozen disk does not hold up.

use std::collections::BTreeSet;

use super::*;
use crate::session::{SESSION_BYTES_MAX, SESSION_REQUESTS_MAX};

#[tokio::test]
async fn prepare_commit_and_read_and_the_same_after_a_restart_on_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let config = AgentConfig {
        disk: folder.path().join("disk"),
        size: Some(8 * 1024 * 1024),
        listen: "127.0.0.1:0".parse().unwrap(),
        faults: false,
    };
    let bytes: Vec<u8> = (0..UNIT_BYTES).map(|index| (index / 7) as u8).collect();
    let mut expected = None;
    for _ in 0..2 {
        let member = Member::join(Running::start(Agent::bind(config.clone()).await.unwrap())).await;
        let mut session = member.session().await;
        if expected.is_none() {
            assert_eq!(session.ask(fresh(3, 2, vec![run(0, bytes.clone())])).await, DONE);
            assert_eq!(session.ask(commit(3, 2)).await, DONE);
        }
        let Outcome::Read(outcome) = session.ask(read(3, 2, 1, 3)).await else { panic!() };
        assert_eq!(outcome.data, bytes[4096..]);
        assert_eq!(outcome.checksums, checksum::of_sectors(&bytes[4096..]));
        assert_eq!((&outcome.written[..], &outcome.bad[..]), (&[7][..], &[0][..]));
        assert_eq!(outcome.version, Some(version(2)));
        assert_eq!(*expected.get_or_insert_with(|| outcome.clone()), outcome);
        member.agent.stop().await;
    }
}

#[tokio::test]
async fn a_ping_passes_a_frozen_disk() {
    let (member, disk) = Member::start().await;
    let mut session = member.session().await;
    disk.freeze();
    let held = session.send(Some(fresh(1, 2, vec![]))).await;
    assert_eq!(session.ping().await, [], "the prepare is not answered before it is durable");
    disk.thaw();
    assert_eq!(session.answer().await, (held, DONE));
    member.agent.stop().await;
}

#[tokio::test]
async fn requests_over_the_limit_are_refused_at_once_and_all_are_answered_once() {
    let (member, disk) = Member::start().await;
    let mut session = member.session().await;
    disk.freeze();
    let mut outstanding = BTreeSet::new();
    for unit in 0..SESSION_REQUESTS_MAX as u64 {
        outstanding.insert(session.send(Some(fresh(unit % 8, 2 + unit, vec![]))).await);
    }
    let over = session.send(Some(commit(1, 2))).await;
    let (answered, outcome) = session.answer().await;
    assert_eq!((answered, refusal(outcome)), (over, RefusalKind::ResourceExhausted));
    assert_eq!(session.ping().await, [], "a ping needs no place");
    disk.thaw();
    while !outstanding.is_empty() {
        let (answered, outcome) = session.answer().await;
        assert_eq!(outcome, DONE);
        assert!(outstanding.remove(&answered), "{answered} is answered twice");
    }
    assert_eq!(session.ask(commit(1, 2)).await, DONE, "and there is room again");
    member.agent.stop().await;
}

#[tokio::test]
async fn bytes_over_the_limit_are_refused_at_once() {
    let (member, disk) = Member::start().await;
    let mut session = member.session().await;
    disk.freeze();
    session.send(Some(fresh(1, 2, vec![]))).await;
    // Reads that come into the group of the write would be answered before its sync.
    while !disk.holds_a_sync() {
        session.ping().await;
    }
    // Each asks for 1 MiB, and counts a little more.
    let fitting = SESSION_BYTES_MAX / (1024 * 1024) - 1;
    for _ in 0..fitting {
        session.send(Some(read(1, 2, 0, 256))).await;
    }
    let over = session.send(Some(read(1, 2, 0, 256))).await;
    let (answered, outcome) = session.answer().await;
    assert_eq!((answered, refusal(outcome)), (over, RefusalKind::ResourceExhausted));
    disk.thaw();
    for _ in 0..=fitting {
        session.answer().await;
    }
    assert_eq!(session.ask(fresh(1, 3, vec![])).await, DONE);
    member.agent.stop().await;
}

#[tokio::test]
async fn a_request_that_has_not_begun_in_time_is_not_carried_out() {
    let (member, disk) = Member::start().await;
    let mut session = member.session().await;
    disk.freeze();
    let first = session.send(Some(fresh(1, 2, vec![]))).await;
    while !disk.holds_a_sync() {
        session.ping().await;
    }
    let late = SessionRequest {
        disk_id: session.disk_id.clone(),
        epoch: Some(epoch()),
        timeout_millis: 1,
        operation: Some(fresh(2, 3, vec![])),
        ..Default::default()
    };
    let late = session.send_request(late).await;
    session.ping().await;
    time::sleep(Duration::from_millis(2)).await;
    disk.thaw();
    assert_eq!(session.answer().await, (first, DONE));
    let (answered, outcome) = session.answer().await;
    assert_eq!((answered, refusal(outcome)), (late, RefusalKind::Expired));
    assert_eq!(refusal(session.ask(read(2, 3, 0, 1)).await), RefusalKind::VersionMismatch);
    member.agent.stop().await;
}

#[tokio::test]
async fn what_a_broken_stream_asked_for_is_carried_out() {
    let (member, disk) = Member::start().await;
    let mut session = member.session().await;
    disk.freeze();
    session.send(Some(fresh(1, 2, vec![]))).await;
    session.ping().await;
    session.send(Some(fresh(2, 3, vec![run(0, vec![5; 4096])]))).await;
    session.ping().await;
    drop(session);
    disk.thaw();
    let mut session = member.session().await;
    // A read that came into the same group as the prepare would be carried out before it.
    assert_eq!(session.ask(commit(2, 3)).await, DONE);
    let Outcome::Read(outcome) = session.ask(read(2, 3, 0, 1)).await else { panic!() };
    assert_eq!(outcome.data, vec![5; 4096]);
    member.agent.stop().await;
}

#[tokio::test]
async fn another_disk_and_another_epoch_are_refused_with_what_is_there() {
    let (member, _disk) = Member::start().await;
    let mut session = member.session().await;
    let (own, operation) = (session.disk_id.clone(), Some(commit(1, 2)));
    let other = Bytes::from_static(&[3; 16]);
    let ping = Some(Operation::Ping(v1::PingOperation {}));
    session
        .send_request(SessionRequest { disk_id: other.clone(), operation: ping, ..Default::default() })
        .await;
    assert_eq!(refusal(session.answer().await.1), RefusalKind::WrongDisk, "no sign of life of that one");
    let cases = [
        (other, epoch(), RefusalKind::WrongDisk),
        (own.clone(), v1::Epoch { number: 1, incarnation: 6 }, RefusalKind::Fenced),
        (own.clone(), v1::Epoch { number: 2, incarnation: 0 }, RefusalKind::NotFenced),
        (Bytes::from_static(b"short"), epoch(), RefusalKind::Invalid),
    ];
    for (disk_id, given, kind) in cases {
        let request = SessionRequest {
            disk_id,
            epoch: Some(given),
            operation: operation.clone(),
            ..Default::default()
        };
        session.send_request(request).await;
        let (_, outcome) = session.answer().await;
        if let Outcome::Refusal(refusal) = &outcome
            && kind != RefusalKind::WrongDisk
            && kind != RefusalKind::Invalid
        {
            assert_eq!(refusal.epoch, Some(epoch()));
        }
        assert_eq!(refusal(outcome), kind);
    }
    member.agent.stop().await;
}

/// Prepares that are each wrong in one way.
fn malformed_prepares() -> Vec<v1::PrepareOperation> {
    let good = || fresh_prepare(1, 2, vec![run(0, vec![1; 8192])]);
    let with_run = |run: v1::SectorRun| v1::PrepareOperation { runs: vec![run], ..good() };
    let with_summary = |vector: usize, written: usize, checksums: usize| {
        let (vector, written) = (vec![version(2); vector], vec![0; written].into());
        let summary = Some(v1::StripeSummary { vector, written, checksums: vec![0; checksums] });
        v1::PrepareOperation { summary, ..good() }
    };
    vec![
        v1::PrepareOperation { unit: 1 << 60, ..good() },
        v1::PrepareOperation { identity: None, ..good() },
        v1::PrepareOperation { identity: Some(v1::UnitIdentity { shard: 256, ..identity() }), ..good() },
        v1::PrepareOperation { version: None, ..good() },
        v1::PrepareOperation { participants: vec![], ..good() },
        v1::PrepareOperation { participants: vec![1, 0], ..good() },
        v1::PrepareOperation { participants: vec![1, 1], ..good() },
        v1::PrepareOperation { participants: vec![40], ..good() },
        v1::PrepareOperation { runs: vec![run(1, vec![1; 4096]), run(0, vec![1; 4096])], ..good() },
        v1::PrepareOperation { runs: vec![run(0, vec![1; 8192]), run(1, vec![1; 4096])], ..good() },
        with_run(v1::SectorRun { data: Bytes::from(vec![1; 100]), ..run(0, vec![1; 4096]) }),
        with_run(v1::SectorRun::default()),
        with_run(v1::SectorRun { checksums: vec![1, 2], ..run(0, vec![1; 4096]) }),
        with_run(v1::SectorRun { checksums: vec![1], ..run(0, vec![1; 4096]) }),
        with_run(run(3, vec![1; 8192])),
        with_run(run(u32::MAX, vec![1; 8192])),
        with_summary(0, 1, 4),
        with_summary(25, 1, 4),
        with_summary(3, 2, 4),
        with_summary(3, 0, 0),
        with_summary(3, 1, 5),
        with_summary(3, 9, 68),
    ]
}

#[tokio::test]
async fn a_malformed_request_is_refused_and_the_stream_lives() {
    let (member, _disk) = Member::start().await;
    let mut session = member.session().await;
    let many = vec![v1::UnitVersion { unit: 1, version: Some(version(2)) }; 1025];
    let mut operations: Vec<Option<Operation>> = vec![
        None,
        Some(Operation::Commit(v1::CommitOperation { writes: many })),
        Some(Operation::Abort(v1::AbortOperation { writes: vec![] })),
        Some(Operation::Discard(v1::DiscardOperation { writes: vec![v1::UnitVersion::default()] })),
        Some(read(1, 2, 0, 5)),
        Some(read(1, 2, u32::MAX, 1)),
        Some(read(1 << 60, 2, 0, 1)),
        Some(Operation::Rebuild(v1::RebuildOperation::default())),
    ];
    operations.extend(malformed_prepares().into_iter().map(|prepare| Some(Operation::Prepare(prepare))));
    for operation in operations {
        let shown = format!("{operation:?}");
        let id = session.send(operation).await;
        let (answered, outcome) = session.answer().await;
        assert_eq!((answered, refusal(outcome)), (id, RefusalKind::Invalid), "{shown:.300}");
    }
    assert_eq!(session.ask(fresh(1, 2, vec![run(0, vec![1; 8192])])).await, DONE);
    member.agent.stop().await;
}

#[tokio::test]
async fn a_rebuild_echoes_its_token() {
    let (member, _disk) = Member::start().await;
    let mut session = member.session().await;
    let rebuild = v1::RebuildOperation {
        unit: 1,
        identity: Some(identity()),
        token: Some(version(9)),
        version: Some(version(4)),
        runs: vec![run(0, vec![1; 4096])],
        lost: Bytes::from_static(&[2]),
        summary: None,
    };
    let outcome = session.ask(Operation::Rebuild(rebuild)).await;
    assert_eq!(outcome, Outcome::Rebuild(v1::RebuildOutcome { token: Some(version(9)) }));
    let Outcome::Read(outcome) = session.ask(read(1, 4, 0, 4)).await else { panic!() };
    assert_eq!((&outcome.written[..], &outcome.bad[..]), (&[3][..], &[2][..]));
    member.agent.stop().await;
}

#[tokio::test]
async fn a_failed_disk_refuses_writes_and_gives_what_it_has() {
    let (member, disk) = Member::start().await;
    let mut session = member.session().await;
    assert_eq!(session.ask(fresh(1, 2, vec![run(0, vec![1; 4096])])).await, DONE);
    disk.fail_syncs();
    assert_eq!(refusal(session.ask(fresh(2, 3, vec![])).await), RefusalKind::DiskFailed);
    assert_eq!(refusal(session.ask(commit(1, 2)).await), RefusalKind::DiskFailed);
    assert!(matches!(session.ask(read(1, 2, 0, 1)).await, Outcome::Read(_)));
    let status = control::health(&member.agent, "").await;
    assert_eq!(status, ServingStatus::NotServing);
    member.agent.stop().await;
}
