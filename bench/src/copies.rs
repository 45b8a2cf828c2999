//! Copying a running server on both sides: a server started the same way, forked N times, from the request to all copies
//! answering over HTTP as the same process with the same work in its memory.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bytes::Bytes;
use remuda_client::{Client, HeaderMap, Method, WriteFile};
use remuda_types::SandboxId;
use remuda_types::wire::{Branch, CreateSandbox, ForkSandbox, StartExecution};

use crate::bare::{Bare, Program, Sandbox};
use crate::harness::Turn;
use crate::ours::Server;
use crate::worker::Identity;
use crate::world::World;

/// How long a server may take to answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// A server as both sides run it.
pub(crate) struct Served {
    /// Program and arguments.
    pub argv: Vec<String>,
    /// Where its files are in a guest, and where it is started.
    pub directory: &'static str,
    /// Its environment.
    pub env: Vec<(String, String)>,
    /// Its files, name and contents.
    pub files: Vec<(String, Vec<u8>)>,
    /// The port it listens on.
    pub port: u16,
    /// Path that tells its [`Identity`].
    pub status: &'static str,
    /// What it is given to do once it answers: path and JSON.
    pub work: Option<(&'static str, String)>,
    /// Number that its status must tell when it has what it was given.
    pub pending: u64,
    /// Memory of the sandbox in MiB; the server's default when absent.
    pub memory_mib: Option<u32>,
}

impl Served {
    fn program(&self) -> Program {
        let argv: Vec<&str> = self.argv.iter().map(String::as_str).collect();
        let env: Vec<(&str, &str)> = self.env.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        Program::new(&argv, self.directory, &env)
    }
}

/// A turn of ours: one fork.
pub(crate) fn ours<'a>(world: &'a World, server: &Server, served: Served, count: usize) -> anyhow::Result<Turn<'a>> {
    let client = server.client();
    let (id, source) = world.runtime.block_on(start(&client, &served))?;
    let source = Source { client, id, identity: source, served };
    Ok(Box::new(move || world.runtime.block_on(source.fork(count))))
}

/// A running server of ours.
struct Source {
    client: Client,
    id: SandboxId,
    identity: Identity,
    served: Served,
}

/// Starts a server in a sandbox of its own, and gives it its work.
pub(crate) async fn start(client: &Client, served: &Served) -> anyhow::Result<(SandboxId, Identity)> {
    let create = CreateSandbox { memory_mib: served.memory_mib, ..CreateSandbox::default() };
    let id = client.create_sandbox(&create).await?.id;
    for (name, contents) in &served.files {
        let options = WriteFile { parents: true, ..WriteFile::default() };
        client.write_file(&id, &format!("{}/{name}", served.directory), &options, contents.clone()).await?;
    }
    let start = StartExecution {
        argv: Some(served.argv.clone()),
        cwd: Some(served.directory.to_owned()),
        env: served.env.iter().cloned().collect(),
        ..StartExecution::default()
    };
    client.execute(&id, &start).await?;
    answer(client, &id, served).await?;
    if let Some((path, body)) = &served.work {
        let mut headers = HeaderMap::new();
        headers.insert("content-type", "application/json".parse()?);
        let posted = client.port_request(&id, served.port, Method::POST, path, headers, body.clone()).await?;
        anyhow::ensure!(posted.status().is_success(), "the server refused its work: {}", posted.status());
    }
    let source = Identity::of(&answer(client, &id, served).await?)?;
    source.check_prepared(served.pending)?;
    Ok((id, source))
}

/// Asks until the server answers.
pub(crate) async fn answer(client: &Client, id: &SandboxId, served: &Served) -> anyhow::Result<String> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let none = (HeaderMap::new(), Bytes::new());
        let got = client.port_request(id, served.port, Method::GET, served.status, none.0, none.1).await;
        let problem = match got {
            Ok(incoming) if incoming.status().is_success() => {
                return Ok(String::from_utf8(incoming.collect(1 << 20).await?.to_vec())?);
            }
            Ok(incoming) => format!("status {}", incoming.status()),
            Err(e) => e.to_string(),
        };
        anyhow::ensure!(Instant::now() < deadline, "the server in {id} did not answer in time; last: {problem}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

impl Source {
    async fn fork(&self, count: usize) -> anyhow::Result<Duration> {
        let request = ForkSandbox { count: u32::try_from(count)?, ..ForkSandbox::default() };
        let began = Instant::now();
        let fork = self.client.fork(&self.id, &request).await?;
        let mut branches = Vec::new();
        let mut failed = None;
        for branch in fork.branches {
            match branch {
                Branch::Sandbox(sandbox) => branches.push(sandbox.id),
                Branch::Error(e) => failed = Some(e),
            }
        }
        let asked = branches.iter().map(|branch| answer(&self.client, branch, &self.served));
        let answers = futures_util::future::join_all(asked).await;
        let took = began.elapsed();
        for branch in &branches {
            self.client.remove_sandbox(branch).await?;
        }
        self.client.remove_snapshot(fork.snapshot.id.as_str()).await?;
        if let Some(error) = failed {
            anyhow::bail!("a branch failed: {error}");
        }
        anyhow::ensure!(answers.len() == count, "{} branches instead of {count}", answers.len());
        for answer in answers {
            self.identity.check_copy(&Identity::of(&answer?)?)?;
        }
        Ok(took)
    }
}

/// A running server on the bare side, with where its images and layers go.
pub(crate) struct BareSource<'a> {
    bare: &'a Bare,
    sandbox: Sandbox<'a>,
    program: Program,
    identity: Identity,
    port: u16,
    status: &'static str,
    image: PathBuf,
    layer: PathBuf,
}

impl<'a> BareSource<'a> {
    /// Starts it, and gives it its work.
    pub(crate) fn start(bare: &'a Bare, served: &Served) -> anyhow::Result<BareSource<'a>> {
        let program = served.program();
        let mut sandbox = bare.prepare(&program)?;
        sandbox.mount(None)?;
        let directory = sandbox.root().join(served.directory.trim_start_matches('/'));
        fs::create_dir_all(&directory)?;
        for (name, contents) in &served.files {
            fs::write(directory.join(name), contents)?;
        }
        sandbox.run_detached()?;
        sandbox.network().first_answer(served.port, served.status, PATIENCE)?;
        if let Some((path, body)) = &served.work {
            let (status, told) = sandbox.network().post(served.port, path, body)?;
            anyhow::ensure!((200..300).contains(&status), "the server refused its work: {status} {told}");
        }
        let identity = Identity::of(&sandbox.network().first_answer(served.port, served.status, PATIENCE)?)?;
        identity.check_prepared(served.pending)?;
        let (image, layer) = (bare.scratch().join("image"), bare.scratch().join("layer"));
        Ok(BareSource { bare, sandbox, program, identity, port: served.port, status: served.status, image, layer })
    }

    /// pause + checkpoint, the freeze, resume: how long it took.
    pub(crate) fn capture(&self) -> anyhow::Result<Duration> {
        let began = Instant::now();
        self.sandbox.pause()?;
        let captured = self.sandbox.checkpoint(&self.image).and_then(|()| self.sandbox.freeze(&self.layer));
        self.sandbox.resume()?;
        captured?;
        Ok(began.elapsed())
    }

    /// Removes what a capture has made.
    pub(crate) fn discard(&self) -> anyhow::Result<()> {
        for leftover in [&self.image, &self.layer].into_iter().filter(|path| path.exists()) {
            fs::remove_dir_all(leftover)?;
        }
        Ok(())
    }

    /// A capture, then so many restores side by side, each to its first answer. Making the branches' namespaces and
    /// mounts is not timed.
    fn fork(&self, count: usize) -> anyhow::Result<Duration> {
        let mut branches: Vec<Sandbox<'_>> =
            (0..count).map(|_| self.bare.prepare(&self.program)).collect::<Result<_, _>>()?;
        let capture = self.capture()?;
        for branch in &mut branches {
            branch.mount(Some(&self.layer))?;
        }
        let began = Instant::now();
        let answers = side_by_side(&branches, |branch| {
            branch.restore(&self.image)?;
            branch.network().first_answer(self.port, self.status, PATIENCE)
        });
        let restores = began.elapsed();
        for answer in answers {
            self.identity.check_copy(&Identity::of(&answer?)?)?;
        }
        Ok(capture + restores)
    }
}

fn side_by_side<T: Send>(
    branches: &[Sandbox<'_>],
    work: impl Fn(&Sandbox<'_>) -> anyhow::Result<T> + Sync,
) -> Vec<anyhow::Result<T>> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = branches.iter().map(|branch| scope.spawn(|| work(branch))).collect();
        let joined = threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a thread that restores panicked"))));
        joined.collect()
    })
}

/// A turn of the bare side: one fork.
pub(crate) fn peer<'a>(bare: &'a Bare, served: &Served, count: usize) -> anyhow::Result<Turn<'a>> {
    let source = BareSource::start(bare, served)?;
    Ok(Box::new(move || {
        let took = source.fork(count);
        source.discard()?;
        took
    }))
}

/// A turn of the bare side: one server started on a captured file system, to its first answer.
pub(crate) fn peer_launch<'a>(bare: &'a Bare, served: Served) -> anyhow::Result<Turn<'a>> {
    let layer: PathBuf = bare.scratch().join("launched");
    let directory = layer.join(served.directory.trim_start_matches('/'));
    fs::create_dir_all(&directory)?;
    for (name, contents) in &served.files {
        fs::write(directory.join(name), contents)?;
    }
    Ok(Box::new(move || launch(bare, &served, &layer)))
}

fn launch(bare: &Bare, served: &Served, layer: &Path) -> anyhow::Result<Duration> {
    let mut sandbox = bare.prepare(&served.program())?;
    sandbox.mount(Some(layer))?;
    let began = Instant::now();
    sandbox.run_detached()?;
    sandbox.network().first_answer(served.port, served.status, PATIENCE)?;
    Ok(began.elapsed())
}
