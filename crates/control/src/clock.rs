//! Time and chance, in one place: the platform takes both from here and nowhere else.

use std::time::{Duration, Instant};

use remuda_types::ids::UID_LEN;
use remuda_types::{Error, ErrorCode};
use tokio::sync::watch;

/// Unix time in milliseconds. May step back; generations are made to grow all the same.
pub(crate) fn now_unix_ms() -> i64 {
    jiff::Timestamp::now().as_millisecond()
}

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
}
