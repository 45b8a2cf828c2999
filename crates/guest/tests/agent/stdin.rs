//! Input of programs: windows, ends, programs that don't read.

use remuda_guest_proto::*;

use crate::host::*;

fn cat(host: &mut Host) -> u32 {
    let mut spawn = host.argv(&["cat"]);
    spawn.stdin = true;
    host.start(spawn).0
}

#[test]
fn input_arrives_and_ends() {
    let mut host = Host::bound();
    let channel = cat(&mut host);
    host.send(Kind::HostData, channel, *b"hello ");
    host.wait_for_output(channel, "hello ");
    assert_eq!(host.credits[&channel], 6);
    host.send(Kind::HostData, channel, *b"world");
    host.send(Kind::HostEnd, channel, []);
    let seen = host.finish(channel);
    assert_eq!((seen.stdout.as_slice(), seen.exited.unwrap().code), (b"hello world".as_slice(), Some(0)));
}

#[test]
fn input_may_come_before_the_program() {
    let mut host = Host::bound();
    let mut spawn = host.argv(&["cat"]);
    spawn.stdin = true;
    let call = host.next_call();
    host.request(call, &Request::Spawn(spawn));
    host.send(Kind::HostData, call, *b"early");
    host.send(Kind::HostEnd, call, []);
    assert_eq!(host.finish(call).stdout, b"early");
}

#[test]
fn without_input_there_is_an_end_at_once() {
    let mut host = Host::bound();
    let spawn = host.argv(&["cat"]);
    let (channel, _) = host.start(spawn);
    host.send(Kind::HostData, channel, *b"nobody asked");
    assert_eq!(host.finish(channel).stdout, b"");
    host.wait_for_log("whose standard input is no pipe");
}

#[test]
fn much_input_goes_through_within_the_window() {
    const BYTES: u64 = 16 << 20;
    let mut host = Host::bound();
    let mut spawn = host.argv(&["sha256sum"]);
    spawn.stdin = true;
    let (channel, _) = host.start(spawn);
    let chunk = vec![0; 64 << 10];
    let mut sent = 0;
    while sent < BYTES {
        host.wait_until("credit", |host| sent - host.credits.get(&channel).unwrap_or(&0) + 65_536 <= WINDOW_BYTES);
        host.send(Kind::HostData, channel, chunk.clone());
        sent += chunk.len() as u64;
    }
    host.send(Kind::HostEnd, channel, []);
    let seen = host.finish(channel);
    assert!(seen.stdout.starts_with(b"080acf35a507ac9849cfcba47dc2ad83e01b75663a516279c8b9d243b719643e"));
}

#[test]
fn a_program_that_reads_nothing_holds_nobody_up() {
    let mut host = Host::bound();
    let mut spawn = host.argv(&["sleep", "100"]);
    spawn.stdin = true;
    let (channel, _) = host.start(spawn);
    host.send(Kind::HostData, channel, vec![1; WINDOW_BYTES as usize]);
    assert_eq!(host.call(&Request::Ping), Ok(Reply::Done));
    assert!(host.log().is_empty(), "{}", host.log());
    // A pipe's worth was taken, no more may come; beyond the window the channel is dropped.
    host.send(Kind::HostData, channel, vec![1; WINDOW_BYTES as usize]);
    host.wait_for_log("more than the window");
    assert_eq!(host.call(&Request::Signal { channel, signal: 9 }), Ok(Reply::Done));
    host.finish(channel);
}

#[test]
fn a_program_that_closes_its_input_costs_nothing() {
    let mut host = Host::bound();
    let mut spawn = host.script("root", "exec <&-; echo closed; sleep 0.3; echo end");
    spawn.stdin = true;
    let (channel, _) = host.start(spawn);
    host.wait_for_output(channel, "closed");
    let mut sent = 0;
    for _ in 0..4 {
        host.send(Kind::HostData, channel, vec![7; 300_000]);
        sent += 300_000;
        host.wait_until("credit", |host| host.credits.get(&channel) == Some(&sent));
    }
    assert_eq!(host.finish(channel).stdout, b"closed\nend\n");
}
