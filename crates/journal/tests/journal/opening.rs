//! Opening: one server at a time, and nothing is written to what can't be used.

use std::collections::BTreeMap;
use std::path::Path;

use remuda_journal::*;
use serde_json::json;

use crate::world::*;

/// Every file with its bytes.
fn contents(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap());
    // The lock has the pid of whoever tried last.
    let entries = entries.filter(|entry| entry.file_name() != "journal.lock");
    entries.map(|e| (e.file_name().into_string().unwrap(), std::fs::read(e.path()).unwrap())).collect()
}

/// A directory with a closed journal that holds something.
async fn closed() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let journal = open(directory.path());
    for n in 0..200 {
        admit_new(&journal, create(Some(&format!("k{n}")), Some(&format!("s{n}")))).await;
    }
    journal.close().await.unwrap();
    // Whoever reads closes before who writes, so that neither log nor index is left.
    assert_eq!(contents(directory.path()).into_keys().collect::<Vec<_>>(), ["journal.db", "journal.reserve"]);
    directory
}

/// The error, after which everything is as it was.
fn refused(directory: &Path) -> OpenError {
    let before = contents(directory);
    let error = Journal::open(directory, settings()).unwrap_err();
    let after = contents(directory);
    let differ = |(name, bytes): &(&String, &Vec<u8>)| before.get(*name) != Some(*bytes);
    let written: Vec<_> = after.iter().filter(differ).map(|(name, _)| name).collect();
    let removed: Vec<_> = before.keys().filter(|name| !after.contains_key(*name)).collect();
    assert!(written.is_empty() && removed.is_empty(), "written: {written:?}, removed: {removed:?}; {error}");
    assert!(!error.remedy().is_empty());
    assert!(error.to_string().contains(directory.to_str().unwrap()), "{error}");
    error
}

fn overwrite(directory: &Path, at: usize, bytes: &[u8]) {
    let path = directory.join("journal.db");
    let mut file = std::fs::read(&path).unwrap();
    file[at..at + bytes.len()].copy_from_slice(bytes);
    std::fs::write(&path, file).unwrap();
}

#[tokio::test]
async fn a_second_server_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let journal = open(directory.path());
    let error = Journal::open(directory.path(), settings()).unwrap_err();
    assert!(matches!(error, OpenError::InUse { holder: Some(pid), .. } if pid == std::process::id()), "{error:?}");
    // The first goes on.
    admit_new(&journal, call(Some("k"), json!({}))).await;
    let clone = journal.clone();
    journal.close().await.unwrap();
    assert_eq!(clone.admit(call(None, json!({}))).await, Err(JournalError::Closed));
    assert_eq!(clone.unfinished(Paging::first()).await, Err(JournalError::Closed));
    open(directory.path());
}

#[tokio::test]
async fn a_second_process_is_refused() {
    if let Some(directory) = child_directory() {
        let error = Journal::open(&directory, settings()).unwrap_err();
        assert!(matches!(error, OpenError::InUse { holder: Some(pid), .. } if pid != std::process::id()), "{error:?}");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let _journal = open(directory.path());
    run_as_child("opening::a_second_process_is_refused", directory.path());
}

#[tokio::test]
async fn a_newer_layout_is_left_alone() {
    let directory = closed().await;
    overwrite(directory.path(), 60, &77_u32.to_be_bytes());
    let error = refused(directory.path());
    assert!(matches!(error, OpenError::Newer { found: 77, .. }), "{error:?}");
}

#[tokio::test]
async fn damage_is_told_and_left_alone() {
    let directory = closed().await;
    let length = std::fs::metadata(directory.path().join("journal.db")).unwrap().len();
    assert!(length > 16 * 4096);
    // In the middle of some page of a table.
    for page in 2..14 {
        overwrite(directory.path(), page * 4096 + 4, &[0x5a; 64]);
    }
    let error = refused(directory.path());
    assert!(matches!(&error, OpenError::Damaged { cause, .. } if !cause.is_empty()), "{error:?}");

    let directory = closed().await;
    let file = std::fs::OpenOptions::new().write(true).open(directory.path().join("journal.db")).unwrap();
    file.set_len(length / 2).unwrap();
    assert!(matches!(refused(directory.path()), OpenError::Damaged { .. }));
}

#[tokio::test]
async fn what_is_no_journal_is_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    for text in ["these are somebody's notes", &"notes ".repeat(1_000)] {
        std::fs::write(directory.path().join("journal.db"), text).unwrap();
        assert!(matches!(refused(directory.path()), OpenError::Foreign { .. }));
    }
    let directory = closed().await;
    overwrite(directory.path(), 68, b"abcd");
    assert!(matches!(refused(directory.path()), OpenError::Foreign { .. }));
    let directory = tempfile::tempdir().unwrap();
    std::fs::create_dir(directory.path().join("journal.db")).unwrap();
    let error = Journal::open(directory.path(), settings()).unwrap_err();
    assert!(matches!(error, OpenError::Foreign { .. }), "{error:?}");
}

#[tokio::test]
async fn a_server_that_ended_while_making_it_is_no_obstacle() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("journal.db"), "").unwrap();
    admit_new(&open(directory.path()), call(Some("k"), json!({}))).await;
    assert_eq!(open(directory.path()).operations_by_key(&account(), &key("k")).await.unwrap().len(), 1);
}

#[test]
fn a_read_only_directory_is_told() {
    if let Some(directory) = child_directory() {
        // In a mount namespace of its own, which goes with this process.
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async { admit_new(&open(&directory), call(Some("k"), json!({}))).await });
        mount(&["-o", "remount,ro"], &directory);
        let error = refused(&directory);
        assert!(matches!(error, OpenError::Io { read_only: true, .. }), "{error:?}");
        let error = Journal::open(&directory.join("data"), settings()).unwrap_err();
        assert!(matches!(error, OpenError::Io { read_only: true, .. }), "{error:?}");
        return;
    }
    run_on_tmpfs("opening::a_read_only_directory_is_told", "16m");
}

#[tokio::test]
async fn what_was_written_is_there_after_a_drop() {
    let directory = tempfile::tempdir().unwrap();
    for round in 0..5 {
        let journal = open(directory.path());
        let found = journal.unfinished(Paging::first()).await.unwrap().items;
        assert_eq!(found.len(), round);
        admit_new(&journal, create(Some(&format!("k{round}")), None)).await;
        // What nobody waited for is written by whoever lets go last.
        let event = NewEvent { account: account(), at_ms: NOW, kind: "a".into(), doc: json!({}) };
        drop(journal.apply_soon(vec![Change::Event(event)]).await.unwrap());
        drop(journal);
        let newest = open(directory.path()).events(&account(), 0, 0).await.unwrap().newest;
        assert_eq!(newest, round as u64 + 1);
    }
}
