//! Decides when members that are out are taken back: as soon as they answer, one after the other, without anybody's help.
//!
//! How is in `engine::rejoin`.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tokio::time::Instant;

use crate::{
    engine::{Engine, rejoin::RejoinError},
    members::{Member, MemberIndex, Rejoin},
};

/// How often members are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Pause before a member that could not be taken back is tried again; doubled each time, up to the second.
const PAUSES: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(10));

struct Failed {
    again_at: Instant,
    pause: Duration,
}

/// Takes members back for as long as it is polled.
pub async fn take_members_back(engine: Arc<Engine>) {
    let mut failed: BTreeMap<MemberIndex, Failed> = BTreeMap::new();
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        for member in engine.members.iter() {
            let waits = failed.get(&member.index).is_some_and(|failed| Instant::now() < failed.again_at);
            if waits || !member.is_out() || !member.in_service() || !member.link.responsive() {
                continue;
            }
            let taken = take_back(&engine, member).await;
            match taken {
                Ok(()) => {
                    member.set_rejoin(Rejoin::Idle);
                    failed.remove(&member.index);
                }
                Err(error) => {
                    let before = failed.get(&member.index).map(|failed| failed.pause * 2);
                    let pause = before.unwrap_or(PAUSES.0).min(PAUSES.1);
                    member.set_rejoin(Rejoin::Failed(error.to_string()));
                    tracing::warn!(member = member.index.0, %error, ?pause, "member could not be taken back");
                    failed.insert(member.index, Failed { again_at: Instant::now() + pause, pause });
                }
            }
        }
    }
}

async fn take_back(engine: &Arc<Engine>, member: &Member) -> Result<(), RejoinError> {
    let (began, mut stripes, mut windows) = (Instant::now(), 0, 0);
    member.set_rejoin(Rejoin::Running("being taken back".to_owned()));
    loop {
        let done = engine.take_back_window(member.index).await?;
        (stripes, windows) = (stripes + done.stripes, windows + 1);
        if done.is_last {
            let millis = began.elapsed().as_millis() as u64;
            tracing::info!(member = member.index.0, stripes, windows, millis, "member was taken back");
            return Ok(());
        }
        let chunks = engine.extents.chunks.all().last().map_or(0, |chunk| chunk.index.0 + 1);
        let (chunk, row) = (done.cursor.chunk.0, done.cursor.row.0);
        member.set_rejoin(Rejoin::Running(format!(
            "being taken back: {stripes} stripes rebuilt, at row {row} of chunk {chunk} of {chunks}"
        )));
    }
}
