//! The control plane's part of the benchmark `journal`: calls of the platform itself, with a real journal whose every
//! commit is synced, on a host that stands in for gVisor, so that machines cost nothing.

mod plane;
mod restart;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use remuda_types::wire::StartExecution;

use crate::harness::{Contender, Contest, Figure, Goal, Side, Turn};
use crate::journal::{CLIENTS, CREATES, Measured, RECORDS, REPLAYS, SECOND_MS};
use crate::world::World;
use plane::Plane;

/// Executions of one turn.
const EXECUTIONS: usize = 20;
/// What every commit takes longer where executions are measured, in milliseconds.
const SLOW_COMMIT_MS: u64 = 50;

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Work {
    Create,
    Replay,
    Status,
    StatusOfEnded,
}

impl Work {
    const ALL: [Work; 4] = [Work::Create, Work::Replay, Work::Status, Work::StatusOfEnded];

    fn name(self) -> &'static str {
        match self {
            Work::Create => "keyed create of the platform",
            Work::Replay => "replay of a keyed create of the platform",
            Work::Status => "status of a sandbox that lives",
            Work::StatusOfEnded => "status of a sandbox that has ended",
        }
    }

    fn calls(self) -> usize {
        if self == Work::Create { CREATES } else { REPLAYS }
    }

    /// One turn; what it makes is removed again, outside of the time.
    fn turn(self, world: &World, plane: &Arc<Plane>) -> anyhow::Result<Measured<()>> {
        let calls = self.calls();
        let shared = plane.clone();
        let measured = crate::journal::all_at_once(world, CLIENTS, calls, move |n| {
            let plane = shared.clone();
            async move {
                match self {
                    Work::Create => plane.create(plane.next.fetch_add(1, Ordering::Relaxed)).await.map(Some),
                    Work::Replay => plane.replay(n).await.map(|()| None),
                    Work::Status => plane.status(n).await.map(|()| None),
                    Work::StatusOfEnded => plane.status_of_ended(n).await.map(|()| None),
                }
            }
        })?;
        let Measured { whole, each, results } = measured;
        plane.remove_all(world, results.into_iter().flatten().collect())?;
        Ok(Measured { whole, each, results: Vec::new() })
    }
}

fn contender<'a>(
    plane: &'a Result<Arc<Plane>, String>,
    records: usize,
    turn: impl Fn(&Arc<Plane>) -> anyhow::Result<Duration> + 'a,
) -> Contender<'a> {
    let flags = vec![format!("{records} records, {CLIENTS} clients, every commit synced, a host that stands in")];
    let version = env!("CARGO_PKG_VERSION").to_owned();
    let side = Side { name: format!("control plane with {records} records"), version, flags };
    let turn = plane.as_ref().map_err(Clone::clone).map(|plane| -> Turn<'a> { Box::new(move || turn(plane)) });
    Contender { side, turn }
}

/// The rates, which have goals; how the percentiles grow; executions on a slow disk; restarts.
pub(crate) fn figures(world: &World, rounds: usize) -> anyhow::Result<Vec<Figure>> {
    let [few, many] = RECORDS;
    let open = |records: usize, name: &str| {
        Plane::new(world, &world.scratch.join(name), records).map_err(|e| format!("{e:#}"))
    };
    let (small, large) = (open(few, "control-small"), open(many, "control-large"));
    let mut figures = Vec::new();
    for work in Work::ALL {
        let name = format!("{} × {}", work.calls(), work.name());
        let contest = Contest { name: &name, rounds, warm_ups: 1, goal: Goal::MillisecondsAtMost(SECOND_MS) };
        figures.push(contest.run(contender(&large, many, |plane| Ok(work.turn(world, plane)?.whole)), None));
    }
    for work in Work::ALL {
        for share in [0.5, 0.99] {
            let name = format!("p{:.0} of a {}", share * 100.0, work.name());
            let contest = Contest { name: &name, rounds, warm_ups: 1, goal: Goal::None };
            let ours = contender(&large, many, |plane| Ok(work.turn(world, plane)?.percentile(share)));
            let peer = contender(&small, few, |plane| Ok(work.turn(world, plane)?.percentile(share)));
            figures.push(contest.run(ours, Some(peer)));
        }
    }
    figures.push(executions(world, rounds, &small));
    drop((small, large));
    figures.push(restart::stand_ins(world, rounds));
    figures.push(restart::real(world, rounds));
    Ok(figures)
}

/// An execution without a key must wait for no commit; one with a key waits for two.
fn executions(world: &World, rounds: usize, plane: &Result<Arc<Plane>, String>) -> Figure {
    let side = |name: &str, keyed: bool| {
        let flags = vec![format!("{EXECUTIONS} in turn, each commit takes {SLOW_COMMIT_MS} ms more")];
        let side = Side { name: name.to_owned(), version: env!("CARGO_PKG_VERSION").to_owned(), flags };
        let turn = plane.as_ref().map_err(Clone::clone).map(|plane| -> Turn<'_> {
            Box::new(move || {
                plane.slow_down(SLOW_COMMIT_MS);
                let request = StartExecution {
                    argv: Some(vec!["true".to_owned()]),
                    wait_ms: Some(10_000),
                    ..StartExecution::default()
                };
                let measured = plane.clone();
                let measured = crate::journal::all_at_once(world, 1, EXECUTIONS, move |_| {
                    let (plane, request) = (measured.clone(), request.clone());
                    async move { plane.execute(keyed, request).await }
                });
                plane.slow_down(0);
                Ok(measured?.percentile(0.5))
            })
        });
        Contender { side, turn }
    };
    let contest = Contest {
        name: "exec `true` without a key, on a disk that is slow, against the same with a key",
        rounds,
        warm_ups: 1,
        goal: Goal::RatioAtMost(0.5),
    };
    contest.run(side("without a key", false), Some(side("with a key", true)))
}
