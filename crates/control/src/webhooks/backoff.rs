//! How long to wait between attempts. Pure.

use remuda_types::limits::{WEBHOOK_ATTEMPTS_MAX, WEBHOOK_RETRY_MS_FIRST, WEBHOOK_RETRY_MS_MAX};

/// The wait after so many attempts that failed, in milliseconds; none when the delivery is given up.
pub(super) fn wait_ms(failed: u32) -> Option<u64> {
    if failed >= WEBHOOK_ATTEMPTS_MAX {
        return None;
    }
    let doubled = WEBHOOK_RETRY_MS_FIRST.saturating_mul(1 << failed.saturating_sub(1).min(30));
    Some(doubled.min(WEBHOOK_RETRY_MS_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_an_hour_and_end() {
        let waits: Vec<_> = (1..).map_while(wait_ms).collect();
        assert_eq!(waits[..4], [5_000, 10_000, 20_000, 40_000]);
        assert_eq!(waits.last(), Some(&3_600_000));
        assert_eq!(waits.len() as u32 + 1, WEBHOOK_ATTEMPTS_MAX);
        assert!(waits.is_sorted());
    }
}
