//! `/containers/previews`: access to one port of a generation. A credential leaves in the answer that issues it, and must
//! appear nowhere else.

use std::num::NonZeroU16;

use axum::body::Body;
use remuda_control::Call;
use remuda_types::wire::{CreatePreview, Preview, PreviewState};
use remuda_types::{ErrorCode, PreviewId};
use serde_json::{Value, json};

use super::answer::{Refusal, Told, Words, told};
use super::enter::Asked;
use super::{body, ids};

const PREVIEWS: Words = Words {
    invalid: "invalid_request",
    too_large: "request_too_large",
    limit: "preview_limit",
    unavailable: "previews_unavailable",
};
const BODY_BYTES_MAX: usize = 1_024;
const PORT_MIN: u64 = 1_024;
const TTL_SECONDS_MIN: u64 = 60;
const TTL_SECONDS_MAX: u64 = 30 * 86_400;
const TTL_SECONDS_DEFAULT: u64 = 900;

fn show(preview: &Preview) -> Value {
    json!({
        "id": ids::preview_hex(PreviewId::PREFIX, preview.id.as_str()),
        "port": preview.port,
        "createdAt": preview.sandbox.generation,
        "expiresAt": preview.expires_at_ms,
    })
}

pub(super) async fn create(asked: Asked, body: Body) -> Told {
    let id = asked.sandbox()?;
    let key = asked.key()?;
    let object = body::object(body, BODY_BYTES_MAX, &["port", "ttlSeconds"]).await?;
    let wrong = || Refusal::new(400, PREVIEWS.invalid);
    let port = body::number(&object, "port", PORT_MIN, u64::from(u16::MAX))?;
    let port = port.and_then(|port| u16::try_from(port).ok()).and_then(NonZeroU16::new).ok_or_else(wrong)?;
    let seconds = body::number(&object, "ttlSeconds", TTL_SECONDS_MIN, TTL_SECONDS_MAX)?;
    let ttl_ms = Some(seconds.unwrap_or(TTL_SECONDS_DEFAULT) * 1_000);
    let request = CreatePreview { port, ttl_ms, auth: None, host: None, label: None };
    let call = Call { caller: asked.caller.clone(), key };
    let issued = asked.platform.create_preview(&call, &id, request).await.result.map_err(|e| PREVIEWS.of(&e))?;
    let made = asked.front.tell(issued);
    let mut shown = show(&made.preview);
    shown["url"] = made.url.into();
    Ok(told(201, &shown))
}

pub(super) async fn list(asked: Asked) -> Told {
    let id = asked.sandbox()?;
    asked.platform.show(&asked.caller, &id).await.map_err(|e| PREVIEWS.of(&e))?;
    let all = asked.platform.previews(&asked.caller, &id).await.map_err(|e| PREVIEWS.of(&e))?;
    let active = all.iter().filter(|preview| preview.state == PreviewState::Active);
    Ok(told(200, &json!({ "previews": active.map(show).collect::<Vec<_>>() })))
}

/// Closes a preview. One that was never made is closed.
pub(super) async fn revoke(asked: Asked) -> Told {
    let (id, call) = (asked.sandbox()?, asked.call());
    let hex = asked.query.get("previewId").unwrap_or_default();
    let digits = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    if hex.len() != 32 || !hex.bytes().all(digits) {
        return Err(Refusal::new(400, PREVIEWS.invalid));
    }
    asked.platform.show(&asked.caller, &id).await.map_err(|e| PREVIEWS.of(&e))?;
    let preview = ids::preview_id(PreviewId::PREFIX, hex).and_then(|id| id.parse::<PreviewId>().ok());
    if let Some(preview) = preview
        && let Err(e) = asked.platform.revoke_preview(&call, &id, &preview).await.result
        && e.code != ErrorCode::PreviewNotFound
    {
        return Err(PREVIEWS.of(&e));
    }
    Ok(told(200, &json!({ "revoked": true })))
}
