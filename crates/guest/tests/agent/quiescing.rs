//! Frame boundaries: after `Quiesced` not a byte until told to go on, whatever happens inside.

use std::time::Duration;

use remuda_guest_proto::*;

use crate::host::*;

fn quiesce(host: &mut Host, flush: bool) {
    let before = host.quiesced;
    host.send(Kind::Quiesce, 0, if flush { vec![1] } else { vec![] });
    host.wait_until("the boundary", |host| host.quiesced > before);
}

#[test]
fn nothing_follows_a_boundary_until_proceed() {
    let mut host = Host::bound();
    let spawn = host.script("root", "i=0; while [ $i -lt 200000 ]; do echo $i; i=$((i+1)); done");
    let (noisy, _) = host.start(spawn);
    let mut spawn = host.script("root", "while read line; do echo $line; done");
    spawn.stdin = true;
    let (quiet, _) = host.start(spawn);
    for round in 0..100u32 {
        // A call at work while the boundary is asked for.
        let call = host.next_call();
        host.request(call, &Request::Stat { path: "/etc/passwd".to_owned(), user: "nobody".to_owned(), digest: false });
        host.send(Kind::HostData, quiet, format!("{round}\n"));
        quiesce(&mut host, round == 7);
        assert!(host.frame_within(Duration::from_millis(3)).is_none(), "round {round}");
        host.send(Kind::Proceed, 0, []);
        assert!(host.reply(call).is_ok());
    }
    host.send(Kind::HostEnd, quiet, []);
    let expected: String = (0..100).map(|i| format!("{i}\n")).collect();
    assert_eq!(host.finish(quiet).stdout, expected.as_bytes());
    assert_eq!(host.finish(noisy).stdout.iter().filter(|b| **b == b'\n').count(), 200_000);
}

#[test]
fn work_goes_on_in_silence() {
    let mut host = Host::bound();
    let mark = host.root.path().join("mark");
    quiesce(&mut host, false);
    // A host doesn't do this; what it asks for is done and told later.
    let spawn = host.script("root", &format!("echo out; touch {}", mark.display()));
    let call = host.next_call();
    host.request(call, &Request::Spawn(spawn));
    let until = std::time::Instant::now() + PATIENCE;
    while !mark.exists() {
        assert!(std::time::Instant::now() < until);
        assert!(host.frame_within(Duration::from_millis(5)).is_none());
    }
    assert!(host.frame_within(Duration::from_millis(50)).is_none());
    host.send(Kind::Proceed, 0, []);
    assert_eq!(host.finish(call).stdout, b"out\n");
}

#[test]
fn a_boundary_is_found_again() {
    let mut host = Host::bound();
    quiesce(&mut host, false);
    quiesce(&mut host, false);
    host.send(Kind::Proceed, 0, []);
    host.send(Kind::Proceed, 0, []);
    assert_eq!(host.call(&Request::Ping), Ok(Reply::Done));
    assert_eq!(host.quiesced, 2);
}
