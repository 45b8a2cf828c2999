//! Output: order, completeness, windows, memory.

use std::time::Duration;

use remuda_guest_proto::*;

use crate::host::*;

/// More than the agent holds in its worst moment: two windows, two frames, its threads.
const MEMORY_MAX_BYTES: u64 = 12 << 20;

#[test]
fn much_output_comes_whole_in_little_memory() {
    const BYTES: u64 = 64 << 20;
    let mut host = Host::bound();
    host.keep = false;
    let spawn = host.argv(&["head", "-c", "67108864", "/dev/zero"]);
    let (channel, _) = host.start(spawn);
    let mut most = 0;
    host.wait_until("the end", |host| {
        let seen = &host.seen[&channel];
        if seen.chunks % 50 == 0 {
            most = most.max(host.memory());
        }
        seen.exited.is_some()
    });
    assert_eq!(host.seen[&channel].at, BYTES);
    assert!(most < MEMORY_MAX_BYTES, "{most} bytes");
    assert!(host.memory() < 8 << 20, "idle: {} bytes", host.memory());
}

#[test]
fn a_host_that_acknowledges_nothing_gets_a_window_and_then_the_rest() {
    let mut host = Host::bound();
    host.credit = false;
    let spawn = host.script("root", "seq 1 1000000; echo end >&2");
    let (channel, _) = host.start(spawn);
    let window = |host: &Host| host.seen[&channel].at;
    host.wait_until("a window", |host| window(host) == WINDOW_BYTES);
    assert!(!host.read_within(Duration::from_millis(300)), "nothing beyond the window, not even the end");
    assert_eq!(host.call(&Request::Ping), Ok(Reply::Done), "others are not held up");
    assert!(host.memory() < MEMORY_MAX_BYTES);
    // Half a window more is half a window more.
    host.send(Kind::HostCredit, channel, encode_credit(WINDOW_BYTES / 2));
    host.wait_until("half a window", |host| window(host) == WINDOW_BYTES * 3 / 2);
    assert!(!host.read_within(Duration::from_millis(100)));
    // Credits of nonsense: too far, back, of the wrong length.
    for payload in [encode_credit(u64::MAX), encode_credit(3), b"xyz".to_vec()] {
        host.send(Kind::HostCredit, channel, payload);
    }
    host.credit = true;
    let seen = host.finish(channel);
    let expected: String = (1..=1_000_000).map(|i| format!("{i}\n")).collect();
    assert!(seen.stdout == expected.as_bytes());
    assert_eq!(seen.stderr, b"end\n");
}

#[test]
fn a_host_that_reads_nothing_holds_nobody_else_up_for_good() {
    let mut host = Host::bound();
    let noisy = host.argv(&["head", "-c", "33554432", "/dev/zero"]);
    host.keep = false;
    let calls: Vec<u32> = (0..8)
        .map(|_| {
            let mut spawn = noisy.clone();
            spawn.effect = host.next_effect();
            let call = host.next_call();
            host.request(call, &Request::Spawn(spawn));
            call
        })
        .collect();
    // Stalled: the channel is full, the agent keeps at most a window for each.
    host.wait_until_full();
    assert!(host.memory() < 8 * WINDOW_BYTES + MEMORY_MAX_BYTES, "{} bytes", host.memory());
    for call in calls {
        assert_eq!(host.finish(call).at, 33_554_432);
    }
}

#[test]
fn a_million_short_lines_keep_their_order() {
    let mut host = Host::bound();
    // Written one by one, to both outputs in turn by the thousand.
    let script = r#"
import os
for block in range(0, 1000):
    fd = 1 + block % 2
    for line in range(block * 1000, block * 1000 + 1000):
        os.write(fd, b"%d\n" % line)
"#;
    let spawn = host.argv(&["python3", "-c", script]);
    let seen = host.run(spawn);
    assert_eq!(seen.exited.unwrap().code, Some(0));
    for (parity, stream) in [(0, &seen.stdout), (1, &seen.stderr)] {
        let expected: String =
            (0..1_000_000).filter(|line| line / 1000 % 2 == parity).map(|line| format!("{line}\n")).collect();
        assert!(*stream == expected.as_bytes());
    }
}

#[test]
fn what_is_no_text_and_what_has_no_lines_comes_as_it_is() {
    let mut host = Host::bound();
    let spawn = host.argv(&["python3", "-c", "import sys; sys.stdout.buffer.write(bytes(range(256)) * 40000)"]);
    let expected: Vec<u8> = (0..=255).cycle().take(256 * 40_000).collect();
    assert!(host.run(spawn).stdout == expected);
}

#[test]
fn a_lone_line_does_not_wait() {
    let mut host = Host::bound();
    let mut spawn = host.script("root", "echo one; read line; echo two");
    spawn.stdin = true;
    let (channel, _) = host.start(spawn);
    host.wait_for_output(channel, "one\n");
    host.send(Kind::HostData, channel, *b"go\n");
    host.wait_for_output(channel, "two\n");
}

#[test]
fn what_was_written_before_the_end_is_not_lost_to_the_grace() {
    let mut host = Host::bound();
    host.credit = false;
    // More than a window, all in the pipe before the leader ends, which others hold open.
    let mut spawn = host.script("root", "sleep 100 & head -c 1900000 /dev/zero; exit 0");
    spawn.grace_ms = 1;
    let (channel, _) = host.start(spawn);
    host.wait_until("a window", |host| host.seen[&channel].at == WINDOW_BYTES);
    assert!(!host.read_within(Duration::from_millis(300)));
    host.credit = true;
    host.send(Kind::HostCredit, channel, encode_credit(WINDOW_BYTES));
    let seen = host.finish(channel);
    assert_eq!((seen.at, seen.exited.unwrap().pipes_held), (1_900_000, true));
}
