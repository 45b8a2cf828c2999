//! `workload.toml` as it is written, and what it must hold. Knows no files but the names in it.

use std::collections::{BTreeMap, BTreeSet};

use remuda_types::SnapshotMode;
use serde::Deserialize;

use super::WorkloadError;
use crate::verdict::Verdict;

/// Name of the file in a workload's folder.
pub const MANIFEST_FILE: &str = "workload.toml";
/// Jobs that one run may submit.
pub const JOBS_MAX: u32 = 10_000;
/// Patches of one workload.
pub const PATCHES_MAX: usize = 100;

/// A workload's description.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Its name: letters, digits and `-`.
    pub name: String,
    /// One sentence for people.
    #[serde(default)]
    pub about: String,
    /// Steps that make a fresh sandbox into the prepared one, in order.
    #[serde(default)]
    pub prepare: Vec<Prepare>,
    /// What is launched after them.
    pub start: Start,
    /// The outside check.
    pub check: Check,
    /// When the source is captured.
    pub checkpoint: Checkpoint,
    /// Where a patch goes and is read.
    pub reload: Reload,
    /// The fault that is known to be there.
    pub fault: Fault,
    /// What the unpatched twin must show. Without it no patch is tried; its absence is told by `validate`.
    pub baseline: Option<Baseline>,
    /// The patches. Those with known answers are the controls.
    #[serde(default)]
    pub patches: Vec<Patch>,
    /// The last control, in the source after its worker was launched again.
    pub cold_control: Option<ColdControl>,
}

/// One step of the preparation.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(try_from = "PrepareToml")]
pub enum Prepare {
    /// Puts a file or folder of the workload into the guest.
    Put(Put),
    /// Runs a command in the guest; it must exit with 0.
    Run(Run),
}

/// How a step is recorded.
impl std::fmt::Display for Prepare {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Prepare::Put(put) => write!(f, "put {} to {}", put.put, put.to),
            Prepare::Run(run) => write!(f, "run {:?}", run.run),
        }
    }
}

/// See [`Prepare::Put`].
#[derive(Debug, Clone, PartialEq)]
pub struct Put {
    /// File or folder in the workload.
    pub put: String,
    /// Absolute path in the guest.
    pub to: String,
}

/// See [`Prepare::Run`].
#[derive(Debug, Clone, PartialEq)]
pub struct Run {
    /// Program and arguments.
    pub run: Vec<String>,
    /// Working directory; the guest's default when absent.
    pub cwd: Option<String>,
    /// Environment variables.
    pub env: BTreeMap<String, String>,
    /// Time limit in milliseconds; two minutes when absent.
    pub timeout_ms: u64,
}

/// A step as it is written: one table for both kinds, so that a misspelt key is told by its name.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PrepareToml {
    put: Option<String>,
    to: Option<String>,
    run: Option<Vec<String>>,
    cwd: Option<String>,
    env: Option<BTreeMap<String, String>>,
    timeout_ms: Option<u64>,
}

impl TryFrom<PrepareToml> for Prepare {
    type Error = &'static str;

    fn try_from(step: PrepareToml) -> Result<Self, Self::Error> {
        match step {
            PrepareToml { put: Some(put), to: Some(to), run: None, cwd: None, env: None, timeout_ms: None } => {
                Ok(Prepare::Put(Put { put, to }))
            }
            PrepareToml { put: None, to: None, run: Some(run), cwd, env, timeout_ms } => Ok(Prepare::Run(Run {
                run,
                cwd,
                env: env.unwrap_or_default(),
                timeout_ms: timeout_ms.unwrap_or(RUN_TIMEOUT_MS),
            })),
            _ => Err(
                "a [[prepare]] step has either `put` and `to`, or `run` with `cwd`, `env` and `timeout_ms` where needed",
            ),
        }
    }
}

/// Time limit of a prepare step's command, in milliseconds.
const RUN_TIMEOUT_MS: u64 = 120_000;

/// What is launched, and how to tell that it serves.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Start {
    /// Program and arguments.
    pub argv: Vec<String>,
    /// Working directory, absolute.
    pub cwd: String,
    /// Environment variables.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Environment variable that carries the id of the preparation.
    pub preparation_env: String,
    /// Port it listens on.
    pub port: u16,
    /// Path that answers 200 once it serves.
    pub ready_path: String,
    /// How long that may take, in milliseconds.
    #[serde(default = "ready_timeout_ms")]
    pub ready_timeout_ms: u64,
}

fn ready_timeout_ms() -> u64 {
    30_000
}

/// The outside check.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Check {
    /// Which check.
    pub kind: CheckKind,
    /// Jobs to submit.
    pub jobs: u32,
    /// How many of them are free of charge.
    pub free_jobs: u32,
    /// Seed of the jobs unless the run gives another.
    pub seed: u64,
}

/// The outside checks there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CheckKind {
    /// Submits jobs over HTTP and compares receipts with a ledger of its own.
    Receipts,
}

/// When the source is captured.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Checkpoint {
    /// Jobs that must be pending, in the source and in every branch.
    pub pending: u64,
}

/// The declared reload point.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reload {
    /// The file that the program reads at its release and not before; an absolute path in the guest.
    pub file: String,
}

/// The known fault.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// What it is, for people.
    pub about: String,
    /// What it loses.
    pub loses: Loses,
}

/// What a known fault loses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Loses {
    /// The receipts of jobs that are free of charge.
    FreeJobs,
}

/// What the unpatched twin must show.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Baseline {
    /// Its verdict.
    pub verdict: Verdict,
}

/// A patch.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Patch {
    /// Its name: letters, digits and `-`.
    pub name: String,
    /// The file that takes the place of `reload.file`.
    pub file: String,
    /// Its verdict by mode, where it is known beforehand: that makes the patch a control.
    pub known: Option<Known>,
}

impl Patch {
    /// Its known verdict after a fork in this mode; `None` where the patch is no control.
    pub fn known_in(&self, mode: SnapshotMode) -> Option<Verdict> {
        self.known.as_ref().map(|known| known.in_mode(mode))
    }
}

/// The known verdict of a patch, by the mode of the fork.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Known {
    /// After a memory fork.
    pub memory: Verdict,
    /// After a filesystem fork.
    pub filesystem: Verdict,
}

impl Known {
    /// The one for this mode.
    pub fn in_mode(&self, mode: SnapshotMode) -> Verdict {
        match mode {
            SnapshotMode::Memory => self.memory,
            SnapshotMode::Filesystem => self.filesystem,
        }
    }
}

/// The last control.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ColdControl {
    /// Which patch is applied.
    pub patch: String,
    /// Its verdict.
    pub verdict: Verdict,
}

impl Manifest {
    /// How launching the program is recorded, and waiting until it serves.
    pub(crate) fn launch_texts(&self) -> [String; 2] {
        [format!("launch {:?}", self.start.argv), format!("wait until {} answers 200", self.start.ready_path)]
    }

    /// Reads the text of the manifest called `file` in errors.
    ///
    /// # Errors
    /// [`WorkloadError`] naming the file, the key and the remedy.
    pub fn parse(file: &str, text: &str) -> Result<Manifest, WorkloadError> {
        let manifest: Manifest = toml::from_str(text).map_err(|cause| WorkloadError::Syntax {
            file: file.to_owned(),
            cause: cause.to_string().trim_end().to_owned(),
        })?;
        manifest.validate(file)?;
        Ok(manifest)
    }

    fn validate(&self, file: &str) -> Result<(), WorkloadError> {
        let wrong = |key: &str, problem: String, remedy: &str| {
            Err(WorkloadError::Invalid {
                file: file.to_owned(),
                key: key.to_owned(),
                problem,
                remedy: remedy.to_owned(),
            })
        };
        if self.baseline.is_none() {
            return Err(WorkloadError::NoBaseline { file: file.to_owned() });
        }
        if !is_word(&self.name) {
            return wrong("name", format!("{:?} is no name", self.name), "use a-z, 0-9 and '-', at most 40 characters");
        }
        for step in &self.prepare {
            match step {
                Prepare::Put(put) => {
                    check_inside(file, "prepare.put", &put.put)?;
                    check_absolute(file, "prepare.to", &put.to)?;
                }
                Prepare::Run(run) if run.run.is_empty() => {
                    return wrong("prepare.run", "it is empty".into(), "give a program and its arguments");
                }
                Prepare::Run(_) => {}
            }
        }
        if self.start.argv.is_empty() {
            return wrong("start.argv", "it is empty".into(), "give a program and its arguments");
        }
        check_absolute(file, "start.cwd", &self.start.cwd)?;
        if self.start.port == 0 {
            return wrong("start.port", "0 is no port to listen on".into(), "give one from 1 to 65535");
        }
        if !self.start.ready_path.starts_with('/') {
            return wrong(
                "start.ready_path",
                format!("{:?} is no path", self.start.ready_path),
                "begin it with a slash",
            );
        }
        check_absolute(file, "reload.file", &self.reload.file)?;
        if !(1..=JOBS_MAX).contains(&self.check.jobs) {
            return wrong("check.jobs", format!("{} jobs can't be submitted", self.check.jobs), "give 1 to 10000");
        }
        if self.check.free_jobs > self.check.jobs {
            return wrong("check.free_jobs", "more are free than there are".into(), "give at most check.jobs");
        }
        if self.fault.loses == Loses::FreeJobs && self.check.free_jobs == 0 {
            return wrong("check.free_jobs", "the fault loses free jobs and there are none".into(), "give at least 1");
        }
        if self.checkpoint.pending != u64::from(self.check.jobs) {
            let problem =
                format!("{} can't be pending when {} are submitted", self.checkpoint.pending, self.check.jobs);
            return wrong("checkpoint.pending", problem, "give the number in check.jobs");
        }
        self.validate_patches(file)
    }

    fn validate_patches(&self, file: &str) -> Result<(), WorkloadError> {
        let wrong = |key: &str, problem: String, remedy: &str| {
            Err(WorkloadError::Invalid {
                file: file.to_owned(),
                key: key.to_owned(),
                problem,
                remedy: remedy.to_owned(),
            })
        };
        if self.patches.is_empty() || self.patches.len() > PATCHES_MAX {
            return wrong("patches", format!("there are {}", self.patches.len()), "give 1 to 100 [[patches]]");
        }
        let mut names = BTreeSet::new();
        for patch in &self.patches {
            if !is_word(&patch.name) {
                return wrong(
                    "patches.name",
                    format!("{:?} is no name", patch.name),
                    "use a-z, 0-9 and '-', at most 40 characters",
                );
            }
            if !names.insert(patch.name.as_str()) {
                return wrong(
                    "patches.name",
                    format!("{:?} is there twice", patch.name),
                    "give each patch a name of its own",
                );
            }
            check_inside(file, "patches.file", &patch.file)?;
        }
        if let Some(cold) = &self.cold_control {
            self.patch(&cold.patch)?;
        }
        Ok(())
    }

    /// The patch of this name.
    ///
    /// # Errors
    /// [`WorkloadError::UnknownPatch`]
    pub fn patch(&self, name: &str) -> Result<&Patch, WorkloadError> {
        self.patches.iter().find(|patch| patch.name == name).ok_or_else(|| WorkloadError::UnknownPatch {
            workload: self.name.clone(),
            patch: name.to_owned(),
            known: self.patches.iter().map(|patch| patch.name.clone()).collect::<Vec<_>>().join(", "),
        })
    }
}

fn is_word(text: &str) -> bool {
    (1..=40).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
}

fn has_odd_part(path: &str) -> bool {
    path.split('/').any(|part| part.is_empty() || part == "." || part == "..")
}

/// A path of the workload must not lead out of its folder.
fn check_inside(file: &str, key: &str, path: &str) -> Result<(), WorkloadError> {
    if !has_odd_part(path) {
        return Ok(());
    }
    Err(WorkloadError::Invalid {
        file: file.to_owned(),
        key: key.to_owned(),
        problem: format!("{path:?} does not name something inside the workload's folder"),
        remedy: "give a relative path without '.' and '..'".to_owned(),
    })
}

fn check_absolute(file: &str, key: &str, path: &str) -> Result<(), WorkloadError> {
    if path.strip_prefix('/').is_some_and(|rest| !has_odd_part(rest)) {
        return Ok(());
    }
    Err(WorkloadError::Invalid {
        file: file.to_owned(),
        key: key.to_owned(),
        problem: format!("{path:?} is no absolute path in the guest"),
        remedy: "begin it with a slash and leave out '.', '..' and a slash at its end".to_owned(),
    })
}
