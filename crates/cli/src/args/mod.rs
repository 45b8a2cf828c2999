//! The command line as types. Must do nothing but name and check what was given.

mod access;
mod deadlines;
mod egress;
mod execution;
pub mod file;
mod help;
mod machine;
mod previews;
mod signal;
mod snapshots;
#[cfg(test)]
mod tests;
mod tls;
mod values;
mod webhooks;

use std::env;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, FromArgMatches, Parser, Subcommand, ValueEnum};
use remuda_types::limits::MEMORY_MIB_DEFAULT;
use remuda_types::{QuotaLimits, QuotaSetting, ReceiptId, SandboxId, Slot, SnapshotMode};

pub use self::access::{AccountCommand, Dialect, Key, KeyCreate, NarrowingArgs, OfAccount};
pub use self::deadlines::{DeadlineArgs, Timeout, milliseconds};
use self::egress::EgressArgs;
pub use self::execution::{Attach, Cancel, Exec, Logs};
pub use self::machine::{Doctor, Setup};
pub use self::previews::PreviewCommand;
pub use self::snapshots::{
    Fork, LaunchArgs, Restore, Snapshot, SnapshotCreate, SnapshotDiff, SnapshotImport, SnapshotLs, Tree,
};
use self::tls::TlsArgs;
use self::values::{disk_mib, drills, listen, memory_mib, number, of_receipt, pair, sandbox_id};
pub use self::webhooks::WebhookCommand;

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
An ID is a sandbox as slot@generation, as `create` and `ls` print it.

Exit codes: 0 done, 1 a negative result, 2 wrong usage or input, 3 the machine is not ready.
`exec` exits with the command's own code.";

impl Cli {
    /// What this process was called with. Ends it where that is not understood, or help is asked for.
    pub fn read() -> Cli {
        let matches = help::command().get_matches();
        let mut cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
        let global = &mut cli.global;
        global.url = global.url.take().or_else(|| Some(from_environment("REMUDA_URL")?.to_string_lossy().into()));
        cli
    }
}

/// What every command takes. The environment is read by us: clap would show what stands there as required in the usage
/// of every wrong call.
#[derive(Debug, Args)]
#[command(next_help_heading = "Options of every command")]
pub struct Global {
    /// Print JSON instead of text
    #[arg(long, global = true)]
    pub json: bool,
    /// Use the server at this URL, with the key in REMUDA_API_KEY, instead of the local one [env: REMUDA_URL]
    #[arg(long, global = true, value_name = "URL")]
    pub url: Option<String>,
    /// Directory of the local server: its sandboxes, snapshots and socket [env: REMUDA_DATA_DIR] [default:
    /// /var/lib/remuda]
    #[arg(long, global = true, value_name = "DIR", hide_default_value = true)]
    #[arg(default_value_os_t = directory("REMUDA_DATA_DIR", "/var/lib/remuda"))]
    pub data_dir: PathBuf,
    /// Directory of engine binaries, agents and base images, shared by all servers of this machine [env:
    /// REMUDA_CACHE_DIR] [default: /var/cache/remuda]
    #[arg(long, global = true, value_name = "DIR", hide_default_value = true)]
    #[arg(default_value_os_t = directory("REMUDA_CACHE_DIR", "/var/cache/remuda"))]
    pub cache_dir: PathBuf,
}

/// What an environment variable says; an empty one says nothing.
fn from_environment(name: &str) -> Option<OsString> {
    env::var_os(name).filter(|value| !value.is_empty())
}

fn directory(variable: &str, default: &str) -> PathBuf {
    from_environment(variable).unwrap_or_else(|| default.into()).into()
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
    /// Join this terminal to that of an execution, or follow one without a terminal
    Attach(Attach),
    /// List the executions of a sandbox
    Ps(One),
    /// Print the output of an execution
    Logs(Logs),
    /// Kill executions with all their processes, or send them a signal
    Cancel(Cancel),
    /// Copy files or directories from or to a sandbox
    Cp(Cp),
    /// Look at single files of a sandbox, read and write them, move them, change their modes
    #[command(subcommand)]
    File(file::FileCommand),
    /// Halt the processes of a sandbox; they keep their memory
    Pause(OneChange),
    /// Let a paused sandbox go on
    Resume(OneChange),
    /// End the processes of sandboxes and keep their files
    Stop(Rm),
    /// Go on with the files of a stopped sandbox, as the next generation of its slot; prints its id
    Start(Start),
    /// Give a sandbox another deadline, counted from now
    Timeout(Timeout),
    /// End and remove sandboxes
    Rm(Rm),
    /// Capture sandboxes, list and remove captures
    #[command(subcommand)]
    Snapshot(Snapshot),
    /// Capture a sandbox once and start branches from it; prints their ids
    Fork(Fork),
    /// Start a sandbox from a snapshot and print its id
    Restore(Restore),
    /// Show where everything comes from: images, sandboxes, snapshots and forks
    Tree(Tree),
    /// Make, list and revoke access keys
    #[command(subcommand)]
    Key(Key),
    /// List accounts, and set what they may use; on the server's own machine
    #[command(subcommand)]
    Account(AccountCommand),
    /// Show what an account uses: captured, on the disk, reserved, and counted by month
    Usage(OfAccount),
    /// Compare the server's records with its machine, and look at what it stands on; exits 1 where something is wanting
    Doctor(Doctor),
    /// Show who a command is to the server, and what it may do
    Whoami,
    /// Find out what became of a call, by its key or the operation's id
    Operation(Operation),
    /// Show what was done to a sandbox, also after its end
    Receipt(ReceiptArgs),
    /// Print what happened
    Events(Events),
    /// Let others reach an application in a sandbox
    #[command(subcommand)]
    Preview(PreviewCommand),
    /// Deliver events to URLs
    #[command(subcommand)]
    Webhook(WebhookCommand),
    /// Compare repairs on copies of one prepared machine
    #[command(subcommand)]
    Rodeo(Rodeo),
    /// Print the OpenAPI document
    #[command(hide = true)]
    Openapi,
}

#[derive(Debug, Args)]
pub struct Serve {
    /// Where to listen for remote clients
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:8787", value_parser = listen)]
    pub listen: SocketAddr,
    /// What an account may use that has no limits of its own, such as sandboxes=20, disk_bytes=100G or
    /// starts_per_month=none; may be repeated
    #[arg(long = "quota", value_name = "NAME=VALUE")]
    pub quotas: Vec<QuotaSetting>,
    /// End and remove every sandbox and snapshot when the server ends; without it they go on and stay, and the next
    /// server on the data directory takes them over
    #[arg(long)]
    pub ephemeral: bool,
    /// How long a sandbox may live at most, such as 24h; a bare number counts seconds
    #[arg(long, value_name = "TIME", value_parser = deadlines::timeout_max, default_value = "24h")]
    pub timeout_max: Duration,
    /// How often records, memory and machine are compared, and what differs is repaired where that is certain
    #[arg(long, value_name = "TIME", value_parser = deadlines::reconcile_every, default_value = "10m")]
    pub reconcile_every: Duration,
    /// How often all kept bytes of snapshots are read, slowly, and held against their digests
    #[arg(long, value_name = "TIME", value_parser = deadlines::scrub_every, default_value = "24h")]
    pub scrub_every: Duration,
    /// How long the outcome of a call is kept under its key, from when it came; those of executions are kept as long as
    /// their record, and no less
    #[arg(long, value_name = "TIME", value_parser = deadlines::keys_live, default_value = "24h")]
    pub keys_live: Duration,
    /// Let webhooks deliver to loopback, private and other addresses that are not public
    #[arg(long)]
    pub webhooks_to_private: bool,
    /// PEM file of certificate authorities that webhooks trust beside those that browsers do
    #[arg(long, value_name = "FILE")]
    pub webhooks_trust: Option<PathBuf>,
    /// Domain that previews are below: *.DOMAIN must lead to this server
    #[arg(long, value_name = "DOMAIN", default_value = "localhost")]
    pub preview_domain: remuda_gateway::Domain,
    /// Do not speak the Mainbrella dialect at the root of the listener
    #[arg(long)]
    pub no_mainbrella: bool,
    #[command(flatten)]
    pub tls: TlsArgs,
    #[command(flatten)]
    pub egress: EgressArgs,
}

impl Serve {
    /// The limits that hold with these settings.
    pub fn quotas(&self) -> QuotaLimits {
        QuotaLimits::default().with(&self.quotas.iter().copied().collect())
    }
}

/// A sandbox by its id.
#[derive(Debug, Args)]
pub struct One {
    /// Sandbox, as slot@generation
    #[arg(value_name = "ID", value_parser = sandbox_id)]
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

/// `start`.
#[derive(Debug, Args)]
pub struct Start {
    #[command(flatten)]
    pub sandbox: One,
    /// Do not start the program that the sandbox was restored with
    #[arg(long)]
    pub no_launch: bool,
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
    /// Memory limit, such as 512M or 2G, from 128M to 64G; a bare number counts MiB
    #[arg(long, value_name = "SIZE", default_value_t = MEMORY_MIB_DEFAULT, value_parser = memory_mib)]
    pub memory: u32,
    /// Private files that it may hold, such as 500M or 20G, 8G when not given; it is paused where it holds more
    #[arg(long, value_name = "SIZE", value_parser = disk_mib)]
    pub disk: Option<u32>,
    /// Give it no way out: neither it nor any copy of it reaches the internet
    #[arg(long)]
    pub no_internet: bool,
    #[command(flatten)]
    pub deadline: DeadlineArgs,
    #[command(flatten)]
    pub labels: LabelArgs,
    #[command(flatten)]
    pub launch: LaunchArgs,
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
pub struct Cp {
    /// A local path, or ID:/path in a sandbox
    pub source: String,
    /// A local path, or ID:/path in a sandbox
    pub destination: String,
    /// Copy directories too, which is done without it as well
    #[arg(short, long)]
    pub recursive: bool,
    /// Guest user who reads or writes there and owns what is written; `user` when not given
    #[arg(short, long)]
    pub user: Option<String>,
    #[command(flatten)]
    pub key: KeyArg,
}

#[derive(Debug, Args)]
pub struct Rm {
    /// Sandboxes, as slot@generation
    #[arg(value_name = "ID", required = true, value_parser = sandbox_id)]
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

#[derive(Debug, Args)]
pub struct Events {
    /// Go on until the server ends
    #[arg(short, long)]
    pub follow: bool,
    /// Only those above this number
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = number)]
    pub after: u64,
}

#[derive(Debug, Subcommand)]
pub enum Rodeo {
    /// Prepare a machine, fork it, apply one patch to each branch, and judge each from outside
    Run(RodeoRun),
    /// Let agents make attempts, each on a branch of its own, and judge what they left in copies that they never reached
    Attempt(RodeoAttempt),
    /// Check a run's evidence offline: every byte against its signature, every verdict anew from what was observed
    Verify(RodeoVerify),
    /// Make one page of a run's evidence, after checking it
    Report(RodeoReport),
    /// Print the public key that this user's evidence is signed with; it is made where there is none
    Key(EvidenceKey),
    /// Do on purpose what goes wrong in real life, to a server of its own, and look what is kept of the promises
    Drill(RodeoDrill),
}

#[derive(Debug, Args)]
pub struct RodeoAttempt {
    #[command(flatten)]
    pub run: RodeoRun,
    /// The agent: a command for `sh -c`, run as you and here. REMUDA_URL, REMUDA_SANDBOX and REMUDA_API_KEY name its branch and
    /// open that alone; RODEO_RELOAD_FILE is the file there that counts
    #[arg(long, value_name = "COMMAND")]
    pub agent: String,
    /// How many attempts, 50 at most
    #[arg(short = 'n', long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=i64::from(ATTEMPTS_MAX)))]
    pub count: u32,
    /// How long each agent may work, such as 90s, 30m or 2h, and 22h at most; a bare number counts seconds
    #[arg(long, value_name = "TIME", value_parser = deadlines::attempt_time, default_value = "30m")]
    pub time_limit: Duration,
}

/// Attempts of one run.
const ATTEMPTS_MAX: u32 = 50;

#[derive(Debug, Args)]
pub struct RodeoVerify {
    /// The run's directory, as `rodeo run` calls its evidence
    #[arg(value_name = "BUNDLE")]
    pub bundle: PathBuf,
    #[command(flatten)]
    pub trusted: TrustedKeys,
}

#[derive(Debug, Args)]
pub struct TrustedKeys {
    /// Public key whose signature counts, as `rodeo key` prints it; may be repeated. Without one any good signature does
    #[arg(long = "trusted-key", value_name = "KEY")]
    pub trusted: Vec<remuda_rodeo::evidence::key::PublicKey>,
}

#[derive(Debug, Args)]
pub struct RodeoReport {
    /// The run's directory, as `rodeo run` calls its evidence
    #[arg(value_name = "BUNDLE")]
    pub bundle: PathBuf,
    /// File to write; BUNDLE.html or BUNDLE.md beside it when not given, - for standard output
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Write Markdown instead of a page
    #[arg(long)]
    pub markdown: bool,
    #[command(flatten)]
    pub trusted: TrustedKeys,
}

#[derive(Debug, Args)]
pub struct EvidenceKey {
    /// File of the private key that signs evidence, PKCS#8 PEM; made where there is none. remuda/evidence-key.pem in
    /// the user's state directory when not given
    #[arg(long, value_name = "FILE")]
    pub key_file: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct RodeoDrill {
    /// Drill: `lost-create`, `lost-capture`, `stale-stop`, `quota`, `permissions`, `reconnect`, `named-recovery`, `isolation`,
    /// `clock`, `server-killed`, `interrupted-capture`, or `all`
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

#[derive(Debug, Args)]
pub struct RodeoRun {
    /// Workload: `worker`, or a directory with a workload.toml
    pub workload: String,
    /// What the branches are made from: `memory`, the whole running machine, or `filesystem`, its files alone
    #[arg(long, value_enum, default_value_t = Mode::Memory, hide_possible_values = true)]
    pub mode: Mode,
    /// Seed of the jobs; the workload's own when not given
    #[arg(long, value_name = "N", value_parser = number)]
    pub seed: Option<u64>,
    /// Directory in which the run makes one for its evidence; ./evidence when not given
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    #[command(flatten)]
    pub key: EvidenceKey,
}
