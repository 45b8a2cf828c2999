//! The cookie that lets in, and the application's own cookies, which go through beside it. Must let no application set or
//! read ours, and none set a cookie for more than its own host name.

use http::header::{COOKIE, SET_COOKIE};
use http::{HeaderMap, HeaderValue};
use remuda_control::PreviewToken;

/// What ours is called.
const NAME: &str = "remuda_preview";

/// The value of our cookie, where exactly one came along that can be one.
pub(super) fn shown(headers: &HeaderMap) -> Option<PreviewToken> {
    let mut own = crumbs(headers).filter_map(|crumb| crumb.strip_prefix(NAME)?.strip_prefix('='));
    let (value, None) = (own.next()?, own.next()) else { return None };
    value.parse().ok()
}

fn crumbs(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let texts = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
    texts.flat_map(|text| text.split(';')).map(str::trim).filter(|crumb| !crumb.is_empty())
}

/// Leaves only the application's own cookies, in one header: HTTP/2 sends each in its own.
pub(super) fn strip(headers: &mut HeaderMap) {
    let mut values = headers.get_all(COOKIE).iter();
    let (Some(first), another) = (values.next(), values.next()) else { return };
    if another.is_none() && !first.as_bytes().windows(NAME.len()).any(|window| window == NAME.as_bytes()) {
        // Nothing of ours: it goes through as it came.
        return;
    }
    let is_ours = |crumb: &[u8]| crumb.split(|b| *b == b'=').next().unwrap_or_default().trim_ascii() == NAME.as_bytes();
    let mut kept: Vec<&[u8]> = Vec::new();
    for value in headers.get_all(COOKIE) {
        let crumbs = value.as_bytes().split(|b| *b == b';').map(<[u8]>::trim_ascii);
        kept.extend(crumbs.filter(|crumb| !crumb.is_empty() && !is_ours(crumb)));
    }
    let joined = HeaderValue::from_bytes(&kept.join(&b"; "[..]));
    headers.remove(COOKIE);
    if let Ok(value) = joined
        && !value.is_empty()
    {
        headers.insert(COOKIE, value);
    }
}

/// What an application sets: nothing under the name of ours, and for its own host name only.
pub(super) fn confine(headers: &mut HeaderMap) {
    if !headers.contains_key(SET_COOKIE) {
        return;
    }
    let set: Vec<HeaderValue> = headers.get_all(SET_COOKIE).iter().filter_map(confined).collect();
    headers.remove(SET_COOKIE);
    for value in set {
        headers.append(SET_COOKIE, value);
    }
}

fn confined(value: &HeaderValue) -> Option<HeaderValue> {
    let mut parts = value.as_bytes().split(|b| *b == b';');
    let first = parts.next().unwrap_or_default();
    if first.split(|b| *b == b'=').next().unwrap_or_default().trim_ascii() == NAME.as_bytes() {
        return None;
    }
    let is_domain = |part: &&[u8]| {
        let name = part.split(|b| *b == b'=').next().unwrap_or_default().trim_ascii();
        name.eq_ignore_ascii_case(b"domain")
    };
    if !value.as_bytes().split(|b| *b == b';').skip(1).any(|part| is_domain(&part)) {
        return Some(value.clone());
    }
    let kept: Vec<&[u8]> = std::iter::once(first).chain(parts.filter(|part| !is_domain(part))).collect();
    HeaderValue::from_bytes(&kept.join(&b";"[..])).ok()
}

/// The header that sets ours: for this host name alone, out of reach of scripts, and not sent by what other sites embed.
pub(super) fn set(value: &PreviewToken, seconds: u64, secure: bool) -> Option<HeaderValue> {
    let secure = if secure { "; Secure" } else { "" };
    let text = format!("{NAME}={}; Path=/; HttpOnly; SameSite=Lax; Max-Age={seconds}{secure}", value.reveal());
    let mut value = HeaderValue::try_from(text).ok()?;
    value.set_sensitive(true);
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: http::HeaderName, values: &[&str]) -> HeaderMap {
        values.iter().map(|value| (name.clone(), HeaderValue::from_str(value).unwrap())).collect()
    }

    fn all(headers: &HeaderMap, name: http::HeaderName) -> Vec<String> {
        headers.get_all(name).iter().map(|value| value.to_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn ours_is_read_and_stays_here_and_the_rest_goes_through() {
        let token = "ab".repeat(24);
        let ours = format!("{NAME}={token}");
        for (came, goes) in [
            (vec![format!("a=1; {ours}; b=2")], vec!["a=1; b=2"]),
            (vec![ours.clone()], vec![]),
            (vec!["a=1".into(), ours.clone(), "b=\"2;\"".into()], vec!["a=1; b=\"2; \""]),
            (vec![format!("{ours};x{ours}")], vec![&*Box::leak(format!("x{ours}").into_boxed_str())]),
        ] {
            let came: Vec<&str> = came.iter().map(String::as_str).collect();
            let mut headers = of(COOKIE, &came);
            assert!(shown(&headers).is_some_and(|shown| shown.reveal() == token), "{came:?}");
            strip(&mut headers);
            assert_eq!(all(&headers, COOKIE), goes, "{came:?}");
        }
        let mut plain = of(COOKIE, &["a=1;  b=2 ;"]);
        strip(&mut plain);
        assert_eq!(all(&plain, COOKIE), ["a=1;  b=2 ;"], "as it came");
        for none in ["", "a=1", &format!("{ours}; {ours}"), &format!("{NAME}=short"), &format!("x{ours}")] {
            assert!(shown(&of(COOKIE, &[none])).is_none(), "{none}");
        }
    }

    #[test]
    fn an_application_sets_cookies_for_itself_alone() {
        let mut headers = of(
            SET_COOKIE,
            &[
                "a=1; Path=/; HttpOnly",
                "b=2; Domain=.localhost; Secure",
                "c=3;domain=example.com",
                &format!("{NAME}=stolen; Path=/"),
                &format!(" {NAME} =stolen"),
                "d=domain=x",
            ],
        );
        confine(&mut headers);
        assert_eq!(all(&headers, SET_COOKIE), ["a=1; Path=/; HttpOnly", "b=2; Secure", "c=3", "d=domain=x"]);
    }
}
