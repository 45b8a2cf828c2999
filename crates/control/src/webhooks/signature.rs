//! Secrets of webhooks, and what is signed with them: `id.timestamp.body`, by HMAC with SHA-256, as Standard Webhooks
//! has it. Must print no secret.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use remuda_types::{Error, ErrorCode};
use serde::{Deserialize, Serialize};
use sha2::Sha256;

use crate::clock::entropy;

/// What every secret begins with.
const PREFIX: &str = "whsec_";
/// Random bytes of a secret.
const SECRET_BYTES: usize = 32;

/// The key of a webhook's signatures.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Secret(String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

impl Secret {
    pub(super) fn generate() -> Result<Secret, Error> {
        Ok(Secret(format!("{PREFIX}{}", STANDARD.encode(entropy::<SECRET_BYTES>()?))))
    }

    /// The secret itself, to be told once.
    pub(super) fn reveal(&self) -> String {
        self.0.clone()
    }

    /// The value of the signature header.
    pub(super) fn sign(&self, id: &str, timestamp_s: i64, body: &[u8]) -> Result<String, Error> {
        let damaged = || Error::new(ErrorCode::JournalFailed, "the secret of a webhook is not understood");
        let key = self.0.strip_prefix(PREFIX).and_then(|text| STANDARD.decode(text).ok()).ok_or_else(damaged)?;
        let mut mac = Hmac::<Sha256>::new_from_slice(&key).map_err(|_| damaged())?;
        mac.update(format!("{id}.{timestamp_s}.").as_bytes());
        mac.update(body);
        Ok(format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the specification of Standard Webhooks.
    #[test]
    fn a_signature_is_the_one_that_the_standard_says() {
        let secret = Secret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".into());
        let body = br#"{"test": 2432232314}"#;
        let signed = secret.sign("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, body).unwrap();
        assert_eq!(signed, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn each_secret_is_another_and_none_is_printed() {
        let (a, b) = (Secret::generate().unwrap(), Secret::generate().unwrap());
        assert_ne!(a, b);
        assert!(!format!("{a:?}").contains(&a.reveal()[PREFIX.len()..]));
        assert_ne!(a.sign("id", 1, b"x").unwrap(), b.sign("id", 1, b"x").unwrap());
    }
}
