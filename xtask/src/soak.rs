//! `cargo xtask soak`: what takes too long for every run of the tests. Very many random inputs for whatever reads what a
//! guest or a stranger wrote; many kills of a server under load, after each of which everything must be accounted for; and
//! many memory comparisons in a row, which must all give the same verdicts; and the tests of the Python packages that are
//! marked for it. None may leave anything behind.

use anyhow::Context as _;
use serde_json::Value;

use crate::command::{cargo, number_option, program, run as run_shown};
use crate::leftovers::Inventory;
use crate::project::Metadata;
use crate::python;
use crate::tools;

/// Comparisons in a row.
const ROUNDS: u32 = 30;
/// Kills of a server in a row.
const KILLS: u32 = 120;
/// Random inputs of each kind. They are proptest's: cargo-fuzz needs a nightly compiler, and this project stable ones.
const INPUTS: u32 = 20_000;
/// The tests that take any input: frames, the way back into step, archives, patterns and places of searches.
const FUZZED: [&str; 8] = [
    "nonsense_never_panics_nor_allocates_without_bound",
    "a_cut_frame",
    "a_frame_survives_the_round_trip",
    "a_bind_is_found_behind_any_nonsense",
    "no_archive_panics_or_escapes",
    "noise_is_no_archive",
    "nonsense_is_no_place_or_one_that_is_written_the_same",
    "matches_are_those_of_each_line_however_they_are_paged",
];
/// The test that kills.
const KILL_LOOP: &str =
    "kill_loop::a_server_that_is_killed_again_and_again_under_load_loses_nothing_and_does_nothing_twice";

pub(crate) fn run(arguments: &[String]) -> anyhow::Result<bool> {
    tools::need_root()?;
    let rounds = number_option(arguments, "--rounds")?.unwrap_or(ROUNDS);
    let kills = number_option(arguments, "--kills")?.unwrap_or(KILLS);
    let inputs = number_option(arguments, "--inputs")?.unwrap_or(INPUTS);
    let before = Inventory::take();
    let mut fuzzing = cargo();
    fuzzing.args(["test", "--workspace", "--locked", "--"]).args(FUZZED).env("PROPTEST_CASES", inputs.to_string());
    run_shown(&mut fuzzing)?;
    let mut killing = cargo();
    // The whole workspace is named, as the tests do it, so that nothing is built in another way.
    killing.args(["test", "--workspace", "--locked", "--test", "system", "--", "--nocapture", "--exact", KILL_LOOP]);
    run_shown(killing.env("REMUDA_KILLS", kills.to_string()))?;
    python::soak()?;
    before.nothing_new()?;
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
