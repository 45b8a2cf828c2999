//! Who the caller is, access keys, accounts and usage: one method for each route, nothing decided here.

use http::Method;
use remuda_types::wire::{
    AccessKey, AccessKeyList, AccountInfo, AccountList, CreateAccessKey, MadeAccessKey, SetAccount, Usage, WhoAmI,
};
use remuda_types::{AccessKeyId, Account};

use crate::{Client, ClientError};

/// The query of a call about an account: none stands for the caller's own.
fn of_account(account: Option<&Account>) -> Vec<(&'static str, String)> {
    account.map(|account| ("account", account.to_string())).into_iter().collect()
}

impl Client {
    /// `GET /v1/whoami`: account, access key, scopes, narrowing and limits of this client.
    ///
    /// # Errors
    /// As for every call: see [`ClientError`].
    pub async fn whoami(&self) -> Result<WhoAmI, ClientError> {
        self.call(Method::GET, "/v1/whoami").read().await
    }

    /// `POST /v1/keys`: a new access key. Its secret is in this answer and is never told again. Where the answer is
    /// lost, a key may exist that nobody has the secret of: find it in the list and revoke it.
    ///
    /// # Errors
    /// `forbidden` where it would grant more than this client has; otherwise as for every call.
    pub async fn create_access_key(&self, request: &CreateAccessKey) -> Result<MadeAccessKey, ClientError> {
        self.call(Method::POST, "/v1/keys").json(request).read().await
    }

    /// `GET /v1/keys`, oldest first; revoked and expired ones where `all`.
    ///
    /// # Errors
    /// As for every call: see [`ClientError`].
    pub async fn access_keys(&self, account: Option<&Account>, all: bool) -> Result<Vec<AccessKey>, ClientError> {
        let mut query = of_account(account);
        if all {
            query.push(("all", "true".into()));
        }
        let list: AccessKeyList = self.call(Method::GET, "/v1/keys").query(&query).read().await?;
        Ok(list.access_keys)
    }

    /// `DELETE /v1/keys/{access_key}`: it opens nothing from the answer on. Also good when it was revoked before.
    ///
    /// # Errors
    /// `access_key_not_found`; otherwise as for every call.
    pub async fn revoke_access_key(
        &self,
        account: Option<&Account>,
        id: &AccessKeyId,
    ) -> Result<AccessKey, ClientError> {
        self.call(Method::DELETE, format!("/v1/keys/{id}")).query(&of_account(account)).read().await
    }

    /// `GET /v1/accounts`. On the local socket only.
    ///
    /// # Errors
    /// `forbidden` with whatever key; otherwise as for every call.
    pub async fn accounts(&self) -> Result<Vec<AccountInfo>, ClientError> {
        let list: AccountList = self.call(Method::GET, "/v1/accounts").read().await?;
        Ok(list.accounts)
    }

    /// `PUT /v1/accounts/{account}`: makes it where there is none of that name, and replaces its own quotas. On the local
    /// socket only.
    ///
    /// # Errors
    /// As for [`Client::accounts`].
    pub async fn set_account(&self, account: &Account, request: &SetAccount) -> Result<AccountInfo, ClientError> {
        self.call(Method::PUT, format!("/v1/accounts/{account}")).json(request).read().await
    }

    /// `GET /v1/usage`
    ///
    /// # Errors
    /// As for every call: see [`ClientError`].
    pub async fn usage(&self, account: Option<&Account>) -> Result<Usage, ClientError> {
        self.call(Method::GET, "/v1/usage").query(&of_account(account)).read().await
    }
}
