//! How many files this process may have open: as many as the machine's settings allow at all.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the soft limit of open files to the hard one. A server has some ten for each sandbox and one for each
/// execution that runs, and the usual soft limit of 1024 is there for the sake of programs that use `select`.
pub fn allow_all() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        tracing::warn!(%error, ?current, ?maximum, "the limit of open files could not be raised");
    }
}
