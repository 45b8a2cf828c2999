//! All previews of a server: made, found, changed, and closed with their sandbox.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use remuda_journal::{Change, Journal, Whose};
use remuda_types::limits::{
    PREVIEW_CONNECTIONS_ALL_MAX, PREVIEW_ROTATIONS_MAX, PREVIEW_TTL_MS_DEFAULT, PREVIEWS_ACTIVE_MAX, PREVIEWS_MAX,
};
use remuda_types::wire::{CreatePreview, EventAbout, Preview, PreviewAuth};
use remuda_types::{Account, Error, ErrorCode, PreviewId, Uid};
use subtle::ConstantTimeEq as _;
use tokio::sync::{MutexGuard, Semaphore};

use super::IssuedPreview;
use super::kept::{Doc, Issued, Kept, Standing, show};
use super::secret::{PreviewSecret, PreviewToken};
use crate::clock::{id_entropy, now_unix_ms};
use crate::events;
use crate::operation::Work;
use crate::pages;
use crate::registry::SandboxCell;

/// The step with which a change of a preview is on record.
pub(crate) const WRITTEN: &str = "written";
/// By so many bytes of its digest a credential is found; then the whole digest is compared in constant time.
const FOUND_BY_BYTES: usize = 16;

/// Every preview on record. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct Previews {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    journal: Journal,
    secret: PreviewSecret,
    tables: RwLock<Tables>,
    /// Held while one is written, so that limits hold and memory and journal agree.
    writing: tokio::sync::Mutex<()>,
    /// Requests and sockets of all together.
    room: Arc<Semaphore>,
}

#[derive(Debug, Default)]
struct Tables {
    by_id: BTreeMap<PreviewId, Arc<Kept>>,
    /// Credentials of the past, too.
    by_digest: HashMap<[u8; FOUND_BY_BYTES], Known>,
}

/// A credential that was issued.
#[derive(Debug, Clone)]
struct Known {
    digest: [u8; 32],
    kept: Arc<Kept>,
    rotation: u32,
}

impl Tables {
    fn add(&mut self, secret: &PreviewSecret, kept: &Arc<Kept>) {
        let standing = kept.standing();
        for rotation in 0..=standing.doc.rotations {
            // What is on record counts, also where the secret is no longer the one it derived from.
            let digest = match rotation == standing.doc.rotations {
                true => standing.token_hash,
                false => secret.token(&kept.id, rotation).digest(),
            };
            self.by_digest.insert(found_by(&digest), Known { digest, kept: kept.clone(), rotation });
        }
        self.by_id.insert(kept.id.clone(), kept.clone());
    }
}

impl Previews {
    /// Reads them all, and the secret that they derive from.
    pub(crate) async fn open(journal: Journal, data_dir: &Path) -> Result<Previews, Error> {
        let secret = PreviewSecret::open(data_dir)?;
        let mut tables = Tables::default();
        for record in pages::all(|paging| journal.previews(Whose::Everyones, None, paging)).await? {
            tables.add(&secret, &Kept::read(record)?);
        }
        let inner = Inner {
            journal,
            secret,
            tables: RwLock::new(tables),
            writing: tokio::sync::Mutex::default(),
            room: Arc::new(Semaphore::new(PREVIEW_CONNECTIONS_ALL_MAX)),
        };
        Ok(Previews { inner: Arc::new(inner) })
    }

    fn tables(&self) -> RwLockReadGuard<'_, Tables> {
        self.inner.tables.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn tables_mut(&self) -> RwLockWriteGuard<'_, Tables> {
        self.inner.tables.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn room(&self) -> &Arc<Semaphore> {
        &self.inner.room
    }

    pub(super) fn secret(&self) -> &PreviewSecret {
        &self.inner.secret
    }

    /// Those of a generation, oldest first.
    fn of(&self, account: &Account, uid: &Uid) -> Vec<Arc<Kept>> {
        let tables = self.tables();
        let own = tables.by_id.values().filter(|kept| kept.account == *account && kept.uid == *uid);
        let mut own: Vec<_> = own.cloned().collect();
        own.sort_by(|a, b| (a.created_at_ms, &a.id).cmp(&(b.created_at_ms, &b.id)));
        own
    }

    /// One of a generation.
    fn find(&self, account: &Account, uid: &Uid, id: &PreviewId) -> Result<Arc<Kept>, Error> {
        let found = self.tables().by_id.get(id).filter(|kept| kept.account == *account && kept.uid == *uid).cloned();
        found.ok_or_else(|| {
            Error::new(ErrorCode::PreviewNotFound, format!("this sandbox has no preview {id}"))
                .remedy("list them with: remuda preview ls ID")
        })
    }

    /// One, whosever it is.
    pub(super) fn by_id(&self, id: &PreviewId) -> Option<Arc<Kept>> {
        self.tables().by_id.get(id).cloned()
    }

    /// The one whose credential this is or was, and how often it had been rotated then.
    pub(super) fn by_token(&self, token: &PreviewToken) -> Option<(Arc<Kept>, u32)> {
        let digest = token.digest();
        let known = self.tables().by_digest.get(&found_by(&digest)).cloned();
        known.filter(|known| known.digest.ct_eq(&digest).into()).map(|known| (known.kept, known.rotation))
    }

    /// Whether another one could be made as things stand.
    pub(crate) fn judge(&self, cell: &SandboxCell) -> Result<(), Error> {
        let (own, now) = (self.of(&cell.account, &cell.uid), now_unix_ms());
        let active = own.iter().filter(|kept| kept.ended_at_ms() > now).count();
        if active >= PREVIEWS_ACTIVE_MAX {
            return Err(Error::limit("previews_active_max", PREVIEWS_ACTIVE_MAX as u64, active as u64)
                .remedy("revoke one that is not needed any more: remuda preview revoke ID PREVIEW"));
        }
        if own.len() >= PREVIEWS_MAX {
            return Err(Error::limit("previews_max", PREVIEWS_MAX as u64, own.len() as u64)
                .cause("revoked and expired previews stay on record for a while, and count")
                .remedy("renew or rotate one instead of making others"));
        }
        Ok(())
    }

    /// Those of a generation as the API shows them, oldest first.
    pub(crate) fn list(&self, account: &Account, uid: &Uid, living: bool) -> Vec<Preview> {
        let now = now_unix_ms();
        self.of(account, uid).iter().map(|kept| kept.show(living, now)).collect()
    }

    /// One of a generation as the API shows it.
    pub(crate) fn show(&self, account: &Account, uid: &Uid, id: &PreviewId, living: bool) -> Result<Preview, Error> {
        Ok(self.find(account, uid, id)?.show(living, now_unix_ms()))
    }

    /// Makes one: on record, then in memory.
    pub(crate) async fn make(&self, cell: &SandboxCell, request: CreatePreview, work: &Work) -> Result<Issued, Error> {
        let doc = Doc {
            sandbox: cell.id.clone(),
            port: request.port.get(),
            auth: request.auth.unwrap_or_default(),
            host: request.host.unwrap_or_default(),
            label: request.label,
            ttl_ms: request.ttl_ms.unwrap_or(PREVIEW_TTL_MS_DEFAULT),
            rotations: 0,
            link: 0,
            link_used: false,
            ended: false,
        };
        let _writing = self.writing().await;
        self.forget_dead();
        // Others may have been made since, and the sandbox may have ended.
        self.judge(cell)?;
        super::pass::may_serve(cell)?;
        let (id, now) = (PreviewId::from_entropy(id_entropy()?), now_unix_ms());
        let standing = Standing {
            token_hash: self.inner.secret.token(&id, 0).digest(),
            expires_at_ms: now.saturating_add_unsigned(doc.ttl_ms),
            revoked_at_ms: None,
            doc,
        };
        let kept = Kept::new(cell.account.clone(), id, cell.uid.clone(), now, standing.clone());
        let issued = self.write(&kept, &standing, events::PREVIEW_MADE, work).await?;
        self.tables_mut().add(&self.inner.secret, &kept);
        Ok(issued)
    }

    /// Gives one another credential: the one before is refused from the answer on, and whoever came in by it is out.
    pub(crate) async fn rotate(&self, uid: &Uid, id: &PreviewId, work: &Work) -> Result<Issued, Error> {
        let kept = self.find(&work.account, uid, id)?;
        let rotated = self.change(&kept, events::PREVIEW_ROTATED, work, |standing| {
            alive(standing)?;
            standing.doc.rotations += 1;
            (standing.doc.link, standing.doc.link_used) = (0, false);
            Ok(())
        });
        rotated.await
    }

    /// Lets one live longer, from now on, and makes another link to it.
    pub(crate) async fn renew(
        &self,
        uid: &Uid,
        id: &PreviewId,
        ttl_ms: Option<u64>,
        work: &Work,
    ) -> Result<Issued, Error> {
        let kept = self.find(&work.account, uid, id)?;
        let renewed = self.change(&kept, events::PREVIEW_RENEWED, work, |standing| {
            alive(standing)?;
            let ttl_ms = ttl_ms.unwrap_or(standing.doc.ttl_ms);
            standing.expires_at_ms = now_unix_ms().saturating_add_unsigned(ttl_ms);
            standing.doc.link = standing.doc.link.saturating_add(1);
            standing.doc.link_used = false;
            Ok(())
        });
        renewed.await
    }

    /// Closes one for good. Repeating it is fine, and what is over by its sandbox's end stays so.
    pub(crate) async fn revoke(&self, uid: &Uid, id: &PreviewId, work: &Work) -> Result<Issued, Error> {
        let kept = self.find(&work.account, uid, id)?;
        let revoked = self.change(&kept, events::PREVIEW_REVOKED, work, |standing| {
            standing.revoked_at_ms.get_or_insert_with(now_unix_ms);
            Ok(())
        });
        revoked.await
    }

    /// Changes one: on record, then in memory. What `change` refuses is not written.
    async fn change(
        &self,
        kept: &Arc<Kept>,
        kind: &str,
        work: &Work,
        change: impl FnOnce(&mut Standing) -> Result<(), Error>,
    ) -> Result<Issued, Error> {
        let _writing = self.writing().await;
        let before = kept.standing();
        let mut after = before.clone();
        change(&mut after)?;
        if after.doc.rotations != before.doc.rotations {
            if after.doc.rotations > PREVIEW_ROTATIONS_MAX {
                let (limit, current) = (u64::from(PREVIEW_ROTATIONS_MAX), u64::from(before.doc.rotations));
                return Err(Error::limit("preview_rotations_max", limit, current)
                    .remedy("make another preview, and revoke this one"));
            }
            after.token_hash = self.inner.secret.token(&kept.id, after.doc.rotations).digest();
        }
        if after == before {
            let preview = kept.show(true, now_unix_ms());
            return Ok(Issued { preview, link: before.doc.link });
        }
        let issued = self.write(kept, &after, kind, work).await?;
        kept.set(after);
        // Its new credential is found from now on.
        self.tables_mut().add(&self.inner.secret, kept);
        Ok(issued)
    }

    async fn write(&self, kept: &Arc<Kept>, to_be: &Standing, kind: &str, work: &Work) -> Result<Issued, Error> {
        let issued = Issued { preview: show(kept, to_be, true, now_unix_ms()), link: to_be.doc.link };
        let about = EventAbout {
            sandbox: Some(to_be.doc.sandbox.clone()),
            preview: Some(kept.id.clone()),
            ..EventAbout::default()
        };
        let changes = vec![kept.record(to_be)?, events::event(&kept.account, kind, &about)];
        let told = serde_json::to_value(&issued)
            .map_err(|e| Error::new(ErrorCode::Internal, "a preview can't be written down").cause(e))?;
        work.step(WRITTEN, told, changes).await?;
        Ok(issued)
    }

    /// The link of the moment was followed: on record, so that it is not followed again. Refuses where it was.
    pub(super) async fn follow_link(&self, kept: &Arc<Kept>, rotation: u32, link: u32) -> Result<(), Error> {
        let _writing = self.writing().await;
        let mut standing = kept.standing();
        if (standing.doc.rotations, standing.doc.link) != (rotation, link) || standing.doc.link_used {
            return Err(super::pass::link_used(kept));
        }
        standing.doc.link_used = true;
        let written = self.inner.journal.apply(vec![kept.record(&standing)?]).await;
        written.map_err(|e| crate::errors::journal(&e))?;
        kept.set(standing);
        Ok(())
    }

    /// What lets in, of a preview as it was issued.
    ///
    /// # Errors
    /// `internal` where the secret is no longer the one it was issued with.
    pub(crate) fn reveal(&self, issued: Issued) -> Result<IssuedPreview, Error> {
        let Issued { preview, link } = issued;
        let token = self.inner.secret.token(&preview.id, preview.rotations);
        // One that was evicted is found no more, and opens nothing.
        let foreign = self.by_id(&preview.id).is_some() && self.by_token(&token).is_none();
        if foreign {
            return Err(Error::new(
                ErrorCode::Internal,
                format!("the credential of {} can't be told again", preview.id),
            )
            .cause("the server's secret of previews is not the one that it was made with")
            .remedy(format!("rotate it: remuda preview rotate {} {}", preview.sandbox, preview.id)));
        }
        let cookie = preview.auth == PreviewAuth::Cookie;
        let ticket = cookie.then(|| self.inner.secret.ticket(&preview.id, preview.rotations, link));
        Ok(IssuedPreview { preview, token, ticket })
    }

    /// A sandbox is being removed: its previews are revoked in memory, and the changes are what puts that on record. Each
    /// is then asked for by its own credential; tells whether all are refused.
    pub(crate) async fn end_with(&self, account: &Account, uid: &Uid) -> Result<Ending, Error> {
        let _writing = self.writing().await;
        let (own, now) = (self.of(account, uid), now_unix_ms());
        let mut ending = Ending { changes: Vec::new(), asked: own.len(), refused: 0 };
        for kept in &own {
            let mut standing = kept.standing();
            if standing.revoked_at_ms.is_none() {
                standing.revoked_at_ms = Some(now);
                standing.doc.ended = true;
                ending.changes.push(kept.record(&standing)?);
                kept.set(standing);
            }
            let token = self.inner.secret.token(&kept.id, kept.standing().doc.rotations);
            let let_in = self.by_token(&token).is_some_and(|(found, rotation)| {
                super::pass::still(&found.standing(), rotation, now_unix_ms()).is_ok()
            });
            ending.refused += usize::from(!let_in);
        }
        Ok(ending)
    }

    async fn writing(&self) -> MutexGuard<'_, ()> {
        self.inner.writing.lock().await
    }

    /// Drops what the journal has dropped or will drop: previews that were over long ago.
    fn forget_dead(&self) {
        let since = now_unix_ms().saturating_sub(self.inner.journal.settings().retention.ended_ms);
        let mut tables = self.tables_mut();
        tables.by_id.retain(|_, kept| kept.ended_at_ms() > since);
        tables.by_digest.retain(|_, known| known.kept.ended_at_ms() > since);
    }
}

/// What became of the previews of a sandbox that is removed.
#[derive(Debug)]
pub(crate) struct Ending {
    pub(crate) changes: Vec<Change>,
    /// Previews that were asked for.
    pub(crate) asked: usize,
    /// Of these, those that refused.
    pub(crate) refused: usize,
}

/// Refuses where one is over for good.
fn alive(standing: &Standing) -> Result<(), Error> {
    match standing.revoked_at_ms {
        None => Ok(()),
        Some(_) => super::pass::still(standing, standing.doc.rotations, now_unix_ms()),
    }
}

fn found_by(digest: &[u8; 32]) -> [u8; FOUND_BY_BYTES] {
    let mut bytes = [0; FOUND_BY_BYTES];
    bytes.copy_from_slice(&digest[..FOUND_BY_BYTES]);
    bytes
}
