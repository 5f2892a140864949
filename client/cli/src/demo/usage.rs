//! What the processes of the demo cost: CPU time and peak memory, from `/proc`, by class of process.

use std::{collections::BTreeMap, fs};

use serde::Serialize;

use crate::cluster::{Cluster, ProcessName};

/// CPU seconds, user and system, by class of process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct CpuSeconds {
    pub(super) client: f64,
    pub(super) coordinator: f64,
    pub(super) agents: f64,
}

impl CpuSeconds {
    pub(super) fn total(self) -> f64 {
        self.client + self.coordinator + self.agents
    }

    pub(super) fn since(self, earlier: CpuSeconds) -> CpuSeconds {
        CpuSeconds {
            client: self.client - earlier.client,
            coordinator: self.coordinator - earlier.coordinator,
            agents: self.agents - earlier.agents,
        }
    }
}

/// Peak resident memory in bytes; for agents, that of the one with most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct PeakMemory {
    pub(super) client: u64,
    pub(super) coordinator: u64,
    pub(super) agent: u64,
}

/// Reads what the processes of one cluster have used so far, those included that were killed.
#[derive(Debug, Default)]
pub(super) struct Meter {
    /// CPU seconds of processes that are gone.
    gone: BTreeMap<ProcessName, f64>,
    pub(super) peak: PeakMemory,
}

impl Meter {
    pub(super) fn read(&mut self, cluster: &Cluster) -> CpuSeconds {
        let own = std::process::id();
        let mut cpu = CpuSeconds { client: cpu_seconds(own).unwrap_or(0.0), ..CpuSeconds::default() };
        self.peak.client = self.peak.client.max(peak_bytes(own).unwrap_or(0));
        for name in cluster.names() {
            let pid = cluster.pid(name);
            let running = pid.and_then(cpu_seconds).unwrap_or(0.0);
            let seconds = running + self.gone.get(&name).copied().unwrap_or(0.0);
            let bytes = pid.and_then(peak_bytes).unwrap_or(0);
            match name {
                ProcessName::Coordinator => {
                    cpu.coordinator += seconds;
                    self.peak.coordinator = self.peak.coordinator.max(bytes);
                }
                ProcessName::Agent(_) => {
                    cpu.agents += seconds;
                    self.peak.agent = self.peak.agent.max(bytes);
                }
            }
        }
        cpu
    }

    /// Remembers what a process has used that is about to be killed.
    pub(super) fn before_kill(&mut self, cluster: &Cluster, name: ProcessName) {
        self.read(cluster);
        let seconds = cluster.pid(name).and_then(cpu_seconds).unwrap_or(0.0);
        *self.gone.entry(name).or_default() += seconds;
    }
}

fn cpu_seconds(pid: u32) -> Option<f64> {
    let ticks = cpu_ticks(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)?;
    Some(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// utime and stime: fields 14 and 15. The second field, the name, is in parentheses and may have anything in it.
fn cpu_ticks(stat: &str) -> Option<u64> {
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut fields = after_name.split_whitespace().skip(11);
    let (user, system): (u64, u64) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    Some(user + system)
}

fn peak_bytes(pid: u32) -> Option<u64> {
    peak_of(&fs::read_to_string(format!("/proc/{pid}/status")).ok()?)
}

fn peak_of(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_anything_in_it_is_passed_over() {
        let stat = "12 (a) b (c) S 1 12 12 0 -1 4194304 100 0 0 0 250 50 0 0 20 0 1 0 9 1 1";
        assert_eq!(cpu_ticks(stat), Some(300));
        assert_eq!(cpu_ticks("12 (a"), None);
    }

    #[test]
    fn this_process_has_used_something() {
        assert!(cpu_seconds(std::process::id()).is_some());
        assert!(peak_bytes(std::process::id()).unwrap() > 1 << 20);
        assert_eq!(peak_of("Name:\tx\nVmHWM:\t    2048 kB\n"), Some(2 << 20));
    }
}
