//! Who comes in, and what they may do: the table of calls, access keys with their secrets, accounts with their quotas.

mod accounts;
mod actions;
mod keys;
mod secret;

pub use accounts::Accounts;
pub(crate) use accounts::told;
pub use actions::{Action, Needs};
pub use keys::{AccessKeys, NotLetIn};
pub use secret::{AccessSecret, SecretError};
