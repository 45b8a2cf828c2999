//! Verdicts: pure functions from raw observations. The first row that holds decides, in the order of [`Rule`]. Never
//! asks anything, never believes the flag "completed", never needs a credential.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::jobs::Ledger;
use crate::observe::{Attempt, Exchange, Sighting, SourceWatch};
use crate::reading::{self, Receipt, Results, Status};
use crate::text;

/// What is known of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The prepared work is not there, so no patch can be told from another.
    ReproductionLost,
    /// Nothing is known.
    Unverified,
    /// Every expected fact was observed, in the same prepared work.
    Passed,
    /// Exactly the known fault, and nothing else, was observed.
    Reproduced,
    /// The work came out wrong in another way.
    Failed,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// Why a verdict was given. The first rule that holds decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rule {
    /// Before the release, the status was readable and not the source's.
    PreparedWorkAbsent,
    /// No machine came up.
    NoMachine,
    /// The status before the release can't be read.
    UnreadableBefore,
    /// It was released before the patch was put.
    ReleasedTooEarly,
    /// The branch's markers are not where they must be, or are where they must not be.
    NotIsolated,
    /// The patch could not be put.
    PatchNotPut,
    /// The release was not answered with 200.
    ReleaseFailed,
    /// The results can't be read.
    ResultsUnreadable,
    /// The worker imported another processor than the patch.
    PatchNotLoaded,
    /// It did not even say that it completed.
    NotCompleted,
    /// The status at the end can't be read.
    UnreadableAfter,
    /// The status at the end is another process's.
    AnotherProcessAfter,
    /// Every job has its receipt, once, with the right amount, and there is no other.
    AllReceipts,
    /// As `AllReceipts`, without exactly the jobs that the known fault loses.
    ExactlyTheFault,
    /// Anything else.
    WrongReceipts,
}

impl Rule {
    /// The verdict it gives.
    pub fn verdict(self) -> Verdict {
        match self {
            Rule::PreparedWorkAbsent => Verdict::ReproductionLost,
            Rule::AllReceipts => Verdict::Passed,
            Rule::ExactlyTheFault => Verdict::Reproduced,
            Rule::WrongReceipts => Verdict::Failed,
            Rule::NoMachine
            | Rule::UnreadableBefore
            | Rule::ReleasedTooEarly
            | Rule::NotIsolated
            | Rule::PatchNotPut
            | Rule::ReleaseFailed
            | Rule::ResultsUnreadable
            | Rule::PatchNotLoaded
            | Rule::NotCompleted
            | Rule::UnreadableAfter
            | Rule::AnotherProcessAfter => Verdict::Unverified,
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// What an attempt is held against. All of it is known outside the machine that is judged.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expectation {
    /// Pid of the process that holds the prepared work.
    pub pid: u64,
    /// Its nonce.
    pub nonce: String,
    /// The id of its preparation.
    pub preparation: String,
    /// SHA-256 of the processor that must be imported.
    pub processor: String,
    /// Whether a patch has to be put.
    pub patched: bool,
    /// The jobs.
    pub ledger: Ledger,
}

/// What the other machines showed of the markers. Empty where isolation is no question.
#[derive(Debug, Clone, Copy)]
pub struct Others<'a> {
    /// Each machine's name and what it showed.
    pub sightings: &'a [(&'a str, &'a Result<Shown, String>)],
}

/// A verdict with its reason.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Judgement {
    /// The verdict.
    pub verdict: Verdict,
    /// The rule that gave it.
    pub rule: Rule,
    /// What was seen, in words.
    pub detail: String,
    /// How many receipts were shown, where results were readable.
    pub receipts: Option<u64>,
    /// Pid of the process that answered before the release.
    pub pid: Option<u64>,
    /// Its nonce.
    pub nonce: Option<String>,
    /// Whether pid and nonce were the source's, before the release and at the end.
    pub inherited: bool,
}

/// Longest detail of a judgement, in characters.
const DETAIL_CHARACTERS_MAX: usize = 400;

/// Judges one attempt. `isolation` is given where the attempt was a branch.
pub fn judge(expected: &Expectation, attempt: &Attempt, isolation: Option<Others<'_>>) -> Judgement {
    let before = reading::status(attempt.before.as_ref());
    let after = reading::status(attempt.after.as_ref());
    let results = reading::results(attempt.results.as_ref());
    let (rule, detail) = decide(expected, attempt, isolation, &before, &after, &results);
    let is_source = |status: &Result<Status, String>| {
        status.as_ref().is_ok_and(|status| status.pid == expected.pid && status.nonce == expected.nonce)
    };
    // A guest decides what stands in it; it is one line for people.
    let detail = text::line(&detail, DETAIL_CHARACTERS_MAX);
    Judgement {
        verdict: rule.verdict(),
        rule,
        detail,
        receipts: results.as_ref().ok().map(|results| results.receipts.len() as u64),
        pid: before.as_ref().ok().map(|status| status.pid),
        nonce: before.as_ref().ok().map(|status| status.nonce.clone()),
        inherited: is_source(&before) && is_source(&after) && rule != Rule::AnotherProcessAfter,
    }
}

fn decide(
    expected: &Expectation,
    attempt: &Attempt,
    isolation: Option<Others<'_>>,
    before: &Result<Status, String>,
    after: &Result<Status, String>,
    results: &Result<Results, String>,
) -> (Rule, String) {
    if let Ok(status) = before {
        let differences = differences(expected, status);
        if !differences.is_empty() {
            return (Rule::PreparedWorkAbsent, differences.join("; "));
        }
    }
    if let Some(why) = &attempt.no_machine {
        return (Rule::NoMachine, why.clone());
    }
    match before {
        Err(why) => return (Rule::UnreadableBefore, why.clone()),
        Ok(status) if status.released || status.completed => {
            return (Rule::ReleasedTooEarly, "the status before the release says it was released".into());
        }
        Ok(_) => {}
    }
    if let Some(others) = isolation
        && let Err(why) = isolated(attempt, others)
    {
        return (Rule::NotIsolated, why);
    }
    if expected.patched {
        match &attempt.put {
            None => return (Rule::PatchNotPut, "it was not tried".into()),
            Some(action) if action.error.is_some() => {
                return (Rule::PatchNotPut, action.error.clone().unwrap_or_default());
            }
            Some(_) => {}
        }
    }
    if let Err(why) = reading::expect_status(attempt.release.as_ref(), 200) {
        return (Rule::ReleaseFailed, why);
    }
    let results = match results {
        Err(why) => return (Rule::ResultsUnreadable, why.clone()),
        Ok(results) => results,
    };
    if results.processor.as_deref() != Some(&expected.processor) {
        let imported = results.processor.as_deref().unwrap_or("none");
        return (Rule::PatchNotLoaded, format!("it imported the processor {imported}, not {}", expected.processor));
    }
    if !results.completed {
        return (Rule::NotCompleted, "it did not complete in time".into());
    }
    match after {
        Err(why) => return (Rule::UnreadableAfter, why.clone()),
        Ok(status) => {
            let differences = identity_differences(expected, status);
            if !differences.is_empty() {
                return (Rule::AnotherProcessAfter, differences.join("; "));
            }
            // What answers after the release is the patch's own code: who it says that it is proves nothing by itself.
            match attempt.liveness.as_ref().map(|liveness| (liveness.pid == expected.pid, &liveness.runs)) {
                None | Some((true, Ok(Some(true) | None))) => {}
                Some((true, Err(why))) => return (Rule::UnreadableAfter, why.clone()),
                Some((true, Ok(Some(false)))) => {
                    return (
                        Rule::AnotherProcessAfter,
                        format!("the provider says that {} runs no more", expected.pid),
                    );
                }
                Some((false, _)) => return (Rule::AnotherProcessAfter, "another process was asked for".into()),
            }
        }
    }
    weigh(&expected.ledger, &results.receipts)
}

fn identity_differences(expected: &Expectation, status: &Status) -> Vec<String> {
    let mut found = Vec::new();
    if status.preparation != expected.preparation {
        found.push(format!("preparation {} instead of {}", status.preparation, expected.preparation));
    }
    if status.pid != expected.pid {
        found.push(format!("pid {} instead of {}", status.pid, expected.pid));
    }
    if status.nonce != expected.nonce {
        found.push(format!("nonce {} instead of {}", status.nonce, expected.nonce));
    }
    found
}

fn differences(expected: &Expectation, status: &Status) -> Vec<String> {
    let mut found = identity_differences(expected, status);
    let pending = expected.ledger.jobs.len() as u64;
    if status.pending != pending {
        found.push(format!("{} pending instead of {pending}", status.pending));
    }
    if status.fingerprint != expected.ledger.fingerprint() {
        found.push("another fingerprint of the queue".into());
    }
    found
}

/// Each marker must be seen where it was set, and nowhere else.
fn isolated(attempt: &Attempt, others: Others<'_>) -> Result<(), String> {
    let Some(markers) = &attempt.markers else { return Err("no markers were set".into()) };
    reading::expect_status(Some(&markers.set), 200).map_err(|why| format!("setting the marker in memory: {why}"))?;
    if let Some(why) = &markers.put.error {
        return Err(format!("writing the marker file: {why}"));
    }
    let own = shown(attempt.sighting.as_ref())?;
    if own.memory.as_deref() != Some(&markers.memory) {
        return Err(format!("its memory shows the marker {:?} instead of {:?}", own.memory, markers.memory));
    }
    if !own.files.contains(&markers.file) {
        return Err(format!("its files lack the marker {:?}", markers.file));
    }
    for (name, sighting) in others.sightings {
        let other = sighting.as_ref().map_err(|why| format!("{name}: {why}"))?;
        if other.memory.as_deref() == Some(&markers.memory) {
            return Err(format!("the memory of {name} shows its marker"));
        }
        if other.files.contains(&markers.file) {
            return Err(format!("the files of {name} show its marker"));
        }
    }
    Ok(())
}

/// The markers that a machine showed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown {
    memory: Option<String>,
    files: BTreeSet<String>,
}

/// Reads what a machine showed of the markers.
///
/// # Errors
/// Why that is not known.
pub fn shown(sighting: Option<&Sighting>) -> Result<Shown, String> {
    let sighting = sighting.ok_or("it was not asked for its markers")?;
    let status =
        reading::status(Some(&sighting.status)).map_err(|why| format!("its marker in memory is unknown: {why}"))?;
    let files = sighting.files.names.as_ref().map_err(|why| format!("its marker files are unknown: {why}"))?;
    Ok(Shown { memory: status.marker, files: files.iter().cloned().collect() })
}

/// Holds the receipts against the ledger.
fn weigh(ledger: &Ledger, receipts: &[Receipt]) -> (Rule, String) {
    let mut open: BTreeMap<&str, i64> = ledger.jobs.iter().map(|job| (job.id.as_str(), job.amount_cents())).collect();
    let known: BTreeSet<&str> = open.keys().copied().collect();
    let free: BTreeSet<&str> = ledger.jobs.iter().filter(|job| job.is_free()).map(|job| job.id.as_str()).collect();
    let mut wrong = Vec::new();
    for receipt in receipts {
        let Some(id) = receipt.id.as_deref() else {
            wrong.push("a receipt without an id".to_owned());
            continue;
        };
        match open.remove(id) {
            None if known.contains(id) => wrong.push(format!("{id} more than once")),
            None => wrong.push(format!("{id:?} was never submitted")),
            Some(amount) if receipt.amount_cents == Some(amount) => {}
            Some(amount) => {
                let told = receipt.amount_cents.map_or("no whole number".to_owned(), |told| told.to_string());
                wrong.push(format!("{id} amounts to {told} instead of {amount}"));
            }
        }
    }
    let count = format!("{} of {}", receipts.len(), ledger.jobs.len());
    if wrong.is_empty() && open.is_empty() {
        return (Rule::AllReceipts, count);
    }
    if wrong.is_empty() && open.keys().copied().eq(free.iter().copied()) {
        return (Rule::ExactlyTheFault, format!("{count}; exactly the free ones are missing"));
    }
    if !open.is_empty() {
        wrong.push(format!("missing: {}", open.keys().copied().collect::<Vec<_>>().join(", ")));
    }
    // A guest decides how many receipts there are; a detail is one line.
    const SAID_MAX: usize = 10;
    wrong.truncate(SAID_MAX);
    (Rule::WrongReceipts, format!("{count}; {}", wrong.join("; ")))
}

/// What became of the source.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SourceState {
    /// Jobs it still holds; absent where it can't be read.
    pub pending: Option<u64>,
    /// Whether it is the same process with the same queue, unreleased and without a branch's marker.
    pub unchanged: bool,
}

/// Judges the source after all branches.
pub fn source_state(expected: &Expectation, watch: &SourceWatch) -> SourceState {
    let Ok(end) = reading::status(watch.end.as_ref()) else { return SourceState { pending: None, unchanged: false } };
    let unchanged = differences(expected, &end).is_empty() && !end.released && !end.completed && end.marker.is_none();
    SourceState { pending: Some(end.pending), unchanged }
}

/// Whether a machine is prepared: its process has the given preparation id and holds the whole ledger, unreleased.
///
/// # Errors
/// What is not as it must be.
pub fn prepared(preparation: &str, ledger: &Ledger, status: Option<&Exchange>) -> Result<Status, String> {
    let status = reading::status(status)?;
    let as_itself = Expectation {
        pid: status.pid,
        nonce: status.nonce.clone(),
        preparation: preparation.to_owned(),
        processor: String::new(),
        patched: false,
        ledger: ledger.clone(),
    };
    let differences = differences(&as_itself, &status);
    if !differences.is_empty() {
        return Err(differences.join("; "));
    }
    if status.released || status.completed || status.marker.is_some() {
        return Err("it was released or marked already".into());
    }
    Ok(status)
}

#[cfg(test)]
mod tests;
