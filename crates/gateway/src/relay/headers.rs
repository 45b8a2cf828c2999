//! Which headers go through, and which are of one hop or ours.

use http::header::{CONNECTION, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE};
use http::{HeaderMap, HeaderName, HeaderValue};

/// What headers of ours begin with.
const OWN_HEADERS: &str = "x-remuda-";

/// The protocol that both `Connection: upgrade` and `Upgrade` ask for.
pub(crate) fn upgrade_wanted(headers: &HeaderMap) -> Option<HeaderValue> {
    let asked = connection_options(headers).any(|option| option.eq_ignore_ascii_case("upgrade"));
    headers.get(UPGRADE).filter(|_| asked).cloned()
}

fn connection_options(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    headers.get_all(CONNECTION).iter().filter_map(|v| v.to_str().ok()).flat_map(|v| v.split(',')).map(str::trim)
}

/// The headers that go through: those of one hop stay behind, and all that are ours.
pub(crate) fn forwarded(headers: &HeaderMap, upgrade: Option<&HeaderValue>) -> HeaderMap {
    const HOP: [HeaderName; 9] = [
        CONNECTION,
        HeaderName::from_static("keep-alive"),
        HeaderName::from_static("proxy-connection"),
        PROXY_AUTHENTICATE,
        PROXY_AUTHORIZATION,
        TE,
        TRAILER,
        TRANSFER_ENCODING,
        UPGRADE,
    ];
    let named: Vec<HeaderName> = connection_options(headers).filter_map(|option| option.parse().ok()).collect();
    let mut through: HeaderMap = headers
        .iter()
        .filter(|(name, _)| !HOP.contains(name) && !named.contains(name) && !name.as_str().starts_with(OWN_HEADERS))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    if let Some(protocol) = upgrade {
        through.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        through.insert(UPGRADE, protocol.clone());
    }
    through
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_of_one_hop_and_ours_stay_behind() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("connection", "close, X-Private"),
            ("x-private", "1"),
            ("keep-alive", "1"),
            ("te", "trailers"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "h2c"),
            ("x-remuda-error", "forged"),
            ("x-remuda-anything", "1"),
            ("cookie", "a=b"),
            ("x-app", "1"),
        ] {
            headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        headers.append("x-app", HeaderValue::from_static("2"));
        let through = forwarded(&headers, None);
        let names: Vec<_> = through.keys().map(HeaderName::as_str).collect();
        assert_eq!(names, ["cookie", "x-app"]);
        assert_eq!(through.get_all("x-app").iter().count(), 2);
        assert!(upgrade_wanted(&headers).is_none(), "Upgrade alone asks for nothing");
    }
}
