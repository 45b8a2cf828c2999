//! The platform against a small model in memory, through random histories: calls with and without keys, repeated and
//! in conflict, calls that fail or are cut off somewhere in their middle, machines that die, servers that are killed,
//! hosts that are started anew, and clocks that step back.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use proptest::prelude::*;
use proptest_state_machine::{ReferenceStateMachine, StateMachineTest, prop_state_machine};
use remuda_engine::Death;
use remuda_stand_in::{Plan, Verdict};
use remuda_types::{ErrorCode, Generation, SandboxId, SandboxState, Slot, SnapshotId, SnapshotMode};

use super::audit;
use super::calls::{Asked, Told};
use super::world::World;
use crate::caller::Caller;

/// Sandboxes that live at once, so that histories meet themselves.
const LIVING_MAX: usize = 6;

/// What is asked; which one is meant is chosen among those that there are.
#[derive(Debug, Clone)]
enum What {
    Create(Option<u8>),
    Pause,
    Resume,
    Stop,
    Start,
    Capture(bool),
    Fork,
    Restore,
    Remove,
    RemoveSnapshot,
    Execute(bool),
}

#[derive(Debug, Clone)]
enum Step {
    Call { what: What, which: usize, key: Option<u8>, cut: Option<(usize, bool)> },
    Death { which: usize },
    Restart,
    Reboot,
    ClockStepsBack,
}

/// Only the choices are made ahead: what they come to depends on where a history was cut off, and the model below
/// follows.
#[derive(Debug, Clone)]
struct Choices;

impl ReferenceStateMachine for Choices {
    type State = ();
    type Transition = Step;

    fn init_state() -> BoxedStrategy<()> {
        Just(()).boxed()
    }

    fn transitions(_: &()) -> BoxedStrategy<Step> {
        let what = prop_oneof![
            5 => prop::option::of(0..3u8).prop_map(What::Create),
            2 => Just(What::Pause),
            2 => Just(What::Resume),
            2 => Just(What::Stop),
            2 => Just(What::Start),
            2 => any::<bool>().prop_map(What::Capture),
            1 => Just(What::Fork),
            2 => Just(What::Restore),
            2 => Just(What::Remove),
            1 => Just(What::RemoveSnapshot),
            3 => any::<bool>().prop_map(What::Execute),
        ];
        let cut = prop_oneof![3 => Just(None), 1 => (0..24usize, any::<bool>()).prop_map(Some)];
        let call = (what, any::<usize>(), prop::option::of(0..4u8), cut);
        prop_oneof![
            16 => call.prop_map(|(what, which, key, cut)| Step::Call { what, which, key, cut }),
            1 => any::<usize>().prop_map(|which| Step::Death { which }),
            2 => Just(Step::Restart),
            1 => Just(Step::Reboot),
            1 => Just(Step::ClockStepsBack),
        ]
        .boxed()
    }

    fn apply((): (), _: &Step) {}
}

/// What the platform is to be like.
#[derive(Debug, Default)]
struct Model {
    sandboxes: BTreeMap<SandboxId, SandboxState>,
    snapshots: BTreeMap<SnapshotId, bool>,
    /// What was first asked with a key, and told.
    keys: BTreeMap<String, (Asked, Told)>,
    newest: BTreeMap<Slot, Generation>,
}

impl Model {
    fn living(&self) -> usize {
        self.sandboxes.values().filter(|state| **state != SandboxState::Gone).count()
    }

    /// A call that can be made; none where there is nothing to make it on.
    fn asked(&self, what: &What, which: usize) -> Option<Asked> {
        let pick = || self.sandboxes.keys().nth(which % self.sandboxes.len().max(1)).cloned();
        // The newest are more of interest than those that ended long ago.
        let living: Vec<_> = self.sandboxes.iter().filter(|(_, state)| **state != SandboxState::Gone).collect();
        let sandbox = || match living.get(which % (living.len() + 1)) {
            Some((id, _)) => Some((*id).clone()),
            None => pick(),
        };
        let snapshot = || self.snapshots.keys().nth(which % self.snapshots.len().max(1)).cloned();
        let mode = |memory: &bool| if *memory { SnapshotMode::Memory } else { SnapshotMode::Filesystem };
        let grows = matches!(what, What::Create(_) | What::Fork | What::Restore);
        if grows && self.living() >= LIVING_MAX {
            return None;
        }
        Some(match what {
            What::Create(slot) => Asked::Create { slot: slot.map(|slot| format!("s{slot}").parse().unwrap()) },
            What::Pause => Asked::Pause(sandbox()?),
            What::Resume => Asked::Resume(sandbox()?),
            What::Stop => Asked::Stop(sandbox()?),
            What::Start => Asked::Start(sandbox()?),
            What::Capture(memory) => Asked::Capture(sandbox()?, mode(memory)),
            What::Fork => Asked::Fork(sandbox()?, 2, SnapshotMode::Memory),
            What::Restore => Asked::Restore(snapshot()?),
            What::Remove => Asked::Remove(sandbox()?),
            What::RemoveSnapshot => Asked::RemoveSnapshot(snapshot()?),
            What::Execute(long) => Asked::Execute(sandbox()?, if *long { "sleep 1" } else { "true" }),
        })
    }

    /// Why it must be refused as things stand, if it must.
    fn refusal(&self, asked: &Asked) -> Option<ErrorCode> {
        use SandboxState::{Gone, Paused, Running, Stopped};
        let of = |id: &SandboxId, fine: &[SandboxState]| match self.sandboxes[id] {
            Gone => Some(ErrorCode::GenerationGone),
            state if fine.contains(&state) => None,
            _ => Some(ErrorCode::WrongState),
        };
        match asked {
            Asked::Create { slot } => {
                let slot = slot.as_ref()?;
                let taken = self.sandboxes.iter().any(|(id, state)| id.slot == *slot && *state != Gone);
                taken.then_some(ErrorCode::SlotInUse)
            }
            // Of one without processes there are the files.
            Asked::Capture(id, SnapshotMode::Filesystem) => of(id, &[Running, Paused, Stopped]),
            Asked::Pause(id) | Asked::Resume(id) | Asked::Capture(id, _) | Asked::Fork(id, ..) => {
                of(id, &[Running, Paused])
            }
            Asked::Stop(id) => of(id, &[Running, Paused, Stopped]),
            Asked::Start(id) => of(id, &[Stopped]),
            Asked::Execute(id, _) => of(id, &[Running]),
            Asked::Restore(id) => (!self.snapshots[id]).then_some(ErrorCode::SnapshotNotActive),
            Asked::Remove(_) | Asked::RemoveSnapshot(_) => None,
        }
    }

    /// The state of what a call addresses, once it has done what it is for.
    fn addressed(asked: &Asked) -> Option<(SandboxId, SandboxState)> {
        let (id, state) = match asked {
            Asked::Pause(id) => (id, SandboxState::Paused),
            Asked::Resume(id) => (id, SandboxState::Running),
            Asked::Stop(id) => (id, SandboxState::Stopped),
            Asked::Start(id) | Asked::Remove(id) => (id, SandboxState::Gone),
            _ => return None,
        };
        Some((id.clone(), state))
    }

    /// Takes in what a call that was done has made and changed.
    fn done(&mut self, asked: &Asked, told: &Told) {
        if let Some((id, state)) = Model::addressed(asked) {
            self.sandboxes.insert(id, state);
        }
        for id in told.made(asked) {
            self.appears(&id);
        }
        if let Some(id) = told.captured(asked) {
            self.snapshots.insert(id, true);
        }
        if let Asked::RemoveSnapshot(id) = asked {
            self.snapshots.insert(id.clone(), false);
        }
    }

    fn appears(&mut self, id: &SandboxId) {
        let newest = self.newest.insert(id.slot.clone(), id.generation);
        assert!(newest.is_none_or(|newest| newest < id.generation), "{id} after {newest:?}");
        self.sandboxes.insert(id.clone(), SandboxState::Running);
    }
}

/// A key is one for each kind and each generation that is addressed.
fn key_of(asked: &Asked, number: u8) -> String {
    let target = match asked {
        Asked::Create { .. } | Asked::Restore(_) | Asked::RemoveSnapshot(_) => String::new(),
        Asked::Pause(id) | Asked::Resume(id) | Asked::Stop(id) | Asked::Start(id) | Asked::Remove(id) => id.to_string(),
        Asked::Capture(id, _) | Asked::Fork(id, ..) | Asked::Execute(id, _) => id.to_string(),
    };
    format!("{:?}-{target}-{number}", std::mem::discriminant(asked))
}

struct Story {
    world: World,
    model: Model,
}

impl Story {
    fn call(&mut self, asked: Asked, key: Option<u8>, cut: Option<(usize, bool)>) {
        let name = key.map(|number| key_of(&asked, number));
        let sent = key.map(|number| format!("key-{number}"));
        let known = name.as_ref().and_then(|name| self.model.keys.get(name)).cloned();
        let plan = cut.map(|(at, dies)| Plan { at, verdict: if dies { Verdict::Die } else { Verdict::Fail } });
        if plan.is_some() {
            self.world.session().plan(plan);
        }
        let told = self.world.run(|platform| asked.clone().of(platform, sent.clone()));
        let settled = self.world.settle();
        let points = self.world.session().rest();
        let point = plan.and_then(|plan| points.get(plan.at));
        let reached = point.is_some();
        // What could not be written is settled by the next server.
        let unwritten = point.is_some_and(|point| point.contains("commit"));
        if self.world.session().is_dead() || !settled || unwritten {
            self.world.restart();
        }
        match (known, told) {
            (Some((first, outcome)), told) => {
                // Whatever was to go wrong: nothing but a look at the key is done.
                let Some(told) = told else { return };
                if first == asked {
                    assert_eq!(told.outcome(), outcome.outcome(), "{asked:?} with the key of {first:?}");
                } else {
                    let code = told.result.map_err(|e| e.code);
                    assert_eq!(code, Err(ErrorCode::IdempotencyKeyConflict), "{asked:?} with the key of {first:?}");
                }
            }
            (None, Some(told)) if !reached => {
                let refusal = self.model.refusal(&asked);
                assert_eq!(told.result.as_ref().err().map(|e| e.code), refusal, "{asked:?}: {told:?}");
                assert!(!told.replayed, "{asked:?}: {told:?}");
                if refusal.is_none() {
                    self.model.done(&asked, &told);
                    self.model.keys.extend(name.map(|name| (name, (asked, told))));
                }
            }
            (None, told) => self.cut_off(asked, told, name, sent),
        }
    }

    /// It was done or not; nothing else has changed. With a key, everybody is told the same from now on.
    fn cut_off(&mut self, asked: Asked, told: Option<Told>, name: Option<String>, sent: Option<String>) {
        if let Some(id) = told.as_ref().and_then(|told| told.half_ended(&asked)) {
            let again = Asked::Remove(id);
            let told = self.world.ask(|platform| again.clone().of(platform, None));
            assert!(told.result.is_ok(), "{again:?}: {told:?}");
            self.model.done(&again, &told);
            self.world.settle();
        }
        let addressed = Model::addressed(&asked);
        let target = addressed.as_ref().map(|(id, _)| id.clone()).or(match &asked {
            Asked::Capture(id, _) | Asked::Fork(id, ..) | Asked::Execute(id, _) => Some(id.clone()),
            _ => None,
        });
        for (id, state) in self.seen() {
            let Some(before) = self.model.sandboxes.get(&id).copied() else {
                assert!(matches!(asked, Asked::Create { .. } | Asked::Fork(..) | Asked::Restore(_) | Asked::Start(_)));
                self.model.appears(&id);
                // A start whose machine did not come up leaves its generation stopped.
                assert!(
                    state == SandboxState::Running || matches!(asked, Asked::Start(_)),
                    "{id} is {state}: {asked:?}"
                );
                self.model.sandboxes.insert(id, state);
                continue;
            };
            let after = addressed.as_ref().filter(|(addressed, _)| *addressed == id).map(|(_, after)| *after);
            let died = target.as_ref() == Some(&id) && state == SandboxState::Stopped;
            assert!(state == before || Some(state) == after || died, "{id} was {before} and is {state}: {asked:?}");
            self.model.sandboxes.insert(id, state);
        }
        self.look_for_snapshots();
        let (Some(name), Some(sent)) = (name, sent) else { return };
        let first = told.filter(|told| told.result.is_ok());
        let again = self.world.ask(|platform| asked.clone().of(platform, Some(sent)));
        self.world.settle();
        if let Some(first) = first {
            assert_eq!(first.outcome(), again.outcome(), "{asked:?}");
        }
        if !again.replayed && again.result.is_ok() {
            self.model.done(&asked, &again);
        }
        // What is refused stores nothing, and is not told as an outcome.
        if again.replayed || again.result.is_ok() {
            self.model.keys.insert(name, (asked, again));
        }
    }

    /// All sandboxes on record, ended ones too.
    fn seen(&self) -> BTreeMap<SandboxId, SandboxState> {
        let all = self.world.ask(|platform| async move { platform.list(&Caller::operator(), true).await.unwrap() });
        // One that never came up is no state of the model's.
        let all = all.into_iter().filter(|sandbox| sandbox.state != SandboxState::Failed);
        all.map(|sandbox| (sandbox.id, sandbox.state)).collect()
    }

    fn look_for_snapshots(&mut self) {
        let all = self.world.ask(|platform| async move {
            let of_forks: Vec<_> = platform
                .registry()
                .tables()
                .snapshots()
                .iter()
                .filter(|s| s.doc().of_fork)
                .map(|s| s.id.clone())
                .collect();
            let mut all = platform.snapshots(&Caller::operator(), Default::default()).await.unwrap().snapshots;
            all.retain(|snapshot| !of_forks.contains(&snapshot.id));
            all
        });
        for active in self.model.snapshots.values_mut() {
            *active = false;
        }
        for snapshot in all {
            self.model.snapshots.insert(snapshot.id, true);
        }
    }

    fn death(&mut self, which: usize) {
        let running = [SandboxState::Running, SandboxState::Paused];
        let alive: Vec<_> =
            self.model.sandboxes.iter().filter(|(_, s)| running.contains(s)).map(|(id, _)| id.clone()).collect();
        let Some(id) = alive.get(which % alive.len().max(1)).cloned() else { return };
        let (asked, host) = (id.clone(), self.world.host.clone());
        self.world.ask(move |platform| async move {
            let caller = Caller::operator();
            let uid = platform.show(&caller, &asked).await.unwrap().uid;
            assert!(host.end(&uid, Death::Ended));
            while platform.show(&caller, &asked).await.unwrap().state != SandboxState::Stopped {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        });
        self.model.sandboxes.insert(id, SandboxState::Stopped);
    }

    fn check(&self) {
        assert_eq!(self.seen(), self.model.sandboxes);
        let host = self.world.host.clone();
        let faults = self.world.ask(|platform| audit::faults(platform, host, None));
        assert!(faults.is_empty(), "{faults:#?}");
    }
}

impl StateMachineTest for Story {
    type SystemUnderTest = Story;
    type Reference = Choices;

    fn init_test((): &()) -> Story {
        Story { world: World::new(), model: Model::default() }
    }

    fn apply(mut story: Story, (): &(), step: Step) -> Story {
        match step {
            Step::Call { what, which, key, cut } => {
                if let Some(asked) = story.model.asked(&what, which) {
                    story.call(asked, key, cut);
                }
            }
            Step::Death { which } => story.death(which),
            Step::Restart => story.world.restart(),
            Step::Reboot => {
                story.world.kill();
                story.world.host.reboot();
                story.world.restart();
                for state in story.model.sandboxes.values_mut().filter(|state| **state != SandboxState::Gone) {
                    *state = SandboxState::Stopped;
                }
            }
            Step::ClockStepsBack => drop(crate::clock::STEPPED_BACK_MS.fetch_add(3_000, Ordering::SeqCst)),
        }
        story.world.settle();
        story.check();
        story
    }
}

prop_state_machine! {
    #![proptest_config(ProptestConfig { cases: 16, max_shrink_iters: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_platform_is_as_the_model_says(sequential 1..32 => Story);
}
