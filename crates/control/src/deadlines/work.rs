//! What counts as work in a sandbox: what is under way, and when it was last so. Listing, showing and reading of logs
//! never come here.

use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, OnceLock};
use std::time::Instant;

use tokio::sync::Notify;

use crate::clock::now_unix_ms;

/// From where passing time is counted: a clock that is set makes nobody idle.
static BEGUN: LazyLock<Instant> = LazyLock::new(Instant::now);

fn passed_ms() -> u64 {
    u64::try_from(BEGUN.elapsed().as_millis()).unwrap_or(u64::MAX)
}

/// The work of one sandbox.
#[derive(Debug)]
pub(crate) struct Work {
    under_way: AtomicUsize,
    last_ms: AtomicU64,
    /// The same by the clock on the wall, to be shown.
    last_unix_ms: AtomicI64,
    /// Wakes whoever waits for something to be due.
    alarm: OnceLock<Arc<Notify>>,
}

impl Default for Work {
    /// Its making, or its adoption by a new server, counts as work.
    fn default() -> Work {
        Work {
            under_way: AtomicUsize::new(0),
            last_ms: AtomicU64::new(passed_ms()),
            last_unix_ms: AtomicI64::new(now_unix_ms()),
            alarm: OnceLock::new(),
        }
    }
}

impl Work {
    /// Something is done and over. Nobody needs to be woken: it is seen at the next look.
    pub(crate) fn touch(&self) {
        self.last_ms.store(passed_ms(), Ordering::SeqCst);
        self.last_unix_ms.store(now_unix_ms(), Ordering::SeqCst);
    }

    /// Something is under way for as long as this is held. Begin it *before* asking whether the sandbox takes work:
    /// then it is seen by whoever fences, or sees the fence.
    pub(crate) fn begin(self: &Arc<Self>) -> Working {
        self.started();
        Working(self.clone())
    }

    /// The same for what holds nothing: whoever calls this sees to it that the end is told, once.
    pub(crate) fn started(&self) {
        self.under_way.fetch_add(1, Ordering::SeqCst);
        self.touch();
    }

    /// What was started is over.
    pub(crate) fn ended(&self) {
        self.touch();
        if self.under_way.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.wake();
        }
    }

    /// For how long there was none, in milliseconds; none while something is under way.
    pub(super) fn quiet_ms(&self) -> Option<u64> {
        match self.under_way.load(Ordering::SeqCst) {
            0 => Some(passed_ms().saturating_sub(self.last_ms.load(Ordering::SeqCst))),
            _ => None,
        }
    }

    /// When it was done last, in Unix milliseconds; none while something is under way.
    pub(super) fn last_unix_ms(&self) -> Option<i64> {
        (self.under_way.load(Ordering::SeqCst) == 0).then(|| self.last_unix_ms.load(Ordering::SeqCst))
    }

    pub(super) fn wakes(&self, alarm: &Arc<Notify>) {
        let _ = self.alarm.set(alarm.clone());
    }

    pub(super) fn wake(&self) {
        if let Some(alarm) = self.alarm.get() {
            alarm.notify_one();
        }
    }
}

/// Something that is under way.
#[derive(Debug)]
pub(crate) struct Working(Arc<Work>);

impl Working {
    /// Something of it was done just now.
    pub(crate) fn goes_on(&self) {
        self.0.touch();
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        self.0.ended();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_quiet_while_something_is_under_way() {
        let work = Arc::new(Work::default());
        assert!(work.quiet_ms().is_some() && work.last_unix_ms().is_some());
        let (first, second) = (work.begin(), work.begin());
        drop(first);
        assert_eq!((work.quiet_ms(), work.last_unix_ms()), (None, None));
        drop(second);
        assert!(work.quiet_ms().is_some());
    }

    #[tokio::test]
    async fn the_end_of_the_last_work_wakes_the_watch() {
        let (work, alarm) = (Arc::new(Work::default()), Arc::new(Notify::new()));
        work.wakes(&alarm);
        let (first, second) = (work.begin(), work.begin());
        drop(first);
        let woken =
            async { tokio::time::timeout(std::time::Duration::from_millis(20), alarm.notified()).await.is_ok() };
        assert!(!woken.await);
        drop(second);
        alarm.notified().await;
    }
}
