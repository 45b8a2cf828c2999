//! The worker workload as both sides run it: the same files, the same start, the same jobs, the same check that a copy
//! really carries the prepared work.

use std::fs;
use std::path::Path;

use anyhow::Context as _;
use serde_json::{Value, json};

use crate::copies::Served;

/// Where its files are in a guest.
const DIRECTORY: &str = "/workspace/worker";
/// The port it listens on.
const PORT: u16 = 8080;
/// How many jobs it is given.
const JOBS: u64 = 5;

/// The worker, with its jobs.
pub(crate) fn served(project: &Path) -> anyhow::Result<Served> {
    Ok(Served {
        argv: ["node", "server.mjs"].map(str::to_owned).to_vec(),
        directory: DIRECTORY,
        env: [("PORT", PORT.to_string()), ("PREPARATION", "bench".to_owned())]
            .map(|(name, value)| (name.to_owned(), value))
            .to_vec(),
        files: files(project)?,
        port: PORT,
        status: "/status",
        work: Some(("/jobs", jobs().to_string())),
        pending: JOBS,
        memory_mib: None,
    })
}

/// The files of the application, name and contents.
fn files(project: &Path) -> anyhow::Result<Vec<(String, Vec<u8>)>> {
    let directory = project.join("workloads/worker/app");
    let mut files = Vec::new();
    for entry in fs::read_dir(&directory).with_context(|| format!("cannot read {}", directory.display()))? {
        let entry = entry?;
        files.push((entry.file_name().to_string_lossy().into_owned(), fs::read(entry.path())?));
    }
    anyhow::ensure!(!files.is_empty(), "{} is empty", directory.display());
    files.sort();
    Ok(files)
}

/// The body of `POST /jobs`.
fn jobs() -> Value {
    let job = |n| json!({"id": format!("job-{n}"), "item": "rope", "quantity": n + 1, "unitCents": 100 * n});
    (0..JOBS).map(job).collect()
}

/// What tells two processes apart, and that the prepared work is there: pid, nonce and number of pending jobs.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Identity {
    pid: u64,
    nonce: String,
    pending: u64,
}

impl Identity {
    /// Reads the answer of `GET /status`.
    pub(crate) fn of(status: &str) -> anyhow::Result<Identity> {
        let status: Value = serde_json::from_str(status).context("the worker's status is no JSON")?;
        let number = |name: &str| status[name].as_u64().with_context(|| format!("the status has no {name}"));
        let nonce = status["nonce"].as_str().context("the status has no nonce")?.to_owned();
        Ok(Identity { pid: number("pid")?, nonce, pending: number("pending")? })
    }

    /// Fails unless a copy is the same process with the same work as its source.
    pub(crate) fn check_copy(&self, copy: &Identity) -> anyhow::Result<()> {
        anyhow::ensure!(self == copy, "a copy is not its source: {copy:?} instead of {self:?}");
        Ok(())
    }

    /// Fails unless what it was given has arrived.
    pub(crate) fn check_prepared(&self, pending: u64) -> anyhow::Result<()> {
        anyhow::ensure!(self.pending == pending, "the server holds {} instead of {pending}", self.pending);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_with_another_nonce_or_an_empty_queue_is_none() {
        let source = Identity::of(r#"{"pid":7,"nonce":"a","pending":5}"#).unwrap();
        source.check_prepared(5).unwrap();
        assert!(source.check_copy(&source.clone()).is_ok());
        for other in [r#"{"pid":7,"nonce":"b","pending":5}"#, r#"{"pid":7,"nonce":"a","pending":0}"#] {
            assert!(source.check_copy(&Identity::of(other).unwrap()).is_err());
        }
        assert!(Identity::of(r#"{"pid":7}"#).is_err());
    }
}
