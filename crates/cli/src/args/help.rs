//! What the help of each command shows: the options of every command are accepted everywhere, and shown where they mean
//! something. Must change nothing of what is accepted.

use clap::{Command, CommandFactory};

use super::Cli;

/// Where the server is.
const URL: &str = "url";
/// Where the local server has its things.
const DATA_DIR: &str = "data_dir";
/// Where engine and base image are.
const CACHE_DIR: &str = "cache_dir";

/// The command line.
pub fn command() -> Command {
    let all = Cli::command();
    let names: Vec<String> = all.get_subcommands().map(|command| command.get_name().to_owned()).collect();
    names.iter().fold(all.clone(), |command, name| {
        command.mut_subcommand(name, |command| match name.as_str() {
            "setup" | "serve" => hiding(command, &all, &[URL]),
            "rodeo" => command.mut_subcommand("drill", |drill| hiding(drill, &all, &[URL, DATA_DIR])),
            // These talk to a server that has found its engine.
            _ => hiding(command, &all, &[CACHE_DIR]),
        })
    })
}

/// The command with options of its own in place of these, which are the same but for being hidden.
fn hiding(command: Command, all: &Command, options: &[&str]) -> Command {
    let hidden = all.get_arguments().filter(|option| options.contains(&option.get_id().as_str()));
    hidden.fold(command, |command, option| command.arg(option.clone().hide(true)))
}
