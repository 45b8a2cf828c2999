//! Which files differ between two snapshots, or between a snapshot and what its source began with. A look: nothing is
//! changed, and nothing that a guest wrote is believed to be text before it was seen to be.

use std::time::Duration;

use remuda_engine::{DiffLimits, Difference, Facts, FileKind, Side};
use remuda_types::limits::{DIFF_CHANGES_MAX, DIFF_FILE_BYTES_MAX, DIFF_TEXTS_BYTES_MAX};
use remuda_types::wire::{ChangeKind, FileDifference, FileFacts, SnapshotDiff};
use remuda_types::{Error, ErrorCode, SnapshotId, SnapshotState};
use similar::TextDiff;

use super::Platform;
use crate::access::Action;
use crate::caller::Caller;
use crate::operations::restore::{Reading, check_layers};
use crate::registry::SnapshotCell;

/// How long the making of one patch may look for the shortest one; after that a longer one does.
const PATCH_WAIT_MAX: Duration = Duration::from_millis(500);
/// Lines around a change in a patch.
const CONTEXT_LINES: usize = 3;

impl Platform {
    /// Which files of a snapshot differ from those of another, or, where none is named, from what its source began with.
    /// With patches of text where that is asked for.
    ///
    /// # Errors
    /// `snapshot_not_found`, `snapshot_not_active`, `snapshot_damaged`; `invalid_request` for two on different base
    /// images.
    pub async fn diff(
        &self,
        caller: &Caller,
        from: Option<&str>,
        to: &str,
        patches: bool,
    ) -> Result<SnapshotDiff, Error> {
        caller.may(Action::DiffSnapshot)?;
        let to = self.comparable(caller, to).await?;
        let from = match from {
            Some(from) => Some(self.comparable(caller, from).await?),
            None => None,
        };
        let of_to = self.side(to.snapshot())?;
        let before = match &from {
            Some(from) => {
                let (a, b) = (from.snapshot().doc().fingerprint.base, to.snapshot().doc().fingerprint.base);
                if a != b {
                    let message = "the two snapshots stand on different base images, and have no files in common";
                    return Err(Error::new(ErrorCode::InvalidRequest, message)
                        .cause(format!("{} stands on {a}, and {} on {b}", from.snapshot().id, to.snapshot().id))
                        .remedy("compare each with what its source began with, by leaving the other out"));
                }
                // One agent below both: it is no file of theirs.
                Side { below: of_to.below.clone(), ..self.side(from.snapshot())? }
            }
            // Its own layer is what its source changed.
            None => Side { layers: of_to.layers.iter().skip(1).cloned().collect(), below: of_to.below.clone() },
        };
        let limits = DiffLimits {
            differences_max: DIFF_CHANGES_MAX,
            text_bytes_max: if patches { DIFF_FILE_BYTES_MAX } else { 0 },
            texts_bytes_max: DIFF_TEXTS_BYTES_MAX,
        };
        let source = to.snapshot().show().source;
        let differences = self.engine().differences(before, of_to, limits).await;
        let differences = differences.map_err(|e| crate::errors::engine(&source, e))?;
        let telling = tokio::task::spawn_blocking(move || differences.found.into_iter().map(told).collect());
        let changes = telling.await.map_err(|e| Error::new(ErrorCode::Internal, "a task ended").cause(e))?;
        Ok(SnapshotDiff {
            from: from.map(|from| from.snapshot().id.clone()),
            to: to.snapshot().id.clone(),
            changes,
            truncated: differences.truncated,
        })
    }

    /// A snapshot whose files are there and sound; they stay while they are read.
    async fn comparable(&self, caller: &Caller, id_or_name: &str) -> Result<Reading, Error> {
        let cell = self.kept_snapshot(caller, id_or_name).await?;
        let reading = Reading::begin(&cell);
        let state = cell.show().state;
        if state != SnapshotState::Active {
            let message = format!("snapshot {} is {state}, not active", cell.id);
            return Err(Error::new(ErrorCode::SnapshotNotActive, message));
        }
        check_layers(self, &cell).await?;
        Ok(reading)
    }

    fn side(&self, cell: &SnapshotCell) -> Result<Side, Error> {
        let doc = cell.doc();
        let below = self.engine().parts().below(&doc.fingerprint).map_err(|cause| {
            Error::new(ErrorCode::EngineMismatch, format!("snapshot {} was made with parts that are not here", cell.id))
                .cause(cause)
        })?;
        Ok(Side { layers: doc.layers.iter().map(SnapshotId::to_string).collect(), below })
    }
}

fn told(difference: Difference) -> FileDifference {
    let Difference { path, before, after, contents, texts } = difference;
    let path = String::from_utf8_lossy(&path).into_owned();
    let change = match (&before, &after) {
        (None, _) => ChangeKind::Added,
        (_, None) => ChangeKind::Removed,
        _ => ChangeKind::Changed,
    };
    let patch = texts.and_then(|(a, b)| patch(&path, change, &a, &b));
    FileDifference { change, before: before.map(facts), after: after.map(facts), contents, patch, path }
}

fn facts(facts: Facts) -> FileFacts {
    let Facts { kind, mode, uid, gid, size, target } = facts;
    let kind = match kind {
        FileKind::File => "file",
        FileKind::Directory => "directory",
        FileKind::Symlink => "symlink",
        FileKind::Other => "other",
    };
    let target = target.map(|target| String::from_utf8_lossy(&target).into_owned());
    FileFacts { kind: kind.to_owned(), mode, uid, gid, size, target }
}

/// A unified patch, if both sides are text.
fn patch(path: &str, change: ChangeKind, before: &[u8], after: &[u8]) -> Option<String> {
    let text = |bytes| std::str::from_utf8(bytes).ok().filter(|text| !text.contains('\0'));
    let (before, after) = (text(before)?, text(after)?);
    let (from, to) = (format!("a{path}"), format!("b{path}"));
    let nothing = "/dev/null";
    let (from, to) = match change {
        ChangeKind::Added => (nothing, to.as_str()),
        ChangeKind::Removed => (from.as_str(), nothing),
        ChangeKind::Changed => (from.as_str(), to.as_str()),
    };
    // A name with a line break in it would end the line that it stands in.
    if path.contains(['\n', '\r', '\t']) {
        return None;
    }
    let compared = TextDiff::configure().timeout(PATCH_WAIT_MAX).diff_lines(before, after);
    Some(compared.unified_diff().context_radius(CONTEXT_LINES).header(from, to).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_has_a_patch_and_nothing_else_has() {
        let made = patch("/w/a", ChangeKind::Changed, b"one\ntwo\n", b"one\n2\n").unwrap();
        assert_eq!(made, "--- a/w/a\n+++ b/w/a\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n");
        let added = patch("/w/a", ChangeKind::Added, b"", b"new\n").unwrap();
        assert!(added.starts_with("--- /dev/null\n+++ b/w/a\n"), "{added}");
        assert!(patch("/w/a", ChangeKind::Changed, b"\xff\xfe", b"x").is_none());
        assert!(patch("/w/a", ChangeKind::Changed, b"a\0b", b"x").is_none());
        assert!(patch("/w/a\nb", ChangeKind::Changed, b"a", b"x").is_none());
    }
}
