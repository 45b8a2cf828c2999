//! Guests that don't answer: the ends of what runs in them are told by the server, and said to be its word alone.

use std::time::Duration;

use remuda_client::wire::StartExecution;
use remuda_types::ExecutionState;
use rustix::process::{Pid, Signal, kill_process};

use crate::api::{Api, detached, exited, host_processes, script_of};

/// Processes of a sandbox that stand still without anybody being told, until this is dropped.
struct Frozen(Vec<Pid>);

impl Frozen {
    fn of(uid: &str) -> Frozen {
        let pids: Vec<Pid> = host_processes(uid, "runsc-sandbox").into_iter().filter_map(Pid::from_raw).collect();
        assert!(!pids.is_empty());
        let frozen = Frozen(pids);
        frozen.signal(Signal::STOP);
        frozen
    }

    fn signal(&self, signal: Signal) {
        for pid in &self.0 {
            kill_process(*pid, signal).unwrap();
        }
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        self.signal(Signal::CONT);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_of_what_a_guest_does_not_answer_for_is_told_by_the_server() {
    let api = Api::shared();
    let sandbox = api.create().await;
    let id = &sandbox.id;
    let limited = StartExecution { timeout_ms: Some(1_000), ..detached("echo begun; sleep 600") };
    let (running, said) = api.background(id, limited).await;
    assert_eq!(said, "begun\n");
    let cancelled = api.background(id, detached("echo begun; sleep 600")).await.0;
    let frozen = Frozen::of(sandbox.uid.as_str());
    // One that runs at its limit, one that is cancelled, and one that never gets to be started.
    let never = StartExecution { timeout_ms: Some(500), ..script_of("touch /tmp/ran; sleep 600") };
    let (limited, cancelled, never) =
        tokio::join!(api.ended(id, &running), api.client.cancel(id, &cancelled), api.client.execute(id, &never));
    let (cancelled, never) = (cancelled.unwrap(), never.unwrap());
    for (ended, state, code) in [
        (&limited, ExecutionState::TimedOut, 124),
        (&cancelled, ExecutionState::Cancelled, 137),
        (&never, ExecutionState::TimedOut, 124),
    ] {
        assert_eq!((ended.state, ended.exit_code, ended.unconfirmed), (state, Some(code), true), "{ended:?}");
    }
    assert_eq!((limited.output_bytes, never.pid), (6, None));
    drop(frozen);
    // It goes on, and what was killed is.
    let left = "while grep -qs '^sleep' /proc/[0-9]*/comm; do :; done; echo gone";
    assert_eq!(api.sh(id, left).await, "gone");
    for before in [limited, cancelled] {
        assert_eq!(api.client.execution(id, &before.id, Duration::ZERO).await.unwrap(), before);
    }
    api.remove(id).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fork_bomb_ends_at_its_time_limit_and_its_sandbox_goes_on_serving() {
    let api = Api::shared();
    let sandbox = api.create().await;
    let id = &sandbox.id;
    let bomb = "bomb() { bomb | bomb & }; bomb; while :; do :; done";
    let request = StartExecution { timeout_ms: Some(2_000), ..script_of(bomb) };
    let ended = api.client.execute(id, &request).await.unwrap();
    assert_eq!((ended.state, ended.exit_code), (ExecutionState::TimedOut, Some(124)), "{ended:?}");
    // Another one is served meanwhile.
    exited(&api.run(&api.create().await.id, "exit 3").await, 3);
    api.remove(id).await;
}
