//! Terminals, and standard input in pieces, over the API: across a fork, a capture and a killed server.

use remuda_client::wire::{Branch, CreateSnapshot, StartExecution, TerminalSize};
use remuda_client::{InputPiece, OutputQuery};
use remuda_types::{ErrorCode, ExecutionId, SandboxId};

use crate::api::{Api, PATIENCE, detached, exited, fork_of, refused};
use crate::restart::Place;

fn shell() -> StartExecution {
    let argv = ["sh", "-i"].map(str::to_owned).to_vec();
    let env = [("PS1".to_owned(), "> ".to_owned())].into();
    StartExecution {
        argv: Some(argv),
        env,
        pty: Some(TerminalSize { cols: 90, rows: 30 }),
        ..StartExecution::default()
    }
}

/// Whoever types, and how far they are.
struct Typist<'a> {
    api: &'a Api,
    sandbox: &'a SandboxId,
    execution: ExecutionId,
    typed: u64,
    offset: u64,
}

impl Typist<'_> {
    async fn types(&mut self, text: &str) {
        let piece = InputPiece { offset: self.typed, bytes: text.to_owned().into(), ..InputPiece::default() };
        let taken = self.api.client.write_input(self.sandbox, &self.execution, &piece).await.unwrap();
        self.typed += text.len() as u64;
        assert_eq!((taken.taken, taken.closed), (self.typed, false));
    }

    /// Reads on until something is said.
    async fn sees(&mut self, what: &str) -> String {
        let mut seen = String::new();
        while !seen.contains(what) {
            let query = OutputQuery { offset: self.offset, wait: PATIENCE, ..OutputQuery::default() };
            let page = self.api.client.output(self.sandbox, &self.execution, &query).await.unwrap();
            assert!(!page.records.is_empty(), "{what:?} does not come, only {seen:?}");
            seen.extend(page.records.iter().map(|record| record.text.as_str()));
            self.offset = page.next_offset;
        }
        seen
    }
}

#[tokio::test]
async fn a_shell_on_a_terminal_goes_on_in_its_source_and_in_each_branch() {
    let api = Api::shared();
    let sandbox = api.create().await;
    let id = &sandbox.id;
    let started = api.client.execute(id, &shell()).await.unwrap();
    assert!(started.stdin_open && started.pty == Some(TerminalSize { cols: 90, rows: 30 }), "{started:?}");
    let mut source = Typist { api: &api, sandbox: id, execution: started.id.clone(), typed: 0, offset: 0 };
    source.types("stty size; echo $TERM $(tty); mark=kept\n").await;
    source.sees("30 90\r\nxterm-256color /dev/pts/0\r\n").await;
    let size = TerminalSize { cols: 120, rows: 40 };
    let resized = api.client.resize(id, &started.id, size).await.unwrap();
    assert_eq!(resized.pty, Some(size));
    source.types("stty size; cat\n").await;
    source.sees("40 120\r\n").await;
    // Something is in the foreground, and half a line is typed, when it is captured and forked.
    source.types("half ").await;
    source.sees("half ").await;
    api.client.snapshot(id, &CreateSnapshot::default()).await.unwrap();
    let fork = api.client.fork(id, &fork_of(2)).await.unwrap();
    let branches: Vec<_> = fork
        .branches
        .iter()
        .map(|branch| match branch {
            Branch::Sandbox(sandbox) => sandbox.id.clone(),
            Branch::Error(error) => panic!("{error:?}"),
        })
        .collect();
    let (typed, offset) = (source.typed, source.offset);
    for (n, sandbox) in [id, &branches[0], &branches[1]].into_iter().enumerate() {
        let of = api.client.executions(sandbox).await.unwrap();
        let execution = of.iter().find(|e| e.id == started.id || e.origin.as_ref() == Some(&started.id)).unwrap();
        assert_eq!((execution.pty, execution.stdin_open), (Some(size), true));
        let mut own = Typist { api: &api, sandbox, execution: execution.id.clone(), typed, offset };
        // What is typed already is not typed again.
        own.typed -= 5;
        own.types(&format!("half of {n}\n")).await;
        own.sees(&format!("\r\nhalf of {n}\r\n")).await;
        own.types("\x03").await;
        own.sees("> ").await;
        own.types(&format!("echo $mark-{n}\n")).await;
        own.sees(&format!("kept-{n}\r\n")).await;
        let smaller = TerminalSize { cols: 40 + n as u16, rows: 20 };
        api.client.resize(sandbox, &execution.id, smaller).await.unwrap();
        own.types("stty size; exit 7\n").await;
        own.sees(&format!("20 4{n}\r\n")).await;
        exited(&api.ended(sandbox, &execution.id).await, 7);
        let piece = InputPiece { offset: own.typed, bytes: "x".into(), ..InputPiece::default() };
        refused(api.client.write_input(sandbox, &execution.id, &piece).await, ErrorCode::ExecutionNotRunning);
        refused(api.client.resize(sandbox, &execution.id, size).await, ErrorCode::ExecutionNotRunning);
    }
    for sandbox in [id, &branches[0], &branches[1]] {
        api.remove(sandbox).await;
    }
}

#[tokio::test]
async fn what_makes_no_sense_is_refused_and_takes_nothing() {
    let api = Api::shared();
    let sandbox = api.create().await;
    let id = &sandbox.id;
    let none = TerminalSize { cols: 0, rows: 24 };
    let request = StartExecution { pty: Some(none), ..detached("true") };
    refused(api.client.execute(id, &request).await, ErrorCode::InvalidRequest);
    let request = StartExecution { stdin_open: true, stdin: Some("x".into()), ..detached("cat") };
    refused(api.client.execute(id, &request).await, ErrorCode::InvalidRequest);
    let open = api.client.execute(id, &StartExecution { stdin_open: true, ..detached("cat") }).await.unwrap().id;
    refused(api.client.resize(id, &open, TerminalSize { cols: 1, rows: 1 }).await, ErrorCode::InvalidRequest);
    let piece = |offset, bytes: &'static str| InputPiece { offset, bytes: bytes.into(), ..InputPiece::default() };
    let error = refused(api.client.write_input(id, &open, &piece(3, "d")).await, ErrorCode::InputGap);
    assert_eq!(error.details["taken"], 0);
    let long = InputPiece { writer: "w".repeat(65), ..piece(0, "x") };
    refused(api.client.write_input(id, &open, &long).await, ErrorCode::InvalidRequest);
    refused(api.client.write_input(id, &open, &piece(u64::MAX, "x")).await, ErrorCode::InvalidRequest);
    let shut = api.client.execute(id, &detached("sleep 600")).await.unwrap().id;
    refused(api.client.write_input(id, &shut, &piece(0, "x")).await, ErrorCode::InvalidRequest);
    let path = format!("/v1/sandboxes/{id}/executions/{open}/stdin?offset=0");
    let (status, told) = api.raw("POST", &path, "Idempotency-Key: one\r\n", "x");
    assert_eq!((status, &told["error"]["code"]), (400, &"idempotency_key_unsupported".into()));
    api.client.pause(id).await.unwrap();
    refused(api.client.write_input(id, &open, &piece(0, "x")).await, ErrorCode::WrongState);
    api.client.resume(id).await.unwrap();
    let last = InputPiece { close: true, ..piece(0, "all") };
    assert!(api.client.write_input(id, &open, &last).await.unwrap().closed);
    let ended = api.ended(id, &open).await;
    exited(&ended, 0);
    assert_eq!(ended.output_bytes, 3);
    api.remove(id).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn input_that_is_sent_again_to_another_server_is_taken_once() {
    let place = Place::new();
    let mut api = place.start();
    let sandbox = api.create().await;
    let id = &sandbox.id;
    let request = StartExecution { stdin_open: true, ..detached("sha256sum; sleep 600") };
    let execution = api.client.execute(id, &request).await.unwrap().id;
    let all: Vec<u8> = (0..1_000_000u32).map(|n| (n % 251) as u8).collect();
    for (n, chunk) in all.chunks(250_000).enumerate() {
        let piece = InputPiece {
            offset: n as u64 * 250_000,
            bytes: chunk.to_vec().into(),
            close: n == 3,
            ..InputPiece::default()
        };
        let first = api.client.write_input(id, &execution, &piece).await.unwrap();
        // As if that answer had been lost.
        api = place.restart(api);
        let again = api.client.write_input(id, &execution, &piece).await.unwrap();
        assert_eq!((again.taken, again.closed), (first.taken, first.closed));
    }
    let query = OutputQuery { wait: PATIENCE, ..OutputQuery::default() };
    let page = api.client.output(id, &execution, &query).await.unwrap();
    let digest = sha256(&all);
    assert!(page.records[0].text.starts_with(&digest), "{page:?}");
    api.remove(id).await;
}

fn sha256(bytes: &[u8]) -> String {
    use sha2::Digest;
    sha2::Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}
