//! Reads an archive entry by entry. Every length in it is somebody else's: nothing is allocated by one, and what is kept
//! of names and records is limited.

use std::io::{self, Read};

use crate::format::{BLOCK_BYTES, Block, SKIPPED, checksum, field, padding, parse, signed, stretches};
use crate::{NAME_BYTES_MAX, STRETCHES_MAX};

/// Longest extended header, in bytes.
const RECORDS_BYTES_MAX: u64 = 1 << 20;

/// What an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    File,
    Directory,
    Symlink,
    HardLink,
    Device,
    Fifo,
}

/// An entry of an archive, as it says.
#[derive(Debug, Clone)]
pub(crate) struct Item {
    pub(crate) name: Vec<u8>,
    pub(crate) link: Vec<u8>,
    pub(crate) kind: Kind,
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Seconds and nanoseconds.
    pub(crate) modified: (i64, u32),
    /// Bytes of the file that it makes.
    pub(crate) size: u64,
    /// Where its data belongs, if it has holes.
    pub(crate) stretches: Option<Vec<(u64, u64)>>,
    /// Attributes that extended headers tell of it, by the whole key.
    pub(crate) attributes: Vec<(Vec<u8>, Vec<u8>)>,
    /// Numbers of a device.
    pub(crate) device: Option<(u64, u64)>,
    /// Whether a device is one of characters.
    pub(crate) character: bool,
}

/// Why an archive can't be read on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Bad {
    /// It is none, or not whole.
    #[error("{0}")]
    Archive(String),
    /// What it comes from failed.
    #[error(transparent)]
    Input(#[from] io::Error),
}

fn bad<T>(why: impl Into<String>) -> Result<T, Bad> {
    Err(Bad::Archive(why.into()))
}

/// What extended headers say of the next entry.
#[derive(Default)]
struct Records {
    name: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
    uid: Option<u32>,
    gid: Option<u32>,
    modified: Option<(i64, u32)>,
    attributes: Vec<(Vec<u8>, Vec<u8>)>,
}

/// Attributes of one entry.
const ATTRIBUTES_MAX: usize = 16;

/// An archive on its way in.
pub(crate) struct Reader<R> {
    input: R,
    /// Bytes of the entry that were not read yet, and those that fill its last block.
    left: u64,
    fill: usize,
    /// What the archive says that it lacks.
    pub(crate) skipped: Vec<String>,
}

/// What an archive says that it lacks, one sentence each; of more than this only so many are kept.
const SKIPPED_MAX: usize = 1000;

impl<R: Read> Reader<R> {
    pub(crate) fn new(input: R) -> Self {
        Reader { input, left: 0, fill: 0, skipped: Vec::new() }
    }

    /// Data of the entry that was read last.
    pub(crate) fn data(&mut self, buffer: &mut [u8]) -> Result<usize, Bad> {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        if most == 0 {
            return Ok(0);
        }
        let got = loop {
            match self.input.read(&mut buffer[..most]) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                other => break other?,
            }
        };
        if got == 0 {
            return bad("it breaks off in the middle of a file");
        }
        self.left -= got as u64;
        Ok(got)
    }

    /// The next entry; whatever is left of the last one is passed over. `None` at the end mark.
    pub(crate) fn next(&mut self) -> Result<Option<Item>, Bad> {
        let mut records = Records::default();
        loop {
            self.pass_over()?;
            let Some(block) = self.block()? else { return bad("it ends without its end mark") };
            if block.iter().all(|byte| *byte == 0) {
                // What follows is padding up to somebody's record size.
                io::copy(&mut self.input, &mut io::sink())?;
                return Ok(None);
            }
            if parse(&block[field::CHECKSUM]) != Some(checksum(&block)) {
                return bad("a header has another checksum than it says, or it is no tar archive");
            }
            let Some(size) = parse(&block[field::SIZE]) else { return bad("a header has no size") };
            (self.left, self.fill) = (size, padding(size));
            match block[field::KIND] {
                b'L' => records.name = Some(self.text(NAME_BYTES_MAX as u64 + 1)?),
                b'K' => records.link = Some(self.text(NAME_BYTES_MAX as u64 + 1)?),
                b'x' | b'X' => self.records(&mut records)?,
                // What it says of all entries is only believed where it is our own.
                b'g' => self.records(&mut Records::default())?,
                // A volume's label and the like.
                b'V' | b'M' | b'N' => {}
                kind => return self.item(&block, kind, size, records).map(Some),
            }
        }
    }

    fn item(&mut self, block: &Block, kind: u8, size: u64, records: Records) -> Result<Item, Bad> {
        let mut name = until_zero(&block[field::NAME]).to_vec();
        let posix = &block[field::MAGIC][..6] == b"ustar\0";
        let prefix = until_zero(&block[field::PREFIX]);
        if posix && !prefix.is_empty() {
            name = [prefix, b"/", &name].concat();
        }
        let name = records.name.unwrap_or(name);
        let kind_of = match kind {
            // Old archives mark a directory by its name alone.
            0 | b'0' | b'7' if name.ends_with(b"/") => Kind::Directory,
            0 | b'0' | b'7' | b'S' => Kind::File,
            b'1' => Kind::HardLink,
            b'2' => Kind::Symlink,
            b'3' | b'4' => Kind::Device,
            b'5' | b'D' => Kind::Directory,
            b'6' => Kind::Fifo,
            other => {
                return bad(format!("the entry {} is of an unknown kind {:?}", crate::shown(&name), other as char));
            }
        };
        let number = |field: std::ops::Range<usize>| parse(&block[field]).and_then(|value| u32::try_from(value).ok());
        let mut item = Item {
            name,
            link: records.link.unwrap_or_else(|| until_zero(&block[field::LINK]).to_vec()),
            kind: kind_of,
            mode: number(field::MODE).unwrap_or(0o644) & 0o7777,
            uid: records.uid.or_else(|| number(field::UID)).unwrap_or(0),
            gid: records.gid.or_else(|| number(field::GID)).unwrap_or(0),
            modified: records.modified.unwrap_or((signed(&block[field::MTIME]).unwrap_or(0), 0)),
            size: records.size.unwrap_or(size),
            stretches: None,
            attributes: records.attributes,
            device: parse(&block[field::MAJOR]).zip(parse(&block[field::MINOR])),
            character: kind == b'3',
        };
        match kind {
            b'S' => self.stretches(block, &mut item)?,
            _ if kind_of == Kind::File => (self.left, self.fill) = (item.size, padding(item.size)),
            // What has no contents has none whatever it says; only old tars put a size into a link's header.
            b'1' | b'2' | b'5' => (self.left, self.fill) = (0, 0),
            _ => {}
        }
        Ok(item)
    }

    fn stretches(&mut self, block: &Block, item: &mut Item) -> Result<(), Bad> {
        let Some(size) = parse(&block[field::REAL_SIZE]) else { return bad("a sparse file has no size") };
        let stored = self.left;
        let mut all = Vec::new();
        let mut found = stretches(block, true);
        loop {
            let Some((more, goes_on)) = found else { return bad("a sparse file's map makes no sense") };
            all.extend(more);
            if all.len() > STRETCHES_MAX + crate::format::STRETCHES_NEXT {
                return bad(format!("a sparse file has more than {STRETCHES_MAX} stretches of data"));
            }
            if !goes_on {
                break;
            }
            let Some(next) = self.block()? else { return bad("it breaks off in a sparse file's map") };
            found = stretches(&next, false);
        }
        let mut at = 0u64;
        let mut sum = 0u64;
        for (offset, length) in &all {
            let end = offset.checked_add(*length).filter(|end| *offset >= at && *end <= size);
            let Some(end) = end else { return bad("a sparse file's map makes no sense") };
            (at, sum) = (end, sum + length);
        }
        if sum != stored {
            return bad("a sparse file has another length than its map");
        }
        (item.size, item.stretches) = (size, Some(all));
        Ok(())
    }

    /// The text of an extension, without the zero behind it.
    fn text(&mut self, most: u64) -> Result<Vec<u8>, Bad> {
        let mut text = self.bytes(most)?;
        while text.last() == Some(&0) {
            text.pop();
        }
        Ok(text)
    }

    fn bytes(&mut self, most: u64) -> Result<Vec<u8>, Bad> {
        if self.left > most {
            return bad(format!("a name or record is longer than {most} bytes"));
        }
        let mut bytes = vec![0; self.left as usize];
        let mut at = 0;
        while at < bytes.len() {
            at += self.data(&mut bytes[at..])?;
        }
        Ok(bytes)
    }

    fn records(&mut self, records: &mut Records) -> Result<(), Bad> {
        let bytes = self.bytes(RECORDS_BYTES_MAX)?;
        let mut rest = bytes.as_slice();
        while !rest.is_empty() && rest[0] != 0 {
            let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
            let length = std::str::from_utf8(&rest[..digits]).ok().and_then(|text| text.parse::<usize>().ok());
            let record =
                length.and_then(|length| rest.get(digits + 1..length)).and_then(|record| record.strip_suffix(b"\n"));
            let (Some(length), Some(record)) = (length, record) else {
                return bad("an extended header makes no sense");
            };
            rest = &rest[length..];
            let Some(cut) = record.iter().position(|byte| *byte == b'=') else { continue };
            let (key, value) = (&record[..cut], &record[cut + 1..]);
            self.record(records, key, value)?;
        }
        Ok(())
    }

    fn record(&mut self, records: &mut Records, key: &[u8], value: &[u8]) -> Result<(), Bad> {
        let text = String::from_utf8_lossy(value);
        match key {
            b"path" => records.name = Some(value.to_vec()),
            b"linkpath" => records.link = Some(value.to_vec()),
            b"uid" => records.uid = text.parse().ok(),
            b"gid" => records.gid = text.parse().ok(),
            b"mtime" => records.modified = time(&text),
            b"size" => match text.parse::<u64>() {
                Ok(size) if size <= i64::MAX as u64 => records.size = Some(size),
                _ => return bad("an extended header has no size"),
            },
            // Of more than so many only these are kept.
            key if key == SKIPPED.as_bytes() && self.skipped.len() < SKIPPED_MAX => {
                self.skipped.push(crate::shown(value));
            }
            key if key.starts_with(b"SCHILY.xattr.") => {
                if records.attributes.len() >= ATTRIBUTES_MAX {
                    return bad(format!("an entry has more than {ATTRIBUTES_MAX} attributes"));
                }
                records.attributes.push((key.to_vec(), value.to_vec()));
            }
            key if key.starts_with(b"GNU.sparse.") => {
                return bad("it holds a sparse file in POSIX's form; make it with --format=gnu");
            }
            _ => {}
        }
        Ok(())
    }

    /// What it comes from.
    pub(crate) fn input(&self) -> &R {
        &self.input
    }

    /// Passes over what is left of the entry that was read last.
    pub(crate) fn pass_over(&mut self) -> Result<(), Bad> {
        let left = self.left + std::mem::take(&mut self.fill) as u64;
        self.left = 0;
        let passed = io::copy(&mut self.input.by_ref().take(left), &mut io::sink())?;
        if passed == left { Ok(()) } else { bad("it breaks off in the middle of a file") }
    }

    fn block(&mut self) -> Result<Option<Block>, Bad> {
        let mut block: Block = [0; BLOCK_BYTES];
        let mut at = 0;
        while at < BLOCK_BYTES {
            match self.input.read(&mut block[at..]) {
                Ok(0) if at == 0 => return Ok(None),
                Ok(0) => return bad("it breaks off in the middle of a header"),
                Ok(got) => at += got,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(Some(block))
    }
}

fn until_zero(field: &[u8]) -> &[u8] {
    field.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// Seconds with a fraction, as extended headers have them.
fn time(text: &str) -> Option<(i64, u32)> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let seconds = whole.parse().ok()?;
    let digits: String = fraction.chars().take(9).collect();
    let nanoseconds = format!("{digits:0<9}").parse().ok().filter(|_| !text.starts_with('-'));
    Some((seconds, nanoseconds.unwrap_or(0)))
}
