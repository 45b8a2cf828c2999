//! The client against a real HTTP server in this process: what it sends, and how it reads what comes back.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http_body_util::{BodyExt, Full, StreamBody, combinators::BoxBody};
use hyper::body::{Frame, Incoming as Body};
use hyper::{Request, Response, service::service_fn};
use hyper_util::rt::TokioIo;
use remuda_client::{Client, ClientError, HeaderMap, Method, OutputQuery, SandboxFilter, WriteFile, wire};
use remuda_types::{ErrorCode, SandboxId};
use tokio::net::{TcpListener, UnixListener};

const KEY: &str = "rmd_0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
const ID: &str = "c1@2026-10-08T12:00:00.000Z";

type Answer = Response<BoxBody<Bytes, std::io::Error>>;

/// One request as the server saw it.
#[derive(Debug, Clone)]
struct Seen {
    method: String,
    target: String,
    authorization: Option<String>,
    body: Bytes,
}

/// A server that gives every request the answer that `answer` makes.
struct Server {
    seen: Arc<Mutex<Vec<Seen>>>,
    connections: Arc<Mutex<usize>>,
    address: String,
}

impl Server {
    async fn tcp(answer: impl Fn(&Seen) -> Answer + Send + Sync + 'static) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = Server::new(format!("http://{}", listener.local_addr().unwrap()));
        let (seen, connections, answer) = (server.seen.clone(), server.connections.clone(), Arc::new(answer));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                *connections.lock().unwrap() += 1;
                serve(TokioIo::new(stream), seen.clone(), answer.clone());
            }
        });
        server
    }

    fn new(address: String) -> Server {
        Server { seen: Arc::default(), connections: Arc::default(), address }
    }

    fn client(&self) -> Client {
        Client::tcp(&self.address, KEY).unwrap()
    }

    fn only(&self) -> Seen {
        let seen = self.seen.lock().unwrap();
        assert_eq!(seen.len(), 1, "{seen:?}");
        seen[0].clone()
    }
}

fn serve<I, F>(io: I, seen: Arc<Mutex<Vec<Seen>>>, answer: Arc<F>)
where
    I: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
    F: Fn(&Seen) -> Answer + Send + Sync + 'static,
{
    tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(
        io,
        service_fn(move |request: Request<Body>| {
            let (seen, answer) = (seen.clone(), answer.clone());
            async move {
                let (parts, body) = request.into_parts();
                let entry = Seen {
                    method: parts.method.to_string(),
                    target: parts.uri.to_string(),
                    authorization: parts.headers.get("authorization").map(|v| v.to_str().unwrap().to_owned()),
                    body: body.collect().await.unwrap().to_bytes(),
                };
                let response = answer(&entry);
                seen.lock().unwrap().push(entry);
                Ok::<_, Infallible>(response)
            }
        }),
    ));
}

fn answer(status: u16, body: impl Into<Bytes>) -> Answer {
    let body = Full::new(body.into()).map_err(|never| match never {}).boxed();
    Response::builder().status(status).body(body).unwrap()
}

fn with_header(mut response: Answer, name: &'static str, value: &'static str) -> Answer {
    response.headers_mut().insert(name, value.parse().unwrap());
    response
}

fn id() -> SandboxId {
    ID.parse().unwrap()
}

#[tokio::test]
async fn an_error_of_the_api_keeps_every_member_and_its_status() {
    let body = r#"{"error":{"code":"generation_gone","message":"c1 has ended","cause":"removed","remedy":"make another","details":{"reason":"rm"}}}"#;
    let server = Server::tcp(move |_| answer(410, body)).await;
    let error = server.client().sandbox(&id()).await.unwrap_err();
    let ClientError::Api { status, error } = error else { panic!("{error:?}") };
    assert_eq!((status, error.code), (410, ErrorCode::GenerationGone));
    assert_eq!(error.remedy.as_deref(), Some("make another"));
    assert_eq!(error.details["reason"], "rm");
}

#[tokio::test]
async fn what_no_remuda_server_would_say_is_a_protocol_error() {
    for (status, body) in [(502, "<html>Bad gateway"), (200, "{}"), (200, "welcome"), (404, r#"{"error":"no"}"#)] {
        let server = Server::tcp(move |_| answer(status, body)).await;
        let error = server.client().sandbox(&id()).await.unwrap_err();
        assert!(matches!(&error, ClientError::Protocol { status: s, .. } if *s == status), "{error:?}");
        assert!(error.to_string().contains("no Remuda server"), "{error}");
    }
}

#[tokio::test]
async fn a_server_that_is_not_there_was_not_reached() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let tcp = Client::tcp(&url, KEY).unwrap().remove_sandbox(&id()).await.unwrap_err();
    assert!(tcp.no_server() && !tcp.outcome_unknown(), "{tcp:?}");

    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("remuda.sock");
    let unix = Client::unix(&socket).unwrap().health().await.unwrap_err();
    assert!(unix.no_server(), "{unix:?}");
    assert!(unix.to_string().contains("remuda.sock"), "{unix}");
}

#[tokio::test]
async fn a_call_whose_answer_is_lost_is_sent_once_and_its_outcome_is_unknown() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let accepted = Arc::new(Mutex::new(0));
    let counter = accepted.clone();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            *counter.lock().unwrap() += 1;
            // Read the request's beginning, so that it was certainly sent, and hang up.
            tokio::io::AsyncReadExt::read(&mut stream, &mut [0; 64]).await.unwrap();
        }
    });
    let error = Client::tcp(&url, KEY).unwrap().create_sandbox(&wire::CreateSandbox::default()).await.unwrap_err();
    assert!(error.outcome_unknown(), "{error:?}");
    assert!(error.to_string().contains("may have acted"), "{error}");
    assert_eq!(*accepted.lock().unwrap(), 1);
}

#[tokio::test]
async fn the_key_is_sent_and_never_shown() {
    let server = Server::tcp(|_| answer(500, "no")).await;
    let client = server.client();
    let error = client.capabilities().await.unwrap_err();
    assert_eq!(server.only().authorization.unwrap(), format!("Bearer {KEY}"));
    for text in [format!("{client:?}"), format!("{client:#?}"), error.to_string(), format!("{error:?}")] {
        assert!(!text.contains(&KEY[4..20]), "{text}");
    }
    let bad_key = Client::tcp("http://127.0.0.1:1", "rmd_secret\n").unwrap_err();
    assert!(!format!("{bad_key} {bad_key:?}").contains("secret"));
    let in_url = Client::tcp("http://me:secret@127.0.0.1:1", KEY).unwrap_err();
    assert!(!format!("{in_url} {in_url:?}").contains("secret"));
    assert!(Client::tcp("https://127.0.0.1", KEY).unwrap_err().to_string().contains("no TLS"));
}

#[tokio::test]
async fn ids_names_and_paths_are_encoded() {
    let server = Server::tcp(|_| answer(500, "no")).await;
    let client = server.client();
    let _ = client.snapshot_info("a/b?c#d").await;
    let _ = client.list_files(&id(), "/päth/with space&more").await;
    let _ = client
        .write_file(
            &id(),
            "/a+b",
            &WriteFile { mode: Some(0o600), user: Some("root".into()), parents: true, ..WriteFile::default() },
            "x",
        )
        .await;
    let filter = SandboxFilter { include_ended: true, slot: None, labels: vec![("k".into(), "v=1&2".into())] };
    let _ = client.list_sandboxes(&filter).await;
    let targets: Vec<String> =
        server.seen.lock().unwrap().iter().map(|s| format!("{} {}", s.method, s.target)).collect();
    assert_eq!(
        targets,
        [
            "GET /v1/snapshots/a%2Fb%3Fc%23d".to_owned(),
            format!("GET /v1/sandboxes/{ID}/files/list?path=%2Fp%C3%A4th%2Fwith+space%26more"),
            format!("PUT /v1/sandboxes/{ID}/files?path=%2Fa%2Bb&mode=0600&user=root&parents=true"),
            "GET /v1/sandboxes?all=true&label=k%3Dv%3D1%262".to_owned(),
        ]
    );
    assert!(matches!(client.remove_snapshot("..").await, Err(ClientError::Input(_))));
    assert!(matches!(client.remove_snapshot("").await, Err(ClientError::Input(_))));
    assert_eq!(server.seen.lock().unwrap().len(), 4, "a refused name is not sent");
}

#[tokio::test]
async fn an_applications_answer_is_no_error_and_the_servers_own_is() {
    let own = r#"{"error":{"code":"port_unreachable","message":"nothing listens on 8080"}}"#;
    let server = Server::tcp(move |seen| {
        if seen.target.contains("/down") {
            with_header(answer(502, own), "x-remuda-error", "port_unreachable")
        } else if seen.target.contains("/moved") {
            with_header(answer(302, ""), "location", "http://127.0.0.1:1/elsewhere")
        } else {
            answer(409, own)
        }
    })
    .await;
    let client = server.client();
    let sandbox = id();
    let call = |path| client.port_request(&sandbox, 8080, Method::POST, path, HeaderMap::new(), "body");

    let conflict = call("/jobs?x=a%20b").await.unwrap();
    assert_eq!(conflict.status(), 409);
    assert_eq!(conflict.collect(1024).await.unwrap(), own);
    let seen = server.only();
    assert_eq!(seen.target, format!("/v1/sandboxes/{ID}/ports/8080/jobs?x=a%20b"));
    assert_eq!(seen.body, "body");

    assert_eq!(call("/moved").await.unwrap().status(), 302, "a redirect is the caller's to see");
    assert_eq!(call("/down").await.unwrap_err().code(), Some(ErrorCode::PortUnreachable));
    assert!(matches!(call("/../../files").await, Err(ClientError::Input(_))));
}

#[tokio::test]
async fn files_stream_both_ways() {
    const PIECES: usize = 64;
    let server = Server::tcp(|seen| {
        if seen.method == "GET" {
            let pieces = stream::iter((0..PIECES).map(|n| Ok(Frame::data(Bytes::from(vec![n as u8; 4096])))));
            with_header(Response::new(BodyExt::boxed(StreamBody::new(pieces))), "x-remuda-mode", "0750")
        } else {
            answer(201, r#"{"path":"/f","kind":"file","size":9,"mode":420,"uid":1000,"gid":1000,"modified_at_ms":0}"#)
        }
    })
    .await;
    let client = server.client();

    let download = client.read_file(&id(), "/f").await.unwrap();
    assert_eq!(download.mode, Some(0o750));
    let mut read = 0;
    let mut body = Box::pin(download.body.into_stream());
    while let Some(piece) = body.next().await {
        read += piece.unwrap().len();
    }
    assert_eq!(read, PIECES * 4096);

    let pieces =
        stream::iter(["one", "two", "six"].map(|text| Ok::<_, std::io::Error>(Bytes::from_static(text.as_bytes()))));
    let stat =
        client.write_file(&id(), "/f", &WriteFile::default(), remuda_client::Body::wrap_stream(pieces)).await.unwrap();
    assert_eq!(stat.size, 9);
    assert_eq!(server.seen.lock().unwrap()[1].body, "onetwosix");
}

#[tokio::test]
async fn a_body_that_breaks_off_or_is_too_long_is_an_error() {
    let begun = Arc::new(tokio::sync::Notify::new());
    let break_off = begun.clone();
    let server = Server::tcp(move |_| {
        let begun = begun.clone();
        let half = stream::iter([Ok(Frame::data(Bytes::from_static(b"half")))]);
        let broken = stream::once(async move {
            begun.notified().await;
            Err(std::io::Error::other("broken"))
        });
        Response::new(BodyExt::boxed(StreamBody::new(Box::pin(half.chain(broken)))))
    })
    .await;
    let download = server.client().read_file(&id(), "/f").await.unwrap();
    break_off.notify_one();
    let broken = download.body.collect(1024).await.unwrap_err();
    assert!(broken.outcome_unknown(), "{broken:?}");

    let server = Server::tcp(|_| answer(200, "twelve bytes")).await;
    let long = server.client().read_file(&id(), "/f").await.unwrap().body.collect(11).await.unwrap_err();
    assert!(long.to_string().contains("longer than 11 bytes"), "{long}");
}

#[tokio::test]
async fn raw_output_comes_with_its_place() {
    let exec = "exec-aaaaaaaaaaaaaaaaaaaa".parse().unwrap();
    let server = Server::tcp(|_| {
        let answer = with_header(answer(200, "hi\n"), "x-remuda-next-offset", "9");
        with_header(with_header(answer, "x-remuda-skipped-bytes", "6"), "x-remuda-complete", "true")
    })
    .await;
    let query = OutputQuery {
        since_ms: None,
        offset: 0,
        wait: Duration::from_millis(250),
        stream: Some(wire::OutputStream::Stderr),
    };
    let output = server.client().output_bytes(&id(), &exec, &query).await.unwrap();
    assert_eq!(
        (output.bytes.as_ref(), output.next_offset, output.skipped_bytes, output.complete),
        (&b"hi\n"[..], 9, 6, true)
    );
    assert!(server.only().target.ends_with("/output?offset=0&wait_ms=250&stream=stderr"));
}

#[tokio::test]
async fn the_unix_socket_is_reached_without_a_key_and_one_connection_is_kept() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("remuda.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let server = Server::new(socket.display().to_string());
    let (seen, connections) = (server.seen.clone(), server.connections.clone());
    tokio::spawn(async move {
        let ok = Arc::new(|_: &Seen| answer(200, r#"{"status":"ok"}"#));
        while let Ok((stream, _)) = listener.accept().await {
            *connections.lock().unwrap() += 1;
            serve(TokioIo::new(stream), seen.clone(), ok.clone());
        }
    });
    let client = Client::unix(&socket).unwrap();
    for _ in 0..3 {
        assert_eq!(client.health().await.unwrap().status, "ok");
    }
    assert_eq!(*server.connections.lock().unwrap(), 1);
    assert!(server.seen.lock().unwrap().iter().all(|s| s.authorization.is_none()));
}
