//! `snapshot`, `fork`, `restore` as types. Must do nothing but name and check what was given.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use remuda_types::limits::FORK_COUNT_MAX;
use remuda_types::{SandboxId, Slot, SnapshotState};

use super::values::{moment, pair, sandbox_id, snapshot_state};
use super::{DeadlineArgs, KeyArg, LabelArgs, Mode, One};

/// What must run in a sandbox that is made from files alone.
#[derive(Debug, Args)]
pub struct LaunchArgs {
    /// Launch recipe, as a JSON file: {"argv": […], "port": N, "ready_path": "/…"}; see docs/launch.md
    #[arg(long, value_name = "FILE")]
    pub launch: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub enum Snapshot {
    /// Capture a sandbox, which goes on, and print the snapshot's id
    Create(SnapshotCreate),
    /// List snapshots
    Ls(SnapshotLs),
    /// Show a snapshot
    Show {
        /// Snapshot, by id or name
        snapshot: String,
        /// Wait for the end of its capture; exits 1 where that failed
        #[arg(long)]
        wait: bool,
    },
    /// Read every byte of a snapshot, hold it against what was captured, and restore it for a trial; exits 1 where
    /// something is wrong
    Verify {
        /// Snapshot, by id or name
        snapshot: String,
        #[command(flatten)]
        key: KeyArg,
    },
    /// Show which files differ between two snapshots, or between one and what its source was made from; exits 1 where
    /// some do
    Diff(SnapshotDiff),
    /// Write a snapshot into one file, from which any Remuda can import it; one that was cut off goes on where it was
    Export {
        /// Snapshot, by id or name
        snapshot: String,
        /// File to write, which must not be there yet
        file: PathBuf,
    },
    /// Make a snapshot from such a file, and print its id; one that was cut off goes on where it was
    Import(SnapshotImport),
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
    /// Name to find it by, which no other active snapshot has
    #[arg(long)]
    pub name: Option<String>,
    /// Take the name from the snapshot that has it, as soon as this one is active; that one is kept
    #[arg(long, requires = "name")]
    pub replace: bool,
    /// What to capture: `memory`, the whole running machine, or `filesystem`, its files alone; when not given memory, or
    /// the files of a stopped sandbox
    #[arg(long, value_enum, hide_possible_values = true)]
    pub mode: Option<Mode>,
    /// Print the id as soon as there is one, and don't wait until it is active
    #[arg(long)]
    pub no_wait: bool,
    #[command(flatten)]
    pub labels: LabelArgs,
    #[command(flatten)]
    pub launch: LaunchArgs,
    #[command(flatten)]
    pub key: KeyArg,
}

#[derive(Debug, Args)]
pub struct SnapshotDiff {
    /// Snapshot by id or name, or sandbox as slot@generation, whose files are captured for that and let go of again
    #[arg(value_name = "A")]
    pub first: String,
    /// The same: what A became; where it is not given, A is compared with what it was made from
    #[arg(value_name = "B")]
    pub second: Option<String>,
    /// Print changes of text as a unified patch
    #[arg(short, long)]
    pub patch: bool,
}

#[derive(Debug, Args)]
pub struct SnapshotImport {
    /// File that `snapshot export` has written
    pub file: PathBuf,
    /// Name to find it by, which no other active snapshot has
    #[arg(long)]
    pub name: Option<String>,
    /// What to take: `filesystem` for the files of a memory snapshot alone; all of it when not given
    #[arg(long, value_enum, hide_possible_values = true)]
    pub mode: Option<Mode>,
    #[command(flatten)]
    pub labels: LabelArgs,
    #[command(flatten)]
    pub key: KeyArg,
}

/// `tree`.
#[derive(Debug, Args)]
pub struct Tree {
    /// Also what has ended and has nothing below it that has not
    #[arg(short, long)]
    pub all: bool,
}

#[derive(Debug, Args)]
pub struct SnapshotLs {
    /// Failed and deleted ones too
    #[arg(short, long)]
    pub all: bool,
    /// Only those in this state, such as `active` or `failed`
    #[arg(long, value_name = "STATE", value_parser = snapshot_state)]
    pub state: Option<SnapshotState>,
    /// Only the one with this name
    #[arg(long)]
    pub name: Option<String>,
    /// Only those captured from this sandbox, as slot@generation
    #[arg(long, value_name = "ID", value_parser = sandbox_id)]
    pub source: Option<SandboxId>,
    /// Only those with this label
    #[arg(short, long, value_name = "NAME=VALUE", value_parser = pair)]
    pub label: Option<(String, String)>,
    /// Only those made at or after this moment, such as 2026-10-08T12:00:00Z, or 5m ago as 5m
    #[arg(long, value_name = "TIME", value_parser = moment)]
    pub since: Option<i64>,
    /// Only those made before this moment
    #[arg(long, value_name = "TIME", value_parser = moment)]
    pub before: Option<i64>,
}

#[derive(Debug, Args)]
pub struct Fork {
    #[command(flatten)]
    pub sandbox: One,
    /// How many branches
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(FORK_COUNT_MAX)))]
    pub count: u32,
    /// What to capture: `memory`, the whole running machine, or `filesystem`, its files alone; when not given memory, or
    /// the files of a stopped sandbox
    #[arg(long, value_enum, hide_possible_values = true)]
    pub mode: Option<Mode>,
    /// Slots of the branches, separated by commas, as many as --count
    #[arg(long, alias = "slot", value_delimiter = ',', value_name = "SLOT,…")]
    pub slots: Option<Vec<Slot>>,
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
pub struct Restore {
    /// Snapshot, by id or name
    pub snapshot: String,
    /// Slot to take; the first free one when not given
    pub slot: Option<Slot>,
    #[command(flatten)]
    pub deadline: DeadlineArgs,
    #[command(flatten)]
    pub labels: LabelArgs,
    #[command(flatten)]
    pub launch: LaunchArgs,
    #[command(flatten)]
    pub key: KeyArg,
}
