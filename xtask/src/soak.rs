//! `cargo xtask soak`: what takes too long for every run of the tests. Here: many memory comparisons in a row, which
//! must all give the same verdicts and leave nothing behind.

use anyhow::Context as _;
use serde_json::Value;

use crate::command::{cargo, number_option, program, run as run_shown};
use crate::leftovers::Inventory;
use crate::project::Metadata;
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
    let mut strangers = 0;
    for round in 1..=rounds {
        let ended = program(&remuda)
            .args(["rodeo", "run", "worker", "--mode", "memory", "--json", "--out"])
            .arg(&evidence)
            .env("REMUDA_DATA_DIR", evidence.join("no-server"))
            .env_remove("REMUDA_URL")
            .output()
            .context("cannot start the comparison")?;
        let told: Value = serde_json::from_slice(&ended.stdout).with_context(|| {
            format!("comparison {round} printed no JSON: {}", String::from_utf8_lossy(&ended.stderr).trim())
        })?;
        let verdicts = verdicts(&told);
        let expected = first.get_or_insert_with(|| verdicts.clone());
        let same = ended.status.success() && *expected == verdicts;
        // All rounds are run, so that one knows how often it happens.
        strangers += u32::from(!same);
        println!("   {round}/{rounds} {}: {verdicts}; evidence: {}", ended.status, told["evidence"]);
    }
    before.nothing_new()?;
    println!("{} of {rounds} memory comparisons gave the same verdicts, the known ones", rounds - strangers);
    Ok(strangers == 0)
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
