//! Previews on the wire: access to one port of one generation over HTTP, each with a credential of its own.

use std::fmt;
use std::num::NonZeroU16;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::ids::{PreviewId, SandboxId};

/// How the credential of a preview travels. The header is taken for every preview.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PreviewAuth {
    /// In the host name: whoever has the URL is let in.
    #[default]
    Host,
    /// In the header `X-Remuda-Preview-Token` alone.
    Header,
    /// In a cookie, which a link sets that works once.
    Cookie,
}

/// What the application sees as the name it was called by.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PreviewHost {
    /// `localhost` and its own port.
    #[default]
    Rewrite,
    /// The preview's own name. Where that holds the credential, its id stands in the credential's place.
    Preserve,
}

/// Where a preview stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PreviewState {
    /// Its credential is let in.
    Active,
    /// Its time is over; renewing it makes it active again.
    Expired,
    /// It was revoked, for good.
    Revoked,
    /// Its sandbox was stopped, has died or is gone, for good.
    Ended,
}

impl PreviewState {
    /// The word on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            PreviewState::Active => "active",
            PreviewState::Expired => "expired",
            PreviewState::Revoked => "revoked",
            PreviewState::Ended => "ended",
        }
    }
}

impl fmt::Display for PreviewState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// `POST /v1/sandboxes/{id}/previews`: let somebody reach one port of the sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreatePreview {
    /// Port in the guest, 1–65535.
    #[schema(value_type = u16, minimum = 1)]
    pub port: NonZeroU16,
    /// How long it lives, in milliseconds; an hour when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
    /// How its credential travels; `host` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auth: Option<PreviewAuth>,
    /// What the application sees as the name it was called by; `rewrite` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<PreviewHost>,
    /// What it is for, in the caller's words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
}

/// `POST /v1/sandboxes/{id}/previews/{preview}/renew`: let it live longer, from now on.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RenewPreview {
    /// How long it lives from now on, in milliseconds; as long as it was made for when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
}

/// A preview, without its credential.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Preview {
    /// Its id, which is no secret.
    pub id: PreviewId,
    /// The generation that it leads to, and no other.
    pub sandbox: SandboxId,
    /// The port in the guest.
    pub port: u16,
    /// How its credential travels.
    pub auth: PreviewAuth,
    /// What the application sees as the name it was called by.
    pub host: PreviewHost,
    /// What it is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// Where it stands.
    pub state: PreviewState,
    /// When it was made, in Unix milliseconds.
    pub created_at_ms: i64,
    /// When it ends by itself, in Unix milliseconds.
    pub expires_at_ms: i64,
    /// How often its credential was exchanged for another.
    pub rotations: u32,
    /// When it was revoked, in Unix milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked_at_ms: Option<i64>,
}

/// A preview and how to get there, with its credential. The same is told again to whoever repeats the call under its key.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MadePreview {
    /// It.
    pub preview: Preview,
    /// The credential: 48 hex digits, for the header `X-Remuda-Preview-Token`.
    pub token: String,
    /// Where to go: with `host` the credential is in it, with `cookie` it is a link that works once, with `header` the
    /// header must come along. Absent where the server listens on no TCP port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// The same application at an address that needs no name to be looked up; the header must come along. Absent where
    /// the server listens on no TCP port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub header_url: Option<String>,
    /// What to know about these addresses.
    pub note: String,
}

impl fmt::Debug for MadePreview {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MadePreview").field("preview", &self.preview).finish_non_exhaustive()
    }
}

/// `GET /v1/sandboxes/{id}/previews`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PreviewList {
    /// Oldest first; revoked, expired and ended ones too, as long as they are on record.
    pub previews: Vec<Preview>,
}

/// What a look through a preview found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ProbeResult {
    /// An HTTP server answers.
    Answers,
    /// Something takes the connection, and gives no answer of HTTP.
    Listening,
    /// An HTTP server answers, and not to the name that this preview calls it by.
    RefusesHost,
    /// Nothing listens on the port.
    NothingListens,
    /// The sandbox is paused: nothing in it can answer.
    Paused,
    /// The sandbox is starting.
    Starting,
    /// The sandbox has ended, so that nothing ever answers here.
    Gone,
}

impl ProbeResult {
    /// The word on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            ProbeResult::Answers => "answers",
            ProbeResult::Listening => "listening",
            ProbeResult::RefusesHost => "refuses_host",
            ProbeResult::NothingListens => "nothing_listens",
            ProbeResult::Paused => "paused",
            ProbeResult::Starting => "starting",
            ProbeResult::Gone => "gone",
        }
    }
}

/// `GET /v1/sandboxes/{id}/previews/{preview}/probe`: what is behind it at this moment. It asks the application itself,
/// whether or not the preview's credential is let in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PreviewProbe {
    /// The preview.
    pub preview: PreviewId,
    /// Where the preview itself stands: an application may answer behind one that lets nobody in.
    pub state: PreviewState,
    /// What was found.
    pub result: ProbeResult,
    /// The status that the application answered `/` with in the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// Redirects that were followed until then.
    #[serde(default)]
    pub redirects: u32,
    /// The same in a sentence, and what to do about it.
    pub words: String,
}
