//! Follows an execution as server-sent events in this dialect's form. A number is the place behind a piece of output: whoever
//! comes back with the last one goes on there. Reads the next piece when its reader has taken the last.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::HeaderValue;
use remuda_control::{OutputFollower, OutputQuery};
use remuda_types::wire::OutputStream;
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::executions::record;
use super::files::raw;

/// Longest piece of output in one event, in bytes: whatever is in it, the line that carries it is shorter than what clients
/// take.
const PIECE_BYTES_MAX: usize = 8_192;
/// How long a stream goes on before it ends with where the execution stands; its reader comes back then.
const STREAM_MAX: Duration = Duration::from_secs(30);
/// How long it is silent at most.
const HEARTBEAT: Duration = Duration::from_secs(1);

/// The answer that follows `source` from a place on.
pub(super) fn follow(source: OutputFollower, cursor: u64, shutdown: CancellationToken) -> Response {
    let reader = Reader { source, offset: cursor, shutdown, until: Instant::now() + STREAM_MAX, over: false };
    let events = futures_util::stream::unfold(reader, Reader::next);
    raw(Body::from_stream(events), HeaderValue::from_static("text/event-stream"))
}

struct Reader {
    source: OutputFollower,
    offset: u64,
    shutdown: CancellationToken,
    until: Instant,
    over: bool,
}

impl Reader {
    async fn next(mut self) -> Option<(Result<Bytes, Infallible>, Reader)> {
        if self.over {
            return None;
        }
        let text = self.told().await;
        Some((Ok(text.into()), self))
    }

    async fn told(&mut self) -> String {
        let query = OutputQuery {
            offset: self.offset,
            since_ms: None,
            stream: None,
            max_bytes: PIECE_BYTES_MAX,
            wait: HEARTBEAT,
        };
        let slice = tokio::select! {
            () = self.shutdown.cancelled() => return self.end(),
            slice = self.source.read(query) => slice,
        };
        let Ok(slice) = slice else { return self.end() };
        let mut text = String::new();
        let pieces = whole_characters(&slice.records, slice.complete);
        for (end, stream, piece) in pieces {
            self.offset = end;
            let kind = if stream == OutputStream::Stdout { "stdout" } else { "stderr" };
            let data = json!({ "type": kind, "data": piece, "sequence": end });
            text.push_str(&event(Some(end), kind, &data));
        }
        if slice.records.is_empty() {
            // What is no longer kept is passed over; the record says that something is missing.
            self.offset = slice.next_offset;
        }
        if (slice.complete && self.offset >= slice.next_offset) || Instant::now() >= self.until {
            text.push_str(&self.end());
        }
        if text.is_empty() {
            text.push_str(":\n\n");
        }
        text
    }

    /// The last event: where the execution stands.
    fn end(&mut self) -> String {
        self.over = true;
        event(None, "status", &record(&self.source.show()))
    }
}

/// Pieces with the place behind each. A character that is cut off at the end is left for the next time, unless nothing more
/// comes or nothing else is there; what is no UTF-8 is replaced.
fn whole_characters(records: &[(u64, OutputStream, Bytes)], complete: bool) -> Vec<(u64, OutputStream, String)> {
    let mut pieces = Vec::new();
    for (number, (offset, stream, bytes)) in records.iter().enumerate() {
        let last = number + 1 == records.len();
        let cut = if last && !complete { cut_off(bytes) } else { 0 };
        let kept = if cut == bytes.len() && pieces.is_empty() { bytes.len() } else { bytes.len() - cut };
        let mut from = 0;
        while from < kept {
            let mut to = kept.min(from + PIECE_BYTES_MAX);
            if to < kept {
                to -= cut_off(&bytes[from..to]).min(to - from - 1);
            }
            let text = String::from_utf8_lossy(&bytes[from..to]).into_owned();
            pieces.push((offset + to as u64, *stream, text));
            from = to;
        }
    }
    pieces
}

/// Bytes at the end that are the beginning of a character.
fn cut_off(bytes: &[u8]) -> usize {
    let tail = &bytes[bytes.len().saturating_sub(3)..];
    let begins = tail.iter().rposition(|byte| byte & 0b1100_0000 == 0b1100_0000);
    let Some(at) = begins else { return 0 };
    match std::str::from_utf8(&tail[at..]) {
        Err(e) if e.error_len().is_none() && e.valid_up_to() == 0 => tail.len() - at,
        _ => 0,
    }
}

/// JSON has no line breaks: nothing in the data ends an event early.
fn event(id: Option<u64>, kind: &str, data: &Value) -> String {
    let id = id.map(|id| format!("id: {id}\n")).unwrap_or_default();
    format!("{id}event: {kind}\ndata: {data}\n\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(parts: &[(OutputStream, &'static [u8])], complete: bool) -> Vec<(u64, String)> {
        let mut offset = 0;
        let records: Vec<_> = parts
            .iter()
            .map(|(stream, bytes)| {
                offset += bytes.len() as u64;
                (offset - bytes.len() as u64, *stream, Bytes::from_static(bytes))
            })
            .collect();
        whole_characters(&records, complete).into_iter().map(|(end, _, text)| (end, text)).collect()
    }

    #[test]
    fn a_character_that_is_cut_off_waits_for_its_rest() {
        use OutputStream::{Stderr, Stdout};
        assert_eq!(pieces(&[(Stdout, b"a\xe2\x98")], false), [(1, "a".to_owned())]);
        assert_eq!(pieces(&[(Stdout, b"a\xe2\x98\x83")], false), [(4, "a\u{2603}".to_owned())]);
        assert_eq!(pieces(&[(Stdout, b"a\xe2\x98")], true), [(3, "a\u{fffd}".to_owned())]);
        // Nothing would ever come if a lone half waited for what its program never writes.
        assert_eq!(pieces(&[(Stdout, b"\xe2\x98")], false), [(2, "\u{fffd}".to_owned())]);
        assert_eq!(pieces(&[(Stderr, b"b\xff"), (Stdout, b"c")], false), [(2, "b\u{fffd}".into()), (3, "c".into())]);
    }

    #[test]
    fn an_event_is_a_line_whatever_is_in_it() {
        let zeros: &'static [u8] = &[0; 40_000];
        let all = pieces(&[(OutputStream::Stdout, zeros)], false);
        assert_eq!(all.last().unwrap().0, 40_000);
        for (end, text) in all {
            let told = event(Some(end), "stdout", &json!({ "type": "stdout", "data": text, "sequence": end }));
            assert!(told.lines().all(|line| line.len() < 65_536) && told.lines().count() == 4, "{}", told.len());
        }
    }
}
