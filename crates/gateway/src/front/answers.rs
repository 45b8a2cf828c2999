//! Our own answers where a preview has none of its application: short, with the case and its remedy, as a page for browsers
//! and as JSON for everybody else. Must never show a credential, and nothing of an application's.

use axum::response::{Html, IntoResponse, Response};
use http::header::{
    ACCEPT, CACHE_CONTROL, CONTENT_SECURITY_POLICY, REFERRER_POLICY, RETRY_AFTER, WWW_AUTHENTICATE,
    X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use remuda_types::{Error, ErrorCode};

use crate::errors::{ERROR_HEADER, Failure};

/// Who asked, as far as it matters for the form of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reader {
    Person,
    Program,
}

impl Reader {
    /// By what a request says that it takes.
    pub(super) fn of(method: &Method, headers: &HeaderMap) -> Reader {
        let accepts = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
        let mut kinds = accepts.flat_map(|text| text.split(',')).map(|kind| kind.split(';').next().unwrap_or_default());
        let html = kinds.any(|kind| kind.trim().eq_ignore_ascii_case("text/html"));
        if html && (method == Method::GET || method == Method::HEAD) { Reader::Person } else { Reader::Program }
    }
}

/// An error as whoever asked understands it.
pub(super) fn answer(error: Error, reader: Reader) -> Response {
    let code = error.code;
    let status = StatusCode::from_u16(code.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = match reader {
        Reader::Program => Failure(error).into_response(),
        Reader::Person => {
            let mut page = (status, Html(page(status, &error))).into_response();
            page.headers_mut().insert(ERROR_HEADER, HeaderValue::from_static(code.as_str()));
            page
        }
    };
    let headers = response.headers_mut();
    let policy =
        "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'";
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(policy));
    match code {
        ErrorCode::Unauthorized => {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("X-Remuda-Preview-Token"));
        }
        ErrorCode::LimitReached | ErrorCode::PreviewNotReady | ErrorCode::Unreachable => {
            headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        _ => {}
    }
    response
}

fn page(status: StatusCode, error: &Error) -> String {
    let line = |text: &Option<String>| text.as_ref().map(|text| format!("<p>{}</p>\n", escaped(text)));
    let message = escaped(&error.message);
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head><meta charset=\"utf-8\"><title>{status}</title>\n<style>body{{font:\
         16px/1.5 system-ui,sans-serif;max-width:40em;margin:15vh auto;padding:0 1em}}small{{color:#666}}</style></head>\n\
         <body>\n<h1>{message}</h1>\n{cause}{remedy}<small>{number} {code} · Remuda</small>\n</body>\n</html>\n",
        number = status.as_u16(),
        cause = line(&error.cause).unwrap_or_default(),
        remedy = line(&error.remedy).unwrap_or_default(),
        code = error.code,
    )
}

fn escaped(text: &str) -> String {
    text.chars()
        .map(|c| match c {
            '&' => "&amp;".to_owned(),
            '<' => "&lt;".to_owned(),
            '>' => "&gt;".to_owned(),
            '"' => "&quot;".to_owned(),
            '\'' => "&#39;".to_owned(),
            c => c.to_string(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;

    fn reader(method: &Method, accept: &str) -> Reader {
        Reader::of(method, &HeaderMap::from_iter([(ACCEPT, accept.parse().unwrap())]))
    }

    #[test]
    fn a_page_is_for_whoever_reads_pages() {
        assert_eq!(reader(&Method::GET, "text/html,application/xhtml+xml;q=0.9,*/*;q=0.8"), Reader::Person);
        assert_eq!(reader(&Method::GET, "application/json, Text/HTML;q=0.1"), Reader::Person);
        for program in ["*/*", "application/json", "", "text/html-sandboxed"] {
            assert_eq!(reader(&Method::GET, program), Reader::Program, "{program}");
        }
        assert_eq!(reader(&Method::POST, "text/html"), Reader::Program);
    }

    #[tokio::test]
    async fn what_stands_in_an_error_is_text_on_a_page() {
        let error = Error::new(ErrorCode::PortUnreachable, "<script>alert(1)</script>").cause("a & b").remedy("\"c\"");
        let response = answer(error, Reader::Person);
        assert_eq!(
            (response.status().as_u16(), &response.headers()[ERROR_HEADER]),
            (502, &"port_unreachable".parse().unwrap())
        );
        assert!(response.headers()[CONTENT_SECURITY_POLICY].to_str().unwrap().starts_with("default-src 'none'"));
        let body = response.into_body().collect().await.unwrap().to_bytes();
        let text = std::str::from_utf8(&body).unwrap();
        assert!(text.contains("&lt;script&gt;") && !text.contains("<script>"), "{text}");
        assert!(text.contains("a &amp; b") && text.contains("&quot;c&quot;"), "{text}");
    }
}
