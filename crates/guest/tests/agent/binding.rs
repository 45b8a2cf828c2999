//! Binds: silence before the first, identity, and what a new host is told and not told.

use std::time::Duration;

use remuda_guest_proto::*;

use crate::host::*;

#[test]
fn silent_until_bound() {
    let mut host = Host::unbound();
    host.request(1, &Request::Ping);
    host.send(Kind::Quiesce, 0, []);
    host.send(Kind::Proceed, 0, []);
    host.wait_for_log("before a bind");
    assert!(host.frame_within(Duration::from_millis(50)).is_none());
    let bound = host.bind(&[]);
    assert!(bound.executions.is_empty() && !bound.agent.is_empty());
    assert_eq!(host.quiesced, 0);
    assert_eq!(host.call(&Request::Ping), Ok(Reply::Done));
}

#[test]
fn the_identity_is_written_down() {
    let mut host = Host::unbound();
    std::fs::create_dir_all(host.root.path().join("run/remuda")).unwrap();
    std::fs::write(host.root.path().join("run/remuda/hosts"), "127.0.0.1 localhost\n10.1.1.1 db\n").unwrap();
    host.bind(&[]);
    let read = |path: &str| std::fs::read_to_string(host.root.path().join(path)).unwrap();
    assert_eq!(read("run/remuda/hostname"), "c1-host\n");
    assert_eq!(read("run/remuda/machine-id"), "00112233445566778899aabbccddeeff\n");
    assert_eq!(read("run/remuda/hosts"), "127.0.0.1 localhost\n10.1.1.1 db\n127.0.1.1\tc1-host\t# remuda\n");
    let identity: serde_json::Value = serde_json::from_str(&read("run/remuda/identity.json")).unwrap();
    assert_eq!(
        identity,
        serde_json::json!({"sandbox": "c1@2026-10-08T12:00:00.000Z", "uid": "abcdefghij0123456789", "snapshot": null, "bound_at_unix_ms": 1234})
    );
    let names: Vec<_> = std::fs::read_dir(host.root.path().join("run/remuda")).unwrap().flatten().collect();
    assert_eq!(names.len(), 4, "nothing temporary stays: {names:?}");
    let mut again = Host::bind_request(&[]);
    again.sandbox = "c2@2026-10-08T13:00:00.000Z".to_owned();
    again.snapshot = Some("snap".to_owned());
    assert!(host.call(&Host::call_of(again)).is_ok());
    let place = host.root.path().join("run/remuda/identity.json");
    let identity = std::fs::read_to_string(&place).unwrap();
    assert!(identity.contains("c2@") && identity.contains(r#""snapshot":"snap""#), "{identity}");
    // Told once more by a server that was restarted, it is no news to whoever watches the file.
    let mut same = Host::bind_request(&[]);
    same.sandbox = "c2@2026-10-08T13:00:00.000Z".to_owned();
    same.now_unix_ms += 1;
    assert!(host.call(&Host::call_of(same)).is_ok());
    assert_eq!(std::fs::read_to_string(&place).unwrap(), identity);
}

#[test]
fn an_identity_that_cannot_be_written_does_not_keep_it_from_being_bound() {
    let mut host = Host::unbound();
    std::fs::write(host.root.path().join("run"), "no directory").unwrap();
    let mut bind = Host::bind_request(&[]);
    bind.hostname = "no good\n".to_owned();
    bind.machine_id = "zz".to_owned();
    assert!(host.call(&Host::call_of(bind)).is_ok());
    let log = host.log();
    for what in ["identity.json", "host name", "machine id"] {
        assert!(log.contains(what), "{what} in {log}");
    }
    assert!(!host.root.path().join("run/remuda/hostname").exists());
}

#[test]
fn a_new_host_hears_nothing_of_what_the_old_one_asked() {
    let mut host = Host::bound();
    let file = host.root.path().join("big");
    std::fs::write(&file, vec![5; 4 << 20]).unwrap();
    let target = host.root.path().join("target");
    host.send(Kind::Quiesce, 0, []);
    host.wait_until("the boundary", |host| host.quiesced == 1);
    // As if these had been under way when the image was made.
    let ping = host.next_call();
    host.request(ping, &Request::Ping);
    let read = host.next_call();
    host.request(read, &Request::ReadFile { path: file.to_str().unwrap().to_owned(), user: "root".to_owned() });
    let write = host.next_call();
    let effect = host.next_effect();
    let request = Request::WriteFile {
        path: target.to_str().unwrap().to_owned(),
        user: "root".to_owned(),
        mode: None,
        parents: false,
        conditions: Conditions::default(),
        effect,
    };
    host.request(write, &request);
    host.send(Kind::HostData, write, *b"half");
    let (mark, go) = (host.root.path().join("mark"), host.root.path().join("go"));
    let script = format!("echo kept; touch {}; while [ ! -e {} ]; do sleep 0.01; done", mark.display(), go.display());
    let spawn = host.script("root", &script);
    let spawned = host.next_call();
    host.request(spawned, &Request::Spawn(spawn.clone()));

    // Until all of it has happened, as far as that can be seen from outside.
    let until = std::time::Instant::now() + PATIENCE;
    let part = host.root.path().join(format!(".remuda-{effect:x}-0.part"));
    while !std::fs::read(&part).is_ok_and(|bytes| bytes == b"half") || !mark.exists() {
        assert!(std::time::Instant::now() < until, "it never happened; the agent's log:\n{}", host.log());
        assert!(host.frame_within(Duration::from_millis(1)).is_none());
    }
    let call = host.next_call();
    host.request(call, &Host::bind_call(&[]));
    let [synced, frame] = [(); 2].map(|()| host.frame_within(PATIENCE).unwrap());
    assert_eq!(synced.kind, Kind::Synced, "the first frame tells where the new conversation begins");
    assert_eq!((frame.kind, frame.channel), (Kind::Reply, call), "the next one is the answer to the bind");
    let Ok(Reply::Bound(bound)) = serde_json::from_slice::<ReplyResult>(&frame.payload).unwrap() else {
        panic!("not bound")
    };
    assert_eq!(bound.executions.len(), 1);
    let report = &bound.executions[0];
    assert_eq!((report.channel, report.running), (spawned, true));
    std::fs::write(go, "").unwrap();
    // The execution is not lost, and nothing else is heard of.
    host.seen.insert(spawned, Seen::default());
    assert_eq!(host.finish(spawned).stdout, b"kept\n");
    assert!(host.frame_within(Duration::from_millis(100)).is_none());
    assert!(!target.exists());
    // The write was undone, so the same effect may be asked for again; the spawn was done.
    let again = host.next_call();
    host.request(again, &request);
    host.send(Kind::HostData, again, *b"whole");
    host.send(Kind::HostEnd, again, []);
    assert!(host.reply(again).is_ok());
    assert_eq!(std::fs::read(&target).unwrap(), b"whole");
    assert_eq!(host.call(&Request::Spawn(spawn)), Ok(Reply::Spawned { pid: report.pid }));
    let left: Vec<_> = std::fs::read_dir(host.root.path())
        .unwrap()
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().ends_with(".part"))
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn output_is_replayed_from_what_the_host_has() {
    let mut host = Host::bound();
    host.credit = false;
    let mut spawn = host.script("root", "seq 1 100000; read line; seq 100001 200000; exit 9");
    spawn.stdin = true;
    let (channel, _) = host.start(spawn);
    let expected: String = (1..=200_000).map(|i| format!("{i}\n")).collect();
    let half = (1..=100_000).map(|i| format!("{i}\n").len() as u64).sum::<u64>();
    host.wait_until("the first half", |host| host.seen[&channel].at == half);
    let mut have = 0;
    for step in [0, 1, 1000, 99_999, 200_000] {
        have += step;
        let bound = host.bind(&[(channel, have)]);
        let report = &bound.executions[0];
        assert_eq!((report.produced, report.running, report.execution.as_str()), (half, true, "x1"));
        host.seen.insert(channel, Seen { at: have, ..Seen::default() });
        host.wait_until("the rest", |host| host.seen[&channel].at == half);
        assert!(host.seen[&channel].all == expected.as_bytes()[have as usize..half as usize]);
    }
    // Without a word about it: from what was acknowledged.
    host.bind(&[]);
    host.seen.insert(channel, Seen { at: have, ..Seen::default() });
    host.wait_until("the rest", |host| host.seen[&channel].at == half);
    // And on to the end, which is told to each new host until it is forgotten.
    host.credit = true;
    host.send(Kind::HostCredit, channel, encode_credit(half));
    host.send(Kind::HostData, channel, *b"go\n");
    let seen = host.finish(channel);
    assert!(seen.all == expected.as_bytes()[have as usize..]);
    assert_eq!(seen.exited.unwrap().code, Some(9));
    let bound = host.bind(&[(channel, expected.len() as u64)]);
    assert!(!bound.executions[0].running);
    host.seen.insert(channel, Seen { at: expected.len() as u64, ..Seen::default() });
    assert_eq!(host.finish(channel).exited.unwrap().code, Some(9));
    assert_eq!(host.call(&Request::Forget { channel }), Ok(Reply::Done));
    assert!(host.bind(&[]).executions.is_empty());
}

#[test]
fn a_program_blocked_by_the_old_host_goes_on_with_the_new_one() {
    let mut host = Host::bound();
    host.credit = false;
    let spawn = host.argv(&["head", "-c", "5000000", "/dev/zero"]);
    let (channel, _) = host.start(spawn);
    host.wait_until("a window", |host| host.seen[&channel].at == WINDOW_BYTES);
    host.credit = true;
    host.bind(&[(channel, WINDOW_BYTES)]);
    assert_eq!(host.finish(channel).at, 5_000_000);
}

#[test]
fn a_bind_in_the_middle_of_traffic_loses_nothing() {
    let mut host = Host::bound();
    host.credit = false;
    let spawn = host.script("root", "seq 1 2000000");
    let (channel, _) = host.start(spawn);
    let expected: String = (1..=2_000_000).map(|i| format!("{i}\n")).collect();
    let mut log: Vec<u8> = Vec::new();
    let mut rounds = 0;
    while host.seen[&channel].exited.is_none() {
        // Some frames are taken, then a new host comes without waiting for a boundary. What arrives before its answer
        // belongs to the old one.
        for _ in 0..3 {
            host.read_within(Duration::from_millis(50));
        }
        if host.seen[&channel].exited.is_some() {
            break;
        }
        log.extend(std::mem::take(&mut host.seen.get_mut(&channel).unwrap().all));
        let call = host.next_call();
        host.request(call, &Host::bind_call(&[(channel, log.len() as u64)]));
        while !host.frame_within(PATIENCE).is_some_and(|frame| (frame.kind, frame.channel) == (Kind::Reply, call)) {}
        host.seen.insert(channel, Seen { at: log.len() as u64, ..Seen::default() });
        rounds += 1;
        assert!(rounds < 10_000);
    }
    log.extend(std::mem::take(&mut host.seen.get_mut(&channel).unwrap().all));
    assert!(rounds > 2);
    assert!(log == expected.as_bytes());
}
