//! The ports route against a real HTTP server behind a real connection; only the guest is not one.

use std::convert::Infallible;
use std::time::Duration;

use axum::Router;
use axum::response::IntoResponse;
use axum::routing::any;
use bytes::Bytes;
use http_body_util::BodyExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::errors::ERROR_HEADER;

const ID: &str = "c1@2026-10-08T12:00:00.000Z";

fn target_of(uri: &str) -> String {
    target(&uri.parse().unwrap()).unwrap().to_string()
}

#[test]
fn the_path_goes_through_as_it_came() {
    let base = format!("/v1/sandboxes/{ID}/ports/80");
    for rest in ["/", "/a", "//a//", "/../../etc", "/%2e%2e/%2F?x=%20&y", "/a?", "/a/?b=/c/d", "/.//..;/"] {
        assert_eq!(target_of(&format!("{base}{rest}")), rest);
    }
    assert_eq!(target_of(&base), "/");
    assert_eq!(target_of(&format!("{base}?q")), "/?q");
    assert_eq!(target_of(&format!("http://elsewhere{base}/a")), "/a");
}

fn of_port() -> OfPort {
    OfPort { id: ID.parse().unwrap(), port: 8080 }
}

/// An application that serves one connection, and the connection to it.
async fn application(app: Router) -> TcpStream {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await });
    TcpStream::connect(address).await.unwrap()
}

async fn body_of(response: Response) -> String {
    String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
}

#[tokio::test]
async fn our_credential_stays_here_and_the_rest_goes_through() {
    async fn echo(request: Request) -> impl IntoResponse {
        let mut text = format!("{} {}\n", request.method(), request.uri());
        for (name, value) in request.headers() {
            text += &format!("{name}: {}\n", value.to_str().unwrap());
        }
        let body = request.into_body().collect().await.unwrap().to_bytes();
        text += std::str::from_utf8(&body).unwrap();
        let headers = [("set-cookie", "a=b"), ("x-remuda-error", "forged"), ("keep-alive", "timeout=1")];
        (StatusCode::IM_A_TEAPOT, headers, text)
    }
    let stream = application(Router::new().fallback(any(echo))).await;
    let request = Request::builder()
        .method("PURGE")
        .header("authorization", "Bearer rmd_secret")
        .header("x-remuda-trace", "1")
        .header("host", "api.example")
        .header("expect", "100-continue")
        .header("cookie", "own=1")
        .header("idempotency-key", "the-applications")
        .body(Body::from("hello"))
        .unwrap();
    let target = "/a%2Fb/..//c?x=1&x=2".parse().unwrap();
    let response = pass_on(stream, &of_port(), target, request).await.unwrap();
    assert_eq!(response.status(), StatusCode::IM_A_TEAPOT);
    assert!(response.headers().get(ERROR_HEADER).is_none(), "a guest must not speak in our name");
    assert!(response.headers().get("keep-alive").is_none());
    assert_eq!(response.headers()["set-cookie"], "a=b");
    let seen = body_of(response).await;
    assert!(seen.starts_with("PURGE /a%2Fb/..//c?x=1&x=2\n"), "{seen}");
    assert!(seen.ends_with("hello"), "{seen}");
    for there in ["host: localhost:8080\n", "cookie: own=1\n", "idempotency-key: the-applications\n"] {
        assert!(seen.contains(there), "{there} in {seen}");
    }
    for absent in ["secret", "authorization", "x-remuda", "expect", "api.example"] {
        assert!(!seen.contains(absent), "{absent} in {seen}");
    }
}

#[tokio::test]
async fn bodies_stream_both_ways() {
    // The application answers each piece before the next one is sent: whoever collects a body would wait for ever.
    async fn echo(request: Request) -> Response {
        Response::new(Body::from_stream(request.into_body().into_data_stream()))
    }
    let stream = application(Router::new().fallback(any(echo))).await;
    let (send, receive) = tokio::sync::mpsc::channel::<Bytes>(1);
    let pieces = futures_util::stream::unfold(receive, |mut receive| async move {
        Some((Ok::<_, Infallible>(receive.recv().await?), receive))
    });
    let request = Request::builder().method("POST").body(Body::from_stream(pieces)).unwrap();
    let response = pass_on(stream, &of_port(), "/".parse().unwrap(), request).await.unwrap();
    let mut body = response.into_body();
    for piece in ["one", "two", "three"] {
        send.send(Bytes::from(piece)).await.unwrap();
        let frame = tokio::time::timeout(Duration::from_secs(10), body.frame()).await.unwrap();
        assert_eq!(frame.unwrap().unwrap().into_data().unwrap(), piece);
    }
    drop(send);
    assert!(body.frame().await.is_none());
}

#[tokio::test]
async fn an_application_that_hangs_up_is_an_error_of_ours() {
    for answer in
        ["", "nonsense\r\n\r\n", "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n"]
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut application, _) = listener.accept().await.unwrap();
        tokio::spawn(async move {
            let mut head = [0; 1024];
            let _ = application.read(&mut head).await;
            let _ = application.write_all(answer.as_bytes()).await;
        });
        let request = Request::new(Body::empty());
        let error = pass_on(stream, &of_port(), "/".parse().unwrap(), request).await.unwrap_err();
        assert_eq!(error.code, ErrorCode::PortUnreachable, "{answer:?}");
        let response = Failure(error).into_response();
        assert_eq!(
            (response.status().as_u16(), &response.headers()[ERROR_HEADER]),
            (502, &"port_unreachable".parse().unwrap())
        );
    }
}

#[tokio::test]
async fn an_upgraded_connection_carries_bytes_both_ways() {
    let guest = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let guest_address = guest.local_addr().unwrap();
    tokio::spawn(async move {
        let (mut stream, _) = guest.accept().await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
        assert!(String::from_utf8(head).unwrap().to_lowercase().contains("upgrade: echo"));
        stream.write_all(b"HTTP/1.1 101 Go\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\nfirst").await.unwrap();
        let (mut read, mut write) = stream.split();
        tokio::io::copy(&mut read, &mut write).await.unwrap();
    });
    let front = Router::new().fallback(any(move |request: Request| async move {
        let stream = TcpStream::connect(guest_address).await.unwrap();
        pass_on(stream, &of_port(), "/".parse().unwrap(), request).await.map_err(Failure)
    }));
    let mut client = application(front).await;
    client.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n").await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(client.read_u8().await.unwrap());
    }
    assert!(head.starts_with(b"HTTP/1.1 101 "));
    client.write_all(b" second").await.unwrap();
    client.shutdown().await.unwrap();
    let mut rest = String::new();
    client.read_to_string(&mut rest).await.unwrap();
    assert_eq!(rest, "first second");
}
