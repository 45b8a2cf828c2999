//! How connections to a server are encrypted, on the command line.

use std::path::PathBuf;

use clap::Args;

/// Settings of `serve`.
#[derive(Debug, Args)]
pub struct TlsArgs {
    /// Speak TLS, with certificates of a private authority that is made in the data directory for the preview domain;
    /// prints how to trust it
    #[arg(long, conflicts_with_all = ["tls_cert", "tls_key"])]
    pub tls_self_signed: bool,
    /// Speak TLS with this certificate, and its chain behind it, as a PEM file
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// The key of that certificate, as a PEM file
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
}
