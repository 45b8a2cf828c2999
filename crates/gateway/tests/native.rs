//! The real router over a real platform without a sandbox: who is let in, what is refused, and in what words.

mod world;

use std::time::Duration;

use axum::body::Body;
use http::header::{ALLOW, AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS};
use http::{Request, StatusCode};
use remuda_control::access::AccessSecret;
use remuda_gateway::{Dialects, document, serve_tcp, serve_unix};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio_util::sync::CancellationToken;

use crate::world::World;

const ID: &str = "c1@2026-10-08T12:00:00.000Z";
const EXECUTION: &str = "exec-aaaaaaaaaaaaaaaaaaaa";

/// Every operation of the document, with ids that nothing has.
fn operations() -> Vec<(String, String)> {
    let document = serde_json::to_value(document()).unwrap();
    let mut operations = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        let path = path
            .replace("{id}", ID)
            .replace("{execution}", EXECUTION)
            .replace("{snapshot}", "none")
            .replace("{operation}", "op-aaaaaaaaaaaaaaaaaaaa")
            .replace("{port}", "80")
            .replace("{path}", "a")
            .replace("{access_key}", "key-aaaaaaaaaaaaaaaaaaaa")
            .replace("{account}", "other");
        for method in item.as_object().unwrap().keys() {
            operations.push((method.to_uppercase(), path.clone()));
        }
    }
    assert!(operations.len() > 30);
    operations
}

fn is_open(path: &str) -> bool {
    matches!(path, "/v1/health" | "/v1/openapi.json")
}

#[tokio::test]
async fn every_operation_needs_the_key_but_two() {
    let world = World::new().await;
    let other = AccessSecret::generate().unwrap();
    for (method, path) in operations() {
        let request = || Request::builder().method(method.as_str()).uri(&path);
        if is_open(&path) {
            let (response, _) = world.call(request().body(Body::empty()).unwrap()).await;
            assert_eq!(response.status(), StatusCode::OK, "{method} {path}");
            continue;
        }
        for wrong in [None, Some(format!("Bearer {}", other.reveal())), Some(world.secret.clone())] {
            let mut request = request();
            if let Some(wrong) = wrong {
                request = request.header(AUTHORIZATION, wrong);
            }
            let (response, body) = world.call(request.body(Body::empty()).unwrap()).await;
            assert_eq!(response.status(), StatusCode::UNAUTHORIZED, "{method} {path}");
            assert_eq!(response.headers()[WWW_AUTHENTICATE], "Bearer");
            // An answer to HEAD has no body.
            assert!(method == "HEAD" || body["error"]["code"] == "unauthorized", "{method} {path}");
        }
    }
}

#[tokio::test]
async fn every_documented_operation_has_a_route() {
    let world = World::new().await;
    for (method, path) in operations().into_iter().filter(|(method, _)| method != "HEAD") {
        let (response, body) = world.call(world.request(&method, &path).body(Body::empty()).unwrap()).await;
        let code = body["error"]["code"].as_str().unwrap_or("none");
        assert!(!["route_not_found", "method_not_allowed"].contains(&code), "{method} {path}: {response:?}");
    }
}

#[tokio::test]
async fn other_methods_and_routes_are_refused_in_our_words() {
    let world = World::new().await;
    for (method, path) in [("PUT", "/v1/sandboxes"), ("PATCH", "/v1/health"), ("DELETE", "/v1/snapshots")] {
        let (response, body) = world.call(world.request(method, path).body(Body::empty()).unwrap()).await;
        assert_eq!(response.status(), StatusCode::METHOD_NOT_ALLOWED, "{method} {path}");
        assert_eq!(body["error"]["code"], "method_not_allowed");
        assert!(response.headers()[ALLOW].to_str().unwrap().contains("GET"), "{method} {path}");
    }
    for path in ["/", "/v1", "/v1/", "/v2/sandboxes", "/v1/sandboxes/", "/v1/sandboxes/x/y", "/v1/../v1/health"] {
        let code = world.refused(world.request("GET", path).body(Body::empty()).unwrap()).await;
        assert_eq!(code, "route_not_found", "{path}");
    }
}

#[tokio::test]
async fn ids_are_read_in_either_form_and_a_bare_slot_says_why() {
    let world = World::new().await;
    let get = |path: &str| world.request("GET", &format!("/v1/sandboxes/{path}")).body(Body::empty()).unwrap();
    assert_eq!(world.refused(get(ID)).await, "sandbox_not_found");
    assert_eq!(world.refused(get("c1%402026-10-08T12%3A00%3A00.000Z")).await, "sandbox_not_found");
    assert_eq!(world.refused(get("C1")).await, "invalid_id");
    assert_eq!(world.refused(get("c1@yesterday")).await, "invalid_id");
    assert_eq!(world.refused(get("%ff")).await, "invalid_id");
    assert_eq!(world.refused(get(&format!("{ID}/executions/7"))).await, "invalid_id");
    assert_eq!(world.refused(get(&format!("{ID}/ports/0/"))).await, "invalid_request");
    assert_eq!(world.refused(get(&format!("{ID}/ports/65536/"))).await, "invalid_request");
    let (response, body) = world.call(get("c1")).await;
    assert_eq!(response.status(), StatusCode::BAD_REQUEST);
    assert_eq!(body["error"]["code"], "bare_slot");
    assert!(body["error"]["message"].as_str().unwrap().contains("a slot is reused by later machines"));
}

#[tokio::test]
async fn what_is_wrong_in_a_body_or_query_is_named() {
    let world = World::new().await;
    let post = |path: &str, body: &str| {
        let request = world.request("POST", path).header(CONTENT_TYPE, "application/json");
        request.body(Body::from(body.to_owned())).unwrap()
    };
    let (_, body) = world.call(post("/v1/sandboxes", r#"{"memory_mib":"much"}"#)).await;
    assert_eq!(body["error"]["details"]["member"], "memory_mib");
    let (_, body) = world.call(post("/v1/sandboxes", r#"{"memory":512}"#)).await;
    assert_eq!(body["error"]["code"], "invalid_request");
    assert!(body["error"]["cause"].as_str().unwrap().contains("unknown field `memory`"), "{body}");
    let (_, body) = world.call(post(&format!("/v1/sandboxes/{ID}/forks"), "")).await;
    assert!(body["error"]["cause"].as_str().unwrap().contains("missing field `count`"), "{body}");
    for wrong in ["{", "[]", "{} {}", "\"\u{0}\""] {
        assert_eq!(world.refused(post("/v1/sandboxes", wrong)).await, "invalid_request", "{wrong}");
    }
    let form = world.request("POST", "/v1/sandboxes").header(CONTENT_TYPE, "application/x-www-form-urlencoded");
    let (_, body) = world.call(form.body(Body::from("{}")).unwrap()).await;
    assert!(body["error"]["remedy"].as_str().unwrap().contains("application/json"), "{body}");

    for (query, named) in [
        (format!("/v1/sandboxes/{ID}/executions/{EXECUTION}?wait=5"), "unknown field `wait`"),
        (format!("/v1/sandboxes/{ID}/executions/{EXECUTION}/output?offset=-1"), "offset"),
        (format!("/v1/sandboxes/{ID}/executions/{EXECUTION}/output?stream=both"), "unknown variant `both`"),
        (format!("/v1/sandboxes/{ID}/files"), "missing field `path`"),
        ("/v1/snapshots?all=1".to_owned(), "all"),
    ] {
        let (response, body) = world.call(world.request("GET", &query).body(Body::empty()).unwrap()).await;
        assert_eq!(response.status(), StatusCode::BAD_REQUEST, "{query}");
        assert!(body["error"]["cause"].as_str().unwrap().contains(named), "{query}: {body}");
    }
    let long = format!("/v1/sandboxes/{ID}/executions/{EXECUTION}?wait_ms=3600001");
    let (_, body) = world.call(world.request("GET", &long).body(Body::empty()).unwrap()).await;
    assert_eq!(body["error"]["details"]["limit"], "wait_ms_max");
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused_whether_its_length_is_told_or_not() {
    let world = World::new().await;
    let size = remuda_types::limits::REQUEST_BODY_BYTES_MAX + 1;
    let told = Body::from(vec![b' '; size]);
    let pieces = (0..=size / 65_536).map(|_| Ok::<_, std::convert::Infallible>(vec![b' '; 65_536]));
    let untold = Body::from_stream(futures_util::stream::iter(pieces));
    for body in [told, untold] {
        let (response, body) = world.call(world.request("POST", "/v1/sandboxes").body(body).unwrap()).await;
        assert_eq!(response.status(), StatusCode::PAYLOAD_TOO_LARGE);
        assert_eq!(body["error"]["details"]["limit"], "request_body_bytes_max");
    }
}

#[tokio::test]
async fn a_key_has_one_outcome_which_is_told_again() {
    let world = World::new().await;
    let create = |key: &str, body: &'static str| {
        let request = world.request("POST", "/v1/sandboxes").header("Idempotency-Key", key);
        request.header(CONTENT_TYPE, "application/json").body(Body::from(body)).unwrap()
    };
    // Nothing can be started here, which is an outcome like any other.
    let (first, body) = world.call(create("k1", r#"{"slot":"a"}"#)).await;
    assert_eq!(body["error"]["code"], "engine_failed", "{body}");
    assert!(!first.headers().contains_key("idempotent-replay"));
    let (again, same) = world.call(create("k1", r#"{ "memory_mib": null, "slot": "a" }"#)).await;
    assert_eq!((again.status(), &same), (first.status(), &body));
    assert_eq!(again.headers()["idempotent-replay"], "true");
    assert_eq!(world.refused(create("k1", r#"{"slot":"b"}"#)).await, "idempotency_key_conflict");
    // Found by whoever has nothing but the key.
    let list = |key: &str| world.request("GET", &format!("/v1/operations?key={key}")).body(Body::empty()).unwrap();
    let (_, found) = world.call(list("k1")).await;
    let operation = &found["operations"][0];
    assert_eq!((&operation["state"], &operation["kind"]), (&"failed".into(), &"create".into()), "{found}");
    assert_eq!(operation["error"], body["error"]);
    let path = format!("/v1/operations/{}", operation["id"].as_str().unwrap());
    let (_, one) = world.call(world.request("GET", &path).body(Body::empty()).unwrap()).await;
    assert_eq!(&one, operation);
    // What it was to make is on record as ended, and told as gone.
    let id = operation["made"]["sandbox"].as_str().unwrap();
    let show = world.request("GET", &format!("/v1/sandboxes/{id}")).body(Body::empty()).unwrap();
    assert_eq!(world.refused(show).await, "generation_gone");
    // A call that is refused before it is admitted leaves its key free.
    assert_eq!(world.refused(create("k2", r#"{"memory_mib":1}"#)).await, "invalid_request");
    let (_, none) = world.call(list("k2")).await;
    assert_eq!(none["operations"], serde_json::json!([]));
    for wrong in ["", "a b", "a.b", &"x".repeat(256)] {
        assert_eq!(world.refused(create(wrong, "{}")).await, "invalid_request", "{wrong:?}");
    }
    // On the way to an application the header is the application's own.
    let path = format!("/v1/sandboxes/{ID}/ports/80/pay");
    let request = world.request("POST", &path).header("Idempotency-Key", "not.ours").body(Body::empty()).unwrap();
    assert_eq!(world.refused(request).await, "sandbox_not_found");
    let twice = world.request("POST", "/v1/sandboxes").header("Idempotency-Key", "a").header("Idempotency-Key", "b");
    assert_eq!(world.refused(twice.body(Body::empty()).unwrap()).await, "invalid_request");
}

#[tokio::test]
async fn a_key_can_be_cancelled_before_its_call_comes() {
    let world = World::new().await;
    let post = |path: &str, key: Option<&str>, body: &'static str| {
        let request = world.request("POST", path).header(CONTENT_TYPE, "application/json");
        let request = key.into_iter().fold(request, |request, key| request.header("Idempotency-Key", key));
        request.body(Body::from(body)).unwrap()
    };
    for _ in 0..2 {
        let cancel = post("/v1/operations/cancel", None, r#"{"kind":"create","key":"k"}"#);
        let (response, body) = world.call(cancel).await;
        assert_eq!((response.status(), &body["result"]), (StatusCode::OK, &"cancelled".into()), "{body}");
    }
    assert_eq!(world.refused(post("/v1/sandboxes", Some("k"), "{}")).await, "operation_cancelled");
    // Keys are scoped: in another kind of call it is another one.
    let restore = post("/v1/snapshots/none/restore", Some("k"), "{}");
    assert_eq!(world.refused(restore).await, "snapshot_not_found");
    // Too late for one that was admitted.
    world.refused(post("/v1/sandboxes", Some("late"), "{}")).await;
    let cancel = post("/v1/operations/cancel", None, r#"{"kind":"create","key":"late"}"#);
    let (_, body) = world.call(cancel).await;
    assert_eq!((&body["result"], &body["operation"]["state"]), (&"admitted".into(), &"failed".into()), "{body}");
    let wrong = post("/v1/operations/cancel", None, r#"{"kind":"No such","key":"k"}"#);
    assert_eq!(world.refused(wrong).await, "invalid_request");
    let unknown = "/v1/operations/op-aaaaaaaaaaaaaaaaaaaa";
    let show = world.request("GET", unknown).body(Body::empty()).unwrap();
    assert_eq!(world.refused(show).await, "operation_not_found");
}

#[tokio::test]
async fn answers_are_neither_stored_nor_guessed_at() {
    let world = World::new().await;
    for path in ["/v1/health", "/v1/sandboxes", "/v1/nothing", "/v1/sandboxes/c1"] {
        let (response, _) = world.call(world.request("GET", path).body(Body::empty()).unwrap()).await;
        assert_eq!(response.headers()[CACHE_CONTROL], "no-store", "{path}");
        assert_eq!(response.headers()[X_CONTENT_TYPE_OPTIONS], "nosniff", "{path}");
    }
}

#[tokio::test]
async fn the_served_document_is_the_one_of_the_program() {
    let world = World::new().await;
    let (_, body) = world.call(Request::get("/v1/openapi.json").body(Body::empty()).unwrap()).await;
    assert_eq!(body, serde_json::to_value(document()).unwrap());
    let (_, body) = world.call(world.request("GET", "/v1/capabilities").body(Body::empty()).unwrap()).await;
    assert_eq!(body["limits"]["http_connections_max"], 4096);
}

#[tokio::test]
async fn the_socket_needs_no_key_and_the_end_is_prompt() {
    let world = World::new().await;
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("s");
    let shutdown = CancellationToken::new();
    let unix = UnixListener::bind(&socket).unwrap();
    let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = tcp.local_addr().unwrap();
    let serving_unix = tokio::spawn(serve_unix(unix, world.platform.clone(), crate::world::front(), shutdown.clone()));
    let serving_tcp = tokio::spawn(serve_tcp(
        tcp,
        world.platform.clone(),
        crate::world::front(),
        Dialects::ALL,
        None,
        shutdown.clone(),
    ));

    let mut local = UnixStream::connect(&socket).await.unwrap();
    local.write_all(b"GET /v1/sandboxes HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    assert!(head(&mut local).await.starts_with("HTTP/1.1 200 "));
    let mut remote = TcpStream::connect(address).await.unwrap();
    remote.write_all(b"GET /v1/sandboxes HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    assert!(head(&mut remote).await.starts_with("HTTP/1.1 401 "));
    // Absolute form and CONNECT are no ways around the routes.
    let mut proxy = TcpStream::connect(address).await.unwrap();
    proxy.write_all(b"CONNECT 10.0.0.1:22 HTTP/1.1\r\nHost: 10.0.0.1:22\r\n\r\n").await.unwrap();
    assert!(head(&mut proxy).await.starts_with("HTTP/1.1 404 "));
    let mut proxy = TcpStream::connect(address).await.unwrap();
    proxy.write_all(b"CONNECT 10.0.0.1:22 HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    assert!(head(&mut proxy).await.starts_with("HTTP/1.1 400 "), "one host must be named, not two");

    // Kept connections stand idle; they must not hold up the end.
    shutdown.cancel();
    let ended = async {
        serving_unix.await.unwrap();
        serving_tcp.await.unwrap();
    };
    tokio::time::timeout(Duration::from_secs(5), ended).await.expect("idle connections do not delay the end");
    let mut rest = Vec::new();
    let _ = local.read_to_end(&mut rest).await;
    assert!(TcpStream::connect(address).await.is_err());
}

#[tokio::test]
async fn a_head_without_an_end_is_cut_off() {
    let world = World::new().await;
    let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut client = TcpStream::connect(tcp.local_addr().unwrap()).await.unwrap();
    let shutdown = CancellationToken::new();
    tokio::spawn(serve_tcp(tcp, world.platform.clone(), crate::world::front(), Dialects::ALL, None, shutdown.clone()));
    let flood = format!("GET /v1/health HTTP/1.1\r\nHost: x\r\nX-Long: {}\r\n\r\n", "x".repeat(100_000));
    // The server may hang up before it has taken everything.
    let _ = client.write_all(flood.as_bytes()).await;
    assert!(head(&mut client).await.starts_with("HTTP/1.1 431 "));
    shutdown.cancel();
}

/// The head of an answer.
async fn head(stream: &mut (impl AsyncReadExt + Unpin)) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match tokio::time::timeout(Duration::from_secs(10), stream.read_u8()).await.expect("an answer in time") {
            Ok(byte) => head.push(byte),
            Err(_) => break,
        }
    }
    String::from_utf8_lossy(&head).into_owned()
}
