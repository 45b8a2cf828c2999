//! The network namespace that a sandbox is dialled from, for whoever is compared with a preview: there a program reaches
//! the guest directly.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::Context as _;
use remuda_types::Uid;

/// Where servers keep what lives in memory alone.
const PLACES: [&str; 2] = ["/run", "/dev/shm"];
/// The file that pins the namespace.
const PIN: &str = "net-outer";
/// The guest's address in it.
pub(super) const GUEST: &str = "10.254.254.2";
/// The host's.
pub(super) const HOST: &str = "10.254.254.1";

/// A namespace that can be entered.
pub(super) struct Outer(PathBuf);

impl Outer {
    /// That of a running sandbox.
    pub(super) fn of(uid: &Uid) -> anyhow::Result<Outer> {
        let mut servers = PLACES.iter().flat_map(|place| fs::read_dir(place).into_iter().flatten().flatten());
        let pin = servers.find_map(|server| below(&server.path(), uid));
        let outer = Outer(pin.with_context(|| format!("no network namespace of {uid} is pinned"))?);
        // A program that connects to its own address does so over the loopback interface.
        let mut up = outer.command("ip");
        let up = up.args(["link", "set", "lo", "up"]).status().context("cannot run nsenter and ip")?;
        anyhow::ensure!(up.success(), "the loopback interface of {uid} can't be set up: {up}");
        Ok(outer)
    }

    /// A program in it, without input.
    pub(super) fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", self.0.display())).arg("--").arg(program).stdin(Stdio::null());
        command
    }
}

fn below(server: &Path, uid: &Uid) -> Option<PathBuf> {
    let name = server.file_name()?.to_str()?;
    let pin = server.join(uid.as_str()).join(PIN);
    (name.starts_with("remuda") && pin.exists()).then_some(pin)
}
