//! What the executions of one sandbox share: counts, and how files are removed.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::deadlines::Work;
use crate::output;

/// Shared by all executions of a sandbox.
#[derive(Debug, Default)]
pub(super) struct Keeper {
    running: AtomicUsize,
    kept_bytes: AtomicU64,
    failing: AtomicUsize,
    /// What is done in the sandbox; each execution that runs is a part of it.
    pub(super) work: Arc<Work>,
}

impl Keeper {
    pub(super) fn started(&self) {
        self.running.fetch_add(1, Ordering::Relaxed);
        self.work.started();
    }

    pub(super) fn ended(&self) {
        self.running.fetch_sub(1, Ordering::Relaxed);
        self.work.ended();
    }

    /// Executions that run.
    pub(super) fn running(&self) -> usize {
        self.running.load(Ordering::Relaxed)
    }

    /// One of them keeps so many bytes of output now instead of so many before.
    pub(super) fn kept(&self, before: u64, after: u64) {
        // Wraps when less is kept, and the sum is right again.
        self.kept_bytes.fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
    }

    /// Bytes of output that all of them keep.
    pub(super) fn kept_bytes(&self) -> u64 {
        self.kept_bytes.load(Ordering::Relaxed)
    }

    /// Writing the log of one of them fails, or does no longer.
    pub(super) fn failing(&self, fails: bool) {
        if fails {
            self.failing.fetch_add(1, Ordering::Relaxed);
        } else {
            self.failing.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Whether something waits for a disk.
    pub(super) fn is_failing(&self) -> bool {
        self.failing.load(Ordering::Relaxed) > 0
    }

    /// Removes files that nobody needs, off everybody's way.
    pub(super) fn remove_files(&self, unneeded: Vec<PathBuf>) {
        if !unneeded.is_empty() {
            behind(move || remove(&unneeded));
        }
    }
}

/// Does work that may block by a thread of its own; here and now where there is no runtime.
pub(super) fn behind(work: impl FnOnce() + Send + 'static) {
    match tokio::runtime::Handle::try_current() {
        Ok(runtime) => drop(runtime.spawn_blocking(work)),
        Err(_) => work(),
    }
}

/// Removes files; what stays is found and removed with its execution.
pub(super) fn remove(unneeded: &[PathBuf]) {
    for path in unneeded {
        if let Err(e) = output::remove(path) {
            tracing::warn!("failed to remove {}: {e}", path.display());
        }
    }
}
