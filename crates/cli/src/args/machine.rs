//! The commands about the machine itself, as types.

use clap::Args;

#[derive(Debug, Args)]
pub struct Setup {
    /// Only look: change and download nothing
    #[arg(long)]
    pub check: bool,
    /// Install libnss-myhostname too, so that every program of this machine finds the host names of previews
    #[arg(long, conflicts_with = "check")]
    pub local_names: bool,
}

/// `doctor`.
#[derive(Debug, Args)]
pub struct Doctor {
    /// Put right first what is certain; on the server's own machine
    #[arg(long)]
    pub repair: bool,
}
