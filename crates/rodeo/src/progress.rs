//! What a run tells while it goes on. For people only; nothing is judged from it.

use std::fmt;

use crate::verdict::Verdict;

/// One thing that begins or was found.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Progress {
    /// Source and twin are being prepared.
    Preparing,
    /// The unpatched twin was judged.
    BaselineJudged(Verdict),
    /// So many agents work, each on a branch of its own.
    Attempting(usize),
    /// The source is being captured and forked into so many branches.
    Forking(usize),
    /// The patches are applied and released.
    Releasing,
    /// A branch was judged.
    BranchJudged(String, Verdict),
    /// The last control runs.
    ColdControl,
    /// Everything the run made is being removed.
    CleaningUp,
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Progress::Preparing => write!(f, "preparing the source and a twin"),
            Progress::BaselineJudged(verdict) => write!(f, "the unpatched twin: {verdict}"),
            Progress::Attempting(count) => write!(f, "{count} agents at work, each on a branch of its own"),
            Progress::Forking(count) => write!(f, "forking the source into {count}"),
            Progress::Releasing => write!(f, "applying the patches and releasing"),
            Progress::BranchJudged(patch, verdict) => write!(f, "{patch}: {verdict}"),
            Progress::ColdControl => write!(f, "last control: the source's worker, killed and launched again"),
            Progress::CleaningUp => write!(f, "removing what the run made"),
        }
    }
}
