//! Fork of the worker 1 → 3: from the request to all three answering over HTTP.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use bytes::Bytes;
use remuda_client::{Client, HeaderMap, Method, WriteFile};
use remuda_types::SandboxId;
use remuda_types::wire::{Branch, CreateSandbox, ForkSandbox, StartExecution};

use super::Sides;
use crate::bare::{Bare, Program, Sandbox};
use crate::harness::{Contest, Figure, Goal, Turn};
use crate::ours::Server;
use crate::worker::{self, Identity};
use crate::world::World;

/// How many branches.
const BRANCHES: usize = 3;
/// How long a worker may take to answer.
const PATIENCE: Duration = Duration::from_secs(20);

pub(super) fn figure(world: &World, sides: &Sides, rounds: usize) -> Figure {
    let contest = Contest {
        name: "fork of the worker 1 → 3, request to all three answering",
        rounds,
        warm_ups: 1,
        goal: Goal::RatioAtMost(0.9),
    };
    contest.run(sides.ours(|server| ours(world, server)), Some(sides.peer(|bare| peer(world, bare))))
}

fn ours<'a>(world: &'a World, server: &'a Server) -> anyhow::Result<Turn<'a>> {
    let client = server.client();
    let (id, source) = world.runtime.block_on(start_worker(world, &client))?;
    Ok(Box::new(move || world.runtime.block_on(fork(&client, &id, &source))))
}

async fn start_worker(world: &World, client: &Client) -> anyhow::Result<(SandboxId, Identity)> {
    let sandbox = client.create_sandbox(&CreateSandbox::default()).await?;
    for (name, contents) in worker::files(&world.project)? {
        let options = WriteFile { parents: true, ..WriteFile::default() };
        client.write_file(&sandbox.id, &format!("{}/{name}", worker::DIRECTORY), &options, contents).await?;
    }
    let start = StartExecution {
        argv: Some(worker::ARGV.map(str::to_owned).to_vec()),
        cwd: Some(worker::DIRECTORY.to_owned()),
        env: worker::ENV.map(|(k, v)| (k.to_owned(), v.to_owned())).into(),
        ..StartExecution::default()
    };
    client.execute(&sandbox.id, &start).await?;
    answer(client, &sandbox.id).await?;
    let mut headers = HeaderMap::new();
    headers.insert("content-type", "application/json".parse()?);
    let body = worker::jobs().to_string();
    let posted = client.port_request(&sandbox.id, worker::PORT, Method::POST, "/jobs", headers, body).await?;
    anyhow::ensure!(posted.status().is_success(), "the worker refused the jobs: {}", posted.status());
    let source = Identity::of(&answer(client, &sandbox.id).await?)?;
    source.check_prepared()?;
    Ok((sandbox.id, source))
}

/// Asks until the worker answers.
async fn answer(client: &Client, id: &SandboxId) -> anyhow::Result<String> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let got = client.port_request(id, worker::PORT, Method::GET, "/status", HeaderMap::new(), Bytes::new()).await;
        let problem = match got {
            Ok(incoming) if incoming.status().is_success() => {
                return Ok(String::from_utf8(incoming.collect(1 << 20).await?.to_vec())?);
            }
            Ok(incoming) => format!("status {}", incoming.status()),
            Err(e) => e.to_string(),
        };
        anyhow::ensure!(Instant::now() < deadline, "the worker in {id} did not answer in time; last: {problem}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

async fn fork(client: &Client, id: &SandboxId, source: &Identity) -> anyhow::Result<Duration> {
    let request = ForkSandbox { count: u32::try_from(BRANCHES)?, ..ForkSandbox::default() };
    let began = Instant::now();
    let fork = client.fork(id, &request).await?;
    let mut branches = Vec::new();
    let mut failed = None;
    for branch in fork.branches {
        match branch {
            Branch::Sandbox(sandbox) => branches.push(sandbox.id),
            Branch::Error(e) => failed = Some(e),
        }
    }
    let tasks: Vec<_> = branches
        .iter()
        .map(|branch| {
            let (client, branch) = (client.clone(), branch.clone());
            tokio::spawn(async move { answer(&client, &branch).await })
        })
        .collect();
    let mut answers = Vec::new();
    for task in tasks {
        answers.push(task.await?);
    }
    let took = began.elapsed();
    for branch in &branches {
        client.remove_sandbox(branch).await?;
    }
    client.remove_snapshot(fork.snapshot.id.as_str()).await?;
    if let Some(error) = failed {
        anyhow::bail!("a branch failed: {error}");
    }
    anyhow::ensure!(answers.len() == BRANCHES, "{} branches instead of {BRANCHES}", answers.len());
    for answer in answers {
        source.check_copy(&Identity::of(&answer?)?)?;
    }
    Ok(took)
}

fn peer<'a>(world: &'a World, bare: &'a Bare) -> anyhow::Result<Turn<'a>> {
    let program = Program::new(&worker::ARGV, worker::DIRECTORY, &worker::ENV);
    let mut source = bare.prepare(&program)?;
    source.mount(None)?;
    let directory = source.root().join(worker::DIRECTORY.trim_start_matches('/'));
    fs::create_dir_all(&directory)?;
    for (name, contents) in worker::files(&world.project)? {
        fs::write(directory.join(name), contents)?;
    }
    source.run_detached()?;
    source.network().first_answer(worker::PORT, "/status", PATIENCE)?;
    let (status, told) = source.network().post(worker::PORT, "/jobs", &worker::jobs().to_string())?;
    anyhow::ensure!((200..300).contains(&status), "the worker refused the jobs: {status} {told}");
    let identity = Identity::of(&source.network().first_answer(worker::PORT, "/status", PATIENCE)?)?;
    identity.check_prepared()?;
    let (image, layer) = (bare.scratch().join("image"), bare.scratch().join("layer"));
    Ok(Box::new(move || {
        let took = bare_fork(bare, &source, &program, &image, &layer, &identity);
        for leftover in [&image, &layer] {
            if leftover.exists() {
                fs::remove_dir_all(leftover)?;
            }
        }
        took
    }))
}

/// pause + checkpoint, the freeze, resume, then three restores side by side, each to its first answer. Making the
/// branches' namespaces and mounts is not timed.
fn bare_fork(
    bare: &Bare,
    source: &Sandbox<'_>,
    program: &Program,
    image: &Path,
    layer: &Path,
    identity: &Identity,
) -> anyhow::Result<Duration> {
    let mut branches: Vec<Sandbox<'_>> = (0..BRANCHES).map(|_| bare.prepare(program)).collect::<Result<_, _>>()?;
    let began = Instant::now();
    source.pause()?;
    let captured = source.checkpoint(image).and_then(|()| source.freeze(layer));
    source.resume()?;
    captured?;
    let capture = began.elapsed();

    for branch in &mut branches {
        branch.mount(Some(layer))?;
    }

    let began = Instant::now();
    let answers: Vec<anyhow::Result<String>> = std::thread::scope(|scope| {
        let threads: Vec<_> = branches
            .iter()
            .map(|branch| {
                scope.spawn(|| {
                    branch.restore(image)?;
                    branch.network().first_answer(worker::PORT, "/status", PATIENCE)
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|t| t.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a thread that restores panicked"))))
            .collect()
    });
    let restores = began.elapsed();
    for answer in answers {
        identity.check_copy(&Identity::of(&answer?)?)?;
    }
    Ok(capture + restores)
}
