//! Terminals, and input in pieces: what a program is told of its terminal, and that no byte is lost or comes twice.

use remuda_guest_proto::*;

use crate::host::*;

const SIZE: PtySize = PtySize { cols: 101, rows: 37 };

fn on_terminal(host: &mut Host, script: &str) -> u32 {
    let mut spawn = host.script("nobody", script);
    spawn.pty = Some(SIZE);
    host.start(spawn).0
}

fn piece(channel: u32, writer: &str, offset: u64, bytes: &[u8], end: bool) -> Request {
    Request::Input(Input { channel, writer: writer.to_owned(), offset, bytes: bytes.to_vec(), end })
}

fn taken(taken: u64, closed: bool) -> ReplyResult {
    Ok(Reply::Input { taken, closed })
}

#[test]
fn a_terminal_is_the_programs_controlling_one_and_belongs_to_its_user() {
    let mut host = Host::bound();
    let script = "test -t 0 && test -t 1 && test -t 2 && echo all; stty size; stat -c %U $(tty); echo here >/dev/tty; \
                  ps -o sid= -p $$ | tr -d ' '; echo $$ >&2; exit 3";
    let channel = on_terminal(&mut host, script);
    let seen = host.finish(channel);
    let said = String::from_utf8(seen.stdout).unwrap();
    let lines: Vec<&str> = said.split("\r\n").collect();
    assert_eq!(lines[..4], ["all", "37 101", "nobody", "here"], "{said}");
    assert_eq!(lines[4], lines[5], "its leader leads the session");
    assert!(seen.stderr.is_empty(), "a terminal has one output");
    assert_eq!(seen.exited.unwrap().code, Some(3));
}

#[test]
fn another_size_is_told_to_the_whole_session() {
    let mut host = Host::bound();
    // A job in the foreground has a process group of its own.
    let script =
        "set -m; bash -c 'trap \"stty size; exit 4\" WINCH; echo ready; while :; do sleep 0.05; done'; exit $?";
    let channel = on_terminal(&mut host, script);
    host.wait_for_output(channel, "ready\r\n");
    let size = PtySize { cols: 132, rows: 43 };
    assert_eq!(host.call(&Request::Resize { channel, size }), Ok(Reply::Done));
    let seen = host.finish(channel);
    assert_eq!(
        (String::from_utf8(seen.stdout).unwrap().as_str(), seen.exited.unwrap().code),
        ("ready\r\n43 132\r\n", Some(4))
    );
    assert_eq!(host.call(&Request::Resize { channel, size }).unwrap_err().kind, AgentErrorKind::Invalid);
}

#[test]
fn typed_characters_are_a_terminals() {
    let mut host = Host::bound();
    let channel = on_terminal(
        &mut host,
        "trap 'echo interrupted' INT; echo ready; until read line; do :; done; echo \"<$line>\"; cat; echo end",
    );
    host.wait_for_output(channel, "ready\r\n");
    assert_eq!(host.call(&piece(channel, "", 0, b"\x03", false)), taken(1, false));
    host.wait_for_output(channel, "interrupted\r\n");
    assert_eq!(host.call(&piece(channel, "", 1, b"ab\x7fc\n", false)), taken(6, false));
    host.wait_for_output(channel, "<ac>\r\n");
    // The end of the input is a character too.
    assert_eq!(host.call(&piece(channel, "", 6, b"last\n", true)), taken(11, true));
    let seen = host.finish(channel);
    assert!(String::from_utf8(seen.stdout).unwrap().ends_with("last\r\nlast\r\nend\r\n"));
    assert_eq!(seen.exited.unwrap().code, Some(0));
}

#[test]
fn whoever_is_left_on_a_terminal_is_hung_up() {
    let mut host = Host::bound();
    let channel = on_terminal(&mut host, "trap '' HUP; (sleep 100; echo never) & echo $!");
    let seen = host.finish(channel);
    assert!(seen.exited.unwrap().pipes_held);
    let pid: u32 = String::from_utf8(seen.stdout).unwrap().trim().parse().unwrap();
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(pid.cast_signed()).unwrap(),
        rustix::process::Signal::KILL,
    )
    .unwrap();
}

#[test]
fn a_repeated_piece_is_taken_once_and_a_gap_is_told() {
    let mut host = Host::bound();
    let mut spawn = host.argv(&["cat"]);
    spawn.stdin = true;
    let channel = host.start(spawn).0;
    assert_eq!(host.call(&piece(channel, "a", 0, b"one ", false)), taken(4, false));
    assert_eq!(host.call(&piece(channel, "a", 0, b"one ", false)), taken(4, false));
    assert_eq!(host.call(&piece(channel, "a", 2, b"e two ", false)), taken(8, false));
    assert_eq!(host.call(&piece(channel, "a", 9, b"lost", true)), taken(8, false));
    // Another writer counts from its own beginning.
    assert_eq!(host.call(&piece(channel, "b", 0, b"three ", false)), taken(6, false));
    // A new host knows no less, and neither does a copy. It goes on behind what the one before took in.
    let before = b"one two three ";
    host.wait_until("the echo", |host| host.seen[&channel].at == before.len() as u64);
    assert_eq!(host.seen[&channel].all, before);
    host.take_over(&[(channel, before.len() as u64)]);
    assert_eq!(host.call(&piece(channel, "a", 0, b"one two four", true)), taken(12, true));
    assert_eq!(host.call(&piece(channel, "a", 12, b"late", false)), taken(12, true));
    assert_eq!(host.finish(channel).stdout, b"four");
    assert_eq!(host.call(&piece(channel, "a", 12, b"later", false)), taken(12, true));
    let without = {
        let spawn = host.argv(&["sleep", "0"]);
        host.start(spawn).0
    };
    assert_eq!(host.call(&piece(without, "a", 0, b"x", false)).unwrap_err().kind, AgentErrorKind::Invalid);
}

#[test]
fn what_has_no_room_is_left_with_its_sender() {
    let mut host = Host::bound();
    let go = host.root.path().join("go");
    let script = format!("while [ ! -e {} ]; do sleep 0.02; done; sha256sum", go.display());
    let mut spawn = host.script("root", &script);
    spawn.stdin = true;
    let channel = host.start(spawn).0;
    let all = vec![0; 16 << 20];
    let (mut sent, mut partly) = (0, 0);
    while sent < all.len() {
        let end = (sent + INPUT_PIECE_BYTES_MAX).min(all.len());
        match host.call(&piece(channel, "", sent as u64, &all[sent..end], end == all.len())) {
            Ok(Reply::Input { taken, .. }) => {
                partly += u32::from(taken < end as u64);
                if partly == 1 {
                    std::fs::write(&go, "").unwrap();
                }
                if taken as usize == sent {
                    let before = host.credits.get(&channel).copied();
                    host.wait_until("room", |host| host.credits.get(&channel).copied() != before);
                }
                sent = taken as usize;
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(partly > 0, "the window was never full");
    let seen = host.finish(channel);
    assert!(seen.stdout.starts_with(b"080acf35a507ac9849cfcba47dc2ad83e01b75663a516279c8b9d243b719643e"));
}
