//! Reads the state file of a checkpoint, so far as is needed to mend two known faults of epoll in it.
//!
//! A checkpoint's state file is a stream of small chunks that hold object graphs in gVisor's own wire format
//! (`pkg/state/wire` and `pkg/compressio` of its source, build 20240729, written without compression and key). Nothing
//! here is needed to restore; whoever cannot make sense of a file leaves it as it is.

mod reader;

use std::ops::Range;

use self::reader::{Reader, Result, Span, Stream};

/// What was changed of a state file.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Mended {
    /// Every byte that was changed lies in here.
    pub(crate) within: Range<usize>,
    /// Registrations that no epoll instance knows any more.
    pub(crate) removed: usize,
}

/// Changes a state file in place so that the copies' epoll instances work. Nothing grows or shrinks, and a file that makes
/// no sense is left as it is.
///
/// **Removed registrations.** Builds of gVisor before March 2026 link the registrations that a `epoll_wait` found not
/// ready to each other and leave it at that. One that is removed later (its file was closed) is still reached from its
/// neighbour, so that a checkpoint takes it along, and a restore marks it ready: the copy's `epoll_wait` returns at
/// once, for ever, for a descriptor that was closed, and takes whatever has that number next for broken. With no events
/// left in its mask such a registration is looked at once and never again.
///
/// **Lists of what is ready.** A checkpoint resets the connections to the outside while it is writing, which makes
/// their registrations ready, and puts them into their instance's list. Whether the registration, its instance or both
/// were written before that is chance. If the registration was first, it says that it is in no list when it is; the
/// restore puts it there once more, and the list leads from it to itself: the copy's `epoll_wait` tells of that one
/// descriptor, for ever, and of no other. A server that had a connection open at the capture then answers nobody. If
/// the instance was first, the end of that connection is never told. So every list is emptied and every registration
/// says that it is in none: a restore lists them all anew, each once, and looks at each.
pub(crate) fn mend_epoll(file: &mut [u8]) -> Result<Mended> {
    let stream = Stream::of(file)?;
    let mut reader = Reader { bytes: &stream.bytes, at: 0 };
    let mut zeroed: Vec<Span> = Vec::new();
    let mut mended = Mended::default();
    while reader.at < stream.bytes.len() {
        let found = reader.graph()?;
        for registration in &found.registrations {
            if let (Some(mask), false) = (registration.mask, found.kept.contains(&registration.id)) {
                zeroed.push(mask);
                mended.removed += 1;
            }
            if let Some((ready, true)) = registration.ready {
                zeroed.push(ready);
            }
        }
        // A list that leads to what nothing else leads to stays: an object that nobody refers to is not restored.
        let ends = found.ends.iter().filter(|end| end.leads_to != 0 && found.kept.contains(&end.leads_to));
        zeroed.extend(ends.map(|end| end.number));
    }
    // The same number of bytes, all of them saying nothing but that another follows.
    let written = zeroed.iter().flat_map(|&(from, to)| (from..to).map(move |at| (at, at + 1 == to)));
    for (at, last) in written.map(|(at, last)| (stream.in_file(at), last)) {
        let Some(byte) = file.get_mut(at) else { continue };
        *byte = if last { 0 } else { 0x80 };
        let Range { start, end } = mended.within;
        mended.within = if start == end { at..at + 1 } else { start.min(at)..end.max(at + 1) };
    }
    Ok(mended)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::reader::{INSTANCE, INTEREST, INTEREST_KEY, MAGIC, OBJECT_FLAG, tag};
    use super::*;

    fn uint(mut value: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        while value >= 0x80 {
            bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        bytes.push(value as u8);
        bytes
    }

    fn string(text: &str) -> Vec<u8> {
        [uint(text.len() as u64), text.as_bytes().to_vec()].concat()
    }

    fn type_of(name: &str, fields: &[&str]) -> Vec<u8> {
        let fields_encoded: Vec<u8> = fields.iter().flat_map(|f| string(f)).collect();
        [uint(tag::TYPE), string(name), uint(fields.len() as u64), fields_encoded].concat()
    }

    /// A reference to an object, or to none.
    fn reference(id: u64) -> Vec<u8> {
        if id == 0 { uint(tag::NIL) } else { [uint(tag::REF), uint(id), uint(0)].concat() }
    }

    /// A registration as object `id`: a mask, whether it says that it is in a list, and a reference.
    fn registration(id: u64, mask: u64, ready: bool) -> Vec<u8> {
        let ready = if ready { [uint(tag::BOOL), uint(1)].concat() } else { uint(tag::NIL) };
        let fields = [uint(tag::UINT), uint(mask), ready, reference(9)].concat();
        [uint(tag::UINT), uint(id), uint(tag::STRUCT), uint(1), uint(tag::MULTIPLE_OBJECTS), uint(3), fields].concat()
    }

    /// An epoll instance as object `id`, whose list has these ends.
    fn instance(id: u64, head: u64, tail: u64) -> Vec<u8> {
        let list = [uint(4), uint(tag::MULTIPLE_OBJECTS), uint(2), reference(head), reference(tail)].concat();
        let fields = [reference(8), uint(tag::STRUCT), list, uint(tag::UINT), uint(5)].concat();
        [uint(tag::UINT), uint(id), uint(tag::STRUCT), uint(3), uint(tag::MULTIPLE_OBJECTS), uint(3), fields].concat()
    }

    /// An epoll instance's map that keeps `ids`.
    fn map(id: u64, ids: &[u64]) -> Vec<u8> {
        let mut bytes = [uint(tag::UINT), uint(id), uint(tag::MAP), uint(ids.len() as u64)].concat();
        for (n, id) in ids.iter().enumerate() {
            if n == 0 {
                bytes.extend(uint(tag::STRUCT));
            }
            bytes.extend([uint(2), uint(tag::NO_OBJECTS)].concat());
            if n == 0 {
                bytes.extend(uint(tag::REF));
            }
            bytes.extend([uint(*id), uint(0)].concat());
        }
        bytes
    }

    /// A file of one graph, in chunks of one to three bytes.
    fn file(objects: &[Vec<u8>]) -> Vec<u8> {
        let mut stream = uint(OBJECT_FLAG | objects.len() as u64);
        stream.extend(type_of(INTEREST, &["mask", "ready", "epoll"]));
        stream.extend(type_of(INTEREST_KEY, &["file"]));
        stream.extend(type_of(INSTANCE, &["interest", "ready", "readySeq"]));
        stream.extend(type_of("pkg/sentry/vfs.epollInterestList", &["head", "tail"]));
        stream.extend(objects.concat());
        let metadata = b"{}";
        let mut bytes = [&MAGIC[..], &(metadata.len() as u64).to_be_bytes(), metadata, &[7; 32]].concat();
        let mut left = stream.as_slice();
        for n in (1..=3).cycle() {
            let (chunk, rest) = left.split_at(n.min(left.len()));
            bytes.extend((chunk.len() as u32).to_be_bytes());
            bytes.extend(chunk);
            left = rest;
            if left.is_empty() {
                return bytes;
            }
        }
        bytes
    }

    /// The file as it is when it was mended.
    fn mended(file: &[u8]) -> Vec<u8> {
        let mut mended = file.to_vec();
        let Mended { within, .. } = mend_epoll(&mut mended).unwrap();
        assert!((0..file.len()).all(|at| within.contains(&at) || mended[at] == file[at]));
        mended
    }

    /// What a file says: masks, readiness, and objects that lists lead to.
    fn said(file: &[u8]) -> (Vec<u64>, Vec<bool>, Vec<u64>) {
        let stream = Stream::of(file).unwrap();
        let found = Reader { bytes: &stream.bytes, at: 0 }.graph().unwrap();
        let number = |at| Reader { bytes: &stream.bytes, at }.uint().unwrap();
        (
            found.registrations.iter().map(|r| number(r.mask.unwrap().0)).collect(),
            found.registrations.iter().map(|r| r.ready.unwrap().1).collect(),
            found.ends.iter().map(|end| end.leads_to).collect(),
        )
    }

    #[test]
    fn only_registrations_that_nobody_keeps_lose_their_events() {
        let whole = file(&[
            registration(1, 0x19, false),
            registration(2, 0x2019, false),
            registration(3, 0x2019, false),
            map(4, &[1, 3]),
        ]);
        let after = mended(&whole);
        assert_eq!(said(&after), (vec![0x19, 0, 0x2019], vec![false; 3], vec![]));
        assert_eq!(mend_epoll(&mut whole.clone()).unwrap().removed, 1);
        assert_eq!(mended(&after), after, "and once more is harmless");
    }

    #[test]
    fn a_list_is_emptied_whichever_of_the_two_was_written_first() {
        // The registration before it was listed; the list before the registration was in it; both after.
        for (ready, listed) in [(false, 300), (true, 0), (true, 300)] {
            let objects = [registration(300, 0x19, ready), instance(2, listed, listed), map(3, &[300])];
            let whole = file(&objects);
            let after = mended(&whole);
            let ends = if listed == 0 { vec![] } else { vec![0, 0] };
            assert_eq!(said(&after), (vec![0x19], vec![false], ends), "ready {ready}, listed {listed}");
            assert_eq!(mended(&after), after);
        }
    }

    #[test]
    fn a_list_that_alone_leads_to_a_registration_stays() {
        let whole = file(&[registration(1, 0x19, false), instance(2, 1, 1), map(3, &[])]);
        assert_eq!(said(&mended(&whole)), (vec![0], vec![false], vec![1, 1]));
    }

    #[test]
    fn a_file_in_which_all_is_well_is_left_as_it_is() {
        let whole = file(&[registration(1, 0x19, false), instance(4, 0, 0), map(2, &[1]), map(3, &[])]);
        let mut after = whole.clone();
        assert_eq!(mend_epoll(&mut after), Ok(Mended::default()));
        assert_eq!(after, whole);
    }

    proptest! {
        #[test]
        fn nonsense_is_an_error_and_changes_nothing_or_is_mended_within_what_is_told(
            at in 50usize..300, byte: u8, cut in 0usize..400,
        ) {
            let objects = [registration(1, 0x19, true), registration(2, 0x2019, false), instance(4, 1, 1), map(3, &[1])];
            let mut broken = file(&objects);
            if let Some(changed) = broken.get_mut(at) { *changed = byte }
            broken.truncate(cut.max(10));
            let before = broken.clone();
            let within = mend_epoll(&mut broken).map(|mended| mended.within).unwrap_or_default();
            prop_assert!((0..before.len()).all(|at| within.contains(&at) || broken[at] == before[at]));
        }
    }
}
