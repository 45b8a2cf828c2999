//! What is due when. Pure: no clock, no locks, no I/O.

use remuda_types::limits::DEADLINE_SOON_MS;
use remuda_types::wire::DueTo;

use super::Term;

/// A moment in a sandbox's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Moment {
    /// Wall-clock time, in Unix milliseconds: deadlines go by it.
    pub(super) now_ms: i64,
    /// For how long nothing has been done with it, in milliseconds that passed; none while something is under way.
    pub(super) quiet_ms: Option<u64>,
}

/// What a look at a moment found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Look {
    /// That its deadline is near is to be told.
    pub(super) tell_soon: bool,
    /// It is to be ended.
    pub(super) due: Option<DueTo>,
    /// After how many milliseconds there is something new to see, if nothing is done with it until then.
    pub(super) again_in_ms: Option<u64>,
}

impl Term {
    /// When it is told that the deadline is near: a minute before, of a shorter life after half of it.
    pub(super) fn soon_at_ms(&self) -> i64 {
        let whole = self.deadline_at_ms.saturating_sub(self.set_at_ms).max(0);
        self.deadline_at_ms.saturating_sub((DEADLINE_SOON_MS as i64).min(whole / 2))
    }

    /// What is due.
    pub(super) fn look(&self, Moment { now_ms, quiet_ms }: Moment) -> Look {
        if self.kept {
            return Look::default();
        }
        let idle_in = match (self.idle_timeout_ms, quiet_ms) {
            (Some(limit), Some(quiet)) => Some(limit.saturating_sub(quiet)),
            _ => None,
        };
        let due = match self.ending {
            Some(due_to) => Some(due_to),
            None if now_ms >= self.deadline_at_ms => Some(DueTo::Deadline),
            None if idle_in == Some(0) => Some(DueTo::Idle),
            None => None,
        };
        if due.is_some() {
            return Look { tell_soon: false, due, again_in_ms: None };
        }
        let until = |at_ms: i64| at_ms.saturating_sub(now_ms).max(0).unsigned_abs();
        let tell_soon = !self.told_soon && now_ms >= self.soon_at_ms();
        let soon_in = (!self.told_soon && !tell_soon).then(|| until(self.soon_at_ms()));
        let again_in_ms = [Some(until(self.deadline_at_ms)), soon_in, idle_in].into_iter().flatten().min();
        Look { tell_soon, due, again_in_ms }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use remuda_types::wire::OnDeadline;

    use super::*;

    fn any_term() -> impl Strategy<Value = Term> {
        let span = 0..200_000u64;
        (0..1_000_000i64, span, proptest::option::of(1..100_000u64), any::<bool>()).prop_map(
            |(set_at_ms, timeout, idle_timeout_ms, told_soon)| Term {
                set_at_ms,
                deadline_at_ms: set_at_ms + timeout as i64,
                on_deadline: OnDeadline::Snapshot,
                idle_timeout_ms,
                round: 0,
                told_soon,
                ending: None,
                settled: None,
                kept: false,
            },
        )
    }

    fn after(at: Moment, ms: u64) -> Moment {
        Moment { now_ms: at.now_ms + ms as i64, quiet_ms: at.quiet_ms.map(|quiet| quiet + ms) }
    }

    proptest! {
        #[test]
        fn whoever_sleeps_as_long_as_is_said_misses_nothing_and_wakes_up_for_something(
            term in any_term(), now_ms in 0..1_500_000i64, quiet_ms in proptest::option::of(0..200_000u64), part in 0.0..1.0f64,
        ) {
            let at = Moment { now_ms, quiet_ms };
            let look = term.look(at);
            let Some(wait) = look.again_in_ms else {
                prop_assert!(look.due.is_some(), "without an end there is always another look");
                return Ok(());
            };
            prop_assert!(wait > 0, "nobody looks twice at one moment");
            // Once it is told, it is not told again.
            let told = Term { told_soon: term.told_soon || look.tell_soon, ..term.clone() };
            let between = told.look(after(at, ((wait as f64 * part) as u64).min(wait - 1)));
            prop_assert_eq!((between.due, between.tell_soon), (None, false));
            let then = told.look(after(at, wait));
            prop_assert!(then.due.is_some() || then.tell_soon);
        }

        #[test]
        fn work_never_moves_a_deadline(
            term in any_term(), now_ms in 0..1_500_000i64, quiet_ms in proptest::option::of(0..200_000u64),
        ) {
            let busy = term.look(Moment { now_ms, quiet_ms: None });
            prop_assert_eq!(busy.due, (now_ms >= term.deadline_at_ms).then_some(DueTo::Deadline));
            let quiet = term.look(Moment { now_ms, quiet_ms });
            if busy.due.is_some() {
                prop_assert_eq!(quiet.due, busy.due);
            }
        }

        #[test]
        fn idle_ends_exactly_when_it_was_quiet_for_long_enough(term in any_term(), quiet_ms in 0..200_000u64) {
            let before = term.deadline_at_ms - 1;
            let look = term.look(Moment { now_ms: before, quiet_ms: Some(quiet_ms) });
            let idle = term.idle_timeout_ms.is_some_and(|limit| quiet_ms >= limit);
            prop_assert_eq!(look.due, idle.then_some(DueTo::Idle));
        }

        #[test]
        fn it_is_told_before_the_deadline_and_after_half_of_a_short_life(term in any_term()) {
            let soon = term.soon_at_ms();
            prop_assert!(soon >= term.set_at_ms && soon <= term.deadline_at_ms);
            prop_assert!(term.deadline_at_ms - soon <= DEADLINE_SOON_MS as i64);
            prop_assert!(soon >= term.set_at_ms + (term.deadline_at_ms - term.set_at_ms) / 2);
        }

        #[test]
        fn what_is_being_ended_stays_due_and_what_is_kept_is_left_alone(
            term in any_term(), now_ms in 0..1_500_000i64, quiet_ms in proptest::option::of(0..200_000u64),
        ) {
            let at = Moment { now_ms, quiet_ms };
            let ending = Term { ending: Some(DueTo::Idle), ..term.clone() };
            prop_assert_eq!(ending.look(at).due, Some(DueTo::Idle));
            let kept = Term { kept: true, ..term };
            prop_assert_eq!(kept.look(at), Look::default());
        }
    }
}
