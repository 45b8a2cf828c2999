//! TLS in front of everything: with certificates of one's own, or with those of a private authority that this server makes
//! for its preview domain. Its key lies in the data directory, its owner's alone, and must appear nowhere else.

use std::collections::HashMap;
use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::Request;
use axum::response::{IntoResponse as _, Response};
use http::StatusCode;
use http::header::{HOST, LOCATION};
use http::uri::Authority;
use rcgen::{
    BasicConstraints, CertificateParams, CidrSubnet, DistinguishedName, DnType, ExtendedKeyUsagePurpose,
    GeneralSubtree, IsCa, Issuer, KeyPair, KeyUsagePurpose, NameConstraints,
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring::{default_provider, sign::any_supported_type};
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::{ClientHello, ResolvesServerCert};
use tokio_rustls::rustls::sign::{CertifiedKey, SigningKey};
use tokio_rustls::rustls::{self, ServerConfig};
use tokio_rustls::server::TlsStream;

use crate::errors::{Failure, invalid};
use crate::front::Domain;

/// By what HTTP/2 is agreed on.
pub(crate) const ALPN_HTTP2: &[u8] = b"h2";
/// By what HTTP/1.1 is.
const ALPN_HTTP1: &[u8] = b"http/1.1";
/// Directory of the authority in the data directory.
const DIRECTORY: &str = "tls";
/// How long a certificate of ours holds, in days.
const CERTIFICATE_DAYS: i64 = 90;
/// How long the authority holds, in days.
const AUTHORITY_DAYS: i64 = 3_650;
/// How long a certificate is shown that was made for a name; then another one is made.
const SHOWN_MAX: Duration = Duration::from_secs(86_400);
/// Names whose certificates are kept.
const NAMES_MAX: usize = 512;

/// How connections are encrypted.
#[derive(Clone)]
pub struct Tls {
    acceptor: TlsAcceptor,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").finish_non_exhaustive()
    }
}

/// Why connections can't be encrypted. Never carries a key.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file can't be read or written.
    #[error("{} can't be used: {cause}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        cause: String,
    },
    /// Certificate and key are not of each other.
    #[error("certificate and key don't belong together: {0}")]
    Mismatch(String),
    /// A certificate could not be made.
    #[error("no certificate could be made: {0}")]
    Making(String),
}

impl Tls {
    /// With a certificate, its chain behind it, and its key, as PEM files.
    ///
    /// # Errors
    /// What is wrong with the files.
    pub fn of_files(certificate: &Path, key: &Path) -> Result<Tls, TlsError> {
        let unreadable = |path: &Path, cause: String| TlsError::File { path: path.to_owned(), cause };
        let chain = CertificateDer::pem_file_iter(certificate).and_then(Iterator::collect::<Result<Vec<_>, _>>);
        let chain = chain.map_err(|e| unreadable(certificate, e.to_string()))?;
        if chain.is_empty() {
            return Err(unreadable(certificate, "it holds no certificate".to_owned()));
        }
        let key = PrivateKeyDer::from_pem_file(key).map_err(|e| unreadable(key, e.to_string()))?;
        let config = builder().map_err(|e| TlsError::Making(e.to_string()))?;
        let config = config.with_single_cert(chain, key).map_err(|e| TlsError::Mismatch(e.to_string()))?;
        Ok(Tls::with(config))
    }

    /// With certificates of a private authority for this domain and all names below it, which is made where there is none
    /// yet. Gives the file with the authority's certificate, for those who are to trust it.
    ///
    /// # Errors
    /// The authority can't be made or read.
    pub fn self_signed(data_dir: &Path, domain: &Domain) -> Result<(Tls, PathBuf), TlsError> {
        let (authority, file) = Signer::open(&data_dir.join(DIRECTORY), domain)?;
        let config = builder().map_err(|e| TlsError::Making(e.to_string()))?;
        Ok((Tls::with(config.with_cert_resolver(Arc::new(authority))), file))
    }

    fn with(mut config: ServerConfig) -> Tls {
        config.alpn_protocols = vec![ALPN_HTTP2.to_vec(), ALPN_HTTP1.to_vec()];
        Tls { acceptor: TlsAcceptor::from(Arc::new(config)) }
    }

    pub(crate) async fn accept<I: AsyncRead + AsyncWrite + Unpin>(&self, io: I) -> io::Result<TlsStream<I>> {
        self.acceptor.accept(io).await
    }
}

fn builder() -> Result<rustls::ConfigBuilder<ServerConfig, rustls::server::WantsServerCert>, rustls::Error> {
    let builder = ServerConfig::builder_with_provider(Arc::new(default_provider()));
    Ok(builder.with_safe_default_protocol_versions()?.with_no_client_auth())
}

/// A private authority, which makes a certificate for each name that is asked for below its domain: browsers take a wildcard
/// directly below `localhost` for none.
struct Signer {
    issuer: Issuer<'static, KeyPair>,
    domain: Domain,
    /// One key for all of its certificates, of this server's life.
    key: KeyPair,
    signing: Arc<dyn SigningKey>,
    made: Mutex<HashMap<String, (Instant, Arc<CertifiedKey>)>>,
}

impl fmt::Debug for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority").field("domain", &self.domain).finish_non_exhaustive()
    }
}

impl Signer {
    fn open(directory: &Path, domain: &Domain) -> Result<(Signer, PathBuf), TlsError> {
        let failed = |path: &Path, e: io::Error| TlsError::File { path: path.to_owned(), cause: e.to_string() };
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(directory);
        made.map_err(|e| failed(directory, e))?;
        let key_file = directory.join(format!("{domain}.key.pem"));
        let file = directory.join(format!("{domain}.ca.pem"));
        let key = match fs::read_to_string(&key_file) {
            Ok(text) => KeyPair::from_pem(&text)
                .map_err(|_| TlsError::File { path: key_file, cause: "it holds no key".to_owned() })?,
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                let key = KeyPair::generate().map_err(making)?;
                // The certificate before the key: where there is a key, both are there.
                let certificate = authority_params(domain)?.self_signed(&key).map_err(making)?;
                write(&file, certificate.pem().as_bytes(), 0o644).map_err(|e| failed(&file, e))?;
                write(&key_file, key.serialize_pem().as_bytes(), 0o600).map_err(|e| failed(&key_file, e))?;
                key
            }
            Err(e) => return Err(failed(&key_file, e)),
        };
        let own = KeyPair::generate().map_err(making)?;
        let der = PrivateKeyDer::try_from(own.serialize_der()).map_err(|e| TlsError::Making(e.to_owned()))?;
        let signing = any_supported_type(&der).map_err(|e| TlsError::Making(e.to_string()))?;
        let issuer = Issuer::new(authority_params(domain)?, key);
        let domain = domain.clone();
        Ok((Signer { issuer, domain, key: own, signing, made: Mutex::default() }, file))
    }

    /// A certificate for this name below the domain, or for all of them at once.
    fn certificate(&self, name: Option<&str>) -> Result<Arc<CertifiedKey>, TlsError> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = made.get(name.unwrap_or_default()).filter(|(since, _)| since.elapsed() < SHOWN_MAX);
        if let Some((_, kept)) = kept {
            return Ok(kept.clone());
        }
        let names = match name {
            Some(name) => vec![name.to_owned()],
            None => {
                let domain = self.domain.to_string();
                let below = format!("*.{domain}");
                vec![domain, below, "127.0.0.1".to_owned(), "::1".to_owned()]
            }
        };
        let mut params = CertificateParams::new(names).map_err(making)?;
        params.distinguished_name = DistinguishedName::new();
        (params.not_before, params.not_after) = holds(CERTIFICATE_DAYS)?;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        let certificate = params.signed_by(&self.key, &self.issuer).map_err(making)?;
        let certified = Arc::new(CertifiedKey::new(vec![certificate.der().clone()], self.signing.clone()));
        if made.len() >= NAMES_MAX {
            made.clear();
        }
        made.insert(name.unwrap_or_default().to_owned(), (Instant::now(), certified.clone()));
        Ok(certified)
    }
}

impl ResolvesServerCert for Signer {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let name = hello.server_name().map(str::to_ascii_lowercase);
        // Only what lies below the domain has one of its own: the authority is made for no more.
        let name = name.filter(|name| {
            let label = name.strip_suffix(self.domain.as_str()).and_then(|front| front.strip_suffix('.'));
            label.is_some_and(|label| !label.is_empty() && !label.contains('.'))
        });
        self.certificate(name.as_deref()).map_err(|e| tracing::error!("no TLS: {e}")).ok()
    }
}

fn authority_params(domain: &Domain) -> Result<CertificateParams, TlsError> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, format!("Remuda previews of {domain}"));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    (params.not_before, params.not_after) = holds(AUTHORITY_DAYS)?;
    // Whoever trusts it trusts it for no other name.
    params.name_constraints = Some(NameConstraints {
        permitted_subtrees: vec![
            GeneralSubtree::DnsName(domain.to_string()),
            GeneralSubtree::IpAddress(CidrSubnet::V4([127, 0, 0, 0], [255, 0, 0, 0])),
            GeneralSubtree::IpAddress(CidrSubnet::V6(std::net::Ipv6Addr::LOCALHOST.octets(), [0xff; 16])),
        ],
        excluded_subtrees: Vec::new(),
    });
    Ok(params)
}

fn making(e: rcgen::Error) -> TlsError {
    TlsError::Making(e.to_string())
}

/// From yesterday, since clocks differ, for so many days.
fn holds(days: i64) -> Result<(time::OffsetDateTime, time::OffsetDateTime), TlsError> {
    let now = time::OffsetDateTime::now_utc();
    let ends = now.checked_add(time::Duration::days(days));
    let ends = ends.ok_or_else(|| TlsError::Making("the clock is out of range".to_owned()))?;
    Ok((now - time::Duration::days(1), ends))
}

fn write(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let new = path.with_extension("new");
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(mode).open(&new)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&new, path)
}

/// What is answered to whoever speaks HTTP where TLS is spoken: the same address, with TLS.
pub(crate) fn leads_to_tls() -> Router {
    Router::new().fallback(lead)
}

async fn lead(request: Request) -> Response {
    let host = request.headers().get(HOST).and_then(|value| value.to_str().ok()?.parse::<Authority>().ok());
    let Some(host) = host.filter(|host| !host.as_str().contains('@')) else {
        return Failure(invalid("this address speaks TLS, and the request names no host").remedy("use https://"))
            .into_response();
    };
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
    (StatusCode::PERMANENT_REDIRECT, [(LOCATION, format!("https://{host}{path}"))]).into_response()
}
