//! Where the server is and how one call is sent and answered. Never sends a call twice.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use remuda_types::error::ErrorBody;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::causes;
use crate::{ANSWER_BYTES_MAX, CONNECT_SECONDS_MAX, ClientError, IDLE_CONNECTIONS_MAX, IDLE_SECONDS_MAX, Incoming};

/// How many bytes of a foreign answer an error quotes.
const EXCERPT_BYTES_MAX: usize = 200;

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
        Ok(Client {
            http: build(reqwest::Client::builder())?,
            base: base.into(),
            target: base.into(),
            authorization: Some(authorization),
        })
    }

    /// A client of the local server behind its unix socket; being allowed to open the socket is the credential.
    ///
    /// # Errors
    /// [`ClientError::Input`] if the client can't be made. Nothing is connected yet.
    pub fn unix(socket: impl AsRef<Path>) -> Result<Client, ClientError> {
        let socket = socket.as_ref();
        Ok(Client {
            http: build(reqwest::Client::builder().unix_socket(socket.to_path_buf()))?,
            base: "http://localhost".into(),
            target: socket.display().to_string().into(),
            authorization: None,
        })
    }

    /// What errors call the server: its URL or the path of its socket.
    pub fn target(&self) -> &str {
        &self.target
    }

    /// Begins a call. `path` has its segments encoded already.
    pub(crate) fn call(&self, method: Method, path: impl AsRef<str>) -> Request {
        let path = path.as_ref();
        let mut builder = self.http.request(method.clone(), format!("{}{path}", self.base));
        if let Some(authorization) = &self.authorization {
            builder = builder.header(header::AUTHORIZATION, authorization.clone());
        }
        let call = Call { text: format!("{method} {path}"), target: self.target.clone() };
        Request { call, builder }
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
        .map_err(|error| ClientError::Input(format!("the HTTP client can't be made: {}", causes(error))))
}

/// What errors say about a call.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    text: String,
    target: Arc<str>,
}

impl Call {
    pub(crate) fn transport(&self, error: reqwest::Error) -> ClientError {
        if error.is_builder() {
            return ClientError::Input(format!("{} can't be made: {}", self.text, causes(error)));
        }
        let sent = !error.is_connect();
        ClientError::Transport { call: self.text.clone(), target: self.target.to_string(), sent, cause: causes(error) }
    }

    pub(crate) fn protocol(&self, status: StatusCode, problem: String) -> ClientError {
        ClientError::Protocol {
            call: self.text.clone(),
            target: self.target.to_string(),
            status: status.as_u16(),
            problem,
        }
    }
}

/// A call that has not been sent.
pub(crate) struct Request {
    call: Call,
    builder: reqwest::RequestBuilder,
}

impl Request {
    pub(crate) fn query<T: Serialize + ?Sized>(self, query: &T) -> Self {
        Request { builder: self.builder.query(query), ..self }
    }

    pub(crate) fn json<T: Serialize + ?Sized>(self, body: &T) -> Self {
        Request { builder: self.builder.json(body), ..self }
    }

    pub(crate) fn headers(self, headers: HeaderMap) -> Self {
        Request { builder: self.builder.headers(headers), ..self }
    }

    pub(crate) fn body(self, body: impl Into<reqwest::Body>) -> Self {
        Request { builder: self.builder.body(body), ..self }
    }

    /// Sends it and gives the answer whatever its status is.
    pub(crate) async fn send_raw(self) -> Result<Incoming, ClientError> {
        match self.builder.send().await {
            Ok(response) => Ok(Incoming::new(self.call, response)),
            Err(error) => Err(self.call.transport(error)),
        }
    }

    /// Sends it and gives a good answer whose body is still to be read.
    pub(crate) async fn send(self) -> Result<Incoming, ClientError> {
        let call = self.call.clone();
        let incoming = self.send_raw().await?;
        if incoming.status().is_success() { Ok(incoming) } else { Err(api_error(&call, incoming).await) }
    }

    /// Sends it and reads the answer as JSON.
    pub(crate) async fn read<T: DeserializeOwned>(self) -> Result<T, ClientError> {
        let call = self.call.clone();
        let incoming = self.send().await?;
        let status = incoming.status();
        let body = incoming.collect(ANSWER_BYTES_MAX).await?;
        serde_json::from_slice(&body).map_err(|cause| {
            call.protocol(status, format!("the answer is not what this client expects ({cause}): {}", excerpt(&body)))
        })
    }

    /// Sends it and expects nothing but success.
    pub(crate) async fn done(self) -> Result<(), ClientError> {
        self.send().await?.collect(ANSWER_BYTES_MAX).await.map(drop)
    }
}

/// Reads an answer that is an error.
pub(crate) async fn api_error(call: &Call, incoming: Incoming) -> ClientError {
    let status = incoming.status();
    let body = match incoming.collect(ANSWER_BYTES_MAX).await {
        Ok(body) => body,
        Err(error) => return error,
    };
    match serde_json::from_slice::<ErrorBody>(&body) {
        Ok(ErrorBody { error }) => ClientError::Api { status: status.as_u16(), error: Box::new(error) },
        Err(_) => call.protocol(status, format!("it is no error of the API: {}", excerpt(&body))),
    }
}

impl Request {
    /// The call's name for errors.
    pub(crate) fn name(&self) -> Call {
        self.call.clone()
    }
}

fn excerpt(body: &[u8]) -> String {
    if body.is_empty() {
        return "an empty body".into();
    }
    let text = String::from_utf8_lossy(&body[..body.len().min(EXCERPT_BYTES_MAX)]);
    format!("{text:?}")
}
