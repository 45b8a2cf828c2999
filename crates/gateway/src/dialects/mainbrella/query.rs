//! A query, read strictly: each name once, none that the call does not take, every escape whole. Must not know what a name
//! means.

use std::collections::BTreeMap;

/// What stands in a query.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Query(BTreeMap<String, String>);

/// It is not one.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Malformed;

impl Query {
    /// Reads a query string. Forms write a space as `+`, and a plus as `%2B`.
    pub(super) fn read(text: Option<&str>) -> Result<Query, Malformed> {
        let mut pairs = BTreeMap::new();
        for pair in text.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            if pairs.insert(decoded(name)?, decoded(value)?).is_some() {
                return Err(Malformed);
            }
        }
        Ok(Query(pairs))
    }

    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// Whether every name in it is one of these.
    pub(super) fn has_only(&self, names: &[&str], more: &[&str]) -> bool {
        self.0.keys().all(|name| names.contains(&name.as_str()) || more.contains(&name.as_str()))
    }

    /// A number in digits alone.
    pub(super) fn number(&self, name: &str) -> Result<Option<u64>, Malformed> {
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let read = |text: &str| digits(text).then(|| text.parse().ok()).flatten().ok_or(Malformed);
        self.get(name).map(read).transpose()
    }

    /// `true` or `false`.
    pub(super) fn flag(&self, name: &str) -> Result<bool, Malformed> {
        match self.get(name) {
            None | Some("false") => Ok(false),
            Some("true") => Ok(true),
            Some(_) => Err(Malformed),
        }
    }
}

fn decoded(text: &str) -> Result<String, Malformed> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => {
                let digit = |byte: Option<u8>| byte.and_then(|byte| char::from(byte).to_digit(16));
                let (Some(high), Some(low)) = (digit(rest.next()), digit(rest.next())) else { return Err(Malformed) };
                u8::try_from(high * 16 + low).map_err(|_| Malformed)?
            }
            byte => byte,
        });
    }
    String::from_utf8(bytes).map_err(|_| Malformed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plus_is_a_space_and_an_escaped_one_is_a_plus() {
        let query = Query::read(Some("path=%2Ftmp%2Fa+b%2B%26%E2%98%83&id=c1")).unwrap();
        assert_eq!(query.get("path"), Some("/tmp/a b+&☃"));
        assert!(query.has_only(&["path"], &["id"]) && !query.has_only(&["path"], &[]));
    }

    #[test]
    fn what_is_twice_or_broken_is_no_query() {
        for wrong in ["a=1&a=1", "a=%", "a=%4", "a=%zz", "a=%ff", "%=1"] {
            assert_eq!(Query::read(Some(wrong)), Err(Malformed), "{wrong}");
        }
        assert_eq!(Query::read(None), Ok(Query::default()));
    }

    #[test]
    fn numbers_are_digits_and_flags_are_words() {
        let query = Query::read(Some("a=12&b=-1&c=+1&d=&e=99999999999999999999&f=true&g=1")).unwrap();
        assert_eq!(query.number("a"), Ok(Some(12)));
        assert_eq!(query.number("absent"), Ok(None));
        for wrong in ["b", "c", "d", "e"] {
            assert_eq!(query.number(wrong), Err(Malformed), "{wrong}");
        }
        assert_eq!((query.flag("f"), query.flag("absent"), query.flag("g")), (Ok(true), Ok(false), Err(Malformed)));
    }
}
