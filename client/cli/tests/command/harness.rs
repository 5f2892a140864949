//! Runs the real binary: once, or as a cluster that ends with the test.

use std::{
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, BufReader},
    process::{Child, ChildStdout, Command},
    time::{Instant, sleep, timeout},
};

/// Longest wait for anything. Generous: the machine may be busy.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// How a command ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ended {
    /// Panics, with all there is to know, unless the exit code is this.
    pub(crate) fn expect(self, code: i32) -> Ended {
        assert_eq!(self.code, code, "{self:#?}");
        self
    }

    /// Standard output as one JSON document.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:#?}"))
    }
}

/// The binary, with nothing of the environment that would change what it does, and a death that takes it along.
pub(crate) fn stripeset() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_stripeset"));
    command
        .env_remove("STRIPESET_ENDPOINT")
        .env_remove("STRIPESET_LOG")
        .stdin(Stdio::null())
        .kill_on_drop(true);
    command
}

/// Runs a command to its end.
pub(crate) async fn end(mut command: Command) -> Ended {
    let output = timeout(LIMIT, command.output()).await.expect("the command ends").unwrap();
    Ended {
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// Runs `stripeset` with these arguments and no cluster to talk to.
pub(crate) async fn run<S: AsRef<OsStr>>(arguments: &[S]) -> Ended {
    let mut command = stripeset();
    command.args(arguments);
    end(command).await
}

/// Polls until `condition` is true.
pub(crate) async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !condition().await {
        assert!(Instant::now() < deadline, "not within {LIMIT:?}: {what}");
        sleep(Duration::from_millis(20)).await;
    }
}

/// Whether a process runs; one that has ended and was not waited for does not.
pub(crate) fn runs(pid: i32) -> bool {
    match fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(stat) => !stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('Z')),
        Err(_) => false,
    }
}

pub(crate) fn signal(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
}

/// A number from the environment, with which a test does more than its share.
pub(crate) fn setting(name: &str, otherwise: u64) -> u64 {
    std::env::var(name)
        .map_or(otherwise, |value| value.parse().unwrap_or_else(|_| panic!("{name}={value}: no number")))
}

/// Numbers at random, the same for the same seed.
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Dice {
        Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

/// A folder for one test, and a running `stripeset dev` in it.
pub(crate) struct Dev {
    /// Before the folder, so that it is dropped before that is gone.
    logs: LogsOnFailure,
    pub(crate) place: TempDir,
    pub(crate) endpoint: String,
    child: Child,
    stdout: BufReader<ChildStdout>,
}

impl Dev {
    /// Three agents with small disks.
    pub(crate) async fn start() -> Dev {
        Dev::start_with(TempDir::new().unwrap(), &["--agents", "3", "--agent-size", "256MiB"]).await
    }

    pub(crate) async fn start_with(place: TempDir, arguments: &[&str]) -> Dev {
        let mut command = stripeset();
        command.arg("dev").arg("--dir").arg(place.path().join("d")).args(arguments);
        if !arguments.contains(&"--listen") {
            command.args(["--listen", "127.0.0.1:0"]);
        }
        let stderr = fs::File::options().create(true).append(true).open(place.path().join("stderr")).unwrap();
        let mut child = command.stdout(Stdio::piped()).stderr(stderr).spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let logs = LogsOnFailure(place.path().join("d"));
        let mut dev = Dev { logs, place, endpoint: String::new(), child, stdout };
        loop {
            let mut line = String::new();
            let read = timeout(LIMIT, dev.stdout.read_line(&mut line)).await.expect("ready in time").unwrap();
            assert!(read > 0, "dev ended before it was ready: {}", dev.stderr());
            match line.trim_end().split_once(' ') {
                Some(("endpoint", url)) => dev.endpoint = url.to_owned(),
                None if line == "ready\n" => return dev,
                _ => {}
            }
        }
    }

    pub(crate) fn dir(&self) -> PathBuf {
        self.place.path().join("d")
    }

    /// A path in the test's own folder.
    pub(crate) fn path(&self, name: &str) -> String {
        self.place.path().join(name).to_str().unwrap().to_owned()
    }

    /// What dev has said so far.
    pub(crate) fn stderr(&self) -> String {
        fs::read_to_string(self.place.path().join("stderr")).unwrap()
    }

    /// A command that talks to this cluster.
    pub(crate) fn command<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Command {
        let mut command = stripeset();
        command.env("STRIPESET_ENDPOINT", &self.endpoint).args(arguments);
        command
    }

    pub(crate) async fn run<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Ended {
        end(self.command(arguments)).await
    }

    /// Runs a command with JSON output, which must succeed.
    pub(crate) async fn json(&self, arguments: &[&str]) -> Value {
        self.run(&[arguments, &["--output", "json"]].concat()).await.expect(0).json()
    }

    pub(crate) fn pid(&self) -> i32 {
        self.child.id().unwrap().try_into().unwrap()
    }

    /// Number of a process of the cluster: `agents/2`, `coordinator`.
    pub(crate) fn pid_of(&self, process: &str) -> i32 {
        pid_in(&self.dir().join(process))
    }

    /// Numbers of all processes of the cluster.
    pub(crate) fn pids(&self) -> Vec<i32> {
        let agents = fs::read_dir(self.dir().join("agents")).unwrap();
        let mut pids: Vec<i32> = agents.map(|agent| pid_in(&agent.unwrap().path())).collect();
        pids.push(self.pid_of("coordinator"));
        pids
    }

    /// Kills an agent or the coordinator as a power cut would, and waits until dev has seen it.
    pub(crate) async fn kill(&self, process: &str) {
        signal(self.pid_of(process), Signal::KILL);
        let pid_file = self.dir().join(process).join("pid");
        until("dev notices", async || !pid_file.exists()).await;
    }

    /// Sends dev a signal and waits for its end. Returns its exit code, none if the signal ended it, and the folder.
    pub(crate) async fn end(mut self, with: Signal) -> (Option<i32>, TempDir) {
        signal(self.pid(), with);
        let mut rest = Vec::new();
        timeout(LIMIT, self.stdout.read_to_end(&mut rest)).await.expect("dev closes its output").unwrap();
        let status = timeout(LIMIT, self.child.wait()).await.expect("dev ends").unwrap();
        drop(self.logs);
        (status.code(), self.place)
    }
}

/// Shows what the processes of a cluster said last if the test fails: what went wrong stands there.
struct LogsOnFailure(PathBuf);

impl Drop for LogsOnFailure {
    fn drop(&mut self) {
        const LINES: usize = 20;
        if !std::thread::panicking() {
            return;
        }
        let agents = fs::read_dir(self.0.join("agents")).into_iter().flatten().flatten();
        let processes = agents.map(|agent| agent.path()).chain([self.0.join("coordinator")]);
        for log in processes.map(|process| process.join("log")) {
            let said = fs::read_to_string(&log).unwrap_or_default();
            let lines: Vec<&str> = said.lines().collect();
            let last = lines[lines.len().saturating_sub(LINES)..].join("\n");
            eprintln!("--- {}\n{last}", log.display());
        }
    }
}

fn pid_in(folder: &Path) -> i32 {
    fs::read_to_string(folder.join("pid")).unwrap().trim().parse().unwrap()
}

/// Names of the fields of a JSON object, in order.
pub(crate) fn fields(value: &Value) -> Vec<&str> {
    let mut fields: Vec<&str> = value.as_object().unwrap().keys().map(String::as_str).collect();
    fields.sort_unstable();
    fields
}

/// Bytes in which no two sectors are alike.
pub(crate) fn bytes(length: usize) -> Vec<u8> {
    (0..length as u64).map(|n| (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u8).collect()
}
