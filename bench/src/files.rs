//! The benchmark `files`: contents on their way into a sandbox and out of it, against `podman cp`. Both sides move the same
//! bytes between a file here and one in the guest; a turn looks whether they arrived.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use remuda_client::{Client, WriteTree};
use remuda_types::SandboxId;
use remuda_types::wire::CreateSandbox;

use crate::harness::{Contender, Contest, Figure, Goal, Turn};
use crate::ours::{self, Server};
use crate::podman::Podman;
use crate::world::World;

/// Length of the one large file.
const LARGE_BYTES: u64 = 1 << 30;
/// How many small files.
const SMALL_FILES: usize = 10_000;
/// Length of each, on average.
const SMALL_BYTES: usize = 2_000;
/// At least 0.7 × the peer's throughput.
const OF_PEERS_TIME: f64 = 1.0 / 0.7;

/// What both sides move.
struct Things {
    large: PathBuf,
    archive: PathBuf,
    back: PathBuf,
}

/// The sandbox of our side.
struct Ours {
    server: Server,
    client: Client,
    id: SandboxId,
    remuda: PathBuf,
    data: PathBuf,
}

/// Takes all four figures.
pub(crate) fn figures(world: &World, rounds: usize) -> anyhow::Result<Vec<Figure>> {
    // Each turn moves a gigabyte.
    let rounds = rounds.div_ceil(2);
    let things = things(&world.scratch)?;
    let ours = start(world).map_err(|e| format!("{e:#}"));
    let peer = world
        .installed
        .clone()
        .and_then(|installed| Podman::start(&installed.base, &world.scratch).map_err(|e| format!("{e:#}")));
    let contest = |name, goal| Contest { name, rounds, warm_ups: 1, goal };
    let large = Goal::RatioAtMost(OF_PEERS_TIME);
    let run = |contest: Contest<'_>,
               mine: fn(&World, &Ours, &Things) -> anyhow::Result<Duration>,
               theirs: fn(&Podman, &Things) -> anyhow::Result<Duration>| {
        let things = &things;
        let mine: Result<Turn<'_>, String> =
            ours.as_ref().map(|ours| Box::new(move || mine(world, ours, things)) as Turn<'_>).map_err(Clone::clone);
        let side = peer.as_ref().map_or_else(|_| Podman::unknown(), Podman::side);
        let theirs: Result<Turn<'_>, String> =
            peer.as_ref().map(|peer| Box::new(move || theirs(peer, things)) as Turn<'_>).map_err(Clone::clone);
        let ours = Contender { side: ours::side(&world.remuda), turn: mine };
        contest.run(ours, Some(Contender { side, turn: theirs }))
    };
    Ok(vec![
        run(contest("1 GiB into the guest, `remuda cp`", large), up, peer_up),
        run(contest("1 GiB out of the guest, `remuda cp`", large), down, peer_down),
        run(contest("10,000 small files into the guest, as tar", Goal::RatioAtMost(1.0)), tree_up, peer_tree_up),
        run(contest("10,000 small files out of the guest, as tar", Goal::RatioAtMost(1.0)), tree_down, peer_tree_down),
    ])
}

fn start(world: &World) -> anyhow::Result<Ours> {
    let server = Server::start(&world.remuda, &world.scratch)?;
    let client = server.client();
    let id = world.runtime.block_on(client.create_sandbox(&CreateSandbox::default()))?.id;
    Ok(Ours { server, client, id, remuda: world.remuda.clone(), data: world.scratch.join("data") })
}

/// Files that no side can make shorter: numbers of a generator that is always begun the same.
fn things(scratch: &Path) -> anyhow::Result<Things> {
    let things =
        Things { large: scratch.join("large"), archive: scratch.join("small.tar"), back: scratch.join("back") };
    let mut noise = Noise(0x9e37_79b9_7f4a_7c15);
    let mut piece = vec![0; 1 << 20];
    let mut large = File::create(&things.large)?;
    for _ in 0..LARGE_BYTES >> 20 {
        noise.fill(&mut piece);
        large.write_all(&piece)?;
    }
    let small = scratch.join("small");
    for number in 0..SMALL_FILES {
        let directory = small.join(format!("d{:02}", number % 100));
        if number < 100 {
            fs::create_dir_all(&directory)?;
        }
        let length = noise.next() as usize % (2 * SMALL_BYTES);
        noise.fill(&mut piece[..length]);
        fs::write(directory.join(format!("f{number}")), &piece[..length])?;
    }
    let tar = Command::new("tar").arg("-cf").arg(&things.archive).arg("-C").arg(&small).arg(".").status();
    anyhow::ensure!(tar.context("cannot run tar")?.success(), "`tar` made no archive");
    fs::remove_dir_all(&small)?;
    // What the disk still writes of all this is nobody's time.
    rustix::fs::sync();
    Ok(things)
}

struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn fill(&mut self, bytes: &mut [u8]) {
        for eight in bytes.chunks_mut(8) {
            let number = self.next().to_le_bytes();
            eight.copy_from_slice(&number[..eight.len()]);
        }
    }
}

fn cp(ours: &Ours, from: &str, to: &str) -> anyhow::Result<Duration> {
    let began = Instant::now();
    let output = Command::new(&ours.remuda)
        .args(["cp", from, to])
        .env("REMUDA_DATA_DIR", &ours.data)
        .env("XDG_STATE_HOME", &ours.data)
        .env_remove("REMUDA_URL")
        .stdin(Stdio::null())
        .output()
        .context("cannot run `remuda cp`")?;
    let took = began.elapsed();
    let wrong = String::from_utf8_lossy(&output.stderr);
    anyhow::ensure!(output.status.success(), "`remuda cp` failed: {}", wrong.trim());
    Ok(took)
}

fn up(world: &World, ours: &Ours, things: &Things) -> anyhow::Result<Duration> {
    let to = format!("{}:/workspace/large", ours.id);
    let took = cp(ours, &things.large.display().to_string(), &to)?;
    let stat = world.runtime.block_on(ours.client.stat_file(&ours.id, "/workspace/large"))?;
    anyhow::ensure!(stat.size == LARGE_BYTES, "{} bytes arrived", stat.size);
    Ok(took)
}

fn peer_up(peer: &Podman, things: &Things) -> anyhow::Result<Duration> {
    let began = Instant::now();
    peer.cp(&things.large.display().to_string(), "peer:/workspace/large", None, None)?;
    let took = began.elapsed();
    let size = peer.exec(&["stat", "-c", "%s", "/workspace/large"])?;
    anyhow::ensure!(size.trim() == LARGE_BYTES.to_string(), "{} bytes arrived", size.trim());
    Ok(took)
}

fn arrived(things: &Things) -> anyhow::Result<()> {
    let (mut here, mut back) = (File::open(&things.large)?, File::open(&things.back)?);
    let (mut a, mut b) = (vec![0; 1 << 20], vec![0; 1 << 20]);
    for _ in 0..LARGE_BYTES >> 20 {
        here.read_exact(&mut a)?;
        back.read_exact(&mut b)?;
        anyhow::ensure!(a == b, "other bytes came back");
    }
    fs::remove_file(&things.back)?;
    Ok(())
}

fn down(_: &World, ours: &Ours, things: &Things) -> anyhow::Result<Duration> {
    let took = cp(ours, &format!("{}:/workspace/large", ours.id), &things.back.display().to_string())?;
    arrived(things)?;
    Ok(took)
}

fn peer_down(peer: &Podman, things: &Things) -> anyhow::Result<Duration> {
    let began = Instant::now();
    peer.cp("peer:/workspace/large", &things.back.display().to_string(), None, None)?;
    let took = began.elapsed();
    arrived(things)?;
    Ok(took)
}

fn tree_up(world: &World, ours: &Ours, things: &Things) -> anyhow::Result<Duration> {
    let _ = &ours.server;
    world.runtime.block_on(async {
        // Each turn into a fresh directory, as the peer's.
        let _ = ours.client.remove_file(&ours.id, "/workspace/small", true).await;
        let file = tokio::fs::File::open(&things.archive).await?;
        let began = Instant::now();
        let archive = remuda_client::Body::wrap_stream(tokio_util::io::ReaderStream::with_capacity(file, 256 << 10));
        let unpacked = ours.client.write_tree(&ours.id, "/workspace/small", &WriteTree::default(), archive).await?;
        let took = began.elapsed();
        anyhow::ensure!(unpacked.files == SMALL_FILES as u64, "{} files arrived", unpacked.files);
        Ok(took)
    })
}

fn peer_tree_up(peer: &Podman, things: &Things) -> anyhow::Result<Duration> {
    peer.exec(&["rm", "-rf", "/workspace/small"])?;
    peer.exec(&["mkdir", "/workspace/small"])?;
    let archive = File::open(&things.archive)?;
    let began = Instant::now();
    peer.cp("-", "peer:/workspace/small", Some(archive), None)?;
    let took = began.elapsed();
    let count = peer.exec(&["sh", "-c", "find /workspace/small -type f | wc -l"])?;
    anyhow::ensure!(count.trim() == SMALL_FILES.to_string(), "{} files arrived", count.trim());
    Ok(took)
}

fn archived(things: &Things) -> anyhow::Result<()> {
    let listed = Command::new("tar").arg("-tf").arg(&things.back).stdin(Stdio::null()).output()?;
    let files = listed.stdout.split(|byte| *byte == b'\n').filter(|name| !name.is_empty() && !name.ends_with(b"/"));
    let files = files.count();
    anyhow::ensure!(listed.status.success() && files == SMALL_FILES, "an archive of {files} files came back");
    fs::remove_file(&things.back)?;
    Ok(())
}

fn tree_down(world: &World, ours: &Ours, things: &Things) -> anyhow::Result<Duration> {
    let took = world.runtime.block_on(async {
        let mut file = File::create(&things.back)?;
        let began = Instant::now();
        let mut archive = ours.client.read_tree(&ours.id, "/workspace/small", None).await?;
        while let Some(piece) = archive.chunk().await? {
            file.write_all(&piece)?;
        }
        anyhow::Ok(began.elapsed())
    })?;
    archived(things)?;
    Ok(took)
}

fn peer_tree_down(peer: &Podman, things: &Things) -> anyhow::Result<Duration> {
    let file = File::create(&things.back)?;
    let began = Instant::now();
    peer.cp("peer:/workspace/small", "-", None, Some(file))?;
    let took = began.elapsed();
    archived(things)?;
    Ok(took)
}
