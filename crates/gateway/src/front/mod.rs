//! The front of previews: what comes by a preview's host name, or by its path on the server's own address, is let in by the
//! preview's credential and passed on to the application. All else goes to the API.
//!
//! An application never gets the credential, and nothing that it answers passes for an answer of ours. Its own cookies and
//! its own `Authorization` go through.

mod answers;
mod cookie;
mod headers;
mod name;
mod pass;
pub(crate) mod probe;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::header::HOST;
use http::uri::Authority;
use http::{HeaderName, Method};
use remuda_control::{IssuedPreview, Platform, PreviewToken};
use remuda_types::limits::PREVIEW_TTL_MS_MAX;
use remuda_types::wire::{MadePreview, PreviewAuth};
use remuda_types::{Error, PreviewId};

use crate::errors::{Failure, invalid};
use crate::relay::pool::Pool;
use name::Called;
pub use name::{Domain, DomainError};

/// The header that a credential travels in.
pub(crate) const TOKEN_HEADER: HeaderName = HeaderName::from_static("x-remuda-preview-token");
/// What the path of a preview on the server's own address begins with.
const PATH: &str = "/previews/";
/// What the path of a link begins with that works once.
const LINK_PATH: &str = "/.remuda/enter/";

/// Where previews are found.
#[derive(Debug, Clone)]
pub struct Front {
    domain: Arc<Domain>,
    address: Option<Address>,
}

#[derive(Debug, Clone, Copy)]
struct Address {
    at: SocketAddr,
    tls: bool,
}

impl Front {
    /// Below a domain, on a server that listens on no TCP port.
    pub fn below(domain: Domain) -> Front {
        Front { domain: Arc::new(domain), address: None }
    }

    /// On a server that listens here, with or without TLS.
    #[must_use]
    pub fn at(self, at: SocketAddr, tls: bool) -> Front {
        Front { address: Some(Address { at, tls }), ..self }
    }

    /// What whoever asked for a preview is told: the only place that puts a credential into an answer.
    pub(crate) fn tell(&self, issued: IssuedPreview) -> MadePreview {
        let IssuedPreview { preview, token, ticket } = issued;
        let token = token.reveal();
        let label = if preview.auth == PreviewAuth::Host { token.clone() } else { preview.id.to_string() };
        let path = ticket.map_or_else(|| "/".to_owned(), |ticket| format!("{LINK_PATH}{}", ticket.reveal()));
        let url = self.address.map(|address| format!("{}{path}", address.url(&format!("{label}.{}", self.domain))));
        let header_url = self.address.map(|address| {
            // An address that stands for all of the machine's is no one's to connect to.
            let ip = match address.at.ip() {
                ip if !ip.is_unspecified() => ip,
                IpAddr::V4(_) => IpAddr::from([127, 0, 0, 1]),
                IpAddr::V6(_) => IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1]),
            };
            let host = if ip.is_ipv6() { format!("[{ip}]") } else { ip.to_string() };
            format!("{}{PATH}{}/", address.url(&host), preview.id)
        });
        MadePreview { preview, token, url, header_url, note: self.note() }
    }

    fn note(&self) -> String {
        let Some(_) = self.address else {
            return "this server listens on no TCP port: on its socket, name the preview's id in the host name or path, and \
                    send the header X-Remuda-Preview-Token"
                .to_owned();
        };
        if self.domain.is_localhost() {
            return "browsers and curl find names below localhost by themselves; programs that ask the C library do not \
                    unless libnss-myhostname is installed: they take header_url and the header X-Remuda-Preview-Token"
                .to_owned();
        }
        format!("*.{} must lead to this server", self.domain)
    }
}

impl Address {
    /// The URL of a host here, without a path.
    fn url(self, host: &str) -> String {
        let (scheme, usual) = if self.tls { ("https", 443) } else { ("http", 80) };
        match self.at.port() {
            port if port == usual => format!("{scheme}://{host}"),
            port => format!("{scheme}://{host}:{port}"),
        }
    }
}

/// What the front needs for each request. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Door {
    platform: Platform,
    front: Front,
    pool: Pool,
}

impl Door {
    pub(crate) fn new(platform: Platform, front: Front) -> Door {
        Door { platform, front, pool: Pool::default() }
    }
}

/// By what a request names a preview.
enum Named {
    Token(PreviewToken),
    Id(PreviewId),
    /// By its id at the start of the path, of this length.
    Path(PreviewId, usize),
    /// By a name that was never given out.
    Unknown,
}

/// Sends each request where its name leads.
pub(crate) async fn choose(State(door): State<Door>, request: Request, next: Next) -> Response {
    match named(&door.front, &request) {
        Ok((None, _)) => next.run(request).await,
        Ok((Some(named), authority)) => pass::through(&door, named, &authority, request).await,
        Err(error) => Failure(error).into_response(),
    }
}

/// What a request names, and the authority that it came by.
fn named(front: &Front, request: &Request) -> Result<(Option<Named>, String), Error> {
    let authority = authority(request)?;
    let called = match &authority {
        Some(authority) => name::called(&front.domain, authority),
        None => Called::Elsewhere,
    };
    let named = match called {
        Called::Token(token) => Some(Named::Token(token)),
        Called::Id(id) => Some(Named::Id(id)),
        Called::Unknown => Some(Named::Unknown),
        Called::Elsewhere => by_path(request.uri().path()),
    };
    if named.is_some() && request.method() == Method::CONNECT {
        return Err(invalid("a preview is no proxy: CONNECT leads nowhere"));
    }
    Ok((named, authority.map(|authority| authority.to_string()).unwrap_or_default()))
}

fn by_path(path: &str) -> Option<Named> {
    let rest = path.strip_prefix(PATH)?;
    let id = rest.split('/').next().unwrap_or_default();
    Some(match id.parse() {
        Ok(parsed) => Named::Path(parsed, PATH.len() + id.len()),
        Err(_) => Named::Unknown,
    })
}

/// The one authority that a request names.
fn authority(request: &Request) -> Result<Option<Authority>, Error> {
    let mut hosts = request.headers().get_all(HOST).iter();
    let (host, another) = (hosts.next(), hosts.next());
    if another.is_some() {
        return Err(invalid("there is more than one Host header"));
    }
    let host: Option<Authority> = match host {
        // A request to an address without a name may leave it empty.
        Some(value) if value.is_empty() => None,
        Some(value) => {
            let parsed = value.to_str().ok().and_then(|text| text.parse().ok());
            Some(parsed.ok_or_else(|| invalid("the Host header names no host"))?)
        }
        None => None,
    };
    let authority = match (request.uri().authority(), host) {
        (Some(named), Some(host)) if !named.as_str().eq_ignore_ascii_case(host.as_str()) => {
            return Err(invalid("the Host header and the request's target name different hosts"));
        }
        (Some(named), _) => Some(named.clone()),
        (None, host) => host,
    };
    match authority {
        Some(authority) if authority.as_str().contains('@') => Err(invalid("the Host header names a user")),
        authority => Ok(authority),
    }
}

/// Longest life of a cookie, in seconds: the preview ends before it in any case.
fn cookie_seconds_max() -> u64 {
    PREVIEW_TTL_MS_MAX / 1_000
}
