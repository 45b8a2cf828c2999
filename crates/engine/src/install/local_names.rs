//! Names below `localhost`, which previews have: whether programs that ask the C library find them. Nothing needs it, since
//! browsers and curl find them by themselves, and there is an address without a name: it is offered, and never asked for.

use std::fs;

use super::machine_check::Check;

/// What brings it about.
pub(super) const LOCAL_NAMES_PACKAGE: &str = "libnss-myhostname";
/// What is said where it is not there.
pub(super) const LOCAL_NAMES_OFFER: &str = "browsers and curl find names below localhost by themselves; for programs that \
    ask the C library run `remuda setup --local-names`, which installs libnss-myhostname, or give them a preview's \
    header_url";
/// Sources of names that know them.
const SOURCES: [&str; 2] = ["myhostname", "resolve"];

/// Whether this machine's C library finds them.
pub(super) fn finds_local_names() -> bool {
    named_in(&fs::read_to_string("/etc/nsswitch.conf").unwrap_or_default())
}

fn named_in(nsswitch: &str) -> bool {
    let hosts = nsswitch.lines().find_map(|line| line.trim().strip_prefix("hosts:")).unwrap_or_default();
    hosts.split_ascii_whitespace().any(|source| SOURCES.contains(&source))
}

/// The same, among what is looked at of a machine.
pub(super) fn local_names() -> Check {
    let detail = match finds_local_names() {
        true => "every program finds them, and so the host names of previews",
        false => LOCAL_NAMES_OFFER,
    };
    Check::good("names below localhost", detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_counts_only_where_hosts_are_looked_up() {
        for nsswitch in
            ["hosts: files myhostname dns\n", "passwd: files\n  hosts:\tfiles resolve [!UNAVAIL=return] dns"]
        {
            assert!(named_in(nsswitch), "{nsswitch}");
        }
        for nsswitch in ["hosts: files dns\n", "# hosts: myhostname\n", "passwd: myhostname\nhosts: dns\n", ""] {
            assert!(!named_in(nsswitch), "{nsswitch}");
        }
    }
}
