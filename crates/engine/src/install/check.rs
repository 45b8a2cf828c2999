//! `remuda setup --check`: looks at the machine, at what is installed, contents included, and repeats the trial.
//! Must never change anything: not the cache, not `current.json`.

use std::path::PathBuf;

use super::cache::{Current, Kind};
use super::digest::digest_tree;
use super::error::{NotReady, RUN_SETUP, SetupError};
use super::machine_check::Check;
use super::probe::{Probe, ProbeReport};
use super::runsc::{self, Facts};
use super::setup::{Setup, told};

/// What `remuda setup --check` found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckReport {
    /// Everything that was looked at, in order.
    pub checks: Vec<Check>,
    /// What the trial showed, when it got that far.
    pub probe: Option<ProbeReport>,
}

impl CheckReport {
    /// Whether sandboxes can run here.
    ///
    /// # Errors
    /// When they can't; the error holds the checks that failed.
    pub fn ready(&self) -> Result<(), NotReady> {
        let failed: Vec<Check> = self.checks.iter().filter(|c| !c.ok).cloned().collect();
        if failed.is_empty() { Ok(()) } else { Err(NotReady { failed }) }
    }
}

impl Setup {
    /// Looks at the machine, at what is installed (contents included) and repeats the trial. Changes nothing.
    ///
    /// # Errors
    /// Only when the looking itself fails; what is found wanting is in the report.
    pub async fn check(&self, probe: &dyn Probe) -> Result<CheckReport, SetupError> {
        let current = self.cache.current()?.unwrap_or_default();
        let complete = current.runsc.is_some() && current.base.is_some();
        let mut checks = self.look(!complete).await?;
        if !checks.iter().all(|check| check.ok) {
            return Ok(CheckReport { checks, probe: None });
        }
        let examined = self.check_runsc(&current, &mut checks).await;
        let base = self.check_base(&current, &mut checks).await?;
        let mut report = None;
        if let (Some(facts), Some(base)) = (examined, base) {
            match self.try_out(&facts, &base, probe).await {
                Ok(tried) => {
                    checks.push(Check::good("probe", told(&tried)));
                    report = Some(tried);
                }
                Err(reason) => checks.push(Check::bad("probe", reason, RUN_SETUP)),
            }
        }
        Ok(CheckReport { checks, probe: report })
    }

    async fn check_runsc(&self, current: &Current, checks: &mut Vec<Check>) -> Option<Facts> {
        const NAME: &str = "runsc";
        let Some(digest) = &current.runsc else {
            checks.push(Check::bad(NAME, "none is installed", RUN_SETUP));
            return None;
        };
        let path = self.cache.runsc(digest);
        match runsc::examine(&path).await {
            Ok(facts) if facts.digest == *digest => {
                let go = facts.go_version.as_deref().unwrap_or("of unknown version");
                let detail = format!("{} built with Go {go}, {}", facts.version, path.display());
                checks.push(Check::good(NAME, detail));
                Some(facts)
            }
            Ok(facts) => {
                let detail = format!("{} was changed: its digest is {}", path.display(), facts.digest);
                let remedy = RUN_SETUP;
                checks.push(Check::bad(NAME, detail, remedy));
                None
            }
            Err(reason) => {
                let detail = format!("{}: {reason}", path.display());
                checks.push(Check::bad(NAME, detail, RUN_SETUP));
                None
            }
        }
    }

    async fn check_base(&self, current: &Current, checks: &mut Vec<Check>) -> Result<Option<PathBuf>, SetupError> {
        const NAME: &str = "base image";
        let Some(digest) = &current.base else {
            checks.push(Check::bad(NAME, "none is installed", RUN_SETUP));
            return Ok(None);
        };
        let root = self.cache.base_root(digest);
        let tree = root.clone();
        let counted = tokio::task::spawn_blocking(move || digest_tree(&tree))
            .await
            .map_err(|_| SetupError::Interrupted { doing: "digesting the base image" })?;
        let remedy =
            format!("stop all sandboxes, remove {} and {RUN_SETUP}", self.cache.entry(Kind::Base, digest).display());
        let check = match counted {
            Ok(counted) if counted.digest == *digest => {
                let detail = format!("{} entries, {} MiB, {}", counted.entries, counted.bytes >> 20, root.display());
                checks.push(Check::good(NAME, detail));
                return Ok(Some(root));
            }
            Ok(counted) => {
                let detail = format!("{} was changed: its digest is {}", root.display(), counted.digest);
                Check::bad(NAME, detail, remedy)
            }
            Err(error) => Check::bad(NAME, error.to_string(), remedy),
        };
        checks.push(check);
        Ok(None)
    }
}
