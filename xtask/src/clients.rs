//! `cargo xtask clients`: the foreign clients that tests use, from their package registries, as they are. Must never be part
//! of what is built.

use std::path::Path;

use anyhow::Context as _;

use crate::command::{output, program, run as run_shown};
use crate::project::Metadata;
use crate::tools;
use crate::venv;

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
    venv::make(place)?;
    let package = format!("{name}=={version}");
    run_shown(venv::pip_install(place).arg(&package)).with_context(|| format!("cannot install {package} by pip"))
}
