//! `exec -i`: what is piped in reaches the command whole, or nothing runs; and without it nothing is read.

use std::io::Write;
use std::process::Stdio;

use crate::world::{Answer, Server, text};

/// Runs a command with these bytes piped in.
fn piped(server: &Server, args: &[&str], input: &[u8]) -> Answer {
    let mut command = server.command(args);
    let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (mut stdin, input) = (process.stdin.take().unwrap(), input.to_vec());
    // One that reads nothing breaks the pipe.
    let writing = std::thread::spawn(move || drop(stdin.write_all(&input)));
    let output = process.wait_with_output().unwrap();
    writing.join().unwrap();
    Answer::of(output)
}

#[test]
fn what_is_piped_in_reaches_the_command_with_i_and_only_then() {
    let server = Server::start();
    let id = server.create();
    let bytes: Vec<u8> = (0..2 << 20).map(|n: u32| (n.wrapping_mul(2_654_435_761) >> 9) as u8).collect();
    let quotes = vec![b'"'; 2 << 20];
    for input in [&b""[..], b"a line\n", b"\0\xff\xfe no text", &bytes, &quotes] {
        let answer = piped(&server, &["exec", "-i", &id, "cat"], input);
        assert_eq!((answer.code, answer.stderr.as_str()), (0, ""));
        assert!(answer.stdout == input, "{} bytes came back of {}", answer.stdout.len(), input.len());
    }
    let execution = piped(&server, &["exec", "-d", "--stdin", &id, "-c", "read line; echo \"got $line\""], b"it\n");
    assert_eq!(server.run(&["logs", "-f", &id, &execution.line()]).line(), "got it");
    let json = piped(&server, &["exec", "-i", "--json", &id, "wc", "-c"], b"12345").json();
    assert_eq!(json["stdout"], "5\n");

    for args in [&["exec", &id, "cat"][..], &["exec", &id, "--", "cat"]] {
        let answer = piped(&server, args, b"not asked for");
        assert_eq!((answer.code, text(&answer.stdout).as_str()), (0, ""), "its input is empty");
    }

    let before = server.run(&["ps", "--json", &id]).json();
    piped(&server, &["exec", "-i", &id, "cat"], &vec![b'x'; (2 << 20) + 1]).failed(2, "larger than 2 MiB");
    assert_eq!(server.run(&["ps", "--json", &id]).json(), before, "nothing was started");
}

#[test]
fn a_program_needs_no_dashes_before_it_and_keeps_its_own_options() {
    let server = Server::start();
    let id = server.create();
    assert_eq!(server.run(&["exec", &id, "printf", "%s|", "-n", "--json", "--"]).line(), "-n|--json|--|");
    assert_eq!(server.run(&["exec", &id, "--cwd", "/tmp", "pwd"]).line(), "/tmp");
    assert_eq!(server.run(&["exec", &id, "--", "printf", "%s|", "--", "a"]).line(), "--|a|");
}
