//! What the demo found, as a table and as JSON.

use serde::Serialize;

use super::{
    transfer::{Failed, Transfer},
    usage::{CpuSeconds, PeakMemory},
};
use crate::{quantity::show_size, table};

const GIB: f64 = (1u64 << 30) as f64;

/// One step of the demo.
#[derive(Debug, Serialize)]
pub(super) struct Step {
    pub(super) step: &'static str,
    pub(super) objects: u64,
    pub(super) bytes: u64,
    pub(super) seconds: f64,
    pub(super) megabytes_per_second: f64,
    pub(super) cpu_seconds: CpuSeconds,
    /// Of all processes; 0 for a step that moves no bytes.
    pub(super) cpu_seconds_per_gib: f64,
}

impl Step {
    pub(super) fn new(step: &'static str, moved: &Transfer, seconds: f64, cpu_seconds: CpuSeconds) -> Step {
        let bytes = moved.bytes as f64;
        let ratio = |value: f64, by: f64| if by > 0.0 { value / by } else { 0.0 };
        Step {
            step,
            objects: moved.objects,
            bytes: moved.bytes,
            seconds,
            megabytes_per_second: ratio(bytes / 1e6, seconds),
            cpu_seconds,
            cpu_seconds_per_gib: ratio(cpu_seconds.total(), bytes / GIB),
        }
    }
}

/// A file with which something went wrong.
#[derive(Debug, Serialize)]
pub(super) struct Trouble {
    pub(super) name: String,
    pub(super) reason: String,
}

impl From<&Failed> for Trouble {
    fn from(failed: &Failed) -> Self {
        Trouble { name: failed.name.clone(), reason: failed.reason.clone() }
    }
}

/// The whole demo.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) profile: String,
    pub(super) agents: usize,
    pub(super) agent_bytes: u64,
    /// Processes that were killed.
    pub(super) killed: Vec<String>,
    /// Files that were to be stored.
    pub(super) objects: u64,
    pub(super) bytes: u64,
    pub(super) steps: Vec<Step>,
    pub(super) objects_matched: u64,
    pub(super) bytes_matched: u64,
    /// Files that could not be read in the beginning.
    pub(super) unreadable: Vec<String>,
    pub(super) not_stored: Vec<Trouble>,
    pub(super) not_matched: Vec<Trouble>,
    /// All members are in sync at the end.
    pub(super) in_sync: bool,
    /// State of each member at the end.
    pub(super) members: Vec<String>,
    pub(super) peak_memory_bytes: PeakMemory,
    /// Every byte of every file matched.
    pub(super) matched: bool,
}

/// Lines of one kind of trouble that are shown.
const TROUBLES_SHOWN: usize = 10;

impl Report {
    pub(super) fn text(&self) -> String {
        let mut text = self.steps();
        let PeakMemory { client, coordinator, agent } = self.peak_memory_bytes;
        let (client, coordinator, agent) = (show_size(client), show_size(coordinator), show_size(agent));
        text +=
            &format!("\npeak memory: client {client}, coordinator {coordinator}, largest agent {agent}\n");
        let troubles = |list: &[Trouble]| -> Vec<String> {
            list.iter().map(|trouble| format!("{}: {}", trouble.name, trouble.reason)).collect()
        };
        text += &list("could not be read", &self.unreadable);
        text += &list("could not be stored", &troubles(&self.not_stored));
        text += &list("did not come back as they were", &troubles(&self.not_matched));
        if !self.in_sync {
            let states: Vec<String> =
                self.members.iter().enumerate().map(|(index, state)| format!("{index} {state}")).collect();
            text += &format!(
                "not all members are in sync at the end ({}). In this version a member that missed a write stays \
                 out; a later version will bring it back.\n",
                states.join(", ")
            );
        }
        let killed = match self.killed.as_slice() {
            [] => "nothing killed".to_owned(),
            names => format!("{} killed", names.join(" and ")),
        };
        let (matched, objects) = (self.objects_matched, self.objects);
        let bytes = show_size(self.bytes_matched);
        let came_back = format!("({bytes}) came back byte for byte with {killed}");
        text += &match (self.matched, matched == objects) {
            (true, _) => format!("all {objects} objects {came_back}\n"),
            (false, true) => format!("all {objects} objects {came_back}, but not every file could be read\n"),
            (false, false) => format!("only {matched} of {objects} objects {came_back}\n"),
        };
        text
    }

    fn steps(&self) -> String {
        let header =
            ["STEP", "OBJECTS", "BYTES", "SECONDS", "MB/S", "CLIENT", "COORDINATOR", "AGENTS", "CPU S/GIB"];
        let mut rows = table::new(&header, &[1, 2, 3, 4, 5, 6, 7, 8]);
        for step in &self.steps {
            let moved = step.bytes > 0;
            let of_bytes =
                |value: f64, places: usize| if moved { format!("{value:.places$}") } else { String::new() };
            rows.add_row([
                step.step.replace('_', " "),
                if step.objects > 0 { step.objects.to_string() } else { String::new() },
                if moved { show_size(step.bytes) } else { String::new() },
                format!("{:.2}", step.seconds),
                of_bytes(step.megabytes_per_second, 1),
                format!("{:.2}", step.cpu_seconds.client),
                format!("{:.2}", step.cpu_seconds.coordinator),
                format!("{:.2}", step.cpu_seconds.agents),
                of_bytes(step.cpu_seconds_per_gib, 2),
            ]);
        }
        let (profile, agents) = (&self.profile, self.agents);
        let size = show_size(self.agent_bytes);
        format!(
            "{profile} on {agents} agents with disks of {size}; CPU seconds by process\n\n{}",
            table::text(&rows)
        )
    }
}

fn list(what: &str, lines: &[String]) -> String {
    if lines.is_empty() {
        return String::new();
    }
    let mut text = format!("{} files {what}:\n", lines.len());
    for line in lines.iter().take(TROUBLES_SHOWN) {
        text += &format!("  {line}\n");
    }
    if lines.len() > TROUBLES_SHOWN {
        text += &format!("  and {} more\n", lines.len() - TROUBLES_SHOWN);
    }
    text
}
