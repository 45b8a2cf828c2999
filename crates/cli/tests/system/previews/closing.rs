//! What is open through a preview when it is closed: answers end, sockets are told, and nobody comes in again.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;

use remuda_client::wire::{MadePreview, RenewPreview};
use remuda_types::SandboxId;
use tungstenite::client::IntoClientRequest as _;
use tungstenite::{Message, WebSocket};

use super::world::{self, App, PORT, app, connect, get, of_port};
use crate::api::Api;

/// A stream and a socket that are open through a preview; the stream is fed by a quiet application and by a talking one.
struct Open {
    streams: Vec<BufReader<TcpStream>>,
    socket: WebSocket<TcpStream>,
}

impl Open {
    fn through(api: &Api, made: &MadePreview) -> Open {
        let host = world::host(made);
        let streams = ["/stream", "/quiet"].map(|path| {
            let mut stream = connect(api);
            write!(stream, "GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n").unwrap();
            let mut stream = BufReader::new(stream);
            let mut line = String::new();
            while !line.starts_with("data:") {
                line.clear();
                assert!(stream.read_line(&mut line).unwrap() > 0, "it ended before it began");
            }
            stream
        });
        let request = format!("ws://{host}/").into_client_request().unwrap();
        let (mut socket, _) = tungstenite::client(request, connect(api)).unwrap();
        socket.send(Message::Text("hello".into())).unwrap();
        assert_eq!(socket.read().unwrap(), Message::Text("hello".into()));
        Open { streams: streams.into(), socket }
    }

    /// All of it ends; the answers without their proper end, so that nobody takes them for whole.
    fn ends(mut self) {
        for stream in &mut self.streams {
            let mut rest = Vec::new();
            // Cut or reset: either is an end.
            let _ = stream.read_to_end(&mut rest);
            assert!(!rest.ends_with(b"0\r\n\r\n"), "{}", String::from_utf8_lossy(&rest));
        }
        match self.socket.read() {
            Ok(Message::Close(Some(frame))) => assert_eq!(u16::from(frame.code), 1008, "{frame:?}"),
            other => panic!("{other:?}"),
        }
    }

    /// All of it goes on.
    fn goes_on(&mut self) {
        let mut line = String::new();
        self.streams[0].read_line(&mut line).unwrap();
        assert!(!line.is_empty());
        self.socket.send(Message::Text("still".into())).unwrap();
        assert_eq!(self.socket.read().unwrap(), Message::Text("still".into()));
    }
}

async fn made(api: &Api, id: &SandboxId) -> MadePreview {
    api.client.create_preview(id, &of_port(PORT)).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_open_is_cut_off_when_a_preview_is_revoked_rotated_or_over() {
    let api = Api::shared();
    let App { id, .. } = app(&api, PORT).await;
    let (revoked, rotated) = (made(&api, &id).await, made(&api, &id).await);
    let (through_revoked, mut through_rotated) = (Open::through(&api, &revoked), Open::through(&api, &rotated));
    through_rotated.goes_on();
    api.client.revoke_preview(&id, &revoked.preview.id).await.unwrap();
    through_revoked.ends();
    through_rotated.goes_on();
    api.client.rotate_preview(&id, &rotated.preview.id).await.unwrap();
    through_rotated.ends();

    // A renewal moves the end of what is open, too: here to the near.
    let short = made(&api, &id).await;
    let through_short = Open::through(&api, &short);
    let soon = RenewPreview { ttl_ms: Some(1_000) };
    api.client.renew_preview(&id, &short.preview.id, &soon).await.unwrap();
    through_short.ends();
    let gone = get(&api, &world::host(&short), "/").refused(410, "preview_gone");
    assert_eq!(gone["details"]["reason"], "expired");
    let renewed =
        api.client.renew_preview(&id, &short.preview.id, &RenewPreview { ttl_ms: Some(60_000) }).await.unwrap();
    assert_eq!(renewed.token, short.token, "a renewal keeps the credential");
    Open::through(&api, &short).goes_on();
    api.remove(&id).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_open_is_cut_off_when_the_sandbox_ends_and_not_when_it_is_paused() {
    let api = Api::shared();
    let App { id, .. } = app(&api, PORT).await;
    let preview = made(&api, &id).await;
    let mut open = Open::through(&api, &preview);
    api.client.pause(&id).await.unwrap();
    api.client.resume(&id).await.unwrap();
    open.goes_on();
    api.client.stop(&id).await.unwrap();
    open.ends();
    let gone = get(&api, &world::host(&preview), "/").refused(410, "preview_gone");
    assert_eq!(gone["details"]["reason"], "ended");
    // The generation that goes on with its files has nothing to do with it.
    let next = api.client.start(&id, &Default::default()).await.unwrap();
    get(&api, &world::host(&preview), "/").refused(410, "preview_gone");
    api.remove(&next.id).await;

    let App { id, .. } = app(&api, PORT).await;
    let preview = made(&api, &id).await;
    let open = Open::through(&api, &preview);
    api.remove(&id).await;
    open.ends();
    get(&api, &world::host(&preview), "/").refused(410, "preview_gone");
}
