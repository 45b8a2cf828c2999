//! What is awkward about being a copy, point by point as `docs/fork-hazards.md` has it: what differs by itself, what does
//! not, and how a program is told.

use remuda_client::wire::{Branch, CreateSnapshot, RestoreSnapshot};
use remuda_client::{OutputQuery, Told};
use remuda_types::{ExecutionState, SandboxId, SnapshotMode};

use crate::api::{Api, PATIENCE, fork_of, python};

/// Evaluates what it is asked, in one process that keeps its state.
const ORACLE: &str = r#"
import fcntl, os, random, signal, socket, time, uuid
random.seed(7)
token = uuid.uuid4().hex
lock = open("/workspace/lock", "w")
fcntl.flock(lock, fcntl.LOCK_EX)
signal.signal(signal.SIGUSR1, lambda *_: random.seed(os.getrandom(16)))
os.mkfifo("/tmp/ask")
os.mkfifo("/tmp/answer")
open("/workspace/oracle.pid", "w").write(str(os.getpid()))
print("up", flush=True)
while True:
    with open("/tmp/ask") as ask: question = ask.read()
    try: answer = eval(question)
    except Exception as e: answer = repr(e)
    with open("/tmp/answer", "w") as out: out.write(f"{answer}\n")
"#;

async fn ask(api: &Api, id: &SandboxId, question: &str) -> String {
    api.sh(id, &format!("echo '{question}' > /tmp/ask; cat /tmp/answer")).await
}

async fn branches(api: &Api, source: &SandboxId, count: u32) -> Vec<SandboxId> {
    let fork = api.client.fork(source, &fork_of(count)).await.unwrap();
    let branches = fork.branches.into_iter().map(|branch| match branch {
        Branch::Sandbox(sandbox) => sandbox.id,
        Branch::Error(error) => panic!("{error:?}"),
    });
    branches.collect()
}

/// What each of them answers.
async fn each(api: &Api, all: &[SandboxId], question: &str) -> Vec<String> {
    let mut answers = Vec::new();
    for id in all {
        answers.push(ask(api, id, question).await);
    }
    answers
}

fn all_differ(answers: &[String]) -> bool {
    answers.iter().collect::<std::collections::BTreeSet<_>>().len() == answers.len()
}

#[tokio::test]
async fn chance_of_the_kernel_differs_and_that_of_a_program_does_not_until_it_is_told() {
    let api = Api::shared();
    let source = api.create().await.id;
    api.background(&source, python(ORACLE)).await;
    // Programs are told by what is in the hook directory.
    let hook = "mkdir -p /etc/remuda/hooks.d; cd /etc/remuda/hooks.d\n\
                printf '#!/bin/sh\\nkill -USR1 $(cat /workspace/oracle.pid)\\n' > 10-reseed; chmod 755 10-reseed";
    let without = branches(&api, &source, 2).await;
    assert!(all_differ(&each(&api, &without, "os.getrandom(16).hex()").await), "the kernel's own differs");
    let first = each(&api, &without, "random.random()").await;
    assert_eq!(first[0], first[1], "a generator in a program's memory is copied with it");
    api.root(&source, hook).await;
    let told = branches(&api, &source, 2).await;
    let mut all = each(&api, &told, "random.random()").await;
    all.extend(first.into_iter().take(1));
    assert!(all_differ(&all), "{all:?}");
    for id in [without, told].concat().iter().chain([&source]) {
        api.remove(id).await;
    }
}

#[tokio::test]
async fn secrets_and_locks_are_copied_and_each_copy_has_its_own() {
    let api = Api::shared();
    let source = api.create().await.id;
    api.background(&source, python(ORACLE)).await;
    let copies = branches(&api, &source, 2).await;
    let tokens = each(&api, &copies, "token").await;
    assert_eq!(tokens, [ask(&api, &source, "token").await, tokens[0].clone()], "what was made once is the same in all");
    let pids = each(&api, &copies, "os.getpid()").await;
    assert_eq!(pids[0], pids[1]);
    // A lock is held in each copy by the copy's own process, and let go there alone.
    let try_lock = "flock -n /workspace/lock true && echo free || echo held";
    for id in copies.iter().chain([&source]) {
        assert_eq!(api.sh(id, try_lock).await, "held", "{id}");
    }
    ask(&api, &copies[0], "fcntl.flock(lock, fcntl.LOCK_UN)").await;
    assert_eq!(api.sh(&copies[0], try_lock).await, "free");
    for id in [&copies[1], &source] {
        assert_eq!(api.sh(id, try_lock).await, "held", "{id}");
    }
    for id in copies.iter().chain([&source]) {
        api.remove(id).await;
    }
}

#[tokio::test]
async fn a_copy_that_was_stored_finds_both_clocks_moved_on_and_its_timers_due() {
    let api = Api::shared();
    let source = api.create().await.id;
    api.background(&source, python(ORACLE)).await;
    let sleeper = "import time\nbegun = time.monotonic()\nprint('up', flush=True)\ntime.sleep(4)\n\
                   print(time.monotonic() - begun >= 4, flush=True)";
    let (sleeping, _) = api.background(&source, python(sleeper)).await;
    let clocks = ask(&api, &source, "[time.time(), time.monotonic()]").await;
    let snapshot = api.client.snapshot(&source, &CreateSnapshot::default()).await.unwrap();
    api.ended(&source, &sleeping).await;
    let copy = api.client.restore(snapshot.id.as_str(), &RestoreSnapshot::default()).await.unwrap().id;
    let carried = api.client.executions(&copy).await.unwrap();
    let carried = carried.iter().find(|e| e.origin.as_ref() == Some(&sleeping)).unwrap().id.clone();
    assert_eq!(api.ended(&copy, &carried).await.exit_code, Some(0));
    let page = api.client.output(&copy, &carried, &OutputQuery::default()).await.unwrap();
    let text: String = page.records.iter().map(|record| record.text.as_str()).collect();
    assert_eq!(text, "up\nTrue\n", "it slept no less than it wanted");
    let passed = format!("[now - then >= 4 for now, then in zip([time.time(), time.monotonic()], {clocks})]");
    assert_eq!(ask(&api, &copy, &passed).await, "[True, True]", "stored time counts on both clocks");
    for id in [&copy, &source] {
        api.remove(id).await;
    }
}

#[tokio::test]
async fn a_connection_to_the_outside_ends_in_the_source_and_in_each_copy() {
    let api = Api::shared();
    let source = api.create().await.id;
    let program = "import os, socket\n\
        server = socket.create_server(('0.0.0.0', 8080))\n\
        print('up', flush=True)\n\
        kept, _ = server.accept()\n\
        print('accepted', flush=True)\n\
        def read():\n    \
            try: return kept.recv(1 << 16)\n    \
            except OSError as e: return type(e).__name__\n\
        while read() not in (b'', 'ConnectionResetError', 'TimeoutError', 'OSError'): pass\n\
        print('ended', flush=True)\n";
    let (serving, _) = api.background(&source, python(program)).await;
    let (client, id) = (api.client.clone(), source.clone());
    let asking = tokio::spawn(async move {
        client.port_request(&id, 8080, remuda_client::Method::GET, "/", Default::default(), "").await.map(drop)
    });
    let accepted = OutputQuery { offset: 3, wait: PATIENCE, ..OutputQuery::default() };
    api.client.output(&source, &serving, &accepted).await.unwrap();
    let copy = branches(&api, &source, 1).await.remove(0);
    let carried = api.client.executions(&copy).await.unwrap();
    let carried = carried.iter().find(|e| e.origin.as_ref() == Some(&serving)).unwrap().id.clone();
    for (id, execution) in [(&source, &serving), (&copy, &carried)] {
        let ended = api.ended(id, execution).await;
        assert_eq!((ended.state, ended.exit_code), (ExecutionState::Exited, Some(0)), "{ended:?}");
    }
    assert!(tokio::time::timeout(PATIENCE, asking).await.unwrap().unwrap().is_err(), "the caller is told as well");
    for id in [&copy, &source] {
        api.remove(id).await;
    }
}

#[tokio::test]
async fn hooks_are_run_in_every_copy_in_order_as_their_owners_and_one_that_fails_is_told() {
    let api = Api::own();
    let source = api.create().await.id;
    let hooks = "mkdir -p /etc/remuda/hooks.d; cd /etc/remuda/hooks.d\n\
        printf '#!/bin/sh\\numask 0; echo first $(id -un) $REMUDA_SANDBOX $REMUDA_SOURCE >> /workspace/told\\n' > 10-first\n\
        printf '#!/bin/sh\\necho second $(id -un) >> /workspace/told; exit 5\\n' > 20-second\n\
        printf '#!/bin/sh\\necho no >> /workspace/told\\n' > 30-loose; printf 'no program' > README\n\
        chmod 755 10-first 20-second; chmod 777 30-loose; chown user 20-second; chmod 777 /workspace";
    api.root(&source, hooks).await;
    let begun = api.client.events(0).await.unwrap().newest;
    let copy = branches(&api, &source, 1).await.remove(0);
    let files = CreateSnapshot { mode: Some(SnapshotMode::Filesystem), ..CreateSnapshot::default() };
    let files = api.client.snapshot(&source, &files).await.unwrap();
    let restored = api.client.restore(files.id.as_str(), &RestoreSnapshot::default()).await.unwrap().id;
    for id in [&copy, &restored] {
        assert_eq!(api.sh(id, "cat told").await, format!("first root {id} {source}\nsecond user"));
        let ran = api.client.executions(id).await.unwrap();
        let codes: Vec<_> = ran.iter().filter(|e| e.command[0].contains("hooks.d")).map(|e| e.exit_code).collect();
        assert_eq!(codes, [Some(0), Some(5)], "each is an execution like any other");
    }
    let mut stream = api.client.follow_events(begun).await.unwrap();
    let mut told = Vec::new();
    while told.len() < 4 {
        let next = tokio::time::timeout(PATIENCE, stream.next()).await.expect("they are not told").unwrap().unwrap();
        let Told::Event(event) = next else { panic!("{next:?}") };
        if event.kind == "sandbox.hook_failed" {
            told.push((event.about.sandbox.unwrap(), event.about.reason.unwrap()));
        }
    }
    for id in [&copy, &restored] {
        let of: Vec<_> = told.iter().filter(|(about, _)| about == id).map(|(_, reason)| reason.clone()).collect();
        assert_eq!(of.len(), 2, "{told:?}");
        assert!(of.iter().any(|reason| reason.contains("30-loose is not run: others may write to it")), "{of:?}");
        assert!(of.iter().any(|reason| reason.contains("20-second ended as exited with 5")), "{of:?}");
    }
    // A source is no copy, nor is what goes on with its files.
    api.client.stop(&source).await.unwrap();
    let next = api.client.start(&source, &Default::default()).await.unwrap().id;
    assert_eq!(api.sh(&next, "ls told 2>&1 || true").await, "ls: cannot access 'told': No such file or directory");
}
