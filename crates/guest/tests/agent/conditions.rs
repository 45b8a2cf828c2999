//! Parts, digests and conditions of files, moving, permission bits and owners.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;

use remuda_guest_proto::*;

use crate::files::{home, parts, path, write};
use crate::host::*;

/// SHA-256 of the three bytes `abc`.
const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
/// SHA-256 of nothing.
const NOTHING: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

fn one(digest: &str) -> Option<Contents> {
    Some(Contents::OneOf(vec!["00".repeat(32), digest.to_owned()]))
}

fn open(
    host: &mut Host,
    path: &str,
    range: Option<ByteRange>,
    conditions: Conditions,
) -> Result<(Entry, u64, Vec<u8>), AgentError> {
    let call = host.next_call();
    let (path, user) = (path.to_owned(), "nobody".to_owned());
    host.request(call, &Request::OpenFile { path, user, range, conditions, digest_bytes_max: 100 });
    let (entry, first) = match host.reply(call)? {
        Reply::Opened { entry, first, .. } => (entry, first),
        other => panic!("{other:?}"),
    };
    host.wait_until("the end of the file", |host| host.reads[&call].1.is_some());
    let (bytes, end) = host.reads.remove(&call).unwrap();
    assert_eq!(end.unwrap(), b"");
    Ok((entry, first, bytes))
}

fn write_if(host: &mut Host, path: &str, conditions: Conditions, bytes: &[u8]) -> ReplyResult {
    let effect = host.next_effect();
    let (path, user) = (path.to_owned(), "nobody".to_owned());
    write(host, &Request::WriteFile { path, user, mode: None, parents: false, conditions, effect }, bytes)
}

#[track_caller]
fn is(result: Result<impl std::fmt::Debug, AgentError>, kind: AgentErrorKind) {
    assert_eq!(result.as_ref().err().map(|error| error.kind), Some(kind), "{result:?}");
}

#[test]
fn parts_of_a_file_are_what_was_asked_for() {
    let mut host = Host::bound();
    let home = home(&host);
    let file = format!("{home}/f");
    let bytes: Vec<u8> = (0..3_000_000).map(|i| (i * 7 % 251) as u8).collect();
    fs::write(&file, &bytes).unwrap();
    let from = |first, last| ByteRange::From { first, last };
    for (range, expected) in [
        (from(0, Some(0)), &bytes[..1]),
        (from(5, None), &bytes[5..]),
        (from(1_000_000, Some(1_999_999)), &bytes[1_000_000..2_000_000]),
        (from(2_999_999, Some(9_000_000)), &bytes[2_999_999..]),
        (ByteRange::Last(7), &bytes[2_999_993..]),
    ] {
        let (entry, first, got) = open(&mut host, &file, Some(range), Conditions::default()).unwrap();
        assert!(got == expected && entry.size == 3_000_000 && entry.digest.is_none(), "{range:?} {}", got.len());
        assert_eq!(first, range.within(3_000_000).unwrap().0);
    }
    is(open(&mut host, &file, Some(from(3_000_000, None)), Conditions::default()), AgentErrorKind::OutOfRange);
    // What says that it is empty and is not is read to its end.
    let (entry, _, got) = open(&mut host, "/proc/self/status", None, Conditions::default()).unwrap();
    assert!(got.starts_with(b"Name:") && entry.digest.is_none());
}

#[test]
fn a_digest_is_told_of_small_files_and_where_a_condition_needs_it() {
    let mut host = Host::bound();
    let home = home(&host);
    let file = format!("{home}/f");
    let Ok(Reply::Entry(written)) = write_if(&mut host, &file, Conditions::default(), b"abc") else { panic!() };
    assert_eq!(written.digest.as_deref(), Some(ABC));
    let (entry, _, got) = open(&mut host, &file, None, Conditions::default()).unwrap();
    assert_eq!((entry.digest.as_deref(), got.as_slice()), (Some(ABC), b"abc".as_slice()));
    let stat = |digest| Request::Stat { path: file.clone(), user: "nobody".to_owned(), digest };
    let Ok(Reply::Entry(entry)) = host.call(&stat(true)) else { panic!() };
    assert_eq!(entry.digest.as_deref(), Some(ABC));
    let Ok(Reply::Entry(entry)) = host.call(&stat(false)) else { panic!() };
    assert_eq!(entry.digest, None);
    let if_changed = Conditions { matches_not: one(ABC), ..Conditions::default() };
    let unchanged = open(&mut host, &file, None, if_changed.clone()).unwrap_err();
    assert_eq!((unchanged.kind, unchanged.message.as_str()), (AgentErrorKind::Unchanged, ABC));
    fs::write(&file, vec![1; 1000]).unwrap();
    let (entry, _, _) = open(&mut host, &file, None, Conditions::default()).unwrap();
    assert_eq!(entry.digest, None, "of a file that is larger than was asked for");
    let (entry, _, got) = open(&mut host, &file, None, if_changed).unwrap();
    assert!(entry.digest.is_some() && got.len() == 1000);
    is(
        open(&mut host, &file, None, Conditions { matches: one(ABC), ..Conditions::default() }),
        AgentErrorKind::Condition,
    );
}

#[test]
fn a_file_is_replaced_under_its_condition_alone() {
    let mut host = Host::bound();
    let home = home(&host);
    let file = format!("{home}/f");
    let when = |matches, matches_not| Conditions { matches, matches_not };
    let refused = AgentErrorKind::Condition;
    is(write_if(&mut host, &file, when(one(NOTHING), None), b"x"), refused);
    is(write_if(&mut host, &file, when(Some(Contents::Any), None), b"x"), refused);
    assert!(!Path::new(&file).exists() && parts(Path::new(&home)) == 0);
    write_if(&mut host, &file, when(None, Some(Contents::Any)), b"").unwrap();
    is(write_if(&mut host, &file, when(None, Some(Contents::Any)), b"x"), refused);
    write_if(&mut host, &file, when(one(NOTHING), None), b"abc").unwrap();
    is(write_if(&mut host, &file, when(one(NOTHING), None), b"x"), refused);
    is(write_if(&mut host, &file, when(None, one(ABC)), b"x"), refused);
    assert_eq!((fs::read(&file).unwrap(), parts(Path::new(&home))), (b"abc".to_vec(), 0));
    write_if(&mut host, &file, when(Some(Contents::Any), one(NOTHING)), b"y").unwrap();
    assert_eq!(fs::read(&file).unwrap(), b"y");
}

#[test]
fn of_many_who_replace_the_same_contents_one_does() {
    let mut host = Host::bound();
    let home = home(&host);
    for (round, conditions) in [
        Conditions { matches: None, matches_not: Some(Contents::Any) },
        Conditions { matches: one(ABC), matches_not: None },
    ]
    .into_iter()
    .enumerate()
    {
        let file = format!("{home}/{round}");
        if round == 1 {
            fs::write(&file, "abc").unwrap();
        }
        // All are received before any of them ends.
        let calls: Vec<u32> = (0..20)
            .map(|i| {
                let (call, effect) = (host.next_call(), host.next_effect());
                let (path, user) = (file.clone(), "nobody".to_owned());
                let conditions = conditions.clone();
                host.request(call, &Request::WriteFile { path, user, mode: None, parents: false, conditions, effect });
                host.send(Kind::HostData, call, format!("writer {i}").into_bytes());
                call
            })
            .collect();
        host.wait_until("all of it", |host| calls.iter().all(|call| host.credits.contains_key(call)));
        for call in &calls {
            host.send(Kind::HostEnd, *call, []);
        }
        let replies: Vec<ReplyResult> = calls.iter().map(|call| host.reply(*call)).collect();
        let done: Vec<usize> = (0..20).filter(|i| replies[*i].is_ok()).collect();
        assert_eq!(done.len(), 1, "{replies:?}");
        assert_eq!(fs::read_to_string(&file).unwrap(), format!("writer {}", done[0]));
    }
    assert_eq!(parts(Path::new(&home)), 0);
}

#[test]
fn a_change_between_the_two_looks_is_noticed() {
    let mut host = Host::bound();
    let home = home(&host);
    let file = format!("{home}/f");
    fs::write(&file, "abc").unwrap();
    let (call, effect) = (host.next_call(), host.next_effect());
    let conditions = Conditions { matches: one(ABC), matches_not: None };
    let (path, user) = (file.clone(), "nobody".to_owned());
    host.request(call, &Request::WriteFile { path, user, mode: None, parents: false, conditions, effect });
    host.send(Kind::HostData, call, *b"new");
    host.wait_until("credit", |host| host.credits.contains_key(&call));
    // The same length, by somebody who knows nothing of conditions.
    fs::write(&file, "xyz").unwrap();
    host.send(Kind::HostEnd, call, []);
    is(host.reply(call), AgentErrorKind::Condition);
    assert_eq!(fs::read(&file).unwrap(), b"xyz");
}

#[test]
fn a_path_is_moved_once_and_replaces_only_what_it_may() {
    let mut host = Host::bound();
    let home = home(&host);
    let at = |name: &str| format!("{home}/{name}");
    fs::write(at("a"), "a").unwrap();
    fs::write(at("b"), "b").unwrap();
    symlink("b", at("link")).unwrap();
    fs::create_dir(at("d")).unwrap();
    fs::create_dir(at("full")).unwrap();
    fs::write(at("full/x"), "").unwrap();
    let request = |host: &mut Host, from: &str, to: &str, overwrite| {
        let (from, to, user) = (at(from), at(to), "nobody".to_owned());
        Request::Move { from, to, user, overwrite, effect: host.next_effect() }
    };
    let moved = |host: &mut Host, from: &str, to: &str, overwrite| {
        let request = request(host, from, to, overwrite);
        host.call(&request)
    };
    for onto in ["b", "link", "d", "full"] {
        is(moved(&mut host, "a", onto, false), AgentErrorKind::Exists);
    }
    is(moved(&mut host, "a", "d", true), AgentErrorKind::Exists);
    is(moved(&mut host, "d", "full", true), AgentErrorKind::Exists);
    is(moved(&mut host, "absent", "c", true), AgentErrorKind::NotFound);
    assert!(moved(&mut host, "full", "full/in", false).is_err());
    // The link is replaced, not what it leads to.
    let Ok(Reply::Entry(entry)) = moved(&mut host, "a", "link", true) else { panic!() };
    assert_eq!((entry.path.as_str(), entry.kind), (at("link").as_str(), EntryKind::File));
    assert_eq!((fs::read(at("b")).unwrap(), Path::new(&at("a")).exists()), (b"b".to_vec(), false));
    moved(&mut host, "full", "d", true).unwrap();
    assert!(Path::new(&at("d/x")).exists());
    // The same effect again is answered and not done.
    let again = request(&mut host, "b", "c", false);
    let first = host.call(&again);
    fs::write(at("b"), "another").unwrap();
    assert_eq!(host.call(&again), first);
    assert_eq!((fs::read(at("b")).unwrap(), fs::read(at("c")).unwrap()), (b"another".to_vec(), b"b".to_vec()));
    let outcome = |request: &Request| match request {
        Request::Move { effect, .. } => Request::Outcome { effect: *effect },
        _ => unreachable!(),
    };
    assert_eq!(host.call(&outcome(&again)), first);
    assert_eq!(host.call(&Request::Outcome { effect: 77_777 }).unwrap_err().kind, AgentErrorKind::Undone);
}

#[test]
fn a_regular_file_is_moved_between_file_systems_and_nothing_else() {
    let mut host = Host::bound();
    let elsewhere = tempfile::tempdir_in("/dev/shm").unwrap();
    fs::write(path(&host, "f"), "abc").unwrap();
    fs::set_permissions(path(&host, "f"), fs::Permissions::from_mode(0o751)).unwrap();
    std::os::unix::fs::chown(path(&host, "f"), Some(7), Some(8)).unwrap();
    let before = fs::metadata(path(&host, "f")).unwrap();
    if before.dev() == fs::metadata(elsewhere.path()).unwrap().dev() {
        panic!("/dev/shm is no file system of its own here: this test needs two");
    }
    let to = elsewhere.path().join("g");
    let moved = |host: &mut Host, from: String, overwrite| {
        let (to, user, effect) = (to.to_str().unwrap().to_owned(), "root".to_owned(), host.next_effect());
        host.call(&Request::Move { from, to, user, overwrite, effect })
    };
    let from = path(&host, "f");
    moved(&mut host, from.clone(), false).unwrap();
    let after = fs::metadata(&to).unwrap();
    assert_eq!((after.mode(), after.uid(), after.gid()), (before.mode(), 7, 8));
    assert_eq!(after.modified().unwrap(), before.modified().unwrap());
    assert!(fs::read(&to).unwrap() == b"abc" && !Path::new(&from).exists());
    fs::write(&from, "new").unwrap();
    is(moved(&mut host, from.clone(), false), AgentErrorKind::Exists);
    moved(&mut host, from, true).unwrap();
    assert_eq!(fs::read(&to).unwrap(), b"new");
    let directory = path(&host, "d");
    fs::create_dir(&directory).unwrap();
    is(moved(&mut host, directory, true), AgentErrorKind::Invalid);
    assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 1);
}

#[test]
fn modes_and_owners_are_changed_by_who_may() {
    let mut host = Host::bound();
    let home = home(&host);
    let file = format!("{home}/f");
    fs::write(&file, "").unwrap();
    std::os::unix::fs::chown(&file, Some(65_534), Some(65_534)).unwrap();
    let set = |host: &mut Host, user: &str, mode, owner: Option<&str>| {
        let (path, user, owner) = (file.clone(), user.to_owned(), owner.map(str::to_owned));
        let effect = host.next_effect();
        host.call(&Request::SetAttributes { path, user, mode, owner, effect })
    };
    let Ok(Reply::Entry(entry)) = set(&mut host, "nobody", Some(0o640), None) else { panic!() };
    assert_eq!((entry.mode, entry.uid), (0o640, 65_534));
    is(set(&mut host, "nobody", None, Some("root")), AgentErrorKind::Denied);
    is(set(&mut host, "root", None, Some("no-such-user")), AgentErrorKind::NotFound);
    is(set(&mut host, "root", Some(0o10000), None), AgentErrorKind::Invalid);
    let Ok(Reply::Entry(entry)) = set(&mut host, "root", Some(0o4755), Some("root")) else { panic!() };
    assert_eq!((entry.mode, entry.uid, entry.gid), (0o4755, 0, 0), "the bits are not lost to the change of owner");
    is(set(&mut host, "nobody", Some(0o777), None), AgentErrorKind::Denied);
}
