//! Comparisons of pictures that were made by hand: each difference alone, and everything that must be none.

use std::collections::BTreeSet;

use remuda_engine::{Bytes, HostFacts, ProcessFacts, Traces};
use remuda_journal::{AdriftSum, Held, Holder};
use remuda_types::wire::ThingKind;
use remuda_types::{Account, Generation, OperationId, SandboxId, SandboxState, SnapshotId, SnapshotState, Uid};

use super::compare::compare;
use super::finding::{Finding, Holds, Repair};
use super::picture::{Abandoned, OfSandbox, OfSnapshot, Seen, Told};

const SENTRY: ProcessFacts = ProcessFacts { pid: 10, start_ticks: 100 };
const GOFER: ProcessFacts = ProcessFacts { pid: 11, start_ticks: 101 };
const BOOT: &str = "this boot";

fn account() -> Account {
    "main".parse().unwrap()
}

fn uid(n: u8) -> Uid {
    Uid::from_entropy([n; 20])
}

fn snapshot(n: u8) -> SnapshotId {
    SnapshotId::from_entropy([n; 20])
}

fn id(n: u8) -> SandboxId {
    let generation = Generation::from_unix_ms(1_793_491_199_000 + i64::from(n)).unwrap();
    SandboxId { slot: "c1".parse().unwrap(), generation }
}

fn hold(holder: Holder, name: &str, amount: u64) -> (Account, Held) {
    (account(), Held { holder, name: name.to_owned(), amount })
}

/// A sandbox in a state, with everything that goes with it.
fn sandbox(n: u8, state: SandboxState) -> OfSandbox {
    OfSandbox {
        account: account(),
        id: id(n),
        written: Some(state),
        known: Some(state),
        busy: false,
        lives: state != SandboxState::Stopped,
        memory_mib: 512,
        disk_bytes: 1 << 30,
        processes: Some(HostFacts { boot_id: BOOT.to_owned(), sentry: SENTRY, gofer: GOFER }),
    }
}

fn active() -> OfSnapshot {
    OfSnapshot {
        account: account(),
        written: Some(SnapshotState::Active),
        known: Some(SnapshotState::Active),
        busy: false,
        memory_kept: true,
        bytes: 99,
        of_fork: false,
    }
}

/// A running sandbox (1), a stopped one (2), one that has ended (3), a snapshot with its memory (4), one of a fork (5),
/// and a deleted one on whose layer something stands (6): nothing differs.
fn sound() -> (Seen, Told) {
    let (mut seen, mut told) = (Seen::default(), Told::default());
    seen.survey.boot_id = BOOT.to_owned();
    let running = Traces {
        files: true,
        state: true,
        cgroup: true,
        mounts: vec!["root".into()],
        processes: [SENTRY.pid, GOFER.pid, 12].into(),
        ..Traces::default()
    };
    seen.survey.sandboxes.insert(uid(1), running);
    // One that died by itself keeps its mounts and its group until it is removed or started.
    let died = Traces { files: true, state: true, cgroup: true, mounts: vec!["root".into()], ..Traces::default() };
    seen.survey.sandboxes.insert(uid(2), died);
    told.sandboxes.insert(uid(1), sandbox(1, SandboxState::Running));
    told.sandboxes.insert(uid(2), sandbox(2, SandboxState::Stopped));
    let ended = OfSandbox { written: None, known: None, lives: false, ..sandbox(3, SandboxState::Gone) };
    told.sandboxes.insert(uid(3), ended);
    seen.survey.snapshots.insert(snapshot(4), Bytes { layer: true, memory: true, ..Bytes::default() });
    seen.survey.snapshots.insert(snapshot(5), Bytes { layer: true, ..Bytes::default() });
    seen.survey.snapshots.insert(snapshot(6), Bytes { layer: true, ..Bytes::default() });
    told.snapshots.insert(snapshot(4), active());
    told.snapshots.insert(snapshot(5), OfSnapshot { memory_kept: false, of_fork: true, ..active() });
    let deleted = Some(SnapshotState::Deleted);
    told.snapshots.insert(snapshot(6), OfSnapshot { written: deleted, known: deleted, memory_kept: false, ..active() });
    told.layers_in_use = [snapshot(4), snapshot(5), snapshot(6)].into();
    seen.output = [uid(1).to_string(), uid(3).to_string(), snapshot(4).to_string()].into();
    told.holds = vec![
        hold((&uid(1)).into(), "sandboxes", 1),
        hold((&uid(1)).into(), "memory_mib", 512),
        hold((&uid(1)).into(), "disk_bytes", 1 << 30),
        hold((&uid(2)).into(), "disk_bytes", 1 << 30),
        hold((&uid(2)).into(), "sandboxes", 0),
        hold((&snapshot(4)).into(), "snapshots", 1),
        hold((&snapshot(4)).into(), "snapshot_bytes", 99),
        hold((&snapshot(5)).into(), "snapshot_bytes", 99),
    ];
    (seen, told)
}

/// What is found when something is changed about what is sound.
fn found<R>(change: impl FnOnce(&mut Seen, &mut Told) -> R) -> Vec<Finding> {
    let (mut seen, mut told) = sound();
    change(&mut seen, &mut told);
    compare(&seen, &told)
}

/// The one thing that is found, with its repair.
#[track_caller]
fn one<R>(change: impl FnOnce(&mut Seen, &mut Told) -> R) -> (ThingKind, Option<Repair>) {
    let found = found(change);
    assert_eq!(found.len(), 1, "{found:#?}");
    (found[0].thing, found[0].repair.clone())
}

fn of(told: &mut Told, n: u8) -> &mut OfSandbox {
    told.sandboxes.get_mut(&uid(n)).unwrap()
}

fn of_snapshot(told: &mut Told, n: u8) -> &mut OfSnapshot {
    told.snapshots.get_mut(&snapshot(n)).unwrap()
}

#[test]
fn what_is_sound_has_no_finding() {
    assert_eq!(found(|_, _| {}), []);
}

#[test]
fn what_the_machine_has_of_nobody_is_removed() {
    let whole = Traces { files: true, cgroup: true, processes: [77].into(), ..Traces::default() };
    let torn = |n| (ThingKind::Machine, Some(Repair::TearDown(uid(n))));
    assert_eq!(one(|seen, _| drop(seen.survey.sandboxes.insert(uid(9), whole.clone()))), torn(9));
    // Of one that has ended it is told to its account.
    let of_ended = found(|seen, _| drop(seen.survey.sandboxes.insert(uid(3), whole.clone())));
    assert_eq!((of_ended[0].account.clone(), of_ended[0].sandbox.clone()), (Some(account()), Some(id(3))));
    for traces in [
        Traces { state: true, ..Traces::default() },
        Traces { cgroup: true, ..Traces::default() },
        Traces { mounts: vec!["root".into()], ..Traces::default() },
    ] {
        assert_eq!(one(|seen, _| drop(seen.survey.sandboxes.insert(uid(9), traces))), torn(9));
    }
}

#[test]
fn below_a_strangers_mount_nothing_is_removed() {
    let traces = Traces { files: true, strange_mounts: vec!["x".into()], ..Traces::default() };
    assert_eq!(one(|seen, _| drop(seen.survey.sandboxes.insert(uid(9), traces.clone()))), (ThingKind::Machine, None));
    let in_living = one(|seen, _| seen.survey.sandboxes.get_mut(&uid(1)).unwrap().strange_mounts = vec!["x".into()]);
    assert_eq!(in_living, (ThingKind::Path, None));
    assert_eq!(one(|seen, _| seen.survey.strange_mounts = vec!["x".into()]), (ThingKind::Path, None));
    assert_eq!(one(|seen, _| seen.survey.strangers = vec!["x".into()]), (ThingKind::Path, None));
}

#[test]
fn only_the_very_process_on_record_is_ended_by_its_pid() {
    let astray = |n, process| {
        one(move |seen: &mut Seen, _: &mut Told| {
            let traces = Traces { astray: vec![process], ..Traces::default() };
            seen.survey.sandboxes.insert(uid(n), traces);
        })
    };
    assert_eq!(astray(3, SENTRY), (ThingKind::Process, Some(Repair::EndProcess(SENTRY))));
    assert_eq!(astray(3, GOFER), (ThingKind::Process, Some(Repair::EndProcess(GOFER))));
    let stranger = ProcessFacts { start_ticks: 999, ..SENTRY };
    assert_eq!(astray(3, stranger), (ThingKind::Process, None), "its pid was given to a stranger");
    assert_eq!(astray(9, SENTRY), (ThingKind::Process, None), "nobody's record names it");
    let in_another_boot = one(|seen, _| {
        seen.survey.boot_id = "the next boot".to_owned();
        seen.survey.sandboxes.insert(uid(3), Traces { astray: vec![SENTRY], ..Traces::default() });
    });
    assert_eq!(in_another_boot, (ThingKind::Process, None));
}

#[test]
fn a_living_sandbox_is_told_of_and_never_ended() {
    let runs = one(|seen, _| seen.survey.sandboxes.get_mut(&uid(2)).unwrap().processes = [7].into());
    assert_eq!(runs, (ThingKind::Machine, Some(Repair::LayDown(account(), id(2)))), "stopped: its files stay");
    let outside = one(|seen, _| seen.survey.sandboxes.get_mut(&uid(1)).unwrap().processes = BTreeSet::new());
    assert_eq!(outside, (ThingKind::Machine, None));
    let another = ProcessFacts { pid: 50, start_ticks: 1 };
    let astray = one(|seen, _| seen.survey.sandboxes.get_mut(&uid(1)).unwrap().astray = vec![another]);
    assert_eq!(astray, (ThingKind::Process, None));
    assert_eq!(one(|_, told| of(told, 1).lives = false), (ThingKind::Sandbox, None));
    assert_eq!(
        one(|seen, _| seen.survey.sandboxes.get_mut(&uid(2)).unwrap().files = false),
        (ThingKind::Sandbox, None)
    );
}

#[test]
fn journal_and_memory_are_held_against_each_other() {
    let death = (ThingKind::Sandbox, Some(Repair::WriteDeath(account(), id(2))));
    assert_eq!(one(|_, told| of(told, 2).written = Some(SandboxState::Running)), death);
    assert_eq!(found(|_, told| of(told, 1).written = Some(SandboxState::Paused)), [], "it is just being paused");
    assert_eq!(one(|_, told| of(told, 1).written = Some(SandboxState::Stopped)), (ThingKind::Sandbox, None));
    assert_eq!(one(|_, told| of(told, 1).written = None), (ThingKind::Sandbox, None));
    let unknown = found(|_, told| of(told, 1).known = None);
    assert_eq!(unknown.iter().map(|f| (f.thing, f.repair.clone())).collect::<Vec<_>>(), [(ThingKind::Sandbox, None)]);
    let unsettled =
        |n: u8, state| one(move |_: &mut Seen, told: &mut Told| of_snapshot(told, n).written = Some(state)).1;
    assert_eq!(unsettled(4, SnapshotState::Verifying), Some(Repair::WriteSnapshot(snapshot(4))));
    assert_eq!(unsettled(6, SnapshotState::Deleting), Some(Repair::WriteSnapshot(snapshot(6))));
    let standing = one(|_, told| {
        of_snapshot(told, 4).known = Some(SnapshotState::Verifying);
        of_snapshot(told, 4).written = Some(SnapshotState::Verifying);
    });
    assert_eq!(standing, (ThingKind::Snapshot, None));
}

#[test]
fn bytes_of_snapshots_are_those_of_their_records() {
    let bytes = |n: u8, change: fn(&mut Bytes)| {
        one(move |seen: &mut Seen, _: &mut Told| change(seen.survey.snapshots.entry(snapshot(n)).or_default()))
    };
    let capture = |repair| (ThingKind::Capture, repair);
    assert_eq!(bytes(9, |bytes| bytes.layer = true), capture(Some(Repair::RemoveCapture(snapshot(9)))));
    assert_eq!(bytes(9, |bytes| bytes.half_memory = true), capture(Some(Repair::RemoveCapture(snapshot(9)))));
    assert_eq!(bytes(4, |bytes| bytes.half_layer = true), capture(Some(Repair::RemoveHalves(snapshot(4)))));
    assert_eq!(bytes(5, |bytes| bytes.memory = true), capture(Some(Repair::RemoveMemory(snapshot(5)))));
    assert_eq!(bytes(6, |bytes| bytes.memory = true), capture(Some(Repair::RemoveMemory(snapshot(6)))));
    assert_eq!(bytes(4, |bytes| bytes.layer = false), capture(None));
    assert_eq!(bytes(4, |bytes| bytes.memory = false), capture(None));
    assert_eq!(bytes(6, |bytes| bytes.layer = false), capture(None));
    let freed = one(|_, told| told.layers_in_use.remove(&snapshot(6)));
    assert_eq!(freed, capture(Some(Repair::RemoveCapture(snapshot(6)))));
    let of_unknown_record = found(|seen, told| {
        seen.survey.snapshots.insert(snapshot(8), Bytes { layer: true, ..Bytes::default() });
        told.layers_in_use.insert(snapshot(8));
    });
    assert_eq!(of_unknown_record, [], "something stands on it");
}

#[test]
fn output_belongs_to_what_is_on_record() {
    let strays = [(uid(9).to_string(), true), (snapshot(9).to_string(), true), (snapshot(5).to_string(), true)];
    for (name, repaired) in strays {
        let (thing, repair) = one(|seen, _| seen.output.insert(name.clone()));
        assert_eq!((thing, repair.is_some()), (ThingKind::Output, repaired), "{name}");
    }
    assert_eq!(one(|seen, _| seen.output.insert("notes".into())), (ThingKind::Path, None));
}

#[test]
fn shares_are_what_lives() {
    let to = |holder, name: &str, from, to| {
        let repair = Repair::Hold { account: account(), holder, name: name.to_owned(), from, to };
        (ThingKind::Hold, Some(repair))
    };
    let set = |at: usize, amount| one(move |_: &mut Seen, told: &mut Told| told.holds[at].1.amount = amount);
    assert_eq!(set(1, 7), to(Holds::Sandbox(uid(1)), "memory_mib", 7, 512));
    assert_eq!(set(4, 1), to(Holds::Sandbox(uid(2)), "sandboxes", 1, 0));
    assert_eq!(set(6, 98), to(Holds::Snapshot(snapshot(4)), "snapshot_bytes", 98, 99));
    let missing = one(|_, told| drop(told.holds.remove(0)));
    assert_eq!(missing, to(Holds::Sandbox(uid(1)), "sandboxes", 0, 1));
    let released = |holder: Holder, whose| {
        let found = one(move |_: &mut Seen, told: &mut Told| told.holds.push(hold(holder, "snapshots", 1)));
        assert_eq!(found, (ThingKind::Hold, Some(Repair::Release(account(), whose))));
    };
    released((&uid(9)).into(), Holds::Sandbox(uid(9)));
    released((&uid(3)).into(), Holds::Sandbox(uid(3)));
    released((&snapshot(6)).into(), Holds::Snapshot(snapshot(6)));
    released((&snapshot(9)).into(), Holds::Snapshot(snapshot(9)));
    let operation = OperationId::from_entropy([9; 20]);
    released((&operation).into(), Holds::Operation(operation.clone()));
    let of_pending = found(|_, told| {
        told.pending.insert(operation.clone());
        told.holds.push(hold((&operation).into(), "snapshots", 1));
    });
    assert_eq!(of_pending, []);
    let sum = AdriftSum { account: account(), name: "snapshots".into(), says: 3, held: 1 };
    let recount = (ThingKind::Sum, Some(Repair::Recount(account(), "snapshots".into())));
    assert_eq!(one(|_, told| told.sums.push(sum)), recount);
}

#[test]
fn nothing_that_is_under_way_is_a_difference() {
    let busy = found(|seen, told| {
        // Everything is wrong about them.
        for n in 1..=3 {
            let of = of(told, n);
            (of.busy, of.written) = (true, Some(SandboxState::Starting));
            let traces = Traces { cgroup: true, processes: [1].into(), astray: vec![SENTRY], ..Traces::default() };
            seen.survey.sandboxes.insert(uid(n), traces);
        }
        for n in 4..=6 {
            let of = of_snapshot(told, n);
            (of.busy, of.written) = (true, Some(SnapshotState::Capturing));
            let bytes = Bytes { half_layer: true, half_memory: true, ..Bytes::default() };
            seen.survey.snapshots.insert(snapshot(n), bytes);
            seen.output.insert(snapshot(n).to_string());
        }
        told.layers_in_use.clear();
        told.holds.clear();
        told.holds.push(hold((&uid(3)).into(), "sandboxes", 1));
        told.holds.push(hold((&snapshot(6)).into(), "snapshots", 1));
    });
    assert_eq!(busy, []);
}

#[test]
fn an_operation_that_nobody_sees_to_is_told_and_not_carried_out() {
    let left = Abandoned { account: account(), id: OperationId::from_entropy([3; 20]), kind: "create".into() };
    assert_eq!(one(|_, told| told.abandoned.push(left)), (ThingKind::Operation, None));
}

#[test]
fn the_same_difference_is_known_again_whatever_its_figures_are() {
    let with = |pids: &[i32]| {
        let traces = Traces { cgroup: true, processes: pids.iter().copied().collect(), ..Traces::default() };
        found(|seen, _| drop(seen.survey.sandboxes.insert(uid(9), traces))).remove(0)
    };
    assert!(with(&[1, 2]).is_again(&with(&[2])));
    let share = |amount| found(move |_, told| told.holds[1].1.amount = amount).remove(0);
    assert!(share(7).is_again(&share(7)) && !share(7).is_again(&share(8)), "an amount that changes is at work");
}
