//! Where a URL leads. Pure.

use std::net::IpAddr;

use http::Uri;
use tokio_rustls::rustls::pki_types::ServerName;

/// The parts of a URL that a delivery needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) tls: bool,
    /// Name or address, the latter without brackets.
    pub(super) host: String,
    pub(super) port: u16,
    /// Host and port as they were written.
    pub(super) authority: String,
    /// Path and query.
    pub(super) path: String,
}

impl Target {
    pub(super) fn parse(url: &str) -> Result<Target, String> {
        if url.contains('#') {
            return Err("a fragment leads nowhere".into());
        }
        let uri: Uri = url.parse().map_err(|e| format!("it is no URL: {e}"))?;
        let tls = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err("it begins with neither https:// nor http://".into()),
        };
        let authority = uri.authority().ok_or("it names no host")?.as_str().to_owned();
        if authority.contains('@') {
            return Err("a name or password in it would be told to everybody who lists webhooks".into());
        }
        let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']').to_owned();
        if host.is_empty() {
            return Err("it names no host".into());
        }
        // `http` takes a port that is none for no port at all.
        let port = match authority.rsplit_once(':').filter(|(_, port)| !port.contains(']')) {
            Some((_, port)) => port.parse().ok().filter(|port| *port != 0).ok_or("its port is none")?,
            None if tls => 443,
            None => 80,
        };
        let path = uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
        Ok(Target { tls, host, port, authority, path })
    }

    /// Its address, where it names one.
    pub(super) fn literal(&self) -> Option<IpAddr> {
        self.host.parse().ok()
    }

    /// Whose certificate is asked for.
    pub(super) fn server_name(&self) -> Result<ServerName<'static>, String> {
        ServerName::try_from(self.host.clone()).map_err(|e| e.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_lead_to_hosts_ports_and_paths() {
        let parts = |url: &str| Target::parse(url).map(|t| (t.tls, t.host, t.port, t.authority, t.path)).unwrap();
        assert_eq!(
            parts("https://a.example/x?y=1"),
            (true, "a.example".into(), 443, "a.example".into(), "/x?y=1".into())
        );
        assert_eq!(parts("http://[::1]:81"), (false, "::1".into(), 81, "[::1]:81".into(), "/".into()));
        assert_eq!(
            parts("http://[2001:db8::1]/"),
            (false, "2001:db8::1".into(), 80, "[2001:db8::1]".into(), "/".into())
        );
        for wrong in [
            "",
            "a.example",
            "ftp://a.example",
            "file:///etc/passwd",
            "https://",
            "https://user:password@a.example/",
            "https://a.example:0/",
            "https://a.example:99999/",
            "https://a.example/#x",
            "/x",
        ] {
            assert!(Target::parse(wrong).is_err(), "{wrong}");
        }
    }
}
