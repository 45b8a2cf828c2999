//! The manifest of a bundle: every file with its size and digest, and what the run was made with. Its very bytes are
//! signed, so that a bundle that was changed in any place is known by it.

use std::collections::BTreeMap;

use remuda_types::SnapshotMode;
use serde::{Deserialize, Serialize};

use super::key::PublicKey;
use crate::records::Outcome;

/// The manifest's file.
pub const MANIFEST: &str = "manifest.json";
/// The file of its signature.
pub const SIGNATURE: &str = "manifest.sig.json";
/// The folder of the workload's files that verdicts depend on.
pub const WORKLOAD_FOLDER: &str = "workload";

/// What a bundle is, and all that is in it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The bundle's form.
    pub schema: u32,
    /// The run's name.
    pub run: String,
    /// How it ended.
    pub outcome: Outcome,
    /// The harness and its version.
    pub harness: String,
    /// BLAKE3 of the program that ran it, hex; absent where it could not be read.
    pub runner: Option<String>,
    /// The provider's name.
    pub provider: String,
    /// What the provider said of itself: versions, image and engine where it tells them.
    pub provider_says: serde_json::Value,
    /// What was forked.
    pub mode: SnapshotMode,
    /// Seed of the jobs.
    pub seed: u64,
    /// The workload's name.
    pub workload: String,
    /// Digests by what they are of, BLAKE3, hex. Equal ones mean that two runs compared the same things.
    pub digests: Parts,
    /// Every other file of the bundle but the signature, by its path in it.
    pub files: BTreeMap<String, FileEntry>,
}

/// See [`Manifest::digests`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parts {
    /// Everything.
    pub workload: String,
    /// What is put into the guest.
    pub app: String,
    /// The patches.
    pub patches: String,
    /// What is checked and expected: `workload.toml`.
    pub checks: String,
}

/// One file of a bundle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileEntry {
    /// Its size in bytes.
    pub bytes: u64,
    /// Its BLAKE3, hex.
    pub blake3: String,
}

/// The signature over the manifest's bytes as they are in the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SignatureFile {
    /// `ed25519` (RFC 8032).
    pub algorithm: String,
    /// The public key, 64 hexadecimal digits.
    pub public_key: String,
    /// The signature, 128 hexadecimal digits.
    pub signature: String,
}

impl SignatureFile {
    /// The file for this signature.
    pub fn new(key: PublicKey, signature: &[u8; 64]) -> SignatureFile {
        SignatureFile { algorithm: "ed25519".into(), public_key: key.to_string(), signature: hex(signature) }
    }

    /// Its one form in bytes.
    pub fn bytes(&self) -> Vec<u8> {
        pretty(self).unwrap_or_default()
    }

    /// Reads it strictly: what is not in its one form is refused.
    ///
    /// # Errors
    /// What is wrong with it, in words.
    pub fn read(bytes: &[u8]) -> Result<(PublicKey, [u8; 64]), String> {
        let file: SignatureFile =
            serde_json::from_slice(bytes).map_err(|cause| format!("it is no signature: {cause}"))?;
        if file.algorithm != "ed25519" {
            return Err(format!("the algorithm {:?} is not known here; it must be ed25519", file.algorithm));
        }
        let key: PublicKey = file.public_key.parse().map_err(|error: super::key::KeyError| error.to_string())?;
        let signature = unhex(&file.signature).ok_or("the signature does not have 128 hexadecimal digits")?;
        if file.bytes() != bytes {
            return Err("it is not in the form in which signatures are written".into());
        }
        Ok((key, signature))
    }
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        // Writing to a String can't fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn unhex(text: &str) -> Option<[u8; 64]> {
    let mut bytes = [0; 64];
    if text.len() != 128 || !text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
        return None;
    }
    for (place, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * place..2 * place + 2)?, 16).ok()?;
    }
    Some(bytes)
}

/// The form in which every record stands in a bundle.
///
/// # Errors
/// It has no JSON form.
pub(super) fn pretty(record: &impl Serialize) -> serde_json::Result<Vec<u8>> {
    let mut text = serde_json::to_vec_pretty(record)?;
    text.push(b'\n');
    Ok(text)
}
