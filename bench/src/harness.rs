//! Runs the same work on two sides, turn by turn in one run: A B A B. It must never retry a failed turn, never leave
//! a side out of the report, and never judge a goal from sides that did not both run.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::Serialize;

use crate::stats::Summary;

/// One of the two that are compared.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Side {
    /// What it is called in the table.
    pub name: String,
    /// Its exact version.
    pub version: String,
    /// The flags and settings it ran with.
    pub flags: Vec<String>,
}

/// What a figure must reach.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(tag = "kind", content = "value", rename_all = "snake_case")]
pub(crate) enum Goal {
    /// Our median divided by the peer's median, at most.
    RatioAtMost(f64),
    /// Our median, at most, in milliseconds.
    MillisecondsAtMost(f64),
    /// How much more than the peer's median ours may be, in milliseconds.
    MillisecondsMoreAtMost(f64),
    /// Our median, at most, of a figure that is no time but a size in MiB.
    MebibytesAtMost(f64),
    /// Reported and not judged.
    None,
}

/// How a figure stands to its goal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Outcome {
    /// The goal is reached.
    Met,
    /// It is not, or our side failed.
    Missed,
    /// The peer could not run, so a ratio can't be told. Not a success.
    Undecided,
    /// There is no goal.
    NoGoal,
}

/// One side's part in a figure.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Entry {
    /// Who.
    pub side: Side,
    /// Milliseconds, one for each turn, in the order of the turns; MiB where the figure says so.
    pub samples_ms: Vec<f64>,
    /// Their statistics; absent where there are no samples.
    pub summary: Option<Summary>,
    /// Why it could not run, or stopped running.
    pub failure: Option<String>,
}

/// One figure: what was measured, on whom, against which goal.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Figure {
    /// What was measured.
    pub name: String,
    /// Our side.
    pub ours: Entry,
    /// The other side; absent for a goal in absolute terms.
    pub peer: Option<Entry>,
    /// Our median over the peer's.
    pub ratio: Option<f64>,
    /// What must be reached.
    pub goal: Goal,
    /// Whether it is.
    pub outcome: Outcome,
}

impl Figure {
    /// A figure that is no time and has no peer.
    pub(crate) fn of_value(name: &str, side: Side, value: Result<f64, String>, goal: Goal) -> Figure {
        let (samples_ms, failure) = match value {
            Ok(value) => (vec![value], None),
            Err(reason) => (Vec::new(), Some(reason)),
        };
        let ours = Entry { side, summary: Summary::of(&samples_ms), samples_ms, failure };
        let (ratio, outcome) = judge(goal, &ours, None);
        Figure { name: name.to_owned(), ours, peer: None, ratio, goal, outcome }
    }
}

/// One turn of one side: does the work once and tells how long the timed part took.
pub(crate) type Turn<'a> = Box<dyn FnMut() -> anyhow::Result<Duration> + 'a>;

/// A side that is ready to take turns, or the reason why it is not.
pub(crate) struct Contender<'a> {
    /// Who.
    pub side: Side,
    /// Its turn; an error where it could not be prepared.
    pub turn: Result<Turn<'a>, String>,
}

/// Set on Ctrl-C and SIGTERM; looked at between turns.
pub(crate) static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// A figure to be taken.
pub(crate) struct Contest<'a> {
    /// What is measured.
    pub name: &'a str,
    /// Counted turns of each side.
    pub rounds: usize,
    /// Turns of each side before that, not counted.
    pub warm_ups: usize,
    /// What must be reached.
    pub goal: Goal,
}

impl Contest<'_> {
    /// Takes the turns. A side that fails once is not run again, and its failure stands in the figure.
    pub(crate) fn run(&self, ours: Contender<'_>, peer: Option<Contender<'_>>) -> Figure {
        let mut ours = Runner::new(ours);
        let mut peer = peer.map(Runner::new);
        for round in 0..self.warm_ups + self.rounds {
            for runner in std::iter::once(&mut ours).chain(peer.as_mut()) {
                runner.take_turn(round >= self.warm_ups);
            }
        }
        let (ours, peer) = (ours.finish(), peer.map(Runner::finish));
        let (ratio, outcome) = judge(self.goal, &ours, peer.as_ref());
        Figure { name: self.name.to_owned(), ours, peer, ratio, goal: self.goal, outcome }
    }
}

struct Runner<'a> {
    side: Side,
    turn: Option<Turn<'a>>,
    samples_ms: Vec<f64>,
    failure: Option<String>,
}

impl<'a> Runner<'a> {
    fn new(contender: Contender<'a>) -> Self {
        let (turn, failure) = match contender.turn {
            Ok(turn) => (Some(turn), None),
            Err(reason) => (None, Some(reason)),
        };
        Runner { side: contender.side, turn, samples_ms: Vec::new(), failure }
    }

    fn take_turn(&mut self, counted: bool) {
        let Some(turn) = &mut self.turn else { return };
        let result = match INTERRUPTED.load(Ordering::Relaxed) {
            true => Err(anyhow::anyhow!("interrupted")),
            false => turn(),
        };
        match result {
            Ok(took) if counted => self.samples_ms.push(took.as_secs_f64() * 1e3),
            Ok(_) => {}
            Err(e) => {
                self.failure = Some(format!("{e:#}"));
                self.turn = None;
            }
        }
    }

    fn finish(self) -> Entry {
        let summary = Summary::of(&self.samples_ms);
        Entry { side: self.side, samples_ms: self.samples_ms, summary, failure: self.failure }
    }
}

/// The median of a side that took all of its turns; a row that broke off is no basis for a verdict.
fn whole_median(entry: &Entry) -> Option<f64> {
    match entry.failure {
        Some(_) => None,
        None => entry.summary.map(|s| s.median),
    }
}

fn judge(goal: Goal, ours: &Entry, peer: Option<&Entry>) -> (Option<f64>, Outcome) {
    let mine = whole_median(ours);
    let theirs = peer.and_then(whole_median);
    let ratio = match (mine, theirs) {
        (Some(mine), Some(theirs)) if theirs > 0.0 => Some(mine / theirs),
        _ => None,
    };
    let met = |yes: bool| if yes { Outcome::Met } else { Outcome::Missed };
    let outcome = match (goal, mine, ratio) {
        (Goal::None, ..) => Outcome::NoGoal,
        (_, None, _) => Outcome::Missed,
        (Goal::MillisecondsAtMost(limit) | Goal::MebibytesAtMost(limit), Some(mine), _) => met(mine <= limit),
        (Goal::MillisecondsMoreAtMost(limit), Some(mine), _) => match theirs {
            Some(theirs) => met(mine - theirs <= limit),
            None => Outcome::Undecided,
        },
        (Goal::RatioAtMost(limit), _, Some(ratio)) => met(ratio <= limit),
        (Goal::RatioAtMost(_), _, None) => Outcome::Undecided,
    };
    (ratio, outcome)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    fn side(name: &str) -> Side {
        Side { name: name.to_owned(), version: "1".to_owned(), flags: Vec::new() }
    }

    fn fixed(name: &str, ms: u64) -> Contender<'static> {
        Contender { side: side(name), turn: Ok(Box::new(move || Ok(Duration::from_millis(ms)))) }
    }

    fn contest(goal: Goal) -> Contest<'static> {
        Contest { name: "work", rounds: 3, warm_ups: 1, goal }
    }

    #[test]
    fn sides_take_turns_and_warm_ups_do_not_count() {
        let log = RefCell::new(String::new());
        let turn = |name: char| -> Turn<'_> {
            let log = &log;
            Box::new(move || {
                log.borrow_mut().push(name);
                Ok(Duration::from_millis(1))
            })
        };
        let ours = Contender { side: side("a"), turn: Ok(turn('A')) };
        let peer = Contender { side: side("b"), turn: Ok(turn('B')) };
        let figure = contest(Goal::None).run(ours, Some(peer));
        assert_eq!(*log.borrow(), "ABABABAB");
        assert_eq!(figure.ours.samples_ms.len(), 3);
        assert_eq!(figure.outcome, Outcome::NoGoal);
    }

    #[test]
    fn a_ratio_is_judged_from_the_medians() {
        let figure = contest(Goal::RatioAtMost(0.5)).run(fixed("a", 10), Some(fixed("b", 20)));
        assert_eq!((figure.ratio, figure.outcome), (Some(0.5), Outcome::Met));
        let figure = contest(Goal::RatioAtMost(0.5)).run(fixed("a", 11), Some(fixed("b", 20)));
        assert_eq!(figure.outcome, Outcome::Missed);
    }

    #[test]
    fn an_absolute_goal_needs_no_peer() {
        assert_eq!(contest(Goal::MillisecondsAtMost(10.0)).run(fixed("a", 10), None).outcome, Outcome::Met);
        assert_eq!(contest(Goal::MillisecondsAtMost(9.0)).run(fixed("a", 10), None).outcome, Outcome::Missed);
    }

    #[test]
    fn a_difference_needs_both_sides_and_a_size_needs_one() {
        let more = || contest(Goal::MillisecondsMoreAtMost(2.0));
        assert_eq!(more().run(fixed("a", 12), Some(fixed("b", 10))).outcome, Outcome::Met);
        assert_eq!(more().run(fixed("a", 13), Some(fixed("b", 10))).outcome, Outcome::Missed);
        let peer = Contender { side: side("b"), turn: Err("not installed".to_owned()) };
        assert_eq!(more().run(fixed("a", 1), Some(peer)).outcome, Outcome::Undecided);
        let of = |value| Figure::of_value("size", side("a"), value, Goal::MebibytesAtMost(4.0)).outcome;
        assert_eq!(
            (of(Ok(4.0)), of(Ok(4.1)), of(Err("no".to_owned()))),
            (Outcome::Met, Outcome::Missed, Outcome::Missed)
        );
    }

    #[test]
    fn a_peer_that_cannot_run_stays_in_the_figure_and_leaves_it_undecided() {
        let peer = Contender { side: side("b"), turn: Err("not installed".to_owned()) };
        let figure = contest(Goal::RatioAtMost(0.5)).run(fixed("a", 10), Some(peer));
        assert_eq!(figure.outcome, Outcome::Undecided);
        assert_eq!(figure.peer.unwrap().failure.as_deref(), Some("not installed"));
        assert_eq!(figure.ours.samples_ms.len(), 3);
    }

    #[test]
    fn a_side_that_breaks_off_is_not_run_again_and_not_judged() {
        let mut left = 2;
        let turn: Turn<'_> = Box::new(|| {
            left -= 1;
            anyhow::ensure!(left > 0, "fell over");
            Ok(Duration::from_millis(1))
        });
        let ours = Contender { side: side("a"), turn: Ok(turn) };
        let figure = contest(Goal::RatioAtMost(0.5)).run(ours, Some(fixed("b", 20)));
        assert_eq!((figure.outcome, figure.ratio), (Outcome::Missed, None));
        assert_eq!(figure.ours.failure.as_deref(), Some("fell over"));
        assert_eq!(figure.peer.unwrap().samples_ms.len(), 3);
        assert_eq!(left, 0);
    }
}
