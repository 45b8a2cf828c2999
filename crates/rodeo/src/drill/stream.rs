//! A live stream of events, read by hand from the server's socket, so that it can be broken off at any byte. Keeps only
//! events that came whole, as every client of such streams must.

use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;

/// How long a stream may go without a byte: the server sends one every 15 seconds.
const SILENCE_MAX: Duration = Duration::from_secs(40);
/// Most bytes of one stream.
const STREAM_BYTES_MAX: usize = 8 << 20;

/// What of a stream came.
#[derive(Debug, Default)]
pub(super) struct Streamed {
    /// Text of the output in whole events.
    pub output: String,
    /// The id of the last whole event.
    pub last_id: Option<String>,
    /// Whether the server ended it.
    pub ended: bool,
}

/// Reads the stream at `path` from `last_id` on, and breaks the connection off once `cut` bytes of its body came.
pub(super) async fn read(
    socket: &Path,
    path: &str,
    last_id: Option<&str>,
    cut: Option<usize>,
) -> std::io::Result<Streamed> {
    let mut stream = UnixStream::connect(socket).await?;
    let last = last_id.map(|id| format!("Last-Event-ID: {id}\r\n")).unwrap_or_default();
    // HTTP/1.0: the body comes as it is, without chunks.
    let request = format!("GET {path} HTTP/1.0\r\nHost: localhost\r\nAccept: text/event-stream\r\n{last}\r\n");
    stream.write_all(request.as_bytes()).await?;
    let (mut all, mut body) = (Vec::new(), None);
    let mut ended = false;
    while all.len() < STREAM_BYTES_MAX {
        let read = tokio::time::timeout(SILENCE_MAX, stream.read_buf(&mut all)).await;
        if read.map_err(|_| std::io::Error::other("the stream went silent"))?? == 0 {
            ended = true;
            break;
        }
        body = body.or_else(|| all.windows(4).position(|four| four == b"\r\n\r\n").map(|at| at + 4));
        if let (Some(begin), Some(cut)) = (body, cut)
            && all.len() - begin >= cut
        {
            all.truncate(begin + cut);
            break;
        }
    }
    let begin = body.unwrap_or(all.len());
    let mut streamed = parse(all.get(begin..).unwrap_or_default());
    streamed.ended = ended;
    Ok(streamed)
}

/// The whole events of a body; what follows the last blank line is half of one.
fn parse(body: &[u8]) -> Streamed {
    let mut streamed = Streamed::default();
    let text = String::from_utf8_lossy(body);
    let whole = text.rfind("\n\n").map_or("", |end| text.get(..end).unwrap_or_default());
    for event in whole.split("\n\n") {
        let field = |name: &str| {
            let lines = event.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            lines.map(|value| value.strip_prefix(' ').unwrap_or(value)).collect::<Vec<_>>().join("\n")
        };
        let (id, kind) = (field("id"), field("event"));
        if !id.is_empty() {
            streamed.last_id = Some(id);
        }
        if kind == "output"
            && let Ok(data) = serde_json::from_str::<Value>(&field("data"))
        {
            streamed.output.push_str(data["text"].as_str().unwrap_or_default());
        }
    }
    streamed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_an_event_is_none() {
        let body = "id: 3\nevent: output\ndata: {\"text\":\"abc\"}\n\n: here\n\nid: 6\nevent: output\ndata: {\"text\":\"def\"}\n\n";
        for cut in 0..=body.len() {
            let streamed = parse(&body.as_bytes()[..cut]);
            let expected = match cut {
                _ if cut == body.len() => ("abcdef", Some("6")),
                _ if cut >= 42 => ("abc", Some("3")),
                _ => ("", None),
            };
            assert_eq!((streamed.output.as_str(), streamed.last_id.as_deref()), expected, "{cut}");
        }
    }
}
