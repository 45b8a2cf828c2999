//! Who calls, as [`crate::auth`] found out. Must not find out by itself, and never takes a caller from a request's text.

use axum::extract::FromRequestParts;
use http::request::Parts;
use remuda_control::Caller;
use remuda_types::{Error, ErrorCode};

use crate::errors::Failure;

/// Whoever was let in.
pub(crate) struct By(pub Caller);

impl<S: Sync> FromRequestParts<S> for By {
    type Rejection = Failure;
    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Failure> {
        // A route that lets in without asking who, and then wants to know, is a defect of ours: nothing is done.
        let caller = parts.extensions.get::<Caller>().cloned();
        let unknown = || Failure(Error::new(ErrorCode::Internal, "the server does not know who calls"));
        caller.map(By).ok_or_else(unknown)
    }
}
