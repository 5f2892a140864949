//! What every stripeset process does the same way: where its log goes, and how it is asked to stop.

pub mod logs;
pub mod shutdown;
