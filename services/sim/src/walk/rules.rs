//! Rules that a walk can leave out, each to be caught.

/// What is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "`Rule::words` says it")]
pub enum Rule {
    TornFreshBelieved,
    OnlyNewestApplied,
    RedoOverNewer,
    FreshWithoutFloor,
    DiscardWithoutFloor,
    FreshKeepsPending,
    FreshKeepsRedo,
    RebuildKeepsRedo,
    EmptyBlindToTransactions,
    UnpinnedEarly,
    ReadersDoNotPin,
    OutWithoutLabel,
    LabelWithoutEpoch,
    NoEpochCheck,
    AcknowledgedEarly,
    NoAbortBarrier,
    AlwaysBack,
    AlwaysForward,
    SilentNotCounted,
    WitnessFencedByOthers,
    UnfinishedWitness,
    OlderLabelTaken,
    UnfinishedOutForgotten,
    GateLeftOpen,
    SinceAboveUndecided,
    TokenUsedAgain,
}

impl Rule {
    /// All of them.
    pub const ALL: [Rule; 26] = [
        Rule::TornFreshBelieved,
        Rule::OnlyNewestApplied,
        Rule::RedoOverNewer,
        Rule::FreshWithoutFloor,
        Rule::DiscardWithoutFloor,
        Rule::FreshKeepsPending,
        Rule::FreshKeepsRedo,
        Rule::RebuildKeepsRedo,
        Rule::EmptyBlindToTransactions,
        Rule::UnpinnedEarly,
        Rule::ReadersDoNotPin,
        Rule::OutWithoutLabel,
        Rule::LabelWithoutEpoch,
        Rule::NoEpochCheck,
        Rule::AcknowledgedEarly,
        Rule::NoAbortBarrier,
        Rule::AlwaysBack,
        Rule::AlwaysForward,
        Rule::SilentNotCounted,
        Rule::WitnessFencedByOthers,
        Rule::UnfinishedWitness,
        Rule::OlderLabelTaken,
        Rule::UnfinishedOutForgotten,
        Rule::GateLeftOpen,
        Rule::SinceAboveUndecided,
        Rule::TokenUsedAgain,
    ];

    /// Its word on the command line, and what happens instead of it.
    pub fn words(self) -> (&'static str, &'static str) {
        match self {
            Rule::TornFreshBelieved => {
                ("torn-fresh", "A8: after a crash a fresh record is believed whose bytes are not home")
            }
            Rule::OnlyNewestApplied => {
                ("only-newest", "A8: redo is applied only if nothing newer was, not in order")
            }
            Rule::RedoOverNewer => (
                "redo-over-newer",
                "A8: redo of the journal is applied over a later fresh write, discard or rebuild",
            ),
            Rule::FreshWithoutFloor => ("fresh-floor", "A2f: a fresh prepare asks no floor"),
            Rule::DiscardWithoutFloor => ("discard-floor", "A7: a discard asks no floor"),
            Rule::FreshKeepsPending => {
                ("fresh-pending", "A2f: a fresh prepare is refused where another one is pending")
            }
            Rule::FreshKeepsRedo => ("fresh-redo", "A2f: a fresh prepare keeps older redo"),
            Rule::RebuildKeepsRedo => ("rebuild-redo", "A5: a rebuild keeps older redo"),
            Rule::EmptyBlindToTransactions => {
                ("empty-blind", "a stripe counts as empty though an unfinished transaction writes there")
            }
            Rule::UnpinnedEarly => ("unpin-early", "what a transaction frees is free before it is durable"),
            Rule::ReadersDoNotPin => ("no-pins", "what a reader holds is free"),
            Rule::OutWithoutLabel => ("out-unlabelled", "a member is out before its out-mark is in force"),
            Rule::LabelWithoutEpoch => ("label-epoch", "a disk takes labels of a deposed coordinator"),
            Rule::NoEpochCheck => ("no-epoch", "A1: nobody asks for the epoch"),
            Rule::AcknowledgedEarly => {
                ("early-ack", "a write is decided while one participant has not prepared it")
            }
            Rule::NoAbortBarrier => {
                ("no-barrier", "an aborted write is reported before every abort is answered")
            }
            Rule::AlwaysBack => ("always-back", "recovery: what is pending everywhere is taken back"),
            Rule::AlwaysForward => ("always-forward", "recovery: whatever is pending goes forward"),
            Rule::SilentNotCounted => {
                ("silent-uncounted", "start: members that do not answer may be k of those in sync")
            }
            Rule::WitnessFencedByOthers => {
                ("witness-fenced", "start: a witness is believed though others fenced the members since")
            }
            Rule::UnfinishedWitness => (
                "witness-unfinished",
                "start: a witness is believed whose label may not have come into force",
            ),
            Rule::OlderLabelTaken => ("older-label", "a disk goes back to an older label"),
            Rule::UnfinishedOutForgotten => {
                ("out-forgotten", "label: what an unfinished revision takes out comes back with the next")
            }
            Rule::GateLeftOpen => ("no-gate", "rejoin: a window is let in while writes to it go on"),
            Rule::SinceAboveUndecided => (
                "since-late",
                "rejoin: a member is said to have writes that were not decided when it went out",
            ),
            Rule::TokenUsedAgain => {
                ("token-again", "A5: the answer to an earlier rebuild passes for that to a later one")
            }
        }
    }

    /// The rule of a word.
    pub fn parse(word: &str) -> Option<Rule> {
        Rule::ALL.into_iter().find(|rule| rule.words().0 == word)
    }
}

/// The rules that a walk leaves out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Broken(u64);

impl Broken {
    /// All but this one are kept.
    pub fn without(rule: Rule) -> Broken {
        Broken(1 << rule as u64)
    }

    /// Whether a rule is left out.
    pub fn lacks(self, rule: Rule) -> bool {
        self.0 >> rule as u64 & 1 == 1
    }
}
