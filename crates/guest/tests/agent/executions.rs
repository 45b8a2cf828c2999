//! Starting programs, their ends, signals, refusals, effects, and what is left behind.

use remuda_guest_proto::*;

use crate::host::*;

fn kind_of(reply: ReplyResult) -> (AgentErrorKind, String) {
    let error = reply.unwrap_err();
    (error.kind, error.message)
}

fn refused(host: &mut Host, spawn: Spawn) -> (AgentErrorKind, String) {
    kind_of(host.call(&Request::Spawn(spawn)))
}

/// Waits until all processes below the agent have ended and were reaped.
fn nobody_left(host: &mut Host) {
    let until = std::time::Instant::now() + PATIENCE;
    while !host.descendants().is_empty() {
        assert!(std::time::Instant::now() < until, "{:?} live on or were not reaped", host.descendants());
        host.read_within(std::time::Duration::from_millis(5));
    }
}

#[test]
fn a_script_writes_to_both_outputs_and_exits() {
    let mut host = Host::bound();
    let spawn = host.script("root", "echo out; echo err >&2; exit 3");
    let seen = host.run(spawn);
    assert_eq!((seen.stdout.as_slice(), seen.stderr.as_slice()), (b"out\n".as_slice(), b"err\n".as_slice()));
    assert_eq!(seen.exited, Some(Exited { code: Some(3), signal: None, produced: 8, pipes_held: false }));
}

#[test]
fn a_program_gets_its_arguments_as_they_are() {
    let mut host = Host::bound();
    let spawn = host.argv(&["printf", "%s|", "a b", "", "$HOME", "ä\n"]);
    assert_eq!(host.run(spawn).stdout, "a b||$HOME|ä\n|".as_bytes());
}

#[test]
fn a_shell_leaves_nothing_of_the_script_in_arguments_or_descriptors() {
    let mut host = Host::bound();
    let out = host.sh("root", "secret=hunter2\ntr '\\0' ' ' < /proc/$$/cmdline; ls /proc/self/fd");
    assert_eq!(out, "sh -c . /proc/self/fd/9 0\n1\n2\n3\n", "3 is the directory that ls reads");
    let spawn = host.script("root", "\n\nno-such-program");
    let seen = host.run(spawn);
    let complaint = String::from_utf8(seen.stderr).unwrap();
    assert!(complaint.contains("no-such-program: not found") && complaint.contains("sh: 3:"), "{complaint}");
}

#[test]
fn a_script_of_a_mebibyte_runs() {
    let mut host = Host::bound();
    let script = format!("# {}\n{}echo done", "x".repeat(900 << 10), ": line\n".repeat(20_000));
    assert!(script.len() > 1 << 20);
    assert_eq!(host.sh("nobody", &script), "done\n");
}

#[test]
fn the_user_counts() {
    let mut host = Host::bound();
    let out = host.sh("nobody", "id -u; id -g; id -G; echo $USER $LOGNAME $LANG; umask; grep -o 'Max processes  *512  *512' /proc/self/limits | tr -s ' '");
    assert_eq!(out, "65534\n65534\n65534\nnobody nobody C.UTF-8\n0022\nMax processes 512 512\n");
    let mut spawn = host.script("nobody", "cat /etc/shadow");
    spawn.env.insert("PATH".to_owned(), "/bin".to_owned());
    let seen = host.run(spawn);
    assert!(String::from_utf8_lossy(&seen.stderr).contains("Permission denied"));
    assert_eq!(host.sh("root", "id -u; id -G; echo $HOME"), "0\n0\n/root\n");
}

#[test]
fn a_program_finds_a_clean_slate() {
    let mut host = Host::bound();
    let out = host.sh(
        "root",
        "grep -E 'SigBlk|SigIgn|SigPnd' /proc/self/status; cat /proc/self/stat | cut -d' ' -f5,6; echo $$; cat; env | sort",
    );
    let mut lines = out.lines();
    for what in ["SigPnd", "SigBlk", "SigIgn"] {
        assert_eq!(lines.next().unwrap(), format!("{what}:\t0000000000000000"));
    }
    let (group_and_session, pid) = (lines.next().unwrap(), lines.next().unwrap());
    assert_eq!(group_and_session, format!("{pid} {pid}"), "its own group and session");
    let env: Vec<&str> = lines.filter(|line| !line.starts_with("PWD=") && !line.starts_with("_=")).collect();
    assert_eq!(
        env,
        [
            "HOME=/root",
            "LANG=C.UTF-8",
            "LOGNAME=root",
            "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "SHELL=/bin/bash",
            "USER=root"
        ]
    );
}

#[test]
fn what_cannot_start_is_said_and_nothing_ran() {
    let mut host = Host::bound();
    let spawn = host.argv(&["no-such-program"]);
    let (kind, message) = refused(&mut host, spawn);
    assert_eq!(kind, AgentErrorKind::NotFound);
    assert_eq!(message, "cannot start no-such-program as user root: there is no such program in PATH");
    let spawn = host.argv(&["/etc/passwd"]);
    assert_eq!(refused(&mut host, spawn).0, AgentErrorKind::Denied);
    let spawn = host.argv(&["/etc/no/such"]);
    assert_eq!(refused(&mut host, spawn).0, AgentErrorKind::NotFound);
    let mut spawn = host.argv(&["true"]);
    spawn.cwd = "/no/where".to_owned();
    let (kind, message) = refused(&mut host, spawn);
    assert_eq!(kind, AgentErrorKind::NotFound);
    assert!(message.contains("/no/where"), "{message}");
    let mut spawn = host.argv(&["true"]);
    spawn.cwd = "/root".to_owned();
    spawn.user = "nobody".to_owned();
    assert_eq!(refused(&mut host, spawn).0, AgentErrorKind::Denied);
    let mut spawn = host.argv(&["true"]);
    spawn.cwd = "/etc/passwd".to_owned();
    assert_eq!(refused(&mut host, spawn).0, AgentErrorKind::NotADirectory);
    let mut spawn = host.argv(&["true"]);
    spawn.user = "no-such-user".to_owned();
    let (kind, message) = refused(&mut host, spawn);
    assert_eq!((kind, message.as_str()), (AgentErrorKind::NotFound, "there is no user no-such-user in /etc/passwd"));
    for argv in [vec![], vec![""], vec!["a\0b"], vec!["true", "\0"]] {
        let spawn = host.argv(&argv);
        assert_eq!(refused(&mut host, spawn).0, AgentErrorKind::Invalid, "{argv:?}");
    }
    let mut spawn = host.argv(&["true"]);
    spawn.cwd = "relative".to_owned();
    assert_eq!(refused(&mut host, spawn).0, AgentErrorKind::Invalid);
    let long = "x".repeat(1 << 20);
    let spawn = host.argv(&["true", &long]);
    assert_eq!(refused(&mut host, spawn).0, AgentErrorKind::Invalid);
    assert!(host.bind(&[]).executions.is_empty());
    nobody_left(&mut host);
}

#[test]
fn a_missing_interpreter_is_told_from_a_missing_program() {
    use std::os::unix::fs::PermissionsExt as _;
    let mut host = Host::bound();
    let script = host.root.path().join("script");
    std::fs::write(&script, "#!/no/such/interpreter\n").unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    let spawn = host.argv(&[script.to_str().unwrap()]);
    let (kind, message) = refused(&mut host, spawn);
    assert_eq!(kind, AgentErrorKind::NotFound);
    assert!(message.contains("interpreter"), "{message}");
    std::fs::write(&script, "neither this nor that").unwrap();
    let spawn = host.argv(&[script.to_str().unwrap()]);
    assert_eq!(refused(&mut host, spawn).0, AgentErrorKind::Invalid);
}

#[test]
fn signals_go_to_the_whole_group() {
    let mut host = Host::bound();
    let spawn = host.script("root", "sleep 100 & sleep 100 & echo ready; wait");
    let (channel, _) = host.start(spawn);
    host.wait_for_output(channel, "ready");
    assert_eq!(host.call(&Request::Signal { channel, signal: 9 }), Ok(Reply::Done));
    let exited = host.finish(channel).exited.unwrap();
    assert_eq!((exited.code, exited.signal, exited.pipes_held), (None, Some(9), false));
    nobody_left(&mut host);
    let (kind, _) = kind_of(host.call(&Request::Signal { channel, signal: 15 }));
    assert_eq!(kind, AgentErrorKind::NotFound);
}

#[test]
fn who_ignores_sigterm_lives_until_killed() {
    let mut host = Host::bound();
    let spawn = host.script("root", "trap '' TERM; echo ready; while :; do sleep 0.05; done");
    let (channel, _) = host.start(spawn);
    host.wait_for_output(channel, "ready");
    assert_eq!(host.call(&Request::Signal { channel, signal: 15 }), Ok(Reply::Done));
    assert_eq!(host.call(&Request::Ping), Ok(Reply::Done));
    assert_eq!(host.seen[&channel].exited, None);
    assert_eq!(host.call(&Request::Signal { channel, signal: 9 }), Ok(Reply::Done));
    assert_eq!(host.finish(channel).exited.unwrap().signal, Some(9));
}

#[test]
fn a_signal_sent_before_the_program_runs_is_not_lost() {
    let mut host = Host::bound();
    for _ in 0..50 {
        let spawn = host.argv(&["sleep", "100"]);
        let (call, signal) = (host.next_call(), host.next_call());
        host.request(call, &Request::Spawn(spawn));
        host.request(signal, &Request::Signal { channel: call, signal: 9 });
        assert_eq!(host.reply(signal), Ok(Reply::Done));
        assert!(host.reply(call).is_ok());
        assert_eq!(host.finish(call).exited.unwrap().signal, Some(9));
    }
}

#[test]
fn a_leader_with_children_that_hold_its_pipes_ends_after_the_grace() {
    let mut host = Host::bound();
    let script = "(while :; do echo tick; sleep 0.01; done) & echo started $!; exit 4";
    let spawn = host.script("root", script);
    let (channel, pid) = host.start(spawn);
    let seen = host.finish(channel);
    let exited = seen.exited.unwrap();
    assert_eq!((exited.code, exited.pipes_held), (Some(4), true));
    // The child goes on, neither stopped by a full pipe nor killed by a closed one; its group is still reached.
    assert_eq!(host.call(&Request::Forget { channel: 9999 }).unwrap_err().kind, AgentErrorKind::NotFound);
    assert!(!host.descendants().is_empty());
    assert_eq!(host.call(&Request::Signal { channel, signal: 15 }), Ok(Reply::Done));
    nobody_left(&mut host);
    assert_eq!(host.call(&Request::Signal { channel, signal: 9 }).unwrap_err().kind, AgentErrorKind::NotFound);
    assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
}

#[test]
fn a_child_that_writes_much_after_the_end_is_not_blocked() {
    let mut host = Host::bound();
    let mark = host.root.path().join("done");
    let script = format!("(sleep 0.5; head -c 8000000 /dev/zero && touch {}) & exit 0", mark.display());
    let spawn = host.script("root", &script);
    let exited = host.run(spawn).exited.unwrap();
    assert!(exited.pipes_held);
    let until = std::time::Instant::now() + PATIENCE;
    while !mark.exists() {
        assert!(std::time::Instant::now() < until, "the child was stopped");
        host.read_within(std::time::Duration::from_millis(5));
    }
}

#[test]
fn a_leader_that_closes_its_outputs_is_waited_for() {
    let mut host = Host::bound();
    let spawn = host.script("root", "echo x; exec >&- 2>&-; sleep 0.3; exit 5");
    let exited = host.run(spawn).exited.unwrap();
    assert_eq!((exited.code, exited.pipes_held), (Some(5), false));
}

#[test]
fn an_effect_happens_once() {
    let mut host = Host::bound();
    let count = host.root.path().join("count");
    let spawn = host.script("root", &format!("echo x >> {}; sleep 0.2", count.display()));
    // Twice while it starts, once while it runs, once after its end, once as a new host.
    let (first, second) = (host.next_call(), host.next_call());
    host.request(first, &Request::Spawn(spawn.clone()));
    host.request(second, &Request::Spawn(spawn.clone()));
    let reply = host.reply(first);
    assert_eq!(host.reply(second), reply);
    assert_eq!(host.call(&Request::Spawn(spawn.clone())), reply);
    host.finish(first);
    assert_eq!(host.call(&Request::Spawn(spawn.clone())), reply);
    assert_eq!(host.call(&Request::Forget { channel: first }), Ok(Reply::Done));
    host.bind(&[]);
    assert_eq!(host.call(&Request::Spawn(spawn)), reply);
    assert_eq!(std::fs::read_to_string(count).unwrap(), "x\n");
    let mut spawn = host.argv(&["no-such-program"]);
    spawn.effect = 777;
    let refused = host.call(&Request::Spawn(spawn.clone()));
    assert!(refused.is_err());
    assert_eq!(host.call(&Request::Spawn(spawn)), refused);
}

#[test]
fn sixty_four_at_once() {
    let mut host = Host::bound();
    let calls: Vec<u32> = (0..64)
        .map(|i| {
            let spawn = host.script("nobody", &format!("echo {i}; cat /dev/zero | head -c 100000; exit {i}"));
            let call = host.next_call();
            host.request(call, &Request::Spawn(spawn));
            call
        })
        .collect();
    for (i, call) in calls.iter().enumerate() {
        let seen = host.finish(*call);
        assert_eq!(seen.exited.unwrap().code, Some(i as i32));
        assert_eq!(seen.stdout.len(), 100_000 + format!("{i}\n").len());
    }
    nobody_left(&mut host);
}

#[test]
fn orphans_are_reaped_and_no_end_is_lost() {
    let mut host = Host::bound();
    for round in 0..10 {
        let calls: Vec<u32> = (0..16)
            .map(|_| {
                // Each leaves orphans that end at about the time the others are started.
                let spawn =
                    host.script("root", "for i in 1 2 3 4; do (setsid sleep 0.01 >/dev/null 2>&1 &); done; exit 7");
                let call = host.next_call();
                host.request(call, &Request::Spawn(spawn));
                call
            })
            .collect();
        for call in calls {
            assert_eq!(host.finish(call).exited.unwrap().code, Some(7), "round {round}");
        }
    }
    nobody_left(&mut host);
}

#[test]
fn the_agent_ignores_signals() {
    let mut host = Host::bound();
    let agent = rustix::process::Pid::from_raw(host.pid() as i32).unwrap();
    for signal in [
        rustix::process::Signal::TERM,
        rustix::process::Signal::INT,
        rustix::process::Signal::HUP,
        rustix::process::Signal::PIPE,
        rustix::process::Signal::USR1,
        rustix::process::Signal::CHILD,
    ] {
        rustix::process::kill_process(agent, signal).unwrap();
    }
    assert_eq!(host.call(&Request::Ping), Ok(Reply::Done));
}

#[test]
fn nothing_is_forgotten_while_it_runs() {
    let mut host = Host::bound();
    let spawn = host.argv(&["sleep", "100"]);
    let (channel, _) = host.start(spawn);
    assert_eq!(kind_of(host.call(&Request::Forget { channel })).0, AgentErrorKind::Invalid);
    assert_eq!(kind_of(host.call(&Request::Forget { channel: 12345 })).0, AgentErrorKind::NotFound);
}
