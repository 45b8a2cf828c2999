//! What the agent costs when nothing is asked of it.

use remuda_guest_proto::*;

use crate::host::*;

/// How long idleness is watched. A timer that wakes less often than this is not one to fear.
const WATCHED: std::time::Duration = std::time::Duration::from_millis(1500);

#[test]
fn nothing_wakes_an_idle_agent() {
    let mut host = Host::bound();
    // Some of everything: a program at rest, one that is blocked by the window, one that has ended and leaves its pipes
    // to another, one that is forgotten.
    let mut spawn = host.script("root", "cat; exit 0");
    spawn.stdin = true;
    host.start(spawn);
    let spawn = host.script("root", "sleep 1000 & exit 0");
    host.run(spawn);
    let spawn = host.argv(&["true"]);
    let (channel, _) = host.start(spawn);
    host.finish(channel);
    assert_eq!(host.call(&Request::Forget { channel }), Ok(Reply::Done));
    host.credit = false;
    let spawn = host.argv(&["cat", "/dev/zero"]);
    let (channel, _) = host.start(spawn);
    host.wait_until("a window", |host| host.seen[&channel].at == WINDOW_BYTES);
    // The last of it may still be settling.
    let mut before = host.switches();
    let until = std::time::Instant::now() + PATIENCE;
    loop {
        assert!(!host.read_within(WATCHED), "an idle agent has nothing to say");
        let now = host.switches();
        if now == before {
            break;
        }
        assert!(std::time::Instant::now() < until, "{} switches while nothing was to be done", now - before);
        before = now;
    }
}
