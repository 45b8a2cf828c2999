//! What guests of a server may reach of the world.

use std::net::Ipv4Addr;

use clap::Args;
use remuda_engine::{Egress, Subnet};

/// Settings of `serve`.
#[derive(Debug, Args)]
pub struct EgressArgs {
    /// Let no sandbox out to the internet
    #[arg(long, conflicts_with_all = ["resolver", "egress_allow"])]
    pub no_internet: bool,
    /// Name server that sandboxes' questions go to; the machine's own when not given
    #[arg(long, value_name = "ADDRESS")]
    pub resolver: Option<Ipv4Addr>,
    /// Private network that sandboxes may reach all the same, such as 10.1.2.3 or 10.1.0.0/16; may be repeated. They
    /// reach public addresses anyway
    #[arg(long, value_name = "NETWORK")]
    pub egress_allow: Vec<Subnet>,
}

impl EgressArgs {
    /// What that comes to on this machine, or why nothing is let out.
    pub fn egress(&self) -> Result<Egress, String> {
        if self.no_internet {
            return Err("this server was started with --no-internet".into());
        }
        let allowed = self.egress_allow.clone();
        match self.resolver {
            Some(resolver) => Ok(Egress { resolver, allowed }),
            None => Egress::of_this_machine().map(|egress| Egress { allowed, ..egress }).map_err(|e| e.to_string()),
        }
    }
}
