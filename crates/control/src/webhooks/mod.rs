//! Webhooks: an account's events, delivered to URLs in their order, at least once each, signed.
//!
//! One task a webhook reads the account's events from where it stands, and hands each that is of its kinds to the
//! [`Courier`], which alone knows how things are sent. What a delivery came to is in the journal before the next one
//! begins, so that a restarted server goes on where this one was. The secret is in memory and in the journal, and must
//! appear nowhere else but in the answer that tells it.

mod backoff;
mod courier;
mod deliver;
mod filter;
mod hook;
mod signature;
mod store;

pub use courier::{Courier, Parcel, Refused};
pub(crate) use store::Webhooks;
