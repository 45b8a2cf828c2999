//! The route that follows an execution: its output and its end as server-sent events. Whoever comes back with the last
//! id goes on there, without a gap and without a byte twice, whichever server answers. Reads the next piece when its
//! reader has taken the last, so that nothing is held for a slow one.

use std::convert::Infallible;
use std::time::Duration;

use axum::Extension;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, StatusCode};
use remuda_control::{OutputFollower, OutputQuery, OutputSlice, Platform};
use remuda_types::Error;
use remuda_types::error::ErrorBody;
use remuda_types::limits::{EVENTS_HEARTBEAT_MS, FOLLOW_PIECE_BYTES_MAX};
use remuda_types::wire::{FollowedGap, FollowedOutput, OutputStream};
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;
use utoipa::IntoParams;

use crate::calling::By;
use crate::errors::{Answer, invalid};
use crate::events::{EVENT_STREAM, LAST_EVENT_ID};
use crate::extract::{OfExecution, QueryOf};
use crate::serve::Connection;

/// What the last event's id ends in. Whoever comes back with it has seen everything.
const ENDED: &str = "-ended";

/// Where to begin.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Beginning {
    /// Where to begin, in bytes of the one log of both streams.
    #[serde(default)]
    #[param(required = false)]
    offset: u64,
}

/// Follows an execution as server-sent events: `state`, the execution as it stands, at the beginning and at its end;
/// `output`, a piece of output; `gap`, bytes that are no longer kept. An event's id is the offset behind it: whoever
/// comes back with it as `Last-Event-ID` goes on there. The stream ends after the execution's end has been told, and is
/// answered with 204 to whoever has seen that.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/executions/{execution}/events", operation_id = "follow_execution", tag = "executions",
    params(OfExecution, Beginning, ("Last-Event-ID" = Option<String>, Header, description = "The last id that was seen; before `offset`.")), responses(
    (status = 200, description = "Events; the data of `output` is a FollowedOutput, of `gap` a FollowedGap, of `state` an Execution.",
        content((String = "text/event-stream"))),
    (status = 204, description = "Everything was told."),
    (status = "default", description = "An error.", body = ErrorBody)))]
pub(crate) async fn follow(
    State(platform): State<Platform>,
    By(caller): By,
    of: OfExecution,
    QueryOf(from): QueryOf<Beginning>,
    connection: Option<Extension<Connection>>,
    request: Request,
) -> Answer<Response> {
    let last = request.headers().get(LAST_EVENT_ID).map(|id| id.to_str().unwrap_or_default());
    let (offset, has_seen_all) = match last {
        None => (from.offset, false),
        Some(id) => place_of(id)?,
    };
    let source = platform.follow_output(&caller, &of.id, &of.execution).await?;
    if has_seen_all && source.show().state.is_final() {
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    let shutdown = connection.map_or_else(CancellationToken::new, |Extension(connection)| connection.shutdown);
    let reader = Reader { source, offset, shutdown, told: Told::Nothing };
    let events = futures_util::stream::unfold(reader, Reader::next);
    let mut response = Body::from_stream(events).into_response();
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(EVENT_STREAM));
    Ok(response)
}

/// The offset in an event's id, and whether the end was told with it.
fn place_of(id: &str) -> Result<(u64, bool), Error> {
    let (number, ended) = id.strip_suffix(ENDED).map_or((id, false), |number| (number, true));
    let wrong =
        || invalid("the Last-Event-ID header holds no id of this stream").remedy("give back the last id as it came");
    Ok((number.parse().map_err(|_| wrong())?, ended))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Told {
    Nothing,
    Beginning,
    End,
}

/// One reader of a stream.
struct Reader {
    source: OutputFollower,
    offset: u64,
    /// Cancelled when the server ends: the stream ends then, and its reader goes on with the next server.
    shutdown: CancellationToken,
    told: Told,
}

impl Reader {
    async fn next(mut self) -> Option<(Result<Bytes, Infallible>, Reader)> {
        let text = match self.told {
            Told::Nothing => {
                self.told = Told::Beginning;
                message(&self.offset.to_string(), "state", &self.source.show())
            }
            Told::End => return None,
            Told::Beginning => {
                let query = OutputQuery {
                    offset: self.offset,
                    since_ms: None,
                    stream: None,
                    max_bytes: FOLLOW_PIECE_BYTES_MAX,
                    wait: Duration::from_millis(EVENTS_HEARTBEAT_MS),
                };
                let slice = tokio::select! {
                    () = self.shutdown.cancelled() => return None,
                    slice = self.source.read(query) => slice,
                };
                self.tell(&slice.map_err(|e| tracing::warn!("a stream of output ends: {e}")).ok()?)
            }
        };
        Some((Ok(text.into()), self))
    }

    /// Tells of what is missing before a place, where it is missing: a piece may have some of what comes before it.
    fn pass_to(&mut self, offset: u64, text: &mut String) {
        if offset > self.offset {
            let gap = FollowedGap { offset: self.offset, missed: offset - self.offset };
            text.push_str(&message(&offset.to_string(), "gap", &gap));
        }
        self.offset = offset;
    }

    fn tell(&mut self, slice: &OutputSlice) -> String {
        let mut text = String::new();
        for (offset, stream, bytes) in &slice.records {
            self.pass_to(*offset, &mut text);
            self.offset = offset + bytes.len() as u64;
            text.push_str(&message(&self.offset.to_string(), "output", &output(*offset, *stream, bytes)));
        }
        self.pass_to(slice.next_offset, &mut text);
        if slice.complete {
            self.told = Told::End;
            text.push_str(&message(&format!("{}{ENDED}", self.offset), "state", &self.source.show()));
        }
        if text.is_empty() {
            // Only says that the server is there.
            text.push_str(":\n\n");
        }
        text
    }
}

/// Text where it is text, and nothing replaced in it.
fn output(offset: u64, stream: OutputStream, bytes: &[u8]) -> FollowedOutput {
    match std::str::from_utf8(bytes) {
        Ok(text) => FollowedOutput { offset, stream, text: Some(text.to_owned()), base64: None },
        Err(_) => FollowedOutput { offset, stream, text: None, base64: Some(BASE64.encode(bytes)) },
    }
}

/// JSON has no line breaks: nothing in the data ends a message early.
fn message(id: &str, kind: &str, data: &impl Serialize) -> String {
    // What is told here has no maps with keys that JSON lacks.
    let data = serde_json::to_string(data).unwrap_or_default();
    format!("id: {id}\nevent: {kind}\ndata: {data}\n\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_a_place_and_nothing_else_is_one() {
        assert_eq!((place_of("7").unwrap(), place_of("7-ended").unwrap()), ((7, false), (7, true)));
        for wrong in ["", "-ended", "7-", "x", "-1", "7 ended"] {
            assert!(place_of(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn bytes_that_are_no_text_are_told_exactly() {
        let told = output(0, OutputStream::Stdout, b"a\xff\n\n");
        assert_eq!((told.text, told.base64.as_deref()), (None, Some("Yf8KCg==")));
        let text = message("3", "output", &output(0, OutputStream::Stdout, b"\n\nid: 9\r\n"));
        assert_eq!(text.lines().count(), 4, "{text}");
    }
}
