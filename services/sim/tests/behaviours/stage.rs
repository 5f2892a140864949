//! What the behaviours stand on: a stripe whose content is known, and what can be done to it.
//!
//! Contents are stamps: a number from which all bytes of a sector follow, another one for every write, so that no two
//! sectors cancel out in a parity. What cannot be known, after a write whose outcome is open, is `None`.

use std::{cell::RefCell, sync::Arc, time::Duration};

use bytes::Bytes;
use stripeset_coordinator::{
    engine::{Edit, Engine, WriteError},
    extents::StripeRef,
    members::{Member, MemberIndex},
    meta::Extent,
};
use stripeset_sim::{
    cluster::{Cluster, Coordinator, Settings},
    dice::Dice,
    network::{Conduct, Counts, Kind},
    trace::Trace,
};
use stripeset_stripe::{
    Profile, SECTOR_BYTES, Version,
    cache::{Class, Counters, StripeKey},
    geometry::{Logical, Place, Shard},
};

/// A data sector: its shard, and which one it is of the unit.
pub(crate) type At = (usize, usize);

/// Profiles with parity over several data shards.
pub(crate) const PARITY_PROFILES: [&str; 4] = ["raid5-2+1", "raid5-4+1", "raid6-4+2", "rs-4+3"];

/// The same, and mirrors.
pub(crate) const ALL_PROFILES: [&str; 6] =
    ["mirror2", "mirror3", "raid5-2+1", "raid5-4+1", "raid6-4+2", "rs-4+3"];

/// A cluster on blank disks.
pub(crate) fn cluster(word: &str, seed: u64) -> Cluster {
    let profile: Profile = word.parse().unwrap();
    Cluster::new(Settings::small(profile, seed), Trace::default()).unwrap()
}

/// One life of a coordinator over blank disks.
pub(crate) fn on(word: &str, life: impl AsyncFnOnce(&Cluster, &Coordinator)) {
    cluster(word, 1).run(&[], life).unwrap();
}

/// The bytes of a stamp; zeros of stamp 0.
pub(crate) fn bytes_of(stamp: u64) -> Bytes {
    if stamp == 0 {
        return vec![0; SECTOR_BYTES].into();
    }
    let mut dice = Dice::new(stamp);
    (0..SECTOR_BYTES / 8).flat_map(|_| dice.draw().to_le_bytes()).collect::<Vec<_>>().into()
}

/// All ways to take `count` of `of`.
pub(crate) fn patterns(of: usize, count: usize) -> Vec<Vec<usize>> {
    let chosen = |mask: u32| (0..of).filter(|index| mask >> index & 1 == 1).collect::<Vec<_>>();
    (0..1u32 << of).filter(|mask| mask.count_ones() as usize == count).map(chosen).collect()
}

/// What is known of a stripe when its coordinator has died.
pub(crate) struct Remembered {
    stripe: StripeRef,
    holds: Vec<Option<u64>>,
    /// Extents that maps refer to.
    pub(crate) in_use: Vec<Extent>,
}

/// A stripe whose content is known.
pub(crate) struct Tested<'a> {
    pub(crate) cluster: &'a Cluster,
    pub(crate) coordinator: &'a Coordinator,
    pub(crate) stripe: StripeRef,
    /// By data sector, counted through the data shards: its stamp.
    holds: RefCell<Vec<Option<u64>>>,
    stamps: RefCell<u64>,
}

impl<'a> Tested<'a> {
    /// A stripe taken from the allocator, whole, with nothing written to it.
    pub(crate) async fn blank(cluster: &'a Cluster, coordinator: &'a Coordinator) -> Tested<'a> {
        let stripe = coordinator.engine.extents.take_stripe().await.unwrap().unwrap();
        Tested::of(cluster, coordinator, stripe)
    }

    /// A stripe with nothing written to it, or with what a coordinator before this one wrote.
    pub(crate) fn of(cluster: &'a Cluster, coordinator: &'a Coordinator, stripe: StripeRef) -> Tested<'a> {
        let holds = RefCell::new(vec![Some(0); stripe.geometry().stripe_sectors()]);
        let stamps = RefCell::new(u64::from(stripe.row.0 + 1) << 32);
        Tested { cluster, coordinator, stripe, holds, stamps }
    }

    /// The same, with the first sectors of every data shard written.
    pub(crate) async fn fresh(
        cluster: &'a Cluster,
        coordinator: &'a Coordinator,
        sectors: usize,
    ) -> Tested<'a> {
        let tested = Tested::blank(cluster, coordinator).await;
        tested.write_fresh(sectors).await.unwrap();
        tested
    }

    /// The same, all of it written.
    pub(crate) async fn full(cluster: &'a Cluster, coordinator: &'a Coordinator) -> Tested<'a> {
        let sectors = cluster.geometry().unit_sectors();
        Tested::fresh(cluster, coordinator, sectors).await
    }

    /// What its sectors hold, for the coordinator after this one.
    pub(crate) fn remembered(&self) -> Remembered {
        let in_use = self.all().into_iter().filter(|at| self.is_live(*at)).map(|at| self.extent(at));
        Remembered {
            stripe: self.stripe.clone(),
            holds: self.holds.borrow().clone(),
            in_use: in_use.collect(),
        }
    }

    /// A stripe as the coordinator before this one knew it.
    pub(crate) fn again(
        cluster: &'a Cluster,
        coordinator: &'a Coordinator,
        before: &Remembered,
    ) -> Tested<'a> {
        let tested = Tested::of(cluster, coordinator, before.stripe.clone());
        *tested.holds.borrow_mut() = before.holds.clone();
        // Not the stamps of before.
        *tested.stamps.borrow_mut() |= 1 << 24;
        tested
    }

    pub(crate) fn engine(&self) -> &'a Arc<Engine> {
        &self.coordinator.engine
    }

    pub(crate) fn data_shards(&self) -> usize {
        self.stripe.geometry().profile().data_shards()
    }

    pub(crate) fn parity_shards(&self) -> usize {
        self.stripe.geometry().profile().parity_shards()
    }

    pub(crate) fn unit_sectors(&self) -> usize {
        self.stripe.geometry().unit_sectors()
    }

    /// All data sectors.
    pub(crate) fn all(&self) -> Vec<At> {
        let unit_sectors = self.unit_sectors();
        (0..self.data_shards() * unit_sectors)
            .map(|index| (index / unit_sectors, index % unit_sectors))
            .collect()
    }

    pub(crate) fn index(&self, (shard, sector): At) -> usize {
        shard * self.unit_sectors() + sector
    }

    /// Index of the member that holds a shard.
    pub(crate) fn member_of(&self, shard: usize) -> usize {
        self.coordinator.place(&self.stripe, shard).0
    }

    pub(crate) fn member(&self, shard: usize) -> &Member {
        self.engine().members.get(MemberIndex(self.member_of(shard) as u32))
    }

    pub(crate) fn key(&self) -> StripeKey {
        self.engine().cache_key(&self.stripe)
    }

    pub(crate) fn is_cached(&self) -> bool {
        self.engine().cache().peek(&self.key()).is_some()
    }

    /// Whether the cache has a page of a sector.
    pub(crate) fn has_page(&self, at: At) -> bool {
        let cache = self.engine().cache();
        cache.peek(&self.key()).is_some_and(|pages| pages.get(self.index(at)).is_some())
    }

    /// Empties the cache.
    pub(crate) fn uncache(&self) {
        self.engine().cache().clear();
    }

    pub(crate) fn counters(&self) -> Counters {
        self.engine().cache().counters(Class::Data)
    }

    /// Messages to the member of a shard so far.
    pub(crate) fn counts(&self, shard: usize) -> Counts {
        self.cluster.lines()[self.member_of(shard)].counts()
    }

    /// Reads sent so far, and the sectors that they asked for.
    pub(crate) fn reads(&self) -> (u64, u64) {
        let counts = self.cluster.lines().iter().map(|line| line.counts());
        counts.fold((0, 0), |(reads, sectors), counts| (reads + counts.reads, sectors + counts.sectors_read))
    }

    /// Prepares sent so far.
    pub(crate) fn prepares(&self) -> u64 {
        self.cluster.lines().iter().map(|line| line.counts().prepares).sum()
    }

    // Writing.

    /// New bytes for a sector, and their stamp.
    pub(crate) fn edit(&self, (shard, sector): At) -> (Edit, u64) {
        *self.stamps.borrow_mut() += 1;
        let stamp = *self.stamps.borrow();
        let edit = Edit { shard: Shard(shard as u8), first_sector: sector as u32, data: bytes_of(stamp) };
        (edit, stamp)
    }

    /// Notes what a sector holds now; `None` if that cannot be known.
    pub(crate) fn note(&self, at: At, stamp: Option<u64>) {
        self.holds.borrow_mut()[self.index(at)] = stamp;
    }

    /// New bytes for sectors, noted at once: for a write that will go well.
    pub(crate) fn edits(&self, sectors: &[At]) -> Vec<Edit> {
        let edit = |at: &At| {
            let (edit, stamp) = self.edit(*at);
            self.note(*at, Some(stamp));
            edit
        };
        sectors.iter().map(edit).collect()
    }

    /// A partial write. One that fails leaves everything as it was.
    pub(crate) async fn write(&self, sectors: &[At]) -> Result<Version, Arc<WriteError>> {
        let before = self.holds.borrow().clone();
        let written = self.engine().write_partial(&self.stripe, self.edits(sectors)).await;
        if written.is_err() {
            *self.holds.borrow_mut() = before;
        }
        written
    }

    /// A partial write that goes well, noted when it is submitted: others may be submitted before it is done.
    pub(crate) async fn write_noted(&self, sectors: &[At]) {
        self.engine().write_partial(&self.stripe, self.edits(sectors)).await.unwrap();
    }

    /// A fresh write of the first sectors of every data shard; the others become never written.
    pub(crate) async fn write_fresh(&self, sectors: usize) -> Result<Version, WriteError> {
        let before = self.holds.replace(vec![Some(0); self.stripe.geometry().stripe_sectors()]);
        let columns: Vec<Bytes> = (0..self.data_shards())
            .map(|shard| {
                let edits = self.edits(&(0..sectors).map(|sector| (shard, sector)).collect::<Vec<_>>());
                edits.iter().flat_map(|edit| edit.data.to_vec()).collect::<Vec<_>>().into()
            })
            .collect();
        let written = self.engine().write_fresh(&self.stripe, &columns).await;
        if written.is_err() {
            *self.holds.borrow_mut() = before;
        }
        written
    }

    fn logical(&self, (shard, sector): At) -> Logical {
        let place = Place {
            stripe: self.stripe.address(),
            shard: Shard(shard as u8),
            sector: sector as u32,
            byte: 0,
        };
        self.stripe.geometry().logical(place)
    }

    /// The extent of one sector, as a map would have it.
    pub(crate) fn extent(&self, at: At) -> Extent {
        let (logical, length) = (self.logical(at).0, SECTOR_BYTES as u64);
        Extent { logical, length, version: Version::NONE }
    }

    /// Gives a sector back: its transaction is durable, and no reader holds it.
    pub(crate) fn free(&self, at: At) {
        self.engine().free(self.logical(at), SECTOR_BYTES as u64);
        self.note(at, None);
    }

    /// Takes a free sector again; it has to be written before it is read.
    pub(crate) fn take(&self, at: At) {
        self.engine().extents.load_extent(self.extent(at)).unwrap();
    }

    pub(crate) fn is_live(&self, at: At) -> bool {
        self.engine().extents.live(self.stripe.address(), self.index(at))
    }

    /// Sectors that are live and whose content is known.
    pub(crate) fn known(&self) -> Vec<At> {
        self.all().into_iter().filter(|at| self.is_live(*at) && self.expected(*at).is_some()).collect()
    }

    pub(crate) fn expected(&self, at: At) -> Option<Bytes> {
        self.holds.borrow()[self.index(at)].map(bytes_of)
    }

    // Disks.

    /// Changes a bit of a sector of any shard on the medium.
    pub(crate) fn flip(&self, (shard, sector): At) {
        assert!(self.coordinator.flip(&self.stripe, shard, sector));
    }

    /// Changes bytes of a sector on the medium, and its checksum with them.
    pub(crate) fn forge(&self, (shard, sector): At) {
        assert!(self.coordinator.forge(&self.stripe, shard, sector));
    }

    /// Bytes on the medium of a sector of any shard.
    pub(crate) fn raw(&self, (shard, sector): At) -> Vec<u8> {
        self.coordinator.raw_sector(&self.stripe, shard, sector).unwrap()
    }

    pub(crate) async fn settle(&self) {
        self.coordinator.settle().await.unwrap();
    }

    pub(crate) fn set_conduct(&self, members: &[usize], conduct: &Conduct) {
        members.iter().for_each(|member| self.cluster.lines()[*member].set_conduct(conduct.clone()));
    }

    pub(crate) fn all_members(&self) -> Vec<usize> {
        (0..self.cluster.lines().len()).collect()
    }

    /// Keeps back the answers of all members to messages of some kinds, and of no others.
    pub(crate) fn keep_back(&self, held: &[Kind]) {
        self.set_conduct(&self.all_members(), &Conduct { held: held.to_vec(), ..Conduct::default() });
    }

    /// Cuts the lines to members, and waits until that is known.
    pub(crate) async fn cut(&self, members: &[usize]) {
        self.set_conduct(members, &Conduct { cut: true, ..Conduct::default() });
        let usable = |member: &usize| self.engine().members.get(MemberIndex(*member as u32)).usable();
        while members.iter().any(usable) {
            moment().await;
        }
    }

    /// All lines are well again, and all members serve.
    pub(crate) async fn mend(&self) {
        self.set_conduct(&self.all_members(), &Conduct::default());
        self.coordinator.all_in_service().await;
    }
}

/// Lets everything happen that is due.
pub(crate) async fn moment() {
    tokio::time::sleep(Duration::from_millis(20)).await;
}
