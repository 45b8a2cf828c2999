//! How an error becomes a response: always `{error: {code, message, …}}`, with its code in a header too.
//! Must never show what only the operator may see; that goes to the log.

use std::any::Any;

use axum::Json;
use axum::response::{IntoResponse, Response};
use http::header::WWW_AUTHENTICATE;
use http::{HeaderName, HeaderValue, Method, StatusCode, Uri};
use remuda_types::error::ErrorBody;
use remuda_types::{Error, ErrorCode, IdError};

/// Set on every error of ours. On the ports route it tells them from the application's own answers.
pub(crate) const ERROR_HEADER: HeaderName = HeaderName::from_static("x-remuda-error");

/// An error on its way to the caller.
#[derive(Debug)]
pub(crate) struct Failure(pub Error);

/// What a handler gives.
pub(crate) type Answer<T> = Result<T, Failure>;

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure(error)
    }
}

impl From<IdError> for Failure {
    fn from(error: IdError) -> Self {
        Failure(error.into())
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let Failure(error) = self;
        let code = error.code;
        let status = StatusCode::from_u16(code.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let (message, cause) = (&error.message, &error.cause);
        match code {
            ErrorCode::Internal | ErrorCode::EngineFailed | ErrorCode::DiskFull => {
                tracing::error!(%code, message, cause, "request failed");
            }
            // Of the caller, of an application in a guest, or the plain state of a sandbox.
            _ => tracing::debug!(%code, message, cause, "request refused"),
        }
        let mut response = (status, Json(ErrorBody { error })).into_response();
        response.headers_mut().insert(ERROR_HEADER, HeaderValue::from_static(code.as_str()));
        if code == ErrorCode::Unauthorized {
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// A request that is malformed, with the reason in the caller's words.
pub(crate) fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorCode::InvalidRequest, message)
}

/// The answer where no route is.
pub(crate) async fn route_not_found(method: Method, uri: Uri) -> Failure {
    Error::new(ErrorCode::RouteNotFound, format!("there is no route {method} {}", uri.path()))
        .remedy("GET /v1/openapi.json lists every route")
        .into()
}

/// The answer where a route is, but not with this method.
pub(crate) async fn method_not_allowed(method: Method, uri: Uri) -> Failure {
    Error::new(ErrorCode::MethodNotAllowed, format!("{} does not answer to {method}", uri.path()))
        .remedy("the Allow header of this response names the methods it answers to")
        .into()
}

/// The answer after a panic: the log has the words, the caller has none.
#[allow(clippy::needless_pass_by_value, reason = "the layer gives it away")]
pub(crate) fn panicked(payload: Box<dyn Any + Send + 'static>) -> Response {
    let words = payload
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_default();
    tracing::error!(panic = words, "a request handler panicked; this is a defect");
    Failure(
        Error::new(ErrorCode::Internal, "the server could not answer this request")
            .cause("a defect in the server; its log has more")
            .remedy("look whether the call took effect before it is sent again, and report the defect"),
    )
    .into_response()
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::body::Body;
    use axum::extract::Request;
    use axum::routing::get;
    use http_body_util::BodyExt;
    use tower::ServiceExt;
    use tower_http::catch_panic::CatchPanicLayer;

    use super::*;

    #[tokio::test]
    async fn a_panic_is_an_error_without_details() {
        async fn fail() {
            panic!("secret words");
        }
        let router = Router::new().route("/", get(fail)).layer(CatchPanicLayer::custom(panicked));
        let response = router.oneshot(Request::new(Body::empty())).await.unwrap();
        assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
        assert_eq!(response.headers()[ERROR_HEADER], "internal");
        let body = response.into_body().collect().await.unwrap().to_bytes();
        let body: ErrorBody = serde_json::from_slice(&body).unwrap();
        assert_eq!(body.error.code, ErrorCode::Internal);
        assert!(!format!("{:?}", body.error).contains("secret"));
    }
}
