//! One file an operation: how it is judged, its steps, and what it undoes when a step fails.

pub(crate) mod access;
pub(crate) mod at_rest;
pub(crate) mod capture;
pub(crate) mod change_file;
pub(crate) mod change_files;
pub(crate) mod create;
pub(crate) mod execute;
pub(crate) mod expire;
pub(crate) mod files;
pub(crate) mod fork;
pub(crate) mod halt;
pub(crate) mod hooks;
pub(crate) mod import;
pub(crate) mod launch;
pub(crate) mod parts;
pub(crate) mod previews;
pub(crate) mod raise;
pub(crate) mod remove;
pub(crate) mod remove_snapshot;
pub(crate) mod restore;
pub(crate) mod search;
pub(crate) mod start;
pub(crate) mod stop;
pub(crate) mod unpack_tree;
pub(crate) mod update_snapshot;
pub(crate) mod verify;
pub(crate) mod webhooks;
pub(crate) mod write_file;

use crate::access::Action;
use crate::deadlines::EndWhenDue;
use crate::deadlines::change::ChangeDeadline;
use crate::operation::Operation;

/// Every kind of operation, with what a caller must be allowed to do for it.
const KINDS: &[(&str, Action)] = &[
    of::<access::RevokeKey>(),
    of::<access::SetQuotas>(),
    of::<capture::Take>(),
    of::<ChangeDeadline>(),
    of::<create::Create>(),
    of::<EndWhenDue>(),
    of::<execute::Execute>(),
    of::<execute::SendSignalTo>(),
    of::<execute::CancelExecution>(),
    of::<change_file::MakeDirectory>(),
    of::<change_file::RemoveFile>(),
    of::<change_file::Rename>(),
    of::<change_file::SetAttributes>(),
    of::<change_files::ChangeFiles>(),
    of::<fork::ForkOnce>(),
    of::<halt::Pause>(),
    of::<halt::Resume>(),
    of::<previews::ExtendPreview>(),
    of::<previews::MakePreview>(),
    of::<previews::RevokePreview>(),
    of::<previews::RotatePreview>(),
    of::<import::Import>(),
    of::<remove::Remove>(),
    of::<remove_snapshot::RemoveSnapshot>(),
    of::<restore::Restore>(),
    of::<restore::Branch>(),
    of::<start::Start>(),
    of::<stop::StopSandbox>(),
    of::<unpack_tree::UnpackTree>(),
    of::<verify::Verify>(),
    of::<webhooks::MakeWebhook>(),
    of::<webhooks::RedeliverEvent>(),
    of::<webhooks::RemoveWebhook>(),
    of::<webhooks::RotateSecret>(),
    of::<write_file::WriteFile>(),
];

const fn of<O: Operation>() -> (&'static str, Action) {
    (O::KIND, O::ACTION)
}

/// What a caller must be allowed to do for an operation of this kind; none for a kind that this build has not.
pub(crate) fn action_of(kind: &str) -> Option<Action> {
    KINDS.iter().find(|(name, _)| *name == kind).map(|(_, action)| *action)
}
