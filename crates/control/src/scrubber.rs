//! The scrubber: reads all that is kept of snapshots, layers and memory images, every now and then, and holds it against the
//! digests that were made at the capture. A restore reads again only what the kernel says was touched; a disk that returns
//! other bytes than it was given tells the kernel nothing.
//!
//! It is slow on purpose: one part after another, at the least priority, with a rest after each that keeps the average
//! below [`SCRUB_BYTES_PER_SECOND_MAX`].

use std::sync::Weak;
use std::time::{Duration, Instant};

use remuda_engine::{LayerSeal, MemoryImage, disk_usage};
use remuda_types::limits::SCRUB_BYTES_PER_SECOND_MAX;
use remuda_types::{Error, SnapshotId};

use crate::operations::restore::Reading;
use crate::operations::verify;
use crate::platform::{Platform, Shared};

enum Part {
    Layer(SnapshotId, LayerSeal),
    Memory(SnapshotId, MemoryImage),
}

/// Reads everything once in each `every`, as long as there is a platform.
pub(crate) async fn run(shared: Weak<Shared>, every: Duration) {
    loop {
        // First, so that a server that has just started serves.
        let Some(closing) = shared.upgrade().map(|shared| Platform::of(shared).closing().clone()) else { return };
        let began = tokio::select! {
            () = closing.cancelled() => return,
            () = tokio::time::sleep(every) => Instant::now(),
        };
        let parts = match shared.upgrade() {
            Some(shared) => parts(&Platform::of(shared)),
            None => return,
        };
        let (mut count, mut damaged) = (0, 0);
        for part in parts {
            let Some(shared) = shared.upgrade() else { return };
            let begun = Instant::now();
            match check(&Platform::of(shared), part).await {
                Ok((bytes, sound)) => {
                    count += 1;
                    damaged += usize::from(!sound);
                    let least = Duration::from_secs_f64(bytes as f64 / SCRUB_BYTES_PER_SECOND_MAX as f64);
                    tokio::select! {
                        () = closing.cancelled() => return,
                        () = tokio::time::sleep(least.saturating_sub(begun.elapsed())) => {}
                    }
                }
                Err(e) => tracing::warn!("a part of a snapshot is not checked: {e}"),
            }
        }
        tracing::debug!("{count} parts of snapshots were read in {:?}, {damaged} are damaged", began.elapsed());
    }
}

/// All that is kept and has a digest to be held against.
fn parts(platform: &Platform) -> Vec<Part> {
    let tables = platform.registry().tables();
    let used = tables.layers_in_use();
    let mut parts = Vec::new();
    for cell in tables.snapshots() {
        let inner = cell.inner();
        if let Some(seal) = inner.doc.layer_seal.clone().filter(|_| used.contains(&cell.id)) {
            parts.push(Part::Layer(cell.id.clone(), seal));
        }
        let of_fork = inner.doc.of_fork;
        if let Some(image) = inner.doc.memory.clone().filter(|_| inner.doc.shown.memory_kept && !of_fork) {
            parts.push(Part::Memory(cell.id.clone(), image));
        }
    }
    parts
}

/// Reads one part, which stays meanwhile. Tells how many bytes that were and whether they are sound.
async fn check(platform: &Platform, part: Part) -> Result<(u64, bool), Error> {
    let id = match &part {
        Part::Layer(id, _) | Part::Memory(id, _) => id.clone(),
    };
    let Some(cell) = platform.registry().tables().snapshot_by_id(&id) else { return Ok((0, true)) };
    let _reading = Reading::begin(&cell);
    Ok(match part {
        Part::Layer(id, seal) => {
            let place = platform.engine().dirs().layer(&id);
            let bytes = tokio::task::spawn_blocking(move || disk_usage(&place)).await.unwrap_or(0);
            (bytes, verify::check_layer(platform, &id, seal).await?.is_none())
        }
        Part::Memory(id, image) => {
            let bytes = image.bytes();
            (bytes, verify::check_memory(platform, &id, image).await?.is_none())
        }
    })
}
