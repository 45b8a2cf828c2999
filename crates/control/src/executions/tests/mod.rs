//! Executions with their files: what is kept and for how long, what a restart finds, what a full disk costs.

mod disk;
mod kill;
mod retention;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use remuda_guest_proto::{FrameError, OutputChunk, Stream, WINDOW_BYTES};
use remuda_types::{ExecutionId, ExecutionState, SandboxId};
use tokio::sync::watch;

use super::*;
use crate::clock::{id_entropy, now_unix_ms};
use crate::stream::OutputQuery;

const SANDBOX: &str = "c1@2026-10-08T12:00:00.000Z";
/// How long anything may take before a test gives up on it.
const PATIENCE: Duration = Duration::from_secs(60);

fn place() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("remuda-test-").tempdir_in("/var/tmp").unwrap()
}

fn sandbox() -> SandboxId {
    SANDBOX.parse().unwrap()
}

fn at(place: &Path) -> Executions {
    Executions::new(place.join("uid"), Retention::default())
}

fn again(place: &Path) -> Executions {
    Executions::recover(place.join("uid"), Retention::default()).unwrap()
}

fn head(channel: u32) -> Head {
    Head {
        id: ExecutionId::from_entropy(id_entropy().unwrap()),
        sandbox: sandbox(),
        command: vec!["sh".into(), "-c".into(), "true".into()],
        started_at_ms: now_unix_ms(),
        channel,
        effect: Some(7),
        timeout_ms: None,
        output_limit: None,
        began_ms: None,
        stdin_open: false,
        pty: None,
        origin: None,
    }
}

fn admitted(executions: &Executions, channel: u32) -> Arc<ExecutionCell> {
    let cell = executions.prepare(head(channel));
    executions.admit(cell.clone()).unwrap();
    cell
}

fn say(cell: &ExecutionCell, bytes: &[u8]) -> Result<(), FrameError> {
    let offset = cell.show_short().output_bytes;
    cell.output(OutputChunk { offset, stream: Stream::Stdout, bytes })
}

fn end(cell: &ExecutionCell) {
    cell.exited(Some(0), None, cell.show_short().output_bytes, false);
}

fn everything(max_bytes: usize) -> OutputQuery {
    OutputQuery { offset: 0, since_ms: None, stream: None, max_bytes, wait: Duration::ZERO }
}

async fn text(cell: &ExecutionCell) -> String {
    let shown = cell.show_with_output().await.unwrap();
    shown.stdout.unwrap() + &shown.stderr.unwrap()
}

/// What an agent does: sends pieces of what a program says, and stays within a window of what was acknowledged.
struct Agent {
    cell: Arc<ExecutionCell>,
    credited: watch::Receiver<u64>,
    sent: u64,
}

impl Agent {
    fn of(cell: &Arc<ExecutionCell>) -> Agent {
        let have = cell.have();
        let (credit, credited) = watch::channel(have);
        cell.credit_by(Box::new(move |consumed| {
            let before = credit.send_replace(consumed);
            assert!(before < consumed, "{consumed} told after {before}");
        }));
        Agent { cell: cell.clone(), credited, sent: have }
    }

    /// Sends bytes when the window allows it.
    async fn send(&mut self, bytes: &[u8]) {
        let end = self.sent + bytes.len() as u64;
        let open = self.credited.wait_for(|credited| end <= credited + WINDOW_BYTES);
        tokio::time::timeout(PATIENCE, open).await.expect("the window never opened").unwrap();
        self.send_now(bytes);
    }

    fn send_now(&mut self, bytes: &[u8]) {
        let chunk = OutputChunk { offset: self.sent, stream: Stream::Stdout, bytes };
        self.cell.output(chunk).unwrap();
        self.sent += bytes.len() as u64;
    }

    fn room(&self) -> u64 {
        *self.credited.borrow() + WINDOW_BYTES - self.sent
    }
}

#[tokio::test]
async fn a_record_is_on_disk_before_anything_is_asked_and_its_end_after_all_output() {
    let place = place();
    let executions = at(place.path());
    let cell = admitted(&executions, 3);
    let found = again(place.path());
    let head = cell.head();
    assert_eq!(found.get(&cell.id, &sandbox()).unwrap().head(), head);
    assert_eq!(found.running().len(), 1);
    cell.spawned(5);
    say(&cell, b"hello\n").unwrap();
    assert_eq!(text(&again(place.path()).running()[0]).await, "hello\n");
    end(&cell);
    let ended = again(place.path()).get(&cell.id, &sandbox()).unwrap();
    assert_eq!(ended.show(), cell.show());
    assert_eq!(
        (ended.state(), ended.show().pid, text(&ended).await.as_str()),
        (ExecutionState::Exited, Some(5), "hello\n")
    );
    let slice = ended.read(everything(100)).await.unwrap();
    assert!(slice.complete && slice.exit_code == Some(0));
}

#[tokio::test]
async fn what_a_restart_finds_goes_on_where_it_was() {
    let place = place();
    let executions = at(place.path());
    let cell = admitted(&executions, 3);
    cell.spawned(5);
    say(&cell, b"before ").unwrap();
    cell.will_be_killed(KilledFor::TimeOut);
    drop((cell, executions));
    let executions = again(place.path());
    let cell = executions.running().remove(0);
    assert_eq!((cell.channel, cell.have(), cell.show().pid), (3, 7, Some(5)));
    // The agent sends again from what it was told, or earlier.
    cell.output(OutputChunk { offset: 2, stream: Stream::Stdout, bytes: b"fore after" }).unwrap();
    cell.exited(None, Some(9), 12, false);
    assert_eq!((cell.state(), cell.show().exit_code), (ExecutionState::TimedOut, Some(124)));
    let cell = again(place.path()).get(&cell.id, &sandbox()).unwrap();
    assert_eq!((cell.state(), text(&cell).await.as_str()), (ExecutionState::TimedOut, "before after"));
}

#[tokio::test]
async fn a_look_at_what_has_ended_changes_nothing() {
    let place = place();
    let directory = place.path().join("uid");
    let look = |only| Executions::recover_ended(directory.clone(), Retention::default(), only).unwrap();
    assert!(look(None).is_none());
    let executions = at(place.path());
    let (ended, running) = (admitted(&executions, 1), admitted(&executions, 2));
    say(&ended, b"over").unwrap();
    end(&ended);
    say(&running, b"as far as it came").unwrap();
    // Cut off by a kill, and half of something.
    let log = directory.join(format!("{}.log", running.id));
    let length = std::fs::metadata(&log).unwrap().len();
    std::fs::File::options().write(true).open(&log).unwrap().set_len(length - 1).unwrap();
    std::fs::write(directory.join("half.new"), "x").unwrap();
    assert_eq!(look(None).unwrap().list().len(), 2);
    let only = look(Some(&running.id)).unwrap();
    assert_eq!(only.list().len(), 1);
    let found = only.get(&running.id, &sandbox()).unwrap();
    assert_eq!((found.state(), text(&found).await.as_str()), (ExecutionState::SandboxGone, ""));
    assert_eq!(text(&look(Some(&ended.id)).unwrap().get(&ended.id, &sandbox()).unwrap()).await, "over");
    assert_eq!(std::fs::metadata(&log).unwrap().len(), length - 1);
    assert!(directory.join("half.new").exists());
}

#[test]
fn what_nobody_owns_goes_and_what_is_young_may_have_an_owner() {
    let place = place();
    let places = ExecutionPlaces::below(place.path());
    let made = |name: &str| {
        std::fs::create_dir_all(place.path().join("executions").join(name)).unwrap();
        std::fs::write(place.path().join("executions").join(name).join("x"), "").unwrap();
    };
    for name in ["aaaa", "bbbb", "cccc"] {
        made(name);
    }
    let left = || {
        let entries = std::fs::read_dir(place.path().join("executions")).unwrap();
        let mut names: Vec<_> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    let owners = std::collections::HashSet::from(["aaaa".to_owned()]);
    let (before, later) = (std::time::UNIX_EPOCH, std::time::SystemTime::now() + PATIENCE);
    assert_eq!((places.remove_older(&owners, before).unwrap(), left().len()), (0, 3));
    std::fs::create_dir(place.path().join("executions/dddd")).unwrap();
    assert_eq!((places.remove_older(&owners, later).unwrap(), left()), (3, vec!["aaaa".to_owned()]));
    made("bbbb");
    assert_eq!((places.remove_others(&owners).unwrap(), left()), (1, vec!["aaaa".to_owned()]));
}

#[tokio::test]
async fn executions_are_found_in_the_order_of_their_start() {
    let place = place();
    let executions = at(place.path());
    let ids: Vec<_> = (0..20)
        .map(|n| {
            let cell = executions.prepare(Head { started_at_ms: n, ..head(n as u32) });
            executions.admit(cell.clone()).unwrap();
            cell.id.clone()
        })
        .collect();
    let found: Vec<_> = again(place.path()).list().into_iter().map(|shown| shown.id).collect();
    assert_eq!(found, ids);
}

#[tokio::test]
async fn a_long_command_is_whole_where_one_is_shown_and_cut_in_lists() {
    let place = place();
    let executions = at(place.path());
    let script = "\u{1}é\n".repeat(200_000);
    let cell = executions.prepare(Head { command: vec![script.clone()], ..head(1) });
    executions.admit(cell.clone()).unwrap();
    assert_eq!(cell.show().command[0], script);
    assert!(executions.list()[0].command[0].len() < 1100);
    let found = again(place.path()).running().remove(0);
    assert_eq!(found.show().command, [script]);
}

#[tokio::test]
async fn a_branch_goes_on_under_its_own_record() {
    let (place, snapshot, branch_place) = (place(), place(), place());
    let executions = at(place.path());
    let script = "x".repeat(100_000);
    let long = executions.prepare(Head { command: vec![script.clone()], ..head(4) });
    executions.admit(long.clone()).unwrap();
    let (short, over) = (admitted(&executions, 5), admitted(&executions, 6));
    long.spawned(9);
    let mut agent = Agent::of(&long);
    for _ in 0..20 {
        agent.send(&vec![b'l'; 256 << 10]).await;
    }
    say(&short, b"short").unwrap();
    end(&over);
    let into = snapshot.path().join("snap");
    let carried = executions.carry(&into, 0).unwrap();
    assert_eq!(carried.iter().map(|c| c.channel).collect::<Vec<_>>(), [4, 5], "what ended is no part of a copy");
    flush_carried(&into).unwrap();
    // It can be kept as JSON.
    let carried: Vec<CarriedExecution> = serde_json::from_slice(&serde_json::to_vec(&carried).unwrap()).unwrap();
    let branch = at(branch_place.path());
    let cells: Vec<_> = carried
        .iter()
        .map(|carried| {
            let id = ExecutionId::from_entropy(id_entropy().unwrap());
            let cell = branch.branched(id, sandbox(), carried, &into).unwrap();
            branch.admit(cell.clone()).unwrap();
            cell
        })
        .collect();
    remove_carried(&into).unwrap();
    drop((agent, executions, place));
    assert_eq!((cells[0].have(), cells[0].have()), (carried[0].have(), carried[0].have()));
    cells[1].output(OutputChunk { offset: 5, stream: Stream::Stdout, bytes: b" and on" }).unwrap();
    for cell in &cells {
        end(cell);
    }
    let found = again(branch_place.path());
    for (cell, origin) in cells.iter().zip([&long, &short]) {
        let found = found.get(&cell.id, &sandbox()).unwrap();
        assert_eq!(found.show().origin.as_ref(), Some(&origin.id));
        assert_eq!(found.show(), cell.show());
    }
    assert_eq!(found.get(&cells[0].id, &sandbox()).unwrap().show().command, [script]);
    assert_eq!(found.get(&cells[0].id, &sandbox()).unwrap().show().pid, Some(9));
    assert_eq!(text(&found.get(&cells[1].id, &sandbox()).unwrap()).await, "short and on");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_branch_may_say_much_before_it_is_admitted() {
    let (place, snapshot) = (place(), place());
    let executions = at(place.path());
    admitted(&executions, 1);
    let carried = executions.carry(&snapshot.path().join("snap"), 0).unwrap().remove(0);
    let branch = at(&place.path().join("branch"));
    for _ in 0..20 {
        let id = ExecutionId::from_entropy(id_entropy().unwrap());
        let cell = branch.branched(id, sandbox(), &carried, &snapshot.path().join("snap")).unwrap();
        let mut agent = Agent::of(&cell);
        let piece: Vec<u8> = (0..=255).cycle().take(200_000).collect();
        for _ in 0..5 {
            agent.send_now(&piece);
        }
        branch.admit(cell.clone()).unwrap();
        end(&cell);
        tokio::time::timeout(PATIENCE, cell.settled()).await.unwrap();
        let (mut all, mut offset) = (Vec::new(), 0);
        while let slice = cell.read(OutputQuery { offset, ..everything(1 << 20) }).await.unwrap()
            && slice.next_offset > offset
        {
            slice.records.iter().for_each(|(_, _, bytes)| all.extend_from_slice(bytes));
            offset = slice.next_offset;
        }
        assert!(all == piece.repeat(5));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_reader_holds_nobody_up_and_sees_what_is_kept() {
    let place = place();
    let executions = at(place.path());
    let cell = admitted(&executions, 1);
    let mut agent = Agent::of(&cell);
    // One reader takes its first bytes and then waits until all is written.
    let first = {
        let cell = cell.clone();
        tokio::spawn(async move { cell.read(OutputQuery { wait: PATIENCE, ..everything(10) }).await.unwrap() })
    };
    let total = 30u64 << 20;
    let chunk: Vec<u8> = (0..=255).collect::<Vec<u8>>().repeat(1 << 10);
    while agent.sent < total {
        agent.send(&chunk).await;
    }
    end(&cell);
    tokio::time::timeout(PATIENCE, cell.settled()).await.unwrap();
    let first = first.await.unwrap();
    assert_eq!(first.next_offset, 10);
    let (mut offset, mut skipped) = (first.next_offset, 0);
    loop {
        let slice = cell.read(OutputQuery { offset, ..everything(1 << 20) }).await.unwrap();
        for (offset, _, bytes) in &slice.records {
            assert!(bytes.iter().enumerate().all(|(n, byte)| *byte == (*offset as usize + n) as u8));
        }
        (offset, skipped) = (slice.next_offset, skipped + slice.skipped_bytes);
        if slice.complete {
            break;
        }
    }
    assert_eq!((offset, skipped), (total, total - (16 << 20)));
    assert_eq!(again(place.path()).list(), executions.list());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fast_reader_sees_every_byte_once_while_it_is_written() {
    let place = place();
    let executions = at(place.path());
    let cell = admitted(&executions, 1);
    let mut agent = Agent::of(&cell);
    let reading = {
        let cell = cell.clone();
        tokio::spawn(async move {
            let (mut all, mut offset) = (Vec::new(), 0);
            loop {
                let query = OutputQuery { offset, wait: PATIENCE, ..everything(50_000) };
                let slice = cell.read(query).await.unwrap();
                assert_eq!(slice.skipped_bytes, 0);
                slice.records.iter().for_each(|(_, _, bytes)| all.extend_from_slice(bytes));
                offset = slice.next_offset;
                if slice.complete {
                    return all;
                }
            }
        })
    };
    let mut expected = Vec::new();
    for n in 0..120_000u32 {
        let line = format!("{n}\n");
        agent.send(line.as_bytes()).await;
        expected.extend_from_slice(line.as_bytes());
        if n % 20_000 == 0 {
            let long = vec![b'x'; 200 << 10];
            agent.send(&long).await;
            expected.extend_from_slice(&long);
        }
    }
    end(&cell);
    let read = tokio::time::timeout(PATIENCE, reading).await.unwrap().unwrap();
    assert!(read == expected, "{} bytes, not {}", read.len(), expected.len());
}

#[tokio::test]
async fn what_an_agent_may_not_send_is_refused() {
    let place = place();
    let executions = at(place.path());
    let cell = admitted(&executions, 1);
    assert!(cell.output(OutputChunk { offset: 1, stream: Stream::Stdout, bytes: b"x" }).is_err());
    assert!(say(&cell, &vec![0; WINDOW_BYTES as usize + 1]).is_err());
}

#[tokio::test]
async fn an_end_that_is_not_confirmed_stands_and_the_guest_gets_to_its_own() {
    let place = place();
    let executions = at(place.path());
    let cell = admitted(&executions, 1);
    let mut agent = Agent::of(&cell);
    agent.send_now(b"before");
    cell.unconfirmed_end();
    assert_eq!(cell.state(), ExecutionState::Running, "nobody has killed it");
    cell.will_be_killed(KilledFor::TimeOut);
    cell.unconfirmed_end();
    let shown = cell.show();
    assert_eq!((shown.state, shown.exit_code, shown.unconfirmed), (ExecutionState::TimedOut, Some(124), true));
    assert_eq!((executions.running().len(), executions.open().len()), (0, 1));
    // What it says from now on is let go, as much as it likes.
    let piece = vec![b'x'; WINDOW_BYTES as usize / 2];
    for _ in 0..5 {
        agent.send(&piece).await;
    }
    assert_eq!(text(&cell).await, "before");
    tokio::time::timeout(Duration::from_millis(1), cell.let_go()).await.unwrap_err();
    cell.exited(None, Some(9), agent.sent, false);
    tokio::time::timeout(PATIENCE, cell.let_go()).await.unwrap();
    assert_eq!(cell.show(), shown, "the first end counts");
    drop((cell, executions));
    let found = again(place.path());
    assert_eq!(found.list()[0], shown);
    assert_eq!(found.open().len(), 1, "the next server waits for the guest's word too");
}
