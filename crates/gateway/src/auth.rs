//! Who comes in: whoever shows an access key on TCP, and whoever can open the root-only socket. Must never keep, log or
//! print a secret, and decides nothing about what a caller may do.

use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::HeaderMap;
use http::header::{AUTHORIZATION, SEC_WEBSOCKET_PROTOCOL};
use remuda_control::access::{AccessSecret, NotLetIn};
use remuda_control::{Caller, Platform};
use remuda_types::{Error, ErrorCode};

use crate::errors::Failure;
use crate::terminal_socket;

/// Who may use one listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Whoever can connect, as the server's operator: the file system guards the socket.
    Local,
    /// Whoever shows an access key.
    Keys,
}

/// Lets a request pass that may pass, and says whose it is. Asked anew for every request, also on a connection that is
/// kept: a revoked key is refused by the next one.
pub(crate) async fn authenticate(
    State((platform, access)): State<(Platform, Access)>,
    mut request: Request,
    next: Next,
) -> Response {
    let caller = match access {
        Access::Local => Ok(Caller::operator()),
        Access::Keys => secret_of(request.headers())
            .or_else(|e| offered_to_terminal(&request).unwrap_or(Err(e)))
            .and_then(|secret| platform.authenticate(&secret).map_err(refused)),
    };
    match caller {
        Ok(caller) => {
            request.extensions_mut().insert(caller);
            next.run(request).await
        }
        Err(error) => Failure(error).into_response(),
    }
}

/// The secret that a request shows.
pub(crate) fn secret_of(headers: &HeaderMap) -> Result<AccessSecret, Error> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let (Some(value), None) = (values.next(), values.next()) else {
        return Err(unauthorized("this request needs exactly one Authorization header"));
    };
    let scheme_and_key = value.to_str().ok().and_then(|text| text.split_once(' '));
    let Some((_, text)) = scheme_and_key.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer")) else {
        return Err(unauthorized("the Authorization header does not name a bearer key"));
    };
    text.trim().parse().map_err(|e| unauthorized(&format!("{e}")))
}

/// The secret that a browser offers with a WebSocket to a terminal, where it can set no other header. Taken nowhere else:
/// what is offered to a port is passed on to the application there.
fn offered_to_terminal(request: &Request) -> Option<Result<AccessSecret, Error>> {
    if request.headers().contains_key(AUTHORIZATION) {
        return None;
    }
    request.extensions().get::<MatchedPath>().filter(|path| path.as_str() == terminal_socket::PATH)?;
    let offers = request.headers().get_all(SEC_WEBSOCKET_PROTOCOL).iter().filter_map(|value| value.to_str().ok());
    let mut keys = offers
        .flat_map(|value| value.split(','))
        .filter_map(|offer| offer.trim().strip_prefix(terminal_socket::KEY_PROTOCOL));
    let key = keys.next()?;
    if keys.next().is_some() {
        return Some(Err(unauthorized("more than one access key is offered")));
    }
    Some(key.parse().map_err(|e| unauthorized(&format!("{e}"))))
}

fn refused(why: NotLetIn) -> Error {
    let dead = |what: &str, member: &str, at_ms: i64| {
        unauthorized(&format!("this access key {what}"))
            .remedy("have another one made: remuda key create")
            .detail("reason", what.rsplit(' ').next().unwrap_or(what))
            .detail(member, at_ms)
    };
    match why {
        NotLetIn::Unknown => unauthorized("this is no access key of this server"),
        NotLetIn::Revoked(at_ms) => dead("was revoked", "revoked_at_ms", at_ms),
        NotLetIn::Expired(at_ms) => dead("has expired", "expires_at_ms", at_ms),
    }
}

fn unauthorized(cause: &str) -> Error {
    Error::new(ErrorCode::Unauthorized, "not authorized").cause(cause).remedy(
        "send `Authorization: Bearer rmd_…` with a key that `remuda key create` or the first start of `remuda serve` \
         printed",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(authorization: &[&str]) -> Request {
        let mut builder = Request::builder().uri("/v1/sandboxes");
        for value in authorization {
            builder = builder.header(AUTHORIZATION, *value);
        }
        builder.body(axum::body::Body::empty()).unwrap()
    }

    #[test]
    fn one_bearer_secret_is_read_under_either_prefix_and_nothing_else_is() {
        let secret = AccessSecret::generate().unwrap();
        let text = secret.reveal();
        for same in [format!("Bearer {text}"), format!("bearer {text}"), format!("Bearer mb_{}", &text[4..])] {
            assert!(secret_of(request(&[&same]).headers()).is_ok_and(|read| read.digest() == secret.digest()));
        }
        for wrong in [
            format!("Bearer {}", &text[..67]),
            format!("Bearer {text}0"),
            format!("Basic {text}"),
            text.clone(),
            "Bearer ".to_owned(),
            String::new(),
        ] {
            let error = secret_of(request(&[&wrong]).headers()).err().unwrap();
            assert_eq!(error.code, ErrorCode::Unauthorized);
            assert!(!error.to_string().contains(&text[4..]) && !format!("{error:?}").contains(&text[4..20]));
        }
        let twice = [&*format!("Bearer {text}"), "Bearer x"];
        assert!(secret_of(request(&twice).headers()).is_err(), "two credentials are none");
        assert!(secret_of(request(&[]).headers()).is_err());
    }

    #[test]
    fn a_dead_key_is_told_apart_from_an_unknown_one() {
        let revoked = refused(NotLetIn::Revoked(7));
        assert_eq!((&revoked.details["reason"], &revoked.details["revoked_at_ms"]), (&"revoked".into(), &7.into()));
        let expired = refused(NotLetIn::Expired(8));
        assert_eq!((&expired.details["reason"], &expired.details["expires_at_ms"]), (&"expired".into(), &8.into()));
        assert!(refused(NotLetIn::Unknown).details.is_empty());
    }
}
