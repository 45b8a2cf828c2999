//! What tells a machine's host processes from strangers that were given the same pids later: the boot they belong to
//! and when they started. Plain data, to be recorded and held against the host by a later server.

use std::fs;

use serde::{Deserialize, Serialize};

use crate::error::{Result, Tried};

/// One process of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessFacts {
    /// Its pid.
    pub pid: i32,
    /// When it started, in clock ticks since the boot (field 22 of `/proc/PID/stat`).
    pub start_ticks: u64,
}

/// The processes of a machine, and the boot in which they run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostFacts {
    /// The kernel's id of this boot. Facts of another one say nothing of processes that run now.
    pub boot_id: String,
    /// The sentry.
    pub sentry: ProcessFacts,
    /// The gofer.
    pub gofer: ProcessFacts,
}

/// The id of the host's current boot.
pub(crate) fn boot_id() -> Result<String> {
    const PLACE: &str = "/proc/sys/kernel/random/boot_id";
    Ok(fs::read_to_string(PLACE).tried(|| format!("read {PLACE}"))?.trim().to_owned())
}

/// When a process started, out of its `/proc/PID/stat`. The name in it may hold anything, also blanks and brackets.
pub(crate) fn start_ticks(stat: &str) -> Option<u64> {
    /// Of the fields behind the name, the first of which is the third.
    const INDEX: usize = 22 - 3;
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(INDEX)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_is_found_behind_any_name() {
        let fields = "S 1 7 7 0 -1 4194560 1 0 0 0 2 3 0 0 20 0 1 0 98765 100 5 18446744073709551615 0";
        for name in ["sleep", "a) S 1 (b", "(", ""] {
            assert_eq!(start_ticks(&format!("7 ({name}) {fields}")), Some(98765));
        }
        assert_eq!(start_ticks("7 (x) S 1"), None);
        assert_eq!(start_ticks(""), None);
    }

    #[test]
    fn a_boot_has_an_id() {
        assert_eq!(boot_id().unwrap().len(), 36);
    }
}
