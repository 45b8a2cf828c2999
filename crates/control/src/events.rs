//! Events: what is told of what happened. Each is written with what it tells of, in one transaction.

use remuda_journal::{Change, NewEvent};
use remuda_types::wire::{EventAbout, Snapshot};
use remuda_types::{Account, SnapshotState};

use crate::clock::now_unix_ms;

/// It is bound and serves, or goes on after a pause.
pub(crate) const SANDBOX_RUNNING: &str = "sandbox.running";
/// It stands still.
pub(crate) const SANDBOX_PAUSED: &str = "sandbox.paused";
/// It holds more files than it may, and is paused for that.
pub(crate) const SANDBOX_DISK_LIMIT: &str = "sandbox.disk_limit";
/// Its processes have ended, on request or by themselves; its files are kept.
pub(crate) const SANDBOX_STOPPED: &str = "sandbox.stopped";
/// It has ended and is removed.
pub(crate) const SANDBOX_GONE: &str = "sandbox.gone";
/// A program that was to be told of a copy did not end well.
pub(crate) const SANDBOX_HOOK_FAILED: &str = "sandbox.hook_failed";
/// It never came up.
pub(crate) const SANDBOX_FAILED: &str = "sandbox.failed";

/// Its deadline is near.
pub(crate) const SANDBOX_DEADLINE_SOON: &str = "sandbox.deadline_soon";
/// Its deadline passed, or it was idle for as long as it may be, and what was asked for then is done.
pub(crate) const SANDBOX_EXPIRED: &str = "sandbox.expired";

/// Something was put right that was not as the rest said it was.
pub(crate) const SERVER_REPAIRED: &str = "server.repaired";

/// A preview was made.
pub(crate) const PREVIEW_MADE: &str = "preview.made";
/// A preview has another credential.
pub(crate) const PREVIEW_ROTATED: &str = "preview.rotated";
/// A preview lives longer.
pub(crate) const PREVIEW_RENEWED: &str = "preview.renewed";
/// A preview opens nothing any more.
pub(crate) const PREVIEW_REVOKED: &str = "preview.revoked";

/// An access key was made.
pub(crate) const ACCESS_KEY_MADE: &str = "access_key.made";
/// An access key opens nothing any more.
pub(crate) const ACCESS_KEY_REVOKED: &str = "access_key.revoked";

/// A capture is verified.
const SNAPSHOT_ACTIVE: &str = "snapshot.active";
/// A capture failed.
const SNAPSHOT_FAILED: &str = "snapshot.failed";
/// A capture was deleted.
const SNAPSHOT_DELETED: &str = "snapshot.deleted";

/// Bytes of a capture on the disk are not those that were captured.
const SNAPSHOT_DAMAGED: &str = "snapshot.damaged";

/// All kinds.
pub(crate) const KINDS: &[&str] = &[
    SANDBOX_RUNNING,
    SANDBOX_PAUSED,
    SANDBOX_DISK_LIMIT,
    SANDBOX_STOPPED,
    SANDBOX_GONE,
    SANDBOX_HOOK_FAILED,
    SANDBOX_FAILED,
    SANDBOX_DEADLINE_SOON,
    SANDBOX_EXPIRED,
    SNAPSHOT_ACTIVE,
    SNAPSHOT_FAILED,
    SNAPSHOT_DELETED,
    PREVIEW_MADE,
    PREVIEW_ROTATED,
    PREVIEW_RENEWED,
    PREVIEW_REVOKED,
    SNAPSHOT_DAMAGED,
    ACCESS_KEY_MADE,
    ACCESS_KEY_REVOKED,
    SERVER_REPAIRED,
];

/// An event of this moment.
pub(crate) fn event(account: &Account, kind: &str, about: &EventAbout) -> Change {
    debug_assert!(KINDS.contains(&kind), "no webhook could be made for {kind}");
    Change::Event(NewEvent {
        account: account.clone(),
        at_ms: now_unix_ms(),
        kind: kind.to_owned(),
        // Plain data: this does not fail.
        doc: serde_json::to_value(about).unwrap_or_default(),
    })
}

/// Tells that bytes of a snapshot were found to be others, if they were.
pub(crate) fn damaged(account: &Account, shown: &Snapshot) -> Option<Change> {
    let reason = shown.damage.clone()?;
    let about = EventAbout {
        sandbox: Some(shown.source.clone()),
        snapshot: Some(shown.id.clone()),
        reason: Some(reason),
        ..EventAbout::default()
    };
    Some(event(account, SNAPSHOT_DAMAGED, &about))
}

/// Tells where a snapshot has come to, where that is worth telling.
pub(crate) fn snapshot(account: &Account, shown: &Snapshot) -> Option<Change> {
    let kind = match shown.state {
        SnapshotState::Active => SNAPSHOT_ACTIVE,
        SnapshotState::Failed => SNAPSHOT_FAILED,
        SnapshotState::Deleted => SNAPSHOT_DELETED,
        SnapshotState::Capturing | SnapshotState::Verifying | SnapshotState::Deleting => return None,
    };
    let reason = shown.failure.as_ref().filter(|_| shown.state == SnapshotState::Failed);
    let about = EventAbout {
        sandbox: Some(shown.source.clone()),
        snapshot: Some(shown.id.clone()),
        reason: reason.map(|error| error.message.clone()),
        ..EventAbout::default()
    };
    Some(event(account, kind, &about))
}
