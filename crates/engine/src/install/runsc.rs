//! Finds a runsc or fetches one, and refuses the builds that are known to be wrong by name.
//! Must never use a binary from outside the cache: what is found is copied in under its digest first.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::apt::{self, PrivateApt};
use super::cache::{Cache, Held, Kind};
use super::command::Tool;
use super::digest::Digest;
use super::distribution::Distribution;
use super::error::SetupError;

/// The Debian suite whose package is known to be good.
const SUITE: &str = "trixie";
/// Largest binary that is looked at, in bytes.
const BINARY_BYTES_MAX: u64 = 1 << 30;
/// Longest time a runsc may take to tell its version.
const VERSION_TIME_MAX: Duration = Duration::from_secs(20);
/// Releases from before this day have no `systrap`, or one that was not ready.
const FIRST_RELEASE_WITH_SYSTRAP: u32 = 20_230_101;
/// The last release that is known to break when a newer Go builds it.
const LAST_RELEASE_BROKEN_BY_NEW_GO: u32 = 20_240_729;

/// What can be told of a runsc without starting a sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Facts {
    /// Digest of the binary.
    pub digest: Digest,
    /// As `runsc --version` tells it.
    pub version: String,
    /// The Go release that built it.
    pub go_version: Option<String>,
    has_systrap: bool,
}

/// Looks at a binary; an `Err` is a sentence on why it will not do.
pub(super) async fn examine(path: &Path) -> Result<Facts, String> {
    let binary = path.to_owned();
    let looked = tokio::task::spawn_blocking(move || look_inside(&binary));
    let (digest, go_version, has_systrap) = looked.await.map_err(|error| error.to_string())??;
    let told = Tool::new(path, "asking runsc for its version", VERSION_TIME_MAX)
        .arg("--version")
        .run()
        .await
        .map_err(|error| error.to_string())?;
    let version = told
        .lines()
        .find_map(|line| line.strip_prefix("runsc version "))
        .ok_or("it does not tell a runsc version")?
        .trim()
        .to_owned();
    let facts = Facts { digest, version, go_version, has_systrap };
    match refusal(&facts) {
        None => Ok(facts),
        Some(reason) => Err(reason),
    }
}

type Inside = (Digest, Option<String>, bool);

fn look_inside(path: &Path) -> Result<Inside, String> {
    let size = fs::metadata(path).map_err(|error| error.to_string())?.len();
    if size > BINARY_BYTES_MAX {
        return Err(format!("it is {size} bytes long, more than any runsc"));
    }
    let bytes = fs::read(path).map_err(|error| error.to_string())?;
    if !bytes.starts_with(b"\x7fELF") {
        return Err("it is not a binary but perhaps a script; put the binary itself on PATH".into());
    }
    Ok((Digest::of_bytes(&bytes), go_version(&bytes), position(&bytes, b"systrap").is_some()))
}

/// The rules of refusal. The sentence names the build and says what to do.
fn refusal(facts: &Facts) -> Option<String> {
    let version = &facts.version;
    let release = release_date(version);
    if !facts.has_systrap || release.is_some_and(|date| date < FIRST_RELEASE_WITH_SYSTRAP) {
        return Some(format!(
            "runsc {version} is refused: it has no `systrap` platform (this is Debian bookworm's build of 2022); run \
             `apt-get remove runsc`, then `remuda setup`, which fetches {SUITE}'s"
        ));
    }
    let go = facts.go_version.as_deref()?;
    let minor: u32 = go.split('.').nth(1)?.parse().ok()?;
    if minor >= 25 && release.is_some_and(|date| date <= LAST_RELEASE_BROKEN_BY_NEW_GO) {
        return Some(format!(
            "runsc {version} built with Go {go} is refused: this release breaks when built with Go 1.25 or newer (this \
             is Debian sid's build; about one restored sandbox in ten dies); remove it, then run `remuda setup`, \
             which fetches {SUITE}'s"
        ));
    }
    None
}

/// The day of a release as a number, `20240729` from `0.0~20240729.0` or `release-20240729.0`.
fn release_date(version: &str) -> Option<u32> {
    version.split(|c: char| !c.is_ascii_digit()).find(|digits| digits.len() == 8)?.parse().ok()
}

/// The Go release that built a binary: from Go's build information, else from the first string that is one.
fn go_version(bytes: &[u8]) -> Option<String> {
    const MAGIC: &[u8] = b"\xff Go buildinf:";
    /// Where the inline version string of build information begins.
    const INLINE_AT: usize = 32;
    let told = position(bytes, MAGIC).and_then(|at| {
        let info = &bytes[at..];
        let inline = info.get(15)? & 2 != 0;
        let text = info.get(INLINE_AT + 1..INLINE_AT + 1 + usize::from(*info.get(INLINE_AT)?))?;
        inline.then(|| version_at(text)).flatten()
    });
    told.or_else(|| {
        let mut rest = bytes;
        while let Some(at) = position(rest, b"go1.") {
            // As `strings | grep '^go1\.'` would: only where a string begins.
            let begins = at == 0 || !(b' '..=b'~').contains(&rest[at - 1]);
            if let Some(version) = begins.then(|| version_at(&rest[at..])).flatten() {
                return Some(version);
            }
            rest = &rest[at + 4..];
        }
        None
    })
}

/// `1.24.4` from bytes that begin `go1.24.4`.
fn version_at(bytes: &[u8]) -> Option<String> {
    let digits = bytes.strip_prefix(b"go")?;
    let end = digits.iter().position(|byte| !byte.is_ascii_digit() && *byte != b'.').unwrap_or(digits.len());
    let version = std::str::from_utf8(&digits[..end]).ok()?.trim_end_matches('.');
    let minor = version.strip_prefix("1.")?;
    (!minor.is_empty()).then(|| version.to_owned())
}

fn position(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    let (first, last) = (*needle.first()?, haystack.len().checked_sub(needle.len())?);
    let mut from = 0;
    while from <= last {
        from += haystack[from..=last].iter().position(|byte| *byte == first)?;
        if haystack[from..].starts_with(needle) {
            return Some(from);
        }
        from += 1;
    }
    None
}

/// Every `runsc` on PATH, in its order, each once.
pub(super) fn on_path() -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = Vec::new();
    for dir in std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()) {
        let path = dir.join("runsc");
        let executable = fs::metadata(&path).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0);
        if let Some(real) = executable.then(|| fs::canonicalize(&path).ok()).flatten()
            && !found.contains(&real)
        {
            found.push(real);
        }
    }
    found
}

/// Copies a binary into the cache under its digest. An entry that is there and was damaged makes room for the right
/// content; whoever runs the damaged file keeps it until they end.
pub(super) fn adopt(cache: &Cache, held: &Held, binary: &Path) -> Result<Digest, SetupError> {
    let staging = cache.stage(held)?;
    let entry = staging.path().join("runsc");
    let copy = entry.join("runsc");
    fs::create_dir(&entry).map_err(SetupError::io("make", &entry))?;
    fs::copy(binary, &copy).map_err(SetupError::io("copy", binary))?;
    for path in [&entry, &copy] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755))
            .map_err(SetupError::io("set the mode of", path))?;
    }
    // Of the copy, not of what was looked at: that one may have changed meanwhile.
    let digest = Digest::of_file(&copy).map_err(SetupError::io("read", &copy))?;
    let place = cache.entry(Kind::Runsc, &digest);
    let intact = Digest::of_file(&cache.runsc(&digest)).is_ok_and(|found| found == digest);
    if place.exists() && !intact {
        fs::rename(&place, staging.path().join("damaged")).map_err(SetupError::io("move away", &place))?;
    }
    cache.publish(&entry, Kind::Runsc, &digest)?;
    Ok(digest)
}

/// Fetches the package of the known good suite from the machine's own archive and unpacks it below `staging`.
pub(super) async fn fetch(held: &Held, staging: &Path, distribution: &Distribution) -> Result<PathBuf, SetupError> {
    let not_here = |cause: &str| SetupError::NoRunsc {
        tried: vec![cause.to_owned()],
        remedy: "put a runsc of 2024-07-29 or newer on PATH and run `remuda setup` again".to_owned(),
    };
    if !distribution.is_debian() {
        return Err(not_here("this is not Debian, so its package cannot be fetched"));
    }
    let sources = apt::under_suite(&apt::read_machine(Path::new("/etc/apt"))?, &distribution.codename, SUITE);
    if sources.is_empty() {
        return Err(not_here("the machine's apt sources name no main archive of its own release"));
    }
    let package = PrivateApt::new(&staging.join("apt"), &sources)?.download(held, "runsc").await?;
    let tree = staging.join("runsc-package");
    Tool::new("dpkg-deb", "unpacking the package runsc", Duration::from_secs(120))
        .arg("-x")
        .args([&package, &tree])
        .holding(held)
        .run()
        .await?;
    Ok(tree.join("usr/bin/runsc"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(version: &str, go: Option<&str>, has_systrap: bool) -> Facts {
        Facts {
            digest: Digest::of_bytes(b""),
            version: version.to_owned(),
            go_version: go.map(str::to_owned),
            has_systrap,
        }
    }

    #[test]
    fn known_wrong_builds_are_refused_by_name() {
        let bookworm = refusal(&facts("0.0~20221219.0", Some("1.19.8"), false)).unwrap();
        assert!(bookworm.contains("bookworm") && bookworm.contains("systrap"));
        let sid = refusal(&facts("0.0~20240729.0", Some("1.26.1"), true)).unwrap();
        assert!(sid.contains("sid") && sid.contains("Go 1.26.1") && sid.contains("remuda setup"));
        assert!(refusal(&facts("release-20240729.0", Some("1.25"), true)).is_some());
    }

    #[test]
    fn good_builds_are_not() {
        assert_eq!(refusal(&facts("0.0~20240729.0", Some("1.24.4"), true)), None);
        assert_eq!(refusal(&facts("release-20251110.0", Some("1.25.3"), true)), None);
        assert_eq!(refusal(&facts("0.0~20240729.0", None, true)), None);
    }

    #[test]
    fn go_is_read_from_build_information_first() {
        let mut binary = b"\x7fELF....\0go1.18 in a table\0".to_vec();
        assert_eq!(go_version(&binary).as_deref(), Some("1.18"));
        binary.extend_from_slice(b"\xff Go buildinf:\x08\x02");
        binary.extend_from_slice(&[0; 16]);
        binary.extend_from_slice(b"\x08go1.24.4\x30mod");
        assert_eq!(go_version(&binary).as_deref(), Some("1.24.4"));
    }

    #[test]
    fn go_is_read_only_where_a_string_begins() {
        assert_eq!(go_version(b"cargo1.2 algo1.30\0"), None);
        assert_eq!(go_version(b"\0go1.\0\0go1.23rc1\0").as_deref(), Some("1.23"));
        assert_eq!(go_version(b""), None);
        assert_eq!(go_version(b"\xff Go buildinf:"), None);
    }

    #[test]
    fn release_dates_are_read() {
        assert_eq!(release_date("0.0~20240729.0"), Some(20_240_729));
        assert_eq!(release_date("release-20251110.0-3-gabc"), Some(20_251_110));
        assert_eq!(release_date("VERSION_MISSING"), None);
    }

    #[test]
    fn an_adopted_binary_is_kept_and_a_damaged_one_makes_room() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::new(dir.path().join("cache"));
        let held = cache.lock(super::super::cache::Lock::Setup).unwrap();
        let binary = dir.path().join("runsc");
        fs::write(&binary, "the binary").unwrap();
        let digest = adopt(&cache, &held, &binary).unwrap();
        let placed = cache.runsc(&digest);
        let first = fs::metadata(&placed).unwrap();
        assert_eq!(first.permissions().mode() & 0o7777, 0o755);
        adopt(&cache, &held, &binary).unwrap();
        assert_eq!(fs::metadata(&placed).unwrap().modified().unwrap(), first.modified().unwrap());
        fs::write(&placed, "damaged").unwrap();
        assert_eq!(adopt(&cache, &held, &binary).unwrap(), digest);
        assert_eq!(fs::read_to_string(&placed).unwrap(), "the binary");
    }

    #[tokio::test]
    async fn a_script_is_no_runsc() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("runsc");
        fs::write(&path, "#!/bin/sh\necho runsc version 1\n").unwrap();
        assert!(examine(&path).await.unwrap_err().contains("not a binary"));
    }
}
