//! Access keys and accounts on the wire. A secret stands in one answer alone: the one to its making.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::access::{AccessScope, Narrowing};
use crate::ids::AccessKeyId;
use crate::keys::Account;
use crate::quota::QuotaChanges;

/// `POST /v1/keys`: make an access key. It grants nothing that its maker has not.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateAccessKey {
    /// What it may do; at least one.
    pub scopes: Vec<AccessScope>,
    /// To what it is narrowed; it sees the whole account when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub narrowing: Option<Narrowing>,
    /// What it is for, to tell it from others: at most 256 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// After how many milliseconds it expires. When absent it lives as long as the key that makes it may.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_in_ms: Option<u64>,
    /// For which account, which is made where there is none of that name; the caller's own when absent. Only on the
    /// server's own socket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<Account>,
}

/// An access key, without its secret.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AccessKey {
    /// Its id, which is no secret.
    pub id: AccessKeyId,
    /// Whose it is.
    pub account: Account,
    /// What it is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// What it may do.
    pub scopes: Vec<AccessScope>,
    /// To what it is narrowed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub narrowing: Option<Narrowing>,
    /// When it was made, in Unix milliseconds.
    pub created_at_ms: i64,
    /// When it expires, in Unix milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at_ms: Option<i64>,
    /// When it was revoked, in Unix milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked_at_ms: Option<i64>,
    /// The key that made it; absent when it was made on the server's own socket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub made_by: Option<AccessKeyId>,
}

/// The answer to `POST /v1/keys`.
#[derive(Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct MadeAccessKey {
    /// The key.
    pub access_key: AccessKey,
    /// Its secret, `rmd_` and 64 hex digits. It is told here and never again.
    pub secret: String,
}

impl std::fmt::Debug for MadeAccessKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MadeAccessKey").field("access_key", &self.access_key).finish_non_exhaustive()
    }
}

/// `GET /v1/keys`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AccessKeyList {
    /// Oldest first; revoked and expired ones only where asked for.
    pub access_keys: Vec<AccessKey>,
}

/// `GET /v1/whoami`: who calls, and what they may do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct WhoAmI {
    /// Whose things the caller sees.
    pub account: Account,
    /// The access key that was shown; absent on the server's own socket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub access_key: Option<AccessKeyId>,
    /// What the caller may do.
    pub scopes: Vec<AccessScope>,
    /// To what the caller is narrowed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub narrowing: Option<Narrowing>,
    /// When the key expires, in Unix milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at_ms: Option<i64>,
    /// What the account may use at most, by quota; null where there is no limit.
    pub limits: BTreeMap<String, Option<u64>>,
}

/// `PUT /v1/accounts/{account}`: makes the account where there is none of that name, and replaces its own quotas.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SetAccount {
    /// Limits that are this account's own, null for no limit; what is not named follows the server's settings.
    #[serde(default)]
    pub quotas: QuotaChanges,
}

/// An account.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AccountInfo {
    /// Its name.
    pub account: Account,
    /// When it was made, in Unix milliseconds.
    pub created_at_ms: i64,
    /// Limits that are its own.
    pub quotas: QuotaChanges,
    /// What it may use at most, by quota; null where there is no limit.
    pub limits: BTreeMap<String, Option<u64>>,
}

/// `GET /v1/accounts`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AccountList {
    /// By name.
    pub accounts: Vec<AccountInfo>,
}
