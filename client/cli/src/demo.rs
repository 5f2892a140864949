//! `demo`: the whole job in a temporary folder. Starts a cluster, stores files, kills agents, reads everything back
//! and compares it, starts the agents again, and prints what each step took.
//!
//! Decides the order of the steps and what counts as success: that every byte matched. Running the cluster is left to
//! `cluster.rs`.

mod files;
mod report;
mod sizing;
mod transfer;
mod usage;

use std::time::Duration;

use stripeset_client::{Client, MemberState};
use stripeset_stripe::profile::Profile;
use stripeset_telemetry::shutdown::{self, StopSignals};
use tokio::time::{Instant, sleep, timeout};

use self::{
    files::Found,
    report::{Report, Step, Trouble},
    sizing::Sizes,
    transfer::Transfer,
    usage::{CpuSeconds, Meter},
};
use crate::{
    arguments::DemoArguments,
    cluster::{AGENTS_MAX, Cluster, Folder, ProcessName, Wish, agents_for},
    dev::{again, stop_or_hangup},
    failure::{Code, Failure},
    output::Output,
    progress,
    quantity::show_size,
};

/// Longest wait for the cluster to serve.
const START_LIMIT: Duration = Duration::from_secs(120);

/// Longest wait for the members that were killed.
const IN_SYNC_LIMIT: Duration = Duration::from_secs(120);
const IN_SYNC_POLL: Duration = Duration::from_millis(50);

/// What the demo is to do.
struct Job {
    found: Found,
    profile: Profile,
    agents: usize,
    sizes: Sizes,
    victims: Vec<ProcessName>,
}

pub(crate) async fn run(arguments: DemoArguments, output: Output) -> Result<(), Failure> {
    let stop = shutdown::on_signals(StopSignals::TerminateAndInterrupt)?;
    let data = arguments.data.word.clone();
    let job = plan(arguments)?;
    let folder = Folder::temporary()?;
    sizing::check_room(folder.root(), job.sizes)?;
    let wish = Wish {
        agents: Some(job.agents),
        agent_bytes: Some(job.sizes.agent_bytes),
        metadata: Some(data.clone()),
        data: Some(data),
        unit_bytes: None,
        listen: Some(([127, 0, 0, 1], 0).into()),
        ..Wish::default()
    };
    let objects = job.found.files.len();
    eprintln!("storing {objects} files ({}) in {}", show_size(job.found.bytes()), folder.root().display());
    let mut cluster = Cluster::start(folder, &wish).await?;
    let end = tokio::select! {
        end = work(&job, &mut cluster) => end,
        () = stop_or_hangup(&stop) => Err(Failure::failed("stopped before it was done")),
    };
    // Whatever happened, nothing is left behind.
    let stopped = cluster.stop(again()).await;
    let (report, lost) = end?;
    output.show(&report, || report.text())?;
    stopped?;
    match (report.matched, lost) {
        (true, _) => Ok(()),
        (false, true) => Err(Failure::silent(Code::DataLoss)),
        (false, false) => Err(Failure::silent(Code::Failed)),
    }
}

/// Checks what was asked for, before anything is made.
fn plan(arguments: DemoArguments) -> Result<Job, Failure> {
    let DemoArguments { paths, data, agents, kill } = arguments;
    let agents = match agents {
        Some(agents) => agents,
        None => agents_for(&data.word)?,
    };
    if !(1..=AGENTS_MAX).contains(&agents) {
        return Err(Failure::usage(format!("--agents {agents}: from 1 to {AGENTS_MAX} are possible")));
    }
    let profile = data.spec.resolve(agents).map_err(|error| {
        Failure::usage(format!("--data {}: {error}: give more --agents or another profile", data.word))
    })?;
    let tolerated = profile.tolerated_members();
    let kill = kill.unwrap_or(tolerated);
    if kill > agents {
        return Err(Failure::usage(format!(
            "--kill {kill}: there are {agents} agents, and {profile} bears {tolerated}"
        )));
    }
    if kill > tolerated {
        eprintln!(
            "{profile} bears the loss of {tolerated} members: with {kill} killed, bytes will be missing"
        );
    }
    let found = files::find(&paths)?;
    for error in &found.errors {
        eprintln!("cannot be read: {error}");
    }
    let sizes = sizing::sizes(&found.files, profile, agents);
    // Spread over the members, so that data and parity are hit whatever the files' places are.
    let victims = (0..kill).map(|n| ProcessName::Agent(n * agents / kill)).collect();
    Ok(Job { found, profile, agents, sizes, victims })
}

/// Times the steps.
struct Clock {
    steps: Vec<Step>,
    meter: Meter,
    since: Instant,
    cpu: CpuSeconds,
}

impl Clock {
    fn start() -> Clock {
        Clock {
            steps: Vec::new(),
            meter: Meter::default(),
            since: Instant::now(),
            cpu: CpuSeconds::default(),
        }
    }

    /// Ends a step that moved these bytes, and begins the next one.
    fn lap(&mut self, step: &'static str, cluster: &Cluster, moved: &Transfer) {
        let seconds = self.since.elapsed().as_secs_f64();
        let cpu = self.meter.read(cluster);
        self.steps.push(Step::new(step, moved, seconds, cpu.since(self.cpu)));
        (self.since, self.cpu) = (Instant::now(), cpu);
    }
}

/// Runs the steps. Returns what was found, and whether bytes are lost or wrong.
async fn work(job: &Job, cluster: &mut Cluster) -> Result<(Report, bool), Failure> {
    let (files, bytes) = (&job.found.files, job.found.bytes());
    let nothing = Transfer::default();
    let mut clock = Clock::start();
    let client = match timeout(START_LIMIT, cluster.until_served(|_| {})).await {
        Ok(client) => client?,
        Err(_) => return Err(Failure::failed(format!("the cluster does not serve after {START_LIMIT:?}"))),
    };
    clock.lap("start", cluster, &nothing);

    let bar = progress::bytes("store", Some(bytes));
    let stored = transfer::store(&client, files, &bar).await;
    bar.finish_and_clear();
    clock.lap("store", cluster, &stored);

    for victim in &job.victims {
        clock.meter.before_kill(cluster, *victim);
        eprintln!("killing {victim} (process {})", cluster.pid(*victim).unwrap_or_default());
        cluster.kill(*victim).await;
    }
    clock.lap("kill", cluster, &nothing);

    let bar = progress::bytes("read back", Some(bytes));
    let compared = transfer::compare(&client, files, &bar).await;
    bar.finish_and_clear();
    clock.lap("read_back", cluster, &compared);

    for victim in &job.victims {
        cluster.start_process(*victim)?;
    }
    let members = until_settled(&client).await;
    clock.lap("in_sync", cluster, &nothing);

    let lost = compared.failed.iter().any(|failed| failed.lost);
    let matched = compared.objects == files.len() as u64 && job.found.errors.is_empty();
    let report = Report {
        profile: job.profile.to_string(),
        agents: job.agents,
        agent_bytes: job.sizes.agent_bytes,
        killed: job.victims.iter().map(ToString::to_string).collect(),
        objects: files.len() as u64,
        bytes,
        steps: clock.steps,
        objects_matched: compared.objects,
        bytes_matched: compared.bytes,
        unreadable: job.found.errors.clone(),
        not_stored: stored.failed.iter().map(Trouble::from).collect(),
        not_matched: compared.failed.iter().map(Trouble::from).collect(),
        in_sync: !members.is_empty() && members.iter().all(|state| *state == MemberState::InSync),
        members: members.iter().map(ToString::to_string).collect(),
        peak_memory_bytes: clock.meter.peak,
        matched,
    };
    Ok((report, lost))
}

/// Waits, not for ever, until every member is in sync or, in this version, out for good. Returns the states.
async fn until_settled(client: &Client) -> Vec<MemberState> {
    let mut states = Vec::new();
    let settled = async {
        loop {
            if let Ok(members) = client.array().members().await {
                states = members.iter().map(|member| member.state).collect();
                let settled = |state: &MemberState| matches!(state, MemberState::InSync | MemberState::Out);
                if members.iter().all(|member| member.connected) && states.iter().all(settled) {
                    return;
                }
            }
            sleep(IN_SYNC_POLL).await;
        }
    };
    if timeout(IN_SYNC_LIMIT, settled).await.is_err() {
        eprintln!("not all members are in sync after {IN_SYNC_LIMIT:?}");
    }
    states
}
