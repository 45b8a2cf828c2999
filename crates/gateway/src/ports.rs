//! The way to a guest's applications: `/v1/sandboxes/{id}/ports/{port}/…` is passed on to that port, streaming both
//! ways. Must never hand our credential to a guest, nor let a guest's answer pass for one of ours.

use axum::body::Body;
use axum::extract::{FromRequestParts, Request, State};
use axum::response::Response;
use http::header::{AUTHORIZATION, EXPECT, HOST};
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{HeaderValue, StatusCode, Uri, Version};
use remuda_control::Platform;
use remuda_types::error::ErrorBody;
use remuda_types::{Error, ErrorCode, SandboxId};
use utoipa::IntoParams;

use crate::calling::By;
use crate::errors::{Answer, Failure, invalid};
use crate::extract::path_parameter;
use crate::relay::Stream;
use crate::relay::headers::{forwarded, upgrade_wanted};
use crate::relay::send::send_alone;
use crate::relay::tunnel::{self, Limits};
use crate::serve::Connection;

/// What the router matches: with a path behind the port, with a slash alone, and with nothing.
pub(crate) const PATHS: [&str; 3] =
    ["/v1/sandboxes/{id}/ports/{port}/{*path}", "/v1/sandboxes/{id}/ports/{port}/", "/v1/sandboxes/{id}/ports/{port}"];
/// Segments before the application's own path, counting the empty one before the first slash.
const OWN_SEGMENTS: usize = 6;

/// A port of a sandbox in the path.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Path)]
pub(crate) struct OfPort {
    /// `slot@generation`, percent-encoded or not; a bare slot is refused.
    #[param(example = "c1@2026-10-08T12:00:00.000Z")]
    id: SandboxId,
    /// Port in the guest, 1–65535.
    #[param(minimum = 1)]
    port: u16,
}

impl<S: Sync> FromRequestParts<S> for OfPort {
    type Rejection = Failure;
    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Failure> {
        let id = path_parameter(parts, "id").await?.parse()?;
        let text = path_parameter(parts, "port").await?;
        match text.parse() {
            Ok(port) if port != 0 => Ok(OfPort { id, port }),
            _ => Err(Failure(invalid(format!("{text:?} is not a port: a number from 1 to 65535")))),
        }
    }
}

/// Passes a request on to a port of the guest, and its answer back.
///
/// Method, path, query, headers and body go through as they came, but for `Authorization`, `X-Remuda-*` and headers of
/// one hop. An answer with `X-Remuda-Error` is ours, any other the application's.
#[utoipa::path(method(get, head, post, put, patch, delete, options),
    path = "/v1/sandboxes/{id}/ports/{port}/{path}", tag = "ports", params(OfPort,
    ("path" = String, Path, description = "The application's own path, slashes included; passed on exactly as it came.")), responses(
    (status = "default", description = "What the application answered, or an error of ours.", body = ErrorBody,
        headers(("X-Remuda-Error" = String, description = "The error's code; only on errors of ours.")))))]
pub(crate) async fn proxy(
    State(platform): State<Platform>,
    By(caller): By,
    of: OfPort,
    request: Request,
) -> Answer<Response> {
    let target = target(request.uri())?;
    let stream = platform.dial(&caller, &of.id, of.port).await?;
    Ok(pass_on(stream, &of, target, request).await?)
}

/// The request over the connection to the application, and its answer back.
async fn pass_on(stream: impl Stream, of: &OfPort, target: Uri, mut request: Request) -> Result<Response, Error> {
    let upgrade = upgrade_wanted(request.headers());
    let upgrading = upgrade.as_ref().map(|_| hyper::upgrade::on(&mut request));
    let connection = request.extensions().get::<Connection>().cloned();

    let mut outgoing = hyper::Request::new(std::mem::take(request.body_mut()));
    *outgoing.method_mut() = request.method().clone();
    *outgoing.uri_mut() = target;
    *outgoing.version_mut() = Version::HTTP_11;
    let headers = outgoing.headers_mut();
    *headers = forwarded(request.headers(), upgrade.as_ref());
    headers.remove(AUTHORIZATION);
    // Answered by our own server as soon as the body is read.
    headers.remove(EXPECT);
    headers.insert(HOST, HeaderValue::try_from(format!("localhost:{}", of.port)).map_err(|e| hung_up(of, &e))?);

    let mut incoming = send_alone(stream, outgoing).await.map_err(|e| hung_up(of, &e))?;
    let switched = incoming.status() == StatusCode::SWITCHING_PROTOCOLS;
    let agreed = upgrade_wanted(incoming.headers()).filter(|_| switched);
    let mut response = Response::new(Body::empty());
    *response.status_mut() = incoming.status();
    *response.headers_mut() = forwarded(incoming.headers(), agreed.as_ref());
    if switched {
        let (Some(client), Some(_)) = (upgrading, agreed) else {
            return Err(hung_up(of, &"it switched protocols without being asked to"));
        };
        let guest = hyper::upgrade::on(&mut incoming);
        tokio::spawn(async move {
            let ending = async {
                match &connection {
                    Some(connection) => connection.shutdown.cancelled().await,
                    None => std::future::pending().await,
                }
                (1001, "the server is ending")
            };
            tunnel::join(client, guest, Limits { idle: None, frame_bytes_max: None }, ending).await;
            // It counts as the connection it came from until here.
            drop(connection);
        });
    } else {
        *response.body_mut() = Body::new(incoming.into_body());
    }
    Ok(response)
}

/// What stands behind the port, exactly as it came: nothing is decoded, joined or made shorter.
fn target(uri: &Uri) -> Result<Uri, Failure> {
    let rest = uri.path().splitn(OWN_SEGMENTS + 1, '/').nth(OWN_SEGMENTS).unwrap_or_default();
    let text = match uri.query() {
        Some(query) => format!("/{rest}?{query}"),
        None => format!("/{rest}"),
    };
    let path: PathAndQuery = text.parse().map_err(|e| Failure(invalid("the path is not understood").cause(e)))?;
    Ok(path.into())
}

fn hung_up(of: &OfPort, cause: &dyn std::fmt::Display) -> Error {
    Error::new(ErrorCode::PortUnreachable, format!("port {} of {} gave no HTTP answer", of.port, of.id))
        .cause(cause)
        .remedy("look whether an HTTP server listens there and what it wrote, with `remuda logs`")
}

#[cfg(test)]
mod tests;
