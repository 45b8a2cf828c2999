//! The commands about previews, as types.

use std::num::NonZeroU16;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use remuda_types::PreviewId;
use remuda_types::wire;

use super::values::duration;
use super::{KeyArg, One};

#[derive(Debug, Subcommand)]
pub enum PreviewCommand {
    /// Let whoever has its URL reach one port of a sandbox, and print that URL
    Create(PreviewCreate),
    /// List the previews of a sandbox, also of one that has ended
    Ls(One),
    /// Show a preview, without its credential
    Show(OnePreview),
    /// Give a preview another credential and print its URL; the one before is refused from then on
    Rotate(OnePreviewChange),
    /// Let a preview live longer, from now on
    Renew(PreviewRenew),
    /// Close a preview for good
    Revoke(OnePreviewChange),
    /// Look what is behind a preview at this moment; exits 1 where nothing answers
    Probe(OnePreview),
}

#[derive(Debug, Args)]
pub struct PreviewCreate {
    #[command(flatten)]
    pub sandbox: One,
    /// Port in the sandbox, 1 to 65535
    #[arg(value_name = "PORT")]
    pub port: NonZeroU16,
    /// How long it lives, such as 15m or 8h; a bare number counts seconds; 1h when not given
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub ttl: Option<Duration>,
    /// How its credential travels; `host` when not given. The header X-Remuda-Preview-Token is taken for each
    #[arg(long, value_enum, value_name = "WAY")]
    pub auth: Option<Auth>,
    /// What the application sees as the name it was called by; `rewrite` when not given
    #[arg(long, value_enum, value_name = "NAME")]
    pub host: Option<Host>,
    /// What it is for
    #[arg(long, value_name = "TEXT")]
    pub label: Option<String>,
    #[command(flatten)]
    pub key: KeyArg,
}

/// How a credential travels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Auth {
    /// In the host name: whoever has the URL is let in
    Host,
    /// In the header X-Remuda-Preview-Token
    Header,
    /// In a cookie, which a link sets that works once
    Cookie,
}

impl From<Auth> for wire::PreviewAuth {
    fn from(auth: Auth) -> Self {
        match auth {
            Auth::Host => wire::PreviewAuth::Host,
            Auth::Header => wire::PreviewAuth::Header,
            Auth::Cookie => wire::PreviewAuth::Cookie,
        }
    }
}

/// What the application is called by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Host {
    /// localhost and its own port
    Rewrite,
    /// The preview's name, with its id where the credential stands
    Preserve,
}

impl From<Host> for wire::PreviewHost {
    fn from(host: Host) -> Self {
        match host {
            Host::Rewrite => wire::PreviewHost::Rewrite,
            Host::Preserve => wire::PreviewHost::Preserve,
        }
    }
}

/// A preview of a sandbox.
#[derive(Debug, Args)]
pub struct OnePreview {
    #[command(flatten)]
    pub sandbox: One,
    /// Preview, by the id that `preview ls` prints
    #[arg(value_name = "PREVIEW")]
    pub preview: PreviewId,
}

/// A preview that is changed.
#[derive(Debug, Args)]
pub struct OnePreviewChange {
    #[command(flatten)]
    pub of: OnePreview,
    #[command(flatten)]
    pub key: KeyArg,
}

#[derive(Debug, Args)]
pub struct PreviewRenew {
    #[command(flatten)]
    pub of: OnePreview,
    /// How long it lives from now on, such as 15m or 8h; a bare number counts seconds; as long as it was made for when not
    /// given
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub ttl: Option<Duration>,
    #[command(flatten)]
    pub key: KeyArg,
}
