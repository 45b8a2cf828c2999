//! Effects that were asked for and their outcomes, so that a call repeated because its answer was lost does nothing a
//! second time. No I/O here.

use std::collections::{HashMap, VecDeque};

use remuda_guest_proto::ReplyResult;

use crate::limits::{EFFECT_WAITERS_MAX, EFFECTS_MAX};
use crate::outbox::Host;

enum Effect {
    /// At work; these calls wait for its outcome.
    Pending(Vec<(Host, u32)>),
    /// Its outcome.
    Done(ReplyResult),
}

/// The effects.
#[derive(Default)]
pub struct Effects {
    known: HashMap<u64, Effect>,
    /// Effects with an outcome, oldest first.
    done: VecDeque<u64>,
    /// The highest number whose outcome was dropped: what lies above it was not, whatever servers number effects by.
    dropped: Option<u64>,
}

/// What to do with a call.
#[derive(Debug, PartialEq)]
pub enum Begin {
    /// Nobody asked for it yet: do it.
    Do,
    /// It is being done, and this call will be answered with the others.
    Wait,
    /// It was done, and this was the answer.
    Answer(ReplyResult),
    /// Too many calls wait for it.
    TooMany,
}

/// What is known of an effect.
#[derive(Debug, PartialEq)]
pub enum Known {
    /// It is being done, and the call will be answered with the others.
    Waits,
    /// It was done, and this was the answer.
    Outcome(ReplyResult),
    /// Nothing of it was done.
    Undone,
    /// It may have been done too long ago.
    Forgotten,
    /// Too many calls wait for it.
    TooMany,
}

impl Effects {
    /// A call asks what became of an effect, and asks for nothing.
    pub fn outcome(&mut self, effect: u64, host: Host, call: u32) -> Known {
        if !self.known.contains_key(&effect) {
            return if self.dropped.is_some_and(|dropped| effect <= dropped) {
                Known::Forgotten
            } else {
                Known::Undone
            };
        }
        match self.begin(effect, host, call) {
            Begin::Answer(result) => Known::Outcome(result),
            Begin::TooMany => Known::TooMany,
            // It is known, and so is not begun.
            Begin::Wait | Begin::Do => Known::Waits,
        }
    }

    /// A call asks for an effect.
    pub fn begin(&mut self, effect: u64, host: Host, call: u32) -> Begin {
        match self.known.get_mut(&effect) {
            None => {
                self.known.insert(effect, Effect::Pending(vec![(host, call)]));
                Begin::Do
            }
            Some(Effect::Pending(waiters)) => {
                waiters.retain(|(waiting, _)| *waiting == host);
                if waiters.len() >= EFFECT_WAITERS_MAX {
                    return Begin::TooMany;
                }
                waiters.push((host, call));
                Begin::Wait
            }
            Some(Effect::Done(result)) => Begin::Answer(result.clone()),
        }
    }

    /// The outcome of an effect; answers the calls that waited for it. One that is not remembered did nothing and may
    /// be asked for again.
    pub fn finish(&mut self, effect: u64, result: &ReplyResult, remember: bool) -> Vec<(Host, u32)> {
        let waiters = match self.known.remove(&effect) {
            Some(Effect::Pending(waiters)) => waiters,
            _ => Vec::new(),
        };
        if remember {
            self.known.insert(effect, Effect::Done(result.clone()));
            self.done.push_back(effect);
            while self.done.len() > EFFECTS_MAX {
                if let Some(oldest) = self.done.pop_front() {
                    self.known.remove(&oldest);
                    self.dropped = self.dropped.max(Some(oldest));
                }
            }
        }
        waiters
    }
}

#[cfg(test)]
mod tests {
    use remuda_guest_proto::Reply;

    use super::*;
    use crate::outbox::NOBODY;

    #[test]
    fn a_repeated_call_is_answered_as_the_first() {
        let mut effects = Effects::default();
        assert_eq!(effects.begin(7, NOBODY, 1), Begin::Do);
        assert_eq!(effects.begin(7, NOBODY, 2), Begin::Wait);
        assert_eq!(effects.finish(7, &Ok(Reply::Spawned { pid: 5 }), true), [(NOBODY, 1), (NOBODY, 2)]);
        assert_eq!(effects.begin(7, NOBODY, 3), Begin::Answer(Ok(Reply::Spawned { pid: 5 })));
        assert_eq!(effects.begin(8, NOBODY, 3), Begin::Do);
    }

    #[test]
    fn what_did_nothing_may_be_asked_again() {
        let mut effects = Effects::default();
        assert_eq!(effects.begin(7, NOBODY, 1), Begin::Do);
        assert_eq!(effects.finish(7, &Ok(Reply::Done), false), [(NOBODY, 1)]);
        assert_eq!(effects.begin(7, NOBODY, 2), Begin::Do);
    }

    #[test]
    fn the_oldest_outcome_goes_first_and_pending_ones_stay() {
        let mut effects = Effects::default();
        assert_eq!(effects.begin(u64::MAX, NOBODY, 1), Begin::Do);
        for effect in 0..=EFFECTS_MAX as u64 {
            assert_eq!(effects.begin(effect, NOBODY, 1), Begin::Do);
            effects.finish(effect, &Ok(Reply::Done), true);
        }
        assert_eq!(effects.begin(0, NOBODY, 1), Begin::Do);
        assert_eq!(effects.begin(1, NOBODY, 1), Begin::Answer(Ok(Reply::Done)));
        assert_eq!(effects.begin(u64::MAX, NOBODY, 2), Begin::Wait);
    }

    #[test]
    fn what_became_of_an_effect_is_told_and_nothing_is_begun_by_asking() {
        let mut effects = Effects::default();
        assert_eq!(effects.outcome(7, NOBODY, 1), Known::Undone);
        assert_eq!(effects.begin(7, NOBODY, 1), Begin::Do);
        assert_eq!(effects.outcome(7, NOBODY, 2), Known::Waits);
        assert_eq!(effects.finish(7, &Ok(Reply::Spawned { pid: 5 }), true), [(NOBODY, 1), (NOBODY, 2)]);
        assert_eq!(effects.outcome(7, NOBODY, 3), Known::Outcome(Ok(Reply::Spawned { pid: 5 })));
        assert_eq!(effects.begin(8, NOBODY, 1), Begin::Do);
        effects.finish(8, &Ok(Reply::Done), false);
        assert_eq!(effects.outcome(8, NOBODY, 3), Known::Undone);
        for effect in 10..10 + EFFECTS_MAX as u64 {
            assert_eq!(effects.begin(effect, NOBODY, 1), Begin::Do);
            effects.finish(effect, &Ok(Reply::Done), true);
        }
        assert_eq!(effects.outcome(7, NOBODY, 3), Known::Forgotten);
        assert_eq!(effects.outcome(10, NOBODY, 3), Known::Outcome(Ok(Reply::Done)));
        assert_eq!(effects.outcome(100_000, NOBODY, 3), Known::Undone);
    }

    #[test]
    fn waiters_are_limited() {
        let mut effects = Effects::default();
        for call in 0..EFFECT_WAITERS_MAX as u32 {
            assert_ne!(effects.begin(1, NOBODY, call), Begin::TooMany);
        }
        assert_eq!(effects.begin(1, NOBODY, 99), Begin::TooMany);
    }
}
