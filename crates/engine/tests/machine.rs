//! The engine against a real runsc and the base image in the machine-wide cache.

use std::path::Path;

use remuda_engine::Trial;
use remuda_engine::install::{Cache, Installed, Probe};

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_is_started_paused_captured_and_restored_and_leaves_nothing() {
    let installed = Installed::load(&Cache::new(Path::new("/var/cache/remuda"))).unwrap();
    let installed = installed.expect("the cache is empty; run: cargo xtask test");
    let found = Trial.probe(&installed.runsc, &installed.base_root).await.unwrap();
    assert_eq!(found.missing(), Vec::<&str>::new());
    assert!(found.deleted_open_files.is_some());
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(!mounts.contains("remuda-trial-"), "{mounts}");
    assert_eq!(zombies(), Vec::<String>::new());
}

/// Children of this process that have ended and were not waited for.
fn zombies() -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let children = tasks.filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("children")).ok());
    let pids: Vec<String> = children.flat_map(|c| c.split_whitespace().map(String::from).collect::<Vec<_>>()).collect();
    let stats = pids.iter().filter_map(|pid| std::fs::read_to_string(format!("/proc/{pid}/stat")).ok());
    stats.filter(|stat| stat.rsplit_once(')').is_some_and(|(_, rest)| rest.starts_with(" Z"))).collect()
}
