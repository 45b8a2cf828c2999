//! Looks through files, by name and by text. Each call looks at so much and no more, and says where to go on; a pattern
//! takes time in proportion to what it is matched with, whatever it is. Reads regular files alone, and follows no link.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use globset::{GlobBuilder, GlobMatcher};
use regex::bytes::{Regex, RegexBuilder};
use remuda_guest_proto::{
    AgentError, AgentErrorKind, Entry, FINDS_MAX, Glob, Grep, LineMatch, MATCH_TEXT_BYTES_MAX, PATTERN_BYTES_MAX,
    PLACE_BYTES_MAX, Reply,
};
use rustix::fs::{FileType, Mode, OFlags, openat};
use rustix::io::Errno;

use super::walk::Walk;
use super::{entry, named, read, sound};
use crate::agent::{Agent, Place};
use crate::errors::{failed_io, invalid, refusal};
use crate::limits::{
    LISTING_BYTES_MAX, PATTERN_COMPILED_BYTES_MAX, SEARCH_BYTES_MAX, SEARCH_LINE_BYTES_MAX, SEARCH_PIECE_BYTES,
    SEARCHES_MAX,
};
use crate::user_thread::as_user;

/// Carries out a [`Glob`].
pub fn glob(agent: &Agent, glob: &Glob) -> Result<Reply, AgentError> {
    let _place = place_for(agent)?;
    let (path, limit) = (sound(&glob.path)?, limit_of(glob.limit)?);
    let pattern = path_pattern(&glob.pattern)?;
    let after = glob.after.as_deref().map(Stop::read).transpose()?;
    as_user(agent, &glob.user, |_| {
        let mut walk = Walk::begin(path, after.as_ref().map(|stop| stop.below.as_slice()))?;
        let (mut entries, mut bytes) = (Vec::<Entry>::new(), 0);
        let mut next = None;
        while let Some(found) = walk.next() {
            if !pattern.is_match(Path::new(OsStr::from_bytes(found.below))) {
                continue;
            }
            let below = found.below.to_vec();
            // One that is gone by now was there a moment ago.
            let Ok(entry) = entry::of(&walk.whole(&below)) else { continue };
            bytes += written_bytes(&entry);
            entries.push(entry);
            if entries.len() >= limit || bytes >= LISTING_BYTES_MAX {
                next = Some(Stop { below, offset: 0, line: 0 });
                break;
            }
        }
        if walk.is_exhausted() {
            next.get_or_insert_with(|| Stop { below: walk.place().to_vec(), offset: 0, line: 0 });
        }
        Ok(Reply::Found { entries, next: next.map(|stop| stop.written()), skipped: walk.skipped })
    })
}

/// Carries out a [`Grep`].
pub fn grep(agent: &Agent, grep: &Grep) -> Result<Reply, AgentError> {
    let _place = place_for(agent)?;
    let (path, limit) = (sound(&grep.path)?, limit_of(grep.limit)?);
    let include = grep.include.as_deref().map(path_pattern).transpose()?;
    let lines = Lines::new(grep)?;
    let after = grep.after.as_deref().map(Stop::read).transpose()?;
    as_user(agent, &grep.user, |_| {
        let mut search = Search { lines, limit, matches: Vec::new(), bytes: 0, files: 0, left: SEARCH_BYTES_MAX };
        let meta = std::fs::metadata(path).map_err(|error| failed_io(format!("look at {}", named(path)), &error))?;
        if meta.is_file() {
            let (file, _) = read::open_regular(path)?;
            let begin = after.map_or((0, 0), |stop| (stop.offset, stop.line));
            let stopped = search.file(file, path, begin);
            let stopped = stopped.map_err(|error| failed_io(format!("read {}", named(path)), &error))?;
            let next = stopped.map(|(offset, line)| Stop { below: Vec::new(), offset, line }.written());
            return Ok(search.reply(next, Vec::new()));
        }
        // In the middle of a file, that file comes first.
        let mut walk = Walk::begin(path, after.as_ref().map(|stop| stop.below.as_slice()))?;
        if let Some(stop) = after.filter(|stop| stop.offset > 0) {
            let whole = walk.whole(&stop.below);
            let below = stop.below.split(|byte| *byte == b'/').any(|part| part == b"..");
            // Beneath a link that came since, it would be another file.
            let reached = if below { Err(Errno::INVAL) } else { beneath(path, &stop.below) };
            if let Ok(file) = reached
                && let Ok(Some((offset, line))) = search.file(file, &whole, (stop.offset, stop.line))
            {
                let next = Stop { below: stop.below, offset, line }.written();
                return Ok(search.reply(Some(next), walk.skipped));
            }
        }
        let mut next = None;
        while let Some(found) = walk.next() {
            let wanted = |below: &[u8]| {
                include.as_ref().is_none_or(|pattern| pattern.is_match(Path::new(OsStr::from_bytes(below))))
            };
            if found.kind != FileType::RegularFile || !wanted(found.below) {
                continue;
            }
            let opened = open_file(found.at, found.name());
            let below = found.below.to_vec();
            let file = match opened {
                Ok(file) => file,
                Err(errno) => {
                    walk.skip(errno);
                    continue;
                }
            };
            match search.file(file, &walk.whole(&below), (0, 0)) {
                Ok(stopped) if stopped.is_some() || search.is_full() => {
                    // In its middle, or behind it.
                    let (offset, line) = stopped.unwrap_or_default();
                    next = Some(Stop { below, offset, line });
                    break;
                }
                Ok(_) => {}
                Err(error) => walk.skip(Errno::from_io_error(&error).unwrap_or(Errno::IO)),
            }
        }
        if walk.is_exhausted() {
            next.get_or_insert_with(|| Stop { below: walk.place().to_vec(), offset: 0, line: 0 });
        }
        Ok(search.reply(next.map(|stop| stop.written()), walk.skipped))
    })
}

fn place_for(agent: &Agent) -> Result<Place, AgentError> {
    Place::take(&agent.live_searches, SEARCHES_MAX)
        .ok_or_else(|| refusal(AgentErrorKind::Busy, format!("{SEARCHES_MAX} searches are at work in the sandbox")))
}

fn limit_of(limit: u32) -> Result<usize, AgentError> {
    match limit {
        1..=FINDS_MAX => Ok(limit as usize),
        _ => Err(invalid(format!("a search answers 1 to {FINDS_MAX} finds, not {limit}"))),
    }
}

fn path_pattern(pattern: &str) -> Result<GlobMatcher, AgentError> {
    check(pattern)?;
    let built = GlobBuilder::new(pattern).literal_separator(true).backslash_escape(true).empty_alternates(true).build();
    Ok(built.map_err(|error| invalid(format!("the pattern is none: {error}")))?.compile_matcher())
}

fn check(pattern: &str) -> Result<(), AgentError> {
    match pattern.len() {
        0 => Err(invalid("the pattern is empty")),
        1..=PATTERN_BYTES_MAX => Ok(()),
        long => Err(invalid(format!("the pattern has {long} bytes, at most {PATTERN_BYTES_MAX} are allowed"))),
    }
}

/// A regular file in a directory, and nothing that is waited for.
fn open_file(at: impl rustix::fd::AsFd, name: &[u8]) -> Result<File, Errno> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = File::from(openat(at, name, flags, Mode::empty())?);
    // It may have been replaced since it was looked at.
    if file.metadata().is_ok_and(|meta| meta.is_file()) { Ok(file) } else { Err(Errno::NOENT) }
}

/// The same at a path below a directory, by no link.
fn beneath(base: &Path, below: &[u8]) -> Result<File, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut at = rustix::fs::open(base, flags, Mode::empty())?;
    let mut parts = below.split(|byte| *byte == b'/').peekable();
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return open_file(&at, part);
        }
        at = remuda_tree::open_directory(rustix::fd::AsFd::as_fd(&at), part)?;
    }
    Err(Errno::NOENT)
}

/// Where a search stopped: behind a path, or in the middle of a file.
#[derive(Debug, PartialEq, Eq)]
struct Stop {
    below: Vec<u8>,
    /// Place of the next line's first byte; 0 for all of the file, or where it is no file.
    offset: u64,
    /// Lines before it.
    line: u64,
}

impl Stop {
    fn written(&self) -> String {
        use std::fmt::Write as _;
        let mut text = String::with_capacity(self.below.len() * 2 + 16);
        for byte in &self.below {
            let _ = write!(text, "{byte:02x}");
        }
        let _ = write!(text, ":{}:{}", self.offset, self.line);
        text
    }

    fn read(text: &str) -> Result<Stop, AgentError> {
        let stop = || {
            let (below, rest) = text.split_once(':').filter(|_| text.len() <= PLACE_BYTES_MAX)?;
            let (offset, line) = rest.split_once(':')?;
            let hex = below.as_bytes();
            let digit = |byte: &u8| char::from(*byte).to_digit(16);
            let pair = |pair: &[u8]| match pair {
                [high, low] => u8::try_from(digit(high)? * 16 + digit(low)?).ok(),
                _ => None,
            };
            let below = hex.chunks(2).map(pair).collect::<Option<Vec<u8>>>()?;
            Some(Stop { below, offset: offset.parse().ok()?, line: line.parse().ok()? })
        };
        let stop = stop().filter(|stop| !stop.below.contains(&0));
        stop.ok_or_else(|| invalid("the cursor is none that a search has answered"))
    }
}

fn written_bytes(told: &impl serde::Serialize) -> usize {
    serde_json::to_vec(told).map_or(0, |json| json.len() + 1)
}

/// What is looked for in lines.
struct Lines {
    pattern: Regex,
    /// Whether a line can only match where the text that holds it does.
    of_blocks: bool,
}

impl Lines {
    fn new(grep: &Grep) -> Result<Lines, AgentError> {
        check(&grep.pattern)?;
        let pattern = if grep.literal { regex::escape(&grep.pattern) } else { grep.pattern.clone() };
        let built = RegexBuilder::new(&pattern)
            .case_insensitive(grep.ignore_case)
            .multi_line(true)
            .crlf(true)
            .size_limit(PATTERN_COMPILED_BYTES_MAX)
            .dfa_size_limit(PATTERN_COMPILED_BYTES_MAX)
            .build();
        let pattern = built.map_err(|error| invalid(format!("the pattern is none: {error}")))?;
        // These hold at the ends of what is matched, which a block's are not; and flags may make others hold there alone.
        let plain = grep.pattern.replace("(?:", "(");
        let of_blocks = grep.literal || !["\\A", "\\z", "(?"].iter().any(|part| plain.contains(part));
        Ok(Lines { pattern, of_blocks })
    }
}

/// What was found so far.
struct Search {
    lines: Lines,
    limit: usize,
    matches: Vec<LineMatch>,
    bytes: usize,
    files: u64,
    left: u64,
}

impl Search {
    fn reply(self, next: Option<String>, skipped: Vec<String>) -> Reply {
        Reply::Matched { matches: self.matches, files: self.files, next, skipped }
    }

    /// Looks through a file from a place in it; tells where it stopped if that was before the end.
    fn file(&mut self, mut file: File, path: &Path, begin: (u64, u64)) -> std::io::Result<Option<(u64, u64)>> {
        self.files += 1;
        let (mut offset, mut line) = begin;
        if offset > 0 {
            file.seek(SeekFrom::Start(offset))?;
        }
        let mut held: Vec<u8> = Vec::new();
        let mut is_text = None;
        // Whether what is held begins in the middle of a line that is too long to be held.
        let mut within = false;
        loop {
            let before = held.len();
            let got = (&mut file).take(SEARCH_PIECE_BYTES as u64).read_to_end(&mut held)?;
            self.left = self.left.saturating_sub(got as u64);
            let is_text = *is_text.get_or_insert_with(|| !held.contains(&0));
            let at_end = got == 0;
            let block = match held.get(before..).unwrap_or_default().iter().rposition(|byte| *byte == b'\n') {
                _ if at_end => held.len(),
                Some(last) => before + last + 1,
                None if held.len() >= SEARCH_LINE_BYTES_MAX => held.len(),
                None => continue,
            };
            let whole = held.get(..block).unwrap_or_default();
            let broken = !at_end && !whole.ends_with(b"\n");
            let (stopped, lines) = self.block(whole, path, (offset, line), is_text, [within, broken]);
            within = broken;
            if let Some((at, lines)) = stopped {
                // The rest of what is no text is not told.
                return Ok(is_text.then_some((offset + at as u64, line + lines)));
            }
            line += lines;
            offset += block as u64;
            held.drain(..block);
            if at_end {
                return Ok(None);
            }
            if self.left == 0 {
                return Ok(Some((offset, line)));
            }
        }
    }

    /// Whether the rest is for another call.
    fn is_full(&self) -> bool {
        self.left == 0 || self.matches.len() >= self.limit || self.bytes >= LISTING_BYTES_MAX
    }

    /// Looks through whole lines, or through a piece of one that is too long: whether one begins before it, and goes on behind
    /// it. Tells where it stopped and how many lines come before, if it did, and how many lines
    /// there are.
    fn block(
        &mut self,
        block: &[u8],
        path: &Path,
        (offset, line): (u64, u64),
        is_text: bool,
        [within, broken]: [bool; 2],
    ) -> (Option<(usize, u64)>, u64) {
        let breaks = |bytes: &[u8]| memchr::memchr_iter(b'\n', bytes).count() as u64;
        let (mut at, mut counted, mut lines) = (0, 0, 0);
        while at < block.len() {
            let start = if self.lines.of_blocks {
                match self.lines.pattern.find_at(block, at) {
                    None => break,
                    Some(found) => {
                        let before = block.get(at..found.start()).unwrap_or_default();
                        at + memchr::memrchr(b'\n', before).map_or(0, |last| last + 1)
                    }
                }
            } else {
                at
            };
            if start >= block.len() {
                break;
            }
            let rest = block.get(start..).unwrap_or_default();
            let end = memchr::memchr(b'\n', rest).map_or(rest.len(), |end| end + 1);
            let text = rest.get(..end).unwrap_or_default();
            let text = text.strip_suffix(b"\n").unwrap_or(text);
            let text = text.strip_suffix(b"\r").unwrap_or(text);
            at = start + end;
            let Some(found) = self.lines.pattern.find(text) else { continue };
            lines += breaks(block.get(counted..start).unwrap_or_default());
            counted = start;
            let told = told(path, line + lines + 1, offset + start as u64, text, found.range(), is_text);
            let is_part = broken || (within && start == 0);
            let told = LineMatch { cut: told.cut || (is_text && is_part), ..told };
            self.bytes += written_bytes(&told);
            self.matches.push(told);
            if !is_text || self.matches.len() >= self.limit || self.bytes >= LISTING_BYTES_MAX {
                return (Some((at, lines + breaks(block.get(start..at).unwrap_or_default()))), 0);
            }
        }
        (None, breaks(block))
    }
}

fn told(path: &Path, line: u64, offset: u64, text: &[u8], found: std::ops::Range<usize>, is_text: bool) -> LineMatch {
    // Of a long line what is around the match, beginning a little before it.
    let from =
        if text.len() <= MATCH_TEXT_BYTES_MAX { 0 } else { found.start.saturating_sub(MATCH_TEXT_BYTES_MAX / 4) };
    let part = text.get(from..text.len().min(from + MATCH_TEXT_BYTES_MAX)).unwrap_or_default();
    LineMatch {
        path: path.to_string_lossy().into_owned(),
        line,
        offset,
        column: found.start as u64,
        text: is_text.then(|| String::from_utf8_lossy(part).into_owned()),
        cut: is_text && part.len() < text.len(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn search(pattern: &str, limit: usize) -> Search {
        let grep = Grep {
            path: "/".into(),
            user: "root".into(),
            pattern: pattern.into(),
            literal: false,
            ignore_case: false,
            include: None,
            limit: 1,
            after: None,
        };
        let lines = Lines::new(&grep).unwrap();
        Search { lines, limit, matches: Vec::new(), bytes: 0, files: 0, left: SEARCH_BYTES_MAX }
    }

    /// All matches as line, offset and column, in pages of so many.
    fn paged(bytes: &[u8], pattern: &str, limit: usize) -> Vec<(u64, u64, u64)> {
        use std::io::Write as _;
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        let (mut all, mut begin) = (Vec::new(), (0, 0));
        loop {
            let mut search = search(pattern, limit);
            let mut again = file.try_clone().unwrap();
            again.seek(SeekFrom::Start(0)).unwrap();
            let stopped = search.file(again, Path::new("/f"), begin).unwrap();
            all.extend(search.matches.iter().map(|one| (one.line, one.offset, one.column)));
            match stopped {
                None => return all,
                Some(stop) => begin = stop,
            }
        }
    }

    fn line_by_line(bytes: &[u8], pattern: &str) -> Vec<(u64, u64, u64)> {
        let pattern = RegexBuilder::new(pattern).multi_line(true).crlf(true).build().unwrap();
        let (mut all, mut offset) = (Vec::new(), 0);
        for (line, text) in bytes.split_inclusive(|byte| *byte == b'\n').enumerate() {
            let bare = text.strip_suffix(b"\n").unwrap_or(text);
            let bare = bare.strip_suffix(b"\r").unwrap_or(bare);
            if let Some(found) = pattern.find(bare) {
                all.push((line as u64 + 1, offset, found.start() as u64));
            }
            offset += text.len() as u64;
        }
        all
    }

    proptest! {
        #[test]
        fn matches_are_those_of_each_line_however_they_are_paged(
            text in "([abc \\r]{0,3}\\n?){0,40}",
            pattern in prop::sample::select(vec!["a", "^b", "c$", "a[^b]", "\\s+c", "^$", "\\Aa", "b\\z", "(a|bc)", "\\bb", "(?-m)^a", "(?:b|a)$"]),
            limit in 1usize..5,
        ) {
            prop_assert_eq!(paged(text.as_bytes(), pattern, limit), line_by_line(text.as_bytes(), pattern));
        }

        #[test]
        fn nonsense_is_no_place_or_one_that_is_written_the_same(text in "[0-9a-f:]{0,20}|\\PC{0,20}") {
            if let Ok(stop) = Stop::read(&text) {
                prop_assert_eq!(Stop::read(&stop.written()).unwrap(), stop);
            }
        }
    }

    #[test]
    fn a_line_longer_than_is_held_is_looked_through_in_pieces() {
        let mut bytes = vec![b'x'; 3 << 20];
        bytes.extend_from_slice(b"needle");
        bytes.extend(vec![b'y'; 5000]);
        bytes.extend_from_slice(b"\nneedle two\n");
        let found = paged(&bytes, "needle", 10);
        assert_eq!(found.len(), 2);
        assert_eq!((found[1].0, found[1].1), (2, (3 << 20) + 5007));
        assert_eq!(found[0].1 + found[0].2, 3 << 20);
    }

    #[test]
    fn what_is_no_text_is_told_once_and_without_a_text() {
        use std::io::Write as _;
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"\x00\xffneedle\nneedle\n").unwrap();
        file.seek(SeekFrom::Start(0)).unwrap();
        let mut search = search("needle", 10);
        assert_eq!(search.file(file, Path::new("/f"), (0, 0)).unwrap(), None);
        let [one] = search.matches.as_slice() else { panic!("{:?}", search.matches) };
        assert_eq!((one.line, one.column, one.text.as_deref(), one.cut), (1, 2, None, false));
    }

    #[test]
    fn patterns_that_would_take_much_are_refused() {
        for wrong in ["", "(", "((((a{1000}){1000}){1000}){1000})", &"a".repeat(PATTERN_BYTES_MAX + 1)] {
            let grep = Grep {
                path: "/".into(),
                user: "root".into(),
                pattern: wrong.into(),
                literal: false,
                ignore_case: false,
                include: None,
                limit: 1,
                after: None,
            };
            assert!(Lines::new(&grep).is_err(), "{}", wrong.len());
        }
        for wrong in ["", "[", "{a"] {
            assert!(path_pattern(wrong).is_err(), "{wrong}");
        }
        let stars = path_pattern("**/*.rs").unwrap();
        assert!(stars.is_match("a.rs") && stars.is_match("a/b/c.rs") && !stars.is_match("a.rs/b"));
        assert!(!path_pattern("*.rs").unwrap().is_match("a/b.rs"));
    }
}
