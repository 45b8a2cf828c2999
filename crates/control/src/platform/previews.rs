//! Calls about previews: access to one port of one generation. What comes in through one is in `previews::pass`.

use remuda_types::wire::{CreatePreview, Preview, RenewPreview};
use remuda_types::{Error, ErrorCode, PreviewId, SandboxId, Uid};

use super::{Known, Platform};
use crate::access::Action;
use crate::caller::Caller;
use crate::operation::{Answered, Call, operate};
use crate::operations::previews::{ExtendPreview, MakePreview, RevokePreview, RotatePreview};
use crate::previews::{Issued, IssuedPreview, Previews, dial, may_serve};
use crate::stream::GuestStream;

impl Platform {
    pub(crate) fn previews_kept(&self) -> &Previews {
        &self.shared().previews
    }

    /// Makes a preview of a port. A call that is repeated under its key is told the same credential.
    ///
    /// # Errors
    /// `sandbox_not_found`, `generation_gone`, `wrong_state`, `invalid_request`, `limit_reached`.
    pub async fn create_preview(&self, call: &Call, id: &SandboxId, request: CreatePreview) -> Answered<IssuedPreview> {
        self.reveal(operate(self, call, MakePreview { sandbox: id.clone(), request }).await)
    }

    /// Previews of a generation, oldest first, whatever became of them and of it.
    ///
    /// # Errors
    /// `sandbox_not_found`.
    pub async fn previews(&self, caller: &Caller, id: &SandboxId) -> Result<Vec<Preview>, Error> {
        caller.may(Action::ListPreviews)?;
        let (uid, living) = self.uid_of(caller, id).await?;
        Ok(self.previews_kept().list(&caller.account, &uid, living))
    }

    /// One preview.
    ///
    /// # Errors
    /// `preview_not_found`, `sandbox_not_found`.
    pub async fn preview(&self, caller: &Caller, id: &SandboxId, preview: &PreviewId) -> Result<Preview, Error> {
        caller.may(Action::ShowPreview)?;
        let (uid, living) = self.uid_of(caller, id).await?;
        self.previews_kept().show(&caller.account, &uid, preview, living)
    }

    /// Gives a preview another credential. The one before is refused from the answer on, and whoever came in by it is out.
    ///
    /// # Errors
    /// `preview_not_found`; `preview_gone` for one that is over for good; `limit_reached`.
    pub async fn rotate_preview(&self, call: &Call, id: &SandboxId, preview: &PreviewId) -> Answered<IssuedPreview> {
        self.reveal(operate(self, call, RotatePreview { sandbox: id.clone(), id: preview.clone() }).await)
    }

    /// Lets a preview live longer, from now on, under the same credential.
    ///
    /// # Errors
    /// As for [`Platform::rotate_preview`].
    pub async fn renew_preview(
        &self,
        call: &Call,
        id: &SandboxId,
        preview: &PreviewId,
        request: RenewPreview,
    ) -> Answered<IssuedPreview> {
        self.reveal(operate(self, call, ExtendPreview { sandbox: id.clone(), id: preview.clone(), request }).await)
    }

    /// Closes a preview for good. Repeating it is fine.
    ///
    /// # Errors
    /// `preview_not_found`, `sandbox_not_found`.
    pub async fn revoke_preview(&self, call: &Call, id: &SandboxId, preview: &PreviewId) -> Answered<Preview> {
        let revoked = operate(self, call, RevokePreview { sandbox: id.clone(), id: preview.clone() }).await;
        revoked.map(|issued| issued.preview)
    }

    /// A connection to what is behind a preview, for whoever looks whether anything is.
    ///
    /// # Errors
    /// `port_unreachable`; `preview_not_ready` while the sandbox is paused or starting; `preview_gone` where it has ended.
    pub async fn probe_preview(
        &self,
        caller: &Caller,
        id: &SandboxId,
        preview: &PreviewId,
    ) -> Result<(Preview, Result<GuestStream, Error>), Error> {
        caller.may(Action::ProbePreview)?;
        let (uid, living) = self.uid_of(caller, id).await?;
        let shown = self.previews_kept().show(&caller.account, &uid, preview, living)?;
        let dialled = match self.registry().sandbox(&caller.account, id).filter(|cell| cell.uid == uid) {
            Some(cell) => dial(&cell, shown.port).await,
            None => Err(Error::new(ErrorCode::PreviewGone, "the sandbox behind this preview has ended")),
        };
        Ok((shown, dialled))
    }

    fn reveal(&self, answered: Answered<Issued>) -> Answered<IssuedPreview> {
        let Answered { result, replayed } = answered;
        Answered { result: result.and_then(|issued| self.previews_kept().reveal(issued)), replayed }
    }

    /// The uid of a generation, ended or not, and whether it may still serve.
    pub(crate) async fn uid_of(&self, caller: &Caller, id: &SandboxId) -> Result<(Uid, bool), Error> {
        if let Known::Living(cell) = self.known(caller, id).await? {
            return Ok((cell.uid.clone(), may_serve(&cell).is_ok()));
        }
        let record = self.journal().sandbox(&caller.account, id).await.map_err(|e| crate::errors::journal(&e))?;
        let lost = || Error::new(ErrorCode::SandboxNotFound, format!("there is no sandbox {id} here"));
        Ok((record.ok_or_else(lost)?.uid, false))
    }
}
