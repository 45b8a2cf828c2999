//! Stands in for gVisor in model tests and benchmarks of the control plane: machines without processes, whose agent
//! follows a script, on a host that outlives the platform, so that a server's death and its successor fit into one
//! process. It is no part of `remuda`: no shipped crate may depend on it, and it must never be taken for the engine in
//! a test of anything else.

mod agent;
mod being;
mod host;
mod mind;
mod session;

pub use host::{Seen, StandIn};
pub use session::{Plan, Session, Verdict};
