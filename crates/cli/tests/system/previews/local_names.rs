//! Names below `localhost`, which previews have, for programs that ask the C library.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use crate::world::{remuda, set_up, text};

#[test]
fn setup_offers_what_finds_names_below_localhost_and_installs_it_where_it_is_asked_to() {
    set_up();
    // In the place of apt, one that only notes what it is asked for: the machine is to stay as it is.
    let directory = tempfile::Builder::new().prefix("remuda-test-").tempdir_in("/var/tmp").unwrap();
    let (apt, asked) = (directory.path().join("apt-get"), directory.path().join("asked"));
    fs::write(&apt, format!("#!/bin/sh\necho \"$@\" >> {}\n", asked.display())).unwrap();
    fs::set_permissions(&apt, fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", directory.path().display(), std::env::var("PATH").unwrap());
    let setup = |arguments: &[&str]| {
        let output = remuda().arg("setup").args(arguments).env("PATH", &path).output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    let hosts = fs::read_to_string("/etc/nsswitch.conf").unwrap_or_default();
    let hosts = hosts.lines().find_map(|line| line.strip_prefix("hosts:")).unwrap_or_default().to_owned();
    let there = hosts.split_whitespace().any(|source| ["myhostname", "resolve"].contains(&source));
    let said = setup(&[]);
    assert_eq!((said.contains("--local-names"), asked.exists()), (!there, false), "{said}");
    let said = setup(&["--local-names"]);
    let asked = fs::read_to_string(&asked).unwrap_or_default();
    assert_eq!(asked.contains("install") && asked.contains("libnss-myhostname"), !there, "{asked:?} {said}");
}
