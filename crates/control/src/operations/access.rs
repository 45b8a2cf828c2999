//! revoke_access_key, set_account: one change of the journal each; both may be repeated.

use remuda_journal::Reservation;
use remuda_types::wire::{AccessKey, AccountInfo, SetAccount};
use remuda_types::{AccessKeyId, Account, Error, SandboxId};
use serde_json::{Value, json};

use crate::access::Action;
use crate::caller::Caller;
use crate::clock::now_unix_ms;
use crate::operation::{Ended, Fault, Operation, Work, canonical};
use crate::platform::Platform;

/// Revokes an access key: from its outcome on the key opens nothing.
pub(crate) struct RevokeKey {
    pub(crate) id: AccessKeyId,
    /// Whose key, where it is not the caller's account.
    pub(crate) account: Option<Account>,
}

impl Operation for RevokeKey {
    const KIND: &'static str = "revoke_access_key";
    const ACTION: Action = Action::RevokeKey;
    const ALWAYS: bool = false;
    type Plan = (Account, Caller);
    type Output = AccessKey;

    fn target(&self) -> Option<&SandboxId> {
        None
    }

    fn request(&self) -> Value {
        json!({ "access_key": self.id, "account": self.account })
    }

    async fn judge(&self, platform: &Platform, caller: &Caller) -> Result<(Self::Plan, Reservation), Error> {
        let account = caller.account_of(self.account.as_ref())?.clone();
        platform.access_keys().find(caller, &account, &self.id)?;
        Ok(((account, caller.clone()), Reservation::default()))
    }

    async fn run(self, platform: &Platform, (account, caller): Self::Plan, _: &Work) -> Ended<AccessKey> {
        let revoked = platform.access_keys().revoke(&caller, &account, &self.id, now_unix_ms()).await;
        Ended::from(revoked.map_err(Fault::Failed))
    }
}

/// Makes an account where there is none of that name, and replaces its own quotas.
pub(crate) struct SetQuotas {
    pub(crate) account: Account,
    pub(crate) set: SetAccount,
}

impl Operation for SetQuotas {
    const KIND: &'static str = "set_account";
    const ACTION: Action = Action::SetAccount;
    const ALWAYS: bool = false;
    type Plan = ();
    type Output = AccountInfo;

    fn target(&self) -> Option<&SandboxId> {
        None
    }

    fn request(&self) -> Value {
        json!({ "account": self.account, "set": canonical(&self.set) })
    }

    async fn judge(&self, _: &Platform, _: &Caller) -> Result<((), Reservation), Error> {
        Ok(((), Reservation::default()))
    }

    async fn run(self, platform: &Platform, (): (), _: &Work) -> Ended<AccountInfo> {
        let set = platform.accounts().set_quotas(&self.account, self.set.quotas, now_unix_ms()).await;
        Ended::from(set.map_err(Fault::Failed))
    }
}
