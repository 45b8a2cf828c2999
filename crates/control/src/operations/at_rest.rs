//! Captures of sandboxes that have no processes, whether they were stopped or died: their files are all there is, nothing
//! has to stand still, and nobody can be asked for anything.

use std::sync::Arc;

use remuda_engine::free_bytes;
use remuda_journal::Reservation;
use remuda_types::limits::DISK_LOW_WATER_BYTES;
use remuda_types::{Error, ErrorCode, SandboxState, SnapshotMode, SnapshotState};
use serde_json::Value;

use crate::operation::Work;
use crate::operations::capture::{self, CAPTURED, Wanted};
use crate::operations::stop;
use crate::platform::Platform;
use crate::records::SnapshotDoc;
use crate::registry::{SandboxCell, SnapshotCell};
use crate::usage::Quotas;

/// What is missing of one whose kernel had no time to write back.
const UNWRITTEN: &str = "what its kernel had not written to its files when its processes ended";

/// A capture of files that nobody changes any more.
pub(crate) struct AtRest {
    source: Arc<SandboxCell>,
    /// What is written down when it is admitted.
    pub(crate) doc: SnapshotDoc,
}

impl AtRest {
    pub(crate) fn begin(platform: &Platform, source: Arc<SandboxCell>, wanted: Wanted) -> Result<AtRest, Error> {
        capture::check(&wanted)?;
        platform.admit_work()?;
        if wanted.mode == SnapshotMode::Memory {
            let message = format!("{} is stopped and has no memory to capture", source.id);
            let state = SandboxState::Stopped.to_string();
            return Err(Error::new(ErrorCode::WrongState, message)
                .detail("state", state)
                .remedy("capture its files with: --mode filesystem; or go on with them first: remuda start"));
        }
        enough_disk(platform, &source)?;
        let flushed = source.status.borrow().reason.as_deref() == Some(stop::REASON);
        let mut doc = capture::describe(platform, &source, wanted, false)?;
        doc.shown.excluded = if flushed { Vec::new() } else { vec![UNWRITTEN.to_owned()] };
        Ok(AtRest { source, doc })
    }

    /// What is set aside for it.
    pub(crate) fn reservation(&self, platform: &Platform) -> Result<Reservation, Error> {
        let shown = &self.doc.shown;
        let share = Quotas(platform.accounts()).of_capture(&self.source.account, &shown.id, 0, self.doc.of_fork);
        let snapshot = Some(self.doc.reservation()?);
        Ok(Reservation { snapshot, holds: share.holds, counts: share.counts, ..Reservation::default() })
    }

    /// Reads the files. A start or a removal waits meanwhile: it would take away what is read.
    pub(crate) async fn take(self, platform: &Platform, cell: &SnapshotCell, work: &Work) -> Result<(), Error> {
        let source = &self.source;
        let _removing = source.removing.lock().await;
        if source.state() != SandboxState::Stopped {
            let message = format!("{} is {}, not stopped", source.id, source.state());
            return Err(Error::new(ErrorCode::WrongState, message));
        }
        let places = platform.engine().capture_places(&cell.id, false);
        let frozen = platform.engine().capture_ended(&source.uid, places).await;
        let frozen = frozen.map_err(|e| crate::errors::engine(&source.id, e))?;
        let doc = {
            let mut inner = cell.inner();
            inner.doc.shown.state = SnapshotState::Verifying;
            inner.doc.shown.bytes = frozen.bytes;
            inner.doc.clone()
        };
        let holds = Quotas::captured(&work.account, &cell.id, frozen.bytes);
        work.step(CAPTURED, Value::Null, vec![doc.change()?, holds]).await
    }
}

fn enough_disk(platform: &Platform, cell: &SandboxCell) -> Result<(), Error> {
    let free = free_bytes(platform.engine().dirs().data()).map_err(|e| crate::errors::engine(&cell.id, e))?;
    if free < DISK_LOW_WATER_BYTES {
        return Err(Error::new(ErrorCode::DiskFull, format!("the disk is too full to capture {}", cell.id))
            .cause(format!("{free} bytes are free, and the low-water mark is {DISK_LOW_WATER_BYTES}"))
            .remedy("free space on the data directory's disk, and try again"));
    }
    Ok(())
}
