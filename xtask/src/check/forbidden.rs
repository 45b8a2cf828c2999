//! Texts that must stand in no file of the repository: host names of package registries (everything is fetched by the
//! machine's own, configured clients) and paths of the machine that somebody worked on. The patterns are put together
//! here from pieces, so that this file holds none of them.

use super::{Faults, Repository};

/// Files that tools write, and that name registries by design.
const GENERATED: &[&str] = &["Cargo.lock", "package-lock.json"];

/// Pieces of host names, joined by dots.
const HOSTS: &[&[&str]] = &[
    &["crates", "io"],
    &["registry", "npmjs"],
    &["npmjs", "com"],
    &["yarnpkg", "com"],
    &["pypi", "org"],
    &["pythonhosted", "org"],
    &["deb", "debian", "org"],
    &["security", "debian", "org"],
    &["archive", "ubuntu", "com"],
    &["proxy", "golang", "org"],
    &["rubygems", "org"],
    &["docker", "io"],
    &["quay", "io"],
];

/// Pieces of directories of a working machine, each at the beginning of a path.
const DIRECTORIES: &[&[&str]] = &[
    &["/wo", "rk/"],
    &["/ro", "ot/"],
    &["/fa", "rm/"],
    &["/tmp/ba", "sh"],
    &["/tmp/pro", "to"],
    &["/tmp/bri", "ef"],
    &["bash_", "jobs"],
];

pub(super) fn check(repository: &Repository<'_>) -> anyhow::Result<Faults> {
    let patterns = patterns();
    let mut faults = Vec::new();
    for file in &repository.files {
        if file.file_name().is_some_and(|n| GENERATED.iter().any(|g| n == *g)) {
            continue;
        }
        for (number, line) in repository.text(file)?.lines().enumerate() {
            if let Some(pattern) = patterns.iter().find(|p| p.is_in(line)) {
                faults.push(format!("{}:{}: {}", file.display(), number + 1, pattern.why));
            }
        }
    }
    Ok(faults)
}

struct Pattern {
    text: String,
    at_start_of_path: bool,
    why: &'static str,
}

impl Pattern {
    fn is_in(&self, line: &str) -> bool {
        line.match_indices(&self.text).any(|(at, _)| {
            // Inside a longer path, as in a guest's root directory below some other one, it means something else.
            let before = line[..at].chars().next_back();
            !self.at_start_of_path || !before.is_some_and(|c| c.is_alphanumeric() || "_-.>})*/".contains(c))
        })
    }
}

fn patterns() -> Vec<Pattern> {
    let hosts = HOSTS.iter().map(|pieces| Pattern {
        text: pieces.join("."),
        at_start_of_path: false,
        why: "names a package registry's host; use the machine's own configured client",
    });
    let directories = DIRECTORIES.iter().map(|pieces| Pattern {
        text: pieces.concat(),
        at_start_of_path: true,
        why: "has a path of a working machine; derive it, or take one that exists everywhere",
    });
    hosts.chain(directories).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faulty(line: &str) -> bool {
        patterns().iter().any(|p| p.is_in(line))
    }

    #[test]
    fn registries_and_machine_paths_are_found() {
        assert!(faulty(&format!("see https://{}.{}/x", "crates", "io")));
        assert!(faulty(&format!("cd {}{}main", "/wo", "rk/")));
        assert!(faulty(&format!("\"{}{}.cache\"", "/ro", "ot/")));
    }

    #[test]
    fn directories_inside_other_paths_are_not() {
        assert!(!faulty(&format!("bases/DIGEST{}{}usr", "/ro", "ot/")));
        assert!(!faulty(&format!("upper{}{}x", "/wo", "rk/")));
        assert!(!faulty("cd /workspace/worker"));
    }

    #[test]
    fn this_file_holds_none_of_its_patterns() {
        for (number, line) in include_str!("forbidden.rs").lines().enumerate() {
            assert!(!faulty(line), "line {}", number + 1);
        }
    }
}
