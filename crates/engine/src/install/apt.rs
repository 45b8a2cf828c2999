//! The machine's own apt sources: read in both notations, narrowed to the distribution's archive, and used under
//! another suite in a private place.
//! Must never change the machine's apt configuration or lists, and must never name an archive by itself.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::cache::Held;
use super::command::Tool;
use super::error::SetupError;

/// Longest time an `apt-get` may take.
pub(super) const APT_TIME_MAX: Duration = Duration::from_secs(600);
/// Largest sources file that is read, in bytes.
const SOURCES_BYTES_MAX: u64 = 1 << 20;

/// One stanza of apt sources, as deb822 fields in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Source {
    fields: Vec<(String, String)>,
}

impl Source {
    /// The value of a field, `""` when it is absent. Field names are compared without regard to case.
    fn field(&self, name: &str) -> &str {
        self.fields.iter().find(|(field, _)| field.eq_ignore_ascii_case(name)).map_or("", |(_, value)| value)
    }

    fn has(&self, field: &str, word: &str) -> bool {
        self.field(field).split_whitespace().any(|each| each == word)
    }

    /// The same source with another value in one field.
    fn with(&self, name: &str, value: &str) -> Self {
        let mut changed = self.clone();
        for (field, old) in &mut changed.fields {
            if field.eq_ignore_ascii_case(name) {
                value.clone_into(old);
            }
        }
        changed
    }

    /// Whether an address of it carries a user name or a password.
    pub(super) fn has_credential(&self) -> bool {
        self.field("URIs").split_whitespace().any(|uri| {
            uri.split_once("://").is_some_and(|(_, rest)| rest.split('/').next().unwrap_or("").contains('@'))
        })
    }

    /// Whether its signatures are checked with the distribution's own keys. Repositories of third parties often use the
    /// same suite and component names, but bring a key of their own.
    fn distribution_signed(&self) -> bool {
        let signed_by = self.field("Signed-By");
        signed_by.is_empty() || signed_by.contains("-archive-keyring")
    }
}

/// Renders sources in deb822 notation.
pub(super) fn render(sources: &[Source]) -> String {
    let mut text = String::new();
    for source in sources {
        for (field, value) in &source.fields {
            text.push_str(field);
            text.push_str(if value.starts_with('\n') { ":" } else { ": " });
            text.push_str(value);
            text.push('\n');
        }
        text.push('\n');
    }
    text
}

/// Reads deb822 notation (`*.sources`). Disabled stanzas are left out.
pub(super) fn parse_deb822(text: &str) -> Vec<Source> {
    let mut sources = Vec::new();
    let mut fields: Vec<(String, String)> = Vec::new();
    for line in text.lines().chain([""]) {
        if line.starts_with('#') {
            continue;
        }
        if line.trim().is_empty() {
            let source = Source { fields: std::mem::take(&mut fields) };
            if !source.field("URIs").is_empty() && !source.field("Enabled").eq_ignore_ascii_case("no") {
                sources.push(source);
            }
        } else if line.starts_with([' ', '\t']) {
            if let Some((_, value)) = fields.last_mut() {
                value.push('\n');
                value.push_str(line.trim_end());
            }
        } else if let Some((field, value)) = line.split_once(':') {
            fields.push((field.trim().to_owned(), value.trim().to_owned()));
        }
    }
    sources
}

/// Reads one-line notation (`sources.list`, `*.list`).
pub(super) fn parse_one_line(text: &str) -> Vec<Source> {
    text.lines().filter_map(one_line).collect()
}

fn one_line(line: &str) -> Option<Source> {
    let line = line.split('#').next()?.trim();
    let (kind, rest) = line.split_once(char::is_whitespace)?;
    if kind != "deb" && kind != "deb-src" {
        return None;
    }
    let rest = rest.trim_start();
    let (options, rest) = match rest.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?,
        None => ("", rest),
    };
    let mut words = rest.split_whitespace();
    let (uri, suite) = (words.next()?, words.next()?);
    let components: Vec<&str> = words.collect();
    let mut fields = vec![
        ("Types".to_owned(), kind.to_owned()),
        ("URIs".to_owned(), uri.to_owned()),
        ("Suites".to_owned(), suite.to_owned()),
    ];
    if !components.is_empty() {
        fields.push(("Components".to_owned(), components.join(" ")));
    }
    for option in options.split_whitespace() {
        let (name, value) = option.split_once('=')?;
        fields.push((deb822_name(name), value.replace(',', " ")));
    }
    Some(Source { fields })
}

/// deb822's name of a one-line option, by sources.list(5): the few that differ, and the capitals.
fn deb822_name(option: &str) -> String {
    match option {
        "arch" => "Architectures".to_owned(),
        "lang" => "Languages".to_owned(),
        "target" => "Targets".to_owned(),
        "pdiffs" => "PDiffs".to_owned(),
        other => other
            .split('-')
            .map(|word| {
                let mut letters = word.chars();
                letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
            })
            .collect::<Vec<_>>()
            .join("-"),
    }
}

/// Everything the machine's apt is told to use below `etc_apt` (`/etc/apt`).
pub(super) fn read_machine(etc_apt: &Path) -> Result<Vec<Source>, SetupError> {
    let mut files = vec![etc_apt.join("sources.list")];
    if let Ok(entries) = fs::read_dir(etc_apt.join("sources.list.d")) {
        files.extend(entries.filter_map(|entry| Some(entry.ok()?.path())));
    }
    files.sort();
    let mut sources = Vec::new();
    for path in files {
        let parse = match path.extension().and_then(|extension| extension.to_str()) {
            Some("list") => parse_one_line,
            Some("sources") => parse_deb822,
            _ => continue,
        };
        let file = match fs::File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(SetupError::io("open", &path)(error)),
        };
        let text =
            io::read_to_string(io::Read::take(file, SOURCES_BYTES_MAX)).map_err(SetupError::io("read", &path))?;
        sources.extend(parse(&text));
    }
    Ok(sources)
}

/// The binary sources of the distribution's release `codename`: main archive, updates and security, without third
/// parties.
pub(super) fn of_release(sources: &[Source], codename: &str) -> Vec<Source> {
    let of_codename = |source: &&Source| {
        source.has("Types", "deb")
            && source.has("Components", "main")
            && source.field("Suites").split_whitespace().any(|suite| {
                suite == codename
                    || suite
                        .strip_prefix(codename)
                        .is_some_and(|rest| matches!(rest, "-updates" | "-security" | "/updates"))
            })
    };
    let named: Vec<&Source> = sources.iter().filter(of_codename).collect();
    let official: Vec<&Source> = named.iter().copied().filter(|source| source.distribution_signed()).collect();
    // A mirror with a key of its own is better than none.
    let chosen = if official.is_empty() { named } else { official };
    chosen.into_iter().map(|source| source.with("Types", "deb")).collect()
}

/// The main archive (neither updates nor security) of a release, under another suite.
pub(super) fn under_suite(sources: &[Source], codename: &str, suite: &str) -> Vec<Source> {
    of_release(sources, codename)
        .into_iter()
        .filter(|source| source.has("Suites", codename))
        .map(|source| source.with("Suites", suite))
        .collect()
}

/// An apt with sources, lists and cache of its own in one directory.
#[derive(Debug)]
pub(super) struct PrivateApt {
    dir: PathBuf,
}

impl PrivateApt {
    pub(super) fn new(dir: &Path, sources: &[Source]) -> Result<Self, SetupError> {
        for part in ["parts", "lists/partial", "cache/archives/partial", "download"] {
            let path = dir.join(part);
            fs::create_dir_all(&path).map_err(SetupError::io("make", &path))?;
        }
        let path = dir.join("parts/remuda.sources");
        fs::write(&path, render(sources)).map_err(SetupError::io("write", &path))?;
        Ok(Self { dir: dir.to_owned() })
    }

    fn apt_get(&self, doing: &str) -> Tool {
        let own = |setting: &str, part: &str| format!("{setting}={}", self.dir.join(part).display());
        let settings = [
            "Dir::Etc::sourcelist=/dev/null".to_owned(),
            "Dir::Etc::preferences=/dev/null".to_owned(),
            "Dir::Etc::preferencesparts=/dev/null".to_owned(),
            own("Dir::Etc::sourceparts", "parts"),
            own("Dir::State::lists", "lists"),
            own("Dir::Cache", "cache"),
            "APT::Default-Release=".to_owned(),
            // Without it an archive that cannot be reached is only a warning.
            "APT::Update::Error-Mode=any".to_owned(),
        ];
        Tool::new("apt-get", doing, APT_TIME_MAX)
            .args(["--quiet", "--assume-yes"])
            .args(settings.iter().flat_map(|setting| ["-o", setting]))
            .in_dir(&self.dir.join("download"))
    }

    /// Downloads one package, its signature chain checked by apt, and returns the file.
    pub(super) async fn download(&self, held: &Held, package: &str) -> Result<PathBuf, SetupError> {
        let update = self
            .apt_get("reading the package lists of the machine's own archive")
            .arg("update")
            .remedy(
                "if the archive could not be reached, check this machine's network: `apt-get update` must succeed, for \
                 this uses the same archive; if a key is missing (NO_PUBKEY), run `apt-get install --only-upgrade debian-archive-keyring`",
            )
            .holding(held);
        update.run().await?;
        self.apt_get(&format!("downloading the package {package}"))
            .args(["download", package])
            .holding(held)
            .run()
            .await?;
        let dir = self.dir.join("download");
        let entries = fs::read_dir(&dir).map_err(SetupError::io("list", &dir))?;
        entries
            .filter_map(|entry| Some(entry.ok()?.path()))
            .find(|path| path.extension().is_some_and(|extension| extension == "deb"))
            .ok_or_else(|| SetupError::Wrong {
                what: format!("the download of {package}"),
                cause: "apt-get succeeded but left no package file".to_owned(),
                remedy: "run `remuda setup` again".to_owned(),
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEB822: &str = "Types: deb deb-src\n# a comment with: a colon\nURIs: http://mirror.example/debian\n\
        Suites: bookworm bookworm-updates\nComponents: main contrib\n\
        Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg\n\n\n\
        Types: deb\nURIs: http://mirror.example/debian-security\nSuites: bookworm-security\nComponents: main\n\n\
        Enabled: no\nTypes: deb\nURIs: http://off.example/\nSuites: bookworm\nComponents: main\n\n\
        Types: deb\nURIs: http://third.example/repo\nSuites: bookworm\nComponents: main\n\
        Signed-By:\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n mQINBF\n";

    #[test]
    fn deb822_is_read_and_the_distribution_is_told_from_third_parties() {
        let sources = parse_deb822(DEB822);
        assert_eq!(sources.len(), 3, "the disabled stanza is left out");
        let release = of_release(&sources, "bookworm");
        assert_eq!(release.len(), 2);
        assert_eq!(release[0].field("types"), "deb");
        let trixie = under_suite(&sources, "bookworm", "trixie");
        assert_eq!(
            render(&trixie),
            "Types: deb\nURIs: http://mirror.example/debian\nSuites: trixie\nComponents: main contrib\n\
             Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg\n\n"
        );
    }

    #[test]
    fn a_key_written_into_the_stanza_survives_rendering() {
        let sources = parse_deb822(DEB822);
        assert!(sources[2].field("Signed-By").starts_with("\n -----BEGIN"));
        assert_eq!(parse_deb822(&render(&sources)), sources);
    }

    #[test]
    fn one_line_notation_is_read() {
        let sources = parse_one_line(
            "# deb http://no.example/ bookworm main\n\
             deb [arch=amd64,arm64 signed-by=/k/debian-archive-keyring.gpg] http://m.example/debian bookworm main # x\n\
             deb-src http://m.example/debian bookworm main\n\
             deb http://m.example/debian-security bookworm-security main\n\
             nonsense\n",
        );
        assert_eq!(sources.len(), 3);
        assert_eq!(
            render(&under_suite(&sources, "bookworm", "trixie")),
            "Types: deb\nURIs: http://m.example/debian\nSuites: trixie\nComponents: main\n\
             Architectures: amd64 arm64\nSigned-By: /k/debian-archive-keyring.gpg\n\n"
        );
        assert_eq!(of_release(&sources, "bookworm").len(), 2);
        assert!(of_release(&sources, "trixie").is_empty());
    }

    #[test]
    fn only_a_key_of_its_own_is_accepted_when_there_is_no_other() {
        let sources = parse_one_line("deb [signed-by=/k/corp.gpg] http://m.example/d bookworm main");
        assert_eq!(of_release(&sources, "bookworm").len(), 1);
    }

    #[test]
    fn credentials_in_addresses_are_seen() {
        let sources = parse_one_line(
            "deb http://me:secret@m.example/debian bookworm main\ndeb http://m.example/a@b bookworm main\n",
        );
        assert!(sources[0].has_credential());
        assert!(!sources[1].has_credential());
    }

    #[test]
    fn both_kinds_of_file_are_read_and_others_are_not() {
        let etc = tempfile::tempdir().unwrap();
        let parts = etc.path().join("sources.list.d");
        fs::create_dir(&parts).unwrap();
        fs::write(etc.path().join("sources.list"), "deb http://a.example/ x main\n").unwrap();
        fs::write(parts.join("b.sources"), DEB822).unwrap();
        fs::write(parts.join("c.list.disabled"), "deb http://c.example/ x main\n").unwrap();
        assert_eq!(read_machine(etc.path()).unwrap().len(), 4);
    }
}
