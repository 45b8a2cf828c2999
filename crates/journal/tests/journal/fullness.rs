//! Disks that are full or fail: what begins is refused, what has begun gets its outcome, and nothing that was
//! acknowledged is lost.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use remuda_journal::*;
use rustix::process::{Resource, Rlimit};
use serde_json::json;

use crate::world::*;

const RESERVE: u64 = 1 << 20;
const TEXT_BYTES: usize = 2_000;

fn open_with_reserve(directory: &Path) -> Journal {
    Journal::open(directory, Settings { reserve_bytes: RESERVE, ..Settings::default() }).unwrap()
}

/// Takes what is left of the disk but a little, in which something may still begin.
fn fill(path: &Path) {
    let mut file = File::options().append(true).create(true).open(path).unwrap();
    for piece in [64 << 10, 4 << 10] {
        while file.write_all(&vec![0x46; piece]).is_ok() {}
    }
    let length = file.metadata().unwrap().len();
    file.set_len(length - (400 << 10)).unwrap();
}

/// Admits until the disk is full; tells how many were.
async fn admit_until_full(journal: &Journal, prefix: &str) -> Vec<Operation> {
    let mut admitted = Vec::new();
    loop {
        let name = format!("{prefix}-{}", admitted.len());
        match journal.admit(call(Some(&name), json!({ "text": "x".repeat(TEXT_BYTES) }))).await {
            Ok(Admitted::New(operation)) => admitted.push(operation),
            Err(JournalError::Full { .. }) => return admitted,
            other => panic!("{other:?}"),
        }
        assert!(admitted.len() < 10_000, "the disk never gets full");
    }
}

async fn full_disk(directory: &Path) {
    let filler = directory.join("filler");
    let data = directory.join("data");
    let journal = open_with_reserve(&data);
    let mut begun = Vec::new();
    for n in 0..100 {
        begun.push(admit_new(&journal, create(Some(&format!("early-{n}")), None)).await);
    }
    fill(&filler);
    begun.extend(admit_until_full(&journal, "late").await);
    assert!(begun.len() > 100);
    assert_eq!(std::fs::metadata(data.join("journal.reserve")).unwrap().len(), RESERVE, "beginning takes no reserve");

    // What has begun ends.
    let mut acknowledged = Vec::new();
    for operation in begun.iter().take(100) {
        journal.step(&operation.id, "undo", json!({}), vec![]).await.unwrap();
        let outcome = Outcome::Failed(json!({ "why": "the disk is full" }));
        journal.finish(&operation.id, outcome, vec![], NOW).await.unwrap();
        acknowledged.push(operation.id.clone());
    }
    assert!(!data.join("journal.reserve").exists(), "the reserve is in use");
    let refused = journal.admit(call(Some("refused"), json!({}))).await;
    assert!(matches!(refused, Err(JournalError::Full { .. })), "{refused:?}");

    // Also by a server that starts on the full disk.
    drop(journal);
    let journal = open_with_reserve(&data);
    let left = journal.unfinished(Paging::first()).await.unwrap().items;
    assert_eq!(left.iter().map(|o| &o.id).collect::<Vec<_>>(), begun[100..].iter().map(|o| &o.id).collect::<Vec<_>>());
    for operation in left.iter().take(5) {
        journal.finish(&operation.id, Outcome::Failed(json!({})), vec![], NOW).await.unwrap();
        acknowledged.push(operation.id.clone());
    }
    // Until the reserve is used up too: that is told, and takes nothing back.
    let open = step_until_full(&journal, &left[5].id).await;
    let found = journal.operation(&account(), &left[5].id).await.unwrap().unwrap();
    assert_eq!(found.steps.len(), open);

    // With space again, all goes on, and the reserve is taken up before anything else begins.
    std::fs::remove_file(&filler).unwrap();
    admit_new(&journal, call(Some("refused"), json!({}))).await;
    assert_eq!(std::fs::metadata(data.join("journal.reserve")).unwrap().len(), RESERVE);
    journal.close().await.unwrap();
    let journal = open_with_reserve(&data);
    for id in &acknowledged {
        assert!(journal.operation(&account(), id).await.unwrap().unwrap().outcome.is_some());
    }
    assert_eq!(journal.operation(&account(), &left[5].id).await.unwrap().unwrap().steps.len(), open);
}

/// Journals steps until not even the reserve has space; tells how many were acknowledged.
async fn step_until_full(journal: &Journal, id: &remuda_types::OperationId) -> usize {
    for n in 0.. {
        let data = json!("x".repeat(100 << 10));
        match journal.step(id, &format!("step-{n}"), data, vec![]).await {
            Ok(_) => assert!(n < limits::STEPS_MAX - 1, "the disk never gets full"),
            Err(JournalError::Full { .. }) => return n,
            Err(other) => panic!("{other:?}"),
        }
    }
    unreachable!()
}

#[test]
fn outcomes_are_written_on_a_full_disk() {
    if let Some(directory) = child_directory() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(full_disk(&directory));
        return;
    }
    run_on_tmpfs("fullness::outcomes_are_written_on_a_full_disk", "16m");
}

/// A disk that fails in the middle of a commit: here, one on which no file may grow.
async fn failing_disk(directory: &Path) {
    let journal = open_with_reserve(directory);
    let operation = admit_new(&journal, call(Some("before"), json!({}))).await;
    let length = std::fs::metadata(directory.join("journal.db-wal")).unwrap().len();
    let limit = Rlimit { current: Some(length), maximum: Some(length) };
    rustix::process::setrlimit(Resource::Fsize, limit).unwrap();
    let failed = journal.admit(call(Some("open"), json!({ "text": "x".repeat(1 << 20) }))).await;
    assert!(matches!(failed, Err(JournalError::Stopped { .. })), "{failed:?}");
    // What is on the disk is not known: nothing is put on top of it.
    let outcome = journal.finish(&operation.id, Outcome::Done(json!(1)), vec![], NOW).await;
    assert!(matches!(outcome, Err(JournalError::Stopped { .. })), "{outcome:?}");
    assert!(journal.stopped().is_some());
    // What was acknowledged can still be read.
    assert_eq!(journal.operation(&account(), &operation.id).await.unwrap().unwrap(), operation);
    assert!(matches!(journal.close().await, Err(JournalError::Stopped { .. })));
}

#[test]
fn a_failing_disk_stops_it() {
    let runtime = || tokio::runtime::Builder::new_current_thread().build().unwrap();
    if let Some(directory) = child_directory() {
        runtime().block_on(failing_disk(&directory));
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let inner = child("fullness::a_failing_disk_stops_it", directory.path());
    let mut command = Command::new("sh");
    // The error is to arrive as an error.
    command.args(["-c", r#"trap "" XFSZ && exec "$0" "$@""#]).arg(inner.get_program()).args(inner.get_args());
    passes(command.env(CHILD, directory.path()).stdin(Stdio::null()));
    runtime().block_on(async {
        let journal = open_with_reserve(directory.path());
        let found = journal.operations_by_key(&account(), &key("before")).await.unwrap();
        assert_eq!(found.len(), 1);
        journal.finish(&found[0].id, Outcome::Done(json!(1)), vec![], NOW).await.unwrap();
        // The one that was told to be open is there whole or not at all; a retry with its key has one outcome.
        let again = journal.admit(call(Some("open"), json!({ "text": "x".repeat(1 << 20) }))).await.unwrap();
        assert!(matches!(again, Admitted::New(_) | Admitted::InFlight(_)));
    });
}
