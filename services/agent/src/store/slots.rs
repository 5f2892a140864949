//! Which journal slots are free. A slot given back becomes free only after a sync: until then what it holds may be the
//! only durable copy of bytes that are on their way home.

/// The slots of a journal.
pub(crate) struct Slots {
    free: Vec<u32>,
    after_sync: Vec<u32>,
    count: u32,
}

impl Slots {
    /// All free.
    pub(crate) fn new(count: u32) -> Slots {
        Slots { free: (0..count).rev().collect(), after_sync: Vec::new(), count }
    }

    /// Takes one that is known to be in use, when the disk is opened.
    pub(crate) fn occupy(&mut self, slot: u32) {
        self.free.retain(|free| *free != slot);
    }

    /// The slot used most recently: older ones keep their bytes longer, newer ones are still in the page cache.
    pub(crate) fn take(&mut self) -> Option<u32> {
        self.free.pop()
    }

    /// Nothing was written to it.
    pub(crate) fn untake(&mut self, slot: u32) {
        self.free.push(slot);
    }

    /// What it held is on its way home, or means nothing any more.
    pub(crate) fn give_back(&mut self, slot: u32) {
        self.after_sync.push(slot);
    }

    /// A sync has ended.
    pub(crate) fn synced(&mut self) {
        self.free.append(&mut self.after_sync);
    }

    /// Slots in the journal.
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// Slots that cannot be taken now.
    pub(crate) fn used(&self) -> u32 {
        // No more than `count` are ever free.
        self.count - self.free.len() as u32
    }
}
