//! Reads the state file of a checkpoint, so far as is needed to mend two known faults of epoll in it.
//!
//! A checkpoint's state file is a stream of small chunks that hold object graphs in gVisor's own wire format
//! (`pkg/state/wire` and `pkg/compressio` of its source, build 20240729, written without compression and key). Nothing
//! here is needed to restore; whoever cannot make sense of a file leaves it as it is.

mod reader;

use self::reader::{Reader, Result, Span, Stream};

/// What to write over a state file: where, and the byte.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Mend {
    /// In the order of the places.
    pub(crate) bytes: Vec<(u64, u8)>,
    /// Registrations that no epoll instance knows any more.
    pub(crate) removed: usize,
    /// Registrations and lists that said what is ready.
    pub(crate) relisted: usize,
}

/// Finds what to write over a state file so that the copies' epoll instances work. Nothing grows or shrinks.
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
pub(crate) fn mend_epoll(file: &[u8]) -> Result<Mend> {
    let stream = Stream::of(file)?;
    let mut reader = Reader { bytes: &stream.bytes, at: 0 };
    let mut zeroed: Vec<Span> = Vec::new();
    let mut mend = Mend::default();
    while reader.at < stream.bytes.len() {
        let found = reader.graph()?;
        for registration in &found.registrations {
            if let (Some(mask), false) = (registration.mask, found.kept.contains(&registration.id)) {
                zeroed.push(mask);
                mend.removed += 1;
            }
            if let Some((ready, true)) = registration.ready {
                zeroed.push(ready);
                mend.relisted += 1;
            }
        }
        // A list that leads to what nothing else leads to stays: an object that nobody refers to is not restored.
        let ends = found.ends.iter().filter(|end| end.leads_to != 0 && found.kept.contains(&end.leads_to));
        for end in ends {
            zeroed.push(end.number);
            mend.relisted += 1;
        }
    }
    for (from, to) in zeroed {
        // The same number of bytes, all of them saying nothing but that another follows.
        mend.bytes.extend((from..to).map(|at| (stream.in_file(at) as u64, if at + 1 == to { 0 } else { 0x80 })));
    }
    mend.bytes.sort_unstable();
    Ok(mend)
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
        for (at, byte) in mend_epoll(file).unwrap().bytes {
            mended[at as usize] = byte;
        }
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
        assert_eq!(mend_epoll(&whole).unwrap().removed, 1);
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
        assert_eq!(mend_epoll(&whole), Ok(Mend::default()));
    }

    proptest! {
        #[test]
        fn nonsense_is_an_error_or_mended_within_the_file(at in 50usize..300, byte: u8, cut in 0usize..400) {
            let mut broken = file(&[registration(1, 0x19, true), registration(2, 0x2019, false), instance(4, 1, 1), map(3, &[1])]);
            if let Some(changed) = broken.get_mut(at) { *changed = byte }
            broken.truncate(cut.max(10));
            if let Ok(mend) = mend_epoll(&broken) {
                prop_assert!(mend.bytes.iter().all(|(at, _)| (*at as usize) < broken.len()));
            }
        }
    }
}
