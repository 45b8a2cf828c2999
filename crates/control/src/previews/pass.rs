//! What a credential opens: the way to one port of one generation, for as long as the credential is right and the
//! generation lives. Whoever was let in is told when that is over; nothing stays open beyond it.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use remuda_types::limits::{PREVIEW_CONNECTIONS_ALL_MAX, PREVIEW_CONNECTIONS_MAX};
use remuda_types::wire::{PreviewAuth, PreviewHost};
use remuda_types::{Error, ErrorCode, PreviewId, SandboxState, Uid};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use super::kept::{Kept, Standing};
use super::secret::PreviewToken;
use crate::clock::now_unix_ms;
use crate::platform::Platform;
use crate::registry::SandboxCell;
use crate::stream::GuestStream;

/// Credentials of the past that are told apart from wrong ones, where they are not looked up: cookies and links.
const PAST_MAX: u32 = 8;
/// Longest single wait for the end of a preview's time; then the clock is looked at again.
const EXPIRY_LOOK_MAX: Duration = Duration::from_secs(3_600);

/// Somebody was let in. Holds a place among those who are under way.
#[derive(Debug)]
pub struct PreviewPass {
    kept: Arc<Kept>,
    cell: Arc<SandboxCell>,
    epoch: CancellationToken,
    auth: PreviewAuth,
    host: PreviewHost,
    port: u16,
    _room: [OwnedSemaphorePermit; 2],
}

impl PreviewPass {
    /// The preview.
    pub fn id(&self) -> &PreviewId {
        &self.kept.id
    }

    /// The generation, by the name that no other ever has.
    pub fn sandbox(&self) -> &Uid {
        &self.cell.uid
    }

    /// The port in the guest.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// How its credential travels.
    pub fn auth(&self) -> PreviewAuth {
        self.auth
    }

    /// What the application sees as the name it was called by.
    pub fn host(&self) -> PreviewHost {
        self.host
    }

    /// Connects to the port.
    ///
    /// # Errors
    /// `port_unreachable` when nothing listens there; `preview_not_ready` while the sandbox is paused; `preview_gone`.
    pub async fn dial(&self) -> Result<GuestStream, Error> {
        dial(&self.cell, self.port).await
    }

    /// Until when a connection to the port may stand idle: cancelled when a capture of the sandbox's memory begins.
    pub fn may_idle(&self) -> CancellationToken {
        self.cell.may_idle.token()
    }

    /// Waits until this way is closed: the credential is none any more, its time is over, or the sandbox has ended. Says
    /// why. A pause closes nothing.
    pub async fn ended(&self) -> Error {
        let mut status = self.cell.status.subscribe();
        let over = async {
            let serves = |state| matches!(state, SandboxState::Running | SandboxState::Paused | SandboxState::Starting);
            if status.wait_for(|status| !serves(status.state)).await.is_err() {
                // The cell holds the sender.
                pending::<()>().await;
            }
        };
        tokio::select! {
            () = self.epoch.cancelled() => {
                let (standing, rotation) = (self.kept.standing(), u32::MAX);
                still(&standing, rotation, now_unix_ms()).err().unwrap_or_else(|| gone(&standing, "rotated"))
            }
            () = over => ended(&self.kept.standing(), &self.cell),
            () = self.expired() => gone(&self.kept.standing(), "expired"),
        }
    }

    async fn expired(&self) {
        let mut expiry = self.kept.expiry();
        loop {
            let left = expiry.borrow_and_update().saturating_sub(now_unix_ms());
            let Some(left) = u64::try_from(left).ok().filter(|left| *left > 0) else { return };
            let left = Duration::from_millis(left).min(EXPIRY_LOOK_MAX);
            tokio::select! {
                () = tokio::time::sleep(left) => {}
                changed = expiry.changed() => if changed.is_err() { return },
            }
        }
    }
}

/// Connects to a port of a guest for a preview.
pub(crate) async fn dial(cell: &Arc<SandboxCell>, port: u16) -> Result<GuestStream, Error> {
    may_serve(cell)?;
    let live = cell.live().map_err(|e| not_ready(cell).unwrap_or(e))?;
    crate::dial::dial(cell, live, port).await
}

/// Refuses where the sandbox will never serve again.
pub(crate) fn may_serve(cell: &SandboxCell) -> Result<(), Error> {
    match cell.state() {
        SandboxState::Running | SandboxState::Paused | SandboxState::Starting if cell.life.ending().is_none() => Ok(()),
        state => {
            let reason = cell.status.borrow().reason.clone();
            let error = Error::new(ErrorCode::PreviewGone, "the sandbox behind this preview has ended")
                .detail("reason", "ended")
                .detail("state", state.to_string())
                .remedy("make a preview of a sandbox that runs");
            Err(match reason {
                Some(reason) => error.cause(reason),
                None => error,
            })
        }
    }
}

/// That it can't serve now, where it may later.
fn not_ready(cell: &SandboxCell) -> Option<Error> {
    let (state, words, remedy) = match cell.state() {
        SandboxState::Paused => (SandboxState::Paused, "paused", format!("resume it: remuda resume {}", cell.id)),
        SandboxState::Starting => (SandboxState::Starting, "starting", "try again in a moment".to_owned()),
        _ => return None,
    };
    let error = Error::new(ErrorCode::PreviewNotReady, format!("the sandbox behind this preview is {words}"));
    Some(error.remedy(remedy).detail("state", state.to_string()))
}

fn ended(standing: &Standing, cell: &SandboxCell) -> Error {
    match may_serve(cell) {
        Err(error) => error,
        Ok(()) => gone(standing, "ended"),
    }
}

/// Whether a credential that was issued after so many rotations is still let in.
pub(super) fn still(standing: &Standing, rotation: u32, now_ms: i64) -> Result<(), Error> {
    match standing.revoked_at_ms {
        Some(_) if standing.doc.ended => return Err(gone(standing, "ended")),
        Some(_) => return Err(gone(standing, "revoked")),
        None => {}
    }
    if rotation < standing.doc.rotations {
        return Err(gone(standing, "rotated"));
    }
    if standing.expires_at_ms <= now_ms {
        return Err(gone(standing, "expired"));
    }
    Ok(())
}

fn gone(standing: &Standing, reason: &str) -> Error {
    let sandbox = &standing.doc.sandbox;
    let (message, remedy) = match reason {
        "revoked" => ("this preview was revoked", "ask whoever gave it to you for another one"),
        "rotated" => ("this preview has another credential by now", "ask whoever gave it to you for the new one"),
        "expired" => ("the time of this preview is over", "have it renewed: remuda preview renew ID PREVIEW"),
        _ => ("the sandbox behind this preview has ended", "make a preview of a sandbox that runs"),
    };
    let error = Error::new(ErrorCode::PreviewGone, message).remedy(remedy).detail("reason", reason);
    let error = error.detail("sandbox", sandbox.to_string());
    match reason {
        "expired" => error.detail("expired_at_ms", standing.expires_at_ms),
        "rotated" => error,
        _ => error.detail("at_ms", standing.revoked_at_ms),
    }
}

/// The link was followed before, or there is a newer one.
pub(super) fn link_used(kept: &Kept) -> Error {
    Error::new(ErrorCode::PreviewGone, "this link was followed before, or there is a newer one")
        .cause("it works once, since whoever follows it is let in from then on")
        .remedy(format!("have another one made: remuda preview renew {} {}", kept.standing().doc.sandbox, kept.id))
        .detail("reason", "link_used")
}

fn unauthorized(cause: &str) -> Error {
    Error::new(ErrorCode::Unauthorized, "this preview needs its credential").cause(cause).remedy(
        "open it with the URL or link that `remuda preview create` printed, or send the header X-Remuda-Preview-Token",
    )
}

/// One text for every name that leads nowhere.
fn never_issued() -> Error {
    Error::new(ErrorCode::PreviewNotFound, "there is no preview of this name")
        .cause("the name was never given out here, or it is no longer on record")
        .remedy("look at the URL, or make a preview: remuda preview create ID PORT")
}

/// What lets in behind a name or path with a preview's id in it.
pub enum PreviewCredential<'a> {
    /// Nothing was shown.
    Missing,
    /// The credential, in the header.
    Header(&'a PreviewToken),
    /// A cookie's value.
    Cookie(&'a PreviewToken),
}

impl Platform {
    /// Whoever comes by a host name with a credential in it.
    ///
    /// # Errors
    /// `preview_not_found` for one that was never issued; `preview_gone` for one that is none any more;
    /// `preview_not_ready`, `unreachable`, `limit_reached`.
    pub fn enter_by_name(&self, token: &PreviewToken) -> Result<PreviewPass, Error> {
        let (kept, rotation) = self.previews_kept().by_token(token).ok_or_else(never_issued)?;
        if kept.standing().doc.auth != PreviewAuth::Host {
            return Err(never_issued());
        }
        self.admit(kept, rotation)
    }

    /// Whoever comes by a preview's id, with a credential beside it.
    ///
    /// # Errors
    /// `unauthorized` without one or with a wrong one; `forbidden` with that of another preview; otherwise as for
    /// [`Platform::enter_by_name`].
    pub fn enter_by_id(&self, id: &PreviewId, shown: PreviewCredential<'_>) -> Result<PreviewPass, Error> {
        let kept = self.previews_kept().by_id(id).ok_or_else(never_issued)?;
        match shown {
            PreviewCredential::Missing => Err(unauthorized("none came with the request")),
            PreviewCredential::Header(token) => match self.previews_kept().by_token(token) {
                Some((found, rotation)) if found.id == kept.id => self.admit(kept, rotation),
                Some(_) => Err(Error::new(ErrorCode::Forbidden, "this credential is that of another preview")
                    .remedy("send each preview its own")),
                None => Err(unauthorized("the one that came with the request is wrong")),
            },
            PreviewCredential::Cookie(value) => {
                let standing = kept.standing();
                let doc = &standing.doc;
                if doc.auth != PreviewAuth::Cookie {
                    return Err(unauthorized("this preview takes no cookie"));
                }
                let of = |rotation| self.previews_kept().secret().cookie(&kept.id, rotation, &kept.uid, doc.port);
                let past = doc.rotations.saturating_sub(PAST_MAX);
                match (past..=doc.rotations).rev().find(|rotation| of(*rotation).is(value)) {
                    Some(rotation) => self.admit(kept, rotation),
                    None => Err(unauthorized("the cookie that came with the request is wrong")),
                }
            }
        }
    }

    /// Follows a link that works once, and gives the value of the cookie that lets in from then on.
    ///
    /// # Errors
    /// `preview_gone` where it was followed before; otherwise as for [`Platform::enter_by_id`].
    pub async fn follow_preview_link(&self, id: &PreviewId, ticket: &PreviewToken) -> Result<PreviewToken, Error> {
        let kept = self.previews_kept().by_id(id).ok_or_else(never_issued)?;
        let standing = kept.standing();
        let doc = &standing.doc;
        let secret = self.previews_kept().secret();
        if doc.auth != PreviewAuth::Cookie || !secret.ticket(id, doc.rotations, doc.link).is(ticket) {
            let rotations = doc.rotations.saturating_sub(PAST_MAX)..=doc.rotations;
            let past = rotations
                .flat_map(|rotation| (doc.link.saturating_sub(PAST_MAX)..=doc.link).map(move |link| (rotation, link)));
            let mut past = past.filter(|_| doc.auth == PreviewAuth::Cookie);
            return Err(match past.any(|(rotation, link)| secret.ticket(id, rotation, link).is(ticket)) {
                true => link_used(&kept),
                false => unauthorized("the link is not one of this preview"),
            });
        }
        // Who is let in by it is held to the same as everybody; a place is taken by what comes after.
        drop(self.admit(kept.clone(), doc.rotations)?);
        self.previews_kept().follow_link(&kept, doc.rotations, doc.link).await?;
        Ok(secret.cookie(id, doc.rotations, &kept.uid, doc.port))
    }

    fn admit(&self, kept: Arc<Kept>, rotation: u32) -> Result<PreviewPass, Error> {
        let (standing, epoch) = kept.entered();
        let cell = self.registry().sandbox(&kept.account, &standing.doc.sandbox).filter(|cell| cell.uid == kept.uid);
        // Revoked comes first: that it was is known of it whatever became of its sandbox.
        let revoked = standing.revoked_at_ms.is_some();
        if revoked {
            still(&standing, rotation, now_unix_ms())?;
        }
        let cell = cell.ok_or_else(|| gone(&standing, "ended"))?;
        may_serve(&cell)?;
        still(&standing, rotation, now_unix_ms())?;
        cell.live().map(drop).map_err(|e| not_ready(&cell).unwrap_or(e))?;
        let take = |room: &Arc<Semaphore>, name: &str, limit: usize| {
            room.clone().try_acquire_owned().map_err(|_| {
                Error::new(ErrorCode::LimitReached, format!("the limit {name} is reached: {limit}"))
                    .remedy("close what is open through previews, or try again in a moment")
                    .detail("limit", name)
                    .detail("maximum", limit as u64)
            })
        };
        let room = [
            take(&kept.room, "preview_connections_max", PREVIEW_CONNECTIONS_MAX)?,
            take(self.previews_kept().room(), "preview_connections_all_max", PREVIEW_CONNECTIONS_ALL_MAX)?,
        ];
        let doc = &standing.doc;
        let (auth, host, port) = (doc.auth, doc.host, doc.port);
        Ok(PreviewPass { kept, cell, epoch, auth, host, port, _room: room })
    }
}
