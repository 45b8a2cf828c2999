//! Time and chance, in one place: the platform takes both from here and nowhere else.

use std::time::{Duration, Instant};

use remuda_types::ids::UID_LEN;
use remuda_types::{Error, ErrorCode};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

/// Unix time in milliseconds. May step back; generations are made to grow all the same.
pub(crate) fn now_unix_ms() -> i64 {
    #[cfg(test)]
    return jiff::Timestamp::now().as_millisecond() - STEPPED_BACK_MS.load(std::sync::atomic::Ordering::SeqCst);
    #[cfg(not(test))]
    jiff::Timestamp::now().as_millisecond()
}

/// By how much the clock has stepped back in trials, in milliseconds.
#[cfg(test)]
pub(crate) static STEPPED_BACK_MS: std::sync::atomic::AtomicI64 = std::sync::atomic::AtomicI64::new(0);

/// A length of time as the API tells it: in milliseconds, to the microsecond.
pub(crate) fn milliseconds(time: Duration) -> f64 {
    // Divided and not multiplied, so that it is written with three digits at most.
    time.as_micros() as f64 / 1e3
}

/// Random bytes from the kernel.
pub(crate) fn entropy<const N: usize>() -> Result<[u8; N], Error> {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        filled += rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty())
            .map_err(|e| Error::new(ErrorCode::Internal, "the kernel gave no random bytes").cause(e))?;
    }
    Ok(bytes)
}

/// Random bytes for an id.
pub(crate) fn id_entropy() -> Result<[u8; UID_LEN], Error> {
    entropy()
}

/// How long a machine has been running, pauses not counted: time-outs of executions go by this clock, since a guest's
/// clocks jump by the time it stood still.
#[derive(Debug)]
pub(crate) struct RunningClock {
    state: watch::Sender<Ticking>,
}

/// A running clock as it is written down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ClockReading {
    /// Running time in milliseconds, up to `at_unix_ms`.
    pub(crate) ran_ms: u64,
    /// When it was read, in Unix milliseconds.
    pub(crate) at_unix_ms: i64,
    /// Whether the machine ran from then on.
    pub(crate) running: bool,
}

#[derive(Debug, Clone, Copy)]
struct Ticking {
    /// Running time up to `since`.
    before: Duration,
    /// When it began to run, if it runs.
    since: Option<Instant>,
}

impl RunningClock {
    pub(crate) fn started() -> Self {
        RunningClock { state: watch::Sender::new(Ticking { before: Duration::ZERO, since: Some(Instant::now()) }) }
    }

    /// Of a machine that an earlier server raised, from what was recorded then. What passed since counts where it ran.
    pub(crate) fn from_reading(reading: ClockReading, now_unix_ms: i64) -> Self {
        let before = Duration::from_millis(reading.ran_ms);
        let state = if reading.running {
            // The wall clock is all that both servers know; one that stepped back counts nothing.
            let since = u64::try_from(now_unix_ms - reading.at_unix_ms).unwrap_or(0);
            Ticking { before: before + Duration::from_millis(since), since: Some(Instant::now()) }
        } else {
            Ticking { before, since: None }
        };
        RunningClock { state: watch::Sender::new(state) }
    }

    /// What a later server goes on from, where the machine is to run, or to stand still, from now on.
    pub(crate) fn reading(&self, running: bool) -> ClockReading {
        ClockReading { ran_ms: self.elapsed_ms(), at_unix_ms: now_unix_ms(), running }
    }

    /// Running time so far, in milliseconds.
    pub(crate) fn elapsed_ms(&self) -> u64 {
        u64::try_from(self.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    pub(crate) fn pause(&self) {
        self.state.send_modify(|t| {
            t.before = t.elapsed();
            t.since = None;
        });
    }

    pub(crate) fn resume(&self) {
        self.state.send_modify(|t| {
            t.since.get_or_insert_with(Instant::now);
        });
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.state.borrow().elapsed()
    }

    /// Waits for `span` of running time.
    pub(crate) async fn run_for(&self, span: Duration) {
        let mut changes = self.state.subscribe();
        let end = self.elapsed() + span;
        loop {
            let now = *changes.borrow_and_update();
            let Some(left) = end.checked_sub(now.elapsed()).filter(|left| !left.is_zero()) else { return };
            tokio::select! {
                () = tokio::time::sleep(left), if now.since.is_some() => {}
                changed = changes.changed() => if changed.is_err() { return },
            }
        }
    }
}

impl Ticking {
    fn elapsed(&self) -> Duration {
        self.before + self.since.map_or(Duration::ZERO, |since| since.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_told_with_three_digits_at_most() {
        for (nanoseconds, told) in [(0, "0.0"), (65_009_109, "65.009"), (1_234_567_891, "1234.567"), (1_000_000, "1.0")]
        {
            let time = milliseconds(Duration::from_nanos(nanoseconds));
            assert_eq!(serde_json::to_string(&time).unwrap(), told);
        }
    }

    #[tokio::test]
    async fn a_pause_does_not_count() {
        let clock = RunningClock::started();
        clock.pause();
        let stood = clock.elapsed();
        let wait = clock.run_for(Duration::from_millis(1));
        tokio::pin!(wait);
        // However long it stands still, the wait does not end.
        assert!(tokio::time::timeout(Duration::from_millis(30), &mut wait).await.is_err());
        assert_eq!(clock.elapsed(), stood);
        clock.resume();
        wait.await;
        assert!(clock.elapsed() >= stood + Duration::from_millis(1));
    }

    #[test]
    fn a_later_server_goes_on_from_what_was_written_down() {
        let at = |running| ClockReading { ran_ms: 5_000, at_unix_ms: 1_000_000, running };
        let read = |running, now| RunningClock::from_reading(at(running), now).elapsed_ms();
        assert!((7_000..8_000).contains(&read(true, 1_002_000)));
        assert_eq!(read(false, 1_002_000), 5_000);
        assert!((5_000..6_000).contains(&read(true, 0)), "a clock that stepped back");
    }
}
