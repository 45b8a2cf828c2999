//! Calls about who comes in: access keys, accounts, and what a caller may do.

use remuda_types::wire::{AccessKey, AccountInfo, CreateAccessKey, MadeAccessKey, SetAccount, WhoAmI};
use remuda_types::{AccessKeyId, Account, Error, ErrorCode};

use super::Platform;
use crate::access::{AccessSecret, Action, NotLetIn, told};
use crate::caller::Caller;
use crate::clock::now_unix_ms;
use crate::operation::{Answered, Call, operate};
use crate::operations::access::{RevokeKey, SetQuotas};

impl Platform {
    /// Whoever shows this secret.
    ///
    /// # Errors
    /// Why it does not let in.
    pub fn authenticate(&self, secret: &AccessSecret) -> Result<Caller, NotLetIn> {
        self.access_keys().caller(secret, now_unix_ms())
    }

    /// The first key of a server, made once in its life. `digest` is that of the only key of a server that had no
    /// journal, which is taken over; then nobody is told a secret.
    ///
    /// # Errors
    /// The digest isn't understood; the journal fails.
    pub async fn first_key(&self, digest: Option<&str>) -> Result<Option<AccessSecret>, Error> {
        self.access_keys().first(digest, now_unix_ms()).await
    }

    /// Who calls, and what they may do and use.
    pub fn whoami(&self, caller: &Caller) -> WhoAmI {
        WhoAmI {
            account: caller.account.clone(),
            access_key: caller.access_key.clone(),
            scopes: caller.scopes().iter().copied().collect(),
            narrowing: caller.narrowing().cloned(),
            expires_at_ms: caller.expires_at_ms(),
            limits: told(&self.accounts().limits(&caller.account)),
        }
    }

    /// Makes an access key. It has no idempotency key: nothing could be replayed, since the secret is kept nowhere.
    ///
    /// # Errors
    /// `forbidden`, also where it would grant more than the caller has; `invalid_request`, `limit_reached`.
    pub async fn create_key(&self, caller: &Caller, request: CreateAccessKey) -> Result<MadeAccessKey, Error> {
        caller.may(Action::CreateKey)?;
        let (keys, caller) = (self.access_keys().clone(), caller.clone());
        // To its end also where the caller goes away: memory and journal must agree.
        let making = self.under_way().spawn(async move { keys.make(&caller, request, now_unix_ms()).await });
        making.await.map_err(|e| Error::new(ErrorCode::Internal, "a task ended").cause(e))?
    }

    /// Access keys of the caller's account, oldest first; revoked and expired ones only where asked for. The operator
    /// may name another account.
    ///
    /// # Errors
    /// `forbidden`, `account_not_found`.
    pub fn keys(&self, caller: &Caller, account: Option<&Account>, all: bool) -> Result<Vec<AccessKey>, Error> {
        caller.may(Action::ListKeys)?;
        let account = self.known_account(caller, account)?;
        Ok(self.access_keys().list(caller, account, all, now_unix_ms()))
    }

    /// Revokes an access key of the caller's account; from the answer on it opens nothing. Repeating it is fine. The
    /// operator may name another account.
    ///
    /// # Errors
    /// `forbidden`, `access_key_not_found`.
    pub async fn revoke_key(&self, call: &Call, account: Option<Account>, id: AccessKeyId) -> Answered<AccessKey> {
        operate(self, call, RevokeKey { id, account }).await
    }

    /// The account that a call is about: the caller's own, or one that was made.
    ///
    /// # Errors
    /// `forbidden`, `account_not_found`.
    pub(crate) fn known_account<'a>(
        &self,
        caller: &'a Caller,
        named: Option<&'a Account>,
    ) -> Result<&'a Account, Error> {
        let account = caller.account_of(named)?;
        if *account == caller.account || self.accounts().exists(account) {
            return Ok(account);
        }
        Err(Error::new(ErrorCode::AccountNotFound, format!("there is no account {account}"))
            .cause("no access key was ever made for it, and no quota set")
            .remedy("list them with: remuda account ls"))
    }

    /// The server's accounts, by name.
    ///
    /// # Errors
    /// `forbidden` to all but the operator.
    pub fn list_accounts(&self, caller: &Caller) -> Result<Vec<AccountInfo>, Error> {
        caller.may(Action::ListAccounts)?;
        Ok(self.accounts().list())
    }

    /// Makes an account where there is none of that name, and replaces its own quotas.
    ///
    /// # Errors
    /// `forbidden` to all but the operator; `limit_reached`.
    pub async fn set_account(&self, call: &Call, account: Account, set: SetAccount) -> Answered<AccountInfo> {
        operate(self, call, SetQuotas { account, set }).await
    }
}
