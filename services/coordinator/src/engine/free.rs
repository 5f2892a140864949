//! Giving sectors back.
//!
//! What is freed is taken out of the cache before anybody else may have it, and not earlier than it is freed: while a crash
//! could bring an extent back, or a reader still holds it, its sectors count as live, and a page of them is as good as the
//! disk. Who calls waits for both (`extents::pins`).

use stripeset_stripe::{SECTOR_BYTES, bits::Bits, geometry::Logical};

use super::{Engine, Weak};

impl Engine {
    /// Gives a logical range back: nothing durable refers to it, and no reader does.
    pub fn free(&self, logical: Logical, length: u64) {
        self.invalidate(logical, length);
        self.extents.free(logical, length);
    }

    /// Takes a range out of the cache, and out of the pages of writes in flight.
    pub fn invalidate(&self, logical: Logical, length: u64) {
        let geometry = *self.extents.geometry();
        let (mut at, end) = (logical.0, logical.0 + length);
        while at < end {
            let address = geometry.place(Logical(at)).stripe;
            let start = geometry.stripe_start(address).0;
            let stop = end.min(start + geometry.stripe_bytes());
            let mut freed = Bits::new(geometry.stripe_sectors());
            let sectors = (at - start) as usize / SECTOR_BYTES..(stop - start) as usize / SECTOR_BYTES;
            sectors.for_each(|sector| freed.set(sector, true));
            let key = self.cache_key(&self.extents.stripe(address));
            let mut cache = self.cache();
            if !(self.is_weak(Weak::StickyMarkIgnored) && cache.is_owned(&key)) {
                cache.invalidate(&key, &freed);
            }
            at = stop;
        }
    }
}
