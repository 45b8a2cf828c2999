//! What all benchmarks share: paths, the installed engine, a scratch directory that is removed at the end, a runtime.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::Context as _;
use rustix::mount::{MountPropagationFlags, mount_change};
use rustix::thread::{UnshareFlags, unshare_unsafe};

/// Where a run happens.
pub(crate) struct World {
    /// The workspace.
    pub project: PathBuf,
    /// Cargo's target directory.
    pub target: PathBuf,
    /// The release build of `remuda`.
    pub remuda: PathBuf,
    /// runsc and base image of the bare side, or why there are none.
    pub installed: Result<Installed, String>,
    /// A directory of this run, on the disk that temporary files go to.
    pub scratch: PathBuf,
    /// For the client.
    pub runtime: tokio::runtime::Runtime,
}

/// What `remuda setup` has placed on this machine, which both sides use.
#[derive(Clone)]
pub(crate) struct Installed {
    /// The runsc binary.
    pub runsc: PathBuf,
    /// The base image's root.
    pub base: PathBuf,
}

impl World {
    /// Finds everything; a missing engine is kept as a reason and told in the figures.
    pub(crate) fn new(project: &Path, runsc: Option<&Path>, base: Option<&Path>) -> anyhow::Result<World> {
        let program = std::env::current_exe().context("cannot tell where this program is")?;
        // target/release/remuda-bench
        let target = program.ancestors().nth(2).context("this program is not in cargo's target directory")?.to_owned();
        let remuda = target.join("release/remuda");
        let installed = match (runsc, base) {
            (Some(runsc), Some(base)) => Ok(Installed { runsc: runsc.to_owned(), base: base.to_owned() }),
            _ => installed(&remuda).map_err(|e| format!("{e:#}")),
        };
        let scratch = std::env::temp_dir().join(format!("remuda-bench-{}", std::process::id()));
        fs::create_dir_all(&scratch).with_context(|| format!("cannot make {}", scratch.display()))?;
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        Ok(World { project: project.to_owned(), target, remuda, installed, scratch, runtime })
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if let Err(e) = fs::remove_dir_all(&self.scratch) {
            eprintln!("bench: cannot remove {}: {e}", self.scratch.display());
        }
    }
}

/// Sets the machine up, if it isn't, and asks `remuda` itself where it has put what both sides use.
fn installed(remuda: &Path) -> anyhow::Result<Installed> {
    let output = Command::new(remuda)
        .args(["setup", "--json"])
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot run {}", remuda.display()))?;
    let told: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    anyhow::ensure!(
        output.status.success(),
        "`remuda setup` could not make the machine ready: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    let path = |pointer: &str| {
        let text = told.pointer(pointer).and_then(serde_json::Value::as_str);
        text.map(PathBuf::from).with_context(|| format!("`remuda setup --json` tells no {pointer}"))
    };
    Ok(Installed { runsc: path("/runsc/path")?, base: path("/base/path")? })
}

/// Gives this process a mount table of its own. Must be called before any thread is started.
pub(crate) fn leave_the_hosts_mounts() -> anyhow::Result<()> {
    // SAFETY: the process has one thread; only its mount namespace changes, no descriptor table.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS) }
        .context("cannot leave the host's mount namespace: benchmarks need root")?;
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .context("cannot make mounts private")?;
    Ok(())
}
