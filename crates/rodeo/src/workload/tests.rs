//! Tests of reading workloads: what is refused and what the refusal says.

use super::*;
use crate::verdict::Verdict;

const TOML: &str = include_str!("../../../../workloads/worker/workload.toml");

fn refusal(from: &str, to: &str) -> String {
    assert!(TOML.contains(from), "{from}");
    Manifest::parse("w/workload.toml", &TOML.replacen(from, to, 1)).unwrap_err().to_string()
}

#[test]
fn the_worker_is_built_in_and_is_what_the_folder_holds() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../workloads/worker");
    let (builtin, folder) = (Workload::find("worker").unwrap(), Workload::find(folder).unwrap());
    assert_eq!(builtin.files, folder.files);
    assert_eq!(builtin.digests(), folder.digests());
    assert_eq!(builtin.manifest.start.port, 8080);
    let verdicts: Vec<_> = builtin
        .manifest
        .patches
        .iter()
        .map(|p| (p.name.as_str(), p.known_in(remuda_types::SnapshotMode::Memory).unwrap()))
        .collect();
    use Verdict::{Failed, Passed, Reproduced};
    assert_eq!(verdicts, [("none", Reproduced), ("correct", Passed), ("misleading", Failed)]);
}

#[test]
fn the_patch_none_is_the_unpatched_file() {
    let worker = Workload::find("worker").unwrap();
    assert_eq!(worker.file("patches/none/processor.mjs").unwrap().bytes, worker.unpatched().unwrap());
}

#[test]
fn a_workload_without_baseline_is_refused() {
    let text = refusal("[baseline]\nverdict = \"reproduced\"\n", "");
    assert!(text.contains("w/workload.toml has no baseline") && text.contains("add [baseline]"), "{text}");
}

#[test]
fn unknown_keys_and_values_are_refused_by_name() {
    for (from, to, named) in [
        ("[reload]\n", "[reload]\nfiles = 1\n", "files"),
        ("put = \"app\"", "putt = \"app\"", "putt"),
        ("to = \"/workspace/worker\"", "cwd = \"/workspace/worker\"", "[[prepare]] step has either"),
        ("jobs = 5", "jobs = \"five\"", "jobs"),
        ("kind = \"receipts\"", "kind = \"screenshots\"", "screenshots"),
        ("memory = \"passed\"", "memory = \"fine\"", "fine"),
        ("port = 8080", "", "port"),
        ("name = \"worker\"", "name = worker", "worker"),
    ] {
        let text = refusal(from, to);
        assert!(text.contains("w/workload.toml") && text.contains(named) && text.contains("compare it"), "{text}");
    }
}

#[test]
fn values_that_make_no_sense_are_refused_by_key() {
    for (from, to, key) in [
        ("name = \"worker\"", "name = \"../worker\"", "name"),
        ("put = \"app\"", "put = \"../app\"", "prepare.put"),
        ("to = \"/workspace/worker\"", "to = \"workspace\"", "prepare.to"),
        ("run = [\"node\", \"--version\"]", "run = []", "prepare.run"),
        ("port = 8080", "port = 0", "start.port"),
        ("ready_path = \"/status\"", "ready_path = \"status\"", "start.ready_path"),
        ("jobs = 5", "jobs = 0", "check.jobs"),
        ("free_jobs = 2", "free_jobs = 6", "check.free_jobs"),
        ("free_jobs = 2", "free_jobs = 0", "check.free_jobs"),
        ("pending = 5", "pending = 4", "checkpoint.pending"),
        ("name = \"correct\"", "name = \"none\"", "patches.name"),
        ("file = \"patches/none/processor.mjs\"", "file = \"/etc/passwd\"", "patches.file"),
        ("file = \"/workspace/worker/processor.mjs\"", "file = \"processor.mjs\"", "reload.file"),
    ] {
        let text = refusal(from, to);
        assert!(text.starts_with(&format!("w/workload.toml: {key}: ")), "{text}");
    }
}

#[test]
fn an_unknown_patch_is_refused_with_those_there_are() {
    let text = refusal("patch = \"correct\"", "patch = \"corect\"");
    assert_eq!(text, "the workload worker has no patch \"corect\"; it has none, correct, misleading");
}

#[test]
fn missing_files_and_folders_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().to_str().unwrap().to_owned();
    let error = |what: &str| {
        let text = Workload::find(&place).unwrap_err().to_string();
        assert!(text.contains(what), "{text}");
    };
    error("it has no workload.toml");
    std::fs::write(folder.path().join("workload.toml"), TOML).unwrap();
    error("prepare.put: there is no \"app\"");
    std::fs::create_dir(folder.path().join("app")).unwrap();
    std::fs::write(folder.path().join("app/other.mjs"), "").unwrap();
    error("patches.file: there is no \"patches/none/processor.mjs\"");
    for patch in ["none", "correct", "misleading"] {
        std::fs::create_dir_all(folder.path().join("patches").join(patch)).unwrap();
        std::fs::write(folder.path().join("patches").join(patch).join("processor.mjs"), "").unwrap();
    }
    error("reload.file: no step of the preparation puts");
    std::fs::write(folder.path().join("app/processor.mjs"), "").unwrap();
    assert!(Workload::find(&place).is_ok());
    std::os::unix::fs::symlink("/etc/passwd", folder.path().join("app/link")).unwrap();
    error("neither a file nor a folder");
    let text = Workload::find("nothing-of-this-name").unwrap_err().to_string();
    assert!(text.contains("worker"), "{text}");
}

#[test]
fn digests_tell_names_and_contents_apart() {
    let worker = Workload::find("worker").unwrap();
    let digests = worker.digests();
    let mut renamed = worker.clone();
    let file = renamed.files.remove("CHECK.md").unwrap();
    renamed.files.insert("CHECK2.md".into(), file);
    assert_ne!(renamed.digests().workload, digests.workload);
    let mut changed = worker.clone();
    changed.files.get_mut("CHECK.md").unwrap().bytes[0] ^= 1;
    assert_ne!(changed.digests().workload, digests.workload);
}
