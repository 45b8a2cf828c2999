//! `exec -i`: what is piped in reaches the command as it comes and whole; and without it nothing is read.

use std::io::{BufRead, BufReader, Write};
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
    piped(&server, &["exec", "-d", "-i", &id, "cat"], &vec![b'x'; (2 << 20) + 1]).failed(2, "larger than 2 MiB");
    assert_eq!(server.run(&["ps", "--json", &id]).json(), before, "nothing was started");
}

#[test]
fn input_goes_there_as_it_comes_however_long_it_is() {
    let server = Server::start();
    let id = server.create();
    let long: Vec<u8> = (0..24 << 20).map(|n: u32| (n.wrapping_mul(2_654_435_761) >> 11) as u8).collect();
    let answer = piped(&server, &["exec", "-i", &id, "sh", "-c", "sha256sum | cut -c 1-64"], &long);
    std::fs::write(server.data_dir.join("long"), &long).unwrap();
    let here = std::process::Command::new("sha256sum").arg(server.data_dir.join("long")).output().unwrap();
    assert_eq!(answer.line(), text(&here.stdout)[..64]);
    // One that reads no further ends as it does, and nobody waits for the rest to be wanted.
    let answer = piped(&server, &["exec", "-i", &id, "head", "-c", "3"], &long);
    assert_eq!((answer.code, answer.stdout.as_slice()), (0, &long[..3]));

    // The first line is answered before the second is there.
    let mut command = server.command(&["exec", "-i", &id, "-c", "read a; echo \"one $a\"; read b; echo \"two $b\""]);
    let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let (mut to, mut from) = (process.stdin.take().unwrap(), BufReader::new(process.stdout.take().unwrap()));
    for (said, answered) in [("a\n", "one a\n"), ("b\n", "two b\n")] {
        to.write_all(said.as_bytes()).unwrap();
        let mut line = String::new();
        from.read_line(&mut line).unwrap();
        assert_eq!(line, answered);
    }
    assert!(process.wait().unwrap().success());
}

#[test]
fn a_program_needs_no_dashes_before_it_and_keeps_its_own_options() {
    let server = Server::start();
    let id = server.create();
    assert_eq!(server.run(&["exec", &id, "printf", "%s|", "-n", "--json", "--"]).line(), "-n|--json|--|");
    assert_eq!(server.run(&["exec", &id, "--cwd", "/tmp", "pwd"]).line(), "/tmp");
    assert_eq!(server.run(&["exec", &id, "--", "printf", "%s|", "--", "a"]).line(), "--|a|");
}
