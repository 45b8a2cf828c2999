//! The journal against a small model of it in memory: the same calls, the same answers, over any order, with clocks
//! that jump and servers that end in between.

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest_state_machine::{ReferenceStateMachine, StateMachineTest, prop_state_machine};
use remuda_journal::*;
use remuda_types::{Generation, OperationId, OperationState, SandboxId, SandboxState, Uid};
use serde_json::json;
use tokio::runtime::Runtime;

use crate::world::*;

const KEYS: usize = 4;
const HELD_MAX: u64 = 4;

/// A call of the journal. Operations are named by the order in which they became new.
#[derive(Debug, Clone)]
enum Call {
    Admit { key: Option<usize>, request: u8, slot: Option<u8> },
    Step { operation: usize, name: u8 },
    Finish { operation: usize, how: u8, ends: bool },
    End { operation: usize },
    Forbid { key: usize },
    Evict,
    Wait { ms: i64 },
    Reopen,
}

/// What a call must answer, as far as the model tells.
#[derive(Debug, Clone, PartialEq)]
enum Answer {
    New(usize, SandboxId),
    Replay(usize),
    InFlight(usize),
    Conflict(usize),
    Cancelled,
    LimitReached,
    SlotInUse,
    Stepped,
    SteppedBefore(usize),
    Ended,
    Unknown,
    Finished,
    FinishedBefore(u8),
    Forbidden,
    Admitted(usize),
    Evicted { operations: usize, tombstones: usize, sandboxes: usize },
    Nothing,
}

#[derive(Debug, Clone, PartialEq)]
enum Kept {
    Whole,
    Tombstone { until: i64 },
    Nothing,
}

#[derive(Debug, Clone)]
struct ModelOperation {
    key: Option<usize>,
    request: u8,
    admitted: i64,
    steps: Vec<(u8, usize)>,
    outcome: Option<u8>,
    kept: Kept,
    sandbox: SandboxId,
    ended: Option<i64>,
    recorded: bool,
}

#[derive(Debug, Clone)]
struct Model {
    now: i64,
    operations: Vec<ModelOperation>,
    newest: BTreeMap<String, i64>,
    cancelled: BTreeMap<usize, i64>,
    events: u64,
    calls: usize,
    answer: Answer,
}

impl Model {
    fn of_key(&self, key: usize) -> Option<usize> {
        self.operations.iter().rposition(|o| o.key == Some(key) && o.kept != Kept::Nothing)
    }

    fn held(&self) -> u64 {
        self.operations.iter().filter(|o| o.ended.is_none()).count() as u64
    }

    fn occupied(&self, slot: &str) -> bool {
        self.operations.iter().any(|o| o.ended.is_none() && o.sandbox.slot.as_str() == slot)
    }

    fn admit(&mut self, key: Option<usize>, request: u8, slot: Option<u8>) -> Answer {
        if let Some(key) = key {
            if let Some(n) = self.of_key(key) {
                let found = &self.operations[n];
                return match (found.request == request, found.outcome) {
                    (false, _) => Answer::Conflict(n),
                    (true, None) => Answer::InFlight(n),
                    (true, Some(_)) => Answer::Replay(n),
                };
            }
            if self.cancelled.contains_key(&key) {
                return Answer::Cancelled;
            }
        }
        if self.held() >= HELD_MAX {
            return Answer::LimitReached;
        }
        let slot = match slot {
            Some(n) => format!("s{n}"),
            None => (1..).map(|n| format!("c{n}")).find(|slot| !self.occupied(slot)).unwrap(),
        };
        if self.occupied(&slot) {
            return Answer::SlotInUse;
        }
        let newest = self.newest.get(&slot).copied();
        let generation = newest.map_or(self.now, |newest| self.now.max(newest + 1));
        self.newest.insert(slot.clone(), generation);
        let generation = Generation::from_unix_ms(generation).unwrap();
        let sandbox = SandboxId { slot: slot.parse().unwrap(), generation };
        self.operations.push(ModelOperation {
            key,
            request,
            admitted: self.now,
            steps: Vec::new(),
            outcome: None,
            kept: Kept::Whole,
            sandbox: sandbox.clone(),
            ended: None,
            recorded: true,
        });
        Answer::New(self.operations.len() - 1, sandbox)
    }

    fn step(&mut self, n: usize, name: u8) -> Answer {
        let operation = &mut self.operations[n];
        if operation.kept != Kept::Whole {
            return Answer::Unknown;
        }
        if let Some((_, data)) = operation.steps.iter().find(|(known, _)| *known == name) {
            return Answer::SteppedBefore(*data);
        }
        if operation.outcome.is_some() {
            return Answer::Ended;
        }
        operation.steps.push((name, self.calls));
        self.events += 1;
        Answer::Stepped
    }

    fn finish(&mut self, n: usize, how: u8, ends: bool) -> Answer {
        let now = self.now;
        let operation = &mut self.operations[n];
        if operation.kept != Kept::Whole {
            return Answer::Unknown;
        }
        if let Some(how) = operation.outcome {
            return Answer::FinishedBefore(how);
        }
        operation.outcome = Some(how);
        if ends {
            operation.ended.get_or_insert(now);
        }
        Answer::Finished
    }

    fn evict(&mut self) -> Answer {
        let (now, before) = (self.now, self.operations.clone());
        let cancelled = self.cancelled.len();
        self.cancelled.retain(|_, until| *until > now);
        let mut tombstones = cancelled - self.cancelled.len();
        let mut operations = 0;
        let mut sandboxes = 0;
        for (operation, before) in self.operations.iter_mut().zip(before) {
            match before.kept {
                Kept::Tombstone { until } if until <= now => {
                    operation.kept = Kept::Nothing;
                    tombstones += 1;
                }
                Kept::Whole if before.outcome.is_some() && before.admitted + limits::KEY_RETENTION_MS <= now => {
                    operation.kept = match before.key {
                        Some(_) => Kept::Tombstone { until: now + limits::TOMBSTONE_MS_MIN },
                        None => Kept::Nothing,
                    };
                    operations += 1;
                }
                _ => {}
            }
            // What an operation without an outcome has made stays, so that the outcome can be written.
            let old = before.outcome.is_some() && before.recorded;
            if old && before.ended.is_some_and(|ended| ended <= now - limits::ENDED_RETENTION_MS) {
                operation.recorded = false;
                sandboxes += 1;
            }
        }
        Answer::Evicted { operations, tombstones, sandboxes }
    }
}

impl ReferenceStateMachine for Model {
    type State = Model;
    type Transition = Call;

    fn init_state() -> BoxedStrategy<Model> {
        Just(Model {
            now: NOW,
            operations: Vec::new(),
            newest: BTreeMap::new(),
            cancelled: BTreeMap::new(),
            events: 0,
            calls: 0,
            answer: Answer::Nothing,
        })
        .boxed()
    }

    fn transitions(model: &Model) -> BoxedStrategy<Call> {
        let admit = (proptest::option::weighted(0.9, 0..KEYS), 0..2_u8, proptest::option::of(0..2_u8))
            .prop_map(|(key, request, slot)| Call::Admit { key, request, slot });
        let alone = prop_oneof![
            8 => admit,
            2 => (0..KEYS).prop_map(|key| Call::Forbid { key }),
            2 => Just(Call::Evict),
            3 => prop_oneof![-HOUR..HOUR, Just(24 * HOUR), Just(-48 * HOUR), Just(31 * 24 * HOUR)]
                .prop_map(|ms| Call::Wait { ms }),
            1 => Just(Call::Reopen),
        ];
        if model.operations.is_empty() {
            return alone.boxed();
        }
        let one = 0..model.operations.len();
        prop_oneof![
            10 => alone,
            3 => (one.clone(), 0..3_u8).prop_map(|(operation, name)| Call::Step { operation, name }),
            5 => (one.clone(), 0..3_u8, any::<bool>())
                .prop_map(|(operation, how, ends)| Call::Finish { operation, how, ends }),
            2 => one.prop_map(|operation| Call::End { operation }),
        ]
        .boxed()
    }

    fn preconditions(model: &Model, call: &Call) -> bool {
        match call {
            Call::Step { operation, .. } | Call::Finish { operation, .. } => *operation < model.operations.len(),
            // Its record is there to be changed.
            Call::End { operation } => model.operations.get(*operation).is_some_and(|o| o.recorded),
            _ => true,
        }
    }

    fn apply(mut model: Model, call: &Call) -> Model {
        model.calls += 1;
        model.answer = match *call {
            Call::Admit { key, request, slot } => model.admit(key, request, slot),
            Call::Step { operation, name } => model.step(operation, name),
            Call::Finish { operation, how, ends } => model.finish(operation, how, ends),
            Call::End { operation } => {
                let now = model.now;
                model.operations[operation].ended.get_or_insert(now);
                Answer::Nothing
            }
            Call::Forbid { key } => match model.of_key(key) {
                Some(n) => Answer::Admitted(n),
                None => {
                    let until = model.now + limits::KEY_RETENTION_MS + limits::TOMBSTONE_MS_MIN;
                    let known = model.cancelled.entry(key).or_insert(until);
                    *known = until.max(*known);
                    Answer::Forbidden
                }
            },
            Call::Evict => model.evict(),
            Call::Wait { ms } => {
                model.now += ms;
                Answer::Nothing
            }
            Call::Reopen => Answer::Nothing,
        };
        model
    }
}

/// The real one, with the ids that it gave to what the model counts.
struct Real {
    runtime: Runtime,
    directory: tempfile::TempDir,
    journal: Option<Journal>,
    ids: Vec<(OperationId, Uid)>,
}

impl Real {
    fn journal(&self) -> &Journal {
        self.journal.as_ref().unwrap()
    }

    fn number(&self, id: &OperationId) -> usize {
        self.ids.iter().position(|(known, _)| known == id).unwrap()
    }

    fn ends(&self, n: usize, now_ms: i64) -> Vec<Change> {
        let uid = &self.ids[n].1;
        let gone = SandboxChange::of(uid).state(SandboxState::Gone).ended(now_ms);
        vec![Change::Sandbox(gone), Change::Release(Holder::from(uid))]
    }

    fn admit(&mut self, key: Option<usize>, request: u8, slot: Option<u8>, now_ms: i64) -> Answer {
        let mut call = create(key.map(|n| format!("k{n}")).as_deref(), slot.map(|n| format!("s{n}")).as_deref());
        call.request = json!({ "request": request });
        call.now_ms = now_ms;
        let uid = call.reservation.sandbox.as_ref().unwrap().uid.clone();
        let hold = Hold { holder: Holder::from(&uid), name: "sandboxes".into(), amount: 1, limit: Some(HELD_MAX) };
        call.reservation.holds = vec![hold];
        match self.runtime.block_on(self.journal().admit(call)) {
            Ok(Admitted::New(operation)) => {
                self.ids.push((operation.id.clone(), uid));
                Answer::New(self.ids.len() - 1, sandbox_id(&operation))
            }
            Ok(Admitted::Replay(found)) => Answer::Replay(self.number(&found.id)),
            Ok(Admitted::InFlight(found)) => Answer::InFlight(self.number(&found.id)),
            Ok(Admitted::Conflict(found)) => Answer::Conflict(self.number(&found.id)),
            Err(e) => refused(e),
        }
    }
}

fn refused(e: JournalError) -> Answer {
    match e {
        JournalError::Refused(Refusal::Cancelled(_)) => Answer::Cancelled,
        JournalError::Refused(Refusal::Limit { .. }) => Answer::LimitReached,
        JournalError::Refused(Refusal::SlotInUse { .. }) => Answer::SlotInUse,
        JournalError::Refused(Refusal::UnknownOperation(_)) => Answer::Unknown,
        JournalError::Refused(Refusal::OperationEnded(_)) => Answer::Ended,
        e => panic!("{e:?}"),
    }
}

fn outcome(how: u8) -> Outcome {
    [Outcome::Done, Outcome::Failed, Outcome::Indeterminate][usize::from(how)](json!({ "how": how }))
}

impl StateMachineTest for Real {
    type SystemUnderTest = Real;
    type Reference = Model;

    fn init_test(_: &Model) -> Real {
        let directory = tempfile::tempdir().unwrap();
        let journal = Some(open(directory.path()));
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        Real { runtime, directory, journal, ids: Vec::new() }
    }

    fn apply(mut real: Real, model: &Model, call: Call) -> Real {
        let answer = match call {
            Call::Admit { key, request, slot } => real.admit(key, request, slot, model.now),
            Call::Step { operation, name } => {
                let event = NewEvent { account: account(), at_ms: model.now, kind: "step".into(), doc: json!({}) };
                let (id, name) = (&real.ids[operation].0, format!("step-{name}"));
                let step = real.journal().step(id, &name, json!(model.calls), vec![Change::Event(event)]);
                match real.runtime.block_on(step) {
                    Ok(Stepped::New) => Answer::Stepped,
                    Ok(Stepped::Before(data)) => Answer::SteppedBefore(serde_json::from_value(data).unwrap()),
                    Err(e) => refused(e),
                }
            }
            Call::Finish { operation, how, ends } => {
                let changes = if ends { real.ends(operation, model.now) } else { vec![] };
                let finish = real.journal().finish(&real.ids[operation].0, outcome(how), changes, model.now);
                match real.runtime.block_on(finish) {
                    Ok(Finished::Now(found)) => {
                        assert_eq!(found.outcome, Some(outcome(how)));
                        Answer::Finished
                    }
                    Ok(Finished::Before(found)) => {
                        let how = (0..3).find(|how| found.outcome == Some(outcome(*how)));
                        Answer::FinishedBefore(how.unwrap())
                    }
                    Err(e) => refused(e),
                }
            }
            Call::End { operation } => {
                real.runtime.block_on(real.journal().apply(real.ends(operation, model.now))).unwrap();
                Answer::Nothing
            }
            Call::Forbid { key } => {
                let name = self::key(&format!("k{key}"));
                match real.runtime.block_on(real.journal().forbid(&account(), &scope(), &name, model.now)).unwrap() {
                    Forbidden::Forbidden => Answer::Forbidden,
                    Forbidden::Admitted(found) => Answer::Admitted(real.number(&found.id)),
                }
            }
            Call::Evict => {
                let gone = real.runtime.block_on(real.journal().evict(model.now)).unwrap();
                let Evicted { operations, tombstones, sandboxes, .. } = gone;
                Answer::Evicted { operations, tombstones, sandboxes }
            }
            Call::Wait { .. } => Answer::Nothing,
            Call::Reopen => {
                drop(real.journal.take());
                real.journal = Some(open(real.directory.path()));
                Answer::Nothing
            }
        };
        assert_eq!(answer, model.answer);
        real
    }

    fn check_invariants(real: &Real, model: &Model) {
        real.runtime.block_on(async {
            let journal = real.journal();
            for (n, expected) in model.operations.iter().enumerate() {
                let found = journal.operation(&account(), &real.ids[n].0).await.unwrap();
                assert_eq!(found.is_some(), expected.kept != Kept::Nothing);
                if let Some(found) = found {
                    let state = expected.outcome.map_or(OperationState::Pending, |how| outcome(how).state());
                    assert_eq!((found.state, found.admitted_at_ms), (state, expected.admitted));
                    assert_eq!(found.evicted, expected.kept != Kept::Whole);
                    assert_eq!(found.outcome, expected.outcome.map(outcome));
                    assert!(found.evicted || found.steps.len() == expected.steps.len());
                }
                let record = journal.sandbox(&account(), &expected.sandbox).await.unwrap();
                let record = record.map(|record| (record.uid, record.ended_at_ms));
                assert_eq!(record, expected.recorded.then(|| (real.ids[n].1.clone(), expected.ended)));
            }
            let unfinished = journal.unfinished(Paging::first()).await.unwrap().items;
            let unfinished: Vec<_> = unfinished.iter().map(|found| real.number(&found.id)).collect();
            let pending = model.operations.iter().enumerate().filter(|(_, o)| o.outcome.is_none());
            assert_eq!(unfinished, pending.map(|(n, _)| n).collect::<Vec<_>>());
            let used = journal.used(&account()).await.unwrap();
            assert_eq!(used.first().map_or(0, |used| used.amount), model.held());
            assert_eq!(journal.events(&account(), 0, 0).await.unwrap().newest, model.events);
        });
    }
}

prop_state_machine! {
    #![proptest_config(ProptestConfig { cases: 48, max_shrink_iters: 4_000, failure_persistence: None, ..Default::default() })]

    #[test]
    fn it_answers_as_the_model_does(sequential 1..60 => Real);
}
