//! What is behind a preview at this moment: ready and reachable are two things, and both are told. It asks as a preview does,
//! by the name that the application would see, and follows redirects to itself.

use axum::body::Body;
use http::header::{ACCEPT, HOST, LOCATION, USER_AGENT};
use http::{HeaderValue, Method, StatusCode, Uri};
use http_body_util::{BodyExt as _, Limited};
use remuda_control::{Caller, Platform};
use remuda_types::wire::{Preview, PreviewHost, PreviewProbe, ProbeResult};
use remuda_types::{Error, ErrorCode, PreviewId, SandboxId};
use std::time::Duration;

use super::Front;
use crate::limits::PREVIEW_PROBE_MS_MAX;
use crate::relay::send::send_alone;

/// Redirects that are followed.
const REDIRECTS_MAX: u32 = 10;
/// What is read of an answer to tell whether it refuses a name.
const BODY_BYTES_MAX: usize = 64 << 10;
/// What servers in wide use say to a name that they do not answer to.
const REFUSALS: [&str; 5] = [
    "invalid host header",
    "blocked request. this host",
    "disallowedhost",
    "invalid http_host header",
    "host not allowed",
];

/// What one question came to.
enum Heard {
    Status { status: StatusCode, redirect: Option<String>, refuses: bool },
    NoHttp(String),
}

/// Looks through a preview.
///
/// # Errors
/// `preview_not_found`, `sandbox_not_found`; `internal`.
pub(crate) async fn probe(
    platform: &Platform,
    front: &Front,
    caller: &Caller,
    id: &SandboxId,
    preview: &PreviewId,
) -> Result<PreviewProbe, Error> {
    let (shown, _) = platform.probe_preview(caller, id, preview).await?;
    let looking = look(platform, front, caller, &shown);
    let looked = tokio::time::timeout(Duration::from_millis(PREVIEW_PROBE_MS_MAX), looking).await;
    let late = || {
        Ok((
            ProbeResult::Listening,
            None,
            0,
            format!("something listens, and gave no answer within {PREVIEW_PROBE_MS_MAX} ms"),
        ))
    };
    let (result, status, redirects, words) = looked.unwrap_or_else(|_| late())?;
    let status = status.map(|status: StatusCode| status.as_u16());
    Ok(PreviewProbe { preview: shown.id, state: shown.state, result, status, redirects, words })
}

type Found = (ProbeResult, Option<StatusCode>, u32, String);

async fn look(platform: &Platform, front: &Front, caller: &Caller, preview: &Preview) -> Result<Found, Error> {
    let own = format!("localhost:{}", preview.port);
    let preserved = format!("{}.{}", preview.id, front.domain);
    let called = if preview.host == PreviewHost::Rewrite { own.clone() } else { preserved };
    let (mut path, mut redirects) = ("/".to_owned(), 0);
    loop {
        let heard = match ask(platform, caller, preview, &called, &path).await? {
            Ok(heard) => heard,
            Err(error) => return not_reached(preview, error),
        };
        let (status, redirect, refuses) = match heard {
            Heard::NoHttp(why) => {
                let words = format!("something listens on port {}, and gives no answer of HTTP: {why}", preview.port);
                return Ok((ProbeResult::Listening, None, redirects, words));
            }
            Heard::Status { status, redirect, refuses } => (status, redirect, refuses),
        };
        if let Some(to) = redirect.and_then(|to| to_itself(&to, &path, [&called, &own]))
            && redirects < REDIRECTS_MAX
        {
            (path, redirects) = (to, redirects + 1);
            continue;
        }
        // One that answers to another name refuses this one.
        let other = if called == own { format!("127.0.0.1:{}", preview.port) } else { own.clone() };
        let refuses = refuses
            || status == StatusCode::MISDIRECTED_REQUEST
            || status.is_client_error()
                && matches!(ask(platform, caller, preview, &other, &path).await?,
                    Ok(Heard::Status { status, .. }) if !status.is_client_error() && !status.is_server_error());
        if refuses {
            let words = format!(
                "an HTTP server answers with {} to the name {called}, which it does not take for its own: let it take \
                 that name, or make the preview with the other `host` setting",
                status.as_u16()
            );
            return Ok((ProbeResult::RefusesHost, Some(status), redirects, words));
        }
        let plural = if redirects == 1 { "redirect" } else { "redirects" };
        let words = format!("it answers with {} after {redirects} {plural}", status.as_u16());
        return Ok((ProbeResult::Answers, Some(status), redirects, words));
    }
}

fn not_reached(preview: &Preview, error: Error) -> Result<Found, Error> {
    let result = match error.code {
        ErrorCode::PortUnreachable => ProbeResult::NothingListens,
        ErrorCode::PreviewNotReady if error.details.get("state").is_some_and(|s| s == "paused") => ProbeResult::Paused,
        ErrorCode::PreviewNotReady => ProbeResult::Starting,
        ErrorCode::PreviewGone => ProbeResult::Gone,
        _ => return Err(error),
    };
    let words = match result {
        ProbeResult::NothingListens => format!("nothing answers on port {}", preview.port),
        _ => error.message,
    };
    let remedy = error.remedy.map(|remedy| format!(": {remedy}")).unwrap_or_default();
    Ok((result, None, 0, format!("{words}{remedy}")))
}

/// Asks once, over a connection of its own.
async fn ask(
    platform: &Platform,
    caller: &Caller,
    preview: &Preview,
    called: &str,
    path: &str,
) -> Result<Result<Heard, Error>, Error> {
    let (_, dialled) = platform.probe_preview(caller, &preview.sandbox, &preview.id).await?;
    let stream = match dialled {
        Ok(stream) => stream,
        Err(error) => return Ok(Err(error)),
    };
    let no_http = |why: String| Ok(Ok(Heard::NoHttp(why)));
    let (Ok(uri), Ok(host)) = (path.parse::<Uri>(), HeaderValue::from_str(called)) else {
        return no_http("it redirects to what is no path".to_owned());
    };
    let mut request = hyper::Request::new(Body::empty());
    *request.method_mut() = Method::GET;
    *request.uri_mut() = uri;
    let headers = request.headers_mut();
    headers.insert(HOST, host);
    headers.insert(ACCEPT, HeaderValue::from_static("text/html,*/*"));
    headers.insert(USER_AGENT, HeaderValue::from_static(concat!("remuda/", env!("CARGO_PKG_VERSION"))));
    let response = match send_alone(stream, request).await {
        Ok(response) => response,
        Err(e) => return no_http(e.to_string()),
    };
    let status = response.status();
    let location = response.headers().get(LOCATION).and_then(|value| value.to_str().ok());
    let redirect = location.filter(|_| status.is_redirection()).map(str::to_owned);
    let mut refuses = false;
    if status.is_client_error() {
        // Of a longer one nothing is known; its status stands.
        let body = Limited::new(response.into_body(), BODY_BYTES_MAX).collect().await;
        let text = body.map(|body| String::from_utf8_lossy(&body.to_bytes()).to_lowercase()).unwrap_or_default();
        refuses = REFUSALS.iter().any(|words| text.contains(words));
    }
    Ok(Ok(Heard::Status { status, redirect, refuses }))
}

/// The path that a redirect leads to, where it stays with the application.
fn to_itself(to: &str, from: &str, names: [&str; 2]) -> Option<String> {
    let to = to.split('#').next().unwrap_or_default();
    for scheme in ["http://", "https://", "//"] {
        if let Some(rest) = to.strip_prefix(scheme) {
            let end = rest.find(['/', '?']).unwrap_or(rest.len());
            let (authority, path) = rest.split_at(end);
            let own = names.iter().any(|name| authority.eq_ignore_ascii_case(name));
            return own.then(|| if path.starts_with('/') { path.to_owned() } else { format!("/{path}") });
        }
    }
    if to.starts_with('/') {
        return Some(to.to_owned());
    }
    if to.contains(':') {
        return None;
    }
    let directory = from.split('?').next().unwrap_or("/").rsplit_once('/').map_or("", |(directory, _)| directory);
    Some(format!("{directory}/{to}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_redirects_to_itself_are_followed() {
        let names = ["prev-a.localhost", "localhost:80"];
        for (to, expected) in [
            ("/a?b#c", Some("/a?b")),
            ("http://localhost:80/x", Some("/x")),
            ("https://prev-a.localhost", Some("/")),
            ("//localhost:80?q", Some("/?q")),
            ("x", Some("/dir/x")),
            ("http://elsewhere/", None),
            ("//elsewhere/", None),
            ("mailto:a", None),
        ] {
            assert_eq!(to_itself(to, "/dir/page?z=/", names).as_deref(), expected, "{to}");
        }
    }
}
