//! Which distribution this machine runs. Must never guess: what the machine does not tell stays unknown.

use std::fs;

/// The machine's distribution, as `/etc/os-release` tells it; empty where it doesn't.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Distribution {
    /// `debian`, `ubuntu`, …
    pub id: String,
    /// `bookworm`, …; the suite of the machine's own packages.
    pub codename: String,
}

impl Distribution {
    pub(super) fn of_this_machine() -> Self {
        Self::parse(&fs::read_to_string("/etc/os-release").unwrap_or_default())
    }

    pub(super) fn is_debian(&self) -> bool {
        self.id == "debian" && !self.codename.is_empty()
    }

    fn parse(text: &str) -> Self {
        let value = |name: &str| {
            text.lines()
                .filter_map(|line| line.split_once('='))
                .find(|(key, _)| *key == name)
                .map(|(_, value)| value.trim().trim_matches(['"', '\'']).to_owned())
                .unwrap_or_default()
        };
        Self { id: value("ID"), codename: value("VERSION_CODENAME") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn os_release_is_read() {
        let read = Distribution::parse("NAME=\"Debian\"\nVERSION_CODENAME=bookworm\nID=\"debian\"\n");
        assert!(read.is_debian());
        assert_eq!(read.codename, "bookworm");
        assert!(!Distribution::parse("ID=debian\n").is_debian());
        assert!(!Distribution::parse("").is_debian());
    }
}
