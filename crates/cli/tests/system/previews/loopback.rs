//! Applications that listen on 127.0.0.1 alone: reached like others, also in branches, and closed like others.

use std::io::{Read as _, Write as _};

use remuda_client::Method;
use remuda_client::wire::{Branch, ProbeResult};
use serde_json::json;
use tungstenite::Message;
use tungstenite::client::IntoClientRequest as _;

use super::world::{self, App, PORT, app_on, ask, connect, get, of_port};
use crate::api::{Api, fork_of};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listener_on_loopback_alone_is_reached_like_any_other() {
    let api = Api::shared();
    let App { id } = app_on(&api, PORT, "127.0.0.1").await;
    let made = api.client.create_preview(&id, &of_port(PORT)).await.unwrap();
    let host = world::host(&made);
    let pid = get(&api, &host, "/").json()["pid"].clone();
    let probe = api.client.probe_preview(&id, &made.preview.id).await.unwrap();
    assert_eq!((probe.result, probe.status), (ProbeResult::Answers, Some(200)), "{probe:?}");
    let body = "x".repeat(300_000);
    let head =
        format!("POST /upload HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", body.len());
    assert_eq!(ask(&api, &(head + &body)).json()["bytes"], json!(body.len()));
    let request = format!("ws://{host}/").into_client_request().unwrap();
    let (mut socket, _) = tungstenite::client(request, connect(&api)).unwrap();
    socket.send(Message::Text("hello".into())).unwrap();
    assert_eq!(socket.read().unwrap(), Message::Text("hello".into()));
    let answer = api.client.port_request(&id, PORT, Method::GET, "/", Default::default(), "").await.unwrap();
    assert!(!answer.collect(1 << 20).await.unwrap().is_empty(), "by the port's own route too");

    // Many at once, each whole.
    let mut streams: Vec<_> = (0..40).map(|_| connect(&api)).collect();
    for stream in &mut streams {
        write!(stream, "GET /range HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").unwrap();
    }
    for mut stream in streams {
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("0123456789"), "{answer}");
    }

    // Revoked in the middle of it.
    api.client.revoke_preview(&id, &made.preview.id).await.unwrap();
    assert!(matches!(socket.read(), Ok(Message::Close(Some(frame))) if u16::from(frame.code) == 1008));
    let source = api.client.create_preview(&id, &of_port(PORT)).await.unwrap();
    assert_eq!(get(&api, &world::host(&source), "/").json()["pid"], pid);

    let forked = api.client.fork(&id, &fork_of(2)).await.unwrap();
    for branch in forked.branches {
        let Branch::Sandbox(branch) = branch else { panic!("{branch:?}") };
        let own = api.client.create_preview(&branch.id, &of_port(PORT)).await.unwrap();
        assert_eq!(get(&api, &world::host(&own), "/").json()["pid"], pid, "the same process, at once");
        api.remove(&branch.id).await;
    }
    assert_eq!(get(&api, &world::host(&source), "/").json()["pid"], pid);
    let nobody = api.client.create_preview(&id, &of_port(9)).await.unwrap();
    let refused = get(&api, &world::host(&nobody), "/").refused(502, "port_unreachable");
    assert!(refused["cause"].as_str().unwrap().contains("127.0.0.1:9"), "{refused}");
    api.remove(&id).await;
}
