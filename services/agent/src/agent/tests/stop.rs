//! How an agent stops.

use super::*;

#[tokio::test]
async fn an_open_stream_does_not_hold_the_stop() {
    let (member, _disk) = Member::start().await;
    let mut session = member.session().await;
    assert_eq!(session.ask(fresh(1, 2, vec![])).await, DONE);
    member.agent.trigger.stop();
    assert_eq!(session.next().await, None, "the stream ends in order");
    member.agent.ended().await.unwrap();
}

#[tokio::test]
async fn what_has_begun_is_answered_before_the_end() {
    let (member, disk) = Member::start().await;
    let mut session = member.session().await;
    disk.freeze();
    let begun = session.send(Some(fresh(1, 2, vec![]))).await;
    session.ping().await;
    member.agent.trigger.stop();
    disk.thaw();
    assert_eq!(session.answer().await, (begun, DONE));
    assert_eq!(session.next().await, None);
    member.agent.ended().await.unwrap();
}

#[tokio::test]
async fn commits_that_needed_no_sync_are_durable_after_a_stop() {
    let (member, disk) = Member::start().await;
    let mut session = member.session().await;
    assert_eq!(session.ask(fresh(1, 2, vec![])).await, DONE);
    assert_eq!(session.ask(commit(1, 2)).await, DONE);
    member.agent.stop().await;
    let mut store =
        Store::open(Box::new(disk.after_power_loss(&mut crate::disk::simulated::Dice(0)))).unwrap();
    let epoch = stripeset_stripe::Epoch { number: 2, incarnation: 0 };
    assert_eq!(store.fence(epoch, Uuid::nil()), Ok(vec![]));
}

#[tokio::test]
async fn a_client_that_watches_does_not_hold_the_stop_for_ever() {
    let (member, _disk) = Member::start().await;
    let mut health = tonic_health::pb::health_client::HealthClient::new(member.agent.channel().await);
    let request = tonic_health::pb::HealthCheckRequest { service: String::new() };
    let mut watched = health.watch(request).await.unwrap().into_inner();
    assert_eq!(watched.message().await.unwrap().unwrap().status(), SERVING);
    member.agent.trigger.stop();
    assert_eq!(watched.message().await.unwrap().unwrap().status(), NOT_SERVING);
    member.agent.ended().await.unwrap();
}

use tonic_health::pb::health_check_response::ServingStatus::{NotServing as NOT_SERVING, Serving as SERVING};

#[tokio::test]
async fn a_frozen_disk_does_not_hold_the_stop_for_ever() {
    let (member, disk) = Member::start().await;
    let mut session = member.session().await;
    disk.freeze();
    session.send(Some(fresh(1, 2, vec![]))).await;
    session.ping().await;
    member.agent.trigger.stop();
    assert!(matches!(member.agent.ended().await, Err(AgentError::StopTimedOut(_))));
    disk.thaw();
}
