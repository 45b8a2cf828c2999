//! `cargo xtask demo`: on a fresh machine, everything from the build to the tables of the worker comparison in both
//! modes, on an embedded server. Exits 0 only if every control got its known verdict and nothing is left behind.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use crate::command::{cargo, exit_code, program, run as run_shown};
use crate::leftovers::Inventory;
use crate::project::{Metadata, root};
use crate::steps::Steps;
use crate::tools;

pub(crate) fn run(_: &[String]) -> anyhow::Result<bool> {
    let mut steps = Steps::new(6);
    let before = Inventory::take();
    tools::need_root()?;
    steps.step("build", || run_shown(cargo().args(["build", "--release", "--locked"])))?;
    let remuda = Metadata::read()?.remuda("release");
    steps.step("engine and base image", || run_shown(program(&remuda).arg("setup")))?;
    let evidence = root().join("evidence");
    let earlier = bundles(&evidence)?;
    let mut good = true;
    for mode in ["memory", "filesystem"] {
        let code = steps.step(&format!("worker comparison, {mode} mode"), || {
            exit_code(
                program(&remuda)
                    .args(["rodeo", "run", "worker", "--mode", mode, "--out"])
                    .arg(&evidence)
                    // Without a server, an embedded one is started. One of the machine's owner stays out of it.
                    .env("REMUDA_DATA_DIR", root().join("target/demo/no-server"))
                    .env_remove("REMUDA_URL"),
            )
        })?;
        match code {
            0 => println!("   every control got its known verdict; the evidence is below {}", evidence.display()),
            1 => println!("   a control did NOT get its known verdict; the evidence is below {}", evidence.display()),
            code => anyhow::bail!("the {mode} comparison could not be made: exit code {code}"),
        }
        good &= code == 0;
    }
    steps.step("evidence, checked again, and a page for each run", || {
        for bundle in bundles(&evidence)?.difference(&earlier) {
            run_shown(program(&remuda).args(["rodeo", "verify"]).arg(bundle))?;
            run_shown(program(&remuda).args(["rodeo", "report"]).arg(bundle))?;
        }
        Ok(())
    })?;
    steps.step("nothing is left behind", || before.nothing_new())?;
    steps.summary();
    Ok(good)
}

/// The runs' directories that are there.
fn bundles(evidence: &Path) -> io::Result<BTreeSet<PathBuf>> {
    let entries = match std::fs::read_dir(evidence) {
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(BTreeSet::new()),
        entries => entries?,
    };
    let paths = entries.map(|entry| entry.map(|entry| entry.path())).collect::<io::Result<BTreeSet<_>>>()?;
    Ok(paths.into_iter().filter(|path| path.is_dir()).collect())
}
