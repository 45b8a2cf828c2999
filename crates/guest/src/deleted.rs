//! Finds open files that have no name left, which keep gVisor from making a checkpoint, and says who holds them. Only
//! looks; processes come and go meanwhile, and what can't be read is passed over.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use remuda_guest_proto::Reply;

use crate::errors::shown;
use crate::limits::SENTENCES_MAX;

/// Places that live in the guest's memory, where such files do no harm.
const HARMLESS: [&str; 8] = ["/tmp/", "/run/", "/var/run/", "/dev/", "/memfd:", "/SYSV", "/proc/", "/anon_hugepage"];

/// A sentence for each process and file.
pub fn sentences() -> Reply {
    let mut found = BTreeSet::new();
    for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let name = process.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        look_at(pid, &process.path(), &mut found);
        if found.len() > SENTENCES_MAX {
            break;
        }
    }
    let more = found.len() > SENTENCES_MAX;
    let mut sentences: Vec<String> =
        found.into_iter().take(SENTENCES_MAX).map(|(pid, sentence)| format!("process {pid} {sentence}")).collect();
    if more {
        sentences.push("there are more".to_owned());
    }
    Reply::Sentences { sentences }
}

fn look_at(pid: u32, process: &Path, found: &mut BTreeSet<(u32, String)>) {
    let mut links = vec![(process.join("exe"), "runs"), (process.join("cwd"), "works in")];
    for fd in fs::read_dir(process.join("fd")).into_iter().flatten().flatten() {
        links.push((fd.path(), "holds"));
    }
    for (link, how) in links {
        let Ok(target) = fs::read_link(link) else { continue };
        let target = target.to_string_lossy().into_owned();
        if let Some(path) = deleted(&target) {
            let command = fs::read_to_string(process.join("comm")).unwrap_or_default();
            let open = if how == "holds" { " open" } else { "" };
            let command = shown(command.trim_end());
            found.insert((pid, format!("({command}) {how} {}{open}, which was deleted", shown(path))));
        }
    }
}

/// The path, if a link in `/proc` names a deleted file outside of the harmless places.
fn deleted(target: &str) -> Option<&str> {
    let path = target.strip_suffix(" (deleted)")?;
    (path.starts_with('/') && !HARMLESS.iter().any(|place| path.starts_with(place))).then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_on_the_root_count() {
        assert_eq!(deleted("/workspace/x (deleted)"), Some("/workspace/x"));
        for harmless in ["/workspace/x", "/tmp/x (deleted)", "/memfd:a (deleted)", "/dev/shm/x (deleted)", "pipe:[1]"] {
            assert_eq!(deleted(harmless), None, "{harmless}");
        }
    }

    #[test]
    fn a_process_that_holds_one_is_named() {
        // Not in `/tmp`, where a deleted file harms nobody in a guest.
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let path = dir.path().join("held");
        let file = fs::File::create(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let Reply::Sentences { sentences } = sentences() else { panic!("not sentences") };
        drop(file);
        let me = format!("process {} ", std::process::id());
        let held = format!("holds {} open, which was deleted", path.display());
        assert!(sentences.iter().any(|s| s.starts_with(&me) && s.ends_with(&held)), "{sentences:?}");
    }
}
