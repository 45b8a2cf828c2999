//! `cargo xtask bench [NAME] [--check]`: benchmarks of Remuda against what a user would have without it, the same work
//! on both sides, turn by turn in one run. It must never judge by a figure that was taken in another run.

mod bare;
mod control;
mod copies;
mod exec;
mod files;
mod fork;
mod harness;
mod journal;
mod ours;
mod podman;
mod preview;
mod report;
mod sides;
mod snapshot;
mod stats;
mod worker;
mod world;

use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::Ordering;

use anyhow::Context as _;
use clap::Parser;

use crate::report::{Machine, Report};

/// A benchmark: its name, what it is about, and what takes its figures.
struct Benchmark {
    name: &'static str,
    about: &'static str,
    run: fn(&world::World, usize) -> anyhow::Result<Vec<harness::Figure>>,
}

const BENCHMARKS: &[Benchmark] = &[
    Benchmark {
        name: "fork",
        about: "fork 1 to 3, exec, create, and the whole worker comparison, against the bare runsc command line",
        run: fork::figures,
    },
    Benchmark {
        name: "snapshot",
        about: "forks with little and much in memory, the source's pause, and files that come up with their server",
        run: snapshot::figures,
    },
    Benchmark {
        name: "exec",
        about: "commands against podman exec and the guest's own spawning, output as events against runsc exec, the agent",
        run: exec::figures,
    },
    Benchmark {
        name: "files",
        about: "a gigabyte and 10,000 small files into the guest and out of it, against podman cp",
        run: files::figures,
    },
    Benchmark {
        name: "journal",
        about: "keyed creates, replays and reads of the control plane and of the journal by itself, and how they grow",
        run: journal::figures,
    },
    Benchmark {
        name: "preview",
        about: "requests, downloads and WebSockets through a preview, against nginx and a connection of one's own",
        run: preview::figures,
    },
];

/// Benchmarks of Remuda, side by side with a peer.
#[derive(Parser)]
#[command(name = "remuda-bench")]
struct Arguments {
    /// Which benchmark; all when absent.
    name: Option<String>,
    /// Exit with 1 where a stated goal is missed or can't be decided.
    #[arg(long)]
    check: bool,
    /// Counted turns of each side.
    #[arg(long, default_value_t = 12)]
    rounds: usize,
    /// The runsc of the bare side; the one that `remuda setup` has placed when absent.
    #[arg(long)]
    runsc: Option<std::path::PathBuf>,
    /// The root of the bare side; the base image that `remuda setup` has placed when absent.
    #[arg(long)]
    base: Option<std::path::PathBuf>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(e) => {
            eprintln!("error: {e:#}");
            ExitCode::from(if e.is::<UnknownName>() { 2 } else { 3 })
        }
    }
}

#[derive(Debug)]
struct UnknownName(String);

impl std::fmt::Display for UnknownName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let known: Vec<String> = BENCHMARKS.iter().map(|b| format!("{} ({})", b.name, b.about)).collect();
        write!(f, "there is no benchmark {:?}; there are: {}", self.0, known.join("; "))
    }
}

impl std::error::Error for UnknownName {}

/// Runs what was asked for; tells whether all that was asked to be checked is as it should be.
fn run(arguments: &Arguments) -> anyhow::Result<bool> {
    let chosen: Vec<&Benchmark> = match &arguments.name {
        None => BENCHMARKS.iter().collect(),
        Some(name) => {
            vec![BENCHMARKS.iter().find(|b| b.name == name).ok_or_else(|| UnknownName(name.clone()))?]
        }
    };
    // Before any other thread exists: from here on, mounts of this run are seen by nobody else and end with it.
    world::leave_the_hosts_mounts()?;
    let project = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("the bench crate has no parent directory")?;
    let world = world::World::new(project, arguments.runsc.as_deref(), arguments.base.as_deref())?;
    world.runtime.spawn(watch_for_interrupts());
    let mut good = true;
    for benchmark in chosen {
        let began_at = jiff::Timestamp::now().to_string();
        eprintln!("bench {}: {}; {} rounds", benchmark.name, benchmark.about, arguments.rounds);
        let figures = (benchmark.run)(&world, arguments.rounds)?;
        let report = Report { benchmark: benchmark.name.to_owned(), began_at, machine: Machine::this(), figures };
        let (json, markdown) = report.write(&world.target.join("bench"))?;
        println!("{}", report.markdown());
        println!("written: {} and {}", json.display(), markdown.display());
        good &= !arguments.check || report.all_met();
    }
    Ok(good)
}

async fn watch_for_interrupts() {
    use tokio::signal::unix::{SignalKind, signal};
    let Ok(mut terminated) = signal(SignalKind::terminate()) else { return };
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        _ = terminated.recv() => {}
    }
    harness::INTERRUPTED.store(true, Ordering::Relaxed);
    eprintln!("bench: interrupted; cleaning up");
}
