//! The status document: containers, what they may use, and what they use. Each figure comes from the platform; must hold none.

use remuda_control::{Caller, Platform};
use remuda_types::limits::SANDBOXES_MAX;
use remuda_types::wire::{Labels, Origin, Sandbox};
use remuda_types::{Error, Generation, Quota, SandboxId, SandboxState, Slot, SnapshotId};
use serde_json::{Value, json};

use super::ids::{self, Kind};
use super::sizes::{SIZES, Size};

/// The label that carries a container's name.
pub(super) const NAME: &str = "mainbrella.name";
/// The label that carries which image of the catalog it was made from.
pub(super) const CATALOG: &str = "mainbrella.catalog";
/// The label that carries its size.
pub(super) const SIZE: &str = "mainbrella.size";
/// What the catalog has. Both are the base image, which has node and python.
pub(super) const IMAGES: [(&str, &str); 2] = [("node", "Node.js"), ("python", "Python")];

/// How long a container goes without work before it is captured and ended, in milliseconds.
pub(super) const IDLE_MS: u64 = 30 * 60_000;
const HOUR_MS: f64 = 3_600_000.0;
/// Hours in the longest month.
const MONTH_HOURS: u64 = 744;

/// A time as this dialect writes it.
pub(super) fn iso(unix_ms: i64) -> Option<String> {
    Generation::from_unix_ms(unix_ms).map(|time| time.to_string())
}

/// Whether a sandbox is one that this dialect can name and has running or starting. One that stands still keeps its
/// memory, and so its place.
pub(super) fn is_listed(sandbox: &Sandbox) -> bool {
    let up = matches!(sandbox.state, SandboxState::Starting | SandboxState::Running | SandboxState::Paused);
    up && ids::is_container(&sandbox.id.slot)
}

/// The size of what has these labels and this memory.
pub(super) fn size_of(labels: &Labels, memory_mib: u32) -> &'static Size {
    labels.get(SIZE).and_then(|id| Size::named(id)).unwrap_or_else(|| Size::of_memory(memory_mib))
}

/// One container.
pub(super) fn container(sandbox: &Sandbox) -> Value {
    let size = size_of(&sandbox.labels, sandbox.memory_mib);
    let starting = sandbox.state == SandboxState::Starting;
    let mut shown = json!({
        "id": sandbox.id.slot,
        "name": sandbox.labels.get(NAME).map_or(sandbox.id.slot.as_str(), String::as_str),
        "size": size.id,
        "computeUnits": size.units,
        "instance": size.instance,
        "status": if starting { "starting" } else { "running" },
        "createdAt": sandbox.id.generation,
        "expiresAt": sandbox.deadline_at_ms.and_then(iso),
        "internet": sandbox.internet,
    });
    match &sandbox.origin {
        Origin::Image { digest } => {
            let catalog = sandbox.labels.get(CATALOG).map_or(IMAGES[0].0, String::as_str);
            shown["catalogId"] = catalog.into();
            shown["imageDigest"] = digest.as_str().into();
        }
        Origin::Snapshot { snapshot, .. } => {
            shown["workspaceId"] = ids::uuid(Kind::Snapshot, SnapshotId::PREFIX, snapshot.as_str()).into();
        }
    }
    shown
}

/// Containers that a caller sees, by creation and then by id.
pub(super) async fn containers(platform: &Platform, caller: &Caller) -> Result<Vec<Sandbox>, Error> {
    let mut sandboxes = platform.list(caller, false).await?;
    sandboxes.retain(is_listed);
    sandboxes.sort_by(|a, b| (a.id.generation, a.id.slot.as_str()).cmp(&(b.id.generation, b.id.slot.as_str())));
    Ok(sandboxes)
}

/// The generation that holds a slot, where one does.
pub(super) async fn holder(platform: &Platform, caller: &Caller, slot: &Slot) -> Result<Option<SandboxId>, Error> {
    let all = containers(platform, caller).await?;
    Ok(all.into_iter().map(|sandbox| sandbox.id).find(|id| id.slot == *slot))
}

/// The document, of one slot alone where that is asked for.
pub(super) async fn document(platform: &Platform, caller: &Caller, only: Option<&Slot>) -> Result<Value, Error> {
    let living = containers(platform, caller).await?;
    let shown: Vec<Value> =
        living.iter().filter(|it| only.is_none_or(|slot| it.id.slot == *slot)).map(container).collect();
    let limits = platform.whoami(caller).limits;
    let limit = |quota: Quota| limits.get(quota.as_str()).copied().flatten();
    let containers_max = limit(Quota::Sandboxes).unwrap_or(SANDBOXES_MAX as u64).min(SANDBOXES_MAX as u64);
    let largest = SIZES.iter().map(|size| size.units).max().unwrap_or(1);
    // There is no limit of its own to units; this is what so many containers can come to.
    let units_max = containers_max * largest;
    let session_ms = platform.timeout_ms_max();
    Ok(json!({
        "plan": "self-hosted",
        "active": true,
        "containers": shown,
        "billing": null,
        "limits": {
            "maxComputeUnitHours": null,
            "maxConcurrentComputeUnits": units_max,
            "maxContainers": containers_max,
            "maxStartsPerMonth": limit(Quota::StartsPerMonth).unwrap_or(u64::from(u32::MAX)),
            "maxSessionMs": session_ms,
            "idleTimeoutMs": IDLE_MS.min(session_ms),
        },
        "usage": usage(platform, caller, &living, units_max).await?,
        "sizes": SIZES.iter().map(Size::show).collect::<Vec<_>>(),
        "imageCatalog": IMAGES.map(|(id, name)| json!({ "id": id, "name": name })),
    }))
}

/// What was used this month, by what is on record of each machine.
async fn usage(platform: &Platform, caller: &Caller, living: &[Sandbox], units_max: u64) -> Result<Value, Error> {
    let used = platform.month_so_far(caller).await?;
    let units = |sandbox: &Sandbox| size_of(&sandbox.labels, sandbox.memory_mib).units as f64;
    let hours = |from: i64, to: i64| (to.saturating_sub(from)).max(0) as f64 / HOUR_MS;
    let consumed: f64 = used
        .sandboxes
        .iter()
        .map(|it| {
            let from = it.created_at_ms.max(used.began_at_ms);
            units(it) * hours(from, it.ended_at_ms.unwrap_or(used.now_ms))
        })
        .sum();
    let reserved: f64 =
        living.iter().map(|it| units(it) * hours(used.now_ms, it.deadline_at_ms.unwrap_or(used.now_ms))).sum();
    // Nothing is metered: what could still be used if every container ran for a whole month.
    let most = (units_max * MONTH_HOURS) as f64;
    Ok(json!({
        "month": used.month,
        "starts": used.starts,
        "computeUnitHours": consumed,
        "reservedComputeUnitHours": reserved,
        "availableComputeUnitHours": (most - reserved).max(1.0),
        "concurrentComputeUnits": living.iter().map(units).sum::<f64>() as u64,
    }))
}
