//! What becomes of a unit after the first phase: commit and abort (A3), discard (A7), rebuild (A5). And the changes in
//! memory that go with each, which a start makes again from the journal.
//!
//! Nothing here waits for a sync but where a prepare that is not durable yet would be committed: a commit must never be
//! all that a crash leaves of a write. (Happens to a member whose answer nobody waits for.)

use stripeset_stripe::{Version, bits::Bits};

use super::{
    Changed, Pending, Recent, Redo, Store, change::Change, flush::change_bytes, prepare::check_shape,
};
use crate::{
    layout::Layout,
    operation::{Rebuild, UnitVersion},
    record::{Body, Record, State},
    refusal::Refusal,
};

impl Store {
    /// Makes the pending ones of the writes given the committed state of their units.
    pub(super) fn commit(&mut self, writes: &[UnitVersion]) -> Result<(), Refusal> {
        let layout = self.writable()?;
        check_units(&layout, writes)?;
        for UnitVersion { unit, version } in writes {
            let (unit, version) = (*unit, *version);
            if self.pending_of(unit).is_none_or(|pending| pending.record.version != version) {
                continue;
            }
            self.make_prepare_durable(unit)?;
            let change = Change::Committed { unit, version };
            self.reserve(unit, change_bytes(&change, 0))?;
            self.commit_in_memory(unit);
            self.stage(&change);
        }
        Ok(())
    }

    /// Drops the writes given; none of these versions can be prepared afterwards.
    pub(super) fn abort(&mut self, writes: &[UnitVersion]) -> Result<(), Refusal> {
        let layout = self.writable()?;
        check_units(&layout, writes)?;
        writes.iter().try_for_each(|UnitVersion { unit, version }| self.abort_one(*unit, *version))
    }

    fn abort_one(&mut self, unit: u64, version: Version) -> Result<(), Refusal> {
        let pending = self.pending_of(unit).filter(|pending| pending.record.version == version);
        let (is_pending, is_fresh) =
            (pending.is_some(), pending.is_some_and(|pending| pending.base.is_none()));
        let mut record = self.record(unit)?;
        if version <= record.floor && !is_pending {
            return Ok(());
        }
        record.floor = record.floor.max(version);
        let change = Change::Raised { aborted: version, record };
        self.reserve(unit, change_bytes(&change, 0))?;
        let Change::Raised { record, .. } = &change else { return Ok(()) };
        self.raise(version, record.clone());
        if self.is_weak(super::Weak::FloorNotPersisted) && !is_pending {
            return Ok(());
        }
        self.stage(&change);
        if is_fresh {
            self.give_back(unit);
        }
        Ok(())
    }

    /// Gives units back. All are refused if one is.
    pub(super) fn discard(&mut self, writes: &[UnitVersion]) -> Result<(), Refusal> {
        let layout = self.writable()?;
        check_units(&layout, writes)?;
        for UnitVersion { unit, version } in writes {
            let (unit, given, floor) = (*unit, *version, self.record(*unit)?.floor);
            if given <= floor {
                return Err(Refusal::BelowFloor { unit, given, floor });
            }
        }
        for UnitVersion { unit, version } in writes {
            // A unit that is listed twice keeps the higher floor.
            let floor = self.record(*unit)?.floor.max(*version);
            let record = Record::bare(State::Empty, *unit, layout.unit_sectors(), floor);
            self.reserve(*unit, change_bytes(&Change::Replaced(record.clone()), 0))?;
            self.replace(record);
        }
        Ok(())
    }

    /// Replaces a unit whole, whatever it held. Returns the token.
    pub(super) fn rebuild(&mut self, rebuild: Rebuild) -> Result<Version, Refusal> {
        let layout = self.writable()?;
        let (unit, token) = (rebuild.unit, rebuild.token);
        Store::check_unit(&layout, unit)?;
        check_shape(&layout, &rebuild.runs, rebuild.summary.as_ref())?;
        if rebuild.version > token {
            let message = format!("version {} is above the token of the attempt, {token}", rebuild.version);
            return Err(Refusal::Invalid(message));
        }
        let lost = lost_bits(&layout, &rebuild)?;
        let old = self.record(unit)?;
        if token <= old.floor {
            // The same attempt again gets the same answer; anything else at this token is another write's floor.
            let repeated = token == old.floor && old.token == token && old.committed() == rebuild.version;
            let (given, floor) = (token, old.floor);
            return if repeated { Ok(token) } else { Err(Refusal::BelowFloor { unit, given, floor }) };
        }
        let Rebuild { identity, version, runs, summary, .. } = rebuild;
        let mut body = Body::never_written(layout.unit_sectors());
        body.enter(&runs);
        // A lost sector was written once: that it reads as zeros would be a lie.
        lost.iter_ones().for_each(|sector| body.written.set(sector, true));
        body.lost = lost;
        body.summary = summary;
        let record = Record {
            identity,
            version,
            token,
            body,
            ..Record::bare(State::Committed, unit, layout.unit_sectors(), token)
        };
        self.reserve(unit, change_bytes(&Change::Replaced(record.clone()), 0))?;
        self.replace(record);
        self.stage_home(&layout, unit, runs);
        Ok(token)
    }

    /// The unit is this from now on, whatever it was.
    pub(super) fn replace(&mut self, record: Record) {
        let since = self.staging_place();
        let skipped = self.is_weak(super::Weak::FloorNotPersisted) && record.state == State::Empty;
        let change = Change::Replaced(record.clone());
        self.counted(record.unit, |store| store.replace_in_memory(record, since));
        if !skipped {
            self.stage(&change);
        }
    }

    pub(super) fn replace_in_memory(&mut self, record: Record, since: super::Place) {
        let unit = record.unit;
        self.take_pending(unit);
        self.recent.entry(unit).or_default().changed = Some(Changed { record, redo: Redo::new(), since });
    }

    fn raise(&mut self, aborted: Version, record: Record) {
        let since = self.staging_place();
        self.counted(record.unit, |store| store.raise_in_memory(aborted, record, since));
    }

    /// The write `aborted` is not pending any more, if it was; the floor is the record's.
    pub(super) fn raise_in_memory(&mut self, aborted: Version, record: Record, since: super::Place) {
        let unit = record.unit;
        if self.pending_of(unit).is_some_and(|pending| pending.record.version == aborted) {
            self.take_pending(unit);
        }
        if let Some(pending) = self.recent.get_mut(&unit).and_then(|recent| recent.pending.as_mut()) {
            pending.record.floor = pending.record.floor.max(record.floor);
        }
        let recent = self.recent.entry(unit).or_default();
        match &mut recent.changed {
            // Its bytes may still have to go home.
            Some(changed) => changed.record = record,
            None => recent.changed = Some(Changed { record, redo: Redo::new(), since }),
        }
    }

    /// A fresh write replaces whatever the unit was; nothing of that goes home any more (A8).
    pub(super) fn enter_fresh(&mut self, layout: &Layout, pending: Pending) {
        let (unit, floor, since) = (pending.record.unit, pending.record.floor, pending.since);
        let kept = self.is_weak(super::Weak::RedoOverFresh);
        let redo = self.recent.get_mut(&unit).and_then(|recent| recent.changed.take());
        let redo = redo.filter(|_| kept).map_or_else(Redo::new, |changed| changed.redo);
        let record = Record::bare(State::Empty, unit, layout.unit_sectors(), floor);
        self.set_pending(pending);
        self.recent.entry(unit).or_default().changed = Some(Changed { record, redo, since });
    }

    /// What is pending becomes the committed state.
    pub(super) fn commit_in_memory(&mut self, unit: u64) {
        let kept = self.is_weak(super::Weak::RedoOverFresh);
        let Some(pending) = self.take_pending(unit) else { return };
        let Pending { mut record, base, redo, since, .. } = pending;
        let recent = self.recent.entry(unit).or_default();
        let mut changed = match recent.changed.take() {
            Some(changed) => changed,
            None => Changed { record: record.clone(), redo: Redo::new(), since },
        };
        record.floor = record.floor.max(changed.record.floor);
        if base.is_none() && !kept {
            changed.redo.clear();
        }
        changed.redo.extend(redo);
        let since = changed.since.min(since);
        recent.changed = Some(Changed { record, redo: changed.redo, since });
    }

    pub(super) fn set_pending(&mut self, pending: Pending) {
        let unit = pending.record.unit;
        self.take_pending(unit);
        self.pending_writes += 1;
        self.pending_bytes += pending.bytes;
        self.recent.entry(unit).or_default().pending = Some(pending);
    }

    pub(super) fn take_pending(&mut self, unit: u64) -> Option<Pending> {
        let Recent { pending, .. } = self.recent.get_mut(&unit)?;
        let taken = pending.take()?;
        self.pending_writes -= 1;
        self.pending_bytes -= taken.bytes;
        Some(taken)
    }

    /// Makes a change, and keeps the count of units that hold something.
    pub(super) fn counted(&mut self, unit: u64, change: impl FnOnce(&mut Store)) {
        let held = self.holds(unit);
        change(self);
        match (held, self.holds(unit)) {
            (false, true) => self.totals.used += 1,
            (true, false) => self.totals.used = self.totals.used.saturating_sub(1),
            (true, true) | (false, false) => {}
        }
    }

    fn holds(&mut self, unit: u64) -> bool {
        self.pending_of(unit).is_some() || self.record(unit).is_ok_and(|record| record.holds())
    }
}

fn check_units(layout: &Layout, writes: &[UnitVersion]) -> Result<(), Refusal> {
    writes.iter().try_for_each(|write| Store::check_unit(layout, write.unit))
}

/// The lost bits of a rebuild; refuses those that do not fit, or name a sector that the rebuild brings.
fn lost_bits(layout: &Layout, rebuild: &Rebuild) -> Result<Bits, Refusal> {
    let sectors = layout.unit_sectors();
    let lost = if rebuild.lost.is_empty() {
        Bits::new(sectors)
    } else if let Some(lost) = Bits::from_bytes(&rebuild.lost, sectors) {
        lost
    } else {
        let message = format!(
            "{} bytes of lost bits: there is one bit for each of {sectors} sectors",
            rebuild.lost.len()
        );
        return Err(Refusal::Invalid(message));
    };
    let brought =
        |sector: &usize| rebuild.runs.iter().any(|run| (run.first_sector..run.end()).contains(sector));
    let both = lost.iter_ones().find(brought);
    match both {
        Some(sector) => Err(Refusal::Invalid(format!("sector {sector} is both brought and lost"))),
        None => Ok(lost),
    }
}
