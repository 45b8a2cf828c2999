//! Logs on a real disk: what is kept, what is dropped, what is left after a kill at any byte, and what copies share.

use std::fs;
use std::path::Path;

use proptest::prelude::*;
use remuda_guest_proto::WINDOW_BYTES;
use remuda_types::limits::{OUTPUT_HEAD_BYTES, OUTPUT_TAIL_BYTES};
use remuda_types::wire::OutputStream::{self, Stderr, Stdout};

use super::*;

const ID: &str = "exec-abcdefghij0123456789";
const OTHER: &str = "exec-zyxwvutsrq9876543210";
const NOW: i64 = 1_790_000_000_000;

fn files(directory: &Path, id: &str) -> Files {
    Files { directory: directory.to_owned(), id: id.parse().unwrap() }
}

fn note(text: &str) -> Note {
    Note { at_ms: NOW, text: text.as_bytes().to_vec() }
}

fn place() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("remuda-test-").tempdir().unwrap()
}

fn new_log(directory: &Path) -> OutputLog {
    let mut log = OutputLog::new(files(directory, ID), note("record"));
    settle(&mut log);
    log
}

/// Writes what waits, as its owner does.
fn settle(log: &mut OutputLog) {
    while let Some(mut write) = log.next_write(NOW) {
        write.run().unwrap();
        for path in log.commit(write) {
            fs::remove_file(path).unwrap();
        }
    }
}

fn append(log: &mut OutputLog, stream: OutputStream, bytes: &[u8]) {
    log.append(log.produced(), stream, NOW, bytes).unwrap();
}

fn fill(log: &mut OutputLog, bytes: usize) {
    let chunk: Vec<u8> = (0..251u8).cycle().take(256 << 10).collect();
    let mut left = bytes;
    while left > 0 {
        let at = (log.produced() % 251) as usize;
        let length = left.min(chunk.len() - at);
        append(log, Stdout, &chunk[at..at + length]);
        settle(log);
        left -= length;
    }
}

fn read_all(log: &OutputLog, only: Option<OutputStream>, bytes_max: usize) -> (Vec<u8>, u64) {
    let (mut all, mut offset, mut skipped) = (Vec::new(), 0, 0);
    loop {
        let page = page(|offset| log.step(offset), offset, only, bytes_max).unwrap();
        page.pieces.iter().for_each(|piece| all.extend_from_slice(&piece.bytes));
        skipped += page.skipped_bytes;
        if page.next_offset == offset {
            return (all, skipped);
        }
        offset = page.next_offset;
    }
}

fn numbered(directory: &Path, id: &str) -> Vec<u64> {
    let names = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names
        .filter_map(|name| match Named::of(&name) {
            Some(Named::Numbered(of, offset)) if of == id.parse().unwrap() => Some(offset),
            _ => None,
        })
        .collect()
}

fn reopen(directory: &Path, id: &str) -> Option<Recovered> {
    recover(files(directory, id), numbered(directory, id), Access::Own).unwrap()
}

/// Bytes that the files of an execution take, by their lengths.
fn on_disk(directory: &Path) -> u64 {
    fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum()
}

#[test]
fn a_gap_is_refused_and_a_repetition_passed_over() {
    let place = place();
    let mut log = new_log(place.path());
    append(&mut log, Stdout, b"hello");
    assert_eq!(log.append(7, Stdout, NOW, b"x"), Err(Refused::Gap(2)));
    log.append(3, Stdout, NOW, b"lo you").unwrap();
    log.append(0, Stdout, NOW, b"hel").unwrap();
    settle(&mut log);
    assert_eq!(read_all(&log, None, 3), (b"hello you".to_vec(), 0));
}

#[test]
fn what_waits_is_read_too_and_has_no_number_yet() {
    let place = place();
    let mut log = new_log(place.path());
    append(&mut log, Stdout, b"written ");
    settle(&mut log);
    append(&mut log, Stdout, b"waits ");
    append(&mut log, Stderr, b"as well");
    assert_eq!(read_all(&log, None, 5), (b"written waits as well".to_vec(), 0));
    assert_eq!(read_all(&log, Some(Stderr), 5), (b"as well".to_vec(), 0));
    let found = records(|sequence| log.step_to_record(sequence), 0, 100).unwrap();
    assert_eq!((found.records.len(), found.next_sequence), (1, 1));
    settle(&mut log);
    let found = records(|sequence| log.step_to_record(sequence), 1, 100).unwrap();
    let told: Vec<_> = found.records.iter().map(|r| (r.sequence, r.offset, r.stream, &r.bytes[..], r.at_ms)).collect();
    assert_eq!(told, [(1, 8, Stdout, &b"waits "[..], NOW), (2, 14, Stderr, b"as well", NOW)]);
}

#[test]
fn the_middle_goes_and_is_told() {
    let place = place();
    let mut log = new_log(place.path());
    let size = OUTPUT_HEAD_BYTES + OUTPUT_TAIL_BYTES + (3 << 20) + 12_345;
    fill(&mut log, size);
    let dropped = (3 << 20) + 12_345;
    assert_eq!((log.produced(), log.dropped()), (size as u64, dropped as u64));
    assert_eq!(log.kept(), (OUTPUT_HEAD_BYTES + OUTPUT_TAIL_BYTES) as u64);
    let cut = page(|offset| log.step(offset), OUTPUT_HEAD_BYTES as u64 - 10, None, 100).unwrap();
    assert_eq!(cut.skipped_bytes, dropped as u64);
    let pieces: Vec<_> = cut.pieces.iter().map(|piece| (piece.offset, piece.bytes.len())).collect();
    assert_eq!(pieces, [(OUTPUT_HEAD_BYTES as u64 - 10, 10), ((OUTPUT_HEAD_BYTES + dropped) as u64, 90)]);
    let (all, skipped) = read_all(&log, None, 1 << 20);
    assert_eq!((all.len(), skipped), (OUTPUT_HEAD_BYTES + OUTPUT_TAIL_BYTES, dropped as u64));
    let right = |(n, byte): (usize, &u8)| {
        let offset = if n < OUTPUT_HEAD_BYTES { n } else { n + dropped };
        *byte == (offset % 251) as u8
    };
    assert!(all.iter().enumerate().all(right));
    // What is dropped is gone from the disk as well, but for the rest of a segment.
    assert!(on_disk(place.path()) < (OUTPUT_HEAD_BYTES + OUTPUT_TAIL_BYTES + (3 << 20)) as u64);
    // By number, the gap is told in records.
    let last_of_head = (OUTPUT_HEAD_BYTES / (64 << 10)) as u64 * 2;
    let mut at = 0;
    let mut skipped = 0;
    loop {
        let found = records(|sequence| log.step_to_record(sequence), at, 1 << 20).unwrap();
        skipped += found.skipped;
        if found.next_sequence == at {
            break;
        }
        at = found.next_sequence;
    }
    assert!(skipped > 0 && at > last_of_head / 2, "{skipped} of {at} records");
    let end = log.produced();
    assert_eq!(reopen(place.path(), ID).unwrap().log.dropped(), dropped as u64);
    assert_eq!(reopen(place.path(), ID).unwrap().log.produced(), end);
}

#[test]
fn single_bytes_weigh_what_they_cost() {
    let place = place();
    let mut log = new_log(place.path());
    // Each byte a record of its own: the files stay within twice the limits all the same.
    for n in 0..2_300_000u32 {
        log.append(u64::from(n), if n % 2 == 0 { Stdout } else { Stderr }, NOW, &[n as u8]).unwrap();
        if n % 10_000 == 9_999 {
            settle(&mut log);
        }
    }
    settle(&mut log);
    assert!(log.dropped() > 0);
    assert!(on_disk(place.path()) < 2 * (OUTPUT_HEAD_BYTES + OUTPUT_TAIL_BYTES + (2 << 20)) as u64);
    let (all, skipped) = read_all(&log, None, 1 << 20);
    assert_eq!(all.len() as u64 + skipped, 2_300_000);
    assert_eq!(log.dropped(), skipped);
}

#[test]
fn a_window_that_waits_is_all_there_is_in_memory() {
    let place = place();
    let mut log = new_log(place.path());
    append(&mut log, Stdout, &vec![1; WINDOW_BYTES as usize]);
    assert_eq!(log.append(WINDOW_BYTES, Stdout, NOW, b"x"), Err(Refused::Flood));
    settle(&mut log);
    append(&mut log, Stdout, b"x");
}

#[test]
fn a_write_that_failed_is_done_again_whole() {
    let place = place();
    let directory = place.path().join("d");
    let mut log = OutputLog::new(files(&directory, ID), note("record"));
    // Something stands in the way of the directory.
    fs::write(&directory, "").unwrap();
    append(&mut log, Stdout, b"one ");
    let mut write = log.next_write(NOW).unwrap();
    assert!(write.run().is_err());
    append(&mut log, Stdout, b"two");
    log.end(note("end"));
    assert!(!log.is_settled());
    assert_eq!((log.written(), log.produced()), (0, 7));
    assert_eq!(read_all(&log, None, 100).0, b"one two");
    fs::remove_file(&directory).unwrap();
    settle(&mut log);
    assert!(log.is_settled());
    let found = reopen(&directory, ID).unwrap();
    assert_eq!(
        (read_all(&found.log, None, 100).0, found.record, found.notes),
        (b"one two".to_vec(), note("record"), vec![note("end")])
    );
}

#[test]
fn what_was_buried_is_skipped_whole_and_its_record_stays() {
    let place = place();
    let mut log = new_log(place.path());
    fill(&mut log, 3 << 20);
    log.end(note("end"));
    settle(&mut log);
    let burial = log.bury(&note("short record"), &note("buried"));
    let found = page(|offset| log.step(offset), 10, None, 100).unwrap();
    assert_eq!((found.pieces.len(), found.next_offset, found.skipped_bytes), (0, 3 << 20, (3 << 20) - 10));
    // Killed before its files followed: they are as they were.
    assert_eq!(reopen(place.path(), ID).unwrap().log.kept(), 3 << 20);
    burial.run().unwrap();
    assert!(on_disk(place.path()) < 200, "{} bytes", on_disk(place.path()));
    let again = reopen(place.path(), ID).unwrap();
    assert_eq!((again.record, again.notes), (note("short record"), vec![note("buried")]));
    assert_eq!((again.log.produced(), again.log.kept(), again.log.dropped()), (3 << 20, 0, 3 << 20));
}

#[test]
fn notes_that_stand_are_in_every_segment() {
    let place = place();
    let mut log = new_log(place.path());
    log.note(note("spawned"), false);
    fill(&mut log, 100);
    log.note(note("killed"), true);
    fill(&mut log, OUTPUT_HEAD_BYTES + OUTPUT_TAIL_BYTES + (2 << 20));
    let found = reopen(place.path(), ID).unwrap();
    assert_eq!(found.notes, [note("spawned"), note("killed")]);
    // A note that is not urgent asks for no write of its own.
    log.note(note("later"), false);
    assert!(log.next_write(NOW).is_none());
}

#[test]
fn copies_share_what_was_written_and_go_on_alone() {
    for before in [0, 100, 70_000, 3_000_000, OUTPUT_HEAD_BYTES + OUTPUT_TAIL_BYTES + 5_000_000] {
        let (source_place, snapshot, branch_place) = (place(), place(), place());
        let mut source = new_log(source_place.path());
        fill(&mut source, before);
        // What waits belongs to the agent yet; it sends it again in each copy.
        append(&mut source, Stdout, b"waits");
        let prefix = source.carry(&files(snapshot.path(), ID), false).unwrap();
        assert_eq!(prefix.produced(), before as u64);
        let was: Vec<_> = numbered(snapshot.path(), ID).into_iter().collect();
        let held = |n: u64| fs::read(files(snapshot.path(), ID).numbered(n)).unwrap();
        let content: Vec<_> = was.iter().map(|n| held(*n)).collect();

        let from = files(snapshot.path(), ID);
        let mut branch = OutputLog::branched(files(branch_place.path(), OTHER), note("own"), &from, &prefix).unwrap();
        settle(&mut branch);
        let both = |log: &OutputLog| read_all(log, None, 1 << 20);
        settle(&mut source);
        let (mut in_source, dropped) = both(&source);
        in_source.truncate(in_source.len() - 5);
        // The tail of the source has moved on by what waited.
        let (in_branch, dropped_in_branch) = both(&branch);
        let moved = (dropped - dropped_in_branch) as usize;
        assert!(moved <= 5);
        let head = OUTPUT_HEAD_BYTES.min(in_source.len());
        assert!(in_branch[..head] == in_source[..head] && in_branch[head + moved..] == in_source[head..], "{before}");

        fill(&mut source, 1_500_000);
        append(&mut branch, Stderr, b"own way");
        branch.end(note("end"));
        settle(&mut branch);
        assert!(both(&branch).0.ends_with(b"own way"));
        assert!(was.iter().map(|n| held(*n)).eq(content), "a snapshot's file was written into");
        // Whatever becomes of the others, a branch is whole.
        drop((source, source_place, snapshot));
        let again = reopen(branch_place.path(), OTHER).unwrap();
        assert_eq!((again.record, again.notes), (note("own"), vec![note("end")]));
        assert_eq!(both(&again.log), both(&branch));
        assert_eq!(again.log.produced(), before as u64 + 7);
    }
}

#[test]
fn a_shared_segment_is_not_gone_on_with_after_a_restart() {
    let (source_place, snapshot) = (place(), place());
    let mut source = new_log(source_place.path());
    fill(&mut source, 100_000);
    source.carry(&files(snapshot.path(), ID), false).unwrap();
    drop(source);
    let mut again = reopen(source_place.path(), ID).unwrap().log;
    append(&mut again, Stdout, b"more");
    settle(&mut again);
    let shared = fs::read(files(snapshot.path(), ID).numbered(0)).unwrap();
    assert!(!shared.ends_with(b"more"));
    assert!(read_all(&reopen(source_place.path(), ID).unwrap().log, None, 1 << 20).0.ends_with(b"more"));
}

#[test]
fn a_changed_byte_is_an_error_and_not_shown() {
    let place = place();
    let mut log = new_log(place.path());
    append(&mut log, Stdout, b"hello");
    settle(&mut log);
    let path = log.files().first();
    let mut bytes = fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&path, bytes).unwrap();
    let error = page(|offset| log.step(offset), 0, None, 100).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::InvalidData);
}

#[derive(Debug, Clone)]
enum Act {
    Append(bool, usize),
    Note,
    Settle,
    Carry,
    Restart,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        4 => (any::<bool>(), 1usize..400).prop_map(|(s, n)| Act::Append(s, n)),
        1 => (any::<bool>(), 70_000usize..400_000).prop_map(|(s, n)| Act::Append(s, n)),
        1 => Just(Act::Note),
        3 => Just(Act::Settle),
        1 => Just(Act::Carry),
        1 => Just(Act::Restart),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever was done, a kill that cuts the last file anywhere leaves a prefix: all records before the cut, each as
    /// it was, none after. What goes on from there has no gap.
    #[test]
    fn a_kill_at_any_byte_leaves_a_prefix(acts in proptest::collection::vec(act(), 1..24), cut in any::<prop::sample::Index>()) {
        let (place, snapshots) = (place(), place());
        let mut log = new_log(place.path());
        let mut truth: Vec<(OutputStream, u8)> = Vec::new();
        for (n, act) in acts.into_iter().enumerate() {
            match act {
                Act::Append(error, length) => {
                    let stream = if error { Stderr } else { Stdout };
                    let bytes: Vec<u8> = (0..length).map(|i| (i * 7 + n) as u8).collect();
                    if log.append(truth.len() as u64, stream, NOW, &bytes).is_ok() {
                        truth.extend(bytes.iter().map(|b| (stream, *b)));
                    } else {
                        settle(&mut log);
                    }
                }
                Act::Note => log.note(note("n"), n % 2 == 0),
                Act::Settle => settle(&mut log),
                Act::Carry => {
                    log.carry(&files(&snapshots.path().join(n.to_string()), ID), false).unwrap();
                }
                Act::Restart => {
                    log = reopen(place.path(), ID).unwrap().log;
                    truth.truncate(log.produced() as usize);
                }
            }
        }
        settle(&mut log);
        check(&log, &truth)?;

        let newest = numbered(place.path(), ID).into_iter().max();
        let newest = newest.map_or(log.files().first(), |offset| log.files().numbered(offset));
        drop(log);
        let length = fs::metadata(&newest).unwrap().len();
        let shared = std::os::unix::fs::MetadataExt::nlink(&fs::metadata(&newest).unwrap()) > 1;
        if !shared {
            fs::File::options().write(true).open(&newest).unwrap().set_len(cut.index(length as usize + 1) as u64).unwrap();
        }
        let Some(recovered) = reopen(place.path(), ID) else {
            prop_assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0, "no record, no file");
            return Ok(());
        };
        let mut log = recovered.log;
        prop_assert_eq!(recovered.record, note("record"));
        truth.truncate(log.produced() as usize);
        check(&log, &truth)?;
        log.append(truth.len() as u64, Stdout, NOW, b"more").unwrap();
        truth.extend(b"more".map(|b| (Stdout, b)));
        settle(&mut log);
        check(&log, &truth)?;
        check(&reopen(place.path(), ID).unwrap().log, &truth)?;
    }
}

fn check(log: &OutputLog, truth: &[(OutputStream, u8)]) -> Result<(), TestCaseError> {
    prop_assert_eq!(log.produced(), truth.len() as u64);
    let (mut sequence, mut offset) = (0, 0);
    loop {
        let found = records(|sequence| log.step_to_record(sequence), sequence, 1 << 20).unwrap();
        for record in &found.records {
            prop_assert_eq!((record.sequence, record.offset), (sequence, offset));
            let expected = &truth[offset as usize..offset as usize + record.bytes.len()];
            prop_assert!(expected.iter().all(|(stream, _)| *stream == record.stream));
            prop_assert!(bytes(expected, None) == record.bytes);
            sequence += 1;
            offset += record.bytes.len() as u64;
        }
        if found.records.is_empty() {
            break;
        }
    }
    prop_assert_eq!(offset, truth.len() as u64);
    for only in [None, Some(Stdout), Some(Stderr)] {
        prop_assert!(read_all(log, only, 100_000).0 == bytes(truth, only));
    }
    Ok(())
}

fn bytes(truth: &[(OutputStream, u8)], only: Option<OutputStream>) -> Vec<u8> {
    truth.iter().filter(|(stream, _)| only.is_none_or(|only| only == *stream)).map(|(_, byte)| *byte).collect()
}
