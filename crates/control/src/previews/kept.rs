//! One preview: what is on record of it, in memory, and how it is written.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use remuda_journal::{Change, Preview as Record};
use remuda_types::limits::PREVIEW_CONNECTIONS_MAX;
use remuda_types::wire::{Preview, PreviewAuth, PreviewHost, PreviewState};
use remuda_types::{Account, Error, PreviewId, SandboxId, Uid};
use serde::{Deserialize, Serialize};
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;

use crate::records::{self, document};

/// What comes of a call that issues a credential: the credential itself derives from it, and is no part of it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Issued {
    pub(crate) preview: Preview,
    /// The number of its link.
    #[serde(default)]
    pub(crate) link: u32,
}

/// What the journal keeps of a preview beside its own members.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Doc {
    pub(super) sandbox: SandboxId,
    pub(super) port: u16,
    pub(super) auth: PreviewAuth,
    pub(super) host: PreviewHost,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) label: Option<String>,
    /// How long it was made for, in milliseconds.
    pub(super) ttl_ms: u64,
    #[serde(default)]
    pub(super) rotations: u32,
    /// The number of its newest link. Only that one works.
    #[serde(default)]
    pub(super) link: u32,
    /// Whether that was followed.
    #[serde(default)]
    pub(super) link_used: bool,
    /// Whether it was revoked because its sandbox was removed.
    #[serde(default)]
    pub(super) ended: bool,
}

/// What changes of a preview.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Standing {
    pub(super) doc: Doc,
    pub(super) token_hash: [u8; 32],
    pub(super) expires_at_ms: i64,
    pub(super) revoked_at_ms: Option<i64>,
}

/// A preview that is on record.
#[derive(Debug)]
pub(super) struct Kept {
    pub(super) account: Account,
    pub(super) id: PreviewId,
    pub(super) uid: Uid,
    pub(super) created_at_ms: i64,
    /// Requests and sockets that may be under way through it.
    pub(super) room: Arc<Semaphore>,
    standing: Mutex<Standing>,
    /// Cancelled when the credential of the moment is none any more; another one for the next.
    epoch: Mutex<CancellationToken>,
    /// Told when its time changes.
    expiry: watch::Sender<i64>,
}

impl Kept {
    pub(super) fn new(account: Account, id: PreviewId, uid: Uid, created_at_ms: i64, standing: Standing) -> Arc<Kept> {
        Arc::new(Kept {
            account,
            id,
            uid,
            created_at_ms,
            room: Arc::new(Semaphore::new(PREVIEW_CONNECTIONS_MAX)),
            expiry: watch::Sender::new(standing.expires_at_ms),
            standing: Mutex::new(standing),
            epoch: Mutex::default(),
        })
    }

    pub(super) fn read(record: Record) -> Result<Arc<Kept>, Error> {
        let doc = records::read(&format_args!("the record of {}", record.id), &record.doc)?;
        let standing = Standing {
            doc,
            token_hash: record.token_hash,
            expires_at_ms: record.expires_at_ms.unwrap_or(record.created_at_ms),
            revoked_at_ms: record.revoked_at_ms,
        };
        Ok(Kept::new(record.account, record.id, record.sandbox, record.created_at_ms, standing))
    }

    fn locked(&self) -> MutexGuard<'_, Standing> {
        self.standing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn standing(&self) -> Standing {
        self.locked().clone()
    }

    /// The change that puts it on record like this.
    pub(super) fn record(&self, standing: &Standing) -> Result<Change, Error> {
        Ok(Change::Preview(Record {
            account: self.account.clone(),
            id: self.id.clone(),
            sandbox: self.uid.clone(),
            token_hash: standing.token_hash,
            created_at_ms: self.created_at_ms,
            expires_at_ms: Some(standing.expires_at_ms),
            revoked_at_ms: standing.revoked_at_ms,
            doc: document(&standing.doc)?,
        }))
    }

    /// It stands like this from now on; what came in by a credential that is none any more is told so.
    pub(super) fn set(&self, standing: Standing) {
        let mut locked = self.locked();
        let over = locked.doc.rotations != standing.doc.rotations || standing.revoked_at_ms.is_some();
        let expires_at_ms = standing.expires_at_ms;
        *locked = standing;
        if over {
            // While the lock is held: whoever reads the new standing must not get the old epoch.
            let mut epoch = self.epoch.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *epoch).cancel();
        }
        drop(locked);
        self.expiry.send_replace(expires_at_ms);
    }

    /// How it stands, and what is cancelled when that credential is none any more.
    pub(super) fn entered(&self) -> (Standing, CancellationToken) {
        let locked = self.locked();
        let epoch = self.epoch.lock().unwrap_or_else(PoisonError::into_inner).clone();
        (locked.clone(), epoch)
    }

    pub(super) fn expiry(&self) -> watch::Receiver<i64> {
        self.expiry.subscribe()
    }

    /// When it was over, where it is by itself.
    pub(super) fn ended_at_ms(&self) -> i64 {
        let standing = self.locked();
        standing.revoked_at_ms.map_or(standing.expires_at_ms, |at| at.min(standing.expires_at_ms))
    }

    /// As the API shows it. `living` says whether its sandbox may still serve.
    pub(super) fn show(&self, living: bool, now_ms: i64) -> Preview {
        show(self, &self.locked(), living, now_ms)
    }
}

/// A preview that stands like this, as the API shows it.
pub(super) fn show(kept: &Kept, standing: &Standing, living: bool, now_ms: i64) -> Preview {
    let doc = &standing.doc;
    let state = match standing.revoked_at_ms {
        Some(_) if !doc.ended => PreviewState::Revoked,
        Some(_) => PreviewState::Ended,
        None if !living => PreviewState::Ended,
        None if standing.expires_at_ms <= now_ms => PreviewState::Expired,
        None => PreviewState::Active,
    };
    Preview {
        id: kept.id.clone(),
        sandbox: doc.sandbox.clone(),
        port: doc.port,
        auth: doc.auth,
        host: doc.host,
        label: doc.label.clone(),
        state,
        created_at_ms: kept.created_at_ms,
        expires_at_ms: standing.expires_at_ms,
        rotations: doc.rotations,
        revoked_at_ms: standing.revoked_at_ms,
    }
}
