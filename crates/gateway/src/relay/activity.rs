//! When something was last seen to move, for limits on how long nothing may.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// When something last moved.
#[derive(Debug)]
pub(crate) struct Activity {
    start: Instant,
    /// Milliseconds since `start`.
    last_ms: AtomicU64,
}

impl Activity {
    /// Something moves now.
    pub(crate) fn begin() -> Activity {
        Activity { start: Instant::now(), last_ms: AtomicU64::new(0) }
    }

    /// Something moves now.
    pub(crate) fn touch(&self) {
        let passed = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last_ms.fetch_max(passed, Ordering::Relaxed);
    }

    /// Waits until nothing has moved for so long.
    pub(crate) async fn idle_for(&self, limit: Duration) {
        loop {
            let last = Duration::from_millis(self.last_ms.load(Ordering::Relaxed));
            let due = self.start + last + limit;
            if due <= Instant::now() {
                return;
            }
            tokio::time::sleep_until(due).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_moves_is_not_idle() {
        let (activity, begun) = (Activity::begin(), Instant::now());
        let limit = Duration::from_millis(50);
        let moving = async {
            tokio::time::sleep(Duration::from_millis(20)).await;
            activity.touch();
            begun.elapsed()
        };
        let ((), moved) = tokio::join!(activity.idle_for(limit), moving);
        // Told in whole milliseconds, so that one may be missing.
        assert!(begun.elapsed() + Duration::from_millis(1) >= moved + limit);
    }
}
