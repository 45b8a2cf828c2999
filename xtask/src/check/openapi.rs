//! `openapi/remuda.json` is what the server would answer: it is reviewed as a diff, so it must be current.

use super::{Faults, Repository};
use crate::command;

const FILE: &str = "openapi/remuda.json";

pub(super) fn check(repository: &Repository<'_>) -> anyhow::Result<Faults> {
    let current = command::text(command::program(repository.remuda).arg("openapi"))?;
    let checked_in = repository.text(FILE)?;
    if current.trim_end() == checked_in.trim_end() {
        return Ok(Faults::new());
    }
    let line = current.lines().zip(checked_in.lines()).position(|(a, b)| a != b).map_or(0, |n| n + 1);
    Ok(vec![format!(
        "{FILE} is out of date, first at line {line}: write what `remuda openapi` prints into it, and review the diff"
    )])
}
