//! The Mainbrella dialect without a sandbox: what is checked in every request, in which order, and in what words.

mod world;

use axum::Router;
use axum::body::Body;
use http::header::{ALLOW, AUTHORIZATION, CACHE_CONTROL, ORIGIN, WWW_AUTHENTICATE};
use http::{Request, Response};
use http_body_util::BodyExt;
use remuda_gateway::{Access, Dialects, router};
use serde_json::Value;
use tower::ServiceExt;

use crate::world::World;

const NAMED: &str = "id=c1&createdAt=2026-10-08T12%3A00%3A00.000Z";

/// What a request is answered with: status, word and headers.
struct Told {
    status: u16,
    word: String,
    response: Response<()>,
}

async fn exchange(router: Router, request: Request<Body>) -> Told {
    let (parts, body) = router.oneshot(request).await.unwrap().into_parts();
    let bytes = body.collect().await.unwrap().to_bytes();
    let body: Value = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
    let word = body["error"].as_str().unwrap_or_default().to_owned();
    Told { status: parts.status.as_u16(), word, response: Response::from_parts(parts, ()) }
}

/// Calls with the first key under the dialect's prefix.
async fn call(world: &World, method: &str, path: &str, body: &str) -> (u16, String) {
    let request = with_key(world, method, path).body(Body::from(body.to_owned())).unwrap();
    let told = exchange(world.router(), request).await;
    (told.status, told.word)
}

fn with_key(world: &World, method: &str, path: &str) -> http::request::Builder {
    let key = world.secret.replacen("rmd_", "mb_", 1);
    Request::builder().method(method).uri(path).header(AUTHORIZATION, format!("Bearer {key}"))
}

fn is(told: (u16, String), status: u16, word: &str) {
    assert_eq!((told.0, told.1.as_str()), (status, word));
}

#[tokio::test]
async fn capabilities_need_no_key_and_take_nothing_in_their_query() {
    let world = World::new().await;
    let request = Request::get("/capabilities").body(Body::empty()).unwrap();
    let (response, body) = world.call(request).await;
    assert_eq!((response.status().as_u16(), body["apiVersion"].as_str()), (200, Some("2026-10-05")));
    assert_eq!(response.headers()[CACHE_CONTROL], "no-store");
    is(call(&world, "GET", "/capabilities?a=1", "").await, 400, "invalid_request");
}

#[tokio::test]
async fn a_method_that_a_path_has_not_is_refused_with_those_that_it_has() {
    let world = World::new().await;
    for (method, path, allowed) in [
        ("POST", "/capabilities", "GET"),
        ("PUT", "/containers?x=1", "GET, POST, DELETE"),
        ("GET", "/containers/exec", "POST"),
        ("PATCH", "/containers/files", "GET, PUT"),
    ] {
        // Before anything else but the path, also without a key.
        let request = Request::builder().method(method).uri(path).header(ORIGIN, "https://a.example");
        let told = exchange(world.router(), request.body(Body::empty()).unwrap()).await;
        assert_eq!((told.status, told.word.as_str()), (405, "method_not_allowed"), "{method} {path}");
        assert_eq!(told.response.headers()[ALLOW], allowed, "{method} {path}");
    }
    for path in ["/containers", "/capabilities", "/containers/exec"] {
        let request = Request::builder().method("OPTIONS").uri(path).body(Body::empty()).unwrap();
        assert_eq!(exchange(world.router(), request).await.status, 204, "{path}");
    }
    is(call(&world, "GET", "/containers/nothing", "").await, 404, "not_found");
}

#[tokio::test]
async fn a_request_of_a_page_of_another_origin_is_refused() {
    let world = World::new().await;
    let request = with_key(&world, "GET", "/containers?x=1").header(ORIGIN, "https://a.example");
    let told = exchange(world.router(), request.body(Body::empty()).unwrap()).await;
    assert_eq!((told.status, told.word.as_str()), (403, "origin_not_allowed"));
    let request = Request::post("/containers").body(Body::from("{}")).unwrap();
    let told = exchange(world.router(), request).await;
    assert_eq!((told.status, told.word.as_str()), (403, "origin_required"));
}

#[tokio::test]
async fn queries_are_read_strictly_and_before_the_key_is_looked_at() {
    let world = World::new().await;
    for (method, path, word) in [
        ("GET", "/containers?createdAt=2026-10-08T12:00:00.000Z".to_owned(), "invalid_container_id"),
        ("GET", "/containers?id=C1".to_owned(), "invalid_container_id"),
        ("POST", "/containers?id=c1".to_owned(), "invalid_container_id"),
        ("POST", format!("/containers/exec?{NAMED}&a=1"), "invalid_container_id"),
        ("POST", format!("/containers/exec?{NAMED}&id=c1"), "invalid_container_id"),
        ("POST", "/containers/exec".to_owned(), "invalid_container_id"),
        ("POST", "/containers/exec?id=web&createdAt=x".to_owned(), "invalid_container_id"),
        ("POST", "/containers/exec?id=c1".to_owned(), "invalid_generation"),
        ("POST", "/containers/exec?id=c1&createdAt=2026-10-08T12:00:00Z".to_owned(), "invalid_generation"),
        (
            "POST",
            "/containers/exec?id=c1&createdAt=2026-10-08T12%3A00%3A00.000%2B00%3A00".to_owned(),
            "invalid_generation",
        ),
        ("GET", format!("/containers/files?{NAMED}&path=%2Fa&path=%2Fb"), "invalid_request"),
        ("GET", format!("/containers/files?{NAMED}&path=%FF"), "invalid_request"),
        ("GET", format!("/containers/previews?{NAMED}&previewId=a"), "invalid_request"),
        ("DELETE", "/containers?createdAt=2026-10-08T12:00:00.000Z".to_owned(), "invalid_generation"),
    ] {
        for key in ["Bearer mb_0000000000000000000000000000000000000000000000000000000000000000", "Bearer x"] {
            let request = Request::builder().method(method).uri(&path).header(AUTHORIZATION, key);
            let told = exchange(world.router(), request.body(Body::empty()).unwrap()).await;
            assert_eq!((told.status, told.word.as_str()), (400, word), "{method} {path}");
        }
    }
}

#[tokio::test]
async fn who_shows_no_key_is_refused_before_the_body_is_read() {
    let world = World::new().await;
    let path = format!("/containers/exec?{NAMED}");
    let request = Request::post(&path).header(AUTHORIZATION, "Bearer mb_x").body(Body::from("{")).unwrap();
    let told = exchange(world.router(), request).await;
    assert_eq!((told.status, told.word.as_str()), (401, "unauthorized"));
    assert_eq!(told.response.headers()[WWW_AUTHENTICATE], "Bearer");
    let told = exchange(world.router(), Request::get("/containers").body(Body::empty()).unwrap()).await;
    assert_eq!(told.status, 401);
    // Then the body, and only then whether the container is there.
    is(call(&world, "POST", &path, "{").await, 400, "invalid_request");
    is(call(&world, "POST", &path, r#"{"command":"a","user":"root"}"#).await, 400, "invalid_request");
    is(call(&world, "POST", &path, r#"{"command":"a","timeoutMs":60001}"#).await, 400, "invalid_request");
    is(call(&world, "POST", &path, &"x".repeat(40_000)).await, 413, "request_too_large");
    is(call(&world, "POST", &path, r#"{"command":"a"}"#).await, 409, "container_not_running");
}

#[tokio::test]
async fn keys_of_calls_have_the_form_of_the_dialect() {
    let world = World::new().await;
    let executions = format!("/containers/executions?{NAMED}");
    is(call(&world, "POST", &executions, r#"{"command":"a"}"#).await, 400, "invalid_idempotency_key");
    for wrong in ["", "a b", "a.b", &"x".repeat(129)] {
        let request = with_key(&world, "POST", "/containers").header("idempotency-key", wrong);
        let told = exchange(world.router(), request.body(Body::from("{}")).unwrap()).await;
        assert_eq!((told.status, told.word.as_str()), (400, "invalid_idempotency_key"), "{wrong}");
    }
}

#[tokio::test]
async fn what_is_not_a_creation_is_told_in_its_words() {
    let world = World::new().await;
    for (body, status, word) in [
        (r#"{"catalogId":"rust"}"#, 404, "image_not_found"),
        (r#"{"size":"huge"}"#, 400, "invalid_size"),
        (r#"{"internet":"no"}"#, 400, "invalid_internet_policy"),
        (r#"{"lifecycle":"production"}"#, 400, "invalid_request"),
        (r#"[]"#, 400, "invalid_request"),
    ] {
        is(call(&world, "POST", "/containers", body).await, status, word);
    }
    // What this world has no engine for is no reason to ask again with the same key.
    is(call(&world, "DELETE", "/containers", "").await, 409, "container_not_running");
}

#[tokio::test]
async fn the_native_api_alone_is_there_where_the_dialect_is_off() {
    let world = World::new().await;
    for (access, dialects) in [(Access::Keys, Dialects::NONE), (Access::Local, Dialects::NONE)] {
        let router = router(world.platform.clone(), access, world::front(), dialects);
        let request = Request::get("/capabilities").body(Body::empty()).unwrap();
        let told = exchange(router, request).await;
        assert_eq!((told.status, told.word.as_str()), (404, ""));
    }
}
