//! Access keys: made, shown to be right, listed, revoked.
//!
//! All keys that are on record lie in memory by their digest, so that letting a request in costs no look at the disk,
//! and a wrong secret costs no more than a right one. A change is in the journal before it is in memory, and in memory
//! before whoever asked for it hears of it: a key that is said to be revoked opens nothing from then on.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use remuda_journal::{AccessKey as Record, Change, Journal, NewEvent, Whose};
use remuda_types::limits::{ACCESS_KEY_LIFE_MS_MAX, ACCESS_KEYS_MAX, LABEL_BYTES_MAX};
use remuda_types::wire::{AccessKey, CreateAccessKey, MadeAccessKey};
use remuda_types::{AccessKeyId, AccessScope, Account, Error, ErrorCode, Narrowing};
use serde::{Deserialize, Serialize};
use serde_json::json;
use subtle::ConstantTimeEq;

use super::Accounts;
use super::secret::{AccessSecret, stored_digest};
use crate::caller::{Caller, Rights, default_account};
use crate::clock::id_entropy;
use crate::events;
use crate::pages;

/// By so many bytes of its digest a key is found; then the whole digest is compared in constant time.
const FOUND_BY_BYTES: usize = 16;

/// Every access key on record. Clones share it.
#[derive(Debug, Clone)]
pub struct AccessKeys {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    journal: Journal,
    accounts: Accounts,
    known: RwLock<HashMap<[u8; FOUND_BY_BYTES], Arc<Known>>>,
    /// Held while one is written, so that the limit holds and memory and journal agree.
    writing: tokio::sync::Mutex<()>,
}

/// A key, and the caller that it makes of whoever shows it.
#[derive(Debug)]
struct Known {
    hash: [u8; 32],
    caller: Caller,
    id: AccessKeyId,
    created_at_ms: i64,
    revoked_at_ms: Option<i64>,
    doc: Doc,
}

/// What the journal keeps of a key beside its own members.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Doc {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    label: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    made_by: Option<AccessKeyId>,
}

/// Why a secret does not let in. That a key is revoked or expired is told to nobody who does not have its secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotLetIn {
    /// It is no key's.
    Unknown,
    /// Its key was revoked at this Unix time in milliseconds.
    Revoked(i64),
    /// Its key expired at this Unix time in milliseconds.
    Expired(i64),
}

impl AccessKeys {
    /// Reads them all.
    ///
    /// # Errors
    /// When the journal can't be read, or a key of it isn't understood.
    pub async fn open(journal: Journal, accounts: Accounts) -> Result<AccessKeys, Error> {
        let mut known = HashMap::new();
        for record in pages::all(|paging| journal.access_keys(Whose::Everyones, paging)).await? {
            let key = Known::read(record)?;
            known.insert(found_by(&key.hash), Arc::new(key));
        }
        let inner = Inner { journal, accounts, known: RwLock::new(known), writing: tokio::sync::Mutex::default() };
        Ok(AccessKeys { inner: Arc::new(inner) })
    }

    /// Whoever shows this secret at this Unix time in milliseconds.
    ///
    /// # Errors
    /// Why it does not let in.
    pub fn caller(&self, secret: &AccessSecret, now_ms: i64) -> Result<Caller, NotLetIn> {
        let digest = secret.digest();
        let known = self.known().get(&found_by(&digest)).cloned();
        let key = known.filter(|key| bool::from(key.hash.ct_eq(&digest))).ok_or(NotLetIn::Unknown)?;
        if let Some(at) = key.revoked_at_ms {
            return Err(NotLetIn::Revoked(at));
        }
        match key.caller.expires_at_ms() {
            Some(at) if at <= now_ms => Err(NotLetIn::Expired(at)),
            _ => Ok(key.caller.clone()),
        }
    }

    /// Makes a key, and its account where there is none of that name. The secret is in the answer and nowhere else.
    ///
    /// # Errors
    /// `forbidden` where it would grant more than its maker has; `invalid_request`; `limit_reached`; the journal fails:
    /// then there is no key.
    pub async fn make(&self, maker: &Caller, request: CreateAccessKey, now_ms: i64) -> Result<MadeAccessKey, Error> {
        let account = maker.account_of(request.account.as_ref())?.clone();
        if let Some(label) = &request.label
            && (label.is_empty() || label.len() > LABEL_BYTES_MAX || label.chars().any(char::is_control))
        {
            let message = format!("the label of a key has 1 to {LABEL_BYTES_MAX} bytes and no control characters");
            return Err(Error::new(ErrorCode::InvalidRequest, message).detail("member", "label"));
        }
        let rights = Rights {
            expires_at_ms: expiry(maker, request.expires_in_ms, now_ms)?,
            scopes: request.scopes.into_iter().collect(),
            narrowing: request.narrowing,
        };
        check(maker, &rights)?;
        let doc = Doc { label: request.label, made_by: maker.access_key.clone() };
        let secret = AccessSecret::generate()?;
        let access_key = self.write(account, secret.digest(), rights, doc, now_ms).await?;
        Ok(MadeAccessKey { access_key, secret: secret.reveal() })
    }

    /// The first key of a server, once: all scopes of the default account. `digest` is that of the only key of a server
    /// that had no journal; it is taken over then, and nobody is told a secret.
    ///
    /// # Errors
    /// The digest isn't understood; the journal fails.
    pub async fn first(&self, digest: Option<&str>, now_ms: i64) -> Result<Option<AccessSecret>, Error> {
        if self.inner.accounts.exists(&default_account()) {
            return Ok(None);
        }
        let rights =
            Rights { scopes: AccessScope::ALL.iter().copied().collect(), narrowing: None, expires_at_ms: None };
        let doc = Doc { label: Some("the first key of this server".to_owned()), made_by: None };
        let (digest, secret) = match digest {
            Some(text) => {
                let damaged =
                    || Error::new(ErrorCode::InvalidRequest, "the stored digest of the access key is damaged");
                (stored_digest(text.trim()).ok_or_else(damaged)?, None)
            }
            None => {
                let secret = AccessSecret::generate()?;
                (secret.digest(), Some(secret))
            }
        };
        self.write(default_account(), digest, rights, doc, now_ms).await?;
        Ok(secret)
    }

    /// Keys of an account that this caller sees, oldest first; revoked and expired ones only where asked for.
    pub fn list(&self, caller: &Caller, account: &Account, all: bool, now_ms: i64) -> Vec<AccessKey> {
        let known = self.known();
        let seen = known.values().filter(|key| key.caller.account == *account && key.is_seen_by(caller));
        let mut keys: Vec<AccessKey> = seen.filter(|key| all || key.is_alive(now_ms)).map(|key| key.show()).collect();
        keys.sort_by(|a, b| (a.created_at_ms, &a.id).cmp(&(b.created_at_ms, &b.id)));
        keys
    }

    /// Revokes a key of an account; from the answer on it opens nothing. Repeating it is fine.
    ///
    /// # Errors
    /// `access_key_not_found`, also where the caller doesn't see it; the journal fails: then it may be revoked.
    pub async fn revoke(
        &self,
        caller: &Caller,
        account: &Account,
        id: &AccessKeyId,
        now_ms: i64,
    ) -> Result<AccessKey, Error> {
        let _writing = self.inner.writing.lock().await;
        let key = self.known_of(caller, account, id)?;
        if key.revoked_at_ms.is_some() {
            return Ok(key.show());
        }
        let revoked = Known {
            hash: key.hash,
            caller: key.caller.clone(),
            id: key.id.clone(),
            created_at_ms: key.created_at_ms,
            revoked_at_ms: Some(now_ms),
            doc: key.doc.clone(),
        };
        let event = event(events::ACCESS_KEY_REVOKED, &revoked, caller.access_key.as_ref(), now_ms);
        let changes = vec![Change::AccessKey(revoked.record()?), event];
        self.inner.journal.apply(changes).await.map_err(|e| crate::errors::journal(&e))?;
        let shown = revoked.show();
        self.remember(revoked);
        Ok(shown)
    }

    /// A key of an account that the caller sees.
    ///
    /// # Errors
    /// `access_key_not_found`.
    pub fn find(&self, caller: &Caller, account: &Account, id: &AccessKeyId) -> Result<AccessKey, Error> {
        self.known_of(caller, account, id).map(|key| key.show())
    }

    fn known_of(&self, caller: &Caller, account: &Account, id: &AccessKeyId) -> Result<Arc<Known>, Error> {
        let found = self.known().values().find(|key| key.id == *id).cloned();
        found.filter(|key| key.caller.account == *account && key.is_seen_by(caller)).ok_or_else(|| {
            Error::new(ErrorCode::AccessKeyNotFound, format!("there is no access key {id} in this account"))
                .remedy("list them with: remuda key ls --all")
        })
    }

    async fn write(
        &self,
        account: Account,
        hash: [u8; 32],
        rights: Rights,
        doc: Doc,
        now_ms: i64,
    ) -> Result<AccessKey, Error> {
        let _writing = self.inner.writing.lock().await;
        self.forget_dead(now_ms);
        let count = self.known().values().filter(|key| key.caller.account == account).count();
        if count >= ACCESS_KEYS_MAX {
            return Err(Error::limit("access_keys_max", ACCESS_KEYS_MAX as u64, count as u64)
                .cause("revoked and expired keys stay on record for a while, and count")
                .remedy("use fewer keys, or such that live longer"));
        }
        let id = AccessKeyId::from_entropy(id_entropy()?);
        let caller = Caller::with_key(account.clone(), id.clone(), rights);
        let made_by = doc.made_by.clone();
        let key = Known { hash, caller, id, created_at_ms: now_ms, revoked_at_ms: None, doc };
        let changes =
            vec![Change::AccessKey(key.record()?), event(events::ACCESS_KEY_MADE, &key, made_by.as_ref(), now_ms)];
        self.inner.accounts.make(&account, changes, now_ms).await?;
        let shown = key.show();
        self.remember(key);
        Ok(shown)
    }

    /// Drops what the journal has dropped or will drop: keys that ended long ago.
    fn forget_dead(&self, now_ms: i64) {
        let since = now_ms.saturating_sub(self.inner.journal.settings().retention.ended_ms);
        let mut known = self.inner.known.write().unwrap_or_else(PoisonError::into_inner);
        known.retain(|_, key| key.ended_at_ms().is_none_or(|at| at > since));
    }

    fn remember(&self, key: Known) {
        let mut known = self.inner.known.write().unwrap_or_else(PoisonError::into_inner);
        known.insert(found_by(&key.hash), Arc::new(key));
    }

    fn known(&self) -> RwLockReadGuard<'_, HashMap<[u8; FOUND_BY_BYTES], Arc<Known>>> {
        self.inner.known.read().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    fn read(record: Record) -> Result<Known, Error> {
        let damaged = |e: &dyn std::fmt::Display| {
            Error::new(
                ErrorCode::JournalFailed,
                format!("the record of the access key {} is not understood", record.id),
            )
            .cause(e)
            .remedy("use the build that made it")
        };
        let scopes =
            record.scopes.iter().map(|text| text.parse()).collect::<Result<_, _>>().map_err(|e| damaged(&e))?;
        let narrowing: Option<Narrowing> = serde_json::from_value(record.narrowing.clone()).map_err(|e| damaged(&e))?;
        let doc: Doc = serde_json::from_value(record.doc.clone()).map_err(|e| damaged(&e))?;
        let rights = Rights { scopes, narrowing, expires_at_ms: record.expires_at_ms };
        Ok(Known {
            hash: record.hash,
            caller: Caller::with_key(record.account, record.id.clone(), rights),
            id: record.id,
            created_at_ms: record.created_at_ms,
            revoked_at_ms: record.revoked_at_ms,
            doc,
        })
    }

    fn record(&self) -> Result<Record, Error> {
        let failed = |e: serde_json::Error| Error::new(ErrorCode::Internal, "an access key can't be written").cause(e);
        Ok(Record {
            account: self.caller.account.clone(),
            id: self.id.clone(),
            hash: self.hash,
            scopes: self.caller.scopes().iter().map(ToString::to_string).collect(),
            narrowing: serde_json::to_value(self.caller.narrowing()).map_err(failed)?,
            created_at_ms: self.created_at_ms,
            expires_at_ms: self.caller.expires_at_ms(),
            revoked_at_ms: self.revoked_at_ms,
            doc: serde_json::to_value(&self.doc).map_err(failed)?,
        })
    }

    fn show(&self) -> AccessKey {
        AccessKey {
            id: self.id.clone(),
            account: self.caller.account.clone(),
            label: self.doc.label.clone(),
            scopes: self.caller.scopes().iter().copied().collect(),
            narrowing: self.caller.narrowing().cloned(),
            created_at_ms: self.created_at_ms,
            expires_at_ms: self.caller.expires_at_ms(),
            revoked_at_ms: self.revoked_at_ms,
            made_by: self.doc.made_by.clone(),
        }
    }

    /// A narrowed caller sees keys that are narrowed to no more than itself.
    fn is_seen_by(&self, caller: &Caller) -> bool {
        caller.narrowing().is_none_or(|own| self.caller.narrowing().is_some_and(|narrowing| own.covers(narrowing)))
    }

    fn is_alive(&self, now_ms: i64) -> bool {
        self.ended_at_ms().is_none_or(|at| at > now_ms)
    }

    /// When it was revoked or expires, whichever is first.
    fn ended_at_ms(&self) -> Option<i64> {
        [self.revoked_at_ms, self.caller.expires_at_ms()].into_iter().flatten().min()
    }
}

fn found_by(digest: &[u8; 32]) -> [u8; FOUND_BY_BYTES] {
    let mut bytes = [0; FOUND_BY_BYTES];
    bytes.copy_from_slice(&digest[..FOUND_BY_BYTES]);
    bytes
}

/// What happened to a key, and by which key; none means on the server's own socket.
fn event(kind: &str, key: &Known, by: Option<&AccessKeyId>, now_ms: i64) -> Change {
    Change::Event(NewEvent {
        account: key.caller.account.clone(),
        at_ms: now_ms,
        kind: kind.to_owned(),
        doc: json!({ "access_key": key.id, "by": by }),
    })
}

/// When a key expires that is to live so long.
fn expiry(maker: &Caller, life_ms: Option<u64>, now_ms: i64) -> Result<Option<i64>, Error> {
    let Some(life_ms) = life_ms else { return Ok(maker.expires_at_ms()) };
    if !(1..=ACCESS_KEY_LIFE_MS_MAX).contains(&life_ms) {
        let message = format!("expires_in_ms is {life_ms}; it must be 1 to {ACCESS_KEY_LIFE_MS_MAX}");
        return Err(Error::new(ErrorCode::InvalidRequest, message).detail("member", "expires_in_ms"));
    }
    let at = now_ms.saturating_add(i64::try_from(life_ms).unwrap_or(i64::MAX));
    match maker.expires_at_ms() {
        Some(own) if at > own => {
            Err(more_than_its_maker("the key would live longer than the one that makes it", "give a shorter life")
                .detail("expires_at_ms_max", own))
        }
        _ => Ok(Some(at)),
    }
}

/// Whether a key with these rights makes sense, and grants nothing that its maker has not.
fn check(maker: &Caller, rights: &Rights) -> Result<(), Error> {
    if rights.scopes.is_empty() {
        let message = "a key without scopes opens nothing";
        return Err(Error::new(ErrorCode::InvalidRequest, message)
            .remedy("give at least one of `scopes`")
            .detail("member", "scopes"));
    }
    if rights.narrowing.is_some() && rights.scopes.contains(&AccessScope::Usage) {
        let message = "a narrowed key can't have the scope usage";
        return Err(Error::new(ErrorCode::InvalidRequest, message)
            .cause("usage counts everything of the account, also what the key does not see")
            .remedy("leave out the scope or the narrowing")
            .detail("member", "scopes"));
    }
    if let Some(missing) = rights.scopes.iter().find(|scope| !maker.scopes().contains(scope)) {
        let message = format!("the key would have the scope {missing}, which the one that makes it lacks");
        return Err(more_than_its_maker(&message, "leave it out, or use a key that has it")
            .detail("missing_scope", missing.as_str()));
    }
    match (maker.narrowing(), &rights.narrowing) {
        (None, _) => Ok(()),
        (Some(own), Some(narrowing)) if own.covers(narrowing) => Ok(()),
        (Some(own), _) => {
            let remedy = format!("narrow it to {own}, or to less");
            Err(more_than_its_maker("the key would see more than the one that makes it", &remedy)
                .detail("narrowed_to", serde_json::to_value(own).unwrap_or_default()))
        }
    }
}

fn more_than_its_maker(message: &str, remedy: &str) -> Error {
    Error::new(ErrorCode::Forbidden, message).cause("a key never grants more than its maker has").remedy(remedy)
}

#[cfg(test)]
mod tests;
