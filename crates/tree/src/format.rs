//! The form of an archive: blocks of 512 bytes, and the fields of a header. No I/O here.

/// Bytes of a block.
pub(crate) const BLOCK_BYTES: usize = 512;
/// The record that names what could not be packed.
pub(crate) const SKIPPED: &str = "REMUDA.skipped";
/// Places for stretches in a header of a sparse file, and in each block that follows it.
const STRETCHES_FIRST: usize = 4;
pub(crate) const STRETCHES_NEXT: usize = 21;
const STRETCH_BYTES: usize = 24;

/// Where the fields of a header are.
pub(crate) mod field {
    use std::ops::Range;

    pub(crate) const NAME: Range<usize> = 0..100;
    pub(crate) const MODE: Range<usize> = 100..108;
    pub(crate) const UID: Range<usize> = 108..116;
    pub(crate) const GID: Range<usize> = 116..124;
    pub(crate) const SIZE: Range<usize> = 124..136;
    pub(crate) const MTIME: Range<usize> = 136..148;
    pub(crate) const CHECKSUM: Range<usize> = 148..156;
    pub(crate) const KIND: usize = 156;
    pub(crate) const LINK: Range<usize> = 157..257;
    pub(crate) const MAGIC: Range<usize> = 257..265;
    pub(crate) const MAJOR: Range<usize> = 329..337;
    pub(crate) const MINOR: Range<usize> = 337..345;
    /// POSIX's form alone: what stands before the name.
    pub(crate) const PREFIX: Range<usize> = 345..500;
    pub(crate) const STRETCHES: usize = 386;
    pub(crate) const GOES_ON: usize = 482;
    pub(crate) const REAL_SIZE: Range<usize> = 483..495;
    /// Of a block that only holds stretches.
    pub(crate) const NEXT_GOES_ON: usize = 504;
}

pub(crate) type Block = [u8; BLOCK_BYTES];

/// What is told of an entry beside its name.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Meta {
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Seconds.
    pub(crate) modified: i64,
}

/// How many bytes fill the last block of so many.
pub(crate) fn padding(bytes: u64) -> usize {
    (BLOCK_BYTES - (bytes % BLOCK_BYTES as u64) as usize) % BLOCK_BYTES
}

/// Writes a number into a field: octal where it fits, else GNU's binary form.
fn number(field: &mut [u8], value: i64) {
    let digits = field.len() - 1;
    if value >= 0 && (digits >= 21 || value < 1 << (3 * digits)) {
        for (at, byte) in field[..digits].iter_mut().enumerate() {
            *byte = b'0' + ((value >> (3 * (digits - 1 - at))) & 7) as u8;
        }
        field[digits] = 0;
        return;
    }
    let bytes = i128::from(value).to_be_bytes();
    field.copy_from_slice(&bytes[bytes.len() - field.len()..]);
    field[0] |= 0x80;
}

/// Reads a number of a field; `None` if it is none, or negative.
pub(crate) fn parse(field: &[u8]) -> Option<u64> {
    signed(field).and_then(|value| value.try_into().ok())
}

/// The same for a time, which may be before 1970.
pub(crate) fn signed(field: &[u8]) -> Option<i64> {
    if field.first()? & 0x80 != 0 {
        let negative = field[0] & 0x40 != 0;
        let first = if negative { field[0] } else { field[0] & 0x7f };
        let mut value: i128 = if negative { i128::from(first as i8) } else { i128::from(first) };
        for byte in &field[1..] {
            value = (value << 8) | i128::from(*byte);
        }
        return value.try_into().ok();
    }
    let text = field.iter().copied().skip_while(|byte| *byte == b' ');
    let mut value: i64 = 0;
    for byte in text.take_while(|byte| !matches!(byte, 0 | b' ')) {
        let digit = byte.checked_sub(b'0').filter(|digit| *digit < 8)?;
        value = value.checked_mul(8)?.checked_add(i64::from(digit))?;
    }
    Some(value)
}

/// The sum over a header, with spaces in its own place.
pub(crate) fn checksum(block: &Block) -> u64 {
    let of = |at: usize| if field::CHECKSUM.contains(&at) { u64::from(b' ') } else { u64::from(block[at]) };
    (0..BLOCK_BYTES).map(of).sum()
}

fn plain(out: &mut Vec<u8>, name: &[u8], kind: u8, size: u64, meta: &Meta, link: &[u8]) -> usize {
    let at = out.len();
    let mut block: Block = [0; BLOCK_BYTES];
    let cut = |text: &[u8], room: usize| text.len().min(room);
    block[..cut(name, 100)].copy_from_slice(&name[..cut(name, 100)]);
    number(&mut block[field::MODE], i64::from(meta.mode & 0o7777));
    number(&mut block[field::UID], i64::from(meta.uid));
    number(&mut block[field::GID], i64::from(meta.gid));
    number(&mut block[field::SIZE], size.try_into().unwrap_or(i64::MAX));
    number(&mut block[field::MTIME], meta.modified);
    block[field::KIND] = kind;
    block[field::LINK][..cut(link, 100)].copy_from_slice(&link[..cut(link, 100)]);
    block[field::MAGIC].copy_from_slice(b"ustar  \0");
    out.extend_from_slice(&block);
    at
}

fn seal(block: &mut [u8]) {
    let Ok(whole) = <&Block>::try_from(&block[..BLOCK_BYTES]) else { return };
    let sum = checksum(whole);
    number(&mut block[field::CHECKSUM.start..field::CHECKSUM.end - 1], sum.try_into().unwrap_or(0));
    block[field::CHECKSUM.end - 1] = b' ';
}

/// Adds an entry that holds a text for the one behind it, or for all.
fn text(out: &mut Vec<u8>, name: &[u8], kind: u8, bytes: &[u8]) {
    let at = plain(out, name, kind, bytes.len() as u64, &Meta::default(), b"");
    seal(&mut out[at..]);
    out.extend_from_slice(bytes);
    out.resize(out.len() + padding(bytes.len() as u64), 0);
}

fn long_names(out: &mut Vec<u8>, name: &[u8], link: &[u8]) {
    for (what, kind) in [(name, b'L'), (link, b'K')] {
        if what.len() > 100 {
            text(out, b"././@LongLink", kind, &[what, b"\0"].concat());
        }
    }
}

/// Adds the header of an entry, and before it what does not fit.
pub(crate) fn entry(out: &mut Vec<u8>, name: &[u8], kind: u8, size: u64, meta: &Meta, link: &[u8]) {
    long_names(out, name, link);
    let at = plain(out, name, kind, size, meta, link);
    seal(&mut out[at..]);
}

/// Adds the header of a file with holes: its stretches of data, each with offset and length.
pub(crate) fn sparse(out: &mut Vec<u8>, name: &[u8], size: u64, meta: &Meta, stretches: &[(u64, u64)]) {
    long_names(out, name, b"");
    let stored: u64 = stretches.iter().map(|(_, length)| length).sum();
    let at = plain(out, name, b'S', stored, meta, b"");
    let block = &mut out[at..];
    let signed = |value: u64| value.try_into().unwrap_or(i64::MAX);
    let put = |block: &mut [u8], at: usize, stretches: &[(u64, u64)]| {
        for (n, (offset, length)) in stretches.iter().enumerate() {
            let at = at + n * STRETCH_BYTES;
            number(&mut block[at..at + 12], signed(*offset));
            number(&mut block[at + 12..at + 24], signed(*length));
        }
    };
    number(&mut block[field::REAL_SIZE], signed(size));
    let (first, rest) = stretches.split_at(stretches.len().min(STRETCHES_FIRST));
    put(block, field::STRETCHES, first);
    block[field::GOES_ON] = u8::from(!rest.is_empty());
    seal(block);
    let mut pieces = rest.chunks(STRETCHES_NEXT).peekable();
    while let Some(piece) = pieces.next() {
        let mut block: Block = [0; BLOCK_BYTES];
        put(&mut block, 0, piece);
        block[field::NEXT_GOES_ON] = u8::from(pieces.peek().is_some());
        out.extend_from_slice(&block);
    }
}

/// The stretches in a header (`first`) or in a block that follows one.
pub(crate) fn stretches(block: &Block, first: bool) -> Option<(Vec<(u64, u64)>, bool)> {
    let (at, places, goes_on) = match first {
        true => (field::STRETCHES, STRETCHES_FIRST, field::GOES_ON),
        false => (0, STRETCHES_NEXT, field::NEXT_GOES_ON),
    };
    let mut found = Vec::new();
    for place in 0..places {
        let at = at + place * STRETCH_BYTES;
        if block[at] == 0 || block[at + 12] == 0 {
            break;
        }
        found.push((parse(&block[at..at + 12])?, parse(&block[at + 12..at + 24])?));
    }
    Some((found, block[goes_on] != 0))
}

/// Adds an entry that says what is not in the archive, and why.
pub(crate) fn skipped(out: &mut Vec<u8>, sentence: &str) {
    let sentence = sentence.replace('\n', "?");
    let mut bytes = Vec::new();
    record(&mut bytes, SKIPPED.as_bytes(), sentence.as_bytes());
    text(out, b"remuda", b'g', &bytes);
}

/// Adds what is told of the next entry beside its header.
pub(crate) fn extended(out: &mut Vec<u8>, records: &[(&[u8], &[u8])]) {
    let mut bytes = Vec::new();
    for (key, value) in records {
        record(&mut bytes, key, value);
    }
    if !bytes.is_empty() {
        text(out, b"remuda", b'x', &bytes);
    }
}

fn record(out: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    // The record's length counts itself.
    let rest = key.len() + value.len() + 3;
    let length = (1..).map(|digits| rest + digits).find(|length| length.to_string().len() + rest == *length);
    out.extend_from_slice(length.unwrap_or(rest + 1).to_string().as_bytes());
    for piece in [b" ".as_slice(), key, b"=", value, b"\n"] {
        out.extend_from_slice(piece);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_every_size_come_back() {
        for value in [0, 1, 0o7777777, 0o77777777777, 1 << 33, i64::MAX, -1, -5_000_000_000] {
            let mut field = [0; 12];
            number(&mut field, value);
            assert_eq!(signed(&field), Some(value), "{value}");
        }
        assert_eq!(parse(b"  644 \0"), Some(0o644));
        assert_eq!((parse(b"9"), parse(b"-1"), parse(&[0xff; 12])), (None, None, None));
        assert_eq!(parse(&[0x80, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]), None);
    }
}
