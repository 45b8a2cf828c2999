//! The peer: sandboxes made with the bare `runsc` command line, as somebody would who has no Remuda. Roots, specs and
//! namespaces are made ahead; only runsc's own work, and the freeze that both sides need, is timed.

mod launch;
mod namespace;

use std::fs::{self, File};
use std::io::Read as _;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde_json::json;

pub(crate) use namespace::Network;

/// runsc's flags: the ones Remuda uses, without cgroups, which only makes the peer faster.
const FLAGS: [&str; 5] =
    ["--platform=systrap", "--network=sandbox", "--net-disconnect-ok", "--overlay2=none", "--ignore-cgroups"];

/// The bare command line with a directory for its uppers and images, and one on tmpfs for runsc's state.
pub(crate) struct Bare {
    runsc: PathBuf,
    base: PathBuf,
    scratch: PathBuf,
    state: PathBuf,
    made: AtomicU32,
}

impl Bare {
    /// Works in `scratch` (a disk that overlayfs can use) and in a directory of its own under `/dev/shm`.
    pub(crate) fn new(runsc: &Path, base: &Path, scratch: &Path) -> anyhow::Result<Bare> {
        let state = PathBuf::from(format!("/dev/shm/remuda-bench-{}", std::process::id()));
        for directory in [scratch, &state] {
            fs::create_dir_all(directory).with_context(|| format!("cannot make {}", directory.display()))?;
        }
        Ok(Bare {
            runsc: runsc.to_owned(),
            base: base.to_owned(),
            scratch: scratch.to_owned(),
            state,
            made: AtomicU32::new(0),
        })
    }

    /// What `runsc --version` says, with its flags.
    pub(crate) fn side(&self) -> crate::harness::Side {
        let output = Command::new(&self.runsc).arg("--version").stdin(Stdio::null()).output();
        let version = match output {
            Ok(o) if o.status.success() => String::from_utf8_lossy(&o.stdout).lines().next().unwrap_or("").to_owned(),
            _ => "does not tell its version".to_owned(),
        };
        crate::harness::Side {
            name: "bare runsc".to_owned(),
            version,
            flags: FLAGS.iter().map(|f| (*f).to_owned()).collect(),
        }
    }

    /// Prepares a sandbox, untimed: namespaces, directories and spec. Its root is mounted by [`Sandbox::mount`].
    pub(crate) fn prepare(&self, program: &Program) -> anyhow::Result<Sandbox<'_>> {
        // Ids of one length: runsc resolves prefixes.
        let id = format!("bare-{:06}", self.made.fetch_add(1, Ordering::Relaxed));
        let directory = self.scratch.join(&id);
        for part in ["upper", "work", "root", "bundle"] {
            fs::create_dir_all(directory.join(part))?;
        }
        let network = Network::new()?;
        let spec = json!({
            "ociVersion": "1.0.0",
            "process": {
                "user": {"uid": 0, "gid": 0},
                "args": program.argv,
                "env": program.env,
                "cwd": program.cwd,
            },
            "root": {"path": directory.join("root")},
            "hostname": "bare",
            "mounts": [
                {"destination": "/proc", "type": "proc", "source": "proc"},
                {"destination": "/dev", "type": "tmpfs", "source": "tmpfs"},
                {"destination": "/tmp", "type": "tmpfs", "source": "tmpfs"},
                {"destination": "/run", "type": "tmpfs", "source": "tmpfs"},
            ],
            "linux": {"namespaces": [
                {"type": "pid"}, {"type": "ipc"}, {"type": "uts"}, {"type": "mount"},
                {"type": "network", "path": network.inner_path()},
            ]},
        });
        fs::write(directory.join("bundle/config.json"), serde_json::to_vec(&spec)?)?;
        Ok(Sandbox { bare: self, id, directory, network, mounted: false })
    }

    /// The directory for its uppers and images.
    pub(crate) fn scratch(&self) -> &Path {
        &self.scratch
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.runsc);
        command.arg(format!("--root={}", self.state.display())).args(FLAGS);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        command
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.state);
    }
}

/// What a sandbox's PID 1 is.
pub(crate) struct Program {
    argv: Vec<String>,
    env: Vec<String>,
    cwd: String,
}

impl Program {
    /// A program with its arguments, started in a directory, with `PATH` and these variables in its environment.
    pub(crate) fn new(argv: &[&str], cwd: &str, env: &[(&str, &str)]) -> Program {
        let path = [("PATH", "/usr/local/bin:/usr/bin:/bin")];
        Program {
            argv: argv.iter().map(|a| (*a).to_owned()).collect(),
            env: path.iter().chain(env).map(|(k, v)| format!("{k}={v}")).collect(),
            cwd: cwd.to_owned(),
        }
    }
}

/// One bare sandbox; ended and removed when dropped.
pub(crate) struct Sandbox<'a> {
    bare: &'a Bare,
    id: String,
    directory: PathBuf,
    network: Network,
    mounted: bool,
}

impl Sandbox<'_> {
    /// Its namespaces, for asking it something over HTTP.
    pub(crate) fn network(&self) -> &Network {
        &self.network
    }

    /// The root as the host sees it; files put here before the start land in the upper.
    pub(crate) fn root(&self) -> PathBuf {
        self.directory.join("root")
    }

    /// Mounts its root: the base, optionally a frozen layer above it, and a private upper.
    pub(crate) fn mount(&mut self, layer: Option<&Path>) -> anyhow::Result<()> {
        let layer = layer.map_or_else(String::new, |l| format!("{}:", l.display()));
        let options = format!(
            "lowerdir={layer}{},upperdir={d}/upper,workdir={d}/work,index=off,redirect_dir=nofollow,metacopy=off",
            self.bare.base.display(),
            d = self.directory.display()
        );
        let options = std::ffi::CString::new(options)?;
        mount(c"overlay", self.root(), c"overlay", MountFlags::NODEV, options.as_c_str())
            .with_context(|| format!("cannot mount the root of {}", self.id))?;
        self.mounted = true;
        Ok(())
    }

    /// `runsc run --detach`.
    pub(crate) fn run_detached(&self) -> anyhow::Result<()> {
        self.start(&["run", "--detach"])
    }

    /// `runsc restore --detach` from an image.
    pub(crate) fn restore(&self, image: &Path) -> anyhow::Result<()> {
        self.start(&["restore", "--detach", &format!("--image-path={}", image.display())])
    }

    fn start(&self, arguments: &[&str]) -> anyhow::Result<()> {
        let mut command = self.bare.command();
        command
            .args(arguments)
            .arg(format!("--bundle={}", self.directory.join("bundle").display()))
            .arg(format!("--pid-file={}", self.pid_file().display()))
            .arg(&self.id)
            // The sandbox keeps this descriptor: a pipe would stay open as long as it lives.
            .stderr(File::create(self.directory.join("stderr"))?);
        launch::enter_network_for_runsc(&mut command, self.network.inner());
        let status = command.status().context("cannot start runsc")?;
        if !status.success() {
            let told = fs::read_to_string(self.directory.join("stderr")).unwrap_or_default();
            anyhow::bail!("`runsc {}` failed: {}", arguments.join(" "), told.trim());
        }
        Ok(())
    }

    /// `runsc run` in the foreground until the guest's first byte of output: the time to it. The guest must end by
    /// itself.
    pub(crate) fn run_to_first_output(&self) -> anyhow::Result<Duration> {
        let mut command = self.bare.command();
        command.arg("run").arg(format!("--bundle={}", self.directory.join("bundle").display())).arg(&self.id);
        command.stdout(Stdio::piped()).stderr(File::create(self.directory.join("stderr"))?);
        launch::enter_network_for_runsc(&mut command, self.network.inner());
        let began = Instant::now();
        let mut child = command.spawn().context("cannot start runsc")?;
        let mut first = [0];
        let read = child.stdout.as_mut().map_or(Ok(0), |out| out.read(&mut first));
        let took = began.elapsed();
        let status = child.wait()?;
        if read? == 0 || !status.success() {
            let told = fs::read_to_string(self.directory.join("stderr")).unwrap_or_default();
            anyhow::bail!("`runsc run` gave no output: {}", told.trim());
        }
        Ok(took)
    }

    /// `runsc exec`, waited for.
    pub(crate) fn exec(&self, argv: &[&str]) -> anyhow::Result<()> {
        self.call(&["exec"], argv)
    }

    /// `runsc exec`, waited for, with its output in a file.
    pub(crate) fn exec_into(&self, argv: &[&str], file: &Path) -> anyhow::Result<()> {
        let mut command = self.bare.command();
        let output = command.arg("exec").arg(&self.id).args(argv).stdout(File::create(file)?).output()?;
        let wrong = String::from_utf8_lossy(&output.stderr);
        anyhow::ensure!(output.status.success(), "`runsc exec` failed: {}", wrong.trim());
        Ok(())
    }

    /// `runsc pause`.
    pub(crate) fn pause(&self) -> anyhow::Result<()> {
        self.call(&["pause"], &[])
    }

    /// `runsc resume`.
    pub(crate) fn resume(&self) -> anyhow::Result<()> {
        self.call(&["resume"], &[])
    }

    /// `runsc checkpoint --leave-running` into a directory; of a paused sandbox, it stays paused.
    pub(crate) fn checkpoint(&self, image: &Path) -> anyhow::Result<()> {
        let image = format!("--image-path={}", image.display());
        self.call(&["checkpoint", "--leave-running", "--compression=none", &image], &[])
    }

    /// Copies its upper into a new directory, as root and with everything that `cp -a` keeps.
    pub(crate) fn freeze(&self, layer: &Path) -> anyhow::Result<()> {
        let upper = self.directory.join("upper");
        let output = Command::new("cp").arg("-a").arg(upper).arg(layer).stdin(Stdio::null()).output()?;
        anyhow::ensure!(output.status.success(), "`cp -a` failed: {}", String::from_utf8_lossy(&output.stderr).trim());
        Ok(())
    }

    fn call(&self, arguments: &[&str], rest: &[&str]) -> anyhow::Result<()> {
        let output = self.bare.command().args(arguments).arg(&self.id).args(rest).output()?;
        anyhow::ensure!(
            output.status.success(),
            "`runsc {}` failed: {}",
            arguments.join(" "),
            String::from_utf8_lossy(&output.stderr).trim()
        );
        Ok(())
    }

    fn pid_file(&self) -> PathBuf {
        self.directory.join("pid")
    }

    /// Kills the sandbox, if it was started, and waits until the kernel says that it is gone.
    fn end(&self) -> anyhow::Result<()> {
        let Ok(text) = fs::read_to_string(self.pid_file()) else { return Ok(()) };
        let pid = text.trim().parse().ok().and_then(Pid::from_raw).context("runsc wrote no pid")?;
        let process = match pidfd_open(pid, PidfdFlags::empty()) {
            Err(rustix::io::Errno::SRCH) => return Ok(()),
            opened => opened?,
        };
        // Only what is ours: its arguments name runsc's state directory.
        let arguments = fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).unwrap_or_default();
        let ours = self.bare.state.display().to_string();
        anyhow::ensure!(
            String::from_utf8_lossy(&arguments).contains(&ours),
            "process {} is not the sandbox that runsc wrote down",
            pid.as_raw_nonzero()
        );
        pidfd_send_signal(&process, Signal::KILL)?;
        let limit = rustix::event::Timespec { tv_sec: 10, tv_nsec: 0 };
        let gone = poll(&mut [PollFd::from_borrowed_fd(process.as_fd(), PollFlags::IN)], Some(&limit))?;
        anyhow::ensure!(gone == 1, "sandbox {} did not die within 10 s of SIGKILL", self.id);
        Ok(())
    }
}

impl Drop for Sandbox<'_> {
    fn drop(&mut self) {
        if let Err(e) = self.end() {
            eprintln!("bench: {e:#}");
        }
        if self.mounted {
            // Detached, since the gofer may hold it a moment longer than the sandbox.
            let _ = unmount(self.root(), UnmountFlags::DETACH);
        }
        let _ = fs::remove_dir_all(&self.directory);
        let Ok(states) = fs::read_dir(&self.bare.state) else { return };
        for state in states.flatten().filter(|s| s.file_name().to_string_lossy().contains(&self.id)) {
            let _ = fs::remove_file(state.path());
        }
    }
}
