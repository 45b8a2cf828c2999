//! Requests that no proper client sends: two lengths, folded and huge headers, hosts that are none, requests within
//! requests. Whatever is refused is refused before the application hears of it, and nothing is taken for a request that was
//! not sent as one.

use super::world::{self, App, PORT, app, ask, exchange, get_with, of_port};
use crate::api::Api;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_smuggled_into_an_application() {
    let api = Api::shared();
    let App { id, .. } = app(&api, PORT).await;
    let made = api.client.create_preview(&id, &of_port(PORT)).await.unwrap();
    let host = world::host(&made);
    let answers = |request: String| {
        let text = String::from_utf8_lossy(&exchange(&api, request.as_bytes())).into_owned();
        text.matches("HTTP/1.1 ")
            .zip(text.split("HTTP/1.1 ").skip(1))
            .map(|(_, rest)| rest[..3].to_owned())
            .collect::<Vec<_>>()
    };
    let status = |request: String| answers(request).first().cloned().unwrap_or_default();

    // Both lengths: what comes after the last chunk is the next request, for our own server, and no part of a body.
    let both = |first: &str, second: &str| {
        format!(
            "POST /a HTTP/1.1\r\nHost: {host}\r\n{first}\r\n{second}\r\n\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: www.localhost\r\nConnection: close\r\n\r\n"
        )
    };
    for request in [
        both("Content-Length: 90", "Transfer-Encoding: chunked"),
        both("Transfer-Encoding: chunked", "Content-Length: 90"),
    ] {
        let seen = answers(request);
        // Refused, or taken by its chunks; then the connection may end.
        assert!(seen == ["400"] || seen == ["200"] || seen == ["200", "404"], "{seen:?}");
    }
    for (what, headers) in [
        ("two lengths", "Content-Length: 1\r\nContent-Length: 2\r\n".to_owned()),
        ("a length that is none", "Content-Length: +1\r\n".to_owned()),
        ("an encoding that does not end in chunks", "Transfer-Encoding: chunked, identity\r\n".to_owned()),
        ("a folded header", "X-A: 1\r\n folded: 2\r\n".to_owned()),
        ("a space before a colon", "X-A : 1\r\n".to_owned()),
        ("a bare line end", "X-A: 1\rX-B: 2\r\n".to_owned()),
        ("a zero", "X-A: 1\0\r\n".to_owned()),
    ] {
        let request = format!("POST / HTTP/1.1\r\nHost: {host}\r\n{headers}Connection: close\r\n\r\nxx");
        let told = ask(&api, &request).refused(400, "invalid_request");
        assert!(told["cause"].is_string(), "{what}: {told}");
    }
    let many: String = (0..200).map(|n| format!("X-{n}: 1\r\n")).collect();
    assert_eq!(status(format!("GET / HTTP/1.1\r\nHost: {host}\r\n{many}\r\n")), "431");
    let huge = "x".repeat(80 << 10);
    assert_eq!(status(format!("GET / HTTP/1.1\r\nHost: {host}\r\nX-A: {huge}\r\n\r\n")), "431");
    for nonsense in ["nonsense\r\n\r\n", "GET / HTTP/9.9\r\n\r\n", "GET http://[ HTTP/1.1\r\n\r\n", "\0\r\n\r\n"] {
        ask(&api, nonsense).refused(400, "invalid_request");
    }

    // Hosts.
    for wrong in
        ["Host: a b\r\n".to_owned(), format!("Host: {host}\r\nHost: {host}\r\n"), format!("Host: user@{host}\r\n")]
    {
        assert_eq!(status(format!("GET / HTTP/1.1\r\n{wrong}Connection: close\r\n\r\n")), "400", "{wrong}");
    }
    let absolute = |target: &str, host: &str| {
        ask(&api, &format!("GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"))
    };
    let seen = absolute(&format!("http://{host}/whole"), &host).json();
    assert_eq!((&seen["url"], &seen["headers"]["host"]), (&"/whole".into(), &format!("localhost:{PORT}").into()));
    assert_eq!(absolute(&format!("http://{host}/"), "127.0.0.1").status, 400, "two names are none");
    assert_eq!(absolute("http://example.com/", &host).status, 400);
    let tunnel = status(format!("CONNECT {host} HTTP/1.1\r\nHost: {host}\r\n\r\n"));
    assert!(tunnel == "400" || tunnel == "405", "{tunnel:?}");

    // A name that somebody else leads here opens nothing, nor does a preview's name open the API.
    let key = api.server.key().unwrap_or_default();
    assert_eq!(get_with(&api, "rebound.example.com", "/v1/sandboxes", "").status, 401);
    let through = get_with(&api, &host, "/v1/sandboxes", &format!("Authorization: Bearer {key}\r\n"));
    assert_eq!(through.json()["url"], "/v1/sandboxes", "it is the application's path");

    // On a connection that is kept, each request is judged by itself.
    let two = format!(
        "GET /one HTTP/1.1\r\nHost: {host}\r\n\r\nGET /two HTTP/1.1\r\nHost: {}.localhost\r\nConnection: close\r\n\r\n",
        "0".repeat(48)
    );
    assert_eq!(answers(two), ["200", "404"]);
    api.remove(&id).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frame_that_is_too_long_closes_its_socket() {
    use std::io::{Read as _, Write as _};
    let api = Api::shared();
    let App { id, .. } = app(&api, PORT).await;
    let made = api.client.create_preview(&id, &of_port(PORT)).await.unwrap();
    let request =
        tungstenite::client::IntoClientRequest::into_client_request(format!("ws://{}/", world::host(&made))).unwrap();
    let (socket, _) = tungstenite::client(request, world::connect(&api)).unwrap();
    let mut stream = socket.into_inner();
    let mut head = vec![0x82, 0xff];
    head.extend((17_u64 << 20).to_be_bytes());
    head.extend([0; 4]);
    stream.write_all(&head).unwrap();
    let mut told = Vec::new();
    let _ = stream.read_to_end(&mut told);
    assert_eq!(told.get(..4), Some(&[0x88, told[1], 0x03, 0xf1][..]), "closed with 1009: {told:?}");
    api.remove(&id).await;
}
