//! A request that names a preview: let in, passed on, and cut off when the way is closed while it is under way.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use axum::response::{IntoResponse as _, Response};
use http::header::{CONNECTION, LOCATION, ORIGIN, REFERRER_POLICY, SET_COOKIE, UPGRADE};
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, Version};
use remuda_control::{GuestStream, PreviewCredential, PreviewPass, PreviewToken};
use remuda_types::wire::PreviewAuth;
use remuda_types::{Error, ErrorCode, PreviewId};

use super::answers::{Reader, answer};
use super::headers::{Coming, Names};
use super::{Door, LINK_PATH, Named, TOKEN_HEADER, cookie, cookie_seconds_max};
use crate::errors::invalid;
use crate::limits::{PREVIEW_DIAL_MS_MAX, PREVIEW_FRAME_BYTES_MAX, PREVIEW_HEAD_MS_MAX, PREVIEW_IDLE_MS_MAX};
use crate::relay::activity::Activity;
use crate::relay::headers::{forwarded, upgrade_wanted};
use crate::relay::pool::{Lease, Pool};
use crate::relay::send::{Answer, send_alone};
use crate::relay::tunnel::{self, Limits};
use crate::serve::Connection;

/// Answers a request that names a preview.
pub(super) async fn through(door: &Door, named: Named, authority: &str, request: Request) -> Response {
    let reader = Reader::of(request.method(), request.headers());
    let passed = match named {
        Named::Token(token) => match door.platform.enter_by_name(&token) {
            Ok(pass) => pass_on(door, pass, authority, String::new(), request).await,
            Err(error) => Err(error),
        },
        Named::Id(id) => by_id(door, id, authority, None, request).await,
        Named::Path(id, length) => by_id(door, id, authority, Some(length), request).await,
        Named::Unknown => Err(Error::new(ErrorCode::PreviewNotFound, "there is no preview of this name")
            .cause("the name was never given out here, or it is no longer on record")
            .remedy("look at the URL, or make a preview: remuda preview create ID PORT")),
    };
    passed.unwrap_or_else(|error| answer(error, reader))
}

/// A preview that is named by its id, with the credential beside it. `below` is how long the path before the
/// application's is, where the path names it.
async fn by_id(
    door: &Door,
    id: PreviewId,
    authority: &str,
    below: Option<usize>,
    mut request: Request,
) -> Result<Response, Error> {
    if below.is_none()
        && let Some(ticket) = request.uri().path().strip_prefix(LINK_PATH)
    {
        let (ticket, get, tls) = (ticket.to_owned(), request.method() == Method::GET, is_tls(&request));
        return link(door, &id, &ticket, get, tls).await;
    }
    let token = header_token(request.headers())?;
    // All paths are of one origin, so that no path has a cookie of its own.
    let shown = if below.is_none() { cookie::shown(request.headers()) } else { None };
    let pass = match (&token, &shown) {
        (Some(token), _) => door.platform.enter_by_id(&id, PreviewCredential::Header(token))?,
        (None, Some(value)) => {
            let pass = door.platform.enter_by_id(&id, PreviewCredential::Cookie(value))?;
            let names = names(&pass, authority, String::new(), &request);
            own_origin(&names, &request)?;
            pass
        }
        (None, None) => door.platform.enter_by_id(&id, PreviewCredential::Missing)?,
    };
    let prefix = match below {
        Some(length) => {
            let prefix = request.uri().path()[..length].to_owned();
            let rest = request.uri().path_and_query().map_or("", PathAndQuery::as_str)[length..].to_owned();
            let rest = if rest.starts_with('/') { rest } else { format!("/{rest}") };
            *request.uri_mut() = rest.parse().map_err(|e| invalid("the path is not understood").cause(e))?;
            prefix
        }
        None => String::new(),
    };
    pass_on(door, pass, authority, prefix, request).await
}

/// The credential in the header.
fn header_token(headers: &HeaderMap) -> Result<Option<PreviewToken>, Error> {
    let mut values = headers.get_all(TOKEN_HEADER).iter();
    let (Some(value), another) = (values.next(), values.next()) else { return Ok(None) };
    let token = value.to_str().ok().and_then(|text| text.trim().parse().ok()).filter(|_| another.is_none());
    // It is never said what came instead.
    let wrong = || {
        Error::new(ErrorCode::Unauthorized, "this preview needs its credential")
            .cause("the header X-Remuda-Preview-Token holds none: it has 48 hex digits")
            .remedy("send the header once, with the token that `remuda preview create` printed")
    };
    token.map(Some).ok_or_else(wrong)
}

/// A browser sends a cookie along whoever makes it ask. Only what the preview's own pages ask for is let in by it, and what
/// a person goes to.
fn own_origin(names: &Names, request: &Request) -> Result<(), Error> {
    let text = |name: &str| request.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let own = match request.headers().get(ORIGIN) {
        Some(origin) => names.is_own_origin(origin),
        None => {
            let goes_there = text("sec-fetch-mode") == "navigate" && request.method().is_safe();
            ["", "same-origin", "none"].contains(&text("sec-fetch-site")) || goes_there
        }
    };
    if own {
        return Ok(());
    }
    Err(Error::new(ErrorCode::Forbidden, "another site may not use this preview's cookie")
        .cause("the request comes from a page of another origin")
        .remedy("open the preview itself, or send the header X-Remuda-Preview-Token"))
}

/// Follows a link that works once: a cookie is set, and the browser goes to the application.
async fn link(door: &Door, id: &PreviewId, ticket: &str, get: bool, tls: bool) -> Result<Response, Error> {
    if !get {
        // Whoever only looks must not use it up.
        return Err(
            Error::new(ErrorCode::MethodNotAllowed, "this link is followed with GET").remedy("open it in a browser")
        );
    }
    let unknown = || {
        Error::new(ErrorCode::Unauthorized, "this preview needs its credential")
            .cause("the link is not one of this preview")
            .remedy("open the link that `remuda preview create` printed, whole")
    };
    let ticket: PreviewToken = ticket.parse().map_err(|_| unknown())?;
    let value = door.platform.follow_preview_link(id, &ticket).await?;
    let set = cookie::set(&value, cookie_seconds_max(), tls)
        .ok_or_else(|| Error::new(ErrorCode::Internal, "the cookie can't be written"))?;
    let mut response = StatusCode::SEE_OTHER.into_response();
    let headers = response.headers_mut();
    headers.insert(LOCATION, HeaderValue::from_static("/"));
    headers.insert(SET_COOKIE, set);
    headers.insert(http::header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    Ok(response)
}

fn is_tls(request: &Request) -> bool {
    request.extensions().get::<Connection>().is_some_and(|connection| connection.tls)
}

fn names(pass: &PreviewPass, authority: &str, prefix: String, request: &Request) -> Names {
    Names::of(Coming {
        id: pass.id(),
        auth: if prefix.is_empty() && !is_below_id(pass, authority) { pass.auth() } else { PreviewAuth::Header },
        host: pass.host(),
        port: pass.port(),
        tls: is_tls(request),
        authority,
        prefix,
    })
}

/// Whether the name that a request came by holds the id and no credential.
fn is_below_id(pass: &PreviewPass, authority: &str) -> bool {
    authority.split('.').next().is_some_and(|label| label.eq_ignore_ascii_case(pass.id().as_str()))
}

/// Passes on a request of somebody who was let in.
async fn pass_on(
    door: &Door,
    pass: PreviewPass,
    authority: &str,
    prefix: String,
    mut request: Request,
) -> Result<Response, Error> {
    let names = names(&pass, authority, prefix, &request);
    let connection = request.extensions().get::<Connection>().cloned();
    let http1 = matches!(request.version(), Version::HTTP_10 | Version::HTTP_11);
    let upgrade = upgrade_wanted(request.headers()).filter(|_| http1);
    let upgrading = upgrade.as_ref().map(|_| hyper::upgrade::on(&mut request));
    let (pass, activity) = (Arc::new(pass), Arc::new(Activity::begin()));

    let path = request.uri().path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
    let body = std::mem::take(request.body_mut());
    let body = match body.is_end_stream() {
        true => body,
        false => Body::new(Watched { body, activity: activity.clone() }),
    };
    let mut outgoing = hyper::Request::new(body);
    *outgoing.method_mut() = request.method().clone();
    *outgoing.uri_mut() = Uri::from(path);
    *outgoing.version_mut() = Version::HTTP_11;
    *outgoing.headers_mut() = forwarded(request.headers(), upgrade.as_ref());
    names.inward(outgoing.headers_mut(), connection.as_ref().and_then(|connection| connection.peer));

    let (mut incoming, lease) = tokio::select! {
        answered = send(&door.pool, &pass, outgoing) => answered?,
        over = pass.ended() => return Err(over),
        () = activity.idle_for(Duration::from_millis(PREVIEW_HEAD_MS_MAX)) => {
            return Err(hung_up(&pass, &format_args!("no answer began within {PREVIEW_HEAD_MS_MAX} ms"))
                .detail("limit", "preview_head_ms_max"));
        }
    };
    let switched = incoming.status() == StatusCode::SWITCHING_PROTOCOLS;
    let agreed = upgrade_wanted(incoming.headers()).filter(|_| switched);
    let mut response = Response::new(Body::empty());
    *response.status_mut() = incoming.status();
    *response.headers_mut() = forwarded(incoming.headers(), agreed.as_ref());
    names.outward(response.headers_mut());
    if switched {
        let (Some(client), Some(protocol)) = (upgrading, agreed) else {
            return Err(hung_up(&pass, &"it switched protocols without being asked to"));
        };
        let websocket = protocol.as_bytes().eq_ignore_ascii_case(b"websocket");
        let guest = hyper::upgrade::on(&mut incoming);
        tokio::spawn(carry(client, guest, websocket, pass, connection));
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("upgrade"));
        response.headers_mut().insert(UPGRADE, protocol);
        return Ok(response);
    }
    // What a protocol of one hop says has no place in HTTP/2.
    let body = incoming.into_body();
    *response.body_mut() = match (body.is_end_stream(), lease) {
        (true, lease) => {
            lease.into_iter().for_each(Lease::give_back);
            Body::empty()
        }
        (false, lease) => Body::new(Guarded { body, pass, activity, lease, over: None }),
    };
    Ok(response)
}

/// Sends a request to the application, over a connection that stood idle where that may be. Gives back by what it came, if it
/// may be used again.
async fn send(
    pool: &Pool,
    pass: &PreviewPass,
    request: hyper::Request<Body>,
) -> Result<(Answer, Option<Lease>), Error> {
    if !Pool::takes(&request) {
        let stream = dial(pass).await?;
        return Ok((send_alone(stream, request).await.map_err(|e| hung_up(pass, &e))?, None));
    }
    let (head, _) = request.into_parts();
    let whole = || hyper::Request::from_parts(head.clone(), Body::empty());
    // It may be closed by the application at this very moment: then the request is sent again, which harms nobody.
    if let Some(mut lease) = pool.take(pass.id()).await
        && let Ok(answer) = lease.send(whole()).await
    {
        return Ok((answer, Some(lease)));
    }
    let may_idle = pass.may_idle();
    let stream = dial(pass).await?;
    let mut lease = pool.open(pass.id(), stream, may_idle).await.map_err(|e| hung_up(pass, &e))?;
    let answer = lease.send(whole()).await.map_err(|e| hung_up(pass, &e))?;
    Ok((answer, Some(lease)))
}

/// Connects to the application, within the limit.
async fn dial(pass: &PreviewPass) -> Result<GuestStream, Error> {
    let limit = Duration::from_millis(PREVIEW_DIAL_MS_MAX);
    let dialled = tokio::time::timeout(limit, pass.dial()).await;
    dialled.unwrap_or_else(|_| {
        Err(Error::new(ErrorCode::PortUnreachable, format!("port {} did not answer", pass.port()))
            .cause(format!("no connection came about within {PREVIEW_DIAL_MS_MAX} ms"))
            .remedy("look what the sandbox does: remuda ps ID")
            .detail("limit", "preview_dial_ms_max"))
    })
}

/// Carries what both sides have switched to, until the way is closed or the server ends.
async fn carry(
    client: hyper::upgrade::OnUpgrade,
    guest: hyper::upgrade::OnUpgrade,
    websocket: bool,
    pass: Arc<PreviewPass>,
    connection: Option<Connection>,
) {
    let over = async {
        let ending = async {
            match &connection {
                Some(connection) => connection.shutdown.cancelled().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = ending => (1001, "the server is ending"),
            _ = pass.ended() => (1008, "this preview is closed"),
        }
    };
    let limits = Limits {
        idle: Some(Duration::from_millis(PREVIEW_IDLE_MS_MAX)),
        frame_bytes_max: websocket.then_some(PREVIEW_FRAME_BYTES_MAX),
    };
    tunnel::join(client, guest, limits, over).await;
    // It counts as the connection it came by, and among those through the preview, until here.
    drop((pass, connection));
}

fn hung_up(pass: &PreviewPass, cause: &dyn std::fmt::Display) -> Error {
    Error::new(ErrorCode::PortUnreachable, format!("port {} gave no HTTP answer", pass.port()))
        .cause(cause)
        .remedy("look whether an HTTP server listens there and what it wrote, with `remuda logs`")
}

/// A request's body that tells when something of it moves.
struct Watched {
    body: Body,
    activity: Arc<Activity>,
}

impl HttpBody for Watched {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, axum::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        if frame.is_ready() {
            self.activity.touch();
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.body.size_hint()
    }
}

/// An answer's body, for as long as the way is open and something moves.
struct Guarded {
    body: hyper::body::Incoming,
    pass: Arc<PreviewPass>,
    activity: Arc<Activity>,
    /// What the answer comes by, where that may be used again.
    lease: Option<Lease>,
    /// Begun once something is waited for.
    over: Option<Pin<Box<dyn Future<Output = Cut> + Send>>>,
}

/// Why an answer was cut off.
#[derive(Debug, thiserror::Error)]
enum Cut {
    #[error("{0}")]
    Over(Error),
    #[error("nothing moved for {PREVIEW_IDLE_MS_MAX} ms")]
    Idle,
    #[error(transparent)]
    Guest(hyper::Error),
}

impl HttpBody for Guarded {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, Cut>>> {
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        match &frame {
            Poll::Ready(None) => {
                self.lease.take().into_iter().for_each(Lease::give_back);
                return Poll::Ready(None);
            }
            Poll::Ready(Some(Ok(_))) if self.body.is_end_stream() => {
                self.lease.take().into_iter().for_each(Lease::give_back);
            }
            // More is to come, now or later: from here on it is seen to that the way is open.
            _ => {
                let (pass, activity) = (self.pass.clone(), self.activity.clone());
                let over = self.over.get_or_insert_with(|| {
                    Box::pin(async move {
                        tokio::select! {
                            over = pass.ended() => Cut::Over(over),
                            () = activity.idle_for(Duration::from_millis(PREVIEW_IDLE_MS_MAX)) => Cut::Idle,
                        }
                    })
                });
                if let Poll::Ready(cut) = over.as_mut().poll(cx) {
                    tracing::debug!(%cut, "an answer through a preview is cut off");
                    return Poll::Ready(Some(Err(cut)));
                }
            }
        }
        if frame.is_ready() {
            self.activity.touch();
        }
        frame.map_err(Cut::Guest)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.body.size_hint()
    }
}
