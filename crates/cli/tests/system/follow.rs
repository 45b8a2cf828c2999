//! Executions followed by server-sent events: cut anywhere and gone on with, nothing is missing and nothing comes twice.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use remuda_client::wire::{Branch, CreateSnapshot, Execution};
use remuda_types::{ExecutionId, ExecutionState, SandboxId};
use serde_json::Value;

use crate::api::{Api, PATIENCE, detached, exited, fork_of, python};
use crate::restart::Place;

/// A reader that keeps what it has seen whole, as a browser does.
#[derive(Default, Clone)]
struct Seen {
    last: Option<String>,
    bytes: Vec<u8>,
    missed: u64,
    ended: Option<Execution>,
}

impl Seen {
    /// Opens the stream where this reader stands. HTTP/1.0, so that the body comes as it is.
    fn open(&self, api: &Api, id: &SandboxId, execution: &ExecutionId) -> BufReader<UnixStream> {
        let mut socket = UnixStream::connect(api.server.data_dir.join("remuda.sock")).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let last = self.last.iter().map(|id| format!("Last-Event-ID: {id}\r\n")).collect::<String>();
        let path = format!("/v1/sandboxes/{id}/executions/{execution}/events");
        write!(socket, "GET {path} HTTP/1.0\r\nHost: localhost\r\nAccept: text/event-stream\r\n{last}\r\n").unwrap();
        let mut reader = BufReader::new(socket);
        let mut line = String::new();
        while line != "\r\n" {
            line.clear();
            assert!(reader.read_line(&mut line).unwrap() > 0, "no head");
            assert!(!line.starts_with("HTTP/") || line.contains(" 200 ") || line.contains(" 204 "), "{line}");
        }
        reader
    }

    /// Takes in whole events; what was cut off is forgotten.
    fn take(&mut self, text: &str) {
        for event in text.split_inclusive("\n\n").filter(|event| event.ends_with("\n\n")) {
            let member = |name: &str| event.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
            let (Some(id), Some(kind), Some(data)) = (member("id: "), member("event: "), member("data: ")) else {
                assert!(event.starts_with(':'), "{event}");
                continue;
            };
            let data: Value = serde_json::from_str(&data).unwrap();
            match kind.as_str() {
                "output" => {
                    assert_eq!(data["offset"], self.bytes.len() as u64 + self.missed, "a gap, or twice");
                    match (data["text"].as_str(), data["base64"].as_str()) {
                        (Some(text), None) => self.bytes.extend_from_slice(text.as_bytes()),
                        (None, Some(encoded)) => self.bytes.extend(BASE64.decode(encoded).unwrap()),
                        other => panic!("{other:?}"),
                    }
                }
                "gap" => self.missed += data["missed"].as_u64().unwrap(),
                "state" => {
                    let execution: Execution = serde_json::from_value(data).unwrap();
                    if id.ends_with("-ended") {
                        assert!(execution.state.is_final());
                        self.ended = Some(execution);
                    }
                }
                other => panic!("{other}"),
            }
            self.last = Some(id);
        }
    }

    /// Reads to the end of the stream.
    fn rest(&mut self, mut from: BufReader<UnixStream>) {
        let mut text = String::new();
        from.read_to_string(&mut text).unwrap();
        self.take(&text);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_is_cut_after_any_byte_goes_on_without_a_gap() {
    let api = Api::shared();
    let sandbox = api.create().await;
    let id = &sandbox.id;
    let script = "i=0; while [ $i -lt 60 ]; do echo line $i; echo err $i >&2; printf 'é\\000\\377\\n\\n'; i=$((i+1)); done; exit 5";
    let execution = api.client.execute(id, &detached(script)).await.unwrap().id;
    let ended = api.ended(id, &execution).await;
    exited(&ended, 5);
    let expected: Vec<u8> = {
        let mut whole = Seen::default();
        whole.rest(whole.open(&api, id, &execution));
        assert_eq!(whole.ended.as_ref().map(|e| (e.state, e.exit_code)), Some((ExecutionState::Exited, Some(5))));
        whole.bytes
    };
    assert_eq!(expected.len() as u64, ended.output_bytes);
    let all = expected.iter().filter(|byte| **byte == 0xff).count();
    assert_eq!(all, 60);
    let mut n = 1;
    loop {
        let mut seen = Seen::default();
        let mut text = Vec::new();
        seen.open(&api, id, &execution).take(n).read_to_end(&mut text).unwrap();
        let cut = text.len() as u64 == n;
        seen.take(&String::from_utf8_lossy(&text));
        if seen.ended.is_none() {
            seen.rest(seen.open(&api, id, &execution));
        }
        assert!(seen.bytes == expected, "cut after {n} bytes: {} of {}", seen.bytes.len(), expected.len());
        if !cut {
            // Whoever has seen the end is not told it again, so that a browser does not come back for ever.
            let mut again = seen.clone();
            again.ended = None;
            again.rest(again.open(&api, id, &execution));
            assert!(again.ended.is_none());
            break;
        }
        n += 61;
    }
    api.remove(id).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_goes_on_across_a_capture_a_fork_and_a_killed_server() {
    let place = Place::new();
    let mut api = place.start();
    let sandbox = api.create().await;
    let id = &sandbox.id;
    let script = "i=0; while [ ! -e /tmp/over ]; do echo line $i; i=$((i+1)); sleep 0.002; done; echo last";
    let execution = api.client.execute(id, &detached(script)).await.unwrap().id;
    let mut seen = Seen::default();
    let mut from = seen.open(&api, id, &execution);
    let read_some = |seen: &mut Seen, from: &mut BufReader<UnixStream>| {
        let (mut text, begun) = (String::new(), seen.bytes.len());
        while seen.bytes.len() < begun + 400 {
            text.clear();
            while !text.ends_with("\n\n") {
                assert!(from.read_line(&mut text).unwrap() > 0, "the stream broke");
            }
            seen.take(&text);
        }
    };
    read_some(&mut seen, &mut from);
    // Neither breaks it.
    api.client.snapshot(id, &CreateSnapshot::default()).await.unwrap();
    read_some(&mut seen, &mut from);
    api.client.fork(id, &fork_of(1)).await.unwrap();
    read_some(&mut seen, &mut from);
    for _ in 0..3 {
        api = place.restart(api);
        // Whatever was on its way is gone with the connection.
        from = seen.open(&api, id, &execution);
        read_some(&mut seen, &mut from);
    }
    api.sh(id, "touch /tmp/over").await;
    seen.rest(from);
    let text = String::from_utf8(seen.bytes).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let (last, counted) = lines.split_last().unwrap();
    assert_eq!(*last, "last");
    for (n, line) in counted.iter().enumerate() {
        assert_eq!(*line, format!("line {n}"));
    }
    let ended = seen.ended.expect("its end is told");
    assert_eq!((ended.state, ended.output_bytes), (ExecutionState::Exited, text.len() as u64));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_million_lines_that_are_forked_in_their_middle_are_complete_on_both_sides() {
    let api = Api::shared();
    let sandbox = api.create().await;
    let id = &sandbox.id;
    // As `seq 1 1000000`, and slow enough that nobody misses its middle.
    let counting = "import sys,time\nfor n in range(0, 1000000, 2000):\n  \
                    sys.stdout.write(''.join(f'{i}\\n' for i in range(n + 1, n + 2001)))\n  sys.stdout.flush()\n  \
                    time.sleep(0.01)";
    let (execution, _) = api.background(id, python(counting)).await;
    let fork = api.client.fork(id, &fork_of(1)).await.unwrap();
    let at_fork = api.client.execution(id, &execution, std::time::Duration::ZERO).await.unwrap();
    assert!(!at_fork.state.is_final(), "it was over before it was forked");
    let Branch::Sandbox(branch) = &fork.branches[0] else { panic!("{fork:?}") };
    let copy = api.client.executions(&branch.id).await.unwrap().remove(0);
    assert_eq!(copy.origin.as_ref(), Some(&execution));
    let expected: String = (1..=1_000_000).map(|n| format!("{n}\n")).collect();
    for (sandbox, execution) in [(id, &execution), (&branch.id, &copy.id)] {
        let mut seen = Seen::default();
        seen.rest(seen.open(&api, sandbox, execution));
        exited(&seen.ended.unwrap(), 0);
        assert!(seen.bytes == expected.as_bytes(), "{} of {} bytes", seen.bytes.len(), expected.len());
        assert_eq!(seen.missed, 0);
    }
    api.remove(&branch.id).await;
    api.remove(id).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_waits_for_who_reads_it_and_for_none_who_stands_still() {
    let api = Api::shared();
    let sandbox = api.create().await;
    let id = &sandbox.id;
    // More than is kept, as fast as it goes.
    let printing = "import os\npiece = (b'x' * 127 + b'\\n') * 2048\nfor _ in range(88): os.write(1, piece)";
    let execution = api.client.execute(id, &python(printing)).await.unwrap().id;
    let mut seen = Seen::default();
    seen.rest(seen.open(&api, id, &execution));
    assert_eq!((seen.missed, seen.bytes.len()), (0, 88 * 2048 * 128));
    exited(&seen.ended.unwrap(), 0);
    // One who opens the stream and reads nothing holds it up for a while, and not for ever.
    let execution = api.client.execute(id, &python(printing)).await.unwrap().id;
    let standing = Seen::default().open(&api, id, &execution);
    exited(&api.ended(id, &execution).await, 0);
    let mut late = Seen::default();
    late.rest(standing);
    assert!(late.missed > 0, "it stood still, and nothing was dropped");
    assert_eq!(late.bytes.len() as u64 + late.missed, 88 * 2048 * 128);
    api.remove(id).await;
}
