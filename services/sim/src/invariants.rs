//! What has to hold, whatever happened. One file for each; all of them are given what they judge, so that a broken world
//! can be shown to them.

pub mod cache;
pub mod losses;
pub mod parity;

use std::fmt;

/// An invariant that does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which one, as ARCHITECTURE.md and docs/PROTOCOL.md call it.
    pub invariant: &'static str,
    /// What was found.
    pub detail: String,
}

impl Violation {
    /// A violation.
    pub fn new(invariant: &'static str, detail: impl Into<String>) -> Self {
        Violation { invariant, detail: detail.into() }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.invariant, self.detail)
    }
}
