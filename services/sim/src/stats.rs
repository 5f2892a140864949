//! What was played, counted: so that a run that proves nothing shows.

use crate::counted::counted;

counted! {
    /// Counts of one seed, or of many.
    Stats {
        /// Seeds.
        seeds: "seeds",
        /// Seeds with faults on no more members than the profile bears.
        tolerated: "of them with faults on at most m members, where nothing may be lost",
        /// Actions.
        steps: "steps",
        /// Messages to agents.
        messages: "messages to agents",
        /// Writes that were acknowledged.
        writes: "writes acknowledged",
        /// Writes that failed.
        failed: "writes that failed",
        /// Writes whose outcome stayed open.
        open: "writes of unknown outcome",
        /// Partial writes that were served from the cache.
        skips: "partial writes that read nothing",
        /// Partial writes that read.
        reads_before: "partial writes that read",
        /// Reads that gave all their bytes.
        reads: "reads compared",
        /// Reads that failed.
        unread: "reads that failed",
        /// Sectors freed.
        freed: "sectors freed",
        /// Of them, while a write owned their stripe.
        freed_in_flight: "of them under a write in flight",
        /// Verticals compared with the code.
        verticals: "verticals compared with their parity",
        /// Patterns of lost shards that were rebuilt.
        patterns: "patterns of lost shards rebuilt and compared",
        /// Cached pages compared.
        pages: "cached pages compared",
        /// Coordinators that died.
        crashes: "coordinators killed",
        /// Coordinators that died while they took over, or right after.
        brief: "coordinators killed at their start",
        /// Coordinators that started beside another one.
        rivals: "coordinators started beside another",
        /// Writes of a deposed coordinator that it reported as done, late.
        late: "writes that a deposed coordinator acknowledged late",
        /// Writes that were given to deposed coordinators.
        refused: "writes refused to deposed coordinators",
        /// Starts that were refused for want of members that may hold newer data.
        unsure: "starts refused for want of a witness",
        /// Times that all agents lost power.
        blackouts: "times that everything lost power",
        /// Disks that were lost.
        disks_lost: "disks lost and replaced by blank ones",
        /// Members in sync again.
        rejoined: "members taken back",
        /// Agents killed.
        restarts: "agents killed",
        /// Agents that lost power.
        power: "agents that lost power",
        /// Lines cut.
        cuts: "lines cut",
        /// Lines frozen.
        frozen: "lines frozen",
        /// Messages lost.
        lost: "messages lost",
        /// Requests that arrived twice, or after their coordinator.
        repeated: "requests that came twice or late",
        /// Bits flipped.
        flips: "bits flipped on a medium",
        /// Sectors changed with their checksum.
        forged: "sectors changed with their checksum",
        /// Reads cut short.
        short: "times of short reads",
        /// Bits that rotted while being written.
        rot: "writes that rotted",
        /// Blocks that could not be read back.
        latent: "blocks that could not be read back",
        /// Writes that went elsewhere.
        misdirected: "writes misdirected",
        /// Writes that went nowhere.
        dropped: "writes dropped",
        /// Writes that found no space.
        full: "writes that found no space",
        /// Members that were not in sync again at the end.
        out: "members out at the end",
    }
}
