//! Trees both ways as archives, as the users who count, and what is left when one breaks off.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use remuda_guest_proto::*;

use crate::files::{home, path, write};
use crate::host::*;

fn pack(host: &mut Host, path: &str, user: &str) -> Result<Vec<u8>, AgentError> {
    let call = host.next_call();
    host.request(call, &Request::PackTree { path: path.to_owned(), user: user.to_owned() });
    let Reply::Opened { length: 0, .. } = host.reply(call)? else { panic!("not opened") };
    host.wait_until("the end", |host| host.reads[&call].1.is_some());
    let (bytes, end) = host.reads.remove(&call).unwrap();
    assert_eq!(end.unwrap(), b"");
    Ok(bytes)
}

fn unpack_request(host: &mut Host, path: &str, user: &str, parents: bool) -> Request {
    let effect = host.next_effect();
    Request::UnpackTree { path: path.to_owned(), user: user.to_owned(), parents, effect }
}

#[test]
fn a_tree_goes_out_and_in() {
    let mut host = Host::bound();
    let home = home(&host);
    let tree = path(&host, "tree");
    fs::create_dir_all(format!("{tree}/a/b")).unwrap();
    fs::write(format!("{tree}/a/big"), vec![9; 5_000_000]).unwrap();
    fs::write(format!("{tree}/secret"), "root's").unwrap();
    fs::set_permissions(format!("{tree}/secret"), fs::Permissions::from_mode(0o600)).unwrap();
    std::os::unix::fs::symlink("/etc", format!("{tree}/link")).unwrap();
    for i in 0..3000 {
        fs::write(format!("{tree}/a/b/{i}"), i.to_string()).unwrap();
    }
    let bytes = pack(&mut host, &tree, "nobody").unwrap();
    let to = format!("{home}/x/y");
    let request = unpack_request(&mut host, &to, "nobody", false);
    assert_eq!(write(&mut host, &request, b"").unwrap_err().kind, AgentErrorKind::NotFound);
    let request = unpack_request(&mut host, &to, "nobody", true);
    let reply = write(&mut host, &request, &bytes);
    let Ok(Reply::Unpacked { files, directories, links, skipped, .. }) = &reply else { panic!("{reply:?}") };
    assert_eq!((*files, *directories, *links), (3001, 3, 1));
    assert!(skipped.len() == 1 && skipped[0].starts_with("secret: Permission denied"), "{skipped:?}");
    assert_eq!(fs::read(format!("{to}/a/b/2999")).unwrap(), b"2999");
    assert_eq!(fs::metadata(format!("{to}/a/big")).unwrap().uid(), 65_534, "nobody keeps nobody else's owners");
    assert_eq!(fs::read_link(format!("{to}/link")).unwrap(), Path::new("/etc"));
    // The same effect again is answered and not done.
    fs::remove_dir_all(&to).unwrap();
    assert_eq!(write(&mut host, &request, &bytes), reply);
    assert!(!Path::new(&to).exists());
    // As root all of it, with owners.
    std::os::unix::fs::chown(format!("{tree}/a/big"), Some(77), Some(78)).unwrap();
    let bytes = pack(&mut host, &tree, "root").unwrap();
    let request = unpack_request(&mut host, &to, "root", true);
    assert!(matches!(write(&mut host, &request, &bytes), Ok(Reply::Unpacked { files: 3002, .. })));
    assert_eq!(fs::metadata(format!("{to}/a/big")).unwrap().gid(), 78);
    assert!(host.memory() < 16 << 20, "{}", host.memory());
    // One file is an archive of one.
    let one = pack(&mut host, &format!("{tree}/a/b/7"), "nobody").unwrap();
    let request = unpack_request(&mut host, &format!("{home}/one"), "nobody", false);
    write(&mut host, &request, &one).unwrap();
    assert_eq!(fs::read(format!("{home}/one/7")).unwrap(), b"7");
}

#[test]
fn what_breaks_off_stays_as_far_as_it_came_and_is_told_so_to_the_next_host() {
    let mut host = Host::bound();
    let home = home(&host);
    let tree = path(&host, "tree");
    fs::create_dir(&tree).unwrap();
    fs::write(format!("{tree}/f"), vec![1; 100_000]).unwrap();
    let bytes = pack(&mut host, &tree, "root").unwrap();
    for how in ["cut", "broken off", "no archive"] {
        let to = format!("{home}/{how}");
        let request = unpack_request(&mut host, &to, "nobody", false);
        let call = host.next_call();
        host.request(call, &request);
        let sent = if how == "no archive" { &[1; 5000][..] } else { &bytes[..50_000] };
        host.send(Kind::HostData, call, sent);
        host.send(Kind::HostEnd, call, if how == "broken off" { vec![HOST_END_ABANDONED] } else { Vec::new() });
        let error = host.reply(call).unwrap_err();
        let kind = if how == "broken off" { AgentErrorKind::Failed } else { AgentErrorKind::Archive };
        assert!(error.kind == kind && error.message.contains("were unpacked and stay"), "{how}: {error:?}");
    }
    // A host that dies in the middle: the next one hears how far it came.
    let request = unpack_request(&mut host, &format!("{home}/died"), "nobody", false);
    let Request::UnpackTree { effect, .. } = request else { unreachable!() };
    let call = host.next_call();
    host.request(call, &request);
    host.send(Kind::HostData, call, &bytes[..50_000]);
    host.wait_until("credit", |host| host.credits.contains_key(&call));
    host.bind(&[]);
    let outcome = host.call(&Request::Outcome { effect }).unwrap_err();
    assert!(outcome.message.contains("has ended; 1 entries before it"), "{outcome:?}");
    assert!(pack(&mut host, "/dev/null", "root").unwrap_err().kind == AgentErrorKind::NotAFile);
    assert!(pack(&mut host, &format!("{home}/none"), "root").unwrap_err().kind == AgentErrorKind::NotFound);
}
