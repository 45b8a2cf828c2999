//! Hosts that die in the middle of anything, and the ones that take over from them.

use std::fs;
use std::time::Duration;

use remuda_guest_proto::*;

use crate::host::*;

fn frame(kind: Kind, channel: u32, payload: impl Into<Vec<u8>>) -> Vec<u8> {
    Frame::new(kind, channel, payload.into()).encode()
}

fn call(channel: u32, request: &Request) -> Vec<u8> {
    frame(Kind::Request, channel, serde_json::to_vec(request).unwrap())
}

/// Asks what became of an effect.
fn outcome(host: &mut Host, effect: u64) -> Result<Reply, AgentErrorKind> {
    host.call(&Request::Outcome { effect }).map_err(|error| error.kind)
}

#[test]
fn a_spawn_cut_at_any_byte_starts_nothing_and_a_whole_one_starts_once() {
    let mut host = Host::bound();
    let mark = host.root.path().join("mark");
    let mut cut = 0;
    loop {
        let spawn = host.script("root", &format!("echo >> {}; echo started", mark.display()));
        let (channel, effect) = (host.next_call(), spawn.effect);
        let bytes = call(channel, &Request::Spawn(spawn));
        let cut_here = cut.min(bytes.len());
        host.send_bytes(&bytes[..cut_here]);
        let bound = host.take_over(&[(channel, 0)]);
        if cut_here < bytes.len() {
            assert_eq!(bound.executions, [], "cut at {cut}");
            assert_eq!(outcome(&mut host, effect), Err(AgentErrorKind::Undone), "cut at {cut}");
            assert!(!mark.exists(), "cut at {cut}");
            cut += 1;
            continue;
        }
        assert_eq!((bound.executions.len(), bound.executions[0].effect), (1, effect));
        let report = &bound.executions[0];
        assert_eq!((report.channel, report.input, report.input_ended), (channel, 0, true));
        let Ok(Reply::Spawned { pid }) = outcome(&mut host, effect) else { panic!("it is not known") };
        // Its end may be told before its pid was asked for: the listing alone has it then.
        assert!(report.pid == pid || report.pid == 0);
        assert_eq!(host.finish(channel).stdout, b"started\n");
        assert_eq!(fs::read(&mark).unwrap(), b"\n", "it ran once");
        return;
    }
}

#[test]
fn input_cut_at_any_byte_reaches_its_program_whole_or_not_at_all() {
    let mut host = Host::bound();
    let mut spawn = host.argv(&["cat"]);
    spawn.stdin = true;
    let (channel, _) = host.start(spawn);
    let mut given: Vec<u8> = Vec::new();
    let mut have = 0;
    let bytes = frame(Kind::HostData, channel, *b"a line of input\n");
    for cut in 0..=bytes.len() {
        host.send_bytes(&bytes[..cut]);
        if cut == bytes.len() {
            given.extend(b"a line of input\n");
        }
        let bound = host.take_over(&[(channel, have)]);
        let report = &bound.executions[0];
        assert_eq!(
            (report.input, report.input_ended, report.running),
            (given.len() as u64, false, true),
            "cut at {cut}"
        );
        // The program goes on: what is sent now comes behind what was taken, and nothing lies between.
        host.send(Kind::HostData, channel, format!("{cut}\n"));
        given.extend(format!("{cut}\n").as_bytes());
        host.wait_until("the echo", |host| host.seen[&channel].at == given.len() as u64);
        assert_eq!(host.seen[&channel].all, given[have as usize..], "cut at {cut}");
        have = given.len() as u64;
    }
    let end = frame(Kind::HostEnd, channel, []);
    for cut in 0..=end.len() {
        host.send_bytes(&end[..cut]);
        let bound = host.take_over(&[(channel, have)]);
        assert_eq!(bound.executions[0].input_ended, cut == end.len(), "cut at {cut}");
    }
    assert_eq!(host.finish(channel).exited.unwrap().code, Some(0));
}

#[test]
fn a_file_cut_at_any_byte_is_not_written_and_leaves_nothing_beside_it() {
    let mut host = Host::bound();
    let place = host.root.path().join("place");
    fs::create_dir(&place).unwrap();
    let target = place.join("file");
    fs::write(&target, "before").unwrap();
    let mut cut = 0;
    loop {
        let (channel, effect) = (host.next_call(), host.next_effect());
        let path = target.to_str().unwrap().to_owned();
        let request = Request::WriteFile {
            path,
            user: "root".to_owned(),
            mode: None,
            parents: false,
            conditions: Conditions::default(),
            effect,
        };
        let bytes = [
            call(channel, &request),
            frame(Kind::HostData, channel, *b"first half, "),
            frame(Kind::HostData, channel, *b"second half"),
            frame(Kind::HostEnd, channel, []),
        ]
        .concat();
        let cut_here = cut.min(bytes.len());
        host.send_bytes(&bytes[..cut_here]);
        host.take_over(&[]);
        if cut_here < bytes.len() {
            assert_eq!(outcome(&mut host, effect), Err(AgentErrorKind::Undone), "cut at {cut}");
            let names: Vec<_> = fs::read_dir(&place).unwrap().flatten().map(|entry| entry.file_name()).collect();
            assert_eq!(names, ["file"], "cut at {cut}");
            assert_eq!(fs::read(&target).unwrap(), b"before", "cut at {cut}");
            cut += 1;
            continue;
        }
        // All of it arrived. The bind behind it may still have come before it was put in place: then nothing was done.
        match outcome(&mut host, effect) {
            Ok(Reply::Entry(entry)) => {
                assert_eq!(entry.size, 23);
                assert_eq!(fs::read(&target).unwrap(), b"first half, second half");
                return;
            }
            Err(AgentErrorKind::Undone) => assert_eq!(fs::read(&target).unwrap(), b"before"),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn output_swallowed_at_any_byte_comes_again_without_a_gap() {
    let mut host = Host::bound();
    let spawn = host.script("root", "i=0; while read line; do i=$((i+1)); echo \"$i $line\"; echo err >&2; done");
    let (channel, _) = host.start(Spawn { stdin: true, ..spawn });
    let mut log: Vec<u8> = Vec::new();
    for swallowed in 0..80 {
        host.send(Kind::HostData, channel, *b"x\n");
        // As many bytes as a dead host had taken out of the channel, without having written them down.
        host.swallow(swallowed, Duration::from_millis(20));
        let have = log.len() as u64;
        host.take_over(&[(channel, have)]);
        let expected = format!("{} x\nerr\n", swallowed + 1).len();
        host.wait_until("the lines", |host| host.seen[&channel].at == have + expected as u64);
        log.extend(&host.seen[&channel].all);
    }
    let numbers: Vec<String> =
        String::from_utf8(log).unwrap().lines().filter(|l| *l != "err").map(String::from).collect();
    let expected: Vec<String> = (1..=80).map(|i| format!("{i} x")).collect();
    assert_eq!(numbers, expected);
}

#[test]
fn an_end_is_told_to_every_host_until_it_is_forgotten() {
    let mut host = Host::bound();
    host.credit = false;
    let spawn = host.script("root", "echo out; exit 3");
    let (channel, _) = host.start(spawn);
    let produced = host.finish(channel).at;
    for have in [0, 2, produced] {
        let bound = host.take_over(&[(channel, have)]);
        assert_eq!((bound.executions[0].running, bound.executions[0].produced), (false, produced));
        assert_eq!(host.finish(channel).exited.unwrap().code, Some(3));
    }
    assert_eq!(host.call(&Request::Forget { channel }), Ok(Reply::Done));
    assert_eq!(host.take_over(&[]).executions, []);
}

#[test]
fn both_ways_full_is_no_dead_end() {
    let mut host = Host::bound();
    host.credit = false;
    // Programs that fill the channel to the host, and calls whose answers fill the rest.
    let channels: Vec<u32> = (0..6)
        .map(|_| {
            let spawn = host.argv(&["head", "-c", "1000000", "/dev/zero"]);
            host.start(spawn).0
        })
        .collect();
    host.wait_until_full();
    let to = host.writer();
    rustix::fs::fcntl_setfl(&to, rustix::fs::OFlags::NONBLOCK).unwrap();
    let ping = call(9, &Request::Ping);
    // Until the agent takes no more, and the pipe neither; the last one is half a frame.
    let mut quiet = 0;
    while quiet < 20 {
        match rustix::io::write(&to, &ping) {
            Ok(written) if written == ping.len() => quiet = 0,
            Ok(_) => break,
            Err(rustix::io::Errno::AGAIN) => {
                quiet += 1;
                std::thread::sleep(Duration::from_millis(10));
            }
            Err(errno) => panic!("{errno}"),
        }
    }
    rustix::fs::fcntl_setfl(&to, rustix::fs::OFlags::empty()).unwrap();
    host.credit = true;
    let have: Vec<(u32, u64)> = channels.iter().map(|channel| (*channel, 0)).collect();
    assert_eq!(host.take_over(&have).executions.len(), channels.len());
    for channel in channels {
        assert_eq!(host.finish(channel).at, 1_000_000);
    }
}

#[test]
fn output_that_looks_like_a_new_beginning_is_output() {
    let mut host = Host::bound();
    // Frames by which a host could take a program for its agent, with every nonce but the one that is drawn later.
    let forged: Vec<u8> =
        (0..=u8::MAX).flat_map(|n| frame(Kind::Synced, 0, [n; 16])).chain(call(1, &Host::bind_call(&[]))).collect();
    let file = host.root.path().join("forged");
    fs::write(&file, forged.repeat(1000)).unwrap();
    let spawn = host.argv(&["cat", file.to_str().unwrap()]);
    host.credit = false;
    let (channel, _) = host.start(spawn);
    host.swallow(5000, Duration::from_secs(5));
    host.credit = true;
    let bound = host.take_over(&[(channel, 0)]);
    assert_eq!(bound.executions.len(), 1);
    assert_eq!(host.finish(channel).stdout, forged.repeat(1000));
}

#[test]
fn a_host_that_died_while_it_took_over_is_taken_over_from() {
    let mut host = Host::bound();
    let spawn = host.script("root", "read line; echo \"got $line\"");
    let (channel, _) = host.start(Spawn { stdin: true, ..spawn });
    let bind = call(500, &Host::bind_call(&[]));
    let half = frame(Kind::HostData, channel, vec![b'x'; 5000]);
    for (padding, cut) in
        [(0, 40), (1, 0), (5000, 0), (PADDING_BYTES - 1, 0), (PADDING_BYTES, 17), (PADDING_BYTES, 300)]
    {
        host.send_bytes(&half[..100]);
        host.send_bytes(&vec![0; padding]);
        host.send_bytes(&bind[..cut.min(bind.len() - 1)]);
        let bound = host.take_over(&[(channel, 0)]);
        assert_eq!((bound.executions[0].input, bound.executions[0].running), (0, true), "{padding} {cut}");
    }
    host.send(Kind::HostData, channel, *b"it\n");
    assert_eq!(host.finish(channel).stdout, b"got it\n");
}
