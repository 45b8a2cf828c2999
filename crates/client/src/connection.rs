//! Where the server is, and how this client treats calls that change something. Sends nothing itself.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderValue, Method};
use remuda_types::{Key, SandboxId};

use crate::error::cause;
use crate::keys::{Keys, LOST_SECONDS_MAX};
use crate::request::{Call, Change, Request};
use crate::{CONNECT_SECONDS_MAX, ClientError, IDLE_CONNECTIONS_MAX, IDLE_SECONDS_MAX, Pending};

/// A client of one server. Clones share its connections.
#[derive(Clone)]
pub struct Client {
    http: reqwest::Client,
    /// Scheme, host and prefix, without a slash at its end.
    base: Arc<str>,
    /// What errors call the server.
    target: Arc<str>,
    /// The whole header, marked sensitive; absent on the unix socket.
    authorization: Option<HeaderValue>,
    /// What becomes of calls that change something.
    keys: Keys,
    /// The key of the next such call, where the caller has chosen one.
    key: Option<Key>,
    /// How long a server that was lost is looked for.
    lost_max: Duration,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("target", &self.target).finish_non_exhaustive()
    }
}

impl Client {
    /// A client of the server at `url` (`http://host:port`, a path prefix is allowed) with its API key.
    ///
    /// # Errors
    /// [`ClientError::Input`] if the URL or the key can't be used. Nothing is connected yet.
    pub fn tcp(url: &str, api_key: &str) -> Result<Client, ClientError> {
        let parsed: reqwest::Url = url.parse().map_err(|cause| {
            ClientError::Input(format!("the server's URL is none: {cause}; give one like http://127.0.0.1:8787"))
        })?;
        // The URL is not repeated in these: it may hold a password.
        if parsed.scheme() != "http" {
            return Err(ClientError::Input(
                "the server's URL must begin with http://: this client speaks no TLS; reach a remote server through a tunnel".into(),
            ));
        }
        if !parsed.username().is_empty() || parsed.password().is_some() {
            return Err(ClientError::Input(
                "the server's URL holds a user name or password: give the API key apart from it".into(),
            ));
        }
        if parsed.query().is_some() || parsed.fragment().is_some() {
            return Err(ClientError::Input(format!("the server's URL {url:?} has a query or fragment: leave it out")));
        }
        if api_key.is_empty() || !api_key.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(ClientError::Input(
                "the API key is empty or has characters that no key has: give the key that `remuda serve` printed"
                    .into(),
            ));
        }
        let mut authorization = HeaderValue::try_from(format!("Bearer {api_key}"))
            .map_err(|_| ClientError::Input("the API key can't stand in a header".into()))?;
        authorization.set_sensitive(true);
        let base = parsed.as_str().trim_end_matches('/');
        Ok(Client::new(build(reqwest::Client::builder())?, base.into(), base.into(), Some(authorization)))
    }

    /// A client of the local server behind its unix socket; being allowed to open the socket is the credential.
    ///
    /// # Errors
    /// [`ClientError::Input`] if the client can't be made. Nothing is connected yet.
    pub fn unix(socket: impl AsRef<Path>) -> Result<Client, ClientError> {
        let socket = socket.as_ref();
        let http = build(reqwest::Client::builder().unix_socket(socket.to_path_buf()))?;
        Ok(Client::new(http, "http://localhost".into(), socket.display().to_string().into(), None))
    }

    fn new(http: reqwest::Client, base: Arc<str>, target: Arc<str>, authorization: Option<HeaderValue>) -> Client {
        let lost_max = Duration::from_secs(LOST_SECONDS_MAX);
        Client { http, base, target, authorization, keys: Keys::default(), key: None, lost_max }
    }

    /// Loses nothing: every call that changes something gets a key of its own, which is written down in `pending`
    /// together with the exact request before that is sent, and forgotten when the outcome is known. A call that gets
    /// no answer is sent again with both, for a limited time; then the error names the key. Reads are repeated too.
    #[must_use]
    pub fn keeping(self, pending: Pending) -> Client {
        Client { keys: Keys::Kept(pending), ..self }
    }

    /// As [`Client::keeping`], but keys and requests are in memory alone, and lost with the process.
    #[must_use]
    pub fn repeating(self) -> Client {
        Client { keys: Keys::InMemory, ..self }
    }

    /// With the caller's own key for the next call that changes something. A second such call needs another key, unless
    /// it is of another kind or for another sandbox; what came of the first is told again to one that is the same.
    #[must_use]
    pub fn with_key(&self, key: Key) -> Client {
        Client { key: Some(key), ..self.clone() }
    }

    /// How long a server that was lost is looked for before a call fails; [`LOST_SECONDS_MAX`] seconds by default.
    #[must_use]
    pub fn looking_for(self, lost_max: Duration) -> Client {
        Client { lost_max, ..self }
    }

    /// Where it keeps its calls, if it does.
    pub fn pending(&self) -> Option<&Pending> {
        match &self.keys {
            Keys::Kept(pending) => Some(pending),
            Keys::Given | Keys::InMemory => None,
        }
    }

    /// What errors call the server: its URL or the path of its socket.
    pub fn target(&self) -> &str {
        &self.target
    }

    /// Begins a call that changes nothing, or has no key. `path` has its segments encoded already.
    pub(crate) fn call(&self, method: Method, path: impl AsRef<str>) -> Request {
        self.begin(method, path.as_ref(), None)
    }

    /// Begins a call that changes something: an operation of this kind, on that sandbox where it addresses one.
    pub(crate) fn change(
        &self,
        kind: &'static str,
        sandbox: Option<&SandboxId>,
        method: Method,
        path: impl AsRef<str>,
    ) -> Request {
        self.begin(method, path.as_ref(), Some(Change { kind: kind.into(), sandbox: sandbox.cloned() }))
    }

    fn begin(&self, method: Method, path: &str, change: Option<Change>) -> Request {
        let call = Call { text: format!("{method} {path}"), target: self.target.clone() };
        Request::new(self.clone(), call, method, path, change)
    }

    pub(crate) fn http(&self) -> &reqwest::Client {
        &self.http
    }

    /// The URL of an encoded path.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("{}{path}", self.base)
    }

    pub(crate) fn authorization(&self) -> Option<&HeaderValue> {
        self.authorization.as_ref()
    }

    pub(crate) fn keys(&self) -> (&Keys, Option<&Key>) {
        (&self.keys, self.key.as_ref())
    }

    pub(crate) fn lost_max(&self) -> Duration {
        self.lost_max
    }
}

fn build(builder: reqwest::ClientBuilder) -> Result<reqwest::Client, ClientError> {
    builder
        .connect_timeout(Duration::from_secs(CONNECT_SECONDS_MAX))
        .pool_idle_timeout(Duration::from_secs(IDLE_SECONDS_MAX))
        .pool_max_idle_per_host(IDLE_CONNECTIONS_MAX)
        .tcp_nodelay(true)
        .retry(reqwest::retry::never())
        // A redirect could carry the key elsewhere, and an application's redirect is the caller's to see.
        .redirect(reqwest::redirect::Policy::none())
        // A proxy from the environment would see the key.
        .no_proxy()
        .build()
        .map_err(|error| ClientError::Input(format!("the HTTP client can't be made: {}", cause(&error))))
}
