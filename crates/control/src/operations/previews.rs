//! create_preview, rotate_preview, renew_preview, revoke_preview: the preview on record → in memory → told. A credential is
//! part of no outcome: it derives from what is, for whoever may make the call.

use std::sync::Arc;

use remuda_journal::{Operation as Record, Reservation};
use remuda_types::limits::{LABEL_BYTES_MAX, PREVIEW_TTL_MS_MAX, PREVIEW_TTL_MS_MIN};
use remuda_types::wire::{CreatePreview, RenewPreview};
use remuda_types::{Error, ErrorCode, PreviewId, SandboxId, SandboxState, Uid};
use serde_json::{Value, json};

use crate::access::Action;
use crate::caller::Caller;
use crate::operation::{Ended, Fault, Operation, Work, canonical};
use crate::platform::Platform;
use crate::previews::{Issued, WRITTEN, may_serve};
use crate::registry::SandboxCell;

/// Makes a preview.
pub(crate) struct MakePreview {
    pub(crate) sandbox: SandboxId,
    pub(crate) request: CreatePreview,
}

/// Gives a preview another credential.
pub(crate) struct RotatePreview {
    pub(crate) sandbox: SandboxId,
    pub(crate) id: PreviewId,
}

/// Lets a preview live longer.
pub(crate) struct ExtendPreview {
    pub(crate) sandbox: SandboxId,
    pub(crate) id: PreviewId,
    pub(crate) request: RenewPreview,
}

/// Closes a preview for good.
pub(crate) struct RevokePreview {
    pub(crate) sandbox: SandboxId,
    pub(crate) id: PreviewId,
}

impl Operation for MakePreview {
    const KIND: &'static str = "create_preview";
    const ACTION: Action = Action::CreatePreview;
    const ALWAYS: bool = false;
    type Plan = Arc<SandboxCell>;
    type Output = Issued;

    fn target(&self) -> Option<&SandboxId> {
        Some(&self.sandbox)
    }

    fn request(&self) -> Value {
        canonical(&self.request)
    }

    async fn judge(&self, platform: &Platform, caller: &Caller) -> Result<(Self::Plan, Reservation), Error> {
        let cell = platform.living(caller, &self.sandbox).await?;
        cell.not_ending()?;
        if !matches!(cell.state(), SandboxState::Running | SandboxState::Paused | SandboxState::Starting) {
            return Err(cell.wrong_state());
        }
        check(self.request.label.as_deref(), self.request.ttl_ms)?;
        platform.previews_kept().judge(&cell)?;
        Ok((cell, Reservation::default()))
    }

    async fn run(self, platform: &Platform, cell: Arc<SandboxCell>, work: &Work) -> Ended<Issued> {
        Ended::from(platform.previews_kept().make(&cell, self.request, work).await.map_err(Fault::Failed))
    }
}

impl Operation for RotatePreview {
    const KIND: &'static str = "rotate_preview";
    const ACTION: Action = Action::RotatePreview;
    const ALWAYS: bool = false;
    type Plan = Uid;
    type Output = Issued;

    fn target(&self) -> Option<&SandboxId> {
        Some(&self.sandbox)
    }

    fn request(&self) -> Value {
        json!({ "preview": self.id })
    }

    async fn judge(&self, platform: &Platform, caller: &Caller) -> Result<(Uid, Reservation), Error> {
        Ok((usable(platform, caller, &self.sandbox, &self.id).await?, Reservation::default()))
    }

    async fn run(self, platform: &Platform, uid: Uid, work: &Work) -> Ended<Issued> {
        Ended::from(platform.previews_kept().rotate(&uid, &self.id, work).await.map_err(Fault::Failed))
    }
}

impl Operation for ExtendPreview {
    const KIND: &'static str = "renew_preview";
    const ACTION: Action = Action::RenewPreview;
    const ALWAYS: bool = false;
    type Plan = Uid;
    type Output = Issued;

    fn target(&self) -> Option<&SandboxId> {
        Some(&self.sandbox)
    }

    fn request(&self) -> Value {
        let mut request = canonical(&self.request);
        request["preview"] = json!(self.id);
        request
    }

    async fn judge(&self, platform: &Platform, caller: &Caller) -> Result<(Uid, Reservation), Error> {
        let uid = usable(platform, caller, &self.sandbox, &self.id).await?;
        check(None, self.request.ttl_ms)?;
        Ok((uid, Reservation::default()))
    }

    async fn run(self, platform: &Platform, uid: Uid, work: &Work) -> Ended<Issued> {
        Ended::from(
            platform.previews_kept().renew(&uid, &self.id, self.request.ttl_ms, work).await.map_err(Fault::Failed),
        )
    }
}

impl Operation for RevokePreview {
    const KIND: &'static str = "revoke_preview";
    const ACTION: Action = Action::RevokePreview;
    const ALWAYS: bool = false;
    type Plan = Uid;
    type Output = Issued;

    fn target(&self) -> Option<&SandboxId> {
        Some(&self.sandbox)
    }

    fn request(&self) -> Value {
        json!({ "preview": self.id })
    }

    async fn judge(&self, platform: &Platform, caller: &Caller) -> Result<(Uid, Reservation), Error> {
        let (uid, living) = platform.uid_of(caller, &self.sandbox).await?;
        platform.previews_kept().show(&caller.account, &uid, &self.id, living)?;
        Ok((uid, Reservation::default()))
    }

    async fn run(self, platform: &Platform, uid: Uid, work: &Work) -> Ended<Issued> {
        Ended::from(platform.previews_kept().revoke(&uid, &self.id, work).await.map_err(Fault::Failed))
    }
}

/// The sandbox of a preview that may still be changed.
async fn usable(platform: &Platform, caller: &Caller, sandbox: &SandboxId, id: &PreviewId) -> Result<Uid, Error> {
    let cell = platform.living(caller, sandbox).await?;
    platform.previews_kept().show(&caller.account, &cell.uid, id, true)?;
    may_serve(&cell)?;
    Ok(cell.uid.clone())
}

/// Whether what is asked of a preview is within the limits.
fn check(label: Option<&str>, ttl_ms: Option<u64>) -> Result<(), Error> {
    if let Some(label) = label
        && (label.is_empty() || label.len() > LABEL_BYTES_MAX || label.chars().any(char::is_control))
    {
        let message = format!("the label of a preview has 1 to {LABEL_BYTES_MAX} bytes and no control characters");
        return Err(Error::new(ErrorCode::InvalidRequest, message).detail("member", "label"));
    }
    match ttl_ms {
        Some(ttl_ms) if !(PREVIEW_TTL_MS_MIN..=PREVIEW_TTL_MS_MAX).contains(&ttl_ms) => {
            let message = format!("ttl_ms is {ttl_ms}; it must be {PREVIEW_TTL_MS_MIN} to {PREVIEW_TTL_MS_MAX}");
            Err(Error::new(ErrorCode::InvalidRequest, message)
                .remedy("let it live for less, and renew it when that is over")
                .detail("member", "ttl_ms"))
        }
        _ => Ok(()),
    }
}

/// What a dead server had come to with one of these: done, where the step with which it is on record is there.
pub(crate) fn written(record: &Record) -> Option<Result<Issued, Error>> {
    let step = record.steps.iter().find(|step| step.name == WRITTEN)?;
    Some(
        serde_json::from_value(step.data.clone()).map_err(|e| {
            Error::new(ErrorCode::JournalFailed, format!("the step of {} can't be read", record.id)).cause(e)
        }),
    )
}
