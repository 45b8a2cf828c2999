//! One call, from its parts to its answer. A call that changes something goes out with its key, is sent again with the
//! same key and the same body while its answer is missing, and is forgotten on disk only when its outcome is known.
//! Never sends a changing call twice without a key.

use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, IF_MATCH, IF_NONE_MATCH};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use remuda_types::error::ErrorBody;
use remuda_types::{Key, SandboxId};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::cause;
use crate::keys::{Keys, Patience, new_key};
use crate::local_file::LocalFile;
use crate::pending::{KEPT_BODY_BYTES_MAX, KeptBody, KeptCall, PendingCall};
use crate::{ANSWER_BYTES_MAX, Client, ClientError, Incoming};

/// How many bytes of a foreign answer an error quotes.
const EXCERPT_BYTES_MAX: usize = 200;
/// Carries the key.
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// Says that an answer is the outcome of an earlier sending.
const IDEMPOTENT_REPLAY: &str = "idempotent-replay";
/// Kinds of operations that only take away: a disk that is too full for a key must not keep them from making room, and
/// a second one finds nothing more to take.
const TAKING_AWAY: &[&str] = &["remove", "remove_snapshot", "remove_file", "cancel"];

/// What errors say about a call.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    pub(crate) text: String,
    pub(crate) target: Arc<str>,
}

impl Call {
    pub(crate) fn transport(&self, error: reqwest::Error) -> ClientError {
        if error.is_builder() {
            return ClientError::Input(format!("{} can't be made: {}", self.text, cause(&error)));
        }
        let sent = !error.is_connect();
        let (call, target) = (self.text.clone(), self.target.to_string());
        ClientError::Transport { call, target, sent, cause: cause(&error) }
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

/// Which operation a call begins, as its key is scoped.
#[derive(Debug, Clone)]
pub(crate) struct Change {
    pub(crate) kind: String,
    pub(crate) sandbox: Option<SandboxId>,
}

/// A call that has not been sent.
pub(crate) struct Request {
    client: Client,
    call: Call,
    builder: reqwest::RequestBuilder,
    change: Option<Change>,
    file: Option<LocalFile>,
}

impl Request {
    pub(crate) fn new(client: Client, call: Call, method: Method, path: &str, change: Option<Change>) -> Self {
        let mut builder = client.http().request(method, client.url(path));
        if let Some(authorization) = client.authorization() {
            builder = builder.header(AUTHORIZATION, authorization.clone());
        }
        Request { client, call, builder, change, file: None }
    }

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

    /// With a body that is read from a file each time the call is sent.
    pub(crate) fn file(self, file: LocalFile) -> Self {
        let builder = match file.content_digest() {
            Some(digest) => self.builder.header("content-digest", digest),
            None => self.builder,
        };
        Request { builder, file: Some(file), ..self }
    }

    /// The call's name for errors.
    pub(crate) fn name(&self) -> Call {
        self.call.clone()
    }

    /// Sends it once and gives the answer whatever its status is.
    pub(crate) async fn send_raw(self) -> Result<Incoming, ClientError> {
        match self.builder.send().await {
            Ok(response) => Ok(Incoming::new(self.call, response)),
            Err(error) => Err(self.call.transport(error)),
        }
    }

    /// Sends it and gives a good answer whose body is still to be read. For calls that change nothing.
    pub(crate) async fn send(self) -> Result<Incoming, ClientError> {
        let mut sending = self.prepare().await?;
        loop {
            match sending.once().await {
                Ok(incoming) => return Ok(incoming),
                Err(missed) => sending.wait(missed).await?,
            }
        }
    }

    /// Sends it and reads the answer as JSON.
    pub(crate) async fn read<T: DeserializeOwned>(self) -> Result<T, ClientError> {
        let (mut sending, status, body) = self.exchange().await?;
        match serde_json::from_slice(&body) {
            Ok(value) => {
                sending.settled();
                Ok(value)
            }
            Err(cause) => {
                let problem = format!("the answer is not what this client expects ({cause}): {}", excerpt(&body));
                let error = sending.call.protocol(status, problem);
                Err(sending.concluded(error, false))
            }
        }
    }

    /// Sends it and expects nothing but success.
    pub(crate) async fn done(self) -> Result<(), ClientError> {
        self.exchange().await?.0.settled();
        Ok(())
    }

    /// Sends it until it has a good answer, which is read whole, as it is part of the answer.
    async fn exchange(self) -> Result<(Sending, StatusCode, Bytes), ClientError> {
        let mut sending = self.prepare().await?;
        loop {
            let missed = match sending.once().await {
                Ok(incoming) => {
                    let status = incoming.status();
                    match incoming.collect(ANSWER_BYTES_MAX).await {
                        Ok(body) => return Ok((sending, status, body)),
                        Err(error) => Missed { error, replayed: false },
                    }
                }
                Err(missed) => missed,
            };
            sending.wait(missed).await?;
        }
    }

    /// Gives it its key, and writes both down where they are kept.
    async fn prepare(self) -> Result<Sending, ClientError> {
        let Request { client, call, builder, change, file } = self;
        let mut request = builder.build().map_err(|error| call.transport(error))?;
        let (keys, chosen) = client.keys();
        let repeats = !matches!(keys, Keys::Given);
        let key = match (&change, chosen) {
            (None, _) => None,
            (Some(_), Some(key)) => Some(key.clone()),
            (Some(_), None) if repeats => Some(new_key()?),
            (Some(_), None) => None,
        };
        let mut kept = None;
        if let (Some(change), Some(key)) = (change, &key) {
            let value = HeaderValue::try_from(key.as_str())
                .map_err(|_| ClientError::Input(format!("the key {key} can't stand in a header")))?;
            request.headers_mut().insert(IDEMPOTENCY_KEY, value);
            if let Keys::Kept(pending) = keys {
                let takes_away = TAKING_AWAY.contains(&change.kind.as_str());
                kept = match pending.keep(&record(&client, change, key, &request, file.as_ref())).await {
                    Ok(kept) => Some(kept),
                    Err(ClientError::NotKept { .. }) if takes_away => None,
                    Err(error) => return Err(error),
                };
            }
        }
        let patience = Patience::new(client.lost_max());
        Ok(Sending { client, call, request: Some(request), file, repeats, key, kept, patience })
    }
}

/// What is kept of a call.
fn record(
    client: &Client,
    change: Change,
    key: &Key,
    request: &reqwest::Request,
    file: Option<&LocalFile>,
) -> PendingCall {
    let bytes = request.body().map(reqwest::Body::as_bytes);
    let body = match (file, bytes) {
        (Some(file), _) => KeptBody::File { path: file.path.clone(), digest: file.digest.clone() },
        (None, None) => KeptBody::Nothing,
        (None, Some(Some(bytes))) if bytes.len() <= KEPT_BODY_BYTES_MAX => match std::str::from_utf8(bytes) {
            Ok(text) => KeptBody::Text(text.to_owned()),
            Err(_) => KeptBody::Base64(BASE64.encode(bytes)),
        },
        (None, Some(_)) => KeptBody::Stream,
    };
    let url = request.url().as_str();
    let header = |name| request.headers().get(name).and_then(|value| value.to_str().ok());
    let content_type = header(CONTENT_TYPE);
    let conditions = [IF_MATCH, IF_NONE_MATCH].into_iter();
    let conditions = conditions.filter_map(|name| Some((name.to_string(), header(name)?.to_owned()))).collect();
    PendingCall {
        version: PendingCall::version(&conditions),
        key: key.clone(),
        kind: change.kind,
        sandbox: change.sandbox,
        target: client.target().to_owned(),
        method: request.method().to_string(),
        path: url.strip_prefix(&client.url("")).unwrap_or(url).to_owned(),
        content_type: content_type.map(str::to_owned),
        conditions,
        body,
        kept_at_ms: now_ms(),
    }
}

fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// Why a sending had no good answer.
struct Missed {
    error: ClientError,
    /// Whether the error is the outcome of an earlier sending.
    replayed: bool,
}

/// A call that is being sent, once or more often.
struct Sending {
    client: Client,
    call: Call,
    /// What is sent; gone when it could be sent only once, as a stream.
    request: Option<reqwest::Request>,
    file: Option<LocalFile>,
    repeats: bool,
    key: Option<Key>,
    kept: Option<KeptCall>,
    patience: Patience,
}

impl Sending {
    /// Sends it once more and gives a good answer whose body is still to be read.
    async fn once(&mut self) -> Result<Incoming, Missed> {
        let missed = |error| Missed { error, replayed: false };
        let mut copy = self.request.as_ref().and_then(reqwest::Request::try_clone);
        if copy.is_none() {
            copy = self.request.take();
        }
        let Some(mut request) = copy else {
            let problem = format!("{} has a body that could be sent only once", self.call.text);
            return Err(missed(ClientError::Input(problem)));
        };
        if let Some(file) = &self.file {
            *request.body_mut() = Some(file.open().await.map_err(missed)?);
        }
        let response = self.client.http().execute(request).await;
        let incoming = match response {
            Ok(response) => Incoming::new(self.call.clone(), response),
            Err(error) => return Err(missed(self.call.transport(error))),
        };
        if incoming.status().is_success() {
            return Ok(incoming);
        }
        let replayed = incoming.headers().get(IDEMPOTENT_REPLAY).is_some_and(|value| value == "true");
        Err(Missed { error: api_error(&self.call, incoming).await, replayed })
    }

    /// Waits until it may be sent once more, or gives the error with which the call ends.
    async fn wait(&mut self, missed: Missed) -> Result<(), ClientError> {
        let Missed { error, replayed } = missed;
        let pause = match self.repeats && self.request.is_some() {
            true => self.patience.after(&error, replayed, Instant::now()),
            false => None,
        };
        match pause {
            // The server's silence has no event that could be waited for.
            Some(pause) => {
                tokio::time::sleep(pause).await;
                Ok(())
            }
            None => Err(self.concluded(error, replayed)),
        }
    }

    /// The error with which the call ends.
    fn concluded(&mut self, error: ClientError, replayed: bool) -> ClientError {
        let Some(key) = self.key.clone() else { return error };
        if !self.patience.leaves_open(&error, replayed) {
            self.settled();
            return error;
        }
        ClientError::OutcomeUnknown {
            key,
            call: self.call.text.clone(),
            target: self.call.target.to_string(),
            cause: Box::new(error),
            kept: self.kept.as_ref().map(|kept| kept.path().to_owned()),
        }
    }

    /// Its outcome is known.
    fn settled(&mut self) {
        if let Some(kept) = self.kept.take() {
            kept.forget();
        }
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

fn excerpt(body: &[u8]) -> String {
    if body.is_empty() {
        return "an empty body".into();
    }
    let text = String::from_utf8_lossy(&body[..body.len().min(EXCERPT_BYTES_MAX)]);
    format!("{text:?}")
}

impl Client {
    /// Sends a kept call again, with its key and its exact body, and gives the answer's JSON (null where it has no
    /// body). The caller forgets it on disk unless the outcome stays unknown.
    ///
    /// # Errors
    /// [`ClientError::Input`] if it can't be sent again: it was for another server, its body was a stream, or its file
    /// has changed. Otherwise as for the call itself.
    pub async fn send_again(&self, kept: &PendingCall) -> Result<serde_json::Value, ClientError> {
        let wrong = |problem: String| ClientError::Input(format!("the call with the key {} {problem}", kept.key));
        if kept.target != self.target() {
            return Err(wrong(format!("was for {}, and this client talks to {}", kept.target, self.target())));
        }
        let method = kept.method.parse().map_err(|_| wrong(format!("has no method: {:?}", kept.method)))?;
        let change = Change { kind: kept.kind.clone(), sandbox: kept.sandbox.clone() };
        let client = self.clone().repeating().with_key(kept.key.clone());
        let call = Call { text: format!("{} {}", kept.method, kept.path), target: self.target().into() };
        let mut request = Request::new(client, call, method, &kept.path, Some(change));
        if let Some(content_type) = &kept.content_type {
            request = Request { builder: request.builder.header(CONTENT_TYPE, content_type), ..request };
        }
        for (name, value) in &kept.conditions {
            request = Request { builder: request.builder.header(name, value), ..request };
        }
        request = match &kept.body {
            KeptBody::Nothing => request,
            KeptBody::Text(text) => request.body(text.clone()),
            KeptBody::Base64(text) => request.body(BASE64.decode(text).map_err(|e| wrong(format!("is damaged: {e}")))?),
            KeptBody::Stream => return Err(wrong("had a stream as its body, which is gone".into())),
            KeptBody::File { path, digest } => {
                let file = LocalFile::read(path).await?;
                if file.digest != *digest {
                    return Err(wrong(format!("was to send {}, which has changed since", path.display())));
                }
                request.file(file)
            }
        };
        let (mut sending, status, body) = request.exchange().await?;
        if body.is_empty() {
            return Ok(serde_json::Value::Null);
        }
        serde_json::from_slice(&body).map_err(|cause| {
            let problem = format!("the answer is no JSON ({cause}): {}", excerpt(&body));
            let error = sending.call.protocol(status, problem);
            sending.concluded(error, false)
        })
    }
}
