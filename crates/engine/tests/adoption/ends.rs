//! Machines that end, wholly or in part, while there is no server, and strangers that have their pids.

use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use remuda_engine::{Adopted, Death, Engine, HostFacts, ProcessFacts};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

use crate::server::*;

async fn death(world: &World, engine: &Engine, facts: &HostFacts) -> Death {
    match tokio::time::timeout(PATIENCE, engine.adopt(&world.uid, facts)).await.unwrap().unwrap() {
        Adopted::Ended(death) => death,
        other => panic!("{other:?}"),
    }
}

/// Waits until all of a process has ended: a leader that has ended may have threads that have not.
fn wait_for_end(process: ProcessFacts) {
    let Ok(held) = pidfd_open(Pid::from_raw(process.pid).unwrap(), PidfdFlags::empty()) else { return };
    let patience = Timespec::try_from(PATIENCE).unwrap();
    assert_eq!(poll(&mut [PollFd::new(&held, PollFlags::IN)], Some(&patience)).unwrap(), 1, "{process:?} goes on");
}

fn has_ended(process: ProcessFacts) -> bool {
    let Ok(held) = pidfd_open(Pid::from_raw(process.pid).unwrap(), PidfdFlags::empty()) else { return true };
    poll(&mut [PollFd::new(&held, PollFlags::IN)], Some(&Timespec::default())).unwrap() == 1
}

fn kill(process: ProcessFacts) {
    kill_process(Pid::from_raw(process.pid).unwrap(), Signal::KILL).unwrap();
    wait_for_end(process);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_that_lost_a_process_is_ended_whole() {
    for of in [|f: &HostFacts| (f.sentry, f.gofer), |f: &HostFacts| (f.gofer, f.sentry)] {
        let world = World::new();
        let (server, facts) = Server::raised(&world);
        server.kill();
        let (victim, other) = of(&facts);
        kill(victim);
        let engine = world.engine();
        assert_eq!(death(&world, &engine, &facts).await, Death::Ended);
        assert!(has_ended(other));
        world.clear(&engine).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn want_of_memory_that_nobody_saw_is_told() {
    let world = World::new();
    let (server, facts) = Server::raised(&world);
    server.kill();
    let engine = world.engine();
    // As a program does by itself, at any time.
    std::fs::write(engine.dirs().sandbox(&world.uid).fifo_in(), "eat\n").unwrap();
    let events = memory_events(&engine, &world);
    let until = Instant::now() + PATIENCE;
    while !std::fs::read_to_string(&events).unwrap().lines().any(|l| l.starts_with("oom_kill ") && !l.ends_with(" 0")) {
        assert!(Instant::now() < until, "it never ran out of memory");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(death(&world, &engine, &facts).await, Death::OutOfMemory);
    assert!(has_ended(facts.sentry) && has_ended(facts.gofer));
    world.clear(&engine).await;
}

fn memory_events(engine: &Engine, world: &World) -> std::path::PathBuf {
    let group = format!("remuda-{}/{}", engine.dirs().instance(), world.uid);
    let places = ["/sys/fs/cgroup/memory", "/sys/fs/cgroup", "/sys/fs/cgroup/unified"];
    let files = ["memory.oom_control", "memory.events"];
    let all = places.iter().flat_map(|place| files.map(|file| Path::new(place).join(&group).join(file)));
    all.into_iter().find(|path| path.exists()).expect("the machine's memory group")
}

struct Stranger(Child);

impl Drop for Stranger {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stranger_under_a_recorded_pid_is_never_signalled() {
    let world = World::new();
    let (server, facts) = Server::raised(&world);
    server.kill();
    let engine = world.engine();
    let mut stranger = Stranger(Command::new("sleep").arg("600").spawn().unwrap());
    let pid = stranger.0.id() as i32;
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let started = stat.rsplit(')').next().unwrap().split_whitespace().nth(19).unwrap().parse().unwrap();
    // One that started at another time than the recorded one, and, worse, one that started at the very same.
    for start_ticks in [facts.sentry.start_ticks, started] {
        let reused = ProcessFacts { pid, start_ticks };
        for facts in [
            HostFacts { sentry: reused, ..facts.clone() },
            HostFacts { gofer: reused, ..facts.clone() },
            HostFacts { sentry: reused, gofer: reused, ..facts.clone() },
        ] {
            assert_eq!(death(&world, &engine, &facts).await, Death::Ended);
        }
    }
    world.clear(&engine).await;
    assert!(stranger.0.try_wait().unwrap().is_none(), "the stranger was ended");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_killed_at_any_moment_of_a_start_leaves_nothing_that_cannot_be_removed() {
    for delay_ms in [0, 3, 10, 20, 30, 45, 60, 80, 100, 130] {
        let world = World::new();
        let server = Server::start(&world);
        server.answer("prepared ");
        // No event says where in its start a runsc is: moments are tried.
        std::thread::sleep(Duration::from_millis(delay_ms));
        server.kill();
        let engine = world.engine();
        assert!(engine.leftovers().unwrap().machines.contains(&world.uid));
        world.clear(&engine).await;
    }
}
