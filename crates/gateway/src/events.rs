//! The route of events: a page of them, or a stream that goes on. Each page is one call of the platform; a stream reads
//! the next one when its reader has taken the last, so that nothing is held for a slow one.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use bytes::Bytes;
use http::HeaderValue;
use http::header::{ACCEPT, CONTENT_TYPE};
use remuda_control::{Caller, Platform};
use remuda_types::Error;
use remuda_types::error::ErrorBody;
use remuda_types::limits::EVENTS_HEARTBEAT_MS;
use remuda_types::wire::{Event, EventList};
use serde::Deserialize;
use serde_json::json;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use utoipa::IntoParams;

use crate::calling::By;
use crate::errors::{Answer, invalid};
use crate::extract::QueryOf;
use crate::serve::Connection;

pub(crate) const EVENT_STREAM: &str = "text/event-stream";
pub(crate) const LAST_EVENT_ID: &str = "last-event-id";

/// Where to begin.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Beginning {
    /// Only events above this number; from the oldest that is kept when absent.
    #[serde(default)]
    #[param(required = false)]
    after: u64,
    /// How many at most in one answer; 1,000 when absent. A stream goes on in any case.
    #[serde(default)]
    #[param(required = false)]
    limit: usize,
}

/// Reads events in order: a page of them, or, where `text/event-stream` is accepted, all that come from then on. A stream
/// takes `Last-Event-ID` too, and tells of events that are no longer kept by an event of its own, `gap`.
#[utoipa::path(get, path = "/v1/events", operation_id = "read_events", tag = "history",
    params(Beginning, ("Last-Event-ID" = Option<u64>, Header, description = "For a stream: as `after`, and before it.")), responses(
    (status = 200, description = "Events.", content((EventList = "application/json"), (String = "text/event-stream"))),
    (status = "default", description = "An error.", body = ErrorBody)))]
pub(crate) async fn read(
    State(platform): State<Platform>,
    By(caller): By,
    QueryOf(from): QueryOf<Beginning>,
    connection: Option<Extension<Connection>>,
    request: Request,
) -> Answer<Response> {
    let headers = request.headers();
    let streams = headers.get(ACCEPT).and_then(|v| v.to_str().ok()).is_some_and(|v| v.contains(EVENT_STREAM));
    if !streams {
        return Ok(Json(platform.events(&caller, from.after, from.limit).await?).into_response());
    }
    let after = match headers.get(LAST_EVENT_ID) {
        None => from.after,
        Some(id) => id.to_str().ok().and_then(|id| id.parse().ok()).ok_or_else(|| {
            invalid("the Last-Event-ID header holds no number of an event").remedy("give back the last id as it came")
        })?,
    };
    // Before the first page is read: what is written meanwhile is then told all the same.
    let news = platform.watch_events(&caller).await?;
    let shutdown = connection.map_or_else(CancellationToken::new, |Extension(connection)| connection.shutdown);
    let reader = Reader { platform, caller, after, limit: from.limit, news, shutdown };
    // A refusal is told as an error, and not by a stream that breaks off.
    let first = reader.page().await?;
    let begun = futures_util::stream::unfold((reader, Some(first)), |(reader, page)| reader.next(page));
    let mut response = Body::from_stream(begun).into_response();
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(EVENT_STREAM));
    Ok(response)
}

/// One reader of a stream.
struct Reader {
    platform: Platform,
    caller: Caller,
    /// The last number that it was told.
    after: u64,
    limit: usize,
    news: watch::Receiver<u64>,
    /// Cancelled when the server ends: the stream ends then, and its reader goes on with the next server.
    shutdown: CancellationToken,
}

type Told = (Result<Bytes, Infallible>, (Reader, Option<EventList>));

impl Reader {
    async fn page(&self) -> Result<EventList, Error> {
        self.platform.events(&self.caller, self.after, self.limit).await
    }

    /// The next piece of the stream; `page` is one that has been read already.
    async fn next(mut self, mut page: Option<EventList>) -> Option<Told> {
        loop {
            let now = match page.take() {
                Some(page) => page,
                None => {
                    self.news.borrow_and_update();
                    self.page().await.map_err(|e| tracing::warn!("a stream of events ends: {e}")).ok()?
                }
            };
            if !now.events.is_empty() || now.missed > 0 {
                let text = self.tell(&now);
                return Some((Ok(text), (self, None)));
            }
            let quiet = tokio::time::sleep(Duration::from_millis(EVENTS_HEARTBEAT_MS));
            tokio::select! {
                () = self.shutdown.cancelled() => return None,
                changed = self.news.changed() => changed.ok()?,
                () = quiet => return Some((Ok(Bytes::from_static(b":\n\n")), (self, None))),
            }
        }
    }

    fn tell(&mut self, page: &EventList) -> Bytes {
        let mut text = String::new();
        if page.missed > 0 {
            // With an id: whoever comes back goes on behind the gap, and is not told of it again.
            self.after += page.missed;
            text.push_str(&message(self.after, "gap", &json!({ "missed": page.missed, "oldest": page.oldest })));
        }
        for event in &page.events {
            self.after = event.sequence;
            text.push_str(&told(event));
        }
        text.into()
    }
}

fn told(event: &Event) -> String {
    message(event.sequence, &event.kind, &json!(event))
}

/// JSON has no line breaks, and kinds are words of our own: nothing in them ends a message early.
fn message(id: u64, kind: &str, data: &serde_json::Value) -> String {
    format!("id: {id}\nevent: {kind}\ndata: {data}\n\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_with_line_breaks_stays_one_message() {
        let about = remuda_types::wire::EventAbout { reason: Some("a\n\nid: 7\r\n".into()), ..Default::default() };
        let event = Event { sequence: 3, at_ms: 1, kind: "sandbox.gone".into(), about };
        let text = told(&event);
        assert_eq!(text.lines().count(), 4, "{text}");
        assert!(text.starts_with("id: 3\nevent: sandbox.gone\ndata: {") && text.ends_with("}\n\n"), "{text}");
    }
}
