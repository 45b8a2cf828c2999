//! Signals as people write them: `TERM`, `SIGTERM`, `term` or `15`. Must know Linux's numbers, which are the guest's also
//! where this program runs elsewhere.

/// Linux's signals by number, from 1 on.
const NAMES: [&str; 31] = [
    "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE", "ALRM", "TERM",
    "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ", "VTALRM", "PROF", "WINCH", "IO",
    "PWR", "SYS",
];
/// The largest signal's number.
const SIGNAL_MAX: i32 = 64;

/// The number of a signal.
pub fn signal(text: &str) -> Result<i32, String> {
    if let Ok(number) = text.parse::<i32>() {
        let known = (1..=SIGNAL_MAX).contains(&number);
        return if known { Ok(number) } else { Err(format!("signals are 1 to {SIGNAL_MAX}")) };
    }
    let upper = text.to_ascii_uppercase();
    let name = upper.strip_prefix("SIG").unwrap_or(&upper);
    let found = (1..).zip(NAMES).find(|(_, known)| *known == name);
    found
        .map(|(number, _)| number)
        .ok_or_else(|| "it is no signal; name one like TERM, INT or USR1, or by number".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers() {
        for (text, number) in [("1", 1), ("HUP", 1), ("sigkill", 9), ("TERM", 15), ("SIGSYS", 31), ("64", 64)] {
            assert_eq!(signal(text), Ok(number), "{text}");
        }
        for wrong in ["", "0", "65", "-9", "SIG", "TERMINATE"] {
            assert!(signal(wrong).is_err(), "{wrong}");
        }
    }
}
