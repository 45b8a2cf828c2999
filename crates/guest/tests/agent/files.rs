//! Files both ways, as the users who count.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::time::Duration;

use remuda_guest_proto::*;

use crate::host::*;

pub fn path(host: &Host, name: &str) -> String {
    host.root.path().join(name).to_str().unwrap().to_owned()
}

/// A directory of the test's that belongs to `nobody`.
pub fn home(host: &Host) -> String {
    fs::set_permissions(host.root.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let home = path(host, "home");
    fs::create_dir(&home).unwrap();
    std::os::unix::fs::chown(&home, Some(65_534), Some(65_534)).unwrap();
    home
}

fn write_request(host: &mut Host, path: &str, user: &str) -> Request {
    let effect = host.next_effect();
    Request::WriteFile {
        path: path.to_owned(),
        user: user.to_owned(),
        mode: None,
        parents: false,
        conditions: Conditions::default(),
        effect,
    }
}

pub fn write(host: &mut Host, request: &Request, bytes: &[u8]) -> ReplyResult {
    let call = host.next_call();
    host.request(call, request);
    let mut sent = 0u64;
    for chunk in bytes.chunks(200_000) {
        host.wait_until("credit or the answer", |host| {
            host.replies.contains_key(&call)
                || sent + chunk.len() as u64 - host.credits.get(&call).unwrap_or(&0) <= WINDOW_BYTES
        });
        if host.replies.contains_key(&call) {
            break;
        }
        host.send(Kind::HostData, call, chunk);
        sent += chunk.len() as u64;
    }
    host.send(Kind::HostEnd, call, []);
    host.reply(call)
}

fn read(host: &mut Host, path: &str, user: &str) -> Result<(Entry, Vec<u8>), AgentError> {
    let call = host.next_call();
    host.request(call, &Request::ReadFile { path: path.to_owned(), user: user.to_owned() });
    let entry = match host.reply(call)? {
        Reply::Entry(entry) => entry,
        other => panic!("{other:?}"),
    };
    host.wait_until("the end of the file", |host| host.reads[&call].1.is_some());
    let (bytes, end) = host.reads.remove(&call).unwrap();
    match end.unwrap().as_slice() {
        [] => Ok((entry, bytes)),
        error => Err(serde_json::from_slice(error).unwrap()),
    }
}

pub fn parts(dir: &Path) -> usize {
    fs::read_dir(dir).unwrap().flatten().filter(|e| e.file_name().to_string_lossy().contains(".part")).count()
}

#[test]
fn a_file_goes_in_and_out() {
    let mut host = Host::bound();
    let home = home(&host);
    for (name, length) in [("empty", 0), ("small", 10), ("large", 20_000_000)] {
        let path = format!("{home}/{name}");
        let bytes: Vec<u8> = (0..length).map(|i| (i * 7 % 251) as u8).collect();
        let request = write_request(&mut host, &path, "nobody");
        let Ok(Reply::Entry(entry)) = write(&mut host, &request, &bytes) else { panic!("not written") };
        assert_eq!((entry.size, entry.mode, entry.uid, entry.gid), (length as u64, 0o644, 65_534, 65_534));
        assert_eq!((entry.kind, entry.path.as_str()), (EntryKind::File, path.as_str()));
        let (entry, back) = read(&mut host, &path, "nobody").unwrap();
        assert!(back == bytes && entry.size == length as u64);
    }
    assert_eq!(parts(Path::new(&home)), 0);
    assert!(host.memory() < 12 << 20, "{}", host.memory());
}

#[test]
fn a_reader_that_does_not_acknowledge_gets_a_window() {
    let mut host = Host::bound();
    let big = path(&host, "big");
    fs::write(&big, vec![3; 5 << 20]).unwrap();
    host.credit = false;
    let calls: Vec<u32> = (0..10)
        .map(|_| {
            let call = host.next_call();
            host.request(call, &Request::ReadFile { path: big.clone(), user: "root".to_owned() });
            call
        })
        .collect();
    let at = |host: &Host, call: u32| host.reads.get(&call).map_or(0, |(bytes, _)| bytes.len() as u64);
    host.wait_until("the windows", |host| calls.iter().all(|call| at(host, *call) == WINDOW_BYTES));
    assert!(!host.read_within(Duration::from_millis(100)));
    assert!(host.memory() < 16 << 20, "{}", host.memory());
    host.credit = true;
    for call in &calls {
        host.send(Kind::HostCredit, *call, encode_credit(WINDOW_BYTES));
    }
    host.wait_until("the rest", |host| calls.iter().all(|call| at(host, *call) == 5 << 20));
    // One that has enough says so.
    host.credit = false;
    let call = host.next_call();
    host.request(call, &Request::ReadFile { path: big, user: "root".to_owned() });
    host.wait_until("a window", |host| at(host, call) == WINDOW_BYTES);
    host.send(Kind::HostEnd, call, [HOST_END_ABANDONED]);
    host.wait_until("the end", |host| host.reads[&call].1.is_some());
    let end = host.reads[&call].1.clone().unwrap();
    assert!(serde_json::from_slice::<AgentError>(&end).unwrap().message.contains("did not want"));
}

#[test]
fn the_users_permissions_count_and_nobody_elses() {
    let mut host = Host::bound();
    let home = home(&host);
    let secret = path(&host, "secret");
    fs::write(&secret, "root's").unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
    let denied = |reply: Result<(), AgentError>| assert_eq!(reply.unwrap_err().kind, AgentErrorKind::Denied);
    denied(read(&mut host, &secret, "nobody").map(drop));
    assert_eq!(read(&mut host, &secret, "root").unwrap().1, b"root's");
    let mine = path(&host, "mine");
    let request = write_request(&mut host, &mine, "nobody");
    denied(write(&mut host, &request, b"x").map(drop));
    let (user, secret_dir) = ("nobody".to_owned(), path(&host, "private"));
    fs::create_dir(&secret_dir).unwrap();
    fs::set_permissions(&secret_dir, fs::Permissions::from_mode(0o700)).unwrap();
    let below = format!("{secret_dir}/x");
    denied(host.call(&Request::List { path: secret_dir.clone(), user: user.clone(), limit: 9 }).map(drop));
    denied(host.call(&Request::Stat { path: below.clone(), user: user.clone(), digest: false }).map(drop));
    denied(
        host.call(&Request::Remove { path: secret.clone(), user: user.clone(), recursive: true, effect: None })
            .map(drop),
    );
    denied(
        host.call(&Request::MakeDirectory { path: below, user: user.clone(), parents: true, effect: None }).map(drop),
    );
    assert!(Path::new(&secret).exists());
    // And afterwards the thread is root's again.
    let made = format!("{home}/made");
    assert!(host.call(&Request::MakeDirectory { path: made.clone(), user, parents: false, effect: None }).is_ok());
    assert_eq!(fs::metadata(&made).unwrap().uid(), 65_534);
    assert_eq!(host.sh("root", "id -u"), "0\n");
    let roots = path(&host, "roots");
    let request = write_request(&mut host, &roots, "root");
    assert!(write(&mut host, &request, b"x").is_ok());
}

#[test]
fn a_write_replaces_whole_and_keeps_the_mode() {
    let mut host = Host::bound();
    let home = home(&host);
    let file = format!("{home}/tool");
    fs::write(&file, "old").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o4755)).unwrap();
    let link = format!("{home}/link");
    std::os::unix::fs::symlink("tool", &link).unwrap();
    let request = write_request(&mut host, &link, "nobody");
    let Ok(Reply::Entry(entry)) = write(&mut host, &request, b"new") else { panic!("not written") };
    assert_eq!((entry.path.as_str(), entry.mode), (file.as_str(), 0o755), "behind the link, without its set-id bit");
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    let effect = host.next_effect();
    let deep = format!("{home}/a/b/c");
    let request = Request::WriteFile {
        path: deep.clone(),
        user: "nobody".to_owned(),
        mode: Some(0o711),
        parents: true,
        conditions: Conditions::default(),
        effect,
    };
    let first = write(&mut host, &request, b"deep");
    let Ok(Reply::Entry(entry)) = &first else { panic!("{first:?}") };
    assert_eq!((entry.mode, fs::metadata(format!("{home}/a")).unwrap().uid()), (0o711, 65_534));
    // The same effect again is answered and not done.
    fs::write(&deep, "changed since").unwrap();
    assert_eq!(write(&mut host, &request, b"deep"), first);
    assert_eq!(fs::read(&deep).unwrap(), b"changed since");
}

#[test]
fn a_write_that_breaks_off_leaves_nothing() {
    let mut host = Host::bound();
    let home = home(&host);
    let file = format!("{home}/f");
    fs::write(&file, "old").unwrap();
    for how in ["broken off", "beyond the window"] {
        let request = write_request(&mut host, &file, "nobody");
        let call = host.next_call();
        host.request(call, &request);
        host.send(Kind::HostData, call, *b"half");
        host.wait_until("credit", |host| host.credits.contains_key(&call));
        assert_eq!(parts(Path::new(&home)), 1);
        if how == "broken off" {
            host.send(Kind::HostEnd, call, [HOST_END_ABANDONED]);
        } else {
            host.send(Kind::HostData, call, vec![0; WINDOW_BYTES as usize + 1]);
        }
        assert!(host.reply(call).is_err(), "{how}");
        assert_eq!((parts(Path::new(&home)), fs::read(&file).unwrap().as_slice()), (0, b"old".as_slice()));
    }
}

#[test]
fn what_is_no_regular_file_is_neither_read_nor_written() {
    let mut host = Host::bound();
    let home = home(&host);
    let fifo = format!("{home}/fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o666.into(), 0).unwrap();
    for bad in [fifo.as_str(), &home, "/dev/null", "/dev/zero"] {
        assert_eq!(read(&mut host, bad, "root").unwrap_err().kind, AgentErrorKind::NotAFile, "{bad}");
        let request = write_request(&mut host, bad, "root");
        assert_eq!(write(&mut host, &request, b"").unwrap_err().kind, AgentErrorKind::NotAFile, "{bad}");
    }
    let long = format!("/{}", "x".repeat(5000));
    for bad in ["relative", "", "/a\0b", long.as_str()] {
        assert_eq!(read(&mut host, bad, "root").unwrap_err().kind, AgentErrorKind::Invalid, "{bad:?}");
    }
    let missing = format!("{home}/missing");
    assert_eq!(read(&mut host, &missing, "nobody").unwrap_err().kind, AgentErrorKind::NotFound);
    assert_eq!(read(&mut host, &missing, "no-such-user").unwrap_err().kind, AgentErrorKind::NotFound);
    let request = write_request(&mut host, &format!("{missing}/f"), "nobody");
    assert_eq!(write(&mut host, &request, b"").unwrap_err().kind, AgentErrorKind::NotFound);
    let looped = format!("{home}/loop");
    std::os::unix::fs::symlink("loop", &looped).unwrap();
    let request = write_request(&mut host, &looped, "nobody");
    assert_eq!(write(&mut host, &request, b"").unwrap_err().kind, AgentErrorKind::Invalid);
}

#[test]
fn directories_are_made_listed_and_removed() {
    let mut host = Host::bound();
    let home = home(&host);
    let user = "nobody".to_owned();
    let made = format!("{home}/x/y");
    let make = |parents| Request::MakeDirectory { path: made.clone(), user: user.clone(), parents, effect: None };
    assert_eq!(host.call(&make(false)).unwrap_err().kind, AgentErrorKind::NotFound);
    for parents in [true, true] {
        let Ok(Reply::Entry(entry)) = host.call(&make(parents)) else { panic!("not made") };
        assert_eq!((entry.kind, entry.mode), (EntryKind::Directory, 0o755));
    }
    assert_eq!(host.call(&make(false)).unwrap_err().kind, AgentErrorKind::Exists);
    for name in ["b", "a", "d", "c"] {
        fs::write(format!("{made}/{name}"), name).unwrap();
    }
    std::os::unix::fs::symlink("/nowhere", format!("{made}/e")).unwrap();
    let list = |path: &str, limit| Request::List { path: path.to_owned(), user: user.clone(), limit };
    let listing = |reply: ReplyResult| match reply.unwrap() {
        Reply::Entries { entries, truncated } => {
            let names: Vec<String> = entries.iter().map(|e| e.path.rsplit('/').next().unwrap().to_owned()).collect();
            (names.concat(), truncated, entries)
        }
        other => panic!("{other:?}"),
    };
    let (names, truncated, entries) = listing(host.call(&list(&made, 100)));
    assert_eq!((names.as_str(), truncated), ("abcde", false));
    assert_eq!((entries[4].kind, entries[4].target.as_deref()), (EntryKind::Symlink, Some("/nowhere")));
    let (names, truncated, _) = listing(host.call(&list(&made, 3)));
    assert_eq!((names.as_str(), truncated), ("abc", true));
    assert_eq!(host.call(&list(&format!("{made}/a"), 3)).unwrap_err().kind, AgentErrorKind::NotADirectory);

    let remove =
        |path: &str, recursive| Request::Remove { path: path.to_owned(), user: user.clone(), recursive, effect: None };
    let x = format!("{home}/x");
    assert!(host.call(&remove(&x, false)).unwrap_err().message.contains("not empty"));
    let outside = path(&host, "outside");
    fs::create_dir(&outside).unwrap();
    fs::write(format!("{outside}/kept"), "").unwrap();
    std::os::unix::fs::symlink(&outside, format!("{made}/to-outside")).unwrap();
    // What root put there is the user's to remove only where the directory is the user's.
    assert_eq!(host.call(&remove(&x, true)), Ok(Reply::Done));
    assert!(!Path::new(&x).exists() && Path::new(&format!("{outside}/kept")).exists());
    assert_eq!(host.call(&remove(&x, true)).unwrap_err().kind, AgentErrorKind::NotFound);
    for bad in ["/", "/..", "/x/..", "x"] {
        assert_eq!(host.call(&remove(bad, true)).unwrap_err().kind, AgentErrorKind::Invalid, "{bad}");
    }
}

#[test]
fn a_tree_of_any_depth_is_removed_or_refused() {
    let mut host = Host::bound();
    let home = home(&host);
    let dig = |depth: usize| {
        format!("import os\nos.chdir('{home}')\nfor i in range({depth}): os.mkdir('d'); os.chdir('d')\n")
    };
    for (depth, fine) in [(300, true), (3000, false)] {
        let spawn = host.argv(&["python3", "-c", &dig(depth)]);
        assert_eq!(host.run(spawn).exited.unwrap().code, Some(0));
        let remove =
            Request::Remove { path: format!("{home}/d"), user: "root".to_owned(), recursive: true, effect: None };
        let reply = host.call(&remove);
        assert_eq!(reply.is_ok(), fine, "{depth}: {reply:?}");
    }
    assert_eq!(host.call(&Request::Ping), Ok(Reply::Done));
    // Not even the standard library's way manages that one.
    assert_eq!(host.sh("root", &format!("rm -rf {home}/d; ls {home}")), "");
}

#[test]
fn a_large_listing_fits_its_frame() {
    let mut host = Host::bound();
    let home = home(&host);
    for i in 0..12_000 {
        fs::write(format!("{home}/{}{i:05}", "n".repeat(200)), "").unwrap();
    }
    let reply = host.call(&Request::List { path: home, user: "nobody".to_owned(), limit: u32::MAX });
    let Ok(Reply::Entries { entries, truncated }) = reply else { panic!("{reply:?}") };
    assert!(truncated && entries.len() > 1000, "{}", entries.len());
    assert!(host.memory() < 24 << 20);
}

#[test]
fn too_many_file_calls_are_refused_and_places_come_back() {
    let mut host = Host::bound();
    let home = home(&host);
    let calls: Vec<u32> = (0..144)
        .map(|i| {
            let request = write_request(&mut host, &format!("{home}/{i}"), "nobody");
            let call = host.next_call();
            host.request(call, &request);
            call
        })
        .collect();
    host.wait_until("the refusals", |host| host.replies.len() == 16);
    for (_, reply) in host.replies.drain() {
        assert_eq!(reply.unwrap_err().kind, AgentErrorKind::Busy);
    }
    for call in &calls {
        host.send(Kind::HostEnd, *call, []);
    }
    host.wait_until("the others", |host| host.replies.len() == 128);
    assert!(host.replies.values().all(Result::is_ok));
    assert_eq!(fs::read_dir(&home).unwrap().count(), 128);
    assert!(host.call(&Request::Stat { path: home, user: "nobody".to_owned(), digest: false }).is_ok());
}

#[test]
fn deleted_open_files_are_named() {
    let mut host = Host::bound();
    // Not in /tmp, which would do no harm.
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let file = dir.path().join("held");
    let spawn = host.script("root", &format!("exec 5>{0}; rm {0}; echo ready; exec sleep 100", file.display()));
    let (channel, pid) = host.start(spawn);
    host.wait_for_output(channel, "ready");
    let expected = format!("process {pid} (sleep) holds {} open, which was deleted", file.display());
    // The program's name changes only with its exec.
    let until = std::time::Instant::now() + PATIENCE;
    loop {
        let reply = host.call(&Request::DeletedOpenFiles);
        let Ok(Reply::Sentences { sentences }) = reply else { panic!("{reply:?}") };
        if sentences.contains(&expected) {
            break;
        }
        assert!(std::time::Instant::now() < until, "{sentences:?}");
    }
}
