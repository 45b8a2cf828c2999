//! The workloads that the program carries. The same files as in `workloads/`, never a copy that could differ.

/// A file of a built-in workload: its path in the workload's folder, and its contents.
pub(super) type BuiltinFile = (&'static str, &'static [u8]);

macro_rules! files {
    ($workload:literal: $($path:literal),* $(,)?) => {
        &[$(($path, include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../workloads/", $workload, "/", $path)))),*]
    };
}

const WORKER: &[BuiltinFile] = files!("worker":
    "CHECK.md",
    "app/processor.mjs",
    "app/server.mjs",
    "patches/correct/processor.mjs",
    "patches/misleading/processor.mjs",
    "patches/none/processor.mjs",
    "workload.toml",
);

const ALL: &[(&str, &[BuiltinFile])] = &[("worker", WORKER)];

/// The files of the built-in workload of this name.
pub(super) fn find(name: &str) -> Option<&'static [BuiltinFile]> {
    ALL.iter().find(|(known, _)| *known == name).map(|(_, files)| *files)
}

/// The names of the built-in workloads.
pub fn names() -> impl Iterator<Item = &'static str> {
    ALL.iter().map(|(name, _)| *name)
}
