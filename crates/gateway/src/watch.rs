//! The route that tells of changes of a guest's files as they happen, as server-sent events. Each reader takes what there is
//! when it has taken the last, so that nothing is held for a slow one.

use std::convert::Infallible;
use std::time::Duration;

use axum::Extension;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::HeaderValue;
use http::header::CONTENT_TYPE;
use remuda_control::{FileAt, FileWatcher, Platform, WatchPlace, WatchTold};
use remuda_types::Error;
use remuda_types::error::ErrorBody;
use remuda_types::limits::EVENTS_HEARTBEAT_MS;
use serde::Deserialize;
use tokio_util::sync::CancellationToken;
use utoipa::IntoParams;

use crate::calling::By;
use crate::errors::{Answer, invalid};
use crate::events::{EVENT_STREAM, LAST_EVENT_ID};
use crate::extract::{OfSandbox, QueryOf};
use crate::serve::Connection;

/// What to watch.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct WatchQuery {
    /// Absolute path of a directory or a file in the guest.
    path: String,
    /// Whether what lies in directories below is told of too.
    #[serde(default)]
    #[param(required = false)]
    recursive: bool,
    /// Guest user by name, whose permissions count; `user` when absent.
    user: Option<String>,
}

/// Tells of changes of files as server-sent events, each named by its `kind`, from the answer's head on. An event's id is
/// the place behind it: whoever comes back with it as `Last-Event-ID`, in the same call, goes on there, as long as the
/// watch is kept (`watch_linger_ms` without a reader, `watch_events_max` changes). Else the first event is `missed`, and
/// so it is whenever more happened than could be told: whoever must know then looks at all of it. A watch ends with its
/// machine, and is not carried into a copy.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/files/watch", operation_id = "watch_files", tag = "files",
    params(OfSandbox, WatchQuery, ("Last-Event-ID" = Option<String>, Header, description = "The last id that was seen.")), responses(
    (status = 200, description = "Events; the data of each is a FileEvent, but of `missed`.", content((String = "text/event-stream"))),
    (status = "default", description = "An error.", body = ErrorBody)))]
pub(crate) async fn watch(
    State(platform): State<Platform>,
    By(caller): By,
    of: OfSandbox,
    QueryOf(query): QueryOf<WatchQuery>,
    connection: Option<Extension<Connection>>,
    request: Request,
) -> Answer<Response> {
    let WatchQuery { path, recursive, user } = query;
    let last = request.headers().get(LAST_EVENT_ID).map(|id| place_of(id.to_str().unwrap_or_default())).transpose()?;
    let watcher = platform.watch_files(&caller, &of.id, &FileAt { path, user }, recursive, last).await?;
    let shutdown = connection.map_or_else(CancellationToken::new, |Extension(connection)| connection.shutdown);
    let reader = Reader { watcher, shutdown, begun: false };
    let mut response = Body::from_stream(futures_util::stream::unfold(reader, Reader::next)).into_response();
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(EVENT_STREAM));
    Ok(response)
}

fn place_of(id: &str) -> Result<WatchPlace, Error> {
    let wrong =
        || invalid("the Last-Event-ID header holds no id of this stream").remedy("give back the last id as it came");
    let (watch, next) = id.split_once('-').ok_or_else(wrong)?;
    Ok(WatchPlace { watch: watch.to_owned(), next: next.parse().map_err(|_| wrong())? })
}

struct Reader {
    watcher: FileWatcher,
    shutdown: CancellationToken,
    begun: bool,
}

impl Reader {
    async fn next(mut self) -> Option<(Result<Bytes, Infallible>, Reader)> {
        if !std::mem::replace(&mut self.begun, true) {
            // With the place, so that whoever is cut off before anything happens comes back to it.
            let WatchPlace { watch, next } = self.watcher.place();
            return Some((Ok(format!("id: {watch}-{next}\n: watching\n\n").into()), self));
        }
        let next = tokio::select! {
            () = self.shutdown.cancelled() => return None,
            told = self.watcher.next() => Some(told),
            () = tokio::time::sleep(Duration::from_millis(EVENTS_HEARTBEAT_MS)) => None,
        };
        let text = match next {
            None => ":\n\n".to_owned(),
            Some(told) => {
                let told = told.map_err(|e| tracing::debug!("a watch of files ends: {e}")).ok()??;
                let WatchPlace { watch, .. } = self.watcher.place();
                told.into_iter().map(|(next, told)| message(&watch, next, &told)).collect()
            }
        };
        Some((Ok(text.into()), self))
    }
}

/// JSON has no line breaks: nothing in a name ends a message early.
fn message(watch: &str, next: u64, told: &WatchTold) -> String {
    match told {
        WatchTold::Missed => format!("id: {watch}-{next}\nevent: missed\ndata: {{}}\n\n"),
        WatchTold::Event(event) => {
            let data = serde_json::to_string(event).unwrap_or_default();
            format!("id: {watch}-{next}\nevent: {}\ndata: {data}\n\n", event.kind.as_str())
        }
    }
}

#[cfg(test)]
mod tests {
    use remuda_types::wire::{FileEvent, FileEventKind};

    use super::*;

    #[test]
    fn a_name_with_line_breaks_stays_one_message_and_an_id_is_a_place() {
        let path = "/a\n\nid: x-9\nevent: gone\n".to_owned();
        let event = FileEvent { kind: FileEventKind::Moved, path: path.clone(), from: Some(path), directory: false };
        let text = message("ab", 7, &WatchTold::Event(event));
        assert_eq!(text.lines().count(), 4, "{text}");
        assert_eq!(place_of("ab-7").unwrap(), WatchPlace { watch: "ab".into(), next: 7 });
        for wrong in ["", "7", "ab-", "ab-x"] {
            assert!(place_of(wrong).is_err(), "{wrong}");
        }
    }
}
