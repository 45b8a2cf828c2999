//! Crashes: a server killed in the middle of its commits has lost nothing that it had acknowledged.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::Stdio;

use remuda_journal::*;
use remuda_types::{OperationState, SandboxState};
use serde_json::json;

use crate::world::*;

const ROUNDS: usize = 10;
const CLIENTS: usize = 32;
const ROUND: &str = "REMUDA_JOURNAL_TEST_ROUND";

/// Admits, steps and finishes as fast as it can, and says what was acknowledged, until it is killed.
fn be_the_server(directory: &Path) {
    let round = std::env::var(ROUND).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let journal = open(directory);
    runtime.block_on(async {
        let clients = (0..CLIENTS).map(|client| {
            let (journal, round) = (journal.clone(), round.clone());
            tokio::spawn(async move {
                for n in 0.. {
                    be_a_client(&journal, &format!("r{round}-c{client}-n{n}")).await;
                }
            })
        });
        for client in clients.collect::<Vec<_>>() {
            client.await.unwrap();
        }
    });
}

async fn be_a_client(journal: &Journal, name: &str) {
    let create = create(Some(name), None);
    let uid = create.reservation.sandbox.as_ref().unwrap().uid.clone();
    let operation = admit_new(journal, create).await;
    acknowledge("admitted", name, &operation);
    let runs = Change::Sandbox(SandboxChange::of(&uid).state(SandboxState::Running));
    journal.step(&operation.id, "start", json!({ "name": name }), vec![runs]).await.unwrap();
    acknowledge("stepped", name, &operation);
    let gone = Change::Sandbox(SandboxChange::of(&uid).state(SandboxState::Gone).ended(NOW));
    let event = Change::Event(NewEvent { account: account(), at_ms: NOW, kind: "gone".into(), doc: json!(name) });
    journal.finish(&operation.id, Outcome::Done(json!({ "name": name })), vec![gone, event], NOW).await.unwrap();
    acknowledge("finished", name, &operation);
}

/// One line in one write: it is there whole or it is cut off at its end.
fn acknowledge(what: &str, name: &str, operation: &Operation) {
    let line = format!("ack {what} {name} {} {}\n", operation.id, sandbox_id(operation));
    std::io::stdout().lock().write_all(line.as_bytes()).unwrap();
}

/// What was acknowledged of a key: the last word, operation and generation.
type Acknowledged = BTreeMap<String, (String, String, String)>;

#[test]
fn nothing_acknowledged_is_lost_when_it_is_killed() {
    if let Some(directory) = child_directory() {
        be_the_server(&directory);
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut all = Acknowledged::new();
    for round in 0..ROUNDS {
        let mut acknowledged = Acknowledged::new();
        run_until_killed(directory.path(), round, 50 + 150 * round, &mut acknowledged);
        assert!(!acknowledged.is_empty(), "round {round} acknowledged nothing");
        all.extend(acknowledged.clone());
        // The last time, everything: later crashes take nothing back either.
        runtime.block_on(audit(directory.path(), if round + 1 < ROUNDS { &acknowledged } else { &all }));
    }
}

/// Starts a server, listens to it, and kills it at once after so many acknowledgements; what it had written to the pipe
/// before it died counts too.
fn run_until_killed(directory: &Path, round: usize, after: usize, acknowledged: &mut Acknowledged) {
    let mut server = child("crash::nothing_acknowledged_is_lost_when_it_is_killed", directory)
        .env(ROUND, round.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut heard = 0;
    let mut lines = BufReader::new(server.stdout.take().unwrap());
    let mut line = String::new();
    while lines.read_line(&mut line).unwrap() > 0 {
        // The last one may be cut off.
        if let Some(text) = line.strip_suffix('\n')
            && let Some(at) = text.find("ack ")
            && let [_, what, name, operation, sandbox] = text[at..].split(' ').collect::<Vec<_>>()[..]
        {
            acknowledged.insert(name.into(), (what.into(), operation.into(), sandbox.into()));
            heard += 1;
            if heard == after {
                server.kill().unwrap();
            }
        }
        line.clear();
    }
    // By the kill, and not because something had gone wrong in it.
    assert_eq!(server.wait().unwrap().signal(), Some(9));
}

async fn audit(directory: &Path, acknowledged: &Acknowledged) {
    let journal = open(directory);
    let mut generations = BTreeSet::new();
    for (name, (what, operation, sandbox)) in acknowledged {
        let found = journal.operations_by_key(&account(), &key(name)).await.unwrap();
        let [found] = &found[..] else { panic!("{name}: {found:?}") };
        assert_eq!((found.id.as_str(), sandbox_id(found).to_string()), (operation.as_str(), sandbox.clone()));
        assert!(generations.insert(sandbox.clone()), "{sandbox} was given twice");
        let found = journal.operation(&account(), &found.id).await.unwrap().unwrap();
        assert!(what == "admitted" || !found.steps.is_empty(), "{name} was {what}");
        assert!(what != "finished" || found.state == OperationState::Done, "{name} was {what}");
        // A retry never runs again.
        let again = journal.admit(create(Some(name), None)).await.unwrap();
        match found.state {
            OperationState::Pending => assert!(matches!(again, Admitted::InFlight(op) if op.id == found.id)),
            _ => assert!(matches!(again, Admitted::Replay(op) if op.id == found.id)),
        }
    }
    // What belongs together is there together.
    let mut events = BTreeMap::new();
    let mut after = 0;
    loop {
        let page = journal.events(&account(), after, 0).await.unwrap();
        let Some(last) = page.events.last() else { break };
        after = last.sequence;
        events.extend(page.events.into_iter().map(|e| (e.doc.as_str().unwrap().to_owned(), e.sequence)));
    }
    assert_eq!(events.len() as u64, after, "each event once, and none is missing");
    let filter = SandboxFilter { include_ended: true, ..Default::default() };
    let mut paging = Paging::first();
    let mut living = BTreeSet::new();
    loop {
        let page = journal.sandboxes(Whose::Of(&account()), filter.clone(), paging).await.unwrap();
        for sandbox in page.items {
            let operation = journal.operation(&account(), &sandbox.operation).await.unwrap().unwrap();
            assert_eq!(operation.reserved.sandbox, Some(sandbox.id.clone()));
            let finished = operation.state == OperationState::Done;
            assert_eq!(sandbox.ended_at_ms.is_some(), finished);
            assert_eq!(sandbox.state == SandboxState::Starting, operation.steps.is_empty());
            assert_eq!(events.contains_key(operation.key.unwrap().as_str()), finished);
            assert!(finished || living.insert(sandbox.id.slot), "one living generation in a slot");
        }
        match page.next {
            Some(next) => paging = Paging::after(next),
            None => break,
        }
    }
    let unfinished = journal.unfinished(Paging::first()).await.unwrap();
    assert_eq!(unfinished.items.len(), living.len());
}
