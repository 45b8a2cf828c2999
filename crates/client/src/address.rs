//! How ids, names and paths become part of a URL. Never lets one change which route is called.

use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

use crate::ClientError;

/// What cannot stand in one segment of a path. `@` and `:` may, so that ids stay legible in logs.
const SEGMENT: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'#')
    .add(b'%')
    .add(b'/')
    .add(b'<')
    .add(b'>')
    .add(b'?')
    .add(b'\\')
    .add(b'^')
    .add(b'`')
    .add(b'{')
    .add(b'|')
    .add(b'}')
    .add(b'[')
    .add(b']');

/// What cannot stand in an application's path and query as they are. `%` may: the caller has encoded what it must.
const APPLICATION_PATH: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'#')
    .add(b'<')
    .add(b'>')
    .add(b'\\')
    .add(b'^')
    .add(b'`')
    .add(b'{')
    .add(b'|')
    .add(b'}');

/// One segment of a path.
pub(crate) fn segment(text: &str) -> Result<String, ClientError> {
    // A URL parser takes dot segments out of a path, encoded or not, and the call would reach another route.
    if text.is_empty() || is_dot_segment(text) {
        return Err(ClientError::Input(format!(
            "{text:?} can't be a name or an id: give a non-empty one other than . and .."
        )));
    }
    Ok(utf8_percent_encode(text, SEGMENT).to_string())
}

/// Path and query of a request to an application behind the port route.
pub(crate) fn application_path(path: &str) -> Result<String, ClientError> {
    if !path.starts_with('/') {
        return Err(ClientError::Input(format!("the path {path:?} of an application must begin with a slash")));
    }
    let before_query = path.split('?').next().unwrap_or(path);
    if before_query.split('/').any(is_dot_segment) {
        return Err(ClientError::Input(format!("the path {path:?} has a . or .. in it: give the path that is meant")));
    }
    Ok(utf8_percent_encode(path, APPLICATION_PATH).to_string())
}

fn is_dot_segment(segment: &str) -> bool {
    let plain = segment.to_ascii_lowercase().replace("%2e", ".");
    plain == "." || plain == ".."
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_stays_one_segment() {
        assert_eq!(segment("c1@2026-10-08T12:00:00.000Z").unwrap(), "c1@2026-10-08T12:00:00.000Z");
        assert_eq!(segment("a/b?c#d%2e é").unwrap(), "a%2Fb%3Fc%23d%252e%20%C3%A9");
    }

    #[test]
    fn dots_and_nothing_are_refused() {
        for wrong in ["", ".", "..", "%2e%2E", ".%2e"] {
            assert!(segment(wrong).is_err(), "{wrong}");
        }
        for wrong in ["", "status", "/a/../b", "/./a", "/a/%2e%2e/b", "/a/%2E"] {
            assert!(application_path(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_applications_path_keeps_what_its_caller_encoded() {
        assert_eq!(application_path("/a%2Fb/c?x=../y&z=1").unwrap(), "/a%2Fb/c?x=../y&z=1");
        assert_eq!(application_path("/with space\\#").unwrap(), "/with%20space%5C%23");
    }
}
