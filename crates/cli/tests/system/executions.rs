//! `exec`, `ps`, `logs`: exit codes, streams, signals.

use std::io::Read;
use std::process::Stdio;

use rustix::process::Signal;

use crate::world::{Server, end, read_line, text};

#[test]
fn exit_codes_and_streams_are_the_commands_own() {
    let server = Server::start();
    let id = server.create();
    let answer = server.run(&["exec", &id, "-c", "echo out; echo err >&2; exit 7"]);
    assert_eq!((answer.code, text(&answer.stdout).as_str(), answer.stderr.as_str()), (7, "out\n", "err\n"));
    assert_eq!(server.run(&["exec", &id, "--", "id", "-un"]).line(), "user");
    assert_eq!(server.run(&["exec", &id, "-u", "root", "-w", "/", "--", "sh", "-c", "id -un; pwd"]).line(), "root\n/");
    assert_eq!(server.run(&["exec", &id, "-e", "A=b c", "-c", "echo \"$A\""]).line(), "b c");
    // Not UTF-8, and longer than one page of output.
    let count = 3_000_000;
    let script = format!("import sys\nsys.stdout.buffer.write(bytes(i % 251 for i in range({count})))");
    let answer = server.run(&["exec", &id, "--", "python3", "-c", &script]);
    assert_eq!(answer.code, 0);
    assert!(answer.stdout == (0..count).map(|i| (i % 251) as u8).collect::<Vec<_>>(), "bytes were changed");
    let late = server.run(&["exec", &id, "--timeout", "500ms", "-c", "echo early; sleep 60"]);
    assert_eq!((late.code, text(&late.stdout).as_str()), (124, "early\n"));
    server.run(&["exec", &id, "--", "no-such-program"]).failed(1, "spawn_failed");
    let json = server.run(&["exec", "--json", &id, "-c", "echo out; exit 3"]);
    assert_eq!((json.code, json.json()["stdout"].as_str()), (3, Some("out\n")));
}

#[test]
fn output_is_shown_while_the_command_runs_and_ctrl_c_ends_it() {
    let server = Server::start();
    let id = server.create();
    let script = "trap 'echo interrupted; exit 9' INT; echo ready; while :; do sleep 0.1; done";
    let mut process = server.command(&["exec", &id, "-c", script]).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdout = process.stdout.take().unwrap();
    assert_eq!(read_line(&mut stdout), "ready\n", "before the command has ended");
    assert_eq!(end(&mut process, Signal::INT), 9);
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "interrupted\n");
}

#[test]
fn a_detached_command_can_be_found_and_followed() {
    let server = Server::start();
    let id = server.create();
    let execution = server.run(&["exec", "-d", &id, "-c", "echo one; sleep 0.5; echo two; exit 4"]).line();
    assert!(execution.starts_with("exec-"), "{execution}");
    assert_eq!(server.run(&["logs", "-f", &id, &execution]).line(), "one\ntwo");
    assert_eq!(server.run(&["logs", &id, &execution]).line(), "one\ntwo");
    let list = server.run(&["ps", "--json", &id]).json();
    assert_eq!(list["executions"][0]["exit_code"], 4);
    assert!(server.run(&["ps", &id]).line().contains(&execution));
}

#[test]
fn a_detached_command_can_be_cancelled_or_signalled() {
    let server = Server::start();
    let id = server.create();
    let start = |script: &str| {
        let execution = server.run(&["exec", "-d", &id, "-c", script]).line();
        let mut followed = server.command(&["logs", "-f", &id, &execution]).stdout(Stdio::piped()).spawn().unwrap();
        assert_eq!(read_line(followed.stdout.as_mut().unwrap()), "ready\n");
        (execution, followed)
    };
    let (trapping, mut followed) = start("trap 'exit 5' USR1; echo ready; while :; do sleep 0.05; done");
    let told = server.run(&["cancel", &id, &trapping, "--signal", "SIGUSR1"]).line();
    assert_eq!(told, format!("{trapping} got signal 10"));
    followed.wait().unwrap();
    server.run(&["cancel", &id, &trapping, "-s", "10"]).failed(1, "execution_not_running");
    assert_eq!(server.run(&["cancel", &id, &trapping]).line(), format!("{trapping} had ended before: exited"));

    let sleeping = "echo ready; sleep 600 & sleep 600";
    let ((first, mut one), (second, mut two)) = (start(sleeping), start(sleeping));
    let told = server.run(&["cancel", &id, &first, &second, "--key", "both"]).line();
    assert_eq!(told, format!("{first} cancelled\n{second} cancelled"));
    one.wait().unwrap();
    two.wait().unwrap();
    let json = server.run(&["cancel", "--json", &id, &first]).json();
    assert_eq!((&json[0]["state"], &json[0]["exit_code"]), (&"cancelled".into(), &137.into()));
    assert_eq!(server.run(&["exec", &id, "-c", "pgrep -x sleep || true"]).line(), "", "the whole group has ended");

    let absent = "exec-aaaaaaaaaaaaaaaaaaaa";
    let (third, mut three) = start(sleeping);
    let some = server.run(&["cancel", &id, absent, &third]);
    some.failed(1, "execution_not_found");
    assert_eq!(text(&some.stdout), format!("{third} cancelled\n"), "one does not keep the others");
    three.wait().unwrap();
}
