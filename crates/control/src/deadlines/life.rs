//! A living sandbox's deadline in memory: what is on record of it, its work, and whether somebody carries it out.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use remuda_types::wire::{DueTo, Sandbox};
use tokio::sync::{Notify, OwnedMutexGuard};

use super::due::{Look, Moment};
use super::{Term, Work};
use crate::clock::now_unix_ms;

/// Longest wait between two attempts to end a sandbox, in milliseconds.
const RETRY_MS_MAX: u64 = 300_000;
/// Wait after the first attempt that failed, in milliseconds; doubled with each.
const RETRY_MS_FIRST: u64 = 1_000;

/// How long a sandbox may live.
#[derive(Debug)]
pub(crate) struct Life {
    inner: Mutex<Inner>,
    work: Arc<Work>,
    /// Whoever changes what is on record has it until the change is there, so that memory and journal agree.
    turn: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Debug)]
struct Inner {
    /// None where an earlier build made it: then it lives until it is removed.
    term: Option<Term>,
    /// Somebody carries its end out.
    taken_up: bool,
    /// Attempts to end it that failed.
    failures: u32,
    /// When it may be tried again.
    retry_at: Option<tokio::time::Instant>,
}

impl Life {
    pub(crate) fn new(term: Option<Term>, work: Arc<Work>) -> Life {
        let inner = Inner { term, taken_up: false, failures: 0, retry_at: None };
        Life { inner: Mutex::new(inner), work, turn: Arc::default() }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What counts as work in it.
    pub(crate) fn work(&self) -> &Arc<Work> {
        &self.work
    }

    /// It came up: from here on it may be idle.
    pub(crate) fn came_up(&self) {
        self.work.touch();
        self.work.wake();
    }

    /// Whom its changes wake.
    pub(crate) fn wakes(&self, alarm: &Arc<Notify>) {
        self.work.wakes(alarm);
    }

    /// What is, or is to be, on record.
    pub(crate) fn term(&self) -> Option<Term> {
        self.inner().term.clone()
    }

    /// Why it is being ended; nothing else is done with it then.
    pub(crate) fn ending(&self) -> Option<DueTo> {
        self.inner().term.as_ref().and_then(|term| term.ending)
    }

    /// Adds what is shown of it.
    pub(crate) fn show(&self, shown: Sandbox) -> Sandbox {
        let Some(term) = self.term() else { return shown };
        let last = self.work.last_unix_ms().filter(|_| !term.kept);
        let idle_at_ms = term.idle_timeout_ms.zip(last).map(|(limit, last)| last.saturating_add_unsigned(limit));
        Sandbox { idle_at_ms, ..term.show(shown) }
    }

    /// The right to change what is on record.
    pub(super) async fn turn(&self) -> OwnedMutexGuard<()> {
        self.turn.clone().lock_owned().await
    }

    /// Takes over what is on record now. Whoever calls has the turn.
    pub(super) fn set(&self, term: Term) {
        let mut inner = self.inner();
        (inner.failures, inner.retry_at) = (0, None);
        inner.term = Some(term);
        drop(inner);
        self.work.wake();
    }

    /// What is due at this moment; of one that is not up yet nobody waits for work.
    pub(super) fn look(&self, up: bool) -> Look {
        let moment = Moment { now_ms: now_unix_ms(), quiet_ms: self.work.quiet_ms().filter(|_| up) };
        self.inner().term.as_ref().map(|term| term.look(moment)).unwrap_or_default()
    }

    /// Fences it where its end is due, and tells why it is. Whoever calls has the turn.
    pub(super) fn fence(&self, up: bool) -> Option<DueTo> {
        if let Some(due_to) = self.ending() {
            return Some(due_to);
        }
        let found = self.look(up).due?;
        self.set_ending(Some(found));
        // Whoever began before the fence was there may not have seen it.
        if found == DueTo::Idle && self.work.quiet_ms().is_none() {
            self.set_ending(None);
            return None;
        }
        Some(found)
    }

    fn set_ending(&self, ending: Option<DueTo>) {
        if let Some(term) = &mut self.inner().term {
            term.ending = ending;
        }
    }

    /// Whether the caller is to carry its end out: nobody else does, and the wait after a failure is over. Otherwise
    /// tells when to look again.
    pub(super) fn take_up(&self) -> Result<(), Option<tokio::time::Instant>> {
        let mut inner = self.inner();
        if inner.taken_up {
            return Err(None);
        }
        if let Some(at) = inner.retry_at.filter(|at| *at > tokio::time::Instant::now()) {
            return Err(Some(at));
        }
        inner.taken_up = true;
        Ok(())
    }

    /// Nobody carries its end out any more. After a failure it is tried again, after longer each time.
    pub(super) fn let_go(&self, failed: bool) {
        let mut inner = self.inner();
        inner.taken_up = false;
        if failed {
            let wait = RETRY_MS_FIRST.saturating_mul(1 << inner.failures.min(20)).min(RETRY_MS_MAX);
            inner.failures += 1;
            inner.retry_at = Some(tokio::time::Instant::now() + std::time::Duration::from_millis(wait));
        }
        drop(inner);
        self.work.wake();
    }
}

impl Term {
    /// Adds what is on record of it.
    pub(crate) fn show(&self, shown: Sandbox) -> Sandbox {
        Sandbox {
            deadline_at_ms: Some(self.deadline_at_ms),
            idle_timeout_ms: self.idle_timeout_ms,
            on_deadline: Some(self.on_deadline),
            ..shown
        }
    }
}

#[cfg(test)]
mod tests {
    use remuda_types::wire::OnDeadline;

    use super::*;

    fn life(timeout_ms: i64, idle_timeout_ms: Option<u64>) -> Life {
        let set_at_ms = now_unix_ms();
        Life::new(
            Some(Term {
                set_at_ms,
                deadline_at_ms: set_at_ms + timeout_ms,
                on_deadline: OnDeadline::Snapshot,
                idle_timeout_ms,
                round: 0,
                told_soon: true,
                ending: None,
                settled: None,
                kept: false,
            }),
            Arc::default(),
        )
    }

    #[test]
    fn a_fence_comes_up_only_where_something_is_due_and_no_work_is_under_way() {
        assert_eq!(life(60_000, None).fence(true), None);
        let passed = life(-1, None);
        let _working = passed.work().begin();
        assert_eq!((passed.fence(true), passed.ending()), (Some(DueTo::Deadline), Some(DueTo::Deadline)));
        let idle = life(60_000, Some(0));
        let working = idle.work().begin();
        assert_eq!((idle.fence(true), idle.ending()), (None, None));
        drop(working);
        assert_eq!(idle.fence(false), None, "nothing is idle before it is up");
        assert_eq!(idle.fence(true), Some(DueTo::Idle));
        assert_eq!(Life::new(None, Arc::default()).fence(true), None, "one of an earlier build has no deadline");
    }

    #[test]
    fn an_end_is_carried_out_by_one_and_tried_again_after_longer_each_time() {
        let life = life(-1, None);
        let mut waits = Vec::new();
        for _ in 0..12 {
            life.inner().retry_at = None;
            assert_eq!(life.take_up(), Ok(()));
            assert_eq!(life.take_up(), Err(None));
            life.let_go(true);
            let Err(Some(at)) = life.take_up() else { panic!("it is tried again at once") };
            waits.push(at.duration_since(tokio::time::Instant::now()).as_millis().div_ceil(500) / 2 * 1_000);
        }
        assert_eq!(waits[..3], [1_000, 2_000, 4_000]);
        assert_eq!(waits[11], u128::from(RETRY_MS_MAX));
    }
}
