//! Carries deliveries of webhooks over HTTP: one connection, one request, one answer, of which only the status counts.
//!
//! A name is looked up once, each address that it has is held against [`address`], and the connection is made to one that
//! passed and to no other: what a name says a moment later changes nothing. Redirects are not followed, no proxy is
//! asked, and no body of an answer is read.

mod address;
mod target;

use std::net::SocketAddr;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use http::header::{CONTENT_TYPE, HOST, USER_AGENT};
use http::{HeaderValue, Method, Request};
use http_body_util::Full;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use remuda_control::{Courier, Parcel, Refused};
use remuda_types::limits::WEBHOOK_TIMEOUT_MS;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::limits::{HTTP_HEAD_BYTES_MAX, HTTP_HEADERS_MAX};
use target::Target;

/// Addresses of one name that are tried.
const ADDRESSES_TRIED_MAX: usize = 4;
/// Name of the header with the id, which is the same for every attempt.
const ID: &str = "webhook-id";
/// Name of the header with the time of the attempt, in Unix seconds.
const TIMESTAMP: &str = "webhook-timestamp";
/// Name of the header with the signature.
const SIGNATURE: &str = "webhook-signature";

/// Carries parcels over HTTP and HTTPS.
#[derive(Clone)]
pub struct HttpCourier {
    tls: TlsConnector,
    /// Whether it also goes to addresses that are not public.
    to_private: bool,
}

impl std::fmt::Debug for HttpCourier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HttpCourier").field("to_private", &self.to_private).finish_non_exhaustive()
    }
}

impl HttpCourier {
    /// One that trusts the certificate authorities that browsers do. `to_private` lets it go to loopback, private and
    /// other addresses that are not public.
    pub fn new(to_private: bool) -> HttpCourier {
        HttpCourier::with_roots(to_private, browsers())
    }

    /// One that trusts the authorities in this PEM file as well.
    ///
    /// # Errors
    /// What is wrong with the file, in words.
    pub fn trusting(to_private: bool, authorities: &Path) -> Result<HttpCourier, String> {
        let mut roots = browsers();
        let before = roots.len();
        let read = CertificateDer::pem_file_iter(authorities).map_err(|e| e.to_string())?;
        for certificate in read {
            roots.add(certificate.map_err(|e| e.to_string())?).map_err(|e| e.to_string())?;
        }
        match roots.len() > before {
            true => Ok(HttpCourier::with_roots(to_private, roots)),
            false => Err("it holds no certificate".to_owned()),
        }
    }

    fn with_roots(to_private: bool, roots: RootCertStore) -> HttpCourier {
        let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        HttpCourier { tls: TlsConnector::from(Arc::new(config)), to_private }
    }

    async fn send(&self, parcel: Parcel) -> Result<u16, Refused> {
        let target = Target::parse(&parcel.url).map_err(refused)?;
        let stream = self.connect(&target).await.map_err(refused)?;
        let request = request(&target, parcel).map_err(refused)?;
        let status = if target.tls {
            let name = target.server_name().map_err(refused)?;
            let stream = self.tls.connect(name, stream).await;
            exchange(stream.map_err(|e| refused(format!("no TLS with {}: {e}", target.host)))?, request).await
        } else {
            exchange(stream, request).await
        };
        match status.map_err(|e| refused(format!("{} gave no HTTP answer: {e}", target.host)))? {
            status @ 200..=299 => Ok(status),
            status => Err(Refused { status: Some(status), why: format!("it was answered with {status}") }),
        }
    }

    async fn connect(&self, target: &Target) -> Result<TcpStream, String> {
        let found = tokio::net::lookup_host((target.host.as_str(), target.port)).await;
        let found: Vec<SocketAddr> = found.map_err(|e| format!("{} is not found: {e}", target.host))?.collect();
        let allowed = found.iter().filter(|at| self.to_private || address::is_public(at.ip()));
        let mut last = format!("{} has no public address", target.host);
        for address in allowed.take(ADDRESSES_TRIED_MAX) {
            match TcpStream::connect(address).await {
                Ok(stream) => return Ok(stream),
                Err(e) => last = format!("no connection to {}: {e}", target.host),
            }
        }
        Err(last)
    }
}

/// The authorities that browsers trust.
fn browsers() -> RootCertStore {
    RootCertStore::from_iter(webpki_roots::TLS_SERVER_ROOTS.iter().cloned())
}

impl Courier for HttpCourier {
    fn check(&self, url: &str) -> Result<(), String> {
        let target = Target::parse(url)?;
        match target.literal() {
            Some(address) if !self.to_private && !address::is_public(address) => {
                Err(format!("{address} is not a public address; whoever runs the server may allow those"))
            }
            _ => Ok(()),
        }
    }

    fn carry(&self, parcel: Parcel) -> Pin<Box<dyn Future<Output = Result<u16, Refused>> + Send + '_>> {
        Box::pin(async move {
            let sending = tokio::time::timeout(Duration::from_millis(WEBHOOK_TIMEOUT_MS), self.send(parcel)).await;
            sending.unwrap_or_else(|_| Err(refused(format!("there was no answer within {WEBHOOK_TIMEOUT_MS} ms"))))
        })
    }
}

fn refused(why: String) -> Refused {
    Refused { status: None, why }
}

fn request(target: &Target, parcel: Parcel) -> Result<Request<Full<bytes::Bytes>>, String> {
    let value = |text: &str| HeaderValue::try_from(text).map_err(|e| e.to_string());
    let request = Request::builder()
        .method(Method::POST)
        .uri(target.path.as_str())
        .header(HOST, value(&target.authority)?)
        .header(USER_AGENT, concat!("remuda/", env!("CARGO_PKG_VERSION")))
        .header(CONTENT_TYPE, "application/json")
        .header(ID, value(&parcel.id)?)
        .header(TIMESTAMP, parcel.timestamp_s)
        .header(SIGNATURE, value(&parcel.signature)?);
    request.body(Full::new(parcel.body)).map_err(|e| e.to_string())
}

/// Sends the request and gives the answer's status. The connection ends with that, whatever comes after the head.
async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: Request<Full<bytes::Bytes>>,
) -> hyper::Result<u16> {
    let (mut sender, connection) = http1::Builder::new()
        .max_headers(HTTP_HEADERS_MAX)
        .max_header_size(HTTP_HEAD_BYTES_MAX)
        .handshake(TokioIo::new(stream))
        .await?;
    let mut connection = std::pin::pin!(connection);
    let answer = sender.send_request(request);
    tokio::pin!(answer);
    tokio::select! {
        biased;
        answer = &mut answer => return Ok(answer?.status().as_u16()),
        ended = &mut connection => ended?,
    }
    // It ended together with its answer.
    Ok(answer.await?.status().as_u16())
}
