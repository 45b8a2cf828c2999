//! A checked bundle as Markdown, for a place that shows no pages.

use std::fmt::Write as _;

use super::{facts, headline, moment};
use crate::evidence::verify::{Story, Verification};

/// The text.
pub fn markdown(verification: &Verification, story: &Story) -> String {
    let mut text = String::new();
    write_all(&mut text, verification, story).unwrap_or_default();
    text
}

fn write_all(text: &mut String, verification: &Verification, story: &Story) -> std::fmt::Result {
    let run = &story.run;
    writeln!(text, "# {}: {}\n", cell(&run.workload), headline(verification))?;
    writeln!(
        text,
        "Mode {}, provider {}, seed {}, {} ({}).\n",
        story.case.mode,
        cell(&run.provider),
        run.ledger.seed,
        moment(run.started_at_ms),
        run.outcome
    )?;
    if !verification.problems.is_empty() {
        writeln!(text, "**The bundle was changed, or contradicts itself:**\n")?;
        for problem in &verification.problems {
            writeln!(text, "- `{}`: {}", cell(&problem.file), cell(&problem.message))?;
        }
        writeln!(text)?;
    }
    writeln!(text, "| whose | verdict | known | why |\n| --- | --- | --- | --- |")?;
    for conclusion in &verification.verdicts {
        let known = match conclusion.known {
            None => "attempt".to_owned(),
            Some(known) if conclusion.verdict == known => "as known".to_owned(),
            Some(known) => format!("**known as {known}**"),
        };
        let why = format!("{}: {}", conclusion.rule, conclusion.detail);
        writeln!(text, "| {} | {} | {known} | {} |", cell(&conclusion.of), conclusion.verdict, cell(&why))?;
    }
    let facts = facts(verification, story);
    for (title, list) in [("Established", facts.established), ("Not established", facts.open)] {
        writeln!(text, "\n## {title}\n")?;
        for fact in list {
            writeln!(text, "- {}", cell(&fact))?;
        }
    }
    let timings: Vec<String> = run.timings_ms.iter().map(|(step, ms)| format!("{} {ms}", cell(step))).collect();
    writeln!(text, "\nMilliseconds: {}.", timings.join(", "))?;
    writeln!(text, "\nBundle `{}`, signed by `{}`.", cell(&run.run), verification.signer.as_deref().unwrap_or("nobody"))
}

/// What came from a guest is one line of plain text, whatever it holds.
fn cell(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\n' | '\r' | '\t' => safe.push(' '),
            '\\' | '`' | '*' | '_' | '[' | ']' | '<' | '>' | '|' | '#' | '!' => {
                safe.push('\\');
                safe.push(character);
            }
            other if other.is_control() => {}
            other => safe.push(other),
        }
    }
    safe
}
