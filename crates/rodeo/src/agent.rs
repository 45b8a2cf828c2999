//! One attempt's agent: a command of the user's, run on this machine, that works on a branch of its own through the
//! provider's API. Its exit code and its words decide nothing; it is ended with everything it started in its group.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use serde::{Deserialize, Serialize};
use tokio::io::unix::AsyncFd;
use tokio::process::{Child, Command};

/// Variables of whoever runs the harness that an agent must not have: they open more than its branch.
const NOT_THE_AGENTS: [&str; 4] = ["REMUDA_API_KEY", "REMUDA_URL", "REMUDA_DATA_DIR", "REMUDA_CACHE_DIR"];

/// How an agent ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AgentEnd {
    /// Its exit code; absent where a signal ended it.
    pub exit_code: Option<i32>,
    /// Whether its time was over.
    pub timed_out: bool,
    /// How long it worked, in milliseconds.
    pub took_ms: u64,
}

impl std::fmt::Display for AgentEnd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let after = format!("after {}.{:01} s", self.took_ms / 1_000, self.took_ms % 1_000 / 100);
        match (self.timed_out, self.exit_code) {
            (true, _) => write!(f, "was ended {after}, its time being over"),
            (false, Some(code)) => write!(f, "ended with {code} {after}"),
            (false, None) => write!(f, "was ended by a signal {after}"),
        }
    }
}

/// Runs `command` with `sh -c` where this program runs, with a folder of its own in `RODEO_WORK`, its output in a file that only this user can read: what an agent
/// says may hold credentials.
pub(crate) async fn run(
    command: &str,
    env: &BTreeMap<String, String>,
    folder: &Path,
    output: &Path,
    time_limit: Duration,
) -> io::Result<AgentEnd> {
    let began = Instant::now();
    fs::create_dir_all(folder)?;
    // The command line that the agent was started by is there for it, after what its user has.
    let own = std::env::current_exe()?;
    let mut path = std::env::var_os("PATH").unwrap_or_default();
    if let Some(programs) = own.parent() {
        path.push(":");
        path.push(programs);
    }
    let log = OpenOptions::new().create_new(true).write(true).mode(0o600).open(output)?;
    let mut process = Command::new("sh");
    process.args(["-c", command]).stdin(Stdio::null()).process_group(0);
    process.stdout(log.try_clone()?).stderr(log);
    process.env("PATH", path).env("RODEO_WORK", folder);
    for name in NOT_THE_AGENTS {
        process.env_remove(name);
    }
    let mut group = Group(process.envs(env).spawn()?);
    let timed_out =
        tokio::time::timeout(time_limit, group.leader_ended()).await.map_or(Ok(true), |ended| ended.map(|()| false))?;
    // Also what it left running: it works for nobody any more.
    group.kill();
    let status = group.0.wait().await?;
    let exit_code = status.code().filter(|_| !timed_out);
    let took_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
    Ok(AgentEnd { exit_code, timed_out, took_ms })
}

/// A process and its group, which ends with this value: also where the run is interrupted.
struct Group(Child);

impl Group {
    /// Waits for the leader's end and leaves it a zombie: until somebody reaps it, its number is nobody else's.
    async fn leader_ended(&self) -> io::Result<()> {
        let Some(pid) = self.pid() else { return Ok(()) };
        let pidfd: OwnedFd = pidfd_open(pid, PidfdFlags::empty())?;
        // SAFETY: an owned descriptor is open, and the same one, for as long as it is owned, which is to the end here.
        let end = unsafe { AsyncFd::register_with_interest(pidfd, tokio::io::Interest::READABLE) }?;
        end.readable().await.map(drop)
    }

    fn pid(&self) -> Option<Pid> {
        self.0.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw)
    }

    fn kill(&self) {
        if let Some(pid) = self.pid() {
            let _ = kill_process_group(pid, Signal::KILL);
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Where an attempt's agent works, and where its output goes: beside the bundle, which holds no credentials.
pub(crate) fn places(bundle: &Path, name: &str) -> (PathBuf, PathBuf) {
    let beside = |suffix: &str| {
        let mut file = bundle.file_name().unwrap_or_default().to_owned();
        file.push(format!(".{name}{suffix}"));
        bundle.with_file_name(file)
    };
    (beside(".work"), beside(".log"))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Ran {
        end: AgentEnd,
        said: String,
        _folder: tempfile::TempDir,
    }

    async fn ran(command: &str, limit: Duration) -> Ran {
        let folder = tempfile::tempdir().unwrap();
        let (work, log) = places(&folder.path().join("bundle"), "a1");
        let env = BTreeMap::from([("REMUDA_SANDBOX".to_owned(), "c1@x".to_owned())]);
        let end = run(command, &env, &work, &log, limit).await.unwrap();
        use std::os::unix::fs::MetadataExt as _;
        assert_eq!(fs::metadata(&log).unwrap().mode() & 0o777, 0o600);
        Ran { end, said: fs::read_to_string(&log).unwrap(), _folder: folder }
    }

    const LONG: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn an_agent_knows_its_branch_and_ends_with_its_code() {
        let ran = ran("echo $REMUDA_SANDBOX; echo wrong >&2; cd $RODEO_WORK; pwd; exit 7", LONG).await;
        assert_eq!((ran.end.exit_code, ran.end.timed_out), (Some(7), false));
        assert!(
            ran.said.starts_with("c1@x\nwrong\n") && ran.said.trim_end().ends_with("bundle.a1.work"),
            "{}",
            ran.said
        );
    }

    #[tokio::test]
    async fn what_an_agent_leaves_running_ends_with_it() {
        let ran = ran("sleep 1000 & echo $!", LONG).await;
        assert_eq!(ran.end.exit_code, Some(0));
        ended(&ran.said).await;
    }

    #[tokio::test]
    async fn an_agent_whose_time_is_over_ends_with_all_it_started() {
        let ran =
            ran("sleep 1000 & echo $!; trap '' TERM; while :; do sleep 1; done", Duration::from_millis(700)).await;
        assert_eq!((ran.end.exit_code, ran.end.timed_out), (None, true));
        ended(&ran.said).await;
    }

    /// Whoever was adopted is reaped by another, in its own time; a zombie does nothing more.
    async fn ended(pid: &str) {
        let stat = format!("/proc/{}/stat", pid.trim());
        while fs::read_to_string(&stat).is_ok_and(|text| !text.contains(") Z")) {
            tokio::task::yield_now().await;
        }
    }
}
