//! What a caller used this month of UTC, by what is on record of each machine. Must never meter anything by itself.

use jiff::Timestamp;
use remuda_types::wire::Sandbox;
use remuda_types::{Error, ErrorCode, Quota};

use super::month;
use crate::caller::Caller;
use crate::clock::now_unix_ms;
use crate::platform::Platform;

/// A month so far.
#[derive(Debug, Clone, PartialEq)]
pub struct MonthSoFar {
    /// Which, in UTC: `2026-10`.
    pub month: String,
    /// When it began, in Unix milliseconds.
    pub began_at_ms: i64,
    /// Up to when this tells, in Unix milliseconds.
    pub now_ms: i64,
    /// Starts of machines; for a caller that is narrowed, of those that it sees.
    pub starts: u64,
    /// Machines that were there in it, also those that have ended, as far as they are on record.
    pub sandboxes: Vec<Sandbox>,
}

impl Platform {
    /// What the caller used this month.
    ///
    /// # Errors
    /// `forbidden`; the journal fails.
    pub async fn month_so_far(&self, caller: &Caller) -> Result<MonthSoFar, Error> {
        let now_ms = now_unix_ms();
        let (this, began_at_ms) = (month(now_ms), began(now_ms)?);
        let mut sandboxes = self.list(caller, true).await?;
        sandboxes.retain(|sandbox| sandbox.ended_at_ms.is_none_or(|at| at > began_at_ms));
        let starts = if caller.narrowing().is_some() {
            sandboxes.iter().filter(|sandbox| sandbox.created_at_ms >= began_at_ms).count() as u64
        } else {
            let used = self.journal().used(&caller.account).await.map_err(|e| crate::errors::journal(&e))?;
            let mut starts = used.iter().filter(|it| it.name == Quota::StartsPerMonth.as_str());
            starts.find(|it| it.period.as_deref() == Some(&this)).map_or(0, |it| it.amount)
        };
        Ok(MonthSoFar { month: this, began_at_ms, now_ms, starts, sandboxes })
    }
}

/// When the month of UTC began that a moment lies in.
fn began(unix_ms: i64) -> Result<i64, Error> {
    let first: Result<Timestamp, _> = format!("{}-01T00:00:00Z", month(unix_ms)).parse();
    let first = first.map_err(|e| Error::new(ErrorCode::Internal, "the clock tells no month").cause(e))?;
    Ok(first.as_millisecond())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_month_begins_at_its_first_midnight() {
        let at = |text: &str| text.parse::<Timestamp>().unwrap().as_millisecond();
        let begin = at("2026-10-01T00:00:00Z");
        for moment in ["2026-10-01T00:00:00Z", "2026-10-31T23:59:59.999Z"] {
            assert_eq!(began(at(moment)).unwrap(), begin, "{moment}");
        }
        assert_eq!(began(at("2026-11-01T00:00:00Z")).unwrap(), at("2026-11-01T00:00:00Z"));
    }
}
