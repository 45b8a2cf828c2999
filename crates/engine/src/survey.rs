//! What the machine has of one data directory's sandboxes and snapshots, seen from outside: directories, mounts, cgroups,
//! processes. It only looks; it must never end, unmount or remove what it finds.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use remuda_types::{SnapshotId, Uid};

use crate::cgroup::CgroupRoot;
use crate::dirs::Dirs;
use crate::error::{Result, Tried};
use crate::host_facts::{ProcessFacts, start_ticks};
use crate::leftovers::Leftovers;

/// Everything that bears this server's places or names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Survey {
    /// The kernel's id of this boot; processes of another one say nothing about this one's.
    pub boot_id: String,
    /// The version of the control groups in use; none where sandboxes have no group.
    pub cgroup_version: Option<u8>,
    /// What there is of each sandbox.
    pub sandboxes: BTreeMap<Uid, Traces>,
    /// What there is of each snapshot.
    pub snapshots: BTreeMap<SnapshotId, Bytes>,
    /// What has no name that an engine gives.
    pub strangers: Vec<PathBuf>,
    /// Mounts below this server's places that no engine makes.
    pub strange_mounts: Vec<PathBuf>,
}

/// What there is of one sandbox.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Traces {
    /// Its directory on the disk.
    pub files: bool,
    /// Its directory on tmpfs: runsc's state and the pinned namespaces.
    pub state: bool,
    /// Its control group.
    pub cgroup: bool,
    /// What is mounted where it has its own mounts: its root, its namespaces.
    pub mounts: Vec<PathBuf>,
    /// What is mounted elsewhere in its directories, by nobody of ours. As long as there is any, nothing below may be
    /// removed: it could be anything of the host's.
    pub strange_mounts: Vec<PathBuf>,
    /// Pids in its control group.
    pub processes: BTreeSet<i32>,
    /// Processes that are a sentry or gofer of it by their command line, and are not in its control group.
    pub astray: Vec<ProcessFacts>,
}

/// Which bytes of a snapshot there are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Bytes {
    /// Its layer.
    pub layer: bool,
    /// A layer that is being made, or was.
    pub half_layer: bool,
    /// Its memory image.
    pub memory: bool,
    /// A memory image that is being made, or was.
    pub half_memory: bool,
}

impl Survey {
    /// Looks at everything but processes and control groups.
    pub fn of_places(dirs: &Dirs, boot_id: String) -> Result<Survey> {
        let Leftovers { machines, snapshots, strangers } = Leftovers::below(dirs)?;
        let mut survey = Survey { boot_id, strangers, ..Survey::default() };
        for uid in machines {
            let places = dirs.sandbox(&uid);
            let traces = Traces { files: places.root.exists(), state: places.state.exists(), ..Traces::default() };
            survey.sandboxes.insert(uid, traces);
        }
        for snapshot in snapshots {
            let (layer, memory) = (dirs.layer(&snapshot), dirs.memory(&snapshot));
            let half = |path: &Path| path.with_extension("tmp").exists();
            let bytes = Bytes {
                layer: layer.exists(),
                half_layer: half(&layer),
                memory: memory.exists(),
                half_memory: half(&memory),
            };
            survey.snapshots.insert(snapshot, bytes);
        }
        Ok(survey)
    }

    /// Adds control groups, mounts and processes.
    pub(crate) fn on_the_machine(mut self, dirs: &Dirs, cgroups: &CgroupRoot) -> Result<Survey> {
        self.cgroup_version = Some(cgroups.version());
        // A cgroup by another name is none of ours.
        for uid in cgroups.existing().iter().filter_map(|name| name.parse::<Uid>().ok()) {
            let processes = cgroups.leftover(uid.as_str()).processes().into_iter().collect();
            let traces = self.sandboxes.entry(uid).or_default();
            (traces.cgroup, traces.processes) = (true, processes);
        }
        let table = fs::read("/proc/self/mountinfo").tried(|| "read /proc/self/mountinfo".into())?;
        for place in mount_points(&table) {
            self.mounted(dirs, place);
        }
        self.astray(dirs)?;
        Ok(self)
    }

    fn mounted(&mut self, dirs: &Dirs, place: PathBuf) {
        let below = |top: &Path| place.strip_prefix(top).ok().filter(|rest| !rest.as_os_str().is_empty());
        let of_sandbox = [dirs.sandboxes(), dirs.state().to_owned()].iter().find_map(|top| {
            let first = below(top)?.components().next()?;
            first.as_os_str().to_str()?.parse::<Uid>().ok()
        });
        match of_sandbox {
            Some(uid) => {
                let places = dirs.sandbox(&uid);
                let own =
                    [&places.mount, &places.net_inner(), &places.net_outer()].into_iter().any(|own| *own == place);
                let traces = self.sandboxes.entry(uid).or_default();
                if own { traces.mounts.push(place) } else { traces.strange_mounts.push(place) }
            }
            None if below(dirs.data()).or(below(dirs.state())).is_some() => self.strange_mounts.push(place),
            None => {}
        }
    }

    fn astray(&mut self, dirs: &Dirs) -> Result<()> {
        let listing = || "list /proc".to_owned();
        for entry in fs::read_dir("/proc").tried(listing)? {
            let entry = entry.tried(listing)?;
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
            // What has ended meanwhile is not there.
            let Ok(line) = fs::read(entry.path().join("cmdline")) else { continue };
            let Some(uid) = sandbox_of(&line, dirs.state()) else { continue };
            let traces = self.sandboxes.entry(uid).or_default();
            if traces.processes.contains(&pid) {
                continue;
            }
            let Ok(stat) = fs::read(entry.path().join("stat")) else { continue };
            if let Some(start_ticks) = start_ticks(&String::from_utf8_lossy(&stat)) {
                traces.astray.push(ProcessFacts { pid, start_ticks });
            }
        }
        Ok(())
    }
}

/// Whose sentry or gofer a command line is, where its state lies in this server's place.
fn sandbox_of(command_line: &[u8], state: &Path) -> Option<Uid> {
    let mut words = command_line.split(|byte| *byte == 0);
    if !matches!(words.next()?, b"runsc-sandbox" | b"runsc-gofer") {
        return None;
    }
    let root = words.find_map(|word| word.strip_prefix(b"--root="))?;
    let below = Path::new(std::ffi::OsStr::from_bytes(root)).strip_prefix(state).ok()?;
    below.components().next()?.as_os_str().to_str()?.parse().ok()
}

/// Where things are mounted, as the kernel lists it: blanks and the like are written in octal there.
fn mount_points(table: &[u8]) -> Vec<PathBuf> {
    const FIELD: usize = 4;
    let lines = table.split(|byte| *byte == b'\n');
    lines.filter_map(|line| line.split(|byte| *byte == b' ').nth(FIELD)).map(unescaped).collect()
}

fn unescaped(field: &[u8]) -> PathBuf {
    let (mut plain, mut rest) = (Vec::with_capacity(field.len()), field);
    while let [first, more @ ..] = rest {
        let code = more.get(..3).filter(|_| *first == b'\\').and_then(|digits| std::str::from_utf8(digits).ok());
        match code.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                plain.push(byte);
                rest = &more[3..];
            }
            None => {
                plain.push(*first);
                rest = more;
            }
        }
    }
    OsString::from_vec(plain).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "abcdefghij0123456789";

    fn line(words: &[&str]) -> Vec<u8> {
        words.iter().flat_map(|word| word.bytes().chain([0])).collect()
    }

    #[test]
    fn a_process_is_a_sandboxs_by_its_name_and_its_place_together() {
        let state = Path::new("/run/remuda-1");
        let root = format!("--root=/run/remuda-1/{UID}/runsc");
        let of = |words: &[&str]| sandbox_of(&line(words), state).map(|uid| uid.to_string());
        assert_eq!(of(&["runsc-sandbox", &root, "boot"]).as_deref(), Some(UID));
        assert_eq!(of(&["runsc-gofer", "--debug", &root]).as_deref(), Some(UID));
        assert_eq!(of(&["grep", "runsc-sandbox", &root]), None);
        assert_eq!(of(&["runsc-sandbox", &format!("--root=/run/remuda-2/{UID}/runsc")]), None);
        assert_eq!(of(&["runsc-sandbox", "--root=/run/remuda-1/other/runsc"]), None);
        assert_eq!(of(&[]), None);
    }

    #[test]
    fn mounts_are_told_apart_by_whether_an_engine_makes_them() {
        let directory = tempfile::tempdir().unwrap();
        let dirs = Dirs::on_disk_alone(directory.path()).unwrap();
        let uid: Uid = UID.parse().unwrap();
        let places = dirs.sandbox(&uid);
        let mut survey = Survey::default();
        let strange = [dirs.layers().join("x"), dirs.sandboxes().join("no-uid/root")];
        for place in
            [&places.mount, &places.net_inner(), &places.upper, &dirs.data().to_owned()].into_iter().chain(&strange)
        {
            survey.mounted(&dirs, place.clone());
        }
        survey.mounted(&dirs, "/elsewhere".into());
        assert_eq!(survey.sandboxes[&uid].mounts, [places.mount.clone(), places.net_inner()]);
        assert_eq!(survey.sandboxes[&uid].strange_mounts, [places.upper]);
        assert_eq!(survey.strange_mounts, strange);
    }

    #[test]
    fn places_with_blanks_are_read_as_they_are() {
        let table = b"36 35 98:0 / /a\\040b\\134c rw - tmpfs none rw\n37 35 0:1 / /plain rw - proc p rw\n";
        assert_eq!(mount_points(table), [PathBuf::from("/a b\\c"), PathBuf::from("/plain")]);
    }

    #[test]
    fn halves_and_wholes_of_a_snapshot_are_seen() {
        let directory = tempfile::tempdir().unwrap();
        let dirs = Dirs::on_disk_alone(directory.path()).unwrap();
        let id = SnapshotId::from_entropy([7; 20]);
        fs::create_dir(dirs.layer(&id)).unwrap();
        fs::create_dir(dirs.memory(&id).with_extension("tmp")).unwrap();
        fs::write(dirs.layers().join("stranger"), "").unwrap();
        let survey = Survey::of_places(&dirs, String::new()).unwrap();
        assert_eq!(survey.snapshots[&id], Bytes { layer: true, half_memory: true, ..Bytes::default() });
        assert_eq!(survey.strangers, [dirs.layers().join("stranger")]);
    }
}
