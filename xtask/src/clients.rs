//! `cargo xtask clients`: the foreign clients that tests use, from their package registries, as they are. Must never be part
//! of what is built.

use std::fs;
use std::path::Path;

use anyhow::Context as _;

use crate::command::{output, program, run as run_shown};
use crate::project::Metadata;
use crate::tools;

/// A package of Python's registry, in a virtual environment of its own name.
const PYTHON: [(&str, &str); 1] = [("mainbrella", "0.1.0")];

pub(crate) fn run(_: &[String]) -> anyhow::Result<bool> {
    install(&Metadata::read()?)?;
    Ok(true)
}

/// Puts each where tests look for it, if it is not there yet.
pub(crate) fn install(metadata: &Metadata) -> anyhow::Result<()> {
    tools::need_program("python3", "python3")?;
    PYTHON.iter().try_for_each(|(name, version)| python(&metadata.target.join("clients").join(name), name, version))
}

fn python(place: &Path, name: &str, version: &str) -> anyhow::Result<()> {
    let python = place.join("bin/python");
    let script = format!("import importlib.metadata as m; assert m.version({name:?}) == {version:?}");
    if output(program(&python).args(["-c", &script])).is_ok() {
        return Ok(());
    }
    // What an interrupted run left is no environment.
    if place.exists() {
        fs::remove_dir_all(place).with_context(|| format!("cannot remove {}", place.display()))?;
    }
    let make = || run_shown(program("python3").args(["-m", "venv"]).arg(place));
    // Debian has the module in a package of its own.
    make().or_else(|_| {
        tools::install("python3-venv")?;
        make()
    })?;
    let package = format!("{name}=={version}");
    let install = ["-m", "pip", "install", "--disable-pip-version-check", "--no-input", "--quiet", &package];
    run_shown(program(&python).args(install)).with_context(|| format!("cannot install {package} by pip"))
}
