//! What happened in walks, counted: so that walks that prove nothing show.

use crate::counted::counted;

counted! {
    /// Counts of one walk, or of many.
    #[expect(missing_docs, reason = "the words that are printed say it")]
    Counts {
        walks: "walks",
        steps: "steps",
        begun: "starts that the rule let begin",
        refused: "looks at a start that the rule did not let begin",
        witnessed: "of the starts, with a witness",
        in_force: "labels in force",
        taken_out: "out-marks",
        let_in: "windows let in",
        rebuilt: "shards rebuilt",
        unchanged: "windows in which nothing was missed",
        served: "coordinators that served",
        acknowledged: "transactions acknowledged",
        aborted: "transactions aborted",
        fresh: "fresh writes decided",
        partial: "partial writes decided",
        discards: "discards",
        torn: "fresh prepares torn by a crash",
        crashes: "agents crashed",
        lost: "disks lost",
        fenced: "messages refused by their epoch",
        below_floor: "messages refused by the floor",
        reads: "reads compared",
        ends_refused: "ends at which the rule did not let begin",
    }
}
