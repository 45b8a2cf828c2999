//! What sandboxes leave on a machine when something forgets to clean up: processes, mounts, namespaces, network
//! links, cgroups, directories. It only looks; it must never kill, unmount or remove what it finds.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long what is on its way out may take to be gone, such as a gofer whose sandbox has just died.
const GRACE: Duration = Duration::from_secs(5);
/// Deepest nesting of cgroups that is looked at.
const CGROUP_DEPTH_MAX: usize = 6;

/// Everything found, one sentence each.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Inventory(BTreeSet<String>);

impl Inventory {
    /// Looks at the machine.
    pub(crate) fn take() -> Inventory {
        let mut found = BTreeSet::new();
        processes(&mut found);
        mounts(&mut found);
        entries(&mut found, Path::new("/run/netns"), "network namespace", |_| true);
        entries(&mut found, Path::new("/sys/class/net"), "network link", |_| true);
        for directory in [Path::new("/dev/shm"), Path::new("/run"), Path::new("/var/tmp"), &std::env::temp_dir()] {
            entries(&mut found, directory, "directory or file", |name| name.starts_with("remuda"));
        }
        cgroups(&mut found, Path::new("/sys/fs/cgroup"), 0);
        Inventory(found)
    }

    /// Says what is there already, since it can't be told from what a run leaves behind later.
    pub(crate) fn mention(&self) {
        for item in self.0.iter().filter(|i| !i.starts_with("network link")) {
            println!("   was here before, and is not judged: {item}");
        }
    }

    /// Fails, listing it, if there is anything that was not there before.
    pub(crate) fn nothing_new(&self) -> anyhow::Result<()> {
        let deadline = Instant::now() + GRACE;
        loop {
            let left = Inventory::take().without(self);
            if left.is_empty() {
                println!("   nothing is left: no process, mount, namespace, link, cgroup or directory");
                return Ok(());
            }
            if Instant::now() > deadline {
                anyhow::bail!(
                    "this is here and was not before (nothing else on this machine may run sandboxes meanwhile):\n  {}",
                    left.join("\n  ")
                );
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn without(&self, before: &Inventory) -> Vec<String> {
        self.0.difference(&before.0).cloned().collect()
    }
}

fn processes(found: &mut BTreeSet<String>) {
    let Ok(entries) = fs::read_dir("/proc") else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(pid) = name.to_str().and_then(|n| n.parse::<u32>().ok()) else { continue };
        let raw = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let arguments: Vec<String> = raw.split(|b| *b == 0).map(|a| String::from_utf8_lossy(a).into_owned()).collect();
        if let Some(what) = process_kind(&arguments) {
            found.insert(format!("process {pid} (started {}): {what}", started(pid)));
        }
    }
}

/// Whether these arguments are those of a sandbox's host process or of a server of ours.
fn process_kind(arguments: &[String]) -> Option<&'static str> {
    // The host processes' command name is `exe`; their arguments tell.
    for kind in ["runsc-sandbox", "runsc-gofer"] {
        if arguments.iter().any(|a| a == kind) {
            return Some(kind);
        }
    }
    let program = Path::new(arguments.first()?).file_name()?;
    let known = ["remuda", "runsc"];
    known.into_iter().find(|k| program == *k)
}

/// Start time in ticks since boot, so that a reused pid is another process.
fn started(pid: u32) -> String {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    after_name.split_whitespace().nth(19).unwrap_or("?").to_owned()
}

fn mounts(found: &mut BTreeSet<String>) {
    for line in fs::read_to_string("/proc/self/mounts").unwrap_or_default().lines().filter(|l| l.contains("remuda")) {
        let mut words = line.split(' ');
        let (source, target) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
        found.insert(format!("mount {target} of {source}"));
    }
}

fn entries(found: &mut BTreeSet<String>, directory: &Path, kind: &str, ours: impl Fn(&str) -> bool) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    for entry in entries.flatten() {
        if ours(&entry.file_name().to_string_lossy()) {
            found.insert(format!("{kind} {}", entry.path().display()));
        }
    }
}

fn cgroups(found: &mut BTreeSet<String>, directory: &Path, depth: usize) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    for entry in entries.flatten().filter(|e| e.file_type().is_ok_and(|t| t.is_dir())) {
        if entry.file_name().to_string_lossy().starts_with("remuda") {
            found.insert(format!("cgroup {}", entry.path().display()));
        } else if depth < CGROUP_DEPTH_MAX {
            cgroups(found, &entry.path(), depth + 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(arguments: &[&str]) -> Option<&'static str> {
        process_kind(&arguments.iter().map(|a| (*a).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn host_processes_of_sandboxes_are_known_by_their_arguments() {
        assert_eq!(kind(&["runsc-sandbox", "--root=/x", "boot"]), Some("runsc-sandbox"));
        assert_eq!(kind(&["/proc/self/exe", "runsc-gofer"]), Some("runsc-gofer"));
        assert_eq!(kind(&["/x/target/debug/remuda", "serve"]), Some("remuda"));
        assert_eq!(kind(&["/bin/grep", "runsc-sandboxes"]), None);
        assert_eq!(kind(&["/x/remuda-bench"]), None);
        assert_eq!(kind(&[]), None);
    }

    #[test]
    fn what_was_there_before_is_no_leftover() {
        let set = |items: &[&str]| Inventory(items.iter().map(|i| (*i).to_owned()).collect());
        let (before, after) = (set(&["mount a"]), set(&["mount a", "cgroup b"]));
        assert_eq!(after.without(&before), ["cgroup b"]);
        assert!(before.without(&after).is_empty());
    }

    #[test]
    fn a_directory_of_ours_is_found() {
        let directory = std::env::temp_dir().join(format!("remuda-leftovers-test-{}", std::process::id()));
        let before = Inventory::take();
        fs::create_dir(&directory).unwrap();
        let left = Inventory::take().without(&before);
        fs::remove_dir(&directory).unwrap();
        assert!(left.iter().any(|l| l.contains("remuda-leftovers-test")), "{left:?}");
    }
}
