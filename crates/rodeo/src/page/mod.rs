//! A checked bundle as one page that needs nothing else, and as Markdown. Says only what was computed anew from the
//! observations; everything that came from a guest is shown as text and never as markup.

mod facts;
mod markdown;
mod timeline;

use jiff::Timestamp;
use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::evidence::verify::{Conclusion, Story, Verification};
use crate::jobs::Job;
use crate::observe::{Answer, Attempt, Exchange};
use crate::reading;
use crate::verdict::Verdict;
pub use facts::{Facts, facts};
pub use markdown::markdown;

const STYLE: &str = include_str!("style.css");
/// Most characters of one answer that the page shows; the bundle has all of it.
const ANSWER_CHARACTERS_MAX: usize = 4_000;

/// The page.
pub fn html(verification: &Verification, story: &Story) -> String {
    let title = format!("{} · {} · {}", story.run.workload, story.case.mode, story.run.provider);
    let facts = facts(verification, story);
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                // Nothing is loaded and nothing is run, whatever a guest wrote.
                meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:";
                title { (title) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                h1 { (story.case.workload.manifest.name) ": " (headline(verification)) }
                p.lead { (story.case.workload.manifest.about) }
                (banner(verification))
                h2 { "Verdicts" }
                div.scroll { (verdicts(verification, story)) }
                div.columns {
                    section { h2 { "Established" } ul { @for fact in &facts.established { li { (fact) } } } }
                    section { h2 { "Not established" } ul { @for fact in &facts.open { li { (fact) } } } }
                }
                (attempts(story))
                (receipts(story))
                h2 { "When what happened" }
                (timeline::picture(&timeline::lanes(story)))
                p.legend {
                    @for (kind, what) in KINDS { span { i style=(format!("background: var(--{kind})")) {} (what) } }
                }
                p.note { "Each bar tells what it was when the pointer rests on it." }
                (time(story))
                h2 { "What was asked and answered" }
                (observations(story))
                h2 { "Made with" }
                (provenance(verification, story))
                footer { "Made by " (story.manifest.harness) " from the bundle " code { (story.run.run) } ". Check it yourself: "
                    code { "remuda rodeo verify BUNDLE" } }
            }
        }
    };
    page.into_string()
}

const KINDS: [(&str, &str); 6] = [
    ("prepare", "preparation"),
    ("look", "reading"),
    ("change", "submitting, marking"),
    ("patch", "patch"),
    ("release", "release"),
    ("wrong", "went wrong"),
];

fn headline(verification: &Verification) -> &'static str {
    match (verification.problems.is_empty(), verification.as_known) {
        (false, _) => "this evidence does not hold",
        (true, Some(true)) => "every control got its known verdict",
        (true, Some(false)) => "a control did not get its known verdict",
        (true, None) => "the run did not come to its end",
    }
}

fn banner(verification: &Verification) -> Markup {
    let good = verification.problems.is_empty();
    html! {
        div class=(if good { "banner" } else { "banner bad" }) {
            @if good {
                (verification.files) " files agree with the signed manifest; every verdict was computed anew."
                @if let Some(signer) = &verification.signer { br; "Signed by " code { (signer) }
                    @if verification.trusted == Some(true) { ", a trusted key" } "." }
            } @else {
                "The bundle was changed, or contradicts itself:"
                ul { @for problem in &verification.problems { li { code { (problem.file) } ": " (problem.message) } } }
            }
        }
    }
}

fn verdict(verdict: Verdict) -> Markup {
    html! { span class=(format!("verdict {verdict}")) { (verdict.to_string()) } }
}

fn verdicts(verification: &Verification, story: &Story) -> Markup {
    let branches = story.report.as_ref().map(|report| report.branches.as_slice()).unwrap_or_default();
    let branch_of =
        |conclusion: &Conclusion| branches.iter().find(|branch| conclusion.of == format!("branch {}", branch.patch));
    html! {
        table {
            thead { tr { th { "whose" } th { "verdict" } th { "known" } th.number { "receipts" } th { "process" } th { "why" } } }
            tbody {
                @for conclusion in &verification.verdicts {
                    tr {
                        td { (conclusion.of) }
                        td { (verdict(conclusion.verdict)) }
                        td.plain { @match conclusion.known {
                            None => { "attempt" }
                            Some(known) if known == conclusion.verdict => { "as known" }
                            Some(known) => { "known as " (verdict(known)) }
                        } }
                        @match branch_of(conclusion) {
                            Some(branch) => {
                                td.number { (branch.observed.receipts.map_or("unknown".to_owned(), |count| count.to_string()))
                                    " of " (branch.expected.receipts) }
                                td.plain { @match branch.process.pid { Some(pid) => { "pid " (pid) }, None => { "unknown" } }
                                    ", " @if branch.process.inherited { "the source's" } @else { "not the source's" } }
                            }
                            None => { td {} td {} }
                        }
                        td { (conclusion.rule.to_string()) @if !conclusion.detail.is_empty() { ": " (conclusion.detail) } }
                    }
                }
            }
        }
    }
}

fn attempts(story: &Story) -> Markup {
    html! {
        @if !story.run.attempts.is_empty() {
            h2 { "Attempts" }
            div.scroll { table {
                thead { tr { th { "attempt" } th { "worked on" } th { "its agent" } th { "left, BLAKE3" } } }
                tbody { @for attempt in &story.run.attempts { tr {
                    td { (attempt.name) }
                    td { code { (attempt.machine.as_ref().map_or("no branch", |machine| machine.0.as_str())) } }
                    td { @match attempt.agent { Some(agent) => { (agent.to_string()) }, None => { "was not started" } }
                        @if let Some(error) = &attempt.error { "; " (error) } }
                    td { code { (attempt.patch.as_deref().unwrap_or("nothing")) } }
                } } }
            } }
            p.note { "What an attempt left at the reload point was judged in a fresh copy that no agent ever reached." }
        }
    }
}

/// Job by job, what each machine's receipts say.
fn receipts(story: &Story) -> Markup {
    let mut columns: Vec<(&str, &Attempt)> = story.twin.iter().map(|twin| ("twin", &twin.attempt)).collect();
    columns.extend(story.branches.iter().map(|branch| (branch.patch.as_str(), &branch.attempt)));
    let read: Vec<_> = columns
        .iter()
        .map(|(name, attempt)| (*name, reading::results(attempt.results.as_ref()).ok().map(|results| results.receipts)))
        .collect();
    let cell = |job: &Job, receipts: Option<&Vec<reading::Receipt>>| {
        let Some(receipts) = receipts else { return html! { span.unverified { "unknown" } } };
        let own: Vec<_> = receipts.iter().filter(|receipt| receipt.id.as_deref() == Some(&job.id)).collect();
        match own.as_slice() {
            [] => html! { span.failed { "missing" } },
            [one] if one.amount_cents == Some(job.amount_cents()) => html! { span.passed { (job.amount_cents()) } },
            [one] => {
                html! { span.failed { (one.amount_cents.map_or("no amount".to_owned(), |cents| cents.to_string())) } }
            }
            many => html! { span.failed { (many.len()) " times" } },
        }
    };
    html! {
        @if !read.is_empty() {
            h2 { "Receipts against the ledger" }
            div.scroll { table {
                thead { tr { th { "job" } th { "item" } th.number { "must be, cents" } @for (name, _) in &read { th.number { (name) } } } }
                tbody { @for job in &story.case.ledger.jobs { tr {
                    td { code { (job.id) } } td { (job.quantity) " × " (job.item) } td.number { (job.amount_cents()) }
                    @for (_, receipts) in &read { td.number { (cell(job, receipts.as_ref())) } }
                } } }
            } }
            p.note { "The ledger was made outside every sandbox from the seed " (story.run.ledger.seed) "." }
        }
    }
}

fn time(story: &Story) -> Markup {
    html! {
        @if !story.run.timings_ms.is_empty() {
            h2 { "Where the time went" }
            div.scroll { table { tbody { tr { @for name in story.run.timings_ms.keys() { th.number { (name) } } }
                tr { @for ms in story.run.timings_ms.values() { td.number { (ms) " ms" } } } } } }
        }
    }
}

fn observations(story: &Story) -> Markup {
    let mut groups: Vec<(String, Vec<&Exchange>)> = Vec::new();
    if let Some(record) = &story.source_prepared {
        let watch = story.source.as_ref().map(|record| &record.watch);
        let seen = watch.and_then(|watch| watch.sighting.as_ref()).map(|sighting| &sighting.status);
        let end = watch.and_then(|watch| watch.end.as_ref());
        groups.push(("source".into(), record.submitted.iter().chain(&record.status).chain(seen).chain(end).collect()));
    }
    if let Some(twin) = &story.twin {
        groups.push(("twin".into(), exchanges(&twin.attempt)));
    }
    groups.extend(story.branches.iter().map(|branch| (format!("branch {}", branch.patch), exchanges(&branch.attempt))));
    groups.extend(story.cold.iter().map(|cold| ("cold control".into(), exchanges(&cold.attempt))));
    html! {
        @for (name, exchanges) in groups {
            details {
                summary { (name) " (" (exchanges.len()) ")" }
                @for exchange in exchanges { (one(exchange)) }
            }
        }
    }
}

fn exchanges(attempt: &Attempt) -> Vec<&Exchange> {
    let set = attempt.markers.as_ref().map(|markers| &markers.set);
    let seen = attempt.sighting.as_ref().map(|sighting| &sighting.status);
    let all = [
        attempt.before.as_ref(),
        set,
        seen,
        attempt.release.as_ref(),
        attempt.results.as_ref(),
        attempt.after.as_ref(),
    ];
    all.into_iter().flatten().collect()
}

fn one(exchange: &Exchange) -> Markup {
    let cut = |text: &str| match text.char_indices().nth(ANSWER_CHARACTERS_MAX) {
        Some((end, _)) => format!("{}… ({} bytes in all)", &text[..end], text.len()),
        None => text.to_owned(),
    };
    html! {
        p { (moment(exchange.at_ms)) " · " code { (exchange.method) " " (exchange.path) } " · " (exchange.took_ms) " ms"
            @if exchange.attempts > 1 { " · asked " (exchange.attempts) " times" } }
        @if let Some(sent) = &exchange.sent { pre { "sent: " (cut(sent)) } }
        @match &exchange.answer {
            Answer::Response { status, body, .. } => { pre { (status) " " (cut(body)) } }
            Answer::Error { message } => { pre.failed { (message) } }
        }
    }
}

fn moment(ms: i64) -> String {
    match Timestamp::from_millisecond(ms) {
        Ok(time) => time.strftime("%Y-%m-%d %H:%M:%S%.3f UTC").to_string(),
        Err(_) => format!("{ms} ms"),
    }
}

fn provenance(verification: &Verification, story: &Story) -> Markup {
    let manifest = &story.manifest;
    let ended = story.run.ended_at_ms.map(moment).unwrap_or_default();
    let rows: Vec<(&str, String)> = vec![
        ("run", story.run.run.clone()),
        ("began", moment(story.run.started_at_ms)),
        ("ended", format!("{ended}, {}", story.run.outcome)),
        ("harness", manifest.harness.clone()),
        ("runner, BLAKE3", manifest.runner.clone().unwrap_or_else(|| "unknown".into())),
        ("provider", manifest.provider.clone()),
        ("seed", manifest.seed.to_string()),
        ("workload, BLAKE3", manifest.digests.workload.clone()),
        ("app, BLAKE3", manifest.digests.app.clone()),
        ("patches, BLAKE3", manifest.digests.patches.clone()),
        ("checks, BLAKE3", manifest.digests.checks.clone()),
        ("signer", verification.signer.clone().unwrap_or_else(|| "nobody".into())),
    ];
    html! {
        div.scroll { table { tbody { @for (name, value) in rows { tr { th { (name) } td { code { (value) } } } } } } }
        details { summary { "what the provider said of itself" }
            pre { (serde_json::to_string_pretty(&manifest.provider_says).unwrap_or_default()) } }
    }
}
