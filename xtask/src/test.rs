//! `cargo xtask test`: from a fresh clone to all tests passed, in numbered steps. What is missing is installed or is a
//! failure; nothing is skipped. Builds happen in as few profiles as possible, since time on two processors is short.

use std::fs;
use std::path::PathBuf;

use anyhow::Context as _;

use crate::browser;
use crate::check;
use crate::clients;
use crate::command::{cargo, program, run as run_shown};
use crate::leftovers::Inventory;
use crate::project::Metadata;
use crate::python;
use crate::steps::Steps;
use crate::tools;

pub(crate) fn run(_: &[String]) -> anyhow::Result<bool> {
    let mut steps = Steps::new(12);
    let before = Inventory::take();
    steps.step("this machine: root, git, curl, rustfmt, clippy", || {
        tools::need_root()?;
        tools::need_program("git", "git")?;
        // The README's tour reaches into sandboxes with it.
        tools::need_program("curl", "curl")?;
        // What others read our files with: the key that signs evidence, and an exported snapshot.
        tools::need_program("openssl", "openssl")?;
        tools::need_program("zstd", "zstd")?;
        tools::need_component("fmt", "rustfmt")?;
        tools::need_component("clippy", "clippy")?;
        before.mention();
        Ok(())
    })?;
    steps.step("format", || run_shown(cargo().args(["fmt", "--all", "--check"])))?;
    // Mostly waits for others, so it need not wait for the compiler.
    let packages = std::thread::spawn(|| python::install(python::Which::Usual));
    steps.step("build", || run_shown(cargo().args(["build", "--workspace", "--all-targets", "--locked"])))?;
    steps.step("clippy", || {
        run_shown(cargo().args(["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"]))
    })?;
    let metadata = Metadata::read()?;
    let remuda = metadata.remuda("debug");
    steps.step("engine and base image", || run_shown(program(&remuda).arg("setup")))?;
    steps.step("browser and development server", || browser::prepare(&metadata.target))?;
    steps.step("foreign clients from their registries", || clients::install(&metadata))?;
    steps.step("rules of the repository", || check::all(&metadata, &remuda))?;
    steps.step("Python packages, installed beside the build", || {
        packages.join().unwrap_or_else(|_| Err(anyhow::anyhow!("their installation panicked")))
    })?;
    let temporary = Temporary::new()?;
    let tested = steps.step("tests", || {
        // To the end, so that one run tells all that is wrong.
        let mut tests = cargo();
        tests.args(["test", "--workspace", "--locked", "--no-fail-fast"]).env("TMPDIR", &temporary.directory);
        // Most tests wait for sandboxes most of the time: half as many more than there are processors keep these busy.
        let processors = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
        tests.env("RUST_TEST_THREADS", (processors + processors.div_ceil(2)).to_string());
        run_shown(&mut tests)
    });
    let python_tested = steps
        .step("tests of the Python packages", || python::tests(&remuda, &temporary.directory, python::Which::Usual));
    let clean = steps.step("nothing is left behind", || {
        temporary.must_be_empty()?;
        fs::remove_dir(&temporary.directory)?;
        before.nothing_new()
    });
    // A failed test may leave something: both are told.
    if let (Err(_), Err(left)) = (tested.as_ref().and(python_tested.as_ref()), &clean) {
        eprintln!("{left:#}");
    }
    if let (Err(_), Err(also)) = (&tested, &python_tested) {
        eprintln!("{also:#}");
    }
    tested?;
    python_tested?;
    clean?;
    steps.summary();
    Ok(true)
}

/// A directory for the tests' temporary files alone, so that whatever is in it afterwards is a leftover.
pub(crate) struct Temporary {
    pub(crate) directory: PathBuf,
}

impl Temporary {
    pub(crate) fn new() -> anyhow::Result<Temporary> {
        // Short: paths of unix sockets below it have 107 bytes in all.
        let directory = std::env::temp_dir().join(format!("remuda-t{}", std::process::id()));
        fs::create_dir(&directory).with_context(|| format!("cannot make {}", directory.display()))?;
        Ok(Temporary { directory })
    }

    pub(crate) fn must_be_empty(&self) -> anyhow::Result<()> {
        let left: Vec<String> =
            fs::read_dir(&self.directory)?.flatten().map(|e| e.path().display().to_string()).collect();
        anyhow::ensure!(left.is_empty(), "tests left temporary files behind:\n  {}", left.join("\n  "));
        Ok(())
    }
}
