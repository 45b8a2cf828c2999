//! The Python packages of the repository and their tests: environments of their own under `target`, filled from the
//! machine's own package index, and pytest in each package against real servers. What is missing is a failure; it must
//! never change the machine's own Python.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

use crate::command::{self, cargo, program, run as run_shown, text};
use crate::project::{self, Metadata};
use crate::test::Temporary;
use crate::tools;
use crate::venv;

/// An environment with packages of ours, what their tests need, and the directories of tests that run in it.
struct Environment {
    name: &'static str,
    packages: &'static [&'static str],
    requirements: &'static [&'static str],
    tests: &'static [Suite],
    /// When it is needed.
    which: Which,
}

/// A directory of tests.
struct Suite {
    package: &'static str,
    directory: &'static str,
}

const fn suite(package: &'static str) -> Suite {
    Suite { package, directory: "tests" }
}

/// Which tests are run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Which {
    /// What belongs to every run.
    Usual,
    /// What takes long.
    Long,
}

const CLIENT: &str = "clients/python";
const DEEP_AGENTS: &str = "integrations/langchain-remuda";
const OPEN_SWE: &str = "integrations/open-swe";
/// Two, since the command line of Deep Agents wants an older version of what it is made of than the newest.
const ENVIRONMENTS: &[Environment] = &[
    Environment {
        name: "python",
        packages: &[CLIENT, DEEP_AGENTS, OPEN_SWE],
        requirements: &[
            "deepagents>=0.7.32,<0.8",
            "langchain-tests==1.1.9",
            "langsmith",
            "mypy>=2.4,<3",
            "pytest>=9,<10",
            "pytest-asyncio>=1,<2",
            "pytest-timeout>=2,<3",
        ],
        tests: &[suite(CLIENT), suite(DEEP_AGENTS), suite(OPEN_SWE)],
        which: Which::Usual,
    },
    Environment {
        name: "python-dcode",
        packages: &[CLIENT, DEEP_AGENTS],
        requirements: &["deepagents-code==0.1.57", "pytest>=9,<10", "pytest-asyncio>=1,<2", "pytest-timeout>=2,<3"],
        tests: &[Suite { package: DEEP_AGENTS, directory: "tests_dcode" }],
        which: Which::Long,
    },
];
/// How long one test may take, in seconds.
const TEST_SECONDS_MAX: u32 = 300;

/// `cargo xtask python`.
pub(crate) fn run(_: &[String]) -> anyhow::Result<bool> {
    tools::need_root()?;
    run_shown(cargo().args(["build", "--workspace", "--all-targets", "--locked"]))?;
    for which in [Which::Usual, Which::Long] {
        by_themselves(which)?;
    }
    Ok(true)
}

/// The tests that take long.
pub(crate) fn soak() -> anyhow::Result<()> {
    by_themselves(Which::Long)
}

fn by_themselves(which: Which) -> anyhow::Result<()> {
    install(which)?;
    let temporary = Temporary::new()?;
    let tested = tests(&Metadata::read()?.remuda("debug"), &temporary.directory, which);
    temporary.must_be_empty()?;
    fs::remove_dir(&temporary.directory)?;
    tested
}

/// Makes or completes the environments.
pub(crate) fn install(which: Which) -> anyhow::Result<()> {
    tools::need_program("python3", "python3")?;
    let version = text(program("python3").args(["-c", "import sys; print(sys.version_info >= (3, 11))"]))?;
    anyhow::ensure!(version.trim() == "True", "the Python packages need Python 3.11 or newer as `python3`");
    ENVIRONMENTS.iter().filter(|environment| environment.which == which).try_for_each(Environment::install)
}

/// Runs the tests of each package to the end, so that one run tells all that is wrong.
pub(crate) fn tests(remuda: &Path, temporary: &Path, which: Which) -> anyhow::Result<()> {
    let mut failed = Vec::new();
    for environment in ENVIRONMENTS.iter().filter(|environment| environment.which == which) {
        for Suite { package, directory } in environment.tests {
            // Pytest keeps its own temporary files for whoever looks at failures.
            let base = temporary.join("pytest");
            let mut pytest = environment.program("pytest");
            pytest
                .args(["-q", "-p", "no:cacheprovider", "--durations=3", &format!("--timeout={TEST_SECONDS_MAX}")])
                .arg(format!("--basetemp={}", base.display()))
                .args(["-o", &format!("testpaths={directory}")])
                .current_dir(project::root().join(package))
                .env("REMUDA_BINARY", remuda)
                .env("TMPDIR", temporary)
                .env("MYPY_CACHE_DIR", environment.place().join("mypy"));
            if run_shown(&mut pytest).is_err() {
                failed.push(format!("{package}/{directory}"));
            }
            if base.exists() {
                fs::remove_dir_all(&base)?;
            }
        }
    }
    anyhow::ensure!(failed.is_empty(), "tests failed in {}", failed.join(", "));
    Ok(())
}

impl Environment {
    fn place(&self) -> PathBuf {
        project::root().join("target").join(self.name)
    }

    fn program(&self, name: &str) -> Command {
        command::program(self.place().join("bin").join(name))
    }

    fn install(&self) -> anyhow::Result<()> {
        let (place, wanted) = (self.place(), self.wanted()?);
        let stamp = place.join("installed");
        if fs::read_to_string(&stamp).is_ok_and(|found| found == wanted) {
            return Ok(());
        }
        venv::make(&place)?;
        let mut pip = venv::pip_install(&place);
        pip.args(self.requirements);
        for package in self.packages {
            pip.arg("--editable").arg(project::root().join(package));
        }
        run_shown(&mut pip).context("the Python packages that tests need can't be installed")?;
        fs::write(&stamp, wanted)?;
        Ok(())
    }

    /// All that decides what is in it.
    fn wanted(&self) -> anyhow::Result<String> {
        let mut text = format!("{:?}\n", self.requirements);
        for package in self.packages {
            let manifest = project::root().join(package).join("pyproject.toml");
            text += &fs::read_to_string(&manifest).with_context(|| format!("cannot read {}", manifest.display()))?;
        }
        Ok(text)
    }
}
