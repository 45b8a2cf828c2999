//! Virtual environments of Python, with what pip brings into them from the machine's own package index. They never change
//! the machine's own Python.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::Context as _;

use crate::command::{output, program, run};
use crate::tools;

/// Makes one anew, whatever was there before; what an interrupted run left is none.
pub(crate) fn make(place: &Path) -> anyhow::Result<()> {
    if place.exists() {
        fs::remove_dir_all(place).with_context(|| format!("cannot remove {}", place.display()))?;
    }
    // Debian's Python has the means for it in a package of its own.
    if output(program("python3").args(["-c", "import ensurepip, venv"])).is_err() {
        tools::install("python3-venv")?;
    }
    run(program("python3").args(["-m", "venv"]).arg(place))
        .with_context(|| format!("cannot make a Python environment in {}", place.display()))
}

/// `pip install` in one; what is to be installed is still to be said.
pub(crate) fn pip_install(place: &Path) -> Command {
    let mut pip = program(place.join("bin/python"));
    pip.args(["-m", "pip", "install", "--disable-pip-version-check", "--no-input", "--quiet"]);
    pip
}
