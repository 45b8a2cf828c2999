//! What can be wrong with a workload: always the user's input, never the run's failure.

/// Why a workload can't be used. The command line exits with 2.
#[derive(Debug, thiserror::Error)]
pub enum WorkloadError {
    /// Neither a built-in workload nor a folder.
    #[error(
        "{given:?} is no workload: give the path of a folder that has a workload.toml, or one of the built-in ones: {builtin}"
    )]
    NotFound {
        /// What was given.
        given: String,
        /// The built-in ones.
        builtin: String,
    },
    /// A folder without a description.
    #[error("{folder} is no workload: it has no workload.toml; workloads/worker/workload.toml shows how one looks")]
    NoManifest {
        /// The folder.
        folder: String,
    },
    /// A file can't be read.
    #[error("failed to read {path}: {cause}")]
    Read {
        /// Which.
        path: String,
        /// Why.
        cause: std::io::Error,
    },
    /// A file that a workload can't have.
    #[error("{path} can't be part of a workload: {problem}; remove it")]
    OddFile {
        /// Which.
        path: String,
        /// Why.
        problem: String,
    },
    /// Not TOML, a missing or an unknown key, a value of the wrong kind.
    #[error("{file} can't be understood: {cause}\ncompare it with workloads/worker/workload.toml, which has every key")]
    Syntax {
        /// Which file.
        file: String,
        /// What the parser says: line, key and what it expected.
        cause: String,
    },
    /// A key's value makes no sense.
    #[error("{file}: {key}: {problem}; {remedy}")]
    Invalid {
        /// Which file.
        file: String,
        /// Which key.
        key: String,
        /// What is wrong.
        problem: String,
        /// What to do.
        remedy: String,
    },
    /// No baseline.
    #[error(
        "{file} has no baseline: without a fault that the unpatched twin is known to show, no repair can be judged; \
         add [baseline] with its verdict"
    )]
    NoBaseline {
        /// Which file.
        file: String,
    },
    /// A patch that is not there.
    #[error("the workload {workload} has no patch {patch:?}; it has {known}")]
    UnknownPatch {
        /// Which workload.
        workload: String,
        /// The unknown name.
        patch: String,
        /// Those it has.
        known: String,
    },
}
