//! What a checked bundle establishes and what it does not, in sentences. Everything is taken from conclusions that were
//! computed anew; what nobody looked at is said to be unknown, never left out.

use remuda_types::SnapshotMode;

use crate::evidence::verify::{Story, Verification};
use crate::provider::Presence;
use crate::records::Outcome;
use crate::verdict::{Rule, Verdict};

/// The two lists of a report.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// What follows from the observations.
    pub established: Vec<String>,
    /// What does not, though a reader might think so.
    pub open: Vec<String>,
}

/// The facts of a bundle.
pub fn facts(verification: &Verification, story: &Story) -> Facts {
    let mut facts = Facts::default();
    integrity(verification, &mut facts);
    let Some(report) = &story.report else {
        let why = story.run.error.as_deref().unwrap_or("it was ended early");
        facts.open.push(match story.run.outcome {
            Outcome::Finished => "The run came to its end, but its records are not enough to judge anything.".into(),
            outcome => format!("The run {}: {why}. No patch is judged.", in_past(outcome)),
        });
        cleanup(story, &mut facts);
        return facts;
    };
    if report.baseline.verdict == Verdict::Reproduced {
        let how = "a machine that was prepared the same way and not copied";
        facts.established.push(format!("The fault is real: {how} shows it without any patch."));
    } else {
        let (verdict, detail) = (report.baseline.verdict, &report.baseline.detail);
        facts.open.push(format!("The fault itself: the unpatched twin was {verdict} ({detail}). No patch was tried."));
    }
    branches(story, report, &mut facts);
    if let Some(cold) = &report.cold_control {
        if cold.verdict == Verdict::ReproductionLost {
            let text = "The check is not fooled by an empty queue: the program, launched again in the source, said that it \
                        completed, and was judged reproduction-lost.";
            facts.established.push(text.into());
        } else {
            let text =
                format!("Whether the check would be fooled by an empty queue: the last control was {}.", cold.verdict);
            facts.open.push(text);
        }
    }
    if report.source.unchanged {
        let text =
            "The source did not notice: the same process still holds the same jobs, without any branch's marker.";
        facts.established.push(text.into());
    } else {
        facts.open.push("Whether the source was left alone: it was not as before when it was looked at again.".into());
    }
    cleanup(story, &mut facts);
    let tried = |name: &String| report.branches.iter().any(|branch| branch.patch == *name);
    let left_out: Vec<&str> = (story.case.workload.manifest.patches.iter())
        .filter(|patch| patch.known.is_some() && !tried(&patch.name))
        .map(|patch| patch.name.as_str())
        .collect();
    if !left_out.is_empty() && !report.branches.is_empty() {
        facts.open.push(format!("What the controls {} would have shown: they were not tried.", left_out.join(", ")));
    }
    facts.open.push(
        "Anything that was not observed: a patch that passed did the recorded jobs right in this prepared work, and nothing \
         is said about other jobs, other workloads or the quality of its code."
            .into(),
    );
    facts
}

fn in_past(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Running => "was cut off",
        Outcome::Finished => "came to its end",
        Outcome::Failed => "failed",
        Outcome::Interrupted => "was interrupted",
    }
}

fn integrity(verification: &Verification, facts: &mut Facts) {
    if verification.problems.is_empty() {
        facts.established.push(format!(
            "Nothing was changed since the run ended: {} files agree with the signed manifest, and every verdict below was \
             computed anew from the raw observations.",
            verification.files
        ));
    } else {
        facts.open.push(format!(
            "Whether this is what was observed: {} things in the bundle are not as they must be.",
            verification.problems.len()
        ));
    }
    match (&verification.signer, verification.trusted) {
        (Some(key), Some(true)) => facts.established.push(format!("A trusted key vouches for it: {key}.")),
        (Some(key), _) => facts.open.push(format!(
            "Who made it: the signature is good, by the key {key}. Whether to trust that key is yours to say (--trusted-key)."
        )),
        (None, _) => facts.open.push("Who made it: there is no good signature.".into()),
    }
}

fn branches(story: &Story, report: &crate::report::RunReport, facts: &mut Facts) {
    if report.branches.is_empty() {
        return;
    }
    let inherited = report.branches.iter().filter(|branch| branch.process.inherited).count();
    let of_all = format!("{inherited} of {} branches", report.branches.len());
    match story.case.mode {
        SnapshotMode::Memory if inherited == report.branches.len() => facts.established.push(format!(
            "The copies are copies: in {of_all} the process with the source's pid and nonce answered, before the release. \
             The nonce is made at the program's start and stored nowhere. After the release a patch's own code is in that \
             process, and what it says of itself is its own word; that the process was still there is the provider's."
        )),
        SnapshotMode::Memory => facts.open.push(format!(
            "Whether every branch was the source's very process: that was seen in {of_all}."
        )),
        SnapshotMode::Filesystem => facts.open.push(
            "Anything about work that was held in memory: a filesystem fork starts new processes, so the prepared work is \
             lost, and no patch can be told from another."
                .into(),
        ),
    }
    let isolated = |rule: Rule| rule != Rule::NotIsolated && rule > Rule::NotIsolated;
    if report.branches.iter().all(|branch| isolated(branch.rule)) {
        facts.established.push(
            "The branches are apart: each one's markers, in memory and in a file, showed in it and nowhere else."
                .into(),
        );
    }
    for branch in &report.branches {
        let (patch, detail) = (&branch.patch, &branch.detail);
        match branch.verdict {
            Verdict::Passed => facts.established.push(format!(
                "The patch {patch} did these jobs right: every one has its receipt, once, with the right amount ({detail})."
            )),
            Verdict::Reproduced => {
                facts
                    .established
                    .push(format!("The patch {patch} does not repair it: exactly the known fault shows ({detail})."));
            }
            Verdict::Failed => {
                facts
                    .established
                    .push(format!("The patch {patch} does not repair it: the work came out wrong ({detail})."));
            }
            Verdict::ReproductionLost => {
                facts
                    .open
                    .push(format!("Whether the patch {patch} repairs it: the prepared work is not there ({detail})."));
            }
            Verdict::Unverified => {
                facts.open.push(format!(
                    "Whether the patch {patch} repairs it: nothing is known ({}: {detail}).",
                    branch.rule
                ));
            }
        }
    }
}

fn cleanup(story: &Story, facts: &mut Facts) {
    let Some(record) = &story.cleanup else {
        facts.open.push("Whether anything was left behind: cleanup left no record.".into());
        return;
    };
    if record.says_clean() {
        let gone = record.machines.iter().filter(|machine| machine.presence == Presence::Gone).count();
        facts.established.push(format!(
            "Nothing was left behind: each of the {gone} machines was asked for by its own name after its removal and is gone, \
             and no listing shows one."
        ));
    } else {
        facts.open.push("Whether anything was left behind: not everything was seen to be absent.".into());
    }
}
