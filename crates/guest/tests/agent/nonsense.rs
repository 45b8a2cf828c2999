//! Hosts that are confused or worse: every call is answered or ignored, the agent lives.

use proptest::prelude::*;
use remuda_guest_proto::*;

use crate::host::*;

#[test]
fn calls_that_make_no_sense_are_refused() {
    let mut host = Host::bound();
    let texts = [
        "",
        "null",
        "{",
        "[]",
        r#"{"call":"no_such"}"#,
        r#"{"call":"spawn"}"#,
        r#"{"call":"signal","channel":-1,"signal":9}"#,
        "\u{0}\u{1}",
    ];
    for text in texts {
        let call = host.next_call();
        host.send(Kind::Request, call, text.as_bytes());
        assert_eq!(host.reply(call).unwrap_err().kind, AgentErrorKind::Invalid, "{text:?}");
    }
    let deep = "[".repeat(1 << 20);
    let call = host.next_call();
    host.send(Kind::Request, call, deep.as_bytes());
    assert_eq!(host.reply(call).unwrap_err().kind, AgentErrorKind::Invalid);
    for signal in [-1, 0, 65, i32::MAX, i32::MIN] {
        let reply = host.call(&Request::Signal { channel: 1, signal });
        assert_eq!(reply.unwrap_err().kind, AgentErrorKind::Invalid);
    }
    let reply = host.call(&Request::Signal { channel: 1, signal: 9 });
    assert_eq!(reply.unwrap_err().kind, AgentErrorKind::NotFound);
    let mut spawn = host.argv(&["true"]);
    for id in ["x".repeat(1000), "\u{1}".to_owned(), "a b".to_owned()] {
        spawn.execution = id;
        assert_eq!(host.call(&Request::Spawn(spawn.clone())).unwrap_err().kind, AgentErrorKind::Invalid);
    }
}

#[test]
fn frames_for_nobody_are_ignored() {
    let mut host = Host::bound();
    for channel in [0, 77, u32::MAX] {
        host.send(Kind::HostData, channel, *b"x");
        host.send(Kind::HostEnd, channel, []);
        host.send(Kind::HostCredit, channel, encode_credit(5));
        host.send(Kind::HostCredit, channel, *b"x");
    }
    for kind in [Kind::Reply, Kind::Quiesced, Kind::GuestData, Kind::Event] {
        host.send(kind, 1, *b"x");
    }
    assert_eq!(host.call(&Request::Ping), Ok(Reply::Done));
    assert!(host.log().contains("which only an agent sends"));
}

#[test]
fn a_channel_is_used_once_at_a_time() {
    let mut host = Host::bound();
    let spawn = host.argv(&["sleep", "100"]);
    let (channel, _) = host.start(spawn);
    let spawn = host.argv(&["true"]);
    host.request(channel, &Request::Spawn(spawn));
    assert_eq!(host.reply(channel).unwrap_err().kind, AgentErrorKind::Invalid);
    host.request(channel, &Request::ReadFile { path: "/etc/passwd".to_owned(), user: "root".to_owned() });
    assert_eq!(host.reply(channel).unwrap_err().kind, AgentErrorKind::Invalid);
    let path = host.root.path().join("f").to_str().unwrap().to_owned();
    let write = |effect| Request::WriteFile {
        path: path.clone(),
        user: "root".to_owned(),
        mode: Some(0o777_777),
        parents: false,
        conditions: Conditions::default(),
        effect,
    };
    host.request(channel, &write(500));
    assert_eq!(host.reply(channel).unwrap_err().kind, AgentErrorKind::Invalid);
    assert_eq!(host.call(&write(501)).unwrap_err().kind, AgentErrorKind::Invalid, "the mode");
}

#[test]
fn after_bytes_that_are_no_frame_only_a_bind_is_heard() {
    let mut host = Host::bound();
    let spawn = host.script("root", "while :; do echo x; sleep 0.01; done");
    let (channel, _) = host.start(spawn);
    host.send_bytes(b"this is no frame at all, and there is quite some of it");
    host.wait_for_log("nothing but a bind");
    host.request(900, &Request::Ping);
    // Silent from here on, but for what was already under way.
    while host.frame_within(std::time::Duration::from_millis(200)).is_some_and(|frame| frame.kind == Kind::GuestData) {}
    host.forget_seen();
    let call = host.next_call();
    host.request(call, &Host::bind_call(&[(channel, 0)]));
    let bound = host.reply(call).unwrap();
    let Reply::Bound(bound) = bound else { panic!("{bound:?}") };
    assert_eq!(bound.executions.len(), 1);
    assert!(!host.replies.contains_key(&900));
}

#[test]
fn a_host_that_floods_and_reads_nothing_is_held_back() {
    let mut host = Host::bound();
    // From another thread, since the agent stops taking calls at some point.
    let calls = 40_000u32;
    let mut flood = Vec::new();
    for call in 1000..1000 + calls {
        flood.extend(Frame::new(Kind::Request, call, br#"{"call":"ping"}"#.to_vec()).encode());
    }
    std::thread::scope(|scope| {
        let to = host.writer();
        scope.spawn(move || std::io::Write::write_all(&mut std::fs::File::from(to), &flood).unwrap());
        host.wait_until_full();
        assert!(host.memory() < 12 << 20, "{}", host.memory());
        host.wait_until("all answers", |host| host.replies.len() == calls as usize);
    });
}

/// Frames as a host gone mad would send them: right headers, and anything else.
fn mad_frame() -> impl Strategy<Value = Vec<u8>> {
    let kind = prop::sample::select(vec![
        Kind::Request,
        Kind::HostData,
        Kind::HostEnd,
        Kind::HostCredit,
        Kind::Quiesce,
        Kind::Proceed,
        Kind::Reply,
    ]);
    let path = prop::sample::select(vec!["/", "/tmp", "/etc/passwd", "/dev/zero", "/proc/self/mem", "", "/no/such"]);
    let user = prop::sample::select(vec!["root", "nobody", "", "no-such"]);
    let call = (path, user, 0..6u32, any::<bool>(), 0..9u64).prop_map(|(path, user, channel, flag, effect)| {
        let (path, user) = (path.to_owned(), user.to_owned());
        let spawn = |program| {
            Request::Spawn(Spawn {
                execution: "x".to_owned(),
                effect,
                program,
                cwd: path.clone(),
                env: Default::default(),
                user: user.clone(),
                stdin: flag,
                grace_ms: effect,
                pty: (flag && channel > 2).then_some(PtySize { cols: channel as u16, rows: u16::MAX }),
            })
        };
        let request = match effect {
            0 => Request::Stat { path, user, digest: false },
            1 => Request::List { path, user, limit: channel },
            2 => Request::ReadFile { path, user },
            3 => Request::Signal { channel, signal: 9 },
            4 => Request::Forget { channel },
            5 => spawn(Program::Argv(vec!["cat".to_owned(), path.clone()])),
            6 => spawn(Program::Script("echo x; cat".to_owned())),
            7 if flag => Request::DeletedOpenFiles,
            7 => Request::Resize { channel, size: PtySize { cols: 0, rows: channel as u16 } },
            8 if flag => Request::Input(Input {
                channel,
                writer: user,
                offset: u64::from(channel),
                bytes: path.into_bytes(),
                end: channel == 0,
            }),
            _ => Request::Ping,
        };
        serde_json::to_vec(&request).unwrap()
    });
    let payload = prop_oneof![
        call,
        prop::collection::vec(any::<u8>(), 0..40),
        any::<u64>().prop_map(|n| n.to_le_bytes().to_vec()),
        Just(vec![1]),
        Just(vec![0; 100_000]),
    ];
    (kind, 0..6u32, payload).prop_map(|(kind, channel, payload)| Frame::new(kind, channel, payload).encode())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 30, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_mad_host_gets_sane_frames_and_the_next_one_is_served(frames in prop::collection::vec(mad_frame(), 1..120)) {
        let mut host = Host::bound();
        let bytes = frames.concat();
        let sent = std::sync::atomic::AtomicBool::new(false);
        let flag = &sent;
        std::thread::scope(|scope| {
            let to = host.writer();
            scope.spawn(move || {
                std::io::Write::write_all(&mut std::fs::File::from(to), &bytes).unwrap();
                flag.store(true, std::sync::atomic::Ordering::Release);
            });
            // Only whole frames come back; what they say is not this test's matter.
            while !flag.load(std::sync::atomic::Ordering::Acquire) {
                host.frame_within(std::time::Duration::from_millis(2));
            }
        });
        let call = 1000;
        host.request(call, &Host::bind_call(&[]));
        let until = std::time::Instant::now() + PATIENCE;
        while host.frame_within(PATIENCE).is_some_and(|frame| (frame.kind, frame.channel) != (Kind::Reply, call)) {
            assert!(std::time::Instant::now() < until);
        }
        host.request(1001, &Request::Ping);
        while host.frame_within(PATIENCE).is_some_and(|frame| (frame.kind, frame.channel) != (Kind::Reply, 1001)) {
            assert!(std::time::Instant::now() < until);
        }
    }
}
