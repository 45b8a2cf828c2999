//! `cargo xtask check`: the repository's rules, one small file each. A rule gives sentences that say what is wrong and
//! where; no sentence means that it holds. It must never change a file.

mod arrows;
mod commands;
mod errors;
mod forbidden;
mod help;
mod openapi;
mod promises;
mod sources;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use crate::command::{cargo, run as run_shown};
use crate::project::{self, Metadata};

/// What rules look at.
pub(crate) struct Repository<'a> {
    root: PathBuf,
    files: Vec<PathBuf>,
    metadata: &'a Metadata,
    remuda: &'a Path,
}

impl Repository<'_> {
    /// The text of a file of the repository; bytes that are no text are replaced.
    fn text(&self, file: impl AsRef<Path>) -> anyhow::Result<String> {
        let file = file.as_ref();
        let bytes = fs::read(self.root.join(file)).with_context(|| format!("cannot read {}", file.display()))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Its files with this extension.
    fn with_extension<'a>(&'a self, extension: &'a str) -> impl Iterator<Item = &'a PathBuf> {
        self.files.iter().filter(move |f| f.extension().is_some_and(|e| e == extension))
    }
}

/// Sentences about what is wrong.
type Faults = Vec<String>;

type Rule = fn(&Repository<'_>) -> anyhow::Result<Faults>;

const RULES: &[(&str, Rule)] = &[
    ("dependency arrows", arrows::check),
    ("every crate inherits the workspace's lints", sources::lints),
    ("every source file says what it is for, and is not long", sources::files),
    ("no registry's host name and no path of a machine", forbidden::check),
    ("every error code has a page, every page a code", errors::check),
    ("the OpenAPI file is current", openapi::check),
    ("commands and options in the documents exist", commands::check),
    ("every promise names what enforces it, or is pending", promises::check),
];

pub(crate) fn run(_: &[String]) -> anyhow::Result<bool> {
    run_shown(cargo().args(["build", "--workspace", "--all-targets", "--locked"]))?;
    let metadata = Metadata::read()?;
    let remuda = metadata.remuda("debug");
    all(&metadata, &remuda)?;
    Ok(true)
}

/// Holds every rule against the repository; fails after the last one, so that all faults are seen at once.
pub(crate) fn all(metadata: &Metadata, remuda: &Path) -> anyhow::Result<()> {
    let repository = Repository { root: project::root(), files: project::files()?, metadata, remuda };
    let mut broken = 0;
    for (name, rule) in RULES {
        let faults = rule(&repository).unwrap_or_else(|e| vec![format!("the rule could not be checked: {e:#}")]);
        println!("   {} {name}", if faults.is_empty() { "ok    " } else { "BROKEN" });
        for fault in &faults {
            println!("          - {fault}");
        }
        broken += usize::from(!faults.is_empty());
    }
    anyhow::ensure!(broken == 0, "{broken} of {} rules are broken; see above", RULES.len());
    Ok(())
}
