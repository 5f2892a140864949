//! What happened in walks, counted: so that walks that prove nothing show.

use std::{fmt, ops::AddAssign};

macro_rules! counts {
    ($($field:ident: $words:literal,)*) => {
        /// Counts of one walk, or of many.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[expect(missing_docs, reason = "the words that are printed say it")]
        pub struct Counts { $(pub $field: u64,)* }

        impl AddAssign for Counts {
            fn add_assign(&mut self, other: Counts) { $(self.$field += other.$field;)* }
        }

        impl fmt::Display for Counts {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                $(writeln!(f, "{:>14}  {}", self.$field, $words)?;)*
                Ok(())
            }
        }
    };
}

counts! {
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
