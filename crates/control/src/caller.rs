//! Who calls: the account whose things they may see, and what they may do there. Decides nothing about a call's content.

use remuda_types::{AccessKeyId, Account};

/// The account of whoever works on the server's own machine, and of the first key.
pub const ACCOUNT_DEFAULT: &str = "default";

/// A caller that was let in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// Whose things these are. Nothing of another account is visible to this caller.
    pub account: Account,
    /// The access key that was shown; none for whoever may open the root-only socket.
    pub access_key: Option<AccessKeyId>,
}

impl Caller {
    /// Whoever can open the root-only socket: everything of the default account.
    ///
    /// # Panics
    /// Never: the default account's name is one.
    pub fn operator() -> Caller {
        #[allow(clippy::expect_used, reason = "a constant")]
        let account = ACCOUNT_DEFAULT.parse().expect("the default account's name is one");
        Caller { account, access_key: None }
    }
}
