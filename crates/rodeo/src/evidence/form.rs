//! Whether the records of a bundle have the form that a run gives them: the right questions in the right order, to
//! machines that were there and are different ones. Without this a verdict would follow from observations of something
//! else. Decides nothing about a repair.

use std::collections::BTreeSet;

use super::open::Problem;
use super::verify::Story;
use crate::jobs::Ledger;
use crate::observe::{ANSWER_BYTES_MAX, Action, Answer, Attempt, Exchange, Preparation, Sighting};
use crate::probe::put_text;
use crate::provider::Machine;
use crate::reading;
use crate::records::{ForkRecord, Outcome};
use crate::workload::{Manifest, attempt_name};

/// How far a host's clock may be set back during a run, in milliseconds.
const CLOCK_BACK_MS_MAX: i64 = 2_000;

/// What is not in its form.
pub(super) fn check(story: &Story) -> Vec<Problem> {
    let mut form = Form { story, manifest: &story.case.workload.manifest, found: Vec::new() };
    form.run();
    for (role, record) in [("source", &story.source_prepared), ("twin", &story.twin_prepared)] {
        if let Some(record) = record {
            form.prepared(&format!("{role}-prepared.json"), record);
        }
    }
    if let Some(twin) = &story.twin {
        form.attempt("twin.json", &twin.attempt, None);
    }
    for branch in &story.branches {
        form.attempt(&format!("branch-{}.json", branch.patch), &branch.attempt, Some(&branch.patch));
    }
    if let Some(source) = &story.source {
        form.sighting("source.json", source.watch.sighting.as_ref());
        form.asked("source.json", "GET", "/status", None, source.watch.end.as_ref());
    }
    if let Some(cold) = &story.cold {
        form.attempt("cold-control.json", &cold.attempt, None);
        let mut steps = vec!["kill the program".to_owned(), "wait for its end".to_owned()];
        steps.extend(form.manifest.launch_texts());
        form.steps("cold-control.json", &cold.steps, &steps, cold.attempt.no_machine.is_none());
    }
    form.machines();
    form.left();
    form.found
}

struct Form<'a> {
    story: &'a Story,
    manifest: &'a Manifest,
    found: Vec<Problem>,
}

impl Form<'_> {
    fn wrong(&mut self, file: &str, message: impl Into<String>) {
        self.found.push(Problem::new(file, message));
    }

    fn must(&mut self, holds: bool, file: &str, message: &str) {
        if !holds {
            self.wrong(file, message);
        }
    }

    fn finished(&self) -> bool {
        self.story.run.outcome == Outcome::Finished
    }

    fn run(&mut self) {
        let run = &self.story.run;
        let ended = run.ended_at_ms.is_some_and(|ended| ended + CLOCK_BACK_MS_MAX >= run.started_at_ms);
        self.must(ended, "run.json", "it says of no end, or of one before its beginning");
        self.must(run.abilities.can(run.mode), "run.json", "its provider can't fork in its mode");
        self.must(run.harness == self.story.manifest.harness, "run.json", "its harness is not the manifest's");
        if self.finished() {
            self.must(run.error.is_none(), "run.json", "the run came to its end, and yet tells of an error");
        }
        let names = (1..).map(attempt_name).zip(&run.attempts).all(|(name, attempt)| name == attempt.name);
        self.must(names, "run.json", "its attempts are not numbered as a run numbers them");
    }

    /// That this was asked, once for what changes something, within the run.
    fn asked(&mut self, file: &str, method: &str, path: &str, sent: Option<&str>, exchange: Option<&Exchange>) {
        let Some(exchange) = exchange else { return };
        let asked = exchange.method == method && exchange.path == path && exchange.sent.as_deref() == sent;
        self.must(asked, file, &format!("a question in it is not {method} {path} with what a run sends there"));
        let once = exchange.attempts == 1 || (method == "GET" && exchange.attempts > 1);
        self.must(once, file, "it was not asked as often as a run asks");
        if let Answer::Response { body, .. } = &exchange.answer {
            self.must(body.len() <= ANSWER_BYTES_MAX, file, "an answer in it is longer than a run keeps");
        }
        self.within(file, exchange.at_ms);
    }

    fn within(&mut self, file: &str, at_ms: i64) {
        let run = &self.story.run;
        let first = run.started_at_ms.saturating_sub(CLOCK_BACK_MS_MAX);
        let last = run.ended_at_ms.unwrap_or(i64::MAX).saturating_add(CLOCK_BACK_MS_MAX);
        self.must((first..=last).contains(&at_ms), file, "it tells of a time that is not the run's");
    }

    fn steps(&mut self, file: &str, steps: &[Action], expected: &[String], whole: bool) {
        let same = steps.iter().zip(expected).all(|(step, expected)| step.what == *expected);
        self.must(same && steps.len() <= expected.len(), file, "its steps are not the workload's");
        if whole {
            let done = steps.len() == expected.len() && steps.iter().all(|step| step.error.is_none());
            self.must(done, file, "a step of it is missing or failed");
        }
        for step in steps {
            self.within(file, step.at_ms);
        }
    }

    fn prepared(&mut self, file: &str, record: &Preparation) {
        let mut steps: Vec<String> = self.manifest.prepare.iter().map(ToString::to_string).collect();
        steps.extend(self.manifest.launch_texts());
        self.steps(file, &record.steps, &steps, self.finished());
        let jobs = Ledger::submission(&self.story.case.ledger);
        self.asked(file, "POST", "/jobs", Some(&jobs), record.submitted.as_ref());
        self.asked(file, "GET", "/status", None, record.status.as_ref());
        if self.finished()
            && let Err(why) = reading::expect_status(record.submitted.as_ref(), 201)
        {
            self.wrong(file, format!("the submission: {why}"));
        }
    }

    fn sighting(&mut self, file: &str, sighting: Option<&Sighting>) {
        let Some(sighting) = sighting else { return };
        self.asked(file, "GET", "/status", None, Some(&sighting.status));
        self.must(sighting.files.folder == self.manifest.start.cwd, file, "markers were looked for elsewhere");
    }

    fn attempt(&mut self, file: &str, attempt: &Attempt, patch: Option<&str>) {
        self.asked(file, "GET", "/status", None, attempt.before.as_ref());
        if let Some(markers) = &attempt.markers {
            let (run, cwd) = (&self.story.run.run, &self.manifest.start.cwd);
            let memory = format!("{run} {}", patch.unwrap_or_default());
            let name = format!("rodeo-marker-{}", patch.unwrap_or_default());
            let put = put_text(&format!("{cwd}/{name}"), memory.as_bytes());
            let own = markers.memory == memory && markers.file == name && markers.put.what == put;
            self.must(own, file, "its markers are not its own");
            let sent = serde_json::json!({ "marker": memory }).to_string();
            self.asked(file, "POST", "/marker", Some(&sent), Some(&markers.set));
        }
        self.sighting(file, attempt.sighting.as_ref());
        self.asked(file, "POST", "/release", None, attempt.release.as_ref());
        self.asked(file, "GET", "/results", None, attempt.results.as_ref());
        self.asked(file, "GET", "/status", None, attempt.after.as_ref());
        let times = [
            attempt.before.as_ref().map(|exchange| exchange.at_ms),
            attempt.markers.as_ref().map(|markers| markers.set.at_ms),
            attempt.sighting.as_ref().map(|sighting| sighting.status.at_ms),
            attempt.put.as_ref().map(|put| put.at_ms),
            attempt.release.as_ref().map(|exchange| exchange.at_ms),
            attempt.results.as_ref().map(|exchange| exchange.at_ms),
            attempt.after.as_ref().map(|exchange| exchange.at_ms),
            attempt.liveness.as_ref().map(|liveness| liveness.at_ms),
        ];
        let times: Vec<i64> = times.into_iter().flatten().collect();
        let ordered = times
            .windows(2)
            .all(|pair| matches!(pair, [first, next] if next.saturating_add(CLOCK_BACK_MS_MAX) >= *first));
        self.must(ordered, file, "its observations are not in the order in which a run makes them");
    }

    /// Source, twin, branches and those of attempts are machines of their own, and those that the forks made.
    fn machines(&mut self) {
        let story = self.story;
        let mut seen = BTreeSet::new();
        let mut named: Vec<(String, &str)> = Vec::new();
        for (file, record) in
            [("source-prepared.json", &story.source_prepared), ("twin-prepared.json", &story.twin_prepared)]
        {
            named.extend(record.iter().map(|record| (file.to_owned(), record.machine.as_str())));
        }
        for branch in &story.branches {
            let machine = branch.attempt.machine.as_deref();
            named.extend(machine.map(|machine| (format!("branch-{}.json", branch.patch), machine)));
        }
        for attempt in &story.run.attempts {
            named.extend(attempt.machine.iter().map(|machine| ("run.json".to_owned(), machine.0.as_str())));
        }
        for (file, machine) in &named {
            let new = seen.insert(*machine);
            self.must(new, file, "its machine is another's as well");
        }
        let same = |attempt: Option<&Attempt>, of: &Option<Preparation>| match (attempt, of) {
            (Some(attempt), Some(of)) => attempt.machine.as_deref() == Some(of.machine.as_str()),
            _ => true,
        };
        let twin = same(story.twin.as_ref().map(|twin| &twin.attempt), &story.twin_prepared);
        self.must(twin, "twin.json", "its machine is not the twin's");
        let cold = same(story.cold.as_ref().map(|cold| &cold.attempt), &story.source_prepared);
        self.must(cold, "cold-control.json", "its machine is not the source's");
        if !story.branches.is_empty() {
            let branches = story.branches.iter().map(|branch| branch.attempt.machine.as_deref()).collect::<Vec<_>>();
            self.forked("fork.json", story.fork.as_ref(), &branches);
        }
        if !story.run.attempts.is_empty() {
            let machine = |machine: &Option<Machine>| machine.as_ref().map(|machine| machine.0.clone());
            let machines: Vec<_> = story.run.attempts.iter().map(|attempt| machine(&attempt.machine)).collect();
            let machines: Vec<_> = machines.iter().map(Option::as_deref).collect();
            self.forked("fork-attempts.json", story.fork_attempts.as_ref(), &machines);
        }
    }

    fn forked(&mut self, file: &str, fork: Option<&ForkRecord>, machines: &[Option<&str>]) {
        let Some(fork) = fork else {
            self.wrong(file, "without it nobody knows which machines the fork made");
            return;
        };
        let made: Vec<_> =
            fork.branches.iter().map(|branch| branch.as_ref().ok().map(|machine| machine.0.as_str())).collect();
        self.must(made == machines, file, "the machines that the fork made are not those that were used");
    }

    /// What cleanup removed is all that the run is known to have made.
    fn left(&mut self) {
        let story = self.story;
        if let Some(cleanup) = &story.cleanup {
            let removed: BTreeSet<&str> = cleanup.machines.iter().map(|one| one.machine.0.as_str()).collect();
            let mut made: Vec<&str> = Vec::new();
            made.extend(
                [&story.source_prepared, &story.twin_prepared].into_iter().flatten().map(|one| one.machine.as_str()),
            );
            for fork in [&story.fork, &story.fork_attempts].into_iter().flatten() {
                made.extend(fork.branches.iter().flatten().map(|machine| machine.0.as_str()));
                let captured =
                    fork.capture.iter().all(|capture| cleanup.captures.iter().any(|one| one.capture == *capture));
                self.must(captured, "cleanup.json", "a capture of the run is not among what it removed");
            }
            let all = made.iter().all(|machine| removed.contains(machine));
            self.must(all, "cleanup.json", "a machine of the run is not among those that it removed");
        }
        if let (Some(before), Some(after)) = (&story.before, &story.after)
            && let Some(now) = &after.inventory
        {
            self.must(
                after.added == now.beyond(before),
                "inventory-after.json",
                "what was added is not what the inventories give",
            );
        }
    }
}
