//! What xtask itself needs on a machine. What sandboxes need is the business of `remuda setup`.

use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

use anyhow::Context as _;

use crate::command;

/// Fails with a sentence unless this process is root: sandboxes need namespaces, mounts and cgroups.
pub(crate) fn need_root() -> anyhow::Result<()> {
    let uid = std::fs::metadata("/proc/self").context("cannot read /proc")?.uid();
    anyhow::ensure!(uid == 0, "this needs root, for namespaces, mounts and cgroups: run it again as root");
    Ok(())
}

/// Sees to it that a program is there, by apt where it is not; says what it installs.
pub(crate) fn need_program(name: &str, package: &str) -> anyhow::Result<()> {
    if on_path(name).is_some() {
        return Ok(());
    }
    anyhow::ensure!(
        on_path("apt-get").is_some(),
        "`{name}` is missing and this is no Debian: install it by your distribution's means"
    );
    println!("   `{name}` is missing: installing the package {package}");
    install(package)?;
    anyhow::ensure!(on_path(name).is_some(), "the package {package} brought no `{name}`");
    Ok(())
}

/// Installs a package by apt.
pub(crate) fn install(package: &str) -> anyhow::Result<()> {
    let apt = |arguments: &[&str]| {
        command::run(command::program("apt-get").args(arguments).env("DEBIAN_FRONTEND", "noninteractive"))
    };
    let install = ["install", "--yes", "--no-install-recommends", package];
    // The lists may be absent or old; only then are they fetched.
    if apt(&install).is_err() {
        apt(&["update"])?;
        apt(&install).with_context(|| format!("cannot install {package}; install it by hand"))?;
    }
    Ok(())
}

/// Sees to it that cargo has this component, by rustup where it has not.
pub(crate) fn need_component(subcommand: &str, component: &str) -> anyhow::Result<()> {
    if command::output(command::cargo().args([subcommand, "--version"])).is_ok() {
        return Ok(());
    }
    anyhow::ensure!(
        on_path("rustup").is_some(),
        "`cargo {subcommand}` is missing: install {component} for your Rust toolchain"
    );
    println!("   `cargo {subcommand}` is missing: adding the component {component}");
    command::run(command::program("rustup").args(["component", "add", component]))
}

fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|d| d.join(name)).find(|p| p.is_file())
}
