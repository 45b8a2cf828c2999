//! Builds the guest agent, a small static binary that `remuda` carries inside itself.
//! Must not share a target directory with the outer cargo: that one holds its lock while it waits for this script.

use std::env;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

const PROFILE: &str = "guest";
const BINARY: &str = "remuda-agent";

fn main() -> ExitCode {
    match build() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn build() -> Result<(), Box<dyn Error>> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize()?;
    for part in ["crates/guest", "crates/guest-proto", "crates/tree", "Cargo.toml", "Cargo.lock"] {
        println!("cargo:rerun-if-changed={}", workspace.join(part).display());
    }
    println!("cargo:rerun-if-changed=build.rs");

    let target = env::var("TARGET")?;
    let target_dir = target_dir()?;
    let mut cargo = Command::new(env::var_os("CARGO").ok_or("cargo did not say where it is")?);
    cargo.args(["build", "--locked", "--package", "remuda-guest", "--profile", PROFILE, "--target", &target]);
    cargo.arg("--target-dir").arg(&target_dir).current_dir(&workspace);
    for (name, _) in env::vars_os() {
        if name.to_str().is_some_and(is_of_the_outer_build) {
            cargo.env_remove(&name);
        }
    }
    cargo.env("RUSTFLAGS", "-C target-feature=+crt-static -C relocation-model=static");
    let output = cargo.output().map_err(|e| format!("cargo could not be started to build the guest agent: {e}"))?;
    if !output.status.success() {
        let log = String::from_utf8_lossy(&output.stderr);
        return Err(format!("the guest agent could not be built ({}):\n{log}", output.status).into());
    }
    let agent = target_dir.join(&target).join(PROFILE).join(BINARY);
    // A copy of this script's own: nobody else's build changes it, and cargo need not watch it.
    std::fs::copy(&agent, out_dir()?.join(BINARY)).map_err(|e| format!("failed to copy {}: {e}", agent.display()))?;
    Ok(())
}

fn out_dir() -> Result<PathBuf, Box<dyn Error>> {
    Ok(PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo did not say where the output goes")?))
}

/// `guest` beside the outer build's own profiles. Cargo marks the top of a target directory with a tag.
fn target_dir() -> Result<PathBuf, Box<dyn Error>> {
    let out = out_dir()?;
    let top = out.ancestors().find(|dir| dir.join("CACHEDIR.TAG").is_file()).unwrap_or(&out);
    Ok(top.join("guest"))
}

/// Whether a variable tells about the outer build: its flags, target, wrappers and profile are not the agent's.
fn is_of_the_outer_build(name: &str) -> bool {
    const KEPT: [&str; 6] =
        ["CARGO_HOME", "CARGO_MAKEFLAGS", "CARGO_HTTP_", "CARGO_NET_", "CARGO_REGISTR", "CARGO_SOURCE_"];
    const OTHERS: [&str; 9] = [
        "RUSTFLAGS",
        "RUSTC_WRAPPER",
        "RUSTC_WORKSPACE_WRAPPER",
        "TARGET",
        "HOST",
        "PROFILE",
        "OPT_LEVEL",
        "DEBUG",
        "OUT_DIR",
    ];
    let of_cargo = name.starts_with("CARGO") && !KEPT.iter().any(|kept| name.starts_with(kept));
    of_cargo || name.starts_with("CLIPPY_") || name.starts_with("DEP_") || OTHERS.contains(&name)
}
