//! What the tests share: a directory, ids, and calls as a platform makes them. It must never hide a failure.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

use remuda_journal::*;
use remuda_types::ids::UID_LEN;
use remuda_types::{
    Account, Key, OperationId, SandboxId, SandboxState, Slot, SnapshotId, SnapshotMode, SnapshotState, Uid,
};
use serde_json::{Value, json};

/// A moment in 2026, in Unix milliseconds.
pub const NOW: i64 = 1_790_000_000_000;
/// An hour in milliseconds.
pub const HOUR: i64 = 3_600_000;

/// Small, so that tests don't write for nothing.
pub fn settings() -> Settings {
    Settings { reserve_bytes: 64 << 10, ..Settings::default() }
}

pub fn open(directory: &Path) -> Journal {
    Journal::open(directory, settings()).unwrap()
}

/// Bytes that no other call got, in this process or another.
pub fn entropy() -> [u8; UID_LEN] {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let n = (u64::from(std::process::id()) << 32) + NEXT.fetch_add(1, Ordering::Relaxed);
    let mut bytes = [0; UID_LEN];
    for (place, byte) in bytes.iter_mut().enumerate().take(13) {
        *byte = ((n >> (5 * place)) & 31) as u8;
    }
    bytes
}

pub fn account() -> Account {
    "main".parse().unwrap()
}

pub fn key(text: &str) -> Key {
    text.parse().unwrap()
}

pub fn slot(text: &str) -> Slot {
    text.parse().unwrap()
}

pub fn uid() -> Uid {
    Uid::from_entropy(entropy())
}

pub fn scope() -> Scope {
    Scope::new("create").unwrap()
}

/// A call without a reservation.
pub fn call(key: Option<&str>, request: Value) -> Admission {
    Admission {
        id: OperationId::from_entropy(entropy()),
        account: account(),
        scope: scope(),
        key: key.map(self::key),
        parent: None,
        request,
        now_ms: NOW,
        reservation: Reservation::default(),
    }
}

pub fn new_sandbox(slot: Option<&str>) -> NewSandbox {
    NewSandbox {
        slot: slot.map(self::slot),
        uid: uid(),
        continues: None,
        labels: [("purpose".to_owned(), "test".to_owned())].into(),
        spec: json!({ "memory_mib": 2048 }),
        parts: json!({ "runsc": "sha256:1" }),
        layers: vec![],
    }
}

/// A call that wants a sandbox.
pub fn create(key: Option<&str>, slot: Option<&str>) -> Admission {
    let mut call = call(key, json!({ "slot": slot }));
    call.reservation.sandbox = Some(new_sandbox(slot));
    call
}

pub fn new_snapshot(name: Option<&str>) -> NewSnapshot {
    NewSnapshot {
        id: SnapshotId::from_entropy(entropy()),
        name: name.map(str::to_owned),
        mode: SnapshotMode::Memory,
        state: SnapshotState::Capturing,
        source: None,
        labels: Default::default(),
        doc: json!({}),
    }
}

/// A call that wants a snapshot.
pub fn capture(key: Option<&str>, name: Option<&str>) -> Admission {
    let mut call = call(key, json!({ "name": name }));
    call.scope = Scope::new("capture").unwrap();
    call.reservation.snapshot = Some(new_snapshot(name));
    call
}

/// The operation of a call that must be new.
pub async fn admit_new(journal: &Journal, admission: Admission) -> Operation {
    match journal.admit(admission).await.unwrap() {
        Admitted::New(operation) => operation,
        other => panic!("not new: {other:?}"),
    }
}

/// Why a call was refused.
pub fn refusal<T: std::fmt::Debug>(result: Result<T, JournalError>) -> Refusal {
    match result {
        Err(JournalError::Refused(refusal)) => refusal,
        other => panic!("not refused: {other:?}"),
    }
}

/// A sandbox that has been made and runs.
pub async fn running(journal: &Journal, slot: Option<&str>, now_ms: i64) -> SandboxRecord {
    let mut call = create(None, slot);
    call.now_ms = now_ms;
    let uid = call.reservation.sandbox.as_ref().unwrap().uid.clone();
    let operation = admit_new(journal, call).await;
    let runs = Change::Sandbox(SandboxChange::of(&uid).state(SandboxState::Running));
    journal.finish(&operation.id, Outcome::Done(json!({})), vec![runs], now_ms).await.unwrap();
    journal.sandbox_by_uid(&uid).await.unwrap().unwrap()
}

/// Ends a sandbox for good.
pub async fn end(journal: &Journal, uid: &Uid, now_ms: i64) {
    let gone = SandboxChange::of(uid).state(SandboxState::Gone).reason(Some("removed".to_owned())).ended(now_ms);
    journal.apply(vec![Change::Sandbox(gone)]).await.unwrap();
}

pub fn sandbox_id(operation: &Operation) -> SandboxId {
    operation.reserved.sandbox.clone().unwrap()
}

/// Tells a process that it is a test's child, and where.
pub const CHILD: &str = "REMUDA_JOURNAL_TEST_CHILD";

/// The directory to work in, if this process is a test's child.
pub fn child_directory() -> Option<PathBuf> {
    std::env::var_os(CHILD).map(PathBuf::from)
}

/// This test binary, to run one test in a process of its own.
pub fn child(test: &str, directory: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]).env(CHILD, directory).stdin(Stdio::null());
    command
}

/// Runs a test in a process of its own, where it must pass.
pub fn run_as_child(test: &str, directory: &Path) {
    passes(&mut child(test, directory));
}

/// The same on a file system of that size, which goes with the process.
pub fn run_on_tmpfs(test: &str, size: &str) {
    let directory = tempfile::tempdir().unwrap();
    let inner = child(test, directory.path());
    let mut command = Command::new("unshare");
    let script = r#"mount -t tmpfs -o "size=$0" none "$1" && shift && exec "$@""#;
    command.args(["--mount", "--propagation", "private", "sh", "-c", script, size]).arg(directory.path());
    command.arg(inner.get_program()).args(inner.get_args()).env(CHILD, directory.path()).stdin(Stdio::null());
    passes(&mut command);
}

/// Runs a command in which one test must pass.
pub fn passes(command: &mut Command) {
    let output = command.output().unwrap();
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (said(&output.stdout), said(&output.stderr));
    assert!(output.status.success(), "{}\n{out}\n{err}", output.status);
    assert!(out.contains("1 passed"), "the child ran no test:\n{out}");
}

/// Mounts something in this process's own namespace.
pub fn mount(options: &[&str], directory: &Path) {
    assert!(Command::new("mount").args(options).arg(directory).status().unwrap().success());
}
