//! Holds the two pictures against each other. Pure: no look, no clock, no repair.
//!
//! What something is under way with is left out whole. What is left is a difference only where it is one in two looks,
//! which is for whoever compares to see to: a picture is made of many looks, and things change in between.

use std::collections::BTreeMap;

use remuda_engine::{Bytes, Traces};
use remuda_types::wire::ThingKind;
use remuda_types::{Account, OperationId, Quota, SandboxState, SnapshotId, SnapshotState, Uid};

use super::finding::{Finding, Holds, Repair};
use super::picture::{OfSandbox, OfSnapshot, Seen, Told};

const RESTART: &str = "restart the server, which settles it; if it is found again after that, it is a defect to report";
const LOOK: &str = "look what it is, and remove it if nobody needs it: the server does not touch it";

/// Every difference.
pub(crate) fn compare(seen: &Seen, told: &Told) -> Vec<Finding> {
    let mut found = Vec::new();
    for (uid, traces) in &seen.survey.sandboxes {
        match told.sandboxes.get(uid) {
            Some(of) if of.busy => {}
            Some(of) if of.known.is_some() => living(of, traces, &mut found),
            Some(of) if !of.is_over() => {} // Told of below: its record stands, and memory does not have it.
            of => remains(uid, of, traces, &seen.survey.boot_id, &mut found),
        }
    }
    for (uid, of) in told.sandboxes.iter().filter(|(_, of)| !of.busy) {
        let files = seen.survey.sandboxes.get(uid).is_some_and(|traces| traces.files);
        if of.known.is_some_and(has_files) && !files {
            let what = "it is there by its record, and its directory is not";
            found.push(of_sandbox(of, what).remedy("remove it with: remuda rm ID; its files are lost"));
        }
        found.extend(of_states(of));
    }
    for (id, of) in told.snapshots.iter().filter(|(_, of)| !of.busy) {
        let bytes = seen.survey.snapshots.get(id).copied().unwrap_or_default();
        snapshot(id, of, bytes, told, &mut found);
    }
    let of_nobody = seen.survey.snapshots.keys().filter(|id| !told.snapshots.contains_key(id));
    found.extend(of_nobody.filter(|id| !told.layers_in_use.contains(id)).map(|id| {
        Finding::new(ThingKind::Capture, id, "no snapshot has these bytes")
            .snapshot(id)
            .repaired_by(Repair::RemoveCapture(id.clone()))
    }));
    found.extend(seen.output.iter().filter_map(|name| output(name, told)));
    holds(told, &mut found);
    found.extend(told.sums.iter().map(|sum| {
        let what = format!("the account holds {} of {} and the sum says {}", sum.held, sum.name, sum.says);
        Finding::new(ThingKind::Sum, &sum.name, what)
            .of(&sum.account)
            .repaired_by(Repair::Recount(sum.account.clone(), sum.name.clone()))
    }));
    found.extend(told.abandoned.iter().map(|operation| {
        let what = format!("this {} has no outcome, and nobody sees to it", operation.kind);
        Finding::new(ThingKind::Operation, &operation.id, what).of(&operation.account).remedy(RESTART)
    }));
    let strangers = seen.survey.strangers.iter().map(|path| (path, "the server gives no such name"));
    let mounts =
        seen.survey.strange_mounts.iter().map(|path| (path, "something is mounted here, and not by the server"));
    found.extend(
        strangers.chain(mounts).map(|(path, what)| Finding::new(ThingKind::Path, path.display(), what).remedy(LOOK)),
    );
    found
}

fn has_files(state: SandboxState) -> bool {
    matches!(state, SandboxState::Running | SandboxState::Paused | SandboxState::Stopped)
}

fn of_sandbox(of: &OfSandbox, found: impl Into<String>) -> Finding {
    Finding::new(ThingKind::Sandbox, &of.id, found).of(&of.account).sandbox(&of.id).remedy(RESTART)
}

/// What a sandbox has that is there.
fn living(of: &OfSandbox, traces: &Traces, found: &mut Vec<Finding>) {
    let machine = |what: String| Finding::new(ThingKind::Machine, &of.id, what).of(&of.account).sandbox(&of.id);
    for mount in &traces.strange_mounts {
        let what = "something is mounted in a sandbox's directory, and not by the server";
        found.push(Finding::new(ThingKind::Path, mount.display(), what).sandbox(&of.id).remedy(LOOK));
    }
    match of.known {
        Some(SandboxState::Stopped) if !traces.processes.is_empty() => {
            let what = format!("it is stopped, and {} run in its control group", processes(traces.processes.len()));
            let finding = machine(what);
            found.push(finding.repaired_by(Repair::LayDown(of.account.clone(), of.id.clone())));
        }
        Some(SandboxState::Running | SandboxState::Paused) => {
            if !of.lives {
                found.push(of_sandbox(of, "its processes have ended, and it is not told as stopped"));
            } else if let Some(host) = &of.processes
                && !traces.processes.contains(&host.sentry.pid)
            {
                let what = format!("its process {} is not in its control group, and has no limits", host.sentry.pid);
                found.push(machine(what).remedy("stop it and start it again: remuda stop ID, remuda start ID"));
            }
        }
        _ => {}
    }
    // Told already where it is the sandbox's own.
    let own = of.processes.as_ref().map(|host| host.sentry.pid);
    found.extend(traces.astray.iter().filter(|process| own != Some(process.pid)).map(|process| {
        let what = format!("it says that it is of {}, and is not in its control group", of.id);
        Finding::new(ThingKind::Process, process.pid, what).of(&of.account).sandbox(&of.id).remedy(LOOK)
    }));
}

/// What the machine has of a sandbox that has ended, or of which there is no record.
fn remains(uid: &Uid, of: Option<&OfSandbox>, traces: &Traces, boot_id: &str, found: &mut Vec<Finding>) {
    let owned = |finding: Finding| match of {
        Some(of) => finding.of(&of.account).sandbox(&of.id),
        None => finding,
    };
    let whose =
        of.map_or_else(|| "a sandbox that is on no record".to_owned(), |of| format!("{}, which has ended", of.id));
    for process in &traces.astray {
        let recorded = of.and_then(|of| of.processes.as_ref()).filter(|host| host.boot_id == boot_id);
        let certain = recorded.is_some_and(|host| [host.sentry, host.gofer].contains(process));
        let finding =
            owned(Finding::new(ThingKind::Process, process.pid, format!("it is of {whose}, by its command line")));
        found.push(match certain {
            true => finding.repaired_by(Repair::EndProcess(*process)),
            false => finding.remedy("look what it is, and end it if nobody needs it: it is not the process on record"),
        });
    }
    let Traces { files, state, cgroup, mounts, strange_mounts, processes: pids, .. } = traces;
    let parts = [
        (*files).then(|| "files".to_owned()),
        (*state).then(|| "state on tmpfs".to_owned()),
        (!mounts.is_empty()).then(|| format!("{} mounts", mounts.len())),
        (*cgroup && pids.is_empty()).then(|| "a control group".to_owned()),
        (*cgroup && !pids.is_empty()).then(|| format!("a control group with {}", processes(pids.len()))),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    if parts.is_empty() {
        return;
    }
    let finding = owned(Finding::new(ThingKind::Machine, uid, format!("{} of {whose}", parts.join(", "))));
    found.push(match strange_mounts.first() {
        None => finding.repaired_by(Repair::TearDown(uid.clone())),
        // Whatever is removed below a mount is removed from what is mounted.
        Some(mount) => finding.remedy(format!(
            "unmount {} first, which the server did not mount; then: remuda doctor --repair",
            mount.display()
        )),
    });
}

fn processes(count: usize) -> String {
    if count == 1 { "1 process".to_owned() } else { format!("{count} processes") }
}

/// Journal and memory say the same of a sandbox.
fn of_states(of: &OfSandbox) -> Option<Finding> {
    use SandboxState::{Paused, Running, Starting, Stopped};
    match (of.written, of.known) {
        (written, known) if written == known => None,
        // What it is to be is on record before it is done, and takes as long as its agent does.
        (Some(Running | Paused), Some(Running | Paused)) => None,
        (Some(written @ (Starting | Running | Paused)), Some(Stopped)) => {
            let what = format!("its processes have ended, and it is on record as {written}");
            Some(of_sandbox(of, what).repaired_by(Repair::WriteDeath(of.account.clone(), of.id.clone())))
        }
        (Some(written), Some(known)) => Some(of_sandbox(of, format!("it is {known}, and on record as {written}"))),
        (Some(written), None) => Some(of_sandbox(of, format!("it is on record as {written}, and the server has none"))),
        (None, Some(known)) => Some(of_sandbox(of, format!("it is {known}, and on record as ended"))),
        (None, None) => None,
    }
}

fn snapshot(id: &SnapshotId, of: &OfSnapshot, bytes: Bytes, told: &Told, found: &mut Vec<Finding>) {
    use SnapshotState::{Active, Capturing, Deleted, Deleting, Failed, Verifying};
    let finding = |thing, what: String| Finding::new(thing, id, what).of(&of.account).snapshot(id);
    let capture = |what: &str| finding(ThingKind::Capture, what.to_owned());
    let unsettled = |what| finding(ThingKind::Snapshot, what).remedy(RESTART);
    let lost = "remove it with: remuda snapshot rm ID; look at the disk: these bytes are lost";
    let in_use = told.layers_in_use.contains(id);
    match (of.written, of.known) {
        (Some(Active | Capturing | Verifying), None) => {
            found.push(unsettled("it is kept by its record, and the server has none".to_owned()));
            return;
        }
        (Some(Capturing | Verifying | Deleting), Some(known @ (Active | Deleted | Failed)))
        | (Some(Active), Some(known @ (Deleted | Failed))) => {
            let what = format!("it is {known}, and on record as {}", of.written.unwrap_or(known));
            found.push(unsettled(what).repaired_by(Repair::WriteSnapshot(id.clone())));
        }
        (_, Some(known @ (Capturing | Verifying | Deleting))) => {
            found.push(unsettled(format!("it is {known}, and nothing is under way with it")));
            return;
        }
        _ => {}
    }
    if of.known == Some(Active) {
        if !bytes.layer {
            found.push(capture("its layer of files is missing").remedy(lost));
        }
        if of.memory_kept && !bytes.memory {
            found.push(capture("its memory image is missing").remedy(lost));
        }
    } else if !in_use && bytes != Bytes::default() {
        let what = capture("it has ended, nothing stands on it, and its bytes are there");
        found.push(what.repaired_by(Repair::RemoveCapture(id.clone())));
        return;
    } else if in_use && !bytes.layer {
        found.push(capture("its layer of files is missing, and sandboxes or snapshots stand on it").remedy(lost));
    }
    if bytes.memory && !of.memory_kept {
        let what = capture("its memory image is there, and is not kept by its record");
        found.push(what.repaired_by(Repair::RemoveMemory(id.clone())));
    }
    if bytes.half_layer || bytes.half_memory {
        let what = capture("something half-made lies beside its bytes");
        found.push(what.repaired_by(Repair::RemoveHalves(id.clone())));
    }
}

fn output(name: &str, told: &Told) -> Option<Finding> {
    let stray = |what: &str| {
        let finding = Finding::new(ThingKind::Output, name, what);
        finding.repaired_by(Repair::RemoveOutput(name.to_owned()))
    };
    if let Ok(uid) = name.parse::<Uid>() {
        let unknown = !told.sandboxes.contains_key(&uid);
        return unknown.then(|| stray("output of executions of a sandbox that is on no record"));
    }
    if let Ok(id) = name.parse::<SnapshotId>() {
        return match told.snapshots.get(&id) {
            Some(of) if of.busy || of.memory_kept || !of.is_over() && of.known != Some(SnapshotState::Active) => None,
            Some(of) => {
                Some(stray("output that a snapshot carried whose memory is not kept").of(&of.account).snapshot(&id))
            }
            None => Some(stray("output that a snapshot carried which is on no record")),
        };
    }
    Some(Finding::new(ThingKind::Path, format!("executions/{name}"), "the server gives no such name").remedy(LOOK))
}

/// What is held is what lives, and in the amount that it has.
fn holds(told: &Told, found: &mut Vec<Finding>) {
    let mut held: BTreeMap<&str, (&Account, BTreeMap<&str, u64>)> = BTreeMap::new();
    for (account, hold) in &told.holds {
        let amounts = &mut held.entry(hold.holder.as_str()).or_insert((account, BTreeMap::new())).1;
        amounts.insert(&hold.name, hold.amount);
    }
    for (uid, of) in told.sandboxes.iter().filter(|(_, of)| !of.busy) {
        let amounts = held.get(uid.as_str()).map(|(_, amounts)| amounts.clone()).unwrap_or_default();
        let at_rest = [(Quota::DiskBytes, of.disk_bytes), (Quota::Sandboxes, 0), (Quota::MemoryMib, 0)];
        let at_work = [(Quota::DiskBytes, of.disk_bytes), (Quota::Sandboxes, 1), (Quota::MemoryMib, of.memory_mib)];
        let expected = match of.known {
            Some(SandboxState::Stopped) => at_rest,
            Some(SandboxState::Running | SandboxState::Paused) => at_work,
            _ => continue,
        };
        let right = |finding: Finding| finding.sandbox(&of.id);
        found.extend(amounts_of(&Holds::Sandbox(uid.clone()), &of.account, &amounts, &expected).map(right));
    }
    for (id, of) in told.snapshots.iter().filter(|(_, of)| !of.busy && of.known == Some(SnapshotState::Active)) {
        let amounts = held.get(id.as_str()).map(|(_, amounts)| amounts.clone()).unwrap_or_default();
        let expected = [(Quota::Snapshots, u64::from(!of.of_fork)), (Quota::SnapshotBytes, of.bytes)];
        let right = |finding: Finding| finding.snapshot(id);
        found.extend(amounts_of(&Holds::Snapshot(id.clone()), &of.account, &amounts, &expected).map(right));
    }
    for (holder, (account, amounts)) in held {
        let Some(whose) = ended_holder(holder, told) else { continue };
        let amounts: Vec<_> = amounts.iter().map(|(name, amount)| format!("{amount} of {name}")).collect();
        let what = format!("{} held by what has ended or is on no record", amounts.join(", "));
        let repair = Repair::Release((*account).clone(), whose);
        found.push(Finding::new(ThingKind::Hold, holder, what).of(account).repaired_by(repair));
    }
}

/// Each amount that is not as it must be; an absent one is none.
fn amounts_of<'a>(
    holder: &'a Holds,
    account: &'a Account,
    held: &'a BTreeMap<&str, u64>,
    expected: &'a [(Quota, u64)],
) -> impl Iterator<Item = Finding> + use<'a> {
    let differs = |(quota, to): &(Quota, u64)| {
        let from = held.get(quota.as_str()).copied().unwrap_or(0);
        (from != *to).then(|| (quota.to_string(), from, *to))
    };
    let differing: Vec<_> = expected.iter().filter_map(differs).collect();
    differing.into_iter().map(move |(name, from, to)| {
        let repair = Repair::Hold { account: account.clone(), holder: holder.clone(), name: name.clone(), from, to };
        let what = format!("{from} of {name} are held, and {to} must be");
        Finding::new(ThingKind::Hold, holder, what).of(account).repaired_by(repair)
    })
}

/// The holder, where it has ended or was never there. A share is written before what takes it is in memory, and with
/// the operation that is pending then.
fn ended_holder(holder: &str, told: &Told) -> Option<Holds> {
    if let Ok(uid) = holder.parse::<Uid>() {
        let over = told.sandboxes.get(&uid).is_none_or(|of| !of.busy && of.is_over());
        return over.then_some(Holds::Sandbox(uid));
    }
    if let Ok(id) = holder.parse::<SnapshotId>() {
        let over = told.snapshots.get(&id).is_none_or(|of| !of.busy && of.is_over());
        return over.then_some(Holds::Snapshot(id));
    }
    let operation = holder.parse::<OperationId>().ok()?;
    (!told.pending.contains(&operation)).then_some(Holds::Operation(operation))
}

impl std::fmt::Display for Holds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Holds::Sandbox(uid) => uid.fmt(f),
            Holds::Snapshot(id) => id.fmt(f),
            Holds::Operation(id) => id.fmt(f),
        }
    }
}
