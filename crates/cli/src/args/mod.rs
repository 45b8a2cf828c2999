//! The command line as types. Must do nothing but name and check what was given.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use remuda_types::limits::{FORK_COUNT_MAX, MEMORY_MIB_DEFAULT};
use remuda_types::{
    AccessKeyId, AccessScope, Account, ExecutionId, IdError, QuotaLimits, QuotaSetting, ReceiptId, SandboxId, Slot,
    SnapshotMode,
};

/// Prepared Linux sandboxes for coding agents: capture a running machine with its memory, fork it, judge from outside.
#[derive(Debug, Parser)]
#[command(name = "remuda", version, max_term_width = 100, after_help = AFTER_HELP)]
pub struct Cli {
    #[command(flatten)]
    pub global: Global,
    #[command(subcommand)]
    pub command: Command,
}

const AFTER_HELP: &str = "\
Exit codes: 0 done, 1 a negative result, 2 wrong usage or input, 3 the machine is not ready.
`exec` exits with the command's own code.";

/// What every command takes.
#[derive(Debug, Args)]
pub struct Global {
    /// Print JSON instead of text
    #[arg(long, global = true)]
    pub json: bool,
    /// Use the server at this URL, with the key in REMUDA_API_KEY, instead of the local one
    #[arg(long, global = true, env = "REMUDA_URL", value_name = "URL")]
    pub url: Option<String>,
    /// Directory of the local server: its sandboxes, snapshots and socket
    #[arg(long, global = true, env = "REMUDA_DATA_DIR", value_name = "DIR", default_value = "/var/lib/remuda")]
    pub data_dir: PathBuf,
    /// Directory of engine binaries, agents and base images, shared by all servers of this machine
    #[arg(long, global = true, env = "REMUDA_CACHE_DIR", value_name = "DIR", default_value = "/var/cache/remuda")]
    pub cache_dir: PathBuf,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Install engine and base image on this machine, or check them
    Setup(Setup),
    /// Run the server
    Serve(Serve),
    /// Make a sandbox and print its id
    Create(Create),
    /// List sandboxes
    Ls(Ls),
    /// Show a sandbox
    Show(One),
    /// Run a command in a sandbox
    Exec(Exec),
    /// List the executions of a sandbox
    Ps(One),
    /// Print the output of an execution
    Logs(Logs),
    /// Copy files or directories from or to a sandbox
    Cp(Cp),
    /// Halt the processes of a sandbox; they keep their memory
    Pause(OneChange),
    /// Let a paused sandbox go on
    Resume(OneChange),
    /// End and remove sandboxes
    Rm(Rm),
    /// Capture sandboxes, list and remove captures
    #[command(subcommand)]
    Snapshot(Snapshot),
    /// Capture a sandbox once and start branches from it; prints their ids
    Fork(Fork),
    /// Start a sandbox from a snapshot and print its id
    Restore(Restore),
    /// Make, list and revoke access keys
    #[command(subcommand)]
    Key(Key),
    /// List accounts, and set what they may use; on the server's own machine
    #[command(subcommand)]
    Account(AccountCommand),
    /// Show what an account uses: captured, on the disk, reserved, and counted by month
    Usage(OfAccount),
    /// Show who a command is to the server, and what it may do
    Whoami,
    /// Find out what became of a call, by its key or the operation's id
    Operation(Operation),
    /// Show what was done to a sandbox, also after its end
    Receipt(ReceiptArgs),
    /// Print what happened
    Events(Events),
    /// Compare repairs on copies of one prepared machine
    #[command(subcommand)]
    Rodeo(Rodeo),
    /// Print the OpenAPI document
    #[command(hide = true)]
    Openapi,
}

#[derive(Debug, Args)]
pub struct Setup {
    /// Only look: change and download nothing
    #[arg(long)]
    pub check: bool,
}

#[derive(Debug, Args)]
pub struct Serve {
    /// Where to listen for remote clients
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:8787")]
    pub listen: SocketAddr,
    /// What an account may use that has no limits of its own, such as sandboxes=20, disk_bytes=100G or
    /// starts_per_month=none; may be repeated
    #[arg(long = "quota", value_name = "NAME=VALUE")]
    pub quotas: Vec<QuotaSetting>,
}

impl Serve {
    /// The limits that hold with these settings.
    pub fn quotas(&self) -> QuotaLimits {
        QuotaLimits::default().with(&self.quotas.iter().copied().collect())
    }
}

/// An account, where it is another than the caller's own.
#[derive(Debug, Args)]
pub struct OfAccount {
    /// Account; on the server's own machine any, else the key's own
    #[arg(long, value_name = "NAME")]
    pub account: Option<Account>,
}

#[derive(Debug, Subcommand)]
pub enum Key {
    /// Make an access key and print it; it is shown this once
    Create(KeyCreate),
    /// List access keys, without their secrets
    Ls {
        /// Revoked and expired ones too
        #[arg(short, long)]
        all: bool,
        #[command(flatten)]
        of: OfAccount,
    },
    /// Revoke access keys; they open nothing from then on
    Revoke {
        /// Access keys, by the ids that `key ls` prints
        #[arg(required = true, value_name = "KEY")]
        keys: Vec<AccessKeyId>,
        #[command(flatten)]
        of: OfAccount,
    },
}

#[derive(Debug, Args)]
pub struct KeyCreate {
    /// What it may do: sandboxes:read, sandboxes:write, sandboxes:delete, executions, files, snapshots:read,
    /// snapshots:write, snapshots:delete, previews, usage, admin; separated by commas, may be repeated
    #[arg(long = "scope", value_name = "SCOPE,…", value_delimiter = ',', required = true)]
    pub scopes: Vec<AccessScope>,
    #[command(flatten)]
    pub narrowing: NarrowingArgs,
    /// What it is for
    #[arg(long, value_name = "TEXT")]
    pub name: Option<String>,
    /// Let it expire after this time, such as 12h or 720h; a bare number counts seconds
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub expires: Option<Duration>,
    #[command(flatten)]
    pub of: OfAccount,
}

/// To what a key is narrowed; at most one.
#[derive(Debug, Args)]
#[group(multiple = false)]
pub struct NarrowingArgs {
    /// Narrow it to the sandboxes of this slot, and to what is captured from them
    #[arg(long)]
    pub slot: Option<Slot>,
    /// Narrow it to this sandbox, and to what is captured from it
    #[arg(long, value_name = "ID")]
    pub sandbox: Option<SandboxId>,
    /// Narrow it to what carries this label
    #[arg(short, long, value_name = "NAME=VALUE", value_parser = pair)]
    pub label: Option<(String, String)>,
}

#[derive(Debug, Subcommand)]
pub enum AccountCommand {
    /// List accounts with their limits
    Ls,
    /// Make an account where there is none of that name, and replace the limits that are its own
    Set {
        /// Account
        account: Account,
        /// Limits, such as sandboxes=5, disk_bytes=20G or starts_per_month=none; what is not named follows the server's
        #[arg(value_name = "QUOTA=VALUE")]
        quotas: Vec<QuotaSetting>,
    },
}

/// A sandbox by its id.
#[derive(Debug, Args)]
pub struct One {
    /// Sandbox, as slot@generation
    #[arg(value_name = "ID")]
    pub id: SandboxId,
}

/// The key of a call that changes something.
#[derive(Debug, Args)]
pub struct KeyArg {
    /// Key under which the call has one outcome, however often it is made; one is made up when not given
    #[arg(long, value_name = "KEY")]
    pub key: Option<remuda_types::Key>,
}

/// A sandbox that is changed.
#[derive(Debug, Args)]
pub struct OneChange {
    #[command(flatten)]
    pub sandbox: One,
    #[command(flatten)]
    pub key: KeyArg,
}

/// Labels, as given to whatever can be found by them.
#[derive(Debug, Args)]
pub struct LabelArgs {
    /// Label to find it by; may be repeated
    #[arg(short, long = "label", value_name = "NAME=VALUE", value_parser = pair)]
    pub labels: Vec<(String, String)>,
}

#[derive(Debug, Args)]
pub struct Create {
    /// Slot to take; the first free of c1, c2, … when not given
    pub slot: Option<Slot>,
    /// Memory limit in MiB
    #[arg(long, value_name = "MIB", default_value_t = MEMORY_MIB_DEFAULT)]
    pub memory: u32,
    #[command(flatten)]
    pub labels: LabelArgs,
    #[command(flatten)]
    pub key: KeyArg,
}

#[derive(Debug, Args)]
pub struct Ls {
    /// Ended ones too
    #[arg(short, long)]
    pub all: bool,
    /// Only those of this slot
    #[arg(long)]
    pub slot: Option<Slot>,
    #[command(flatten)]
    pub labels: LabelArgs,
}

#[derive(Debug, Args)]
pub struct Exec {
    /// Start it, print its id and return
    #[arg(short, long)]
    pub detach: bool,
    /// Kill it after this running time, such as 90s, 5m or 1h; a bare number counts seconds
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub timeout: Option<Duration>,
    /// Guest user; `user` when not given
    #[arg(short, long)]
    pub user: Option<String>,
    /// Working directory; /workspace when not given
    #[arg(short = 'w', long)]
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
    /// Program and its arguments
    #[arg(last = true, required_unless_present = "script", value_name = "ARGV")]
    pub argv: Vec<String>,
}

#[derive(Debug, Args)]
pub struct Logs {
    #[command(flatten)]
    pub sandbox: One,
    /// Execution, as printed by `exec --detach` and `ps`
    #[arg(value_name = "EXECUTION")]
    pub execution: ExecutionId,
    /// Go on until it ends
    #[arg(short, long)]
    pub follow: bool,
}

#[derive(Debug, Args)]
pub struct Cp {
    /// A local path, or ID:/path in a sandbox
    pub source: String,
    /// A local path, or ID:/path in a sandbox
    pub destination: String,
    /// Owner of what is written into a sandbox; `user` when not given
    #[arg(short, long)]
    pub user: Option<String>,
    #[command(flatten)]
    pub key: KeyArg,
}

#[derive(Debug, Args)]
pub struct Rm {
    /// Sandboxes, as slot@generation
    #[arg(value_name = "ID", required = true)]
    pub ids: Vec<SandboxId>,
    #[command(flatten)]
    pub key: KeyArg,
}

/// What a capture holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// The whole running machine: processes, memory and files
    Memory,
    /// Files only
    Filesystem,
}

impl From<Mode> for SnapshotMode {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::Memory => SnapshotMode::Memory,
            Mode::Filesystem => SnapshotMode::Filesystem,
        }
    }
}

/// What must run in a sandbox that is made from files alone.
#[derive(Debug, Args)]
pub struct LaunchArgs {
    /// Launch recipe of a filesystem capture, as a JSON file: {"argv": […], "port": N, "ready_path": "/…"}
    #[arg(long, value_name = "FILE")]
    pub launch: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub enum Snapshot {
    /// Capture a sandbox, which goes on, and print the snapshot's id
    Create(SnapshotCreate),
    /// List snapshots
    Ls {
        /// Deleted ones too
        #[arg(short, long)]
        all: bool,
    },
    /// Show a snapshot
    Show {
        /// Snapshot, by id or name
        snapshot: String,
    },
    /// Delete snapshots; sandboxes that stand on them go on
    Rm {
        /// Snapshots, by id or name
        #[arg(required = true)]
        snapshots: Vec<String>,
        #[command(flatten)]
        key: KeyArg,
    },
}

#[derive(Debug, Args)]
pub struct SnapshotCreate {
    #[command(flatten)]
    pub sandbox: One,
    /// Name to find it by
    #[arg(long)]
    pub name: Option<String>,
    /// What to capture
    #[arg(long, value_enum, default_value_t = Mode::Memory)]
    pub mode: Mode,
    #[command(flatten)]
    pub labels: LabelArgs,
    #[command(flatten)]
    pub launch: LaunchArgs,
    #[command(flatten)]
    pub key: KeyArg,
}

#[derive(Debug, Args)]
pub struct Fork {
    #[command(flatten)]
    pub sandbox: One,
    /// How many branches
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(FORK_COUNT_MAX)))]
    pub count: u32,
    /// What to capture
    #[arg(long, value_enum, default_value_t = Mode::Memory)]
    pub mode: Mode,
    /// Slots of the branches, separated by commas, as many as --count
    #[arg(long, value_delimiter = ',', value_name = "SLOT,…")]
    pub slots: Option<Vec<Slot>>,
    #[command(flatten)]
    pub labels: LabelArgs,
    #[command(flatten)]
    pub launch: LaunchArgs,
    #[command(flatten)]
    pub key: KeyArg,
}

#[derive(Debug, Args)]
pub struct Restore {
    /// Snapshot, by id or name
    pub snapshot: String,
    /// Slot to take; the first free one when not given
    pub slot: Option<Slot>,
    #[command(flatten)]
    pub labels: LabelArgs,
    #[command(flatten)]
    pub launch: LaunchArgs,
    #[command(flatten)]
    pub key: KeyArg,
}

/// What became of a call.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, arg_required_else_help = true)]
pub struct Operation {
    /// Key of the call, or id of the operation: as `show`
    #[arg(value_name = "KEY")]
    pub key: Option<remuda_types::Key>,
    #[command(subcommand)]
    pub action: Option<OperationAction>,
}

#[derive(Debug, Subcommand)]
pub enum OperationAction {
    /// List the calls of this machine whose outcome is not known here, and what the server knows of them
    Ls,
    /// Show what became of a call
    Show {
        /// Key of the call, or id of the operation
        key: remuda_types::Key,
    },
    /// Send a call again that is kept here, with its key and its exact body: it is not done twice
    Retry {
        /// Key of the call
        key: remuda_types::Key,
    },
    /// Make sure that a call which may still be on its way never runs, and forget it; tells whether that was in time
    Cancel {
        /// Key of the call
        key: remuda_types::Key,
    },
}

#[derive(Debug, Args)]
pub struct ReceiptArgs {
    /// Receipt by its id, or sandbox as slot@generation
    #[arg(value_name = "RECEIPT|ID", value_parser = of_receipt)]
    pub of: OfReceipt,
}

/// Which receipts are shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OfReceipt {
    Receipt(ReceiptId),
    Sandbox(SandboxId),
}

fn of_receipt(text: &str) -> Result<OfReceipt, String> {
    if text.starts_with("rcpt-") {
        return text.parse().map(OfReceipt::Receipt).map_err(|e: IdError| e.to_string());
    }
    text.parse().map(OfReceipt::Sandbox).map_err(|e: IdError| e.to_string())
}

#[derive(Debug, Args)]
pub struct Events {
    /// Go on until the server ends
    #[arg(short, long)]
    pub follow: bool,
    /// Only those above this number
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub after: u64,
}

#[derive(Debug, Subcommand)]
pub enum Rodeo {
    /// Prepare a machine, fork it, apply one patch to each branch, and judge each from outside
    Run(RodeoRun),
    /// Do on purpose what goes wrong in real life, to a server of its own, and look what is kept of the promises
    Drill(RodeoDrill),
}

#[derive(Debug, Args)]
pub struct RodeoDrill {
    /// Drill: `lost-create`, `lost-capture`, `stale-stop`, `quota`, `permissions`, or `all`
    #[arg(value_name = "NAME", value_parser = drills)]
    pub drills: Drills,
    /// Directory in which each drill makes one for its observations; ./evidence when not given
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
}

/// One drill or all of them.
#[derive(Debug, Clone, Copy)]
pub enum Drills {
    /// Each, one after another.
    All,
    /// One.
    One(remuda_rodeo::Drill),
}

fn drills(text: &str) -> Result<Drills, String> {
    if text == "all" { Ok(Drills::All) } else { text.parse().map(Drills::One) }
}

#[derive(Debug, Args)]
pub struct RodeoRun {
    /// Workload: `worker`, or a directory with a workload.toml
    pub workload: String,
    /// What the branches are made from
    #[arg(long, value_enum, default_value_t = Mode::Memory)]
    pub mode: Mode,
    /// Seed of the jobs; the workload's own when not given
    #[arg(long)]
    pub seed: Option<u64>,
    /// Directory in which the run makes one for its evidence; ./evidence when not given
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
}

fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("it must look like NAME=VALUE".to_owned()),
    }
}

fn duration(text: &str) -> Result<Duration, String> {
    if let Ok(seconds) = text.parse() {
        return Ok(Duration::from_secs(seconds));
    }
    let parsed = text.parse::<jiff::SignedDuration>().map_err(|e| e.to_string())?;
    Duration::try_from(parsed).map_err(|_| "a time limit can't be negative".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn durations_and_pairs() {
        assert_eq!(duration("90"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("5m"), Ok(Duration::from_secs(300)));
        assert_eq!(duration("1h 30m"), Ok(Duration::from_secs(5400)));
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        assert!(duration("-5s").is_err() && duration("soon").is_err());
        assert_eq!(pair("A=b=c"), Ok(("A".into(), "b=c".into())));
        assert!(pair("=b").is_err() && pair("A").is_err());
    }

    #[test]
    fn a_bare_slot_is_refused_with_the_reason() {
        let error = Cli::try_parse_from(["remuda", "show", "c1"]).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        assert!(error.to_string().contains("must name the generation too"), "{error}");
    }

    #[test]
    fn exec_takes_a_program_or_a_script_and_not_both() {
        let id = "c1@2026-10-08T12:00:00.000Z";
        assert!(Cli::try_parse_from(["remuda", "exec", id, "--", "sh", "-c", "true"]).is_ok());
        assert!(Cli::try_parse_from(["remuda", "exec", id, "-c", "true"]).is_ok());
        assert!(Cli::try_parse_from(["remuda", "exec", id, "-c", "true", "--", "true"]).is_err());
        assert!(Cli::try_parse_from(["remuda", "exec", id]).is_err());
    }
}
