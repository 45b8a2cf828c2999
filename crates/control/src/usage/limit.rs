//! When a sandbox that holds more files than it may is paused. Pure: no clock, no I/O.
//!
//! Pausing keeps everything and lets nothing grow. Whoever resumes it has a while to make room, in which it may not grow
//! any further.

use std::time::Duration;

/// How long somebody who resumed it has to make room.
const ROOM_WAIT_MAX: Duration = Duration::from_secs(60);
/// How much it may grow meanwhile, in bytes: whoever deletes also writes a little.
const ROOM_BYTES: u64 = 16 << 20;
/// Shortest time between two looks at one sandbox.
pub(crate) const LOOK_EVERY: Duration = Duration::from_secs(2);
/// How many times longer than a look the time until the next one is at least: looks take a twentieth of a processor at
/// most, whatever a guest has made.
const REST_FACTOR: u32 = 20;

/// What is remembered of a sandbox that was paused for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Excess {
    /// What it held when it was paused, in bytes.
    bytes: u64,
    /// When it was seen to run again, in milliseconds of any clock that does not step back.
    resumed_at_ms: Option<u64>,
}

/// Whether a running sandbox that holds `used` of `limit` bytes is to be paused now, and what is to be remembered of it.
pub(crate) fn judge(excess: Option<Excess>, used: u64, limit: u64, now_ms: u64) -> (bool, Option<Excess>) {
    let paused = Excess { bytes: used, resumed_at_ms: None };
    if used <= limit {
        return (false, None);
    }
    let Some(before) = excess else { return (true, Some(paused)) };
    let resumed_at_ms = before.resumed_at_ms.unwrap_or(now_ms);
    let waited = Duration::from_millis(now_ms.saturating_sub(resumed_at_ms));
    if used > before.bytes.saturating_add(ROOM_BYTES) || waited >= ROOM_WAIT_MAX {
        return (true, Some(paused));
    }
    // What it made room for stays made.
    (false, Some(Excess { bytes: before.bytes.min(used), resumed_at_ms: Some(resumed_at_ms) }))
}

/// How long after a look that took so long the next one is due.
pub(crate) fn rest(took: Duration) -> Duration {
    LOOK_EVERY.max(took * REST_FACTOR)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LIMIT: u64 = 1 << 30;

    #[test]
    fn whoever_resumes_it_has_a_while_to_make_room_and_none_to_grow() {
        let (pause, excess) = judge(None, LIMIT + 1, LIMIT, 0);
        assert!(pause);
        let (pause, excess) = judge(excess, LIMIT + 1, LIMIT, 5_000);
        assert!(!pause, "it was resumed");
        assert!(
            judge(excess, LIMIT + ROOM_BYTES, LIMIT, 64_999)
                == (false, excess.map(|e| Excess { bytes: LIMIT + 1, ..e }))
        );
        assert!(judge(excess, LIMIT + 1, LIMIT, 65_000).0, "it had its time");
        assert!(judge(excess, LIMIT + 2 + ROOM_BYTES, LIMIT, 6_000).0, "it grew");
        assert_eq!(judge(excess, LIMIT, LIMIT, 6_000), (false, None));
    }

    #[test]
    fn looks_take_a_twentieth_of_a_processor_at_most() {
        assert_eq!(rest(Duration::from_millis(3)), LOOK_EVERY);
        assert_eq!(rest(Duration::from_secs(1)), Duration::from_secs(20));
    }

    proptest! {
        #[test]
        fn it_never_runs_far_or_long_beyond_its_limit(looks in proptest::collection::vec((0..3 * LIMIT, 0..30_000u64), 1..40)) {
            let (mut excess, mut now) = (None, 0);
            // How much it held, and since when it has run, at its first look beyond the limit.
            let mut beyond: Option<(u64, u64)> = None;
            for (used, passed) in looks {
                now += passed;
                let (pause, after) = judge(excess, used, LIMIT, now);
                prop_assert!(!pause || used > LIMIT, "what is within its limit is never paused");
                if pause || used <= LIMIT {
                    beyond = None;
                } else {
                    let (first, since) = *beyond.get_or_insert((used, now));
                    prop_assert!(now - since < 60_000 && used <= first + ROOM_BYTES && excess.is_some());
                }
                excess = after;
            }
        }
    }
}
