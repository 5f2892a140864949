//! Coordinators that go on although another one has taken over: what they still report, and what they are given to do.

use std::sync::Arc;

use stripeset_coordinator::engine::Engine;

use super::{
    Cluster, Coordinator, Duration, ENDS, Finished, Life, ONE_RULES, QUIET_LIMIT, Sector, StreamExt, Version,
    Violation, Work, World, WriteError, edits, event,
};
use crate::cluster::ClusterError;

/// Deposed coordinators, and what is going on with them.
#[derive(Default)]
pub(super) struct Rivals {
    engines: Vec<Arc<Engine>>,
    pub(super) work: Work,
}

impl World {
    /// Another coordinator starts, elsewhere. What goes on at this one goes on; what was not durable, the new one does not
    /// know of. `None` if the new one may not begin.
    pub(super) async fn depose(
        &mut self,
        cluster: &Cluster,
        work: &mut Work,
        rivals: &mut Rivals,
        deposed: Arc<Engine>,
    ) -> Result<Option<Coordinator>, Violation> {
        event!(self.trace, "another coordinator is started");
        self.stats.rivals += 1;
        rivals.engines.push(deposed);
        rivals.work.extend(std::mem::take(work));
        self.undo();
        match cluster.start_elsewhere(&self.durable()).await {
            Ok(next) => Ok(Some(next)),
            Err(error) if self.may_refuse(&error) => Ok(None),
            Err(error) => Err(Violation::new("the cluster starts", error.to_string())),
        }
    }

    /// Whether a start may fail like this.
    pub fn may_refuse(&mut self, error: &ClusterError) -> bool {
        let ClusterError::Start(why) = error else { return false };
        let unsure = why.contains("newer data");
        self.stats.unsure += u64::from(unsure);
        // Beyond what the profile bears an array need not start.
        unsure || !self.plan.tolerated
    }

    /// Gives a deposed coordinator something to write: into what is in use, where it would show.
    pub(super) fn provoke(&mut self, rivals: &Rivals, coordinator: &Coordinator) {
        let Some(engine) = self.dice.pick(&rivals.engines).cloned() else { return };
        if !self.dice.of_thousand(100) {
            return;
        }
        let there: Vec<u64> =
            self.extents.iter().filter(|(_, extent)| extent.life == Life::Live).map(|(id, _)| *id).collect();
        let Some(extent) = self.dice.pick(&there).map(|id| self.extents[id]) else { return };
        // It may not know of a chunk that was made since.
        if engine.extents.chunks.get(extent.stripe.chunk).is_none() {
            return;
        }
        self.next_rival -= 1;
        let sectors: Vec<Sector> = extent.sectors().into_iter().take(2).collect();
        let edits = edits(coordinator.engine.extents.geometry(), self.next_rival, &sectors);
        event!(self.trace, "a deposed coordinator is to write {sectors:?}");
        let stripe = engine.extents.stripe(extent.stripe);
        rivals
            .work
            .push(Box::pin(async move { Finished::Rival(engine.write_partial(&stripe, edits).await) }));
    }

    pub(super) fn rival_wrote(&mut self, result: &Result<Version, Arc<WriteError>>) -> Result<(), Violation> {
        match result {
            Ok(version) => Err(Violation::new(ONE_RULES, format!("one acknowledged a write at {version}"))),
            Err(error) => {
                event!(self.trace, "the deposed coordinator fails: {error}");
                self.stats.refused += 1;
                Ok(())
            }
        }
    }

    /// What a coordinator reports that is deposed by now, or will be. A write that it acknowledges was prepared before it
    /// was fenced: whoever took over has it.
    pub(super) fn finished_late(&mut self, finished: Finished) -> Result<(), Violation> {
        match finished {
            Finished::Write(write) => {
                if let (Ok(version), false) = (&write.result, write.new)
                    && self.extents.contains_key(&write.extent)
                {
                    event!(self.trace, "write {} is acknowledged at {version}, late", write.order);
                    self.stats.late += 1;
                    self.oracle.acknowledged(write.order, &write.sectors, *version);
                }
                Ok(())
            }
            Finished::Rival(result) => self.rival_wrote(&result),
            Finished::Read(_) | Finished::Get(..) | Finished::Replaced(..) => Ok(()),
        }
    }

    /// Waits for all that is going on at deposed coordinators.
    pub(super) async fn end_late(&mut self, rivals: &mut Rivals) -> Result<(), Violation> {
        let limit = tokio::time::Instant::now() + QUIET_LIMIT;
        while !rivals.work.is_empty() {
            match tokio::time::timeout_at(limit, rivals.work.next()).await {
                Ok(Some(finished)) => self.finished_late(finished)?,
                Ok(None) => break,
                Err(elapsed) => {
                    let left = rivals.work.len();
                    let detail = format!("{left} operations of deposed coordinators do not end: {elapsed}");
                    return Err(Violation::new(ENDS, detail));
                }
            }
        }
        Ok(())
    }

    /// How long a coordinator lives that dies at its start.
    pub fn a_moment(&mut self) -> Duration {
        self.stats.brief += 1;
        Duration::from_millis(self.dice.below(400))
    }
}
