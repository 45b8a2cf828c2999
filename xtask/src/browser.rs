//! What the tests of previews in a browser need: a Chromium, and from npm its driver and the development server that runs in
//! a sandbox. They lie beside what cargo builds, and stay there between runs.

use std::fs;
use std::path::Path;

use anyhow::Context as _;

use crate::command::{program, run};
use crate::project;
use crate::tools;

/// What is installed from npm, with its versions.
const PACKAGES: &str = "crates/cli/tests/system/previews/browser/package.json";

/// Sees to it that all is there.
pub(crate) fn prepare(target: &Path) -> anyhow::Result<()> {
    tools::need_program("chromium", "chromium")?;
    tools::need_program("npm", "npm")?;
    tools::need_program("node", "nodejs")?;
    let place = target.join("browser");
    let (wanted, installed) = (fs::read(project::root().join(PACKAGES))?, place.join("installed.json"));
    if fs::read(&installed).is_ok_and(|installed| installed == wanted) {
        return Ok(());
    }
    fs::create_dir_all(&place).with_context(|| format!("cannot make {}", place.display()))?;
    fs::write(place.join("package.json"), &wanted)?;
    run(program("npm").arg("install").arg("--prefix").arg(&place).args([
        "--no-audit",
        "--no-fund",
        "--loglevel=error",
    ]))?;
    // Last: what is half installed is installed again.
    fs::write(installed, wanted)?;
    Ok(())
}
