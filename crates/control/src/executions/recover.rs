//! Reads the executions of a sandbox back after a restart of the server.

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use remuda_types::ExecutionId;

use super::cell::ExecutionCell;
use super::record::{Fact, Head, Known, read};
use super::{Executions, Retention};
use crate::output::{self, Access, Files, Named, Recovered};

impl Executions {
    /// Reads everything back that lies in a sandbox's directory; that there is none is fine. What has no end in its
    /// files is `running`, as far as they tell: whoever knows better says so ([`ExecutionCell::exited`],
    /// [`Executions::sandbox_ended`]). What was cut off in the middle of its record was never handed to an agent and
    /// is removed. Blocks.
    ///
    /// # Errors
    /// What the file system says.
    pub(crate) fn recover(directory: PathBuf, retention: Retention) -> io::Result<Executions> {
        Executions::read_back(directory, retention, Access::Own, None)
    }

    /// A look at the executions of a sandbox that has ended, all or one of them: what has no end in its files ended
    /// with it. `None` where there is nothing left. Changes nothing: what is told of them goes no further. Blocks.
    ///
    /// # Errors
    /// What the file system says.
    pub(crate) fn recover_ended(
        directory: PathBuf,
        retention: Retention,
        only: Option<&ExecutionId>,
    ) -> io::Result<Option<Executions>> {
        if !directory.exists() {
            return Ok(None);
        }
        let executions = Executions::read_back(directory, retention, Access::Look, only)?;
        executions.sandbox_ended(false);
        Ok(Some(executions))
    }

    fn read_back(
        directory: PathBuf,
        retention: Retention,
        access: Access,
        only: Option<&ExecutionId>,
    ) -> io::Result<Executions> {
        let executions = Executions::new(directory, retention);
        let mut found: HashMap<ExecutionId, Vec<u64>> = HashMap::new();
        let entries = match std::fs::read_dir(&executions.directory) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(executions),
            entries => entries?,
        };
        for entry in entries {
            let entry = entry?;
            match entry.file_name().to_str().and_then(Named::of) {
                Some(Named::First(id) | Named::Numbered(id, _)) if only.is_some_and(|only| *only != id) => {}
                Some(Named::First(id)) => drop(found.entry(id).or_default()),
                Some(Named::Numbered(id, offset)) => found.entry(id).or_default().push(offset),
                // Half of something that was to take another's place.
                None if access == Access::Own => output::remove(&entry.path())?,
                None => {}
            }
        }
        let mut cells = Vec::new();
        for (id, numbered) in found {
            let files = Files { directory: executions.directory.clone(), id };
            if let Some(recovered) = output::recover(files, numbered, access)? {
                cells.extend(executions.known(recovered));
            }
        }
        // Many begin in one millisecond; what the server numbers grows with them.
        cells.sort_by_cached_key(|cell| {
            let Head { started_at_ms, effect, channel, id, .. } = cell.head();
            (started_at_ms, effect, channel, id.to_string())
        });
        {
            let mut inner = executions.inner();
            for cell in cells {
                inner.by_id.insert(cell.id.clone(), cell.clone());
                if access == Access::Own {
                    cell.admitted();
                }
                if cell.is_buried() {
                    inner.buried.push_back(cell);
                } else {
                    inner.retained.push_back(cell);
                }
            }
        }
        Ok(executions)
    }

    fn known(&self, recovered: Recovered) -> Option<Arc<ExecutionCell>> {
        let Recovered { mut log, record, notes } = recovered;
        let Some(head) = read::<Head>(&record) else {
            let file = log.files().first();
            tracing::error!("{} holds a record that this server can't read; it is left alone", file.display());
            return None;
        };
        let mut known = Known::of(head);
        for fact in notes.iter().filter_map(read::<Fact>) {
            known.learn(fact);
        }
        if known.state.is_final() {
            log.close();
        }
        Some(ExecutionCell::with(self.keeper.clone(), known, log))
    }
}
