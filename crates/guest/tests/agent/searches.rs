//! Looking through files as a user of the guest: what it may not see is told as such, what a link leads to is not looked
//! at, and every page is bounded.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};

use remuda_guest_proto::*;

use crate::files::{home, path};
use crate::host::*;

/// Paths, where to go on, and what was skipped.
type Globbed = (Vec<String>, Option<String>, Vec<String>);

fn globbed(host: &mut Host, glob: Glob) -> Result<Globbed, AgentError> {
    let call = host.next_call();
    host.request(call, &Request::Glob(glob));
    match host.reply(call)? {
        Reply::Found { entries, next, skipped } => {
            Ok((entries.into_iter().map(|entry| entry.path).collect(), next, skipped))
        }
        other => panic!("{other:?}"),
    }
}

fn grepped(host: &mut Host, grep: Grep) -> Result<(Vec<LineMatch>, u64, Option<String>), AgentError> {
    let call = host.next_call();
    host.request(call, &Request::Grep(grep));
    match host.reply(call)? {
        Reply::Matched { matches, files, next, .. } => Ok((matches, files, next)),
        other => panic!("{other:?}"),
    }
}

fn glob(path: &str, pattern: &str) -> Glob {
    Glob { path: path.to_owned(), user: "nobody".to_owned(), pattern: pattern.to_owned(), limit: 100, after: None }
}

fn grep(path: &str, pattern: &str) -> Grep {
    Grep {
        path: path.to_owned(),
        user: "nobody".to_owned(),
        pattern: pattern.to_owned(),
        literal: false,
        ignore_case: false,
        include: None,
        limit: 100,
        after: None,
    }
}

/// A tree with a secret beside it, a link to that, and a directory that is closed.
fn tree(host: &Host) -> String {
    let home = home(host);
    for directory in ["src/deep", "closed"] {
        fs::create_dir_all(format!("{home}/{directory}")).unwrap();
    }
    for (name, text) in [
        ("src/a.rs", "fn one() {}\nfn two() {}\n"),
        ("src/deep/b.rs", "fn three() {}\r\nlet x = \"fn\";\r\n"),
        ("src/.hidden.rs", "fn four() {}"),
        ("notes", "one\ntwo\n"),
        ("closed/secret.rs", "fn secret() {}\n"),
    ] {
        fs::write(format!("{home}/{name}"), text).unwrap();
    }
    fs::write(path(host, "outside.rs"), "fn outside() {}\n").unwrap();
    symlink("../outside.rs", format!("{home}/src/out.rs")).unwrap();
    symlink("..", format!("{home}/src/up")).unwrap();
    fs::set_permissions(format!("{home}/closed"), fs::Permissions::from_mode(0o700)).unwrap();
    home
}

#[test]
fn paths_are_found_by_their_names_below_a_directory_and_nowhere_else() {
    let mut host = Host::bound();
    let home = tree(&host);
    let (found, next, skipped) = globbed(&mut host, glob(&home, "**/*.rs")).unwrap();
    let expected = ["src/.hidden.rs", "src/a.rs", "src/deep/b.rs", "src/out.rs"].map(|name| format!("{home}/{name}"));
    assert_eq!((found, next), (expected.to_vec(), None));
    assert_eq!(skipped, [format!("{home}/closed: permission denied")]);
    assert_eq!(
        globbed(&mut host, glob(&home, "*")).unwrap().0,
        ["closed", "notes", "src"].map(|n| format!("{home}/{n}"))
    );
    // Page after page it is the same.
    let mut paged = Vec::new();
    let mut page = Glob { limit: 1, ..glob(&home, "**/*.rs") };
    loop {
        let (found, next, _) = globbed(&mut host, page.clone()).unwrap();
        paged.extend(found);
        match next {
            Some(next) => page.after = Some(next),
            None => break,
        }
    }
    assert_eq!(paged, expected);
    for (wrong, kind) in [
        (glob(&home, "["), AgentErrorKind::Invalid),
        (glob("relative", "*"), AgentErrorKind::Invalid),
        (glob(&format!("{home}/none"), "*"), AgentErrorKind::NotFound),
        (glob(&format!("{home}/notes"), "*"), AgentErrorKind::NotADirectory),
        (glob(&format!("{home}/closed"), "*"), AgentErrorKind::Denied),
        (Glob { limit: 0, ..glob(&home, "*") }, AgentErrorKind::Invalid),
        (Glob { after: Some("made up".into()), ..glob(&home, "*") }, AgentErrorKind::Invalid),
    ] {
        assert_eq!(globbed(&mut host, wrong.clone()).unwrap_err().kind, kind, "{wrong:?}");
    }
}

#[test]
fn lines_are_found_by_their_text_and_told_where_they_stand() {
    let mut host = Host::bound();
    let home = tree(&host);
    let told = |found: Vec<LineMatch>| -> Vec<(String, u64, u64, u64, String)> {
        let short = |one: LineMatch| {
            let path = one.path.strip_prefix(&format!("{home}/")).unwrap().to_owned();
            (path, one.line, one.offset, one.column, one.text.unwrap())
        };
        found.into_iter().map(short).collect()
    };
    let (found, files, next) = grepped(&mut host, grep(&home, r"^fn \w+")).unwrap();
    assert_eq!((files, next), (4, None));
    let expected = [
        ("src/.hidden.rs", 1, 0, 0, "fn four() {}"),
        ("src/a.rs", 1, 0, 0, "fn one() {}"),
        ("src/a.rs", 2, 12, 0, "fn two() {}"),
        ("src/deep/b.rs", 1, 0, 0, "fn three() {}"),
    ];
    let expected: Vec<_> = expected
        .map(|(path, line, offset, column, text)| (path.to_owned(), line, offset, column, text.to_owned()))
        .into();
    assert_eq!(told(found), expected);
    let mut paged = Vec::new();
    let mut page = Grep { limit: 1, ..grep(&home, r"^fn \w+") };
    loop {
        let (found, _, next) = grepped(&mut host, page.clone()).unwrap();
        paged.extend(found);
        match next {
            Some(next) => page.after = Some(next),
            None => break,
        }
    }
    assert_eq!(told(paged), expected);
    let two = Grep { include: Some("*".into()), ..grep(&home, "TWO") };
    assert!(grepped(&mut host, two.clone()).unwrap().0.is_empty());
    let two = Grep { ignore_case: true, ..two };
    assert_eq!(told(grepped(&mut host, two).unwrap().0), [("notes".to_owned(), 2, 4, 0, "two".to_owned())]);
    let literal = Grep { literal: true, ..grep(&home, "() {}") };
    assert_eq!(grepped(&mut host, literal).unwrap().0.len(), 4);
    // A single file, and one that may not be read.
    assert_eq!(grepped(&mut host, grep(&format!("{home}/notes"), "o")).unwrap().0.len(), 2);
    let closed = grep(&format!("{home}/closed/secret.rs"), "secret");
    assert_eq!(grepped(&mut host, closed).unwrap_err().kind, AgentErrorKind::Denied);
    assert_eq!(grepped(&mut host, grep(&home, "(")).unwrap_err().kind, AgentErrorKind::Invalid);
    // A place below a link, as only somebody else could have made it up, leads nowhere.
    let up: String = b"src/up/outside.rs".iter().map(|byte| format!("{byte:02x}")).collect();
    let made_up = Grep { after: Some(format!("{up}:1:0")), ..grep(&home, "outside") };
    assert!(grepped(&mut host, made_up).unwrap().0.is_empty());
}

#[test]
fn what_is_never_ready_is_not_waited_for_and_much_is_not_held() {
    let mut host = Host::bound();
    let home = home(&host);
    let fifo = std::ffi::CString::new(format!("{home}/fifo")).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, rustix::fs::Mode::from_raw_mode(0o666), 0)
        .unwrap();
    let mut long = vec![b'x'; 20 << 20];
    long.extend_from_slice(b" needle\n");
    fs::write(format!("{home}/long"), &long).unwrap();
    let (found, files, next) = grepped(&mut host, grep(&home, "needle")).unwrap();
    assert_eq!((found.len(), files, next), (1, 1, None));
    assert!(found[0].cut && found[0].text.as_ref().unwrap().len() <= MATCH_TEXT_BYTES_MAX);
    assert_eq!(found[0].offset + found[0].column, (20 << 20) + 1);
    assert!(host.memory() < 16 << 20, "{}", host.memory());
}
