//! `cargo xtask`: the contributor's one entry point. It must stay quick to build, and must never skip what is missing:
//! it installs it, or fails and says what to do.

mod bench;
mod browser;
mod check;
mod clients;
mod command;
mod demo;
mod leftovers;
mod project;
mod python;
mod soak;
mod steps;
mod test;
mod tools;
mod venv;

use std::process::ExitCode;

/// A command of `cargo xtask`, as data: the documentation is checked against it.
struct Task {
    name: &'static str,
    usage: &'static str,
    about: &'static str,
    flags: &'static [&'static str],
    run: fn(&[String]) -> anyhow::Result<bool>,
}

const TASKS: &[Task] = &[
    Task {
        name: "demo",
        usage: "demo",
        about: "set everything up, run the worker comparison in both modes, print the tables, leave evidence",
        flags: &[],
        run: demo::run,
    },
    Task {
        name: "test",
        usage: "test",
        about: "set everything up and pass all tests; a missing real part is a failure",
        flags: &[],
        run: test::run,
    },
    Task {
        name: "python",
        usage: "python",
        about: "only the tests of the Python packages, against a server that is built first",
        flags: &[],
        run: python::run,
    },
    Task {
        name: "bench",
        usage: "bench [NAME] [--check] [--rounds N]",
        about: "figures side by side with a peer; --check exits 1 where a stated goal is missed",
        flags: &["--check", "--rounds"],
        run: bench::run,
    },
    Task {
        name: "check",
        usage: "check",
        about: "the rules of the repository: arrows, documents, error pages, sources",
        flags: &[],
        run: check::run,
    },
    Task {
        name: "clients",
        usage: "clients",
        about: "install the foreign clients that tests use, from their package registries",
        flags: &[],
        run: clients::run,
    },
    Task {
        name: "soak",
        usage: "soak [--inputs N] [--kills N] [--rounds N]",
        about: "what takes long: very many random inputs, kills of a server under load, and memory comparisons that must all give the same verdicts",
        flags: &["--inputs", "--kills", "--rounds"],
        run: soak::run,
    },
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some(task) = arguments.first().and_then(|name| TASKS.iter().find(|t| t.name == name)) else {
        eprintln!("usage:");
        for task in TASKS {
            eprintln!("  cargo xtask {:<36} {}", task.usage, task.about);
        }
        let asked = arguments.first().is_some_and(|a| matches!(a.as_str(), "--help" | "-h" | "help"));
        return ExitCode::from(if asked { 0 } else { 2 });
    };
    let rest = &arguments[1..];
    if asks_for_help(rest) {
        println!("{}\n\nusage: cargo xtask {}", task.about, task.usage);
        return ExitCode::SUCCESS;
    }
    if let Some(stranger) = rest.iter().find(|a| a.starts_with('-') && !task.flags.contains(&flag_name(a))) {
        eprintln!("error: `cargo xtask {}` has no option {stranger}; usage: cargo xtask {}", task.name, task.usage);
        return ExitCode::from(2);
    }
    match (task.run)(rest) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(e) => {
            eprintln!("error: {e:#}");
            ExitCode::from(if e.is::<command::Usage>() { 2 } else { 1 })
        }
    }
}

fn asks_for_help(arguments: &[String]) -> bool {
    arguments.iter().any(|argument| argument == "--help" || argument == "-h")
}

/// `--rounds` of `--rounds=3`.
fn flag_name(argument: &str) -> &str {
    argument.split_once('=').map_or(argument, |(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_can_be_asked_for_help() {
        for words in [&["--help"][..], &["-h"], &["fork", "--rounds", "3", "--help"]] {
            assert!(asks_for_help(&words.iter().map(ToString::to_string).collect::<Vec<_>>()), "{words:?}");
        }
        assert!(!asks_for_help(&["fork".to_owned(), "--check".to_owned()]));
    }
}
