//! Who vouches for a bundle: an ed25519 key, made at its first use and kept in a file of its owner's alone. The private
//! half leaves that file only into this process's memory, and never into a bundle, a log or an error.

use std::fmt;
#[cfg(test)]
use std::fs;
use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use ed25519_dalek::pkcs8::{DecodePrivateKey as _, EncodePrivateKey as _, KeypairBytes, spki::der::pem::LineEnding};
use ed25519_dalek::{Signature, Signer as _, SigningKey, VerifyingKey};

/// Largest key file that is read, in bytes. A PKCS#8 file of this kind has about 120.
const KEY_FILE_BYTES_MAX: u64 = 4_096;

/// The private key that signs bundles.
#[derive(Clone)]
pub struct Signer(SigningKey);

/// The public key that a bundle was signed with: 64 hexadecimal digits, the 32 bytes of RFC 8032.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PublicKey(VerifyingKey);

/// A key can't be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The file can't be read or written.
    #[error("failed to {doing} the evidence key {}: {cause}; name another file with --key-file", .path.display())]
    File {
        /// What was tried.
        doing: &'static str,
        /// Which file.
        path: PathBuf,
        /// Why.
        cause: io::Error,
    },
    /// Others can read it.
    #[error(
        "the evidence key {} can be read by others than its owner (mode {mode:03o}): whoever read it can sign in your \
         name; make a new one, or run chmod 600 on it if nobody did", .path.display()
    )]
    Open {
        /// Which file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// It holds no key.
    #[error("{} holds no ed25519 key in PKCS#8 PEM form; name another file with --key-file", .path.display())]
    Malformed {
        /// Which file.
        path: PathBuf,
    },
    /// A public key is none.
    #[error("{given:?} is no public key: give 64 hexadecimal digits, as `remuda rodeo key` prints them")]
    Public {
        /// What was given.
        given: String,
    },
}

impl Signer {
    /// A new key that is kept nowhere.
    ///
    /// # Errors
    /// The system has no randomness.
    pub fn generate() -> io::Result<Signer> {
        let mut seed = [0; 32];
        getrandom::fill(&mut seed).map_err(io::Error::other)?;
        Ok(Signer(SigningKey::from_bytes(&seed)))
    }

    /// The key in this file; where there is none, one is made and written there, for its owner alone.
    ///
    /// # Errors
    /// [`KeyError`]; a file that is there is never written over.
    pub fn open(path: &Path) -> Result<Signer, KeyError> {
        match read(path) {
            Err(KeyError::File { cause, .. }) if cause.kind() == io::ErrorKind::NotFound => {}
            read => return read,
        }
        match make(path) {
            // Another run made it meanwhile.
            Err(KeyError::File { cause, .. }) if cause.kind() == io::ErrorKind::AlreadyExists => read(path),
            made => made,
        }
    }

    /// The public half.
    pub fn public(&self) -> PublicKey {
        PublicKey(self.0.verifying_key())
    }

    /// Signs these very bytes.
    pub fn sign(&self, bytes: &[u8]) -> [u8; 64] {
        self.0.sign(bytes).to_bytes()
    }
}

fn read(path: &Path) -> Result<Signer, KeyError> {
    use std::io::Read as _;
    let failed = |cause| KeyError::File { doing: "read", path: path.to_owned(), cause };
    // A pipe would be waited for.
    let nonblock = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(nonblock).open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() {
        return Err(failed(io::Error::other("it is no regular file")));
    }
    let (owner, user) = (metadata.uid(), rustix::process::geteuid().as_raw());
    if owner != user {
        return Err(failed(io::Error::other(format!("it belongs to the user {owner}, who can sign with it too"))));
    }
    if metadata.mode() & 0o077 != 0 {
        return Err(KeyError::Open { path: path.to_owned(), mode: metadata.mode() & 0o777 });
    }
    let mut text = String::new();
    file.take(KEY_FILE_BYTES_MAX).read_to_string(&mut text).map_err(failed)?;
    let key = SigningKey::from_pkcs8_pem(&text).map_err(|_| KeyError::Malformed { path: path.to_owned() })?;
    Ok(Signer(key))
}

/// Writes a new key beside `path` and gives it that name if nobody has it yet: a reader never finds half of one.
fn make(path: &Path) -> Result<Signer, KeyError> {
    let failed = |cause| KeyError::File { doing: "make", path: path.to_owned(), cause };
    let signer = Signer::generate().map_err(failed)?;
    // The first version of the form, without the public half: not everybody reads the second.
    let pair = KeypairBytes { secret_key: signer.0.to_bytes(), public_key: None };
    let text = pair.to_pkcs8_pem(LineEnding::LF).map_err(|cause| failed(io::Error::other(cause)))?;
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(failed)?;
    let mut partial = tempfile::Builder::new()
        .make_in(folder, |place| OpenOptions::new().write(true).create_new(true).mode(0o600).open(place))
        .map_err(failed)?;
    partial.as_file_mut().write_all(text.as_bytes()).map_err(failed)?;
    partial.as_file().sync_all().map_err(failed)?;
    partial.persist_noclobber(path).map_err(|error| failed(error.error))?;
    Ok(signer)
}

impl PublicKey {
    /// Whether this key signed these bytes. Strict: a signature has one form only.
    pub fn signed(&self, bytes: &[u8], signature: &[u8; 64]) -> bool {
        self.0.verify_strict(bytes, &Signature::from_bytes(signature)).is_ok()
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_bytes().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for PublicKey {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        let wrong = || KeyError::Public { given: text.chars().take(80).collect() };
        // One form only, so that a changed byte is never the same key.
        let canonical = text.len() == 64 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        if !canonical {
            return Err(wrong());
        }
        let mut bytes = [0; 32];
        for (place, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * place..2 * place + 2], 16).map_err(|_| wrong())?;
        }
        let key = VerifyingKey::from_bytes(&bytes).map_err(|_| wrong())?;
        if key.is_weak() { Err(wrong()) } else { Ok(PublicKey(key)) }
    }
}

impl fmt::Debug for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Signer({})", self.public())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn a_key_is_made_once_for_its_owner_alone_and_read_afterwards() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/er/key.pem");
        let made = Signer::open(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
        let again = Signer::open(&path).unwrap();
        assert_eq!(made.public(), again.public());
        assert_eq!(made.public().to_string().parse::<PublicKey>().unwrap(), made.public());
        let signature = made.sign(b"text");
        assert!(again.public().signed(b"text", &signature) && !again.public().signed(b"texts", &signature));
        let private = fs::read_to_string(&path).unwrap();
        let openssl =
            std::process::Command::new("openssl").args(["pkey", "-noout", "-text", "-in"]).arg(&path).output();
        let openssl = openssl.unwrap();
        assert!(openssl.status.success(), "{}", String::from_utf8_lossy(&openssl.stderr));
        assert!(String::from_utf8_lossy(&openssl.stdout).contains("ED25519"));
        assert!(!format!("{made:?}").contains(private.lines().nth(1).unwrap()));
    }

    #[test]
    fn two_that_make_it_at_once_have_the_same_key() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key.pem");
        let keys: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| Signer::open(&path).unwrap().public())).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(keys.iter().all(|key| *key == keys[0]));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_key_that_others_can_read_and_a_file_that_is_none_are_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key.pem");
        Signer::open(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let error = Signer::open(&path).unwrap_err().to_string();
        assert!(error.contains("640") && error.contains("key.pem"), "{error}");
        let other = folder.path().join("other");
        fs::write(&other, "no key").unwrap();
        fs::set_permissions(&other, fs::Permissions::from_mode(0o600)).unwrap();
        let error = Signer::open(&other).unwrap_err().to_string();
        assert!(error.contains("holds no ed25519 key") && error.contains("--key-file"), "{error}");
        assert_eq!(fs::read_to_string(&other).unwrap(), "no key", "never written over");
        let error = Signer::open(&folder.path().join("key.pem/below")).unwrap_err().to_string();
        assert!(error.contains("--key-file"), "{error}");
    }

    #[test]
    fn a_public_key_has_one_form_and_weak_ones_are_none() {
        let good = Signer::generate().unwrap().public().to_string();
        assert!(good.parse::<PublicKey>().is_ok());
        for bad in ["", "abc", &good.to_uppercase(), &good[1..], &"0".repeat(64), &format!("{good}\n")] {
            assert!(bad.parse::<PublicKey>().is_err(), "{bad}");
        }
    }
}
