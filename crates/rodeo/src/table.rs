//! A report as a table for people. No colours, so that it reads the same in a file.

use std::fmt;

use comfy_table::{ContentArrangement, Table, presets};

use crate::report::RunReport;
use crate::text;

/// Longest problem that is shown, in characters.
const PROBLEM_CHARACTERS_MAX: usize = 600;
/// Shown characters of a nonce: enough to tell two apart.
const NONCE_CHARACTERS: usize = 8;

impl fmt::Display for RunReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} in mode {} on {}, seed {}", self.workload, self.mode, self.provider, self.seed)?;
        let mut table = Table::new();
        table.load_style(presets::ASCII_MARKDOWN).set_content_arrangement(ContentArrangement::Disabled);
        table.set_header(["branch", "verdict", "known", "receipts", "pid", "nonce", "same process"]);
        let baseline = &self.baseline;
        table.add_row([
            "(twin, unpatched)".into(),
            baseline.verdict.to_string(),
            agreement(baseline.verdict == baseline.known),
            String::new(),
            String::new(),
            String::new(),
            String::new(),
        ]);
        for branch in &self.branches {
            let receipts = branch.observed.receipts.map_or("unknown".to_owned(), |count| count.to_string());
            let nonce = branch.process.nonce.as_deref().unwrap_or("unknown");
            table.add_row([
                branch.patch.clone(),
                branch.verdict.to_string(),
                branch.known.map_or_else(|| "attempt".to_owned(), |known| agreement(branch.verdict == known)),
                format!("{receipts} of {}", branch.expected.receipts),
                branch.process.pid.map_or("unknown".to_owned(), |pid| pid.to_string()),
                text::line(nonce, NONCE_CHARACTERS).trim_end_matches('…').to_owned(),
                if branch.process.inherited { "yes" } else { "no" }.to_owned(),
            ]);
        }
        if let Some(cold) = &self.cold_control {
            table.add_row([
                format!("(cold, {})", cold.patch),
                cold.verdict.to_string(),
                agreement(cold.verdict == cold.known),
                String::new(),
                String::new(),
                String::new(),
                String::new(),
            ]);
        }
        writeln!(f, "{table}")?;
        for attempt in &self.attempts {
            let ended = attempt.agent.map_or("was not started".to_owned(), |agent| agent.to_string());
            let error = attempt
                .error
                .as_ref()
                .map(|error| format!("; {}", text::line(error, PROBLEM_CHARACTERS_MAX)))
                .unwrap_or_default();
            writeln!(f, "{}: the agent {ended}{error}; it said: {}.{}.log", attempt.name, self.evidence, attempt.name)?;
        }
        let pending = self.source.pending.map_or("unknown".to_owned(), |count| count.to_string());
        let unchanged = if self.source.unchanged { "unchanged" } else { "NOT as it was" };
        writeln!(
            f,
            "source: {pending} pending, {unchanged}; cleanup: {}",
            if self.clean { "nothing left" } else { "NOT complete" }
        )?;
        let timings: Vec<String> = self.timings_ms.iter().map(|(step, ms)| format!("{step} {ms}")).collect();
        writeln!(f, "milliseconds: {}", timings.join(", "))?;
        for problem in self.problems() {
            writeln!(f, "problem: {}", text::line(&problem, PROBLEM_CHARACTERS_MAX))?;
        }
        writeln!(f, "evidence: {}", self.evidence)
    }
}

fn agreement(known: bool) -> String {
    if known { "as known" } else { "NOT AS KNOWN" }.to_owned()
}
