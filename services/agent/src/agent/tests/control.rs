//! The unary calls, reflection and health.

use stripeset_proto::{Error, ErrorKind};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
use tonic_reflection::pb::{v1 as reflection, v1alpha as reflection_alpha};

use super::*;

/// What the agent says of a service.
pub(super) async fn health(agent: &Running, service: &str) -> ServingStatus {
    let mut health = HealthClient::new(agent.channel().await);
    let request = HealthCheckRequest { service: service.to_owned() };
    match health.check(request).await.unwrap().into_inner().status() {
        tonic_health::pb::health_check_response::ServingStatus::Serving => ServingStatus::Serving,
        _ => ServingStatus::NotServing,
    }
}

fn kind<T: std::fmt::Debug>(answer: Result<T, tonic::Status>) -> ErrorKind {
    Error::from(answer.unwrap_err()).kind
}

#[tokio::test]
async fn every_service_is_healthy() {
    let (member, _disk) = Member::start().await;
    for service in ["", "stripeset.v1.AgentService", "stripeset.v1.AgentDataService"] {
        assert_eq!(health(&member.agent, service).await, ServingStatus::Serving, "{service}");
    }
    member.agent.stop().await;
}

#[tokio::test]
async fn reflection_lists_every_service_in_both_versions() {
    let (member, _disk) = Member::start().await;
    let expected = ["grpc.health.v1.Health", "stripeset.v1.AgentDataService", "stripeset.v1.AgentService"];
    let mut names = Vec::new();
    let mut client =
        reflection::server_reflection_client::ServerReflectionClient::new(member.agent.channel().await);
    let list = reflection::server_reflection_request::MessageRequest::ListServices(String::new());
    let request = reflection::ServerReflectionRequest { host: String::new(), message_request: Some(list) };
    let mut answers = client.server_reflection_info(tokio_stream::once(request)).await.unwrap().into_inner();
    let answer = answers.message().await.unwrap().unwrap().message_response.unwrap();
    let reflection::server_reflection_response::MessageResponse::ListServicesResponse(list) = answer else {
        panic!()
    };
    names.push(list.service.into_iter().map(|service| service.name).collect::<Vec<_>>());

    let mut client =
        reflection_alpha::server_reflection_client::ServerReflectionClient::new(member.agent.channel().await);
    let list = reflection_alpha::server_reflection_request::MessageRequest::ListServices(String::new());
    let request =
        reflection_alpha::ServerReflectionRequest { host: String::new(), message_request: Some(list) };
    let mut answers = client.server_reflection_info(tokio_stream::once(request)).await.unwrap().into_inner();
    let answer = answers.message().await.unwrap().unwrap().message_response.unwrap();
    let reflection_alpha::server_reflection_response::MessageResponse::ListServicesResponse(list) = answer
    else {
        panic!()
    };
    names.push(list.service.into_iter().map(|service| service.name).collect::<Vec<_>>());
    for names in names {
        assert!(expected.iter().all(|name| names.iter().any(|listed| listed == name)), "{names:?}");
    }
    member.agent.stop().await;
}

#[tokio::test]
async fn describe_tells_a_blank_disk_from_a_member() {
    let disk = SimulatedDisk::new(DISK_BYTES);
    Store::format(&mut disk.clone(), Uuid::from_u128(77)).unwrap();
    let agent = Running::on(&disk).await;
    let mut control = AgentServiceClient::new(agent.channel().await);
    let blank = control.describe(v1::DescribeRequest {}).await.unwrap().into_inner();
    assert_eq!(blank.disk_id, Bytes::copy_from_slice(Uuid::from_u128(77).as_bytes()));
    assert_eq!((blank.label, blank.slices, blank.first_unit_offset), (None, 0, 0));
    assert_eq!((blank.disk_bytes, blank.format, blank.used_bytes), (DISK_BYTES as u64, FORMAT, 0));
    assert_eq!(
        kind(control.verify(v1::VerifyRequest { first_unit: 0, units: 1 }).await),
        ErrorKind::Precondition
    );

    let mut member = Member::join(agent).await;
    let mut session = member.session().await;
    session.ask(fresh(1, 2, vec![])).await;
    let joined = member.control.describe(v1::DescribeRequest {}).await.unwrap().into_inner();
    assert_eq!((joined.label, joined.epoch), (Some(label(&member.disk_id)), Some(epoch())));
    assert_eq!((joined.used_bytes, joined.incarnation), (u64::from(UNIT_BYTES), blank.incarnation));
    let units = v1::ListUnitsRequest { units: vec![0, 1], ..Default::default() };
    let units = member.control.list_units(units).await.unwrap().into_inner().units;
    assert_eq!(units[0].disk_offset, joined.first_unit_offset);
    assert_eq!(units[1].disk_offset, joined.first_unit_offset + joined.unit_stride_bytes);
    member.agent.stop().await;
}

#[tokio::test]
async fn join_is_for_blank_disks_and_labels_that_fit() {
    let (mut member, _disk) = Member::start().await;
    let request = |label| v1::JoinRequest { disk_id: Bytes::copy_from_slice(&[77; 16]), label };
    assert_eq!(kind(member.control.join(request(None)).await), ErrorKind::InvalidArgument);
    let own = label(&member.disk_id);
    assert_eq!(kind(member.control.join(request(Some(own.clone()))).await), ErrorKind::Stale);
    let again = v1::JoinRequest { disk_id: member.disk_id.clone(), label: Some(own) };
    assert_eq!(kind(member.control.join(again).await), ErrorKind::Precondition);
    member.agent.stop().await;
}

#[tokio::test]
async fn fence_lists_what_is_pending_and_deposes_the_old() {
    let (mut member, _disk) = Member::start().await;
    let mut session = member.session().await;
    assert_eq!(session.ask(fresh(5, 2, vec![])).await, DONE);
    let fence = |number, disk_id: &Bytes| v1::FenceRequest {
        disk_id: disk_id.clone(),
        epoch: Some(v1::Epoch { number, incarnation: 1 }),
        folder_id: Bytes::from_static(&[3; 16]),
    };
    let answer = member.control.fence(fence(2, &member.disk_id)).await.unwrap().into_inner();
    let pending = v1::PendingWrite {
        unit: 5,
        identity: Some(identity()),
        version: Some(version(2)),
        fresh: true,
        participants: vec![0, 1],
    };
    assert_eq!((answer.pending, answer.label), (vec![pending], Some(label(&member.disk_id))));
    assert_eq!(refusal(session.ask(commit(5, 2)).await), RefusalKind::Fenced);
    assert_eq!(kind(member.control.fence(fence(1, &member.disk_id)).await), ErrorKind::Stale);
    assert_eq!(kind(member.control.fence(fence(3, &Bytes::from_static(&[1; 16]))).await), ErrorKind::Stale);
    member.agent.stop().await;
}

#[tokio::test]
async fn damage_is_found_by_read_and_verify() {
    let (mut member, disk) = Member::start().await;
    let mut session = member.session().await;
    for unit in 0..8 {
        assert_eq!(session.ask(fresh(unit, 2 + unit, vec![run(0, vec![5; 8192])])).await, DONE);
        assert_eq!(session.ask(commit(unit, 2 + unit)).await, DONE);
    }
    let described = member.control.describe(v1::DescribeRequest {}).await.unwrap().into_inner();
    let offset = described.first_unit_offset + described.unit_stride_bytes * 3 + 4096;
    disk.flip(offset);
    member.agent.stop().await;
    // A stop leaves every record in the table; there are several in a page, in the order of units.
    let layout = Store::open(Box::new(disk.clone())).unwrap().layout().unwrap();
    disk.flip(described.table_offset + 4 * layout.place_bytes() as u64);
    let agent = Running::on(&disk).await;
    let control = AgentServiceClient::new(agent.channel().await);
    let mut member = Member { agent, control, disk_id: member.disk_id };

    let request = v1::VerifyRequest { first_unit: 0, units: 8 };
    let verified = member.control.verify(request).await.unwrap().into_inner();
    assert_eq!(verified.sectors_verified, 7 * 2);
    assert_eq!(verified.bad, [v1::BadSector { unit: 3, sector: 1, disk_offset: offset }]);
    assert_eq!(verified.damaged_units, [4]);

    let request = |unit, sectors| v1::ReadRequest { unit, first_sector: 0, sectors };
    let answer = member.control.read(request(3, 4)).await.unwrap().into_inner();
    assert_eq!((answer.bad_sectors, answer.data.len()), (vec![1], 4 * 4096));
    assert_eq!(answer.data[..4096], [5; 4096]);
    assert_eq!(answer.record.unwrap().committed_version, Some(version(5)));
    let answer = member.control.read(request(4, 4)).await.unwrap().into_inner();
    assert_eq!(answer.record.unwrap().state(), v1::UnitState::Damaged);
    assert_eq!(kind(member.control.read(request(3, 0)).await), ErrorKind::InvalidArgument);
    assert_eq!(kind(member.control.read(request(1 << 40, 1)).await), ErrorKind::InvalidArgument);
    for units in [0, 4097] {
        let request = v1::VerifyRequest { first_unit: 0, units };
        assert_eq!(kind(member.control.verify(request).await), ErrorKind::InvalidArgument);
    }
    let request = v1::VerifyRequest { first_unit: u64::MAX, units: 2 };
    assert_eq!(kind(member.control.verify(request).await), ErrorKind::InvalidArgument);
    let stats = member.control.get_stats(v1::GetStatsRequest {}).await.unwrap().into_inner();
    assert_eq!((stats.prepares, stats.checksum_errors, stats.pending), (0, 2, 0));
    member.agent.stop().await;
}

#[tokio::test]
async fn counters_journal_and_pending_writes_are_shown() {
    let (mut member, disk) = Member::start().await;
    let mut session = member.session().await;
    for unit in 0..8 {
        assert_eq!(session.ask(fresh(unit, 2 + unit, vec![run(0, vec![5; 8192])])).await, DONE);
    }
    assert_eq!(session.ask(commit(0, 2)).await, DONE);
    let stats = member.control.get_stats(v1::GetStatsRequest {}).await.unwrap().into_inner();
    assert_eq!((stats.prepares, stats.pending, stats.groups), (8, 7, 8));
    assert_eq!((stats.health(), stats.health_reason.as_str()), (v1::DiskHealth::Online, ""));
    assert!(stats.bytes_written > 8 * 8192 && stats.syncs >= 8, "{stats:?}");
    let (writes, syncs) = (stats.write_latency.unwrap(), stats.sync_latency.unwrap());
    assert_eq!(syncs.operations, syncs.buckets.iter().sum::<u64>());
    assert!(writes.operations >= 16 && writes.errors == 0 && writes.max_micros > 0, "{writes:?}");
    let journal = member.control.get_journal(v1::GetJournalRequest {}).await.unwrap().into_inner();
    assert_eq!((journal.pending_writes, journal.recent_units), (7, 8));
    assert!(journal.used_bytes >= 8 * 4096 && journal.used_bytes < journal.ring_bytes, "{journal:?}");
    let mut request = v1::ListPendingRequest { first_unit: 2, limit: 4 };
    let page = member.control.list_pending(request).await.unwrap().into_inner();
    let units =
        |page: &v1::ListPendingResponse| page.pending.iter().map(|write| write.unit).collect::<Vec<_>>();
    assert_eq!((units(&page), page.next_unit), (vec![2, 3, 4, 5], Some(6)));
    request.first_unit = 6;
    let page = member.control.list_pending(request).await.unwrap().into_inner();
    assert_eq!((units(&page), page.next_unit), (vec![6, 7], None));
    disk.fail_syncs();
    assert_eq!(refusal(session.ask(fresh(20, 20, vec![])).await), RefusalKind::DiskFailed);
    let stats = member.control.get_stats(v1::GetStatsRequest {}).await.unwrap().into_inner();
    assert_eq!((stats.health(), stats.health_reason.as_str()), (v1::DiskHealth::Failed, "a sync failed"));
    member.agent.stop().await;
}

#[tokio::test]
async fn units_that_changed_since_a_version_are_listed() {
    let (mut member, _disk) = Member::start().await;
    let mut session = member.session().await;
    for unit in [1, 4, 7] {
        assert_eq!(session.ask(fresh(unit, 2 + unit, vec![])).await, DONE);
    }
    let writes = vec![v1::UnitVersion { unit: 4, version: Some(version(20)) }];
    assert_eq!(session.ask(Operation::Discard(v1::DiscardOperation { writes })).await, DONE);
    let request = v1::ListUnitsRequest { since: Some(version(3)), ..Default::default() };
    let page = member.control.list_units(request).await.unwrap().into_inner();
    let listed: Vec<_> = page.units.iter().map(|unit| (unit.unit, unit.state())).collect();
    assert_eq!(listed, [(4, v1::UnitState::Empty), (7, v1::UnitState::Pending)]);
    member.agent.stop().await;
}

#[tokio::test]
async fn units_are_listed_in_pages() {
    let (mut member, _disk) = Member::start().await;
    let mut session = member.session().await;
    for unit in [1, 4, 7] {
        assert_eq!(session.ask(fresh(unit, 2, vec![])).await, DONE);
    }
    assert_eq!(session.ask(commit(4, 2)).await, DONE);
    let bounded = v1::ListUnitsRequest { first_unit: 2, end_unit: 7, ..Default::default() };
    let within = member.control.list_units(bounded).await.unwrap().into_inner();
    let found: Vec<u64> = within.units.iter().map(|record| record.unit).collect();
    assert_eq!((found, within.next_unit), (vec![4], None));
    let mut request = v1::ListUnitsRequest { limit: 2, ..Default::default() };
    let mut pages = Vec::new();
    loop {
        let page = member.control.list_units(request.clone()).await.unwrap().into_inner();
        pages.push(page.units.iter().map(|unit| (unit.unit, unit.state())).collect::<Vec<_>>());
        match page.next_unit {
            Some(next) => request.first_unit = next,
            None => break,
        }
    }
    let (pending, committed) = (v1::UnitState::Pending, v1::UnitState::Committed);
    assert_eq!(pages, [vec![(1, pending), (4, committed)], vec![(7, pending)]]);
    let given = v1::ListUnitsRequest { units: vec![7, 0, 4], ..Default::default() };
    let page = member.control.list_units(given).await.unwrap().into_inner();
    let listed: Vec<_> = page.units.iter().map(|unit| (unit.unit, unit.state())).collect();
    assert_eq!(listed, [(7, pending), (0, v1::UnitState::Empty), (4, committed)]);
    assert_eq!((page.units[1].identity, page.next_unit), (None, None));
    let unknown = v1::ListUnitsRequest { units: vec![1 << 40], ..Default::default() };
    assert_eq!(kind(member.control.list_units(unknown).await), ErrorKind::InvalidArgument);
    member.agent.stop().await;
}

#[tokio::test]
async fn streams_over_the_limit_are_refused() {
    let (member, _disk) = Member::start().await;
    let mut sessions = Vec::new();
    for _ in 0..crate::service::SESSIONS_MAX {
        sessions.push(member.session().await);
    }
    let mut data = AgentDataServiceClient::new(member.agent.channel().await);
    assert_eq!(kind(data.session(tokio_stream::empty()).await), ErrorKind::Busy);
    member.agent.stop().await;
}
