//! The benchmark `exec`: commands in a running sandbox, against `podman exec`, against what the guest itself can spawn,
//! and against `runsc exec` for what a command prints; and what the agent takes of the guest.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use remuda_client::{Client, OutputQuery};
use remuda_types::wire::{CreateSandbox, Execution, StartExecution};
use remuda_types::{ExecutionState, SandboxId};

use crate::bare::{Bare, Program};
use crate::harness::{Contender, Contest, Figure, Goal, Side, Turn};
use crate::ours::{self, Server};
use crate::podman::Podman;
use crate::world::World;

/// Long enough for the processors to sleep.
const IDLE: Duration = Duration::from_millis(200);
/// Commands of one turn that run many at once.
const MANY: usize = 320;
/// Of them at once.
const AT_ONCE: usize = 32;
/// Bytes of output.
const OUTPUT_BYTES: u64 = 1 << 30;
/// Prints so much, in lines, as fast as it can.
const PRINTS: &str = "import os
piece = (b'x' * 127 + b'\\n') * 2048
for _ in range(4096): os.write(1, piece)
";
/// Spawns `true` and waits for it, again and again: nanoseconds of each, after a pause of so many seconds.
const SPAWNS: &str = "import os, sys, time
count, pause = int(sys.argv[1]), float(sys.argv[2])
env = {'PATH': '/usr/bin:/bin'}
for _ in range(3): os.waitpid(os.posix_spawn('/bin/true', ['true'], env), 0)
for _ in range(count):
    time.sleep(pause)
    began = time.perf_counter_ns()
    os.waitpid(os.posix_spawn('/bin/true', ['true'], env), 0)
    print(time.perf_counter_ns() - began)
";
/// Spawns so many, so many at once; nanoseconds of all.
const SPAWNS_MANY: &str = "import os, sys, time
count, at_once = int(sys.argv[1]), int(sys.argv[2])
env = {'PATH': '/usr/bin:/bin'}
spawn = lambda: os.posix_spawn('/bin/true', ['true'], env)
for _ in range(3): spawn(); os.wait()
began = time.perf_counter_ns()
for number in range(count):
    if number >= at_once: os.wait()
    spawn()
for _ in range(min(count, at_once)): os.wait()
print(time.perf_counter_ns() - began)
";

/// The sandbox of our side.
struct Ours {
    _server: Server,
    client: Client,
    id: SandboxId,
    socket: PathBuf,
}

/// Takes all figures.
pub(crate) fn figures(world: &World, rounds: usize) -> anyhow::Result<Vec<Figure>> {
    let ours = start(world).map_err(|e| format!("{e:#}"));
    let installed = world.installed.clone();
    let podman = installed.and_then(|i| Podman::start(&i.base, &world.scratch).map_err(|e| format!("{e:#}")));
    let mut figures = Vec::new();
    for (name, goal, pause) in [
        ("exec `true`", Goal::RatioAtMost(0.4), Duration::ZERO),
        ("exec `true` after 200 ms of idleness", Goal::RatioAtMost(0.4), IDLE),
    ] {
        let contest = Contest { name, rounds: rounds * 4, warm_ups: 3, goal };
        let theirs = turn(&podman, |podman| {
            Box::new(move || {
                std::thread::sleep(pause);
                let began = Instant::now();
                podman.exec(&["true"])?;
                Ok(began.elapsed())
            })
        });
        let side = podman.as_ref().map_or_else(|_| Podman::unknown(), Podman::side);
        figures.push(contest.run(mine(world, &ours, pause), Some(Contender { side, turn: theirs })));
    }
    drop(podman);
    for (name, pause) in [
        ("exec `true`, against a spawn in the guest", Duration::ZERO),
        ("exec `true` after 200 ms of idleness, against a spawn in the guest after it", IDLE),
    ] {
        // A turn of the guest's is the median of some.
        let contest = Contest { name, rounds: rounds * 2, warm_ups: 1, goal: Goal::MillisecondsMoreAtMost(2.0) };
        let guest = turn(&ours, |ours| Box::new(move || guest_spawns(world, ours, pause)));
        let peer = Contender { side: guest_side("a spawn of its own"), turn: guest };
        figures.push(contest.run(mine(world, &ours, pause), Some(peer)));
    }
    let contest = Contest {
        name: "320 × `true`, 32 at once, against the guest's own spawning",
        rounds,
        warm_ups: 1,
        goal: Goal::RatioAtMost(1.0 / 0.85),
    };
    let many = turn(&ours, |ours| Box::new(move || at_once(world, ours)));
    let guest = turn(&ours, |ours| Box::new(move || guest_at_once(world, ours)));
    let mine = Contender { side: ours::side(&world.remuda), turn: many };
    figures.push(contest.run(mine, Some(Contender { side: guest_side("32 at once of its own"), turn: guest })));
    figures.extend(output(world, &ours, rounds.div_ceil(3)));
    figures.extend(agent(world, &ours));
    Ok(figures)
}

fn turn<'a, T>(side: &'a Result<T, String>, make: impl FnOnce(&'a T) -> Turn<'a>) -> Result<Turn<'a>, String> {
    side.as_ref().map(make).map_err(Clone::clone)
}

fn guest_side(what: &str) -> Side {
    Side {
        name: "the guest itself".to_owned(),
        version: what.to_owned(),
        flags: vec!["python3, posix_spawn".to_owned()],
    }
}

fn start(world: &World) -> anyhow::Result<Ours> {
    let server = Server::start(&world.remuda, &world.scratch)?;
    let client = server.client();
    let id = world.runtime.block_on(client.create_sandbox(&CreateSandbox::default()))?.id;
    Ok(Ours { _server: server, client, id, socket: world.scratch.join("data/remuda.sock") })
}

fn call(argv: &[&str], wait_ms: u64) -> StartExecution {
    let argv = Some(argv.iter().map(|word| (*word).to_owned()).collect());
    StartExecution { argv, wait_ms: Some(wait_ms), ..StartExecution::default() }
}

fn ended_well(execution: &Execution) -> anyhow::Result<()> {
    anyhow::ensure!(
        execution.state == ExecutionState::Exited && execution.exit_code == Some(0),
        "the command ended as {} with {:?}: {}",
        execution.state,
        execution.exit_code,
        execution.stderr.as_deref().unwrap_or_default()
    );
    Ok(())
}

fn mine<'a>(world: &'a World, ours: &'a Result<Ours, String>, pause: Duration) -> Contender<'a> {
    let mine = turn(ours, |ours| {
        let call = call(&["true"], 10_000);
        Box::new(move || {
            std::thread::sleep(pause);
            let began = Instant::now();
            let execution = world.runtime.block_on(ours.client.execute(&ours.id, &call))?;
            let took = began.elapsed();
            ended_well(&execution)?;
            Ok(took)
        })
    });
    Contender { side: ours::side(&world.remuda), turn: mine }
}

fn said(world: &World, ours: &Ours, argv: &[&str]) -> anyhow::Result<String> {
    let execution = world.runtime.block_on(ours.client.execute(&ours.id, &call(argv, 120_000)))?;
    ended_well(&execution)?;
    Ok(execution.stdout.unwrap_or_default())
}

fn guest_spawns(world: &World, ours: &Ours, pause: Duration) -> anyhow::Result<Duration> {
    let pause = pause.as_secs_f64().to_string();
    let told = said(world, ours, &["python3", "-c", SPAWNS, "5", &pause])?;
    let mut nanoseconds = told.lines().map(str::parse).collect::<Result<Vec<u64>, _>>()?;
    nanoseconds.sort_unstable();
    let median = nanoseconds.get(nanoseconds.len() / 2).context("the guest told no times")?;
    Ok(Duration::from_nanos(*median))
}

fn guest_at_once(world: &World, ours: &Ours) -> anyhow::Result<Duration> {
    let told = said(world, ours, &["python3", "-c", SPAWNS_MANY, &MANY.to_string(), &AT_ONCE.to_string()])?;
    Ok(Duration::from_nanos(told.trim().parse()?))
}

fn at_once(world: &World, ours: &Ours) -> anyhow::Result<Duration> {
    let began = Instant::now();
    world.runtime.block_on(async {
        let mut callers = tokio::task::JoinSet::new();
        for _ in 0..AT_ONCE {
            let (client, id) = (ours.client.clone(), ours.id.clone());
            callers.spawn(async move {
                for _ in 0..MANY / AT_ONCE {
                    ended_well(&client.execute(&id, &call(&["true"], 60_000)).await?)?;
                }
                anyhow::Ok(())
            });
        }
        while let Some(caller) = callers.join_next().await {
            caller??;
        }
        anyhow::Ok(())
    })?;
    Ok(began.elapsed())
}

/// What a command prints, as events, against `runsc exec … > file`; and the agent's memory meanwhile.
fn output(world: &World, ours: &Result<Ours, String>, rounds: usize) -> [Figure; 2] {
    let mut most: f64 = 0.0;
    let contest = Contest {
        name: "1 GiB of output as events, against `runsc exec … > file`",
        rounds,
        warm_ups: 1,
        goal: Goal::RatioAtMost(2.0),
    };
    let bare = world
        .installed
        .clone()
        .and_then(|i| Bare::new(&i.runsc, &i.base, &world.scratch.join("bare")).map_err(|e| format!("{e:#}")));
    let side = bare.as_ref().map_or_else(
        |_| Side { name: "bare runsc".to_owned(), version: "unknown".to_owned(), flags: Vec::new() },
        Bare::side,
    );
    let theirs =
        bare.as_ref().map_err(Clone::clone).and_then(|bare| printing(world, bare).map_err(|e| format!("{e:#}")));
    let mine = turn(ours, |ours| {
        let most = &mut most;
        Box::new(move || {
            let (took, mebibytes) = events(world, ours)?;
            *most = most.max(mebibytes);
            Ok(took)
        })
    });
    let figure =
        contest.run(Contender { side: ours::side(&world.remuda), turn: mine }, Some(Contender { side, turn: theirs }));
    let memory = Figure::of_value(
        "memory of the agent while 1 GiB of output goes through it, MiB",
        ours::side(&world.remuda),
        ours.as_ref().map(|_| most).map_err(Clone::clone),
        Goal::MebibytesAtMost(32.0),
    );
    [figure, memory]
}

fn printing<'a>(world: &'a World, bare: &'a Bare) -> anyhow::Result<Turn<'a>> {
    let mut sandbox = bare.prepare(&Program::new(&["sleep", "infinity"], "/", &[]))?;
    sandbox.mount(None)?;
    sandbox.run_detached()?;
    let file = world.scratch.join("printed");
    Ok(Box::new(move || {
        let began = Instant::now();
        sandbox.exec_into(&["python3", "-c", PRINTS], &file)?;
        let took = began.elapsed();
        let length = std::fs::metadata(&file)?.len();
        anyhow::ensure!(length == OUTPUT_BYTES, "{length} bytes came");
        std::fs::remove_file(&file)?;
        Ok(took)
    }))
}

/// Starts the command and reads its events to their end, as they come over the connection.
fn events(world: &World, ours: &Ours) -> anyhow::Result<(Duration, f64)> {
    let began = Instant::now();
    let execution = world.runtime.block_on(ours.client.execute(&ours.id, &call(&["python3", "-c", PRINTS], 0)))?;
    let mut socket = UnixStream::connect(&ours.socket)?;
    let path = format!("/v1/sandboxes/{}/executions/{}/events", ours.id, execution.id);
    write!(socket, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")?;
    let mut piece = vec![0; 256 << 10];
    let (mut tail, mut came, mut most) = (Vec::new(), 0u64, 0.0f64);
    loop {
        let got = socket.read(&mut piece)?;
        if got == 0 {
            break;
        }
        let before = came >> 28;
        came += got as u64;
        let seen = piece.get(..got).unwrap_or_default();
        anyhow::ensure!(memchr::memmem::find(seen, b"event: gap").is_none(), "output was dropped on the way");
        tail.extend_from_slice(seen.get(got.saturating_sub(4096)..).unwrap_or_default());
        let excess = tail.len().saturating_sub(4096);
        tail.drain(..excess);
        if came >> 28 != before {
            most = most.max(agent_mebibytes(world, ours)?);
        }
    }
    let took = began.elapsed();
    let end = format!("id: {OUTPUT_BYTES}-ended");
    anyhow::ensure!(memchr::memmem::find(&tail, end.as_bytes()).is_some(), "the events ended before the output did");
    let query = OutputQuery { offset: OUTPUT_BYTES, ..OutputQuery::default() };
    let page = world.runtime.block_on(ours.client.output(&ours.id, &execution.id, &query))?;
    anyhow::ensure!(page.complete && page.next_offset == OUTPUT_BYTES, "it printed {} bytes", page.next_offset);
    Ok((took, most))
}

fn agent_mebibytes(world: &World, ours: &Ours) -> anyhow::Result<f64> {
    let told = said(world, ours, &["grep", "VmRSS", "/proc/1/status"])?;
    let kibibytes = told.split_whitespace().nth(1).context("the guest tells no VmRSS")?;
    Ok(kibibytes.parse::<f64>()? / 1024.0)
}

/// What the agent is by itself.
fn agent(world: &World, ours: &Result<Ours, String>) -> [Figure; 2] {
    let side = || ours::side(&world.remuda);
    let idle = ours.as_ref().map_err(Clone::clone).and_then(|ours| {
        std::thread::sleep(IDLE);
        agent_mebibytes(world, ours).map_err(|e| format!("{e:#}"))
    });
    let binary = world.target.join("guest/x86_64-unknown-linux-gnu/guest/remuda-agent");
    let size = std::fs::metadata(&binary).map(|meta| meta.len() as f64 / f64::from(1 << 20));
    let size = size.map_err(|e| format!("cannot look at {}: {e}", binary.display()));
    [
        Figure::of_value("memory of the idle agent, MiB", side(), idle, Goal::MebibytesAtMost(4.0)),
        Figure::of_value("size of the agent's binary, MiB", side(), size, Goal::MebibytesAtMost(4.0)),
    ]
}
