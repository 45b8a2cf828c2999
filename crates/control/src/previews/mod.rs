//! Previews: access to one port of one generation, each with a credential of its own.
//!
//! A credential derives from the server's secret, the preview's id and how often it was rotated, so that a call that is
//! repeated under its key is told the same one, although only digests are on record. All previews that are on record lie
//! in memory by the digests of their credentials, those of the past too: what was right once is told apart from what never
//! was. A change is in the journal before it is in memory, and in memory before whoever asked for it hears of it.
//!
//! It knows no HTTP: how a credential travels is the gateway's business. A preview never leads to another generation than
//! the one it was made for, and so never from a source's credential into a branch.

mod kept;
mod pass;
mod secret;
mod store;

pub(crate) use kept::Issued;
pub use pass::{PreviewCredential, PreviewPass};
pub(crate) use pass::{dial, may_serve};
pub use secret::{PreviewToken, TokenError};
pub(crate) use store::{Previews, WRITTEN};

use remuda_types::wire::Preview;

/// A preview with what lets in, as it was when it was issued.
pub struct IssuedPreview {
    /// It.
    pub preview: Preview,
    /// Its credential.
    pub token: PreviewToken,
    /// What its link carries that works once; only where its credential travels in a cookie.
    pub ticket: Option<PreviewToken>,
}

impl std::fmt::Debug for IssuedPreview {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IssuedPreview").field("preview", &self.preview).finish_non_exhaustive()
    }
}
