//! The harness: forks a prepared machine, applies a patch to each branch, judges every repair from outside and leaves
//! evidence. Knows public APIs only, through provider adapters; never the platform's insides, and never believes what
//! a guest says about its own success.

mod agent;
mod drill;
pub mod evidence;
pub mod jobs;
pub mod judging;
pub mod observe;
pub mod page;
mod probe;
mod progress;
pub mod provider;
pub mod providers;
pub mod reading;
pub mod records;
pub mod report;
mod run;
mod steps;
mod table;
pub mod text;
pub mod verdict;
pub mod workload;

pub use agent::AgentEnd;
pub use drill::{Drill, DrillError, DrillOptions, DrillReport, Fact, Requests, drill};
pub use progress::Progress;
pub use report::RunReport;
pub use run::{Attempts, ProgressFn, RunError, RunOptions, attempt, run, run_with};
pub use tokio_util::sync::CancellationToken;
pub use verdict::Verdict;
