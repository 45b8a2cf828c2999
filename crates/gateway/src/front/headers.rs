//! What an application sees of how it was called, and what its answers say of where it is. Outside it has the preview's
//! name, inside another one, and each side sees its own. The inside name never has a credential in it.

use std::net::IpAddr;

use http::header::{
    ACCESS_CONTROL_ALLOW_ORIGIN, AUTHORIZATION, CONTENT_LOCATION, EXPECT, FORWARDED, HOST, LOCATION, ORIGIN, REFERER,
    REFERRER_POLICY,
};
use http::uri::Authority;
use http::{HeaderMap, HeaderName, HeaderValue};
use remuda_control::access::AccessSecret;
use remuda_types::PreviewId;
use remuda_types::wire::{PreviewAuth, PreviewHost};

use super::cookie;

/// Headers that say who came by which way: ours are set, and a client's never believed.
const WAY: &str = "x-forwarded-";
const REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");
/// Headers by which a browser is told to report elsewhere where it was.
const REPORTS: [HeaderName; 3] = [
    HeaderName::from_static("nel"),
    HeaderName::from_static("report-to"),
    HeaderName::from_static("reporting-endpoints"),
];
/// By it, a script at a path would answer for the whole of our own address.
const WORKER_ALLOWED: HeaderName = HeaderName::from_static("service-worker-allowed");

/// How one request came, and the names of both sides.
#[derive(Debug, Clone)]
pub(super) struct Names {
    scheme: &'static str,
    /// What the client calls it: host, and port where it said one.
    outside: String,
    /// What the application is called by.
    inside: String,
    /// Its name with the id in the place of a credential.
    alias: String,
    /// What stands before the application's path outside.
    prefix: String,
    port: u16,
    auth: PreviewAuth,
}

/// What is known of a preview and of who comes.
pub(super) struct Coming<'a> {
    pub(super) id: &'a PreviewId,
    pub(super) auth: PreviewAuth,
    pub(super) host: PreviewHost,
    pub(super) port: u16,
    pub(super) tls: bool,
    /// The authority that the request came by.
    pub(super) authority: &'a str,
    /// Whether the preview is named by the path.
    pub(super) prefix: String,
}

impl Names {
    pub(super) fn of(coming: Coming<'_>) -> Names {
        let Coming { id, auth, host, port, tls, authority, prefix } = coming;
        let outside = authority.to_ascii_lowercase();
        // Under a path the name is the server's own.
        let alias = match outside.split_once('.') {
            Some((_, domain)) if prefix.is_empty() => format!("{id}.{domain}"),
            _ => outside.clone(),
        };
        let inside = match host {
            PreviewHost::Rewrite => format!("localhost:{port}"),
            PreviewHost::Preserve => alias.clone(),
        };
        Names { scheme: if tls { "https" } else { "http" }, outside, inside, alias, prefix, port, auth }
    }

    /// Where this preview is, for a browser.
    pub(super) fn origin(&self) -> String {
        format!("{}://{}", self.scheme, self.outside)
    }

    /// Whether an `Origin` is this preview's own.
    pub(super) fn is_own_origin(&self, origin: &HeaderValue) -> bool {
        origin.as_bytes().eq_ignore_ascii_case(self.origin().as_bytes())
    }

    /// Changes the headers of a request to what the application sees.
    pub(super) fn inward(&self, headers: &mut HeaderMap, from: Option<IpAddr>) {
        let way: Vec<HeaderName> = headers.keys().filter(|name| name.as_str().starts_with(WAY)).cloned().collect();
        for name in way.iter().chain([&FORWARDED, &REAL_IP, &EXPECT]) {
            // `Expect` is answered by our own server as soon as the body is read.
            headers.remove(name);
        }
        cookie::strip(headers);
        if headers.get_all(AUTHORIZATION).iter().any(is_own_key) {
            headers.remove(AUTHORIZATION);
        }
        let mut set = |name: HeaderName, value: &str| {
            // A name that came as one is one again.
            if let Ok(value) = HeaderValue::from_str(value) {
                headers.insert(name, value);
            }
        };
        set(HOST, &self.inside);
        set(HeaderName::from_static("x-forwarded-host"), &self.alias);
        set(HeaderName::from_static("x-forwarded-proto"), self.scheme);
        if let Some(port) = self.outside_port() {
            set(HeaderName::from_static("x-forwarded-port"), &port);
        }
        if let Some(from) = from {
            set(HeaderName::from_static("x-forwarded-for"), &from.to_string());
        }
        if !self.prefix.is_empty() {
            set(HeaderName::from_static("x-forwarded-prefix"), &self.prefix);
        }
        for name in [ORIGIN, REFERER] {
            if let Some(value) = headers.get(&name) {
                match self.seen_inside(value, &name) {
                    Some(value) => headers.insert(name, value),
                    None => headers.remove(name),
                };
            }
        }
    }

    fn outside_port(&self) -> Option<String> {
        let authority: Authority = self.outside.parse().ok()?;
        let usual = if self.scheme == "https" { 443 } else { 80 };
        Some(authority.port_u16().unwrap_or(usual).to_string())
    }

    /// An address of the preview's own, as the application knows it. Another one goes through as it came, but none with
    /// our credential in it.
    fn seen_inside(&self, value: &HeaderValue, name: &HeaderName) -> Option<HeaderValue> {
        let Ok(text) = value.to_str() else { return Some(value.clone()) };
        let origin = self.origin();
        if let Some(front) = text.get(..origin.len())
            && front.eq_ignore_ascii_case(&origin)
        {
            let rest = &text[origin.len()..];
            let rest = match rest.strip_prefix(&self.prefix) {
                Some(rest) if !self.prefix.is_empty() && *name == REFERER => rest,
                _ => rest,
            };
            if rest.is_empty() || rest.starts_with(['/', '?', '#']) {
                return HeaderValue::try_from(format!("http://{}{rest}", self.inside)).ok();
            }
        }
        let label = self.outside.split('.').next().unwrap_or_default();
        let secret = self.auth == PreviewAuth::Host && self.prefix.is_empty();
        let holds = secret && text.to_ascii_lowercase().contains(label);
        (!holds).then(|| value.clone())
    }

    /// Changes the headers of an answer to what the client understands.
    pub(super) fn outward(&self, headers: &mut HeaderMap) {
        cookie::confine(headers);
        for name in [LOCATION, CONTENT_LOCATION, ACCESS_CONTROL_ALLOW_ORIGIN] {
            let Some(text) = headers.get(&name).and_then(|value| value.to_str().ok()) else { continue };
            if let Some(told) = self.seen_outside(text).and_then(|told| HeaderValue::try_from(told).ok()) {
                headers.insert(name, told);
            }
        }
        if self.auth == PreviewAuth::Host && self.prefix.is_empty() {
            // The name is the credential: no other site is told it.
            headers.insert(REFERRER_POLICY, HeaderValue::from_static("same-origin"));
            for name in &REPORTS {
                headers.remove(name);
            }
        }
        if !self.prefix.is_empty() {
            headers.remove(WORKER_ALLOWED);
        }
    }

    /// An address that the application told, as the client knows it; none where it stays as it is.
    fn seen_outside(&self, text: &str) -> Option<String> {
        let scheme_end = ["http://", "https://", "//"]
            .iter()
            .find(|scheme| text.get(..scheme.len()).is_some_and(|front| front.eq_ignore_ascii_case(scheme)));
        let Some(scheme) = scheme_end else {
            return (!self.prefix.is_empty() && text.starts_with('/')).then(|| format!("{}{text}", self.prefix));
        };
        let after = &text[scheme.len()..];
        let end = after.find(['/', '?', '#', '\\']).unwrap_or(after.len());
        let (authority, rest) = after.split_at(end);
        if !self.is_inside(authority) {
            return None;
        }
        let scheme = if *scheme == "//" { "" } else { self.scheme };
        let colon = if scheme.is_empty() { "" } else { ":" };
        Some(format!("{scheme}{colon}//{}{}{rest}", self.outside, self.prefix))
    }

    /// Whether an application means itself by this authority.
    fn is_inside(&self, authority: &str) -> bool {
        let authority = authority.to_ascii_lowercase();
        if authority == self.inside || authority == self.alias {
            return true;
        }
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => (host, port.parse().ok()),
            _ => (authority.as_str(), Some(80)),
        };
        port == Some(self.port) && ["localhost", "127.0.0.1", "0.0.0.0", "[::1]", "[::]"].contains(&host)
    }
}

/// Whether this is one of our own access keys, which an application has no business with.
fn is_own_key(value: &HeaderValue) -> bool {
    let text = value.to_str().unwrap_or_default();
    text.split_ascii_whitespace().any(|word| word.parse::<AccessSecret>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "prev-aaaaaaaaaaaaaaaaaaaa";

    fn token() -> String {
        "0a".repeat(24)
    }

    fn names(auth: PreviewAuth, host: PreviewHost, authority: &str, prefix: &str) -> Names {
        let id = ID.parse().unwrap();
        let prefix = prefix.to_owned();
        Names::of(Coming { id: &id, auth, host, port: 5173, tls: false, authority, prefix })
    }

    fn by_token(host: PreviewHost) -> Names {
        names(PreviewAuth::Host, host, &format!("{}.localhost:8787", token()), "")
    }

    fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
        let pair = |(name, value): &(&str, &str)| (name.parse().unwrap(), value.parse().unwrap());
        pairs.iter().map(pair).collect::<HeaderMap<HeaderValue>>()
    }

    #[test]
    fn the_application_sees_another_name_and_never_the_credential() {
        let outside = format!("http://{}.localhost:8787", token());
        for (host, inside) in [
            (PreviewHost::Rewrite, "localhost:5173"),
            (PreviewHost::Preserve, "prev-aaaaaaaaaaaaaaaaaaaa.localhost:8787"),
        ] {
            let mut seen = headers(&[
                ("host", &format!("{}.localhost:8787", token())),
                ("origin", &outside),
                ("referer", &format!("{outside}/a?b=c")),
                ("x-forwarded-for", "6.6.6.6"),
                ("x-forwarded-proto", "gopher"),
                ("x-forwarded-server", "evil"),
                ("forwarded", "for=6.6.6.6"),
                ("x-real-ip", "6.6.6.6"),
                ("expect", "100-continue"),
                ("authorization", "Basic dXNlcjpwYXNz"),
                ("cookie", "own=1; remuda_preview=x"),
            ]);
            by_token(host).inward(&mut seen, Some([10, 0, 0, 1].into()));
            let text = |name: &str| seen.get(name).map(|value| value.to_str().unwrap().to_owned());
            assert_eq!(text("host").as_deref(), Some(inside));
            assert_eq!(text("origin"), Some(format!("http://{inside}")));
            assert_eq!(text("referer"), Some(format!("http://{inside}/a?b=c")));
            assert_eq!(text("x-forwarded-host").as_deref(), Some("prev-aaaaaaaaaaaaaaaaaaaa.localhost:8787"));
            let way = ["x-forwarded-proto", "x-forwarded-port", "x-forwarded-for", "authorization", "cookie"].map(text);
            let expected = ["http", "8787", "10.0.0.1", "Basic dXNlcjpwYXNz", "own=1"].map(|v| Some(v.to_owned()));
            assert_eq!(way, expected);
            for absent in ["x-forwarded-server", "forwarded", "x-real-ip", "expect"] {
                assert_eq!(text(absent), None, "{absent}");
            }
            assert!(!format!("{seen:?}").contains(&token()), "{seen:?}");
        }
    }

    #[test]
    fn our_own_keys_and_what_holds_a_credential_stay_here() {
        let key = format!("rmd_{}", "0f".repeat(32));
        let mut seen = headers(&[
            ("authorization", &format!("Bearer {key}")),
            ("referer", &format!("https://elsewhere/?from={}", token().to_uppercase())),
        ]);
        by_token(PreviewHost::Rewrite).inward(&mut seen, None);
        assert!(!seen.contains_key("authorization") && !seen.contains_key("referer"), "{seen:?}");
        let mut seen = headers(&[("authorization", "Bearer the-applications"), ("origin", "https://elsewhere")]);
        by_token(PreviewHost::Rewrite).inward(&mut seen, None);
        assert_eq!(
            (&seen["authorization"], &seen["origin"]),
            (&"Bearer the-applications".parse().unwrap(), &"https://elsewhere".parse().unwrap())
        );
    }

    #[test]
    fn redirects_to_itself_are_told_as_the_client_knows_it() {
        let outside = format!("http://{}.localhost:8787", token());
        let names = by_token(PreviewHost::Rewrite);
        for (told, expected) in [
            ("http://localhost:5173/a?b#c", format!("{outside}/a?b#c")),
            ("HTTPS://LocalHost:5173", outside.clone()),
            ("http://127.0.0.1:5173/x", format!("{outside}/x")),
            ("http://0.0.0.0:5173/x", format!("{outside}/x")),
            ("http://[::1]:5173/x", format!("{outside}/x")),
            ("http://prev-aaaaaaaaaaaaaaaaaaaa.localhost:8787/x", format!("{outside}/x")),
            ("//localhost:5173/x", format!("//{}.localhost:8787/x", token())),
            ("/relative", "/relative".to_owned()),
            ("other", "other".to_owned()),
            ("http://localhost:5174/x", "http://localhost:5174/x".to_owned()),
            ("http://localhost/x", "http://localhost/x".to_owned()),
            ("https://example.com/http://localhost:5173/", "https://example.com/http://localhost:5173/".to_owned()),
            ("http://localhost:5173@evil.example/", "http://localhost:5173@evil.example/".to_owned()),
            ("http://localhost:5173.evil.example/", "http://localhost:5173.evil.example/".to_owned()),
            ("http://é/", "http://é/".to_owned()),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(LOCATION, HeaderValue::from_bytes(told.as_bytes()).unwrap());
            names.outward(&mut headers);
            assert_eq!(headers[LOCATION].as_bytes(), expected.as_bytes(), "{told}");
            assert_eq!(headers[REFERRER_POLICY], "same-origin");
        }
    }

    #[test]
    fn under_a_path_the_path_is_mapped_both_ways() {
        let prefix = format!("/previews/{ID}");
        let names = names(PreviewAuth::Header, PreviewHost::Rewrite, "127.0.0.1:8787", &prefix);
        for (told, expected) in [
            ("/a", format!("{prefix}/a")),
            ("http://localhost:5173/a", format!("http://127.0.0.1:8787{prefix}/a")),
            ("a", "a".to_owned()),
        ] {
            let mut headers = headers(&[("location", told), ("service-worker-allowed", "/")]);
            names.outward(&mut headers);
            assert_eq!(headers[LOCATION], expected);
            assert!(!headers.contains_key("service-worker-allowed") && !headers.contains_key(REFERRER_POLICY));
        }
        let mut seen = headers(&[("referer", &format!("http://127.0.0.1:8787{prefix}/b"))]);
        names.inward(&mut seen, None);
        assert_eq!(seen[REFERER], "http://localhost:5173/b");
        assert_eq!(seen["x-forwarded-prefix"], prefix.as_str());
        assert_eq!(seen["x-forwarded-host"], "127.0.0.1:8787");
    }

    #[test]
    fn an_origin_is_compared_whole() {
        let names = by_token(PreviewHost::Rewrite);
        let is = |text: &str| names.is_own_origin(&text.parse().unwrap());
        assert!(is(&format!("http://{}.localhost:8787", token())));
        for other in
            ["null", "http://localhost:8787", "http://x.localhost:8787", &format!("https://{}.localhost:8787", token())]
        {
            assert!(!is(other), "{other}");
        }
    }
}
