//! Headers of calls about files: which bytes, and under which conditions, as RFC 9110 has them. Entity tags are the digests
//! of contents. Must not know what a file holds.

use http::header::{IF_MATCH, IF_NONE_MATCH, IF_RANGE, RANGE};
use http::{HeaderMap, HeaderName, HeaderValue};
use remuda_control::{ByteRange, Conditions, Contents};
use utoipa::IntoParams;

use crate::errors::{Failure, invalid};

const DIGEST: &str = "sha256:";
/// Entity tags that one header may name.
const TAGS_MAX: usize = 64;

/// The header that names a part.
#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
#[expect(dead_code, reason = "it only describes what [`range`] reads")]
pub(crate) struct WithRange {
    /// One range of bytes: `bytes=0-99`, `bytes=100-` or `bytes=-100`. Several, or another unit, bring the whole file.
    #[param(rename = "Range")]
    range: Option<String>,
}

/// The headers that name conditions.
#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
#[expect(dead_code, reason = "it only describes what [`conditions`] reads")]
pub(crate) struct WithConditions {
    /// Entity tags of which the file must have one, or `*`: there must be a file.
    #[param(rename = "If-Match")]
    if_match: Option<String>,
    /// Entity tags of which the file must have none, or `*`: there must be no file.
    #[param(rename = "If-None-Match")]
    if_none_match: Option<String>,
}

/// The entity tag of a digest.
pub(crate) fn etag(digest: &str) -> Option<HeaderValue> {
    HeaderValue::try_from(format!("\"{digest}\"")).ok()
}

/// The one range that is asked for. A header that is not understood asks for the whole file, and so does one under a
/// condition of its own, which need not be looked at.
pub(crate) fn range(headers: &HeaderMap) -> Option<ByteRange> {
    if headers.contains_key(IF_RANGE) {
        return None;
    }
    let (unit, set) = headers.get(RANGE)?.to_str().ok()?.split_once('=')?;
    let (first, last) = set.trim().split_once('-').filter(|_| unit.trim().eq_ignore_ascii_case("bytes"))?;
    let number = |text: &str| text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse::<u64>().ok()).flatten();
    match (first.is_empty(), last.is_empty()) {
        (true, true) => None,
        (true, false) => number(last).map(ByteRange::Last),
        (false, true) => number(first).map(|first| ByteRange::From { first, last: None }),
        (false, false) => {
            let (first, last) = (number(first)?, number(last)?);
            (first <= last).then_some(ByteRange::From { first, last: Some(last) })
        }
    }
}

/// What must hold of the file.
pub(crate) fn conditions(headers: &HeaderMap) -> Result<Conditions, Failure> {
    Ok(Conditions {
        matches: contents(headers, &IF_MATCH, false)?,
        matches_not: contents(headers, &IF_NONE_MATCH, true)?,
    })
}

fn contents(headers: &HeaderMap, name: &HeaderName, weak: bool) -> Result<Option<Contents>, Failure> {
    let wrong = |why: &str| {
        let remedy = format!("give entity tags as they were answered, such as \"{DIGEST}…\" in quotes, or *");
        Failure(invalid(format!("the {name} header holds no entity tags")).cause(why).remedy(remedy))
    };
    let mut digests: Option<Vec<String>> = None;
    for value in headers.get_all(name) {
        let mut rest = value.to_str().map_err(|_| wrong("it holds characters outside of ASCII"))?.trim();
        if rest == "*" {
            return Ok(Some(Contents::Any));
        }
        let digests = digests.get_or_insert_default();
        loop {
            rest = rest.trim_start_matches([' ', '\t', ',']);
            if rest.is_empty() {
                break;
            }
            let (is_weak, quoted) = rest.strip_prefix("W/").map_or((false, rest), |rest| (true, rest));
            let inner = quoted.strip_prefix('"').ok_or_else(|| wrong("a tag has no quotes"))?;
            let (tag, behind) = inner.split_once('"').ok_or_else(|| wrong("a tag has no end"))?;
            if digests.len() >= TAGS_MAX {
                return Err(wrong("it names too many"));
            }
            // A tag of another kind is one that no file has, and a weak one says nothing of the bytes.
            let digest = tag.strip_prefix(DIGEST).filter(|_| weak || !is_weak);
            digests.push(digest.map(str::to_ascii_lowercase).unwrap_or_default());
            rest = behind;
        }
    }
    // An empty name is the digest of nothing; it would match what has no digest.
    Ok(digests.map(|digests| Contents::OneOf(digests.into_iter().filter(|digest| !digest.is_empty()).collect())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(HeaderName, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.clone(), HeaderValue::from_static(value))).collect()
    }

    #[test]
    fn one_range_is_understood_and_all_else_is_the_whole_file() {
        let of = |text| range(&headers(&[(RANGE, text)]));
        assert_eq!(of("bytes=0-99"), Some(ByteRange::From { first: 0, last: Some(99) }));
        assert_eq!(of("bytes=100-"), Some(ByteRange::From { first: 100, last: None }));
        assert_eq!(of("Bytes=-7"), Some(ByteRange::Last(7)));
        for whole in ["bytes=-", "bytes=2-1", "bytes=0-1,4-5", "lines=0-1", "bytes=a-b", "bytes", "bytes=+1-2", ""] {
            assert_eq!(of(whole), None, "{whole}");
        }
        assert_eq!(range(&headers(&[(RANGE, "bytes=0-1"), (IF_RANGE, "\"sha256:aa\"")])), None);
    }

    #[test]
    fn tags_are_digests_or_match_nothing() {
        let one_of = |digests: &[&str]| Some(Contents::OneOf(digests.iter().map(|&d| d.to_owned()).collect()));
        let matches = |text| conditions(&headers(&[(IF_MATCH, text)])).map(|conditions| conditions.matches);
        assert_eq!(matches("*").unwrap(), Some(Contents::Any));
        assert_eq!(matches("\"sha256:AA\", \"sha256:bb\"").unwrap(), one_of(&["aa", "bb"]));
        assert_eq!(matches("\"other\", W/\"sha256:aa\"").unwrap(), one_of(&[]));
        let not = conditions(&headers(&[(IF_NONE_MATCH, "W/\"sha256:aa\"")])).unwrap();
        assert_eq!((not.matches, not.matches_not), (None, one_of(&["aa"])));
        for wrong in ["sha256:aa", "\"sha256:aa"] {
            assert!(matches(wrong).is_err(), "{wrong}");
        }
    }
}
