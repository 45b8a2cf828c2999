//! Who may use the API: one access key on TCP, and whoever can open the root-only socket.
//! Must never keep, log or print a key; only its hash stays.

use std::fmt;
use std::str::FromStr;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::header::AUTHORIZATION;
use remuda_control::Caller;
use remuda_types::{Error, ErrorCode};
use subtle::ConstantTimeEq;

use crate::errors::Failure;

/// Random bytes of a key.
const KEY_BYTES: usize = 32;
/// What a key may begin with; both name the same secret.
const PREFIXES: [&str; 2] = ["rmd_", "mb_"];

/// A secret that opens the API. It is shown once, when it is made, and has no `Debug` or `Display`.
pub struct AccessKey([u8; KEY_BYTES]);

impl AccessKey {
    /// A fresh key.
    ///
    /// # Errors
    /// When the kernel gives no random bytes.
    pub fn generate() -> Result<Self, KeyError> {
        let mut secret = [0; KEY_BYTES];
        getrandom::fill(&mut secret).map_err(|e| KeyError::NoEntropy(e.to_string()))?;
        Ok(AccessKey(secret))
    }

    /// The key as its owner writes it: `rmd_` and 64 hex digits.
    pub fn reveal(&self) -> String {
        format!("{}{}", PREFIXES[0], hex(&self.0))
    }

    /// What may be stored of it.
    pub fn hash(&self) -> KeyHash {
        // A plain hash is enough: 256 random bits can't be guessed, so there is nothing for a slow hash to slow down.
        KeyHash(*blake3::hash(&self.0).as_bytes())
    }
}

impl FromStr for AccessKey {
    type Err = KeyError;
    fn from_str(text: &str) -> Result<Self, KeyError> {
        let digits = PREFIXES.iter().find_map(|prefix| text.strip_prefix(prefix)).ok_or(KeyError::Malformed)?;
        unhex(digits).map(AccessKey).ok_or(KeyError::Malformed)
    }
}

/// The hash of an access key, as text `blake3:` and 64 hex digits.
#[derive(Clone, Copy)]
pub struct KeyHash([u8; KEY_BYTES]);

impl KeyHash {
    /// Whether this is that key's hash, in a time that tells nothing about where they differ.
    fn is_of(&self, key: &AccessKey) -> bool {
        self.0.ct_eq(&key.hash().0).into()
    }
}

impl fmt::Display for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "blake3:{}", hex(&self.0))
    }
}

impl FromStr for KeyHash {
    type Err = KeyError;
    fn from_str(text: &str) -> Result<Self, KeyError> {
        text.strip_prefix("blake3:").and_then(unhex).map(KeyHash).ok_or(KeyError::MalformedHash)
    }
}

/// Why a key could not be made or read. Never carries the text that was given.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// The text is no key.
    #[error("not an access key: it looks like rmd_ followed by 64 hex digits")]
    Malformed,
    /// The text is no hash of one.
    #[error("not the hash of an access key: it looks like blake3: followed by 64 hex digits")]
    MalformedHash,
    /// The kernel gave no random bytes.
    #[error("the kernel gave no random bytes: {0}")]
    NoEntropy(String),
}

/// Who may use one listener.
#[derive(Clone, Copy)]
pub enum Access {
    /// Whoever can connect: the file system guards the socket.
    Local,
    /// Whoever shows the key with this hash.
    Key(KeyHash),
}

/// Lets a request pass that may pass, and says whose it is.
pub(crate) async fn authenticate(State(access): State<Access>, mut request: Request, next: Next) -> Response {
    match access.check(&request) {
        Ok(caller) => {
            request.extensions_mut().insert(caller);
            next.run(request).await
        }
        Err(error) => Failure(error).into_response(),
    }
}

impl Access {
    fn check(self, request: &Request) -> Result<Caller, Error> {
        let Access::Key(hash) = self else { return Ok(Caller::operator()) };
        let mut values = request.headers().get_all(AUTHORIZATION).iter();
        let (Some(value), None) = (values.next(), values.next()) else {
            return Err(unauthorized("this request needs exactly one Authorization header"));
        };
        let scheme_and_key = value.to_str().ok().and_then(|text| text.split_once(' '));
        let Some((_, text)) = scheme_and_key.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer")) else {
            return Err(unauthorized("the Authorization header does not name a bearer key"));
        };
        match text.trim().parse() {
            Ok(key) if hash.is_of(&key) => Ok(Caller::operator()),
            Ok(_) => Err(unauthorized("this is not the access key of this server")),
            Err(e) => Err(unauthorized(&e.to_string())),
        }
    }
}

fn unauthorized(cause: &str) -> Error {
    Error::new(ErrorCode::Unauthorized, "not authorized")
        .cause(cause)
        .remedy("send `Authorization: Bearer rmd_…` with the key that `remuda serve` printed on its first start")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn unhex(text: &str) -> Option<[u8; KEY_BYTES]> {
    let digits = text.as_bytes();
    if digits.len() != 2 * KEY_BYTES {
        return None;
    }
    let mut bytes = [0; KEY_BYTES];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        let high = char::from(pair[0]).to_digit(16)?;
        let low = char::from(pair[1]).to_digit(16)?;
        *byte = u8::try_from(high << 4 | low).ok()?;
    }
    Some(bytes)
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
    fn only_the_right_key_passes_under_either_prefix() {
        let key = AccessKey::generate().unwrap();
        let other = AccessKey::generate().unwrap();
        let access = Access::Key(key.hash());
        let text = key.reveal();
        assert_eq!(text.len(), 4 + 64);
        assert!(access.check(&request(&[&format!("Bearer {text}")])).is_ok());
        assert!(access.check(&request(&[&format!("bearer {text}")])).is_ok());
        assert!(access.check(&request(&[&format!("Bearer mb_{}", &text[4..])])).is_ok());
        for wrong in [
            format!("Bearer {}", other.reveal()),
            format!("Bearer {}", &text[..67]),
            format!("Bearer {text}0"),
            format!("Basic {text}"),
            text.clone(),
            "Bearer ".to_owned(),
            String::new(),
        ] {
            let error = access.check(&request(&[&wrong])).unwrap_err();
            assert_eq!(error.code, ErrorCode::Unauthorized);
            assert!(!error.to_string().contains(&text[4..]) && !format!("{error:?}").contains(&text[4..20]));
        }
        let twice = [&*format!("Bearer {text}"), "Bearer x"];
        assert!(access.check(&request(&twice)).is_err(), "two credentials are none");
        assert!(access.check(&request(&[])).is_err());
        assert!(Access::Local.check(&request(&[])).is_ok());
    }

    #[test]
    fn a_stored_hash_is_read_again() {
        let key = AccessKey::generate().unwrap();
        let stored: KeyHash = key.hash().to_string().parse().unwrap();
        assert!(stored.is_of(&key));
        assert!(!key.hash().to_string().contains(&key.reveal()[4..]));
        assert!("blake3:00".parse::<KeyHash>().is_err());
        assert!(format!("blake3:{}", "é".repeat(32)).parse::<KeyHash>().is_err());
    }
}
