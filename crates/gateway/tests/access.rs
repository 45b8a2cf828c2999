//! Access keys at the door: every operation with every scope missing once, dead keys, accounts, and what is told to
//! whom. No sandbox runs here; what keys see of sandboxes is in the system tests.

mod world;

use std::time::Duration;

use axum::body::Body;
use http::header::AUTHORIZATION;
use remuda_control::access::{Action, Needs};
use remuda_gateway::{Dialects, document, serve_tcp};
use remuda_types::wire::{AccessKey, MadeAccessKey, WhoAmI};
use remuda_types::{AccessScope, Narrowing};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

use crate::world::World;

const ID: &str = "c1@2026-10-08T12:00:00.000Z";

/// A request that is understood, and that no platform would carry out.
struct Sample {
    call: Action,
    method: String,
    path: String,
    body: Value,
}

/// One request for each operation of the document; HEAD answers without a body and is left out.
fn samples() -> Vec<Sample> {
    let document = serde_json::to_value(document()).unwrap();
    let mut samples = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap().iter().filter(|(method, _)| *method != "head") {
            let call = Action::of_operation(operation["operationId"].as_str().unwrap()).unwrap();
            let body = match call {
                Action::CreateSandbox => json!({ "memory_mib": 1 }),
                Action::ForkSandbox => json!({ "count": 1 }),
                Action::StartExecution => json!({ "argv": ["true"] }),
                Action::SignalExecution => json!({ "signal": 15 }),
                Action::ResizeTerminal => json!({ "cols": 80, "rows": 24 }),
                Action::CreateKey => json!({ "scopes": [] }),
                Action::CreatePreview => json!({ "port": 80 }),
                Action::CreateWebhook => json!({ "url": "https://a.example/" }),
                Action::RedeliverWebhook => json!({ "sequence": 1 }),
                Action::SetDeadline => json!({ "timeout_ms": 60_000 }),
                Action::ChangeFiles => json!({ "changes": [{ "op": "mkdir", "path": "/workspace/x" }] }),
                _ => json!({}),
            };
            let mut path = path
                .replace("{id}", ID)
                .replace("{execution}", "exec-aaaaaaaaaaaaaaaaaaaa")
                .replace("{access_key}", "key-aaaaaaaaaaaaaaaaaaaa")
                .replace("{receipt}", "rcpt-aaaaaaaaaaaaaaaaaaaa")
                .replace("{webhook}", "hook-aaaaaaaaaaaaaaaaaaaa")
                .replace("{preview}", "prev-aaaaaaaaaaaaaaaaaaaa")
                .replace("{account}", "other")
                .replace("{snapshot}", "none")
                .replace("{digest}", &"0".repeat(64))
                .replace("{port}", "80")
                .replace("{path}", "a");
            if path.contains("/files") && call != Action::ChangeFiles {
                path.push_str("?path=/workspace/x");
            }
            if call == Action::WriteInput {
                path.push_str("?offset=0");
            }
            if [Action::FindFiles, Action::FindText].contains(&call) {
                path.push_str("&pattern=a");
            }
            if call == Action::MoveFile {
                path.push_str("&to=/workspace/y");
            }
            samples.push(Sample { call, method: method.to_uppercase(), path, body });
        }
    }
    assert!(samples.len() > 35);
    samples
}

impl Sample {
    async fn call(&self, world: &World, secret: &str) -> (u16, Value) {
        world.call_with(secret, &self.method, &self.path, &self.body).await
    }
}

#[tokio::test]
async fn every_operation_is_refused_for_each_scope_that_it_needs_and_passes_with_no_more_than_these() {
    let world = World::new().await;
    let mut refused = Vec::new();
    for sample in samples() {
        let what = format!("{} {}", sample.method, sample.path);
        let Needs::Scopes(needed) = sample.call.needs() else { continue };
        for missing in needed {
            let others: Vec<_> = AccessScope::ALL.iter().copied().filter(|scope| scope != missing).collect();
            let (status, body) = sample.call(&world, &world.key(&others, |_| {}).await.secret).await;
            assert_eq!((status, &body["error"]["code"]), (403, &json!("forbidden")), "{what}: {body}");
            assert_eq!(body["error"]["details"]["missing_scope"], json!(missing), "{what}");
            assert!(body["error"]["remedy"].as_str().unwrap().contains(missing.as_str()), "{what}: {body}");
            refused.push(*missing);
        }
        let (status, body) = sample.call(&world, &world.key(needed, |_| {}).await.secret).await;
        assert!(![401, 403].contains(&status), "{what} with {needed:?}: {status} {body}");
    }
    for scope in AccessScope::ALL {
        assert!(refused.contains(scope), "{scope} was never missing");
    }
}

#[tokio::test]
async fn what_only_the_operator_may_no_key_may() {
    let world = World::new().await;
    for sample in samples() {
        let (status, body) = sample.call(&world, &world.secret).await;
        let operators = sample.call.needs() == Needs::Operator;
        assert_eq!(status == 403, operators, "{} {}: {body}", sample.method, sample.path);
    }
    // Nor may a key name another account.
    for (method, path, body) in [
        ("GET", "/v1/keys?account=other", json!({})),
        ("DELETE", "/v1/keys/key-aaaaaaaaaaaaaaaaaaaa?account=other", json!({})),
        ("GET", "/v1/usage?account=other", json!({})),
        ("POST", "/v1/keys", json!({ "scopes": ["files"], "account": "other" })),
    ] {
        let (status, body) = world.call_with(&world.secret, method, path, &body).await;
        assert_eq!((status, &body["error"]["code"]), (403, &json!("forbidden")), "{method} {path}: {body}");
    }
    let (_, body) = world.call_locally("GET", "/v1/accounts", &json!({})).await;
    let names: Vec<_> = body["accounts"].as_array().unwrap().iter().map(|a| a["account"].clone()).collect();
    assert_eq!(names, ["default"], "what was refused made no account");
}

#[tokio::test]
async fn a_caller_is_told_who_it_is_and_what_it_may_do() {
    let world = World::new().await;
    let narrowing = Narrowing::Slot("c1".parse().unwrap());
    let made = world
        .key(&[AccessScope::Files, AccessScope::Executions], |request| {
            request.narrowing = Some(narrowing.clone());
            request.expires_in_ms = Some(60_000);
            request.account = Some("other".parse().unwrap());
        })
        .await;
    let (_, body) = world.call_locally("PUT", "/v1/accounts/other", &json!({ "quotas": { "sandboxes": 3 } })).await;
    assert_eq!(body["limits"]["sandboxes"], 3);
    let (status, body) = world.call_with(&made.secret, "GET", "/v1/whoami", &json!({})).await;
    assert_eq!(status, 200);
    let me: WhoAmI = serde_json::from_value(body).unwrap();
    assert_eq!((me.account.as_str(), me.access_key.as_ref()), ("other", Some(&made.access_key.id)));
    assert_eq!(me.scopes, [AccessScope::Executions, AccessScope::Files]);
    assert_eq!((me.narrowing, me.expires_at_ms), (Some(narrowing), made.access_key.expires_at_ms));
    assert_eq!((me.limits["sandboxes"], me.limits["snapshots"]), (Some(3), Some(1_000)));
    let (_, body) = world.call_locally("GET", "/v1/whoami", &json!({})).await;
    assert_eq!((&body["account"], &body["access_key"]), (&json!("default"), &Value::Null));
    assert_eq!(body["scopes"], json!(AccessScope::ALL));
}

#[tokio::test]
async fn usage_tells_every_quota_and_its_limit_from_the_start() {
    let world = World::new().await;
    let (status, body) = world.call_with(&world.secret, "GET", "/v1/usage", &json!({})).await;
    assert_eq!(status, 200, "{body}");
    assert_eq!(body["captured"], json!({ "snapshots": 0, "bytes": 0 }));
    assert_eq!(body["held"], json!({ "layers": 0, "memory_images": 0, "sandboxes": 0 }));
    let names: Vec<_> = body["reserved"].as_array().unwrap().iter().map(|r| r["quota"].clone()).collect();
    assert_eq!(names, ["sandboxes", "memory_mib", "disk_bytes", "snapshots", "snapshot_bytes"]);
    assert_eq!(body["reserved"][0], json!({ "quota": "sandboxes", "amount": 0, "limit": 200 }));
    assert_eq!(body["months"], json!([]));
}

#[tokio::test]
async fn a_key_is_made_without_an_idempotency_key_and_its_secret_is_told_once() {
    let world = World::new().await;
    let body = || Body::from(json!({ "scopes": ["files"] }).to_string());
    let request = || world.request("POST", "/v1/keys").header("content-type", "application/json");
    let code = world.refused(request().header("Idempotency-Key", "k1").body(body()).unwrap()).await;
    assert_eq!(code, "idempotency_key_unsupported");
    let (response, made) = world.call(request().body(body()).unwrap()).await;
    assert_eq!((response.status().as_u16(), &response.headers()["cache-control"]), (201, &"no-store".parse().unwrap()));
    let secret = made["secret"].as_str().unwrap();
    let (_, all) = world.call_with(&world.secret, "GET", "/v1/keys?all=true", &json!({})).await;
    assert_eq!(all["access_keys"].as_array().unwrap().len(), 2, "the refused one made none: {all}");
    assert!(!all.to_string().contains(&secret[4..]));
    // A secret that stands where an id should is not repeated.
    let (status, body) = world.call_with(&world.secret, "DELETE", &format!("/v1/keys/{secret}"), &json!({})).await;
    assert_eq!((status, &body["error"]["code"]), (400, &json!("invalid_id")));
    assert!(!body.to_string().contains(&secret[4..]), "{body}");
}

#[tokio::test]
async fn keys_of_two_accounts_do_not_know_each_other() {
    let world = World::new().await;
    let admin = |name: &'static str| {
        world.key(&[AccessScope::Admin], move |request| request.account = Some(name.parse().unwrap()))
    };
    let (a, b) = (admin("a").await, admin("b").await);
    let ids = async |made: &MadeAccessKey| {
        let (_, body) = world.call_with(&made.secret, "GET", "/v1/keys?all=true", &json!({})).await;
        let keys: Vec<AccessKey> = serde_json::from_value(body["access_keys"].clone()).unwrap();
        keys.into_iter().map(|key| key.id).collect::<Vec<_>>()
    };
    assert_eq!(ids(&a).await, std::slice::from_ref(&a.access_key.id));
    assert_eq!(ids(&b).await, std::slice::from_ref(&b.access_key.id));
    let revoke = |id: &str| format!("/v1/keys/{id}");
    let (_, foreign) = world.call_with(&b.secret, "DELETE", &revoke(a.access_key.id.as_str()), &json!({})).await;
    let (_, unknown) = world.call_with(&b.secret, "DELETE", &revoke("key-aaaaaaaaaaaaaaaaaaaa"), &json!({})).await;
    let words = |body: &Value, id: &str| body.to_string().replace(id, "ID");
    assert_eq!(words(&foreign, a.access_key.id.as_str()), words(&unknown, "key-aaaaaaaaaaaaaaaaaaaa"));
    assert_eq!(ids(&a).await.len(), 1, "it still opens");
    let (status, _) = world.call_with(&a.secret, "DELETE", &revoke(a.access_key.id.as_str()), &json!({})).await;
    assert_eq!(status, 200);
    let (status, body) = world.call_with(&a.secret, "GET", "/v1/whoami", &json!({})).await;
    assert_eq!((status, &body["error"]["details"]["reason"]), (401, &json!("revoked")));
}

#[tokio::test]
async fn an_expired_key_says_so_to_its_secret_alone() {
    let world = World::new().await;
    let made = world.key(&[AccessScope::Files], |request| request.expires_in_ms = Some(1)).await;
    let expired = async {
        loop {
            let (status, body) = world.call_with(&made.secret, "GET", "/v1/whoami", &json!({})).await;
            if status == 401 {
                return body;
            }
        }
    };
    let body = tokio::time::timeout(Duration::from_secs(10), expired).await.unwrap();
    assert_eq!(body["error"]["details"]["reason"], "expired");
    assert_eq!(body["error"]["details"]["expires_at_ms"], json!(made.access_key.expires_at_ms));
    let wrong = format!("rmd_{}", "0".repeat(64));
    let (_, body) = world.call_with(&wrong, "GET", "/v1/whoami", &json!({})).await;
    assert_eq!(body["error"]["details"], Value::Null);
}

#[tokio::test]
async fn a_revoked_key_is_refused_on_a_connection_that_is_kept() {
    let world = World::new().await;
    let made = world.key(&[AccessScope::SandboxesRead], |_| {}).await;
    let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut client = TcpStream::connect(tcp.local_addr().unwrap()).await.unwrap();
    let shutdown = CancellationToken::new();
    let serving = tokio::spawn(serve_tcp(
        tcp,
        world.platform.clone(),
        crate::world::front(),
        Dialects::ALL,
        None,
        shutdown.clone(),
    ));
    let request = format!("GET /v1/sandboxes HTTP/1.1\r\nHost: x\r\n{AUTHORIZATION}: Bearer {}\r\n\r\n", made.secret);
    for expected in ["HTTP/1.1 200 ", "HTTP/1.1 401 ", "HTTP/1.1 401 "] {
        client.write_all(request.as_bytes()).await.unwrap();
        let answer = answer(&mut client).await;
        assert!(answer.starts_with(expected), "{expected}: {answer}");
        assert_eq!(answer.contains("was revoked"), expected.contains("401"));
        let path = format!("/v1/keys/{}", made.access_key.id);
        assert_eq!(world.call_locally("DELETE", &path, &json!({})).await.0.status().as_u16(), 200);
    }
    shutdown.cancel();
    serving.await.unwrap();
}

/// One whole answer, of a connection that stays.
async fn answer(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    let reading = async {
        loop {
            let text = String::from_utf8_lossy(&bytes).into_owned();
            if let Some((head, body)) = text.split_once("\r\n\r\n") {
                let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
                if body.len() == length.parse::<usize>().unwrap() {
                    return text;
                }
            }
            bytes.push(stream.read_u8().await.unwrap());
        }
    };
    tokio::time::timeout(Duration::from_secs(10), reading).await.expect("an answer in time")
}

#[tokio::test]
async fn the_doctor_tells_each_account_its_own_and_repairs_for_the_operator_alone() {
    let world = World::new().await;
    let (_, whole) = world.call_locally("GET", "/v1/doctor?repair=true", &json!({})).await;
    // Figures, as of free space, change from look to look.
    let names = |told: &Value| {
        let checks = told["environment"].as_array().unwrap().iter();
        checks.map(|checked| checked["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert!(names(&whole).contains(&"journal".to_owned()), "{whole}");
    let own = world.key(&[AccessScope::Admin], |_| {}).await.secret;
    let (status, told) = world.call_with(&own, "GET", "/v1/doctor", &json!({})).await;
    assert_eq!((status, names(&told)), (200, names(&whole)), "the operator's account is told of the machine");
    let other = world.key(&[AccessScope::Admin], |key| key.account = Some("other".parse().unwrap())).await.secret;
    let (status, told) = world.call_with(&other, "GET", "/v1/doctor", &json!({})).await;
    assert_eq!((status, &told["environment"], &told["well"]), (200, &json!([]), &json!(true)), "{told}");
    let slot = Narrowing::Slot("c1".parse().unwrap());
    let narrowed = world.key(&[AccessScope::Admin], |key| key.narrowing = Some(slot)).await.secret;
    for (secret, path) in
        [(&own, "/v1/doctor?repair=true"), (&other, "/v1/doctor?repair=true"), (&narrowed, "/v1/doctor")]
    {
        let (status, body) = world.call_with(secret, "GET", path, &json!({})).await;
        assert_eq!((status, &body["error"]["code"]), (403, &json!("forbidden")), "{path}: {body}");
    }
}

#[tokio::test]
async fn what_a_call_does_not_take_in_its_query_is_refused_by_each_of_them() {
    let world = World::new().await;
    for sample in samples().iter().filter(|sample| sample.call != Action::Port) {
        let sign = if sample.path.contains('?') { '&' } else { '?' };
        let path = format!("{}{sign}paht=%2Fx", sample.path);
        let (status, body) = world.call_with(&world.secret, &sample.method, &path, &sample.body).await;
        let what = format!("{} {path}: {body}", sample.method);
        assert_eq!((status, &body["error"]["code"]), (400, &json!("invalid_request")), "{what}");
        assert!(body["error"]["cause"].as_str().unwrap().contains("`paht`"), "{what}");
    }
}

#[tokio::test]
async fn a_head_that_is_too_long_is_an_error_like_any_other() {
    let world = World::new().await;
    let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = tcp.local_addr().unwrap();
    let shutdown = CancellationToken::new();
    let serving = tokio::spawn(serve_tcp(
        tcp,
        world.platform.clone(),
        crate::world::front(),
        Dialects::ALL,
        None,
        shutdown.clone(),
    ));
    let long = format!("X-Long: {}\r\n", "a".repeat(70 << 10));
    let many: String = (0..140).map(|number| format!("X-{number}: a\r\n")).collect();
    for (headers, limit) in [(long, "http_head_bytes_max"), (many, "http_headers_max")] {
        let mut client = TcpStream::connect(address).await.unwrap();
        client.write_all(format!("GET /v1/health HTTP/1.1\r\nHost: x\r\n{headers}\r\n").as_bytes()).await.unwrap();
        let answer = answer(&mut client).await;
        assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        let body: Value = serde_json::from_str(body).unwrap();
        assert_eq!(
            (&body["error"]["code"], &body["error"]["details"]["limit"]),
            (&json!("head_too_large"), &json!(limit))
        );
    }
    shutdown.cancel();
    serving.await.unwrap();
}

#[tokio::test]
async fn an_account_that_was_never_made_and_an_event_that_never_was_are_told_as_such() {
    let world = World::new().await;
    for path in ["/v1/usage?account=nobody", "/v1/keys?account=nobody"] {
        let (response, body) = world.call_locally("GET", path, &json!({})).await;
        assert_eq!((response.status().as_u16(), &body["error"]["code"]), (404, &json!("account_not_found")), "{body}");
    }
    let (_, body) = world.call_with(&world.secret, "GET", "/v1/events", &json!({})).await;
    let newest = body["newest"].as_u64().unwrap();
    for (after, expected) in [(newest, 200), (newest + 1, 416), (u64::MAX, 416)] {
        let path = format!("/v1/events?after={after}");
        let (status, body) = world.call_with(&world.secret, "GET", &path, &json!({})).await;
        assert_eq!(status, expected, "{body}");
        let stream = world.request("GET", &path).header("accept", "text/event-stream").body(Body::empty()).unwrap();
        if expected != 200 {
            assert_eq!(body["error"]["details"]["newest"], newest);
            assert_eq!(world.refused(stream).await, "cursor_ahead");
        }
    }
}
