//! The options of commands about executions. Must do nothing but name and check what was given.

use std::time::Duration;

use clap::Args;
use remuda_types::ExecutionId;

use super::signal::signal;
use super::values::{bytes, execution_id, moment, pair, time_limit};
use super::{KeyArg, One};

#[derive(Debug, Args)]
#[command(after_help = EXEC_AFTER_HELP)]
pub struct Exec {
    /// Start it, print its id and return
    #[arg(short, long)]
    pub detach: bool,
    /// Send what is piped in here to the command's standard input as it comes, which is empty otherwise; with -d it is read
    /// to its end before the command starts, up to 2 MiB
    #[arg(short = 'i', long)]
    pub stdin: bool,
    /// Give it a terminal, joined to the one here; with -i what is typed goes there, Ctrl-C too, and Ctrl-P Ctrl-Q leaves
    /// it running
    #[arg(short = 't', long, conflicts_with_all = ["detach", "json"])]
    pub tty: bool,
    /// Kill it after this running time, such as 90s, 5m or 1h, and 24h at most; a bare number counts seconds
    #[arg(long, value_name = "TIME", value_parser = time_limit)]
    pub timeout: Option<Duration>,
    /// Kill it when it has printed more than so many bytes, such as 10M; a suffix K, M or G counts in 1,024s
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    pub output_limit: Option<u64>,
    /// Read what a login shell reads before the script: /etc/profile and the user's .profile
    #[arg(short = 'l', long, requires = "script")]
    pub login: bool,
    /// Guest user; `user` when not given
    #[arg(short, long)]
    pub user: Option<String>,
    /// Working directory; /workspace when not given
    #[arg(short = 'w', long, value_name = "DIR")]
    pub cwd: Option<String>,
    /// Environment variable; may be repeated
    #[arg(short, long = "env", value_name = "NAME=VALUE", value_parser = pair)]
    pub env: Vec<(String, String)>,
    /// Run this script with /bin/sh instead of a program with arguments
    #[arg(short = 'c', long = "command", value_name = "SCRIPT", conflicts_with = "argv")]
    pub script: Option<String>,
    #[command(flatten)]
    pub key: KeyArg,
    #[command(flatten)]
    pub sandbox: One,
    /// Program and its arguments; all that follows the program is its own. Put `--` in front of a program that begins
    /// with a dash
    #[arg(trailing_var_arg = true, required_unless_present = "script", value_name = "ARGV")]
    pub argv: Vec<String>,
}

const EXEC_AFTER_HELP: &str = "\
Without -i nothing is read here: the command's standard input is /dev/null, also where something is piped in.";

#[derive(Debug, Args)]
pub struct Attach {
    #[command(flatten)]
    pub sandbox: One,
    /// Execution, as printed by `exec --detach` and `ps`
    #[arg(value_name = "EXECUTION", value_parser = execution_id)]
    pub execution: ExecutionId,
    /// Only look: nothing that is typed here goes there
    #[arg(long)]
    pub view: bool,
}

#[derive(Debug, Args)]
pub struct Logs {
    #[command(flatten)]
    pub sandbox: One,
    /// Execution, as printed by `exec --detach` and `ps`
    #[arg(value_name = "EXECUTION", value_parser = execution_id)]
    pub execution: ExecutionId,
    /// Go on until it ends
    #[arg(short, long)]
    pub follow: bool,
    /// Only what was printed since then: a time such as 90s, 5m or 1h before now, or a moment such as 2026-10-08T12:00:00Z
    #[arg(long, value_name = "TIME", value_parser = moment, conflicts_with = "json")]
    pub since: Option<i64>,
}

#[derive(Debug, Args)]
pub struct Cancel {
    #[command(flatten)]
    pub sandbox: One,
    /// Executions, as printed by `exec --detach` and `ps`
    #[arg(value_name = "EXECUTION", required = true, value_parser = execution_id)]
    pub executions: Vec<ExecutionId>,
    /// Only send this signal, by name or number, to its processes, and don't wait for what they make of it
    #[arg(short, long, value_name = "SIGNAL", value_parser = signal)]
    pub signal: Option<i32>,
    #[command(flatten)]
    pub key: KeyArg,
}
