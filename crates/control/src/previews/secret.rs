//! Credentials of previews, and the server's secret that they derive from. Neither must ever be logged, printed or kept
//! anywhere but in the secret's own file.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::str::FromStr;

use remuda_types::{Error, ErrorCode, PreviewId, Uid};
use subtle::ConstantTimeEq as _;

use crate::clock::entropy;

/// The secret's file in the data directory.
const FILE: &str = "preview-secret";
/// Bytes of the secret.
const SECRET_BYTES: usize = 32;
/// Bytes of a credential: 192 bits.
const TOKEN_BYTES: usize = 24;

/// What lets in through a preview: a credential, a cookie's value or what a link carries. It has no `Debug` or `Display`.
#[derive(Clone)]
pub struct PreviewToken([u8; TOKEN_BYTES]);

/// The text is no credential of a preview. Never carries the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a preview's credential: it has 48 hex digits")]
pub struct TokenError;

impl PreviewToken {
    /// How many characters one has.
    pub const TEXT_LEN: usize = 2 * TOKEN_BYTES;

    /// The credential as it travels: 48 lower-case hex digits, which a host name can hold.
    pub fn reveal(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// What may be stored of it.
    pub(crate) fn digest(&self) -> [u8; 32] {
        // A plain digest is enough: 192 bits that nobody can guess.
        *blake3::hash(&self.0).as_bytes()
    }

    /// Whether both are the same, in a time that tells nothing of where they differ.
    pub(crate) fn is(&self, other: &PreviewToken) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl FromStr for PreviewToken {
    type Err = TokenError;
    /// Host names know no case, so that both are read.
    fn from_str(text: &str) -> Result<Self, TokenError> {
        let digits = text.as_bytes();
        if digits.len() != Self::TEXT_LEN {
            return Err(TokenError);
        }
        let mut bytes = [0; TOKEN_BYTES];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            let digit = |at: usize| char::from(pair[at]).to_digit(16).ok_or(TokenError);
            *byte = u8::try_from(digit(0)? << 4 | digit(1)?).map_err(|_| TokenError)?;
        }
        Ok(PreviewToken(bytes))
    }
}

/// The secret that all credentials of previews on this data directory derive from.
#[derive(Clone)]
pub(crate) struct PreviewSecret([u8; SECRET_BYTES]);

impl std::fmt::Debug for PreviewSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PreviewSecret(…)")
    }
}

impl PreviewSecret {
    /// Reads it, or makes it where there is none yet: its owner's alone, and on the disk before it is used.
    pub(crate) fn open(data_dir: &Path) -> Result<PreviewSecret, Error> {
        let path = data_dir.join(FILE);
        match read(&path) {
            Ok(Some(secret)) => Ok(secret),
            Ok(None) => {
                let secret = PreviewSecret(entropy()?);
                secret.write(data_dir).map_err(|e| failed(&path, &e))?;
                Ok(secret)
            }
            Err(e) => Err(failed(&path, &e)),
        }
    }

    fn write(&self, data_dir: &Path) -> io::Result<()> {
        let new = data_dir.join(format!("{FILE}.new"));
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        file.write_all(&self.0)?;
        file.sync_all()?;
        fs::rename(&new, data_dir.join(FILE))?;
        File::open(data_dir)?.sync_all()
    }

    /// The credential of a preview that was rotated so often.
    pub(crate) fn token(&self, id: &PreviewId, rotation: u32) -> PreviewToken {
        self.derive("token", id, &rotation.to_be_bytes())
    }

    /// The value of the cookie of a preview that was rotated so often: for one generation and one port.
    pub(crate) fn cookie(&self, id: &PreviewId, rotation: u32, sandbox: &Uid, port: u16) -> PreviewToken {
        let bound = [&rotation.to_be_bytes()[..], &port.to_be_bytes(), sandbox.as_str().as_bytes()].concat();
        self.derive("cookie", id, &bound)
    }

    /// What the link of this number carries, of a preview that was rotated so often.
    pub(crate) fn ticket(&self, id: &PreviewId, rotation: u32, link: u32) -> PreviewToken {
        self.derive("ticket", id, &[rotation.to_be_bytes(), link.to_be_bytes()].concat())
    }

    fn derive(&self, what: &str, id: &PreviewId, bound: &[u8]) -> PreviewToken {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        // The id has one length, so that no two of these are the same bytes.
        hasher.update(what.as_bytes()).update(b"\0").update(id.as_str().as_bytes()).update(bound);
        let mut bytes = [0; TOKEN_BYTES];
        hasher.finalize_xof().fill(&mut bytes);
        PreviewToken(bytes)
    }
}

fn read(path: &Path) -> io::Result<Option<PreviewSecret>> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e),
    };
    let mut bytes = Vec::new();
    (&mut file).take(SECRET_BYTES as u64 + 1).read_to_end(&mut bytes)?;
    let secret = bytes.try_into().map_err(|_| io::Error::other(format!("it does not hold {SECRET_BYTES} bytes")))?;
    Ok(Some(PreviewSecret(secret)))
}

fn failed(path: &Path, e: &io::Error) -> Error {
    let code = if e.kind() == io::ErrorKind::StorageFull { ErrorCode::DiskFull } else { ErrorCode::Internal };
    Error::new(code, format!("the secret of previews in {} can't be used", path.display()))
        .cause(e)
        .remedy("restore the file, or remove it: previews that were made with it then keep their credentials until they are rotated")
}

#[cfg(test)]
mod unit {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn id(byte: u8) -> PreviewId {
        PreviewId::from_entropy([byte; 20])
    }

    #[test]
    fn the_secret_is_made_once_and_its_owners_alone() {
        let directory = tempfile::tempdir().unwrap();
        let first = PreviewSecret::open(directory.path()).unwrap();
        let again = PreviewSecret::open(directory.path()).unwrap();
        assert!(first.token(&id(1), 0).is(&again.token(&id(1), 0)));
        let mode = fs::metadata(directory.path().join(FILE)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(format!("{first:?}"), "PreviewSecret(…)");
        fs::write(directory.path().join(FILE), "short").unwrap();
        let error = PreviewSecret::open(directory.path()).unwrap_err();
        assert!(error.cause.unwrap().contains("32 bytes"));
    }

    #[test]
    fn every_credential_is_its_own() {
        let secret = PreviewSecret([7; SECRET_BYTES]);
        let uid = |byte: u8| Uid::from_entropy([byte; 20]);
        let all = [
            secret.token(&id(1), 0),
            secret.token(&id(1), 1),
            secret.token(&id(2), 0),
            secret.cookie(&id(1), 0, &uid(1), 80),
            secret.cookie(&id(1), 0, &uid(1), 81),
            secret.cookie(&id(1), 0, &uid(2), 80),
            secret.cookie(&id(1), 1, &uid(1), 80),
            secret.ticket(&id(1), 0, 0),
            secret.ticket(&id(1), 0, 1),
            PreviewSecret([8; SECRET_BYTES]).token(&id(1), 0),
        ];
        for (n, one) in all.iter().enumerate() {
            assert!(all.iter().enumerate().all(|(m, other)| (n == m) == one.is(other)));
        }
    }

    #[test]
    fn a_credential_is_read_as_it_is_written_and_nothing_else_is() {
        let token = PreviewSecret([7; SECRET_BYTES]).token(&id(1), 0);
        let text = token.reveal();
        assert_eq!((text.len(), text.to_lowercase()), (48, text.clone()));
        for same in [text.clone(), text.to_uppercase()] {
            assert!(same.parse::<PreviewToken>().is_ok_and(|read| read.is(&token)));
        }
        for wrong in
            ["", &text[1..], &format!("{text}0"), &format!("{}g", &text[1..]), &"é".repeat(24), &"+1".repeat(24)]
        {
            assert_eq!(wrong.parse::<PreviewToken>().err(), Some(TokenError), "{wrong}");
        }
    }
}
