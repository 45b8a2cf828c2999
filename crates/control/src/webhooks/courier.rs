//! Who carries deliveries: the one part that knows how things are sent, and to which addresses nothing is.

use std::fmt::Debug;
use std::pin::Pin;

use bytes::Bytes;
use remuda_types::WebhookId;

/// One event for one URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parcel {
    /// Where to.
    pub url: String,
    /// Whose.
    pub webhook: WebhookId,
    /// The same for every attempt at this event: by it a receiver tells a repetition.
    pub id: String,
    /// When the attempt is made, in Unix seconds; it is signed.
    pub timestamp_s: i64,
    /// Signature of id, timestamp and body.
    pub signature: String,
    /// The event as JSON.
    pub body: Bytes,
}

/// Why a parcel was not taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// The status of the answer, where there was one.
    pub status: Option<u16>,
    /// Why, for people.
    pub why: String,
}

/// Carries parcels.
pub trait Courier: Debug + Send + Sync + 'static {
    /// Whether anything could ever be carried there; asked before a webhook is made.
    ///
    /// # Errors
    /// Why not.
    fn check(&self, url: &str) -> Result<(), String>;

    /// Carries one parcel, once, and gives the status of the answer, which is 200 to 299.
    fn carry(&self, parcel: Parcel) -> Pin<Box<dyn Future<Output = Result<u16, Refused>> + Send + '_>>;
}
