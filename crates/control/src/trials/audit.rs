//! What must hold whenever nothing is under way, whatever went wrong before.

use std::collections::{BTreeMap, BTreeSet};

use remuda_journal::{Paging, SandboxFilter, SnapshotFilter, Whose};
use remuda_stand_in::StandIn;
use remuda_types::limits::DISK_BYTES_DEFAULT;
use remuda_types::{Quota, SandboxId, SandboxState, SnapshotState};

use crate::caller::Caller;
use crate::platform::Platform;
use crate::reconcile::LEFT_BEHIND;

/// Everything that is not as it must be. One whose end failed half-way, as was told, may stand anywhere: it waits to be
/// ended again.
pub(super) async fn faults(platform: Platform, host: StandIn, half_ended: Option<SandboxId>) -> Vec<String> {
    let mut faults = Vec::new();
    let half_ended = half_ended.as_ref();
    records(&platform, half_ended, &mut faults).await;
    machines(&platform, &host, half_ended, &mut faults);
    files(&platform, &mut faults);
    quotas(&platform, &mut faults).await;
    reconciled(&platform, half_ended, &mut faults).await;
    faults
}

/// Every operation has an outcome; memory and journal say the same.
async fn records(platform: &Platform, half_ended: Option<&SandboxId>, faults: &mut Vec<String>) {
    let open = platform.journal().unfinished(Paging::first()).await.unwrap().items;
    faults.extend(open.iter().map(|record| format!("{} has no outcome: {record:?}", record.scope.kind())));
    let page = platform.journal().sandboxes(Whose::Everyones, SandboxFilter::default(), Paging::first()).await.unwrap();
    let recorded: BTreeMap<_, _> =
        page.items.iter().filter(|r| half_ended != Some(&r.id)).map(|r| (r.id.clone(), r.state)).collect();
    let cells = platform.registry().tables().sandboxes();
    let whole = cells.iter().filter(|c| !c.is_over() && half_ended != Some(&c.id));
    let known: BTreeMap<_, _> = whole.map(|c| (c.id.clone(), c.state())).collect();
    if recorded != known {
        faults.push(format!("recorded are {recorded:?}, known are {known:?}"));
    }
    let slots: BTreeSet<_> = known.keys().map(|id| &id.slot).collect();
    if slots.len() != known.len() {
        faults.push(format!("two generations of one slot: {known:?}"));
    }
    let page =
        platform.journal().snapshots(Whose::Everyones, SnapshotFilter::default(), Paging::first()).await.unwrap();
    let recorded: BTreeMap<_, _> = page.items.iter().map(|record| (record.id.clone(), record.state)).collect();
    let cells = platform.registry().tables().snapshots();
    let known: BTreeMap<_, _> = cells.iter().filter(|c| !c.is_over()).map(|c| (c.id.clone(), c.show().state)).collect();
    if recorded != known {
        faults.push(format!("recorded snapshots are {recorded:?}, known are {known:?}"));
    }
    faults.extend(known.iter().filter(|(_, s)| **s != SnapshotState::Active).map(|(id, s)| format!("{id} is {s}")));
}

/// What runs is recorded as running and the other way round; nothing stands still that is not to.
fn machines(platform: &Platform, host: &StandIn, half_ended: Option<&SandboxId>, faults: &mut Vec<String>) {
    let cells = platform.registry().tables().sandboxes();
    let mut seen: BTreeMap<_, _> = host.seen().into_iter().map(|seen| (seen.uid.clone(), seen)).collect();
    for cell in cells.iter().filter(|cell| !cell.is_over()) {
        let found = seen.remove(&cell.uid);
        let stands = found.as_ref().filter(|seen| seen.alive).map(|seen| seen.halted);
        let is_as_recorded = match cell.state() {
            SandboxState::Running => stands == Some(false),
            SandboxState::Paused => stands == Some(true),
            SandboxState::Stopped => stands.is_none() && platform.engine().has_files(&cell.uid),
            _ => false,
        };
        if !is_as_recorded && half_ended != Some(&cell.id) {
            faults.push(format!("{} is {} and its machine is {found:?}", cell.id, cell.state()));
        }
    }
    faults.extend(seen.into_values().map(|seen| format!("nobody's machine: {seen:?}")));
}

/// Nothing lies there that is nobody's, and nothing is missing.
fn files(platform: &Platform, faults: &mut Vec<String>) {
    let engine = platform.engine();
    let mut left = engine.leftovers().unwrap();
    let tables = platform.registry().tables();
    for cell in tables.sandboxes().iter().filter(|cell| !cell.is_over()) {
        left.machines.remove(&cell.uid);
        for layer in &cell.layers {
            if !engine.dirs().layer(layer).is_dir() {
                faults.push(format!("the layer {layer} under {} is missing", cell.id));
            }
        }
    }
    let used = tables.layers_in_use();
    for cell in tables.snapshots().iter().filter(|cell| !cell.is_over()) {
        let doc = cell.doc();
        let with_memory = engine.dirs().memory(&cell.id).is_dir();
        if doc.shown.memory_kept != with_memory || doc.memory.is_some() != with_memory {
            faults.push(format!(
                "{} says {} of its memory, which is there: {with_memory}",
                cell.id, doc.shown.memory_kept
            ));
        }
        if !engine.dirs().layer(&cell.id).is_dir() {
            faults.push(format!("the layer of {} is missing", cell.id));
        }
    }
    left.snapshots.retain(|id| !used.contains(id) || engine.dirs().layer(id).with_extension("tmp").exists());
    if !left.machines.is_empty() || !left.snapshots.is_empty() || !left.strangers.is_empty() {
        faults.push(format!("left behind: {left:?}"));
    }
}

/// What is held is what lives.
async fn quotas(platform: &Platform, faults: &mut Vec<String>) {
    let account = Caller::operator().account;
    let used = platform.journal().used(&account).await.unwrap();
    let used: BTreeMap<_, _> = used.iter().filter(|u| u.period.is_none()).map(|u| (u.name.clone(), u.amount)).collect();
    let (mut sandboxes, mut memory, mut disk, mut snapshots, mut bytes) = (0, 0, 0, 0, 0);
    {
        let tables = platform.registry().tables();
        for cell in tables.sandboxes().iter().filter(|cell| !cell.is_over()) {
            disk += DISK_BYTES_DEFAULT;
            if cell.state() != SandboxState::Stopped {
                sandboxes += 1;
                memory += u64::from(cell.spec.memory_mib);
            }
        }
        for cell in tables.snapshots().iter().filter(|cell| !cell.is_over()) {
            let doc = cell.doc();
            snapshots += u64::from(!doc.of_fork);
            bytes += doc.shown.bytes;
        }
    }
    let expected = [
        (Quota::Sandboxes, sandboxes),
        (Quota::MemoryMib, memory),
        (Quota::DiskBytes, disk),
        (Quota::Snapshots, snapshots),
        (Quota::SnapshotBytes, bytes),
    ];
    for (quota, amount) in expected {
        let held = used.get(&quota.to_string()).copied().unwrap_or(0);
        if held != amount {
            faults.push(format!("{held} of {quota} are held, {amount} live"));
        }
    }
}

/// A comparison of records, memory and machine finds nothing, and has repaired nothing but what recovery removes.
async fn reconciled(platform: &Platform, half_ended: Option<&SandboxId>, faults: &mut Vec<String>) {
    let compared = platform.reconcile(false).await.unwrap();
    let found = compared.findings.iter().filter(|f| half_ended.is_none() || f.sandbox.as_ref() != half_ended);
    faults.extend(found.map(|finding| format!("found: {finding:?}")));
    let (repairs, _) = platform.reconciler().repairs();
    let unexpected = repairs.iter().filter(|repaired| repaired.repair.found != LEFT_BEHIND);
    faults.extend(unexpected.map(|repaired| format!("repaired: {repaired:?}")));
}
