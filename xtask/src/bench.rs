//! `cargo xtask bench`: builds for release and hands over to the crate in `bench/`.

use crate::command::{cargo, exit_code, program, run as run_shown};
use crate::leftovers::Inventory;
use crate::project::Metadata;
use crate::tools;

pub(crate) fn run(arguments: &[String]) -> anyhow::Result<bool> {
    tools::need_root()?;
    // For the namespaces of the bare side.
    tools::need_program("ip", "iproute2")?;
    // A peer of these two; of the others none needs it.
    let words: Vec<&str> = arguments.iter().map(String::as_str).filter(|word| !word.starts_with('-')).collect();
    let names = words.iter().any(|word| word.parse::<usize>().is_err());
    if !names || words.iter().any(|word| ["exec", "files"].contains(word)) {
        tools::need_program("runc", "runc")?;
        tools::need_program("podman", "podman")?;
    }
    if !names || words.contains(&"preview") {
        tools::need_program("nginx", "nginx-light")?;
        tools::need_program("wrk", "wrk")?;
        tools::need_program("nsenter", "util-linux")?;
    }
    let before = Inventory::take();
    // The whole workspace: building a part of it would build shared dependencies once more with other features.
    run_shown(cargo().args(["build", "--release", "--locked"]))?;
    let metadata = Metadata::read()?;
    let code = exit_code(program(metadata.target.join("release/remuda-bench")).args(arguments))?;
    before.nothing_new()?;
    match code {
        0 => Ok(true),
        1 => Ok(false),
        2 => Err(crate::command::Usage("the benchmark was asked for something it doesn't know".to_owned()).into()),
        code => anyhow::bail!("the benchmark could not be run: exit code {code}"),
    }
}
