//! A peer: a container of podman on the same base image, with an overlay of its own above it. Its storage is a directory
//! of this run; it must leave nothing of the machine's own podman changed.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::Context as _;

use crate::harness::Side;

/// As podman runs on a plain Debian without a user session.
const RUN: [&str; 8] =
    ["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1000:1000", "--network", "none", "--user", "root"];
/// Before the command.
const GLOBAL: [&str; 4] = ["--runtime", "runc", "--cgroup-manager", "cgroupfs"];

/// One running container; removed when dropped.
pub(crate) struct Podman {
    scratch: PathBuf,
    run: PathBuf,
    version: String,
}

impl Podman {
    /// Starts a container that sleeps.
    pub(crate) fn start(base: &Path, scratch: &Path) -> anyhow::Result<Podman> {
        let scratch = scratch.join("podman");
        let run = PathBuf::from(format!("/dev/shm/remuda-bench-podman-{}", std::process::id()));
        for directory in [&scratch, &run] {
            fs::create_dir_all(directory).with_context(|| format!("cannot make {}", directory.display()))?;
        }
        let version = Command::new("podman").arg("--version").stdin(Stdio::null()).output();
        let version = version.context("cannot run podman: install the packages podman and runc")?;
        let version = String::from_utf8_lossy(&version.stdout).trim().to_owned();
        let podman = Podman { scratch, run, version };
        let root = format!("{}:O", base.display());
        let mut command = podman.command();
        command.args(["run", "--detach", "--name", "peer"]).args(RUN).args(["--rootfs", &root, "sleep", "infinity"]);
        podman.done(&mut command)?;
        podman.done(podman.command().args(["exec", "peer", "mkdir", "-p", "/workspace"]))?;
        Ok(podman)
    }

    /// Its version and flags.
    pub(crate) fn side(&self) -> Side {
        let flags = GLOBAL.iter().chain(&RUN).map(|flag| (*flag).to_owned()).chain(["--rootfs DIR:O".to_owned()]);
        Side { name: "podman".to_owned(), version: self.version.clone(), flags: flags.collect() }
    }

    /// What it is called where it can't run.
    pub(crate) fn unknown() -> Side {
        Side { name: "podman".to_owned(), version: "unknown".to_owned(), flags: Vec::new() }
    }

    /// `podman exec`, waited for.
    pub(crate) fn exec(&self, argv: &[&str]) -> anyhow::Result<String> {
        self.done(self.command().args(["exec", "peer"]).args(argv))
    }

    /// `podman cp`, with a file as its standard input or output where one is given.
    pub(crate) fn cp(&self, from: &str, to: &str, input: Option<File>, output: Option<File>) -> anyhow::Result<()> {
        let mut command = self.command();
        command.args(["cp", from, to]).stderr(Stdio::piped());
        command.stdin(input.map_or_else(Stdio::null, Stdio::from)).stdout(output.map_or_else(Stdio::null, Stdio::from));
        let output = command.spawn().context("cannot run podman")?.wait_with_output()?;
        anyhow::ensure!(
            output.status.success(),
            "`podman cp` failed: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
        Ok(())
    }

    fn command(&self) -> Command {
        let mut command = Command::new("podman");
        command.arg("--root").arg(self.scratch.join("root")).arg("--runroot").arg(&self.run).args(GLOBAL);
        command.stdin(Stdio::null());
        command
    }

    fn done(&self, command: &mut Command) -> anyhow::Result<String> {
        // Into files: what stays behind of a container would hold a pipe open.
        let (told, wrong) = (self.scratch.join("stdout"), self.scratch.join("stderr"));
        let status = command.stdout(File::create(&told)?).stderr(File::create(&wrong)?).status();
        let status = status.context("cannot run podman: install the packages podman and runc")?;
        let wrong = fs::read_to_string(&wrong).unwrap_or_default();
        anyhow::ensure!(status.success(), "podman failed: {}", wrong.trim());
        Ok(fs::read_to_string(&told)?)
    }
}

impl Drop for Podman {
    fn drop(&mut self) {
        if let Err(e) = self.done(self.command().args(["rm", "--force", "--time", "0", "peer"])) {
            eprintln!("bench: {e:#}");
        }
        let _ = fs::remove_dir_all(&self.run);
    }
}
