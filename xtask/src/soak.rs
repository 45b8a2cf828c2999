//! `cargo xtask soak`: what takes too long for every run of the tests. Here: many memory comparisons in a row, which
//! must all give the same verdicts and leave nothing behind.

use anyhow::Context as _;
use serde_json::Value;

use crate::command::{cargo, number_option, output, program, run as run_shown};
use crate::leftovers::Inventory;
use crate::project::{Metadata, root};
use crate::tools;

/// Comparisons in a row.
const ROUNDS: u32 = 30;

pub(crate) fn run(arguments: &[String]) -> anyhow::Result<bool> {
    tools::need_root()?;
    let rounds = number_option(arguments, "--rounds")?.unwrap_or(ROUNDS);
    let before = Inventory::take();
    run_shown(cargo().args(["build", "--release", "--locked"]))?;
    let metadata = Metadata::read()?;
    let remuda = metadata.remuda("release");
    run_shown(program(&remuda).arg("setup"))?;
    let evidence = metadata.target.join("soak");
    let mut first: Option<Value> = None;
    for round in 1..=rounds {
        let out = evidence.join(format!("{}-{round}", std::process::id()));
        let told = output(
            program(&remuda)
                .args(["rodeo", "run", "worker", "--mode", "memory", "--json", "--out"])
                .arg(&out)
                .env("REMUDA_DATA_DIR", root().join("target/soak/no-server"))
                .env_remove("REMUDA_URL"),
        )
        .with_context(|| format!("comparison {round} of {rounds}; evidence: {}", out.display()))?;
        let told: Value = serde_json::from_slice(&told.stdout).context("the comparison printed no JSON")?;
        let verdicts = verdicts(&told);
        println!("   {round}/{rounds}: {verdicts}");
        let expected = first.get_or_insert_with(|| verdicts.clone());
        anyhow::ensure!(
            *expected == verdicts,
            "comparison {round} gave other verdicts than the first; evidence: {}",
            out.display()
        );
    }
    before.nothing_new()?;
    println!("{rounds} memory comparisons gave the same verdicts");
    Ok(true)
}

/// What must not differ from one run to the next.
fn verdicts(told: &Value) -> Value {
    let branches: Vec<Value> = told["branches"]
        .as_array()
        .map(|b| b.iter().map(|b| serde_json::json!([b["patch"], b["verdict"], b["observed"]])).collect())
        .unwrap_or_default();
    serde_json::json!({
        "baseline": told["baseline"]["verdict"],
        "branches": branches,
        "cold_control": told["cold_control"]["verdict"],
        "source": told["source"],
    })
}
