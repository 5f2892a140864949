//! The child's side of belonging to a cluster on this machine: it ends when its parent does, however that ends.

use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};

use crate::failure::Failure;

/// Has the kernel kill this process when the thread that started it ends. Fails if the parent, process `pid`, is gone
/// already: the signal is then for the death of whoever adopted this process.
pub(crate) fn die_with(pid: u32) -> Result<(), Failure> {
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(std::io::Error::from)?;
    let parent = getppid().map(Pid::as_raw_pid);
    if parent.is_some_and(|parent| u32::try_from(parent) == Ok(pid)) {
        return Ok(());
    }
    Err(Failure::failed(format!("process {pid}, whose child this should be, is gone")))
}
