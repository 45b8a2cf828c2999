//! The commands about access keys and accounts, as types.

use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use remuda_types::{AccessScope, Account, QuotaSetting, SandboxId, Slot};

use super::values::{duration, pair, sandbox_id};

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
        keys: Vec<String>,
        #[command(flatten)]
        of: OfAccount,
    },
}

/// A foreign dialect that the server speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Dialect {
    /// That of Mainbrella: `mb_` and 64 hex digits
    Mainbrella,
}

#[derive(Debug, Args)]
pub struct KeyCreate {
    /// What it may do: sandboxes:read, sandboxes:write, sandboxes:delete, executions, files, snapshots:read,
    /// snapshots:write, snapshots:delete, previews, usage, admin; separated by commas, may be repeated
    #[arg(long = "scope", value_name = "SCOPE,…", value_delimiter = ',', required_unless_present = "dialect")]
    pub scopes: Vec<AccessScope>,
    /// Print it in the form that clients of a foreign dialect take; it opens all that the dialect has unless --scope says
    /// otherwise
    #[arg(long, value_name = "DIALECT")]
    pub dialect: Option<Dialect>,
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
    #[arg(long, value_name = "ID", value_parser = sandbox_id)]
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
