//! Who calls: the account whose things they may see, what they may do there, and to what they are narrowed. Decides
//! nothing about a call's content, and must never know a secret.
//!
//! Two questions, asked by every call and always in this order: [`Caller::may`] this be done at all? Then, for each thing
//! that the call names: does the caller see it? What a caller does not see is *not found*, and never forbidden, so that
//! nothing can be guessed or counted.

use std::collections::BTreeSet;
use std::sync::Arc;

use remuda_types::wire::Labels;
use remuda_types::{AccessKeyId, AccessScope, Account, Error, ErrorCode, Narrowing, SandboxId, Slot};

use crate::access::{Action, Needs};

/// The account of whoever works on the server's own machine, and of the first key.
pub const ACCOUNT_DEFAULT: &str = "default";

/// A caller that was let in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// Whose things these are. Nothing of another account is visible to this caller.
    pub account: Account,
    /// The access key that was shown; none for whoever may open the root-only socket.
    pub access_key: Option<AccessKeyId>,
    rights: Arc<Rights>,
}

/// What a key grants.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Rights {
    pub(crate) scopes: BTreeSet<AccessScope>,
    pub(crate) narrowing: Option<Narrowing>,
    pub(crate) expires_at_ms: Option<i64>,
}

impl Caller {
    /// Whoever can open the root-only socket: everything of the default account, and the server's accounts.
    ///
    /// # Panics
    /// Never: the default account's name is one.
    pub fn operator() -> Caller {
        let scopes = AccessScope::ALL.iter().copied().collect();
        Caller {
            account: default_account(),
            access_key: None,
            rights: Arc::new(Rights { scopes, narrowing: None, expires_at_ms: None }),
        }
    }

    /// The platform itself, which goes on with what was begun in this account.
    pub(crate) fn platform(account: Account) -> Caller {
        Caller { account, ..Caller::operator() }
    }

    /// Whoever shows this key.
    pub(crate) fn with_key(account: Account, id: AccessKeyId, rights: Rights) -> Caller {
        Caller { account, access_key: Some(id), rights: Arc::new(rights) }
    }

    /// Whether this is whoever runs the server: who came by the root-only socket.
    pub fn is_operator(&self) -> bool {
        self.access_key.is_none()
    }

    /// What the caller may do.
    pub fn scopes(&self) -> &BTreeSet<AccessScope> {
        &self.rights.scopes
    }

    /// To what the caller is narrowed.
    pub fn narrowing(&self) -> Option<&Narrowing> {
        self.rights.narrowing.as_ref()
    }

    /// When the caller's key expires, in Unix milliseconds.
    pub fn expires_at_ms(&self) -> Option<i64> {
        self.rights.expires_at_ms
    }

    /// Whether the caller may make this kind of call.
    ///
    /// # Errors
    /// `forbidden`, with the scope that is missing.
    pub fn may(&self, call: Action) -> Result<(), Error> {
        match call.needs() {
            Needs::Nothing | Needs::AnyKey => Ok(()),
            Needs::Scopes(scopes) => scopes.iter().try_for_each(|scope| self.require(*scope)),
            Needs::Operator if self.is_operator() => Ok(()),
            Needs::Operator => Err(Error::new(ErrorCode::Forbidden, "only whoever runs the server may do this")
                .cause("it came with an access key, and no key grants it")
                .remedy("run the command on the server's own machine as root, without --url")),
        }
    }

    /// Whether the caller has this scope.
    ///
    /// # Errors
    /// `forbidden`, with the scope that is missing.
    pub fn require(&self, scope: AccessScope) -> Result<(), Error> {
        if self.rights.scopes.contains(&scope) {
            return Ok(());
        }
        let error = Error::new(ErrorCode::Forbidden, format!("the access key lacks the scope {scope}"))
            .remedy(format!("use a key with it, or have one made: remuda key create --scope {scope}"))
            .detail("missing_scope", scope.as_str());
        Err(match &self.access_key {
            Some(key) => error.cause(format!("{key} grants {}", list(&self.rights.scopes))),
            None => error,
        })
    }

    /// The account that a call is about: the caller's, or the one that the operator names.
    ///
    /// # Errors
    /// `forbidden` to all but the operator where it is another.
    pub fn account_of<'a>(&'a self, named: Option<&'a Account>) -> Result<&'a Account, Error> {
        match named {
            Some(other) if *other != self.account && !self.is_operator() => {
                Err(Error::new(ErrorCode::Forbidden, "an access key is for its own account only")
                    .remedy("leave `account` out, or ask on the server's own socket"))
            }
            Some(account) => Ok(account),
            None => Ok(&self.account),
        }
    }

    /// Whether the caller sees a sandbox of its account.
    pub fn sees_sandbox(&self, id: &SandboxId, labels: &Labels) -> bool {
        self.narrowing().is_none_or(|narrowing| narrowing.leaves_sandbox(id, labels))
    }

    /// Whether the caller sees a snapshot of its account that was captured from `source`.
    pub fn sees_snapshot(&self, source: Option<&SandboxId>, labels: &Labels) -> bool {
        self.narrowing().is_none_or(|narrowing| narrowing.leaves_snapshot(source, labels))
    }

    /// Whether the caller may make a sandbox in this slot with these labels: it must see what it makes.
    ///
    /// # Errors
    /// `forbidden`, with what the request lacks.
    pub fn may_make_sandbox(&self, slot: Option<&Slot>, labels: &Labels) -> Result<(), Error> {
        let lacks = match self.narrowing() {
            None => return Ok(()),
            Some(Narrowing::Slot(wanted)) if slot == Some(wanted) => return Ok(()),
            Some(Narrowing::Label(label)) if label.is_in(labels) => return Ok(()),
            Some(Narrowing::Slot(wanted)) => format!("give the slot {wanted} in the request"),
            Some(Narrowing::Label(label)) => format!("give the label {label} in the request"),
            Some(Narrowing::Sandbox(_)) => "use a key that is not narrowed to one sandbox".to_owned(),
        };
        Err(self.outside("the sandbox to be made", lacks))
    }

    /// Whether the caller, who sees the source, may make a snapshot of it with these labels.
    ///
    /// # Errors
    /// `forbidden`, with what the request lacks.
    pub fn may_make_snapshot(&self, source: &SandboxId, labels: &Labels) -> Result<(), Error> {
        match self.narrowing() {
            Some(Narrowing::Label(label)) if !label.is_in(labels) => {
                Err(self.outside("the snapshot to be made", format!("give the label {label} in the request")))
            }
            _ if self.sees_snapshot(Some(source), labels) => Ok(()),
            _ => Err(self.outside("the snapshot to be made", "use a key that is not narrowed".to_owned())),
        }
    }

    fn outside(&self, what: &str, remedy: String) -> Error {
        let error = Error::new(ErrorCode::Forbidden, format!("{what} would be outside of what the access key sees"));
        match self.narrowing() {
            Some(narrowing) => error
                .cause(format!("the key is narrowed to {narrowing}"))
                .remedy(remedy)
                .detail("narrowed_to", serde_json::to_value(narrowing).unwrap_or_default()),
            None => error,
        }
    }
}

fn list(scopes: &BTreeSet<AccessScope>) -> String {
    scopes.iter().map(|scope| scope.as_str()).collect::<Vec<_>>().join(", ")
}

/// The account of the first key.
pub(crate) fn default_account() -> Account {
    #[allow(clippy::expect_used, reason = "a constant")]
    let account = ACCOUNT_DEFAULT.parse().expect("the default account's name is one");
    account
}

#[cfg(test)]
mod tests {
    use remuda_types::Label;

    use super::*;

    fn caller(scopes: &[AccessScope], narrowing: Option<Narrowing>) -> Caller {
        let rights = Rights { scopes: scopes.iter().copied().collect(), narrowing, expires_at_ms: None };
        Caller::with_key(default_account(), AccessKeyId::from_entropy([7; 20]), rights)
    }

    fn id(text: &str) -> SandboxId {
        text.parse().unwrap()
    }

    #[test]
    fn a_missing_scope_is_named() {
        let reader = caller(&[AccessScope::SandboxesRead], None);
        assert_eq!(reader.may(Action::ListSandboxes), Ok(()));
        let error = reader.may(Action::RemoveSandbox).unwrap_err();
        assert_eq!((error.code, &error.details["missing_scope"]), (ErrorCode::Forbidden, &"sandboxes:delete".into()));
        assert!(error.cause.unwrap().ends_with("grants sandboxes:read"));
        // Of two, the one that is missing.
        let error = caller(&[AccessScope::SandboxesWrite], None).may(Action::RestoreSnapshot).unwrap_err();
        assert_eq!(error.details["missing_scope"], "snapshots:read");
        assert_eq!(caller(&[], None).may(Action::WhoAmI), Ok(()));
    }

    #[test]
    fn no_key_does_what_only_the_operator_may() {
        assert_eq!(Caller::operator().may(Action::SetAccount), Ok(()));
        assert_eq!(caller(AccessScope::ALL, None).may(Action::SetAccount).unwrap_err().code, ErrorCode::Forbidden);
        for call in Action::ALL {
            assert_eq!(Caller::operator().may(*call), Ok(()), "{call:?}");
        }
    }

    #[test]
    fn what_a_narrowed_caller_makes_it_must_see() {
        let label = Label { name: "team".into(), value: "a".into() };
        let labels = Labels::from([("team".into(), "a".into())]);
        let (none, source) = (Labels::new(), id("c1@2026-10-08T12:00:00.000Z"));
        let slot: Slot = "c1".parse().unwrap();
        let in_slot = caller(&[], Some(Narrowing::Slot(slot.clone())));
        let labelled = caller(&[], Some(Narrowing::Label(label)));
        let one = caller(&[], Some(Narrowing::Sandbox(source.clone())));

        assert_eq!(in_slot.may_make_sandbox(Some(&slot), &none), Ok(()));
        for slot in [None, Some("c2".parse().unwrap())] {
            let error = in_slot.may_make_sandbox(slot.as_ref(), &labels).unwrap_err();
            assert_eq!(error.remedy.as_deref(), Some("give the slot c1 in the request"));
        }
        assert_eq!(labelled.may_make_sandbox(None, &labels), Ok(()));
        let error = labelled.may_make_sandbox(Some(&slot), &none).unwrap_err();
        assert_eq!(error.remedy.as_deref(), Some("give the label team=a in the request"));
        assert_eq!(error.details["narrowed_to"]["label"]["value"], "a");
        assert_eq!(one.may_make_sandbox(Some(&slot), &labels).unwrap_err().code, ErrorCode::Forbidden);

        assert_eq!(in_slot.may_make_snapshot(&source, &none), Ok(()));
        assert_eq!(one.may_make_snapshot(&source, &none), Ok(()));
        assert_eq!(labelled.may_make_snapshot(&source, &labels), Ok(()));
        assert_eq!(labelled.may_make_snapshot(&source, &none).unwrap_err().code, ErrorCode::Forbidden);
        assert_eq!(Caller::operator().may_make_sandbox(None, &none), Ok(()));
    }
}
