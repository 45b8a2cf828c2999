//! Executions through the API: streams, codes, signals, limits, input, and what is left running behind them.

use std::time::Duration;

use bytes::BytesMut;
use remuda_client::OutputQuery;
use remuda_client::wire::{Branch, OnOutputLimit, OutputStream, StartExecution};
use remuda_types::{ErrorCode, ExecutionState};

use crate::api::{Api, PATIENCE, detached, exited, fork_of, refused, script_of};
use crate::world::{Answer, Server};

#[tokio::test]
async fn streams_codes_and_signals_are_told_apart() {
    let api = Api::shared();
    let sandbox = api.create().await;
    let id = &sandbox.id;
    let both = api.run(id, "echo out; echo err >&2; printf more; exit 7").await;
    exited(&both, 7);
    assert_eq!((both.stdout.as_deref(), both.stderr.as_deref()), (Some("out\nmore"), Some("err\n")));
    assert_eq!((both.output_bytes, both.output_truncated), (12, false));
    for (script, code) in
        [("exit 0", 0), ("exit 255", 255), ("kill -TERM $$", 143), ("kill -SEGV $$", 139), ("no-such", 127)]
    {
        exited(&api.run(id, script).await, code);
    }
    // One log over both streams, and each by itself.
    let read = async |stream| {
        let query = OutputQuery { stream, ..OutputQuery::default() };
        let page = api.client.output(id, &both.id, &query).await.unwrap();
        assert!(page.complete);
        page.records.iter().map(|record| record.text.clone()).collect::<String>()
    };
    assert_eq!(read(Some(OutputStream::Stdout)).await, "out\nmore");
    assert_eq!(read(Some(OutputStream::Stderr)).await, "err\n");
    assert_eq!(read(None).await.len(), 12);

    // A signal from outside reaches the whole group, and a trap is the program's own end.
    let (execution, _) =
        api.background(id, detached("trap 'echo caught; exit 5' USR1; echo ready; while :; do sleep 0.05; done")).await;
    api.client.signal(id, &execution, 10).await.unwrap();
    exited(&api.ended(id, &execution).await, 5);
    let error = refused(api.client.signal(id, &execution, 10).await, ErrorCode::ExecutionNotRunning);
    assert!(error.message.contains(execution.as_str()));
    refused(api.client.signal(id, &execution, 65).await, ErrorCode::InvalidRequest);
    api.remove(id).await;
}

#[tokio::test]
async fn a_time_out_and_a_cancel_keep_what_was_said_and_end_the_group() {
    let api = Api::shared();
    let sandbox = api.create().await;
    let id = &sandbox.id;
    let limited =
        StartExecution { timeout_ms: Some(700), ..script_of("echo partial; echo err >&2; sleep 600 & sleep 600") };
    let late = api.client.execute(id, &limited).await.unwrap();
    assert_eq!((late.state, late.exit_code), (ExecutionState::TimedOut, Some(124)), "{late:?}");
    assert_eq!((late.stdout.as_deref(), late.stderr.as_deref()), (Some("partial\n"), Some("err\n")));

    let (execution, _) = api.background(id, detached("echo partial; sleep 600 & sleep 600")).await;
    let cancelled = api.client.cancel(id, &execution).await.unwrap();
    assert_eq!((cancelled.state, cancelled.exit_code), (ExecutionState::Cancelled, Some(137)), "{cancelled:?}");
    let again = api.client.cancel(id, &execution).await.unwrap();
    assert_eq!(again, cancelled, "one that has ended is left as it is");
    // Nothing of either group runs on.
    api.sh(id, "while pgrep -x sleep > /dev/null; do read -t 0.05 x < /dev/null; done; true").await;
    // In time is in time.
    let in_time = StartExecution { timeout_ms: Some(60_000), ..script_of("echo done; exit 3") };
    exited(&api.client.execute(id, &in_time).await.unwrap(), 3);
    api.remove(id).await;
}

#[tokio::test]
async fn who_prints_more_than_it_may_is_killed_and_keeps_what_it_said_also_across_a_fork() {
    let api = Api::shared();
    let sandbox = api.create().await;
    let id = &sandbox.id;
    let limited = |limit, script: &str| StartExecution {
        output_limit: Some(limit),
        on_output_limit: Some(OnOutputLimit::Kill),
        ..script_of(script)
    };
    let flood = api.client.execute(id, &limited(100_000, "echo first; yes; echo never")).await.unwrap();
    assert_eq!((flood.state, flood.exit_code), (ExecutionState::Cancelled, Some(137)), "{flood:?}");
    assert!(flood.output_exceeded && flood.output_bytes > 100_000, "{flood:?}");
    assert!(flood.stdout.unwrap().starts_with("first\ny\ny\n"));
    let within = api.client.execute(id, &limited(6, "echo five5; exit 3")).await.unwrap();
    exited(&within, 3);
    assert!(!within.output_exceeded);
    // The count goes on in a branch: what was printed before the fork is part of it.
    let script = "head -c 60000 /dev/zero; echo; while [ ! -e /tmp/go ]; do sleep 0.02; done; head -c 60000 /dev/zero; sleep 600";
    let started = StartExecution { wait_ms: None, ..limited(100_000, script) };
    let (execution, _) = api.background(id, started).await;
    let fork = api.client.fork(id, &fork_of(1)).await.unwrap();
    let Branch::Sandbox(branch) = &fork.branches[0] else { panic!("{fork:?}") };
    let carried = api.client.executions(&branch.id).await.unwrap();
    let carried = carried.into_iter().find(|e| e.origin.as_ref() == Some(&execution)).unwrap();
    api.sh(&branch.id, "touch /tmp/go").await;
    let ended = api.ended(&branch.id, &carried.id).await;
    assert_eq!((ended.state, ended.output_exceeded), (ExecutionState::Cancelled, true), "{ended:?}");
    assert_eq!(api.client.execution(id, &execution, Duration::ZERO).await.unwrap().state, ExecutionState::Running);
    for bad in [
        StartExecution { output_limit: Some(5), ..script_of("true") },
        StartExecution { on_output_limit: Some(OnOutputLimit::Kill), ..script_of("true") },
        limited(0, "true"),
    ] {
        refused(api.client.execute(id, &bad).await, ErrorCode::InvalidRequest);
    }
    api.remove(&branch.id).await;
    api.remove(id).await;
}

#[tokio::test]
async fn a_login_shell_reads_what_it_should_and_only_where_it_was_asked_for() {
    let api = Api::shared();
    let sandbox = api.create().await;
    let id = &sandbox.id;
    api.sh(id, "echo 'export MINE=own WHERE=$HOME' > ~/.profile").await;
    let plain = "echo ${MINE-none} $LANG $USER; printenv profile";
    let run = async |login, script: &str| {
        let ended = api.client.execute(id, &StartExecution { login, ..script_of(script) }).await.unwrap();
        (ended.stdout.unwrap(), ended.stderr.unwrap(), ended.command)
    };
    assert_eq!(run(false, plain).await.0, "none C.UTF-8 user\n");
    let (out, _, command) = run(true, plain).await;
    assert_eq!((out.as_str(), command.as_slice()), ("own C.UTF-8 user\n", [plain.to_owned()].as_slice()));
    assert_eq!(run(true, "echo $WHERE").await.0, "/home/user\n");
    let (_, wrong, _) = run(true, "true\nno-such-program").await;
    assert!(wrong.contains("2:"), "the line is the script's own: {wrong}");
    let argv = StartExecution { login: true, argv: Some(vec!["true".into()]), ..StartExecution::default() };
    let error = refused(api.client.execute(id, &argv).await, ErrorCode::InvalidRequest);
    assert!(error.message.contains("login"), "{error:?}");
    api.remove(id).await;
}

#[tokio::test]
async fn what_is_left_in_the_background_holds_no_call() {
    let api = Api::shared();
    let sandbox = api.create().await;
    let id = &sandbox.id;
    for script in [
        "sleep 600 & echo $!",
        "nohup sleep 600 > /dev/null 2>&1 & echo $!",
        "setsid sleep 600 & echo $!",
        "(sleep 600; echo never) & echo $!",
    ] {
        let ended = api.run(id, script).await;
        exited(&ended, 0);
        let pid = ended.stdout.unwrap();
        // It runs on, and is found by a later call.
        api.sh(id, &format!("kill -0 {}", pid.trim())).await;
    }
    // What a child says in the short while after its parent's end is not lost.
    let ended = api.run(id, "(sleep 0.2; echo late) & echo early").await;
    exited(&ended, 0);
    assert_eq!(ended.stdout.as_deref(), Some("early\nlate\n"));
    api.remove(id).await;
}

#[tokio::test]
async fn input_reaches_a_program_whole_and_ends() {
    let api = Api::shared();
    let sandbox = api.create().await;
    let id = &sandbox.id;
    let argv = |argv: &[&str]| Some(argv.iter().map(ToString::to_string).collect::<Vec<_>>());
    let wait_ms = script_of("").wait_ms;
    let run = async |request: StartExecution| api.client.execute(id, &request).await.unwrap();
    let none = run(StartExecution { argv: argv(&["cat"]), wait_ms, ..Default::default() }).await;
    exited(&none, 0);
    assert_eq!(none.stdout.as_deref(), Some(""), "no input is an empty input");
    for text in ["", "a line\n", "\u{1F40E} no line end"] {
        let echoed = StartExecution { argv: argv(&["cat"]), stdin: Some(text.into()), wait_ms, ..Default::default() };
        assert_eq!(run(echoed).await.stdout.as_deref(), Some(text));
    }
    let large: String = (0..300_000).map(|n| format!("{n}\n")).collect();
    let count = StartExecution { stdin: Some(large.clone()), ..script_of("cksum; cat < /dev/null") };
    let sum = run(count).await.stdout.unwrap();
    assert!(sum.ends_with(&format!(" {}\n", large.len())), "{sum}");
    // The same as bytes, in base64.
    let bytes = |encoded: &str| StartExecution {
        argv: argv(&["od", "-An", "-tx1"]),
        stdin_base64: Some(encoded.into()),
        wait_ms,
        ..Default::default()
    };
    assert_eq!(run(bytes("AP/+")).await.stdout.as_deref(), Some(" 00 ff fe\n"));
    let both = StartExecution { stdin: Some("x".into()), ..bytes("AP/+") };
    for wrong in [bytes("AP/"), bytes("no base64"), both] {
        refused(api.client.execute(id, &wrong).await, ErrorCode::InvalidRequest);
    }
    let longer = StartExecution { stdin: Some("x".repeat((2 << 20) + 1)), ..script_of("cat") };
    let error = refused(api.client.execute(id, &longer).await, ErrorCode::TooLarge);
    assert_eq!(error.details["limit"], "stdin_bytes_max");
    // One that does not read all of it ends all the same.
    let head = StartExecution { argv: argv(&["head", "-n", "1"]), stdin: Some(large), wait_ms, ..Default::default() };
    assert_eq!(run(head).await.stdout.as_deref(), Some("0\n"));
    api.remove(id).await;
}

#[tokio::test]
async fn output_arrives_byte_for_byte() {
    let api = Api::shared();
    let sandbox = api.create().await;
    let id = &sandbox.id;
    const BYTES: usize = 5_000_000;
    let expected: Vec<u8> = (0..BYTES as u64).map(|n| ((n * 2_654_435_761) >> 7) as u8).collect();
    let program =
        format!("import sys\nsys.stdout.buffer.write(bytes(n * 2654435761 >> 7 & 255 for n in range({BYTES})))");
    let execution = api.client.execute(id, &crate::api::python(&program)).await.unwrap();
    // Read while it is written, piece by piece.
    let (mut got, mut offset) = (BytesMut::new(), 0);
    loop {
        let query = OutputQuery { since_ms: None, offset, wait: PATIENCE, stream: Some(OutputStream::Stdout) };
        let piece = api.client.output_bytes(id, &execution.id, &query).await.unwrap();
        assert_eq!(piece.skipped_bytes, 0);
        got.extend_from_slice(&piece.bytes);
        offset = piece.next_offset;
        if piece.complete {
            break;
        }
    }
    assert_eq!(got.len(), expected.len());
    assert!(got == expected, "bytes were changed");
    let ended = api.ended(id, &execution.id).await;
    assert_eq!((ended.output_bytes, ended.output_truncated), (BYTES as u64, false));

    let odd = api.run(id, r"printf 'a\000b\377\376c'").await;
    let query = OutputQuery { wait: Duration::ZERO, ..OutputQuery::default() };
    let raw = api.client.output_bytes(id, &odd.id, &query).await.unwrap();
    assert_eq!(&raw.bytes[..], b"a\0b\xff\xfec");
    assert_eq!(odd.stdout.as_deref(), Some("a\0b\u{FFFD}\u{FFFD}c"), "as text, what is none is marked");
    api.remove(id).await;
}

#[tokio::test]
async fn more_than_is_kept_is_cut_in_the_middle_and_said() {
    let api = Api::shared();
    let sandbox = api.create().await;
    let id = &sandbox.id;
    let ended = api.run(id, "head -c 20000000 /dev/zero; echo the end").await;
    exited(&ended, 0);
    assert!(ended.output_truncated, "{}", ended.output_bytes);
    assert_eq!(ended.output_bytes, 20_000_008);
    assert!(ended.stdout.unwrap().ends_with("the end\n"));
    let query = OutputQuery { offset: 8 << 20, ..OutputQuery::default() };
    let page = api.client.output_bytes(id, &ended.id, &query).await.unwrap();
    assert_eq!(page.skipped_bytes, 20_000_008 - (16 << 20));
    api.remove(id).await;
}

#[tokio::test]
async fn records_and_output_outlive_their_sandbox() {
    let api = Api::shared();
    let sandbox = api.create().await;
    let id = &sandbox.id;
    let done = api.run(id, "echo done; exit 3").await;
    let (running, _) = api.background(id, detached("echo before the end; sleep 600")).await;
    api.remove(id).await;
    let all = api.client.executions(id).await.unwrap();
    assert_eq!(
        all.iter().map(|e| (&e.id, e.state)).collect::<Vec<_>>(),
        [(&done.id, ExecutionState::Exited), (&running, ExecutionState::SandboxGone)]
    );
    for (execution, said) in [(&done.id, "done\n"), (&running, "before the end\n")] {
        let page = api.client.output(id, execution, &OutputQuery::default()).await.unwrap();
        assert!(page.complete);
        assert_eq!(page.records.iter().map(|record| record.text.as_str()).collect::<String>(), said);
    }
    let error = refused(api.client.execute(id, &script_of("true")).await, ErrorCode::GenerationGone);
    assert_eq!(error.details["reason"], "it was removed");
    refused(api.client.signal(id, &running, 9).await, ErrorCode::GenerationGone);
}

#[tokio::test]
async fn a_script_of_the_largest_size_runs() {
    let api = Api::shared();
    let sandbox = api.create().await;
    let id = &sandbox.id;
    let mut script = "echo begin\n".to_owned();
    while script.len() < (1 << 20) - 100 {
        script.push_str(": this line is here to be read and does nothing\n");
    }
    script.push_str("echo end; exit 9\n");
    let ended = api.run(id, &script).await;
    exited(&ended, 9);
    assert_eq!(ended.stdout.as_deref(), Some("begin\nend\n"));
    let larger = api.client.execute(id, &script_of(&" ".repeat((1 << 20) + 1))).await;
    let error = refused(larger, ErrorCode::TooLarge);
    assert_eq!(error.details["limit"], "command_bytes_max");
    api.remove(id).await;
}

#[tokio::test]
async fn what_cannot_be_started_is_refused_and_never_ran() {
    let api = Api::shared();
    let sandbox = api.create().await;
    let id = &sandbox.id;
    let argv = |argv: &[&str]| Some(argv.iter().map(ToString::to_string).collect::<Vec<_>>());
    let touch = || script_of("touch /tmp/ran");
    for (what, request, named) in [
        ("directory", StartExecution { cwd: Some("/no/such".into()), ..touch() }, "/no/such"),
        ("file as directory", StartExecution { cwd: Some("/etc/passwd".into()), ..touch() }, "/etc/passwd"),
        ("user", StartExecution { user: Some("nobody-here".into()), ..touch() }, "nobody-here"),
        ("program", StartExecution { argv: argv(&["no-such-program"]), ..Default::default() }, "no-such-program"),
        (
            "file that is no program",
            StartExecution { argv: argv(&["/etc/passwd"]), ..Default::default() },
            "/etc/passwd",
        ),
        ("directory as program", StartExecution { argv: argv(&["/etc"]), ..Default::default() }, "/etc"),
    ] {
        let error = refused(api.client.execute(id, &request).await, ErrorCode::SpawnFailed);
        assert!(error.message.contains(named), "{what}: {error:?}");
    }
    let all = api.client.executions(id).await.unwrap();
    assert_eq!(all.len(), 6);
    assert!(all.iter().all(|e| e.state == ExecutionState::NotStarted && e.exit_code.is_none()), "{all:?}");
    exited(&api.run(id, "test -e /tmp/ran").await, 1);
    // The environment is what the call says, and PATH, HOME and LANG.
    let env = [("A".to_owned(), "b c\n\"'$".to_owned()), ("HOME".to_owned(), "/tmp".to_owned())].into();
    let request =
        StartExecution { env, ..script_of("printf %s \"$A\"; cd; pwd; test -n \"$PATH\" && test -n \"$LANG\"") };
    assert_eq!(api.client.execute(id, &request).await.unwrap().stdout.as_deref(), Some("b c\n\"'$/tmp\n"));
    api.remove(id).await;
}

#[tokio::test]
async fn sixty_four_at_once_each_have_their_own_answer() {
    let api = Api::shared();
    let sandbox = api.create().await;
    let id = &sandbox.id;
    // All of them run at the same time: none goes on before the last has begun.
    let api = &api;
    let calls = (0..64).map(|n| {
        let script = format!("echo {n} > /tmp/n{n}; while [ ! -e /tmp/go ]; do sleep 0.2; done; echo {n}; exit {n}");
        async move { (n, api.run(id, &script).await) }
    });
    let opening = api.sh(id, "while [ $(ls /tmp | grep -c ^n) -lt 64 ]; do sleep 0.2; done; touch /tmp/go");
    let (answers, _) = tokio::join!(futures_util::future::join_all(calls), opening);
    for (n, answer) in answers {
        exited(&answer, n);
        assert_eq!(answer.stdout, Some(format!("{n}\n")));
    }
    // Beyond the limit is refused with figures, and room comes back.
    let started = futures_util::future::join_all(
        (0..129).map(|_| async { api.client.execute(id, &detached("sleep 600")).await }),
    )
    .await;
    let mut over = started.into_iter().filter(Result::is_err);
    let error = refused(over.next().unwrap(), ErrorCode::LimitReached);
    assert_eq!((error.details["limit"].as_str(), over.next().is_none()), (Some("executions_concurrent_max"), true));
    api.remove(id).await;
}

#[test]
fn a_command_whose_output_was_not_all_printed_is_no_success() {
    let server = Server::start();
    let id = server.create();
    let script = "head -c 60000000 /dev/zero | tr '\\0' x; touch /tmp/over";
    let mut slow = server.command(&["exec", &id, "-c", script]);
    slow.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let slow = slow.spawn().unwrap();
    // Nobody reads what it prints before the command is over, and so more comes than is kept.
    let over = server.run(&["exec", &id, "--", "sh", "-c", "while [ ! -e /tmp/over ]; do sleep 0.02; done"]);
    assert_eq!(over.code, 0, "{}", over.stderr);
    let answer = Answer::of(slow.wait_with_output().unwrap());
    answer.failed(1, "bytes of its output are missing above");
    answer.failed(1, "remuda cp");
    assert!(answer.stdout.len() < 60_000_000);
}
