//! The setup itself: what is there is found, what is missing is made, and the last check is a sandbox that is started,
//! checkpointed and restored.
//! Must never say "installed" of a runsc that was not tried on this machine.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::base::{self, BaseManifest};
use super::cache::{Cache, Held, Kind, Lock};
use super::check::CheckReport;
use super::command::Tool;
use super::digest::Digest;
use super::distribution::Distribution;
use super::error::SetupError;
use super::local_names::{LOCAL_NAMES_OFFER, LOCAL_NAMES_PACKAGE, finds_local_names};
use super::machine_check::{Check, check_machine, find_tool};
use super::probe::{Capabilities, Probe, ProbeReport};
use super::runsc::{self, Facts};

/// A part of the setup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Looking at the machine.
    Machine,
    /// Whether every program of this machine finds names below `localhost`.
    LocalNames,
    /// Waiting for another setup on this machine.
    Wait,
    /// The program that builds base images.
    Builder,
    /// The base image.
    Base,
    /// The engine's binary.
    Runsc,
    /// The trial: start, checkpoint, restore.
    Probe,
}

/// How far a step is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepState {
    /// It began and takes a while.
    Started,
    /// There was nothing to do.
    AlreadyThere,
    /// It was done.
    Done,
    /// Something was found that will not do; the sentence says why, and the setup goes on without it.
    Refused,
}

/// Something to show while a setup runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The part.
    pub step: Step,
    /// How far it is.
    pub state: StepState,
    /// A sentence for people.
    pub detail: String,
}

/// What is installed and in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Installed {
    /// The engine's binary.
    pub runsc: PathBuf,
    /// Its digest.
    pub runsc_digest: Digest,
    /// As the binary tells it.
    pub runsc_version: String,
    /// The base image's root directory, to be used as an overlay's lowest directory.
    pub base_root: PathBuf,
    /// Its digest.
    pub base_digest: Digest,
    /// What the runsc was seen to do.
    pub capabilities: Capabilities,
    /// What this run downloaded, by name; empty when all was there.
    pub fetched: Vec<String>,
}

impl Installed {
    /// What `remuda setup` left in use; `None` when it never ran to its end, or what it left is gone.
    ///
    /// # Errors
    /// When `current.json` exists and cannot be read or understood.
    pub fn load(cache: &Cache) -> Result<Option<Self>, SetupError> {
        let Some(current) = cache.current()? else {
            return Ok(None);
        };
        let (Some(runsc_digest), Some(base_digest)) = (current.runsc, current.base) else {
            return Ok(None);
        };
        let (runsc, base_root) = (cache.runsc(&runsc_digest), cache.base_root(&base_digest));
        let report = current.probes.get(&runsc_digest);
        let Some(report) = report.filter(|report| report.can.missing().is_empty()) else {
            return Ok(None);
        };
        Ok((runsc.is_file() && base_root.is_dir()).then(|| Self {
            capabilities: report.can.clone(),
            runsc_version: report.version.clone(),
            runsc,
            runsc_digest,
            base_root,
            base_digest,
            fetched: Vec::new(),
        }))
    }
}

/// Where progress is told.
type Tell<'a> = &'a (dyn Fn(Progress) + Send + Sync);

/// A setup of one machine.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Where things are installed.
    pub cache: Cache,
    /// Where sandboxes will be kept; only checked.
    pub data_dir: PathBuf,
    /// Whether the machine is to find names below `localhost` for every program, by a package that nothing else needs.
    pub local_names: bool,
}

impl Setup {
    /// Makes the machine ready, or says what is missing. Repeating it is cheap and downloads nothing.
    ///
    /// # Errors
    /// When the machine is not ready, or a step fails. Finished steps are kept and not repeated next time.
    pub async fn run(&self, tell: Tell<'_>, probe: &dyn Probe) -> Result<Installed, SetupError> {
        let say = |step, state, detail: String| {
            tell(Progress { step, state, detail });
        };
        let distribution = Distribution::of_this_machine();
        let recipe = base::recipe(&distribution);
        // Without root the cache cannot be read; the check of the machine has the better sentence for that.
        let base_is_there = base::find(&self.cache, &recipe).is_ok_and(|image| image.is_some());
        let builds = Installed::load(&self.cache)?.is_none() || !base_is_there;
        let checks = self.look(builds).await?;
        CheckReport { checks, probe: None }.ready()?;
        say(Step::Machine, StepState::Done, "this machine can run sandboxes".to_owned());

        if self.cache.is_locked(Lock::Setup) {
            let detail = "another `remuda setup` is at work; waiting for it".to_owned();
            say(Step::Wait, StepState::Started, detail);
        }
        let held = self.lock().await?;
        let mut fetched = Vec::new();
        match (finds_local_names(), self.local_names) {
            (true, _) => {}
            (false, false) => say(Step::LocalNames, StepState::Done, LOCAL_NAMES_OFFER.to_owned()),
            (false, true) => {
                install_package(&held, LOCAL_NAMES_PACKAGE).await?;
                let detail = format!("installed {LOCAL_NAMES_PACKAGE}: every program finds names below localhost");
                say(Step::LocalNames, StepState::Done, detail);
            }
        }
        let image = match base::find(&self.cache, &recipe)? {
            Some(image) => {
                let detail = format!("base image {} is there", short(&image.digest));
                say(Step::Base, StepState::AlreadyThere, detail);
                image
            }
            None => self.build_base(&held, &distribution, &mut fetched, tell).await?,
        };
        let report = self.choose_runsc(&held, &distribution, &image, &mut fetched, tell, probe).await?;

        let mut current = self.cache.current()?.unwrap_or_default();
        current.runsc = Some(report.runsc_digest.clone());
        current.base = Some(image.digest.clone());
        current.probes.insert(report.runsc_digest.clone(), report.clone());
        self.cache.set_current(&held, &current)?;
        Ok(Installed {
            runsc: self.cache.runsc(&report.runsc_digest),
            runsc_digest: report.runsc_digest,
            runsc_version: report.version,
            base_root: self.cache.base_root(&image.digest),
            base_digest: image.digest,
            capabilities: report.can,
            fetched,
        })
    }

    pub(super) async fn look(&self, builds: bool) -> Result<Vec<Check>, SetupError> {
        let this = self.clone();
        tokio::task::spawn_blocking(move || check_machine(&this.cache, &this.data_dir, builds))
            .await
            .map_err(|_| SetupError::Interrupted { doing: "looking at the machine" })
    }

    async fn lock(&self) -> Result<Arc<Held>, SetupError> {
        let cache = self.cache.clone();
        tokio::task::spawn_blocking(move || cache.lock(Lock::Setup))
            .await
            .map_err(|_| SetupError::Interrupted { doing: "waiting for the cache's lock" })?
            .map(Arc::new)
    }

    async fn build_base(
        &self,
        held: &Held,
        distribution: &Distribution,
        fetched: &mut Vec<String>,
        tell: Tell<'_>,
    ) -> Result<BaseManifest, SetupError> {
        if find_tool("mmdebstrap").is_none() {
            tell(Progress {
                step: Step::Builder,
                state: StepState::Started,
                detail: "installing the package mmdebstrap on this machine, to build the base image".to_owned(),
            });
            install_package(held, "mmdebstrap").await?;
            fetched.push("the package mmdebstrap".to_owned());
        }
        tell(Progress {
            step: Step::Base,
            state: StepState::Started,
            detail: "building the base image from this machine's package archive, and Node from its npm registry"
                .to_owned(),
        });
        let now = jiff::Timestamp::now().as_millisecond();
        let image = base::build(&self.cache, held, distribution, now).await?;
        fetched.push(format!("{} Debian packages", image.packages.len()));
        fetched.push(format!("Node {} and npm {}", image.node, image.npm));
        tell(Progress {
            step: Step::Base,
            state: StepState::Done,
            detail: format!(
                "base image {}: {}, {} files and directories, {} MiB",
                short(&image.digest),
                image.distribution,
                image.entries,
                image.bytes >> 20
            ),
        });
        Ok(image)
    }

    /// The first that passes the trial: one in the cache (the one in use first), one on PATH, the package.
    async fn choose_runsc(
        &self,
        held: &Held,
        distribution: &Distribution,
        image: &BaseManifest,
        fetched: &mut Vec<String>,
        tell: Tell<'_>,
        probe: &dyn Probe,
    ) -> Result<ProbeReport, SetupError> {
        let mut tried = Vec::new();
        let base = self.cache.base_root(&image.digest);
        let in_use = self.cache.current()?.unwrap_or_default().runsc;
        let mut cached = self.cache.list(Kind::Runsc)?;
        cached.sort_by_key(|digest| Some(digest) != in_use.as_ref());
        let cached = cached.into_iter().map(|digest| self.cache.runsc(&digest));
        let known = cached.map(|path| (path, true)).chain(runsc::on_path().into_iter().map(|path| (path, false)));
        for (path, is_cached) in known {
            match self.admit(held, &path, is_cached, &base, probe).await? {
                Ok(report) => {
                    let (state, place) = if is_cached {
                        (StepState::AlreadyThere, "is there".to_owned())
                    } else {
                        (StepState::Done, format!("taken from {}", path.display()))
                    };
                    tell(Progress { step: Step::Runsc, state, detail: format!("runsc {} {place}", report.version) });
                    tell_probe(tell, &report);
                    return Ok(report);
                }
                Err(reason) => {
                    let detail = format!("{}: {reason}", path.display());
                    tried.push(detail.clone());
                    tell(Progress { step: Step::Runsc, state: StepState::Refused, detail });
                }
            }
        }
        tell(Progress {
            step: Step::Runsc,
            state: StepState::Started,
            detail: "fetching the package runsc from this machine's package archive".to_owned(),
        });
        let staging = self.cache.stage(held)?;
        let binary = match runsc::fetch(held, staging.path(), distribution).await {
            Ok(binary) => binary,
            Err(SetupError::NoRunsc { tried: more, remedy }) => {
                tried.extend(more);
                return Err(SetupError::NoRunsc { tried, remedy });
            }
            Err(error) => return Err(error),
        };
        fetched.push("the package runsc".to_owned());
        match self.admit(held, &binary, false, &base, probe).await? {
            Ok(report) => {
                tell(Progress {
                    step: Step::Runsc,
                    state: StepState::Done,
                    detail: format!("runsc {} fetched", report.version),
                });
                tell_probe(tell, &report);
                Ok(report)
            }
            Err(reason) => {
                tried.push(format!("the package runsc: {reason}"));
                Err(SetupError::NoRunsc {
                    tried,
                    remedy: "mend what the sentence above names, or put another runsc on PATH, and run `remuda setup` \
                             again"
                        .to_owned(),
                })
            }
        }
    }

    /// Examines, copies into the cache, and tries. The inner `Err` is a sentence on why it will not do.
    async fn admit(
        &self,
        held: &Held,
        path: &Path,
        is_cached: bool,
        base: &Path,
        probe: &dyn Probe,
    ) -> Result<Result<ProbeReport, String>, SetupError> {
        let facts = match runsc::examine(path).await {
            Ok(facts) => facts,
            Err(reason) => return Ok(Err(reason)),
        };
        if is_cached {
            if self.cache.runsc(&facts.digest) != path {
                return Ok(Err(format!("its content has the digest {}, so it was changed", facts.digest)));
            }
        } else if runsc::adopt(&self.cache, held, path)? != facts.digest {
            return Ok(Err("it changed while it was copied".to_owned()));
        }
        Ok(self.try_out(&facts, base, probe).await)
    }

    pub(super) async fn try_out(&self, facts: &Facts, base: &Path, probe: &dyn Probe) -> Result<ProbeReport, String> {
        let binary = self.cache.runsc(&facts.digest);
        let can = probe.probe(&binary, base).await?;
        let missing = can.missing();
        if !missing.is_empty() {
            return Err(format!("runsc {} did not show in a trial: {}", facts.version, missing.join(", ")));
        }
        Ok(ProbeReport {
            runsc_digest: facts.digest.clone(),
            version: facts.version.clone(),
            go_version: facts.go_version.clone(),
            can,
            checked_at_unix_ms: jiff::Timestamp::now().as_millisecond(),
        })
    }
}

fn tell_probe(tell: Tell<'_>, report: &ProbeReport) {
    tell(Progress { step: Step::Probe, state: StepState::Done, detail: told(report) });
}

pub(super) fn told(report: &ProbeReport) -> String {
    format!("a sandbox was started, checkpointed and restored on platform {}", report.can.platform)
}

fn short(digest: &Digest) -> &str {
    &digest.as_str()[..12]
}

async fn install_package(held: &Held, package: &str) -> Result<(), SetupError> {
    const TIME_MAX: Duration = super::apt::APT_TIME_MAX;
    let install = || {
        Tool::new("apt-get", &format!("installing the package {package}"), TIME_MAX)
            .args(["install", "--quiet", "--assume-yes", "--no-install-recommends", package])
            .remedy(&format!("run `apt-get update && apt-get install {package}`, then `remuda setup`"))
            .holding(held)
    };
    if install().run().await.is_ok() {
        return Ok(());
    }
    // On a fresh machine there are no lists yet.
    Tool::new("apt-get", "reading the package lists", TIME_MAX)
        .args(["update", "--quiet"])
        .remedy("look at the lines above: this machine's package archive must be reachable")
        .holding(held)
        .run()
        .await?;
    install().run().await.map(drop)
}
