//! A platform that could start nothing, and requests to it as callers of every kind make them. Must leave nothing
//! behind, also where a test panics.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{Request, Response};
use http_body_util::BodyExt;
use remuda_control::{Config, Fingerprint, Parts, Platform};
use remuda_gateway::{Access, Dialects, Domain, Front, HttpCourier, router};
use remuda_types::limits::{KEYS_LIVE_MS_DEFAULT, RECONCILE_EVERY_MS_DEFAULT, TIMEOUT_MS_MAX_DEFAULT};
use remuda_types::wire::{CreateAccessKey, MadeAccessKey};
use remuda_types::{AccessScope, QuotaLimits};
use serde_json::Value;
use tower::ServiceExt;

/// A platform; no test here asks it to start anything.
pub struct World {
    pub platform: Platform,
    /// The secret of the first key, which may do everything that a key may.
    pub secret: String,
    _directory: tempfile::TempDir,
}

impl World {
    pub async fn new() -> World {
        let directory = tempfile::tempdir().unwrap();
        let absent = directory.path().join("absent");
        let digest = || "0".repeat(64);
        let parts = Parts {
            fingerprint: Fingerprint { runsc: digest(), agent: digest(), base: digest() },
            runsc_version: "runsc version none".into(),
            runsc: absent.clone(),
            agent_dir: absent.clone(),
            base_dir: absent,
        };
        let config = Config {
            data_dir: directory.path().join("data"),
            parts,
            quotas: QuotaLimits::default(),
            timeout_ms_max: TIMEOUT_MS_MAX_DEFAULT,
            reconcile_every: Duration::from_millis(RECONCILE_EVERY_MS_DEFAULT),
            scrub_every: Duration::from_secs(86_400),
            egress: Err("no test of these needs it".into()),
            keys_live: Duration::from_millis(KEYS_LIVE_MS_DEFAULT),
            courier: Arc::new(HttpCourier::new(false)),
        };
        let platform = Platform::open(config).await.unwrap();
        let secret = platform.first_key(None).await.unwrap().expect("a fresh server makes a key").reveal();
        World { platform, secret, _directory: directory }
    }

    /// What is served on TCP.
    pub fn router(&self) -> Router {
        router(self.platform.clone(), Access::Keys, front(), Dialects::ALL)
    }

    /// A request with the first key.
    #[allow(dead_code, reason = "not every test binary needs it")]
    pub fn request(&self, method: &str, path: &str) -> http::request::Builder {
        request_with(&self.secret, method, path)
    }

    /// Calls on TCP.
    pub async fn call(&self, request: Request<Body>) -> (Response<()>, Value) {
        exchange(self.router(), request).await
    }

    /// Calls as the operator does, on the root-only socket.
    #[allow(dead_code, reason = "not every test binary needs it")]
    pub async fn call_locally(&self, method: &str, path: &str, body: &Value) -> (Response<()>, Value) {
        let request = Request::builder().method(method).uri(path).header(CONTENT_TYPE, "application/json");
        let request = request.body(Body::from(body.to_string())).unwrap();
        exchange(router(self.platform.clone(), Access::Local, front(), Dialects::NONE), request).await
    }

    /// Calls with a key, and gives status and body.
    #[allow(dead_code, reason = "not every test binary needs it")]
    pub async fn call_with(&self, secret: &str, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let request = request_with(secret, method, path).header(CONTENT_TYPE, "application/json");
        let (response, body) = self.call(request.body(Body::from(body.to_string())).unwrap()).await;
        (response.status().as_u16(), body)
    }

    /// A key that the operator makes.
    #[allow(dead_code, reason = "not every test binary needs it")]
    pub async fn key(&self, scopes: &[AccessScope], change: impl FnOnce(&mut CreateAccessKey)) -> MadeAccessKey {
        let mut request = CreateAccessKey {
            scopes: scopes.to_vec(),
            narrowing: None,
            label: None,
            expires_in_ms: None,
            account: None,
        };
        change(&mut request);
        let (response, body) = self.call_locally("POST", "/v1/keys", &serde_json::to_value(&request).unwrap()).await;
        assert_eq!(response.status().as_u16(), 201, "{body}");
        serde_json::from_value(body).unwrap()
    }

    /// Calls, and gives the code of the error that is expected.
    #[allow(dead_code, reason = "not every test binary needs it")]
    pub async fn refused(&self, request: Request<Body>) -> String {
        let line = format!("{} {}", request.method(), request.uri());
        let (response, body) = self.call(request).await;
        let code = body["error"]["code"].as_str().unwrap_or_else(|| panic!("{line}: {response:?} {body}")).to_owned();
        assert_eq!(response.headers()["x-remuda-error"], code.as_str(), "{line}");
        assert!(response.status().as_u16() >= 400 && !body["error"]["message"].as_str().unwrap().is_empty(), "{line}");
        code
    }
}

/// Where previews are found, on no TCP port.
pub fn front() -> Front {
    Front::below(Domain::default())
}

fn request_with(secret: &str, method: &str, path: &str) -> http::request::Builder {
    Request::builder().method(method).uri(path).header(AUTHORIZATION, format!("Bearer {secret}"))
}

async fn exchange(router: Router, request: Request<Body>) -> (Response<()>, Value) {
    let (parts, body) = router.oneshot(request).await.unwrap().into_parts();
    let bytes = body.collect().await.unwrap().to_bytes();
    (Response::from_parts(parts, ()), serde_json::from_slice(&bytes).unwrap_or(Value::Null))
}

impl Drop for World {
    /// A platform has places outside of its data directory, which go when it is shut down.
    fn drop(&mut self) {
        let platform = self.platform.clone();
        // Within a runtime none can be waited for; this one is another thread's.
        let ending = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(platform.shut_down()).unwrap();
        });
        assert!(ending.join().is_ok() || std::thread::panicking());
    }
}
