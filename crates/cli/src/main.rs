//! The binary `remuda`: reads the command line, calls what does the work, and says how it ended.
//! Must hold no logic of the platform: commands go through the client as any other program's do.

mod agent;
mod args;
mod commands;
mod connection;
mod copy;
mod data_dir;
mod embedded;
mod failure;
mod follow;
mod interactive;
mod local_server;
mod open_files;
mod parts;
mod print;
mod signals;
mod stdin;

use std::process::ExitCode;

use tracing_subscriber::EnvFilter;

use crate::args::{Cli, Command};

fn main() -> ExitCode {
    signals::keep_ends_of_children();
    let cli = Cli::read();
    init_log(matches!(cli.command, Command::Serve(_)));
    let outcome =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(anyhow::Error::from).and_then(
            |runtime| {
                let outcome = runtime.block_on(commands::run(cli));
                // What still reads or writes on a thread of its own, such as the check of a large snapshot, is not waited for.
                runtime.shutdown_background();
                outcome
            },
        );
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err(error) => ExitCode::from(failure::report(&error)),
    }
}

/// The log goes to standard error; what a command is asked for goes to standard output.
fn init_log(serves: bool) {
    let default = if serves { "info" } else { "error" };
    let filter = EnvFilter::try_from_env("REMUDA_LOG").unwrap_or_else(|_| EnvFilter::new(default));
    let terminal = std::io::IsTerminal::is_terminal(&std::io::stderr());
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(terminal).init();
}
