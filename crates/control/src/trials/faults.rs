//! Every operation, failed once at each of its effects and at each write of the journal, and cut off there by a kill of
//! the server: after it, and after a recovery that is itself cut off, everything is as one of two outcomes says, and
//! whoever repeats the call with its key is told which.

use std::collections::BTreeMap;

use remuda_stand_in::{Plan, Verdict};
use remuda_types::{ErrorCode, Generation, SandboxId, Slot, SnapshotId, SnapshotMode};

use super::audit;
use super::calls::{Asked, Told};
use super::world::World;

/// Goes through the trials of one kind of call.
struct Trial {
    world: World,
    number: u32,
    newest: BTreeMap<Slot, Generation>,
}

impl Trial {
    fn new() -> Trial {
        Trial { world: World::new(), number: 0, newest: BTreeMap::new() }
    }

    fn key(&mut self) -> String {
        self.number += 1;
        format!("key-{}", self.number)
    }

    fn ask(&mut self, asked: &Asked, key: Option<String>) -> Told {
        let told = self.world.ask(|platform| asked.clone().of(platform, key));
        self.note(asked, &told);
        told
    }

    /// Generations of a slot grow.
    fn note(&mut self, asked: &Asked, told: &Told) {
        for id in told.made(asked).iter().filter(|_| !told.replayed) {
            let newest = self.newest.insert(id.slot.clone(), id.generation);
            assert!(newest.is_none_or(|newest| newest < id.generation), "{id} after {newest:?}");
        }
    }

    fn good(&mut self, asked: Asked) -> Told {
        let told = self.ask(&asked, None);
        assert!(told.result.is_ok(), "{asked:?}: {told:?}");
        told
    }

    fn running(&mut self) -> SandboxId {
        let asked = Asked::Create { slot: None };
        let told = self.good(asked.clone());
        told.made(&asked).remove(0)
    }

    fn snapshot(&mut self, mode: SnapshotMode) -> SnapshotId {
        let source = self.running();
        self.good(Asked::Execute(source.clone(), "sleep 1"));
        let asked = Asked::Capture(source.clone(), mode);
        let id = self.good(asked.clone()).captured(&asked).unwrap();
        self.good(Asked::Remove(source));
        id
    }

    fn audit(&self, what: &str, half_ended: Option<SandboxId>) {
        let host = self.world.host.clone();
        let faults = self.world.ask(|platform| audit::faults(platform, host, half_ended));
        assert!(faults.is_empty(), "{what}: {faults:#?}");
    }

    /// Removes everything, so that the next trial begins with nothing.
    fn clear(&mut self) {
        let (sandboxes, snapshots) = self.world.ask(|platform| async move {
            let caller = crate::caller::Caller::operator();
            let snapshots = platform.snapshots(&caller, Default::default()).await.unwrap().snapshots;
            (platform.list(&caller, false).await.unwrap(), snapshots)
        });
        for sandbox in sandboxes {
            self.good(Asked::Remove(sandbox.id));
        }
        for snapshot in snapshots {
            self.good(Asked::RemoveSnapshot(snapshot.id));
        }
        self.world.settle();
    }

    /// One call with one thing going wrong. `again` cuts off the recovery, too.
    fn once(
        &mut self,
        prepare: &dyn Fn(&mut Trial) -> Asked,
        plan: Option<Plan>,
        again: Option<usize>,
    ) -> Vec<&'static str> {
        let asked = prepare(self);
        self.world.settle();
        let what = format!("{asked:?} with {plan:?}, recovery cut off at {again:?}");
        let key = self.key();
        self.world.session().plan(plan);
        let first = self.world.run(|platform| asked.clone().of(platform, Some(key.clone())));
        let settled = self.world.settle();
        let points = self.world.session().rest();
        if let Some(told) = &first {
            self.note(&asked, told);
        }
        // What could not be written is settled by the next server.
        let unwritten = plan.is_some_and(|plan| points.get(plan.at).is_some_and(|point| point.contains("commit")));
        if self.world.session().is_dead() || !settled || unwritten {
            self.world.kill();
            let cut = again.map(|at| Plan { at, verdict: Verdict::Die });
            if cut.is_none() || !self.world.start(cut) {
                self.world.kill();
                self.world.start(None);
            }
            self.world.settle();
            if self.world.session().is_dead() {
                self.world.restart();
            }
            let _ = self.world.session().rest();
        }
        let what = format!("{what}, points {points:?}");
        let half_ended = first.as_ref().and_then(|told| told.half_ended(&asked));
        self.audit(&what, half_ended.clone());
        let second = self.ask(&asked, Some(key.clone()));
        let third = self.ask(&asked, Some(key));
        assert_eq!(second.outcome(), third.outcome(), "{what}");
        let code = |told: &Told| told.result.as_ref().err().map(|e| e.code);
        assert_ne!(code(&third), Some(ErrorCode::OperationInProgress), "{what}");
        if let Some(first) = &first
            && first.result.is_ok()
        {
            assert_eq!(first.outcome(), second.outcome(), "{what}");
            assert!(second.replayed, "{what}");
        }
        let held = self.world.ask(|platform| asked.clone().holds(platform, second.clone()));
        assert_eq!(held, Ok(()), "{what}: {second:?}");
        self.world.settle();
        self.audit(&format!("repeated: {what}"), half_ended);
        self.clear();
        self.audit(&format!("cleared: {what}"), None);
        points
    }

    /// Every point of a call, failed and cut off.
    fn all(prepare: impl Fn(&mut Trial) -> Asked) {
        let mut trial = Trial::new();
        let points = trial.once(&prepare, None, None);
        assert!(points.len() > 2, "{points:?}");
        for at in 0..points.len() {
            trial.once(&prepare, Some(Plan { at, verdict: Verdict::Fail }), None);
            trial.once(&prepare, Some(Plan { at, verdict: Verdict::Die }), None);
            trial.once(&prepare, Some(Plan { at, verdict: Verdict::Die }), Some(at % 5));
        }
    }
}

#[test]
fn a_creation() {
    Trial::all(|_| Asked::Create { slot: Some("small".parse().unwrap()) });
}

#[test]
fn a_pause() {
    Trial::all(|trial| Asked::Pause(trial.running()));
}

#[test]
fn a_resume() {
    Trial::all(|trial| {
        let id = trial.running();
        trial.good(Asked::Pause(id.clone()));
        Asked::Resume(id)
    });
}

#[test]
fn a_capture_of_memory() {
    Trial::all(|trial| {
        let id = trial.running();
        trial.good(Asked::Execute(id.clone(), "sleep 1"));
        Asked::Capture(id, SnapshotMode::Memory)
    });
}

#[test]
fn a_capture_of_files() {
    Trial::all(|trial| Asked::Capture(trial.running(), SnapshotMode::Filesystem));
}

#[test]
fn a_capture_of_what_is_stopped() {
    Trial::all(|trial| {
        let id = trial.running();
        trial.good(Asked::Stop(id.clone()));
        Asked::Capture(id, SnapshotMode::Filesystem)
    });
}

#[test]
fn a_capture_of_what_is_paused() {
    Trial::all(|trial| {
        let id = trial.running();
        trial.good(Asked::Pause(id.clone()));
        Asked::Capture(id, SnapshotMode::Memory)
    });
}

#[test]
fn a_fork() {
    Trial::all(|trial| {
        let id = trial.running();
        trial.good(Asked::Execute(id.clone(), "sleep 1"));
        Asked::Fork(id, 2, SnapshotMode::Memory)
    });
}

#[test]
fn a_restore_of_memory() {
    Trial::all(|trial| Asked::Restore(trial.snapshot(SnapshotMode::Memory)));
}

#[test]
fn a_restore_of_files() {
    Trial::all(|trial| Asked::Restore(trial.snapshot(SnapshotMode::Filesystem)));
}

#[test]
fn an_execution() {
    Trial::all(|trial| Asked::Execute(trial.running(), "sleep 1"));
}

#[test]
fn a_stop() {
    Trial::all(|trial| Asked::Stop(trial.running()));
}

#[test]
fn a_start() {
    Trial::all(|trial| {
        let id = trial.running();
        trial.good(Asked::Stop(id.clone()));
        Asked::Start(id)
    });
}

#[test]
fn a_removal() {
    Trial::all(|trial| Asked::Remove(trial.running()));
}

#[test]
fn a_removal_of_what_is_stopped() {
    Trial::all(|trial| {
        let id = trial.running();
        trial.good(Asked::Stop(id.clone()));
        Asked::Remove(id)
    });
}

#[test]
fn a_removal_of_a_snapshot() {
    Trial::all(|trial| Asked::RemoveSnapshot(trial.snapshot(SnapshotMode::Memory)));
}
