//! Several changes of files in one call: a result for each, and all of them one effect.

use std::fs;

use remuda_guest_proto::*;

use crate::files::{home, parts};
use crate::host::*;

fn write(path: &str, base64: &str) -> Change {
    Change::Write {
        path: path.to_owned(),
        base64: base64.to_owned(),
        mode: None,
        parents: false,
        conditions: Conditions::default(),
    }
}

fn made(host: &mut Host, changes: &[Change], effect: u64) -> Vec<Result<Option<Changed>, AgentErrorKind>> {
    let call = host.next_call();
    let batch = Batch { user: "nobody".to_owned(), changes: changes.to_vec(), effect };
    host.request(call, &Request::Batch(batch));
    match host.reply(call).unwrap() {
        Reply::Changed { results } => results.into_iter().map(|result| result.map_err(|error| error.kind)).collect(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn each_change_has_a_result_and_one_that_fails_stops_no_other() {
    let mut host = Host::bound();
    let home = home(&host);
    let at = |name: &str| format!("{home}/{name}");
    let only_new = Change::Write {
        path: at("a"),
        base64: "Yg==".to_owned(),
        mode: None,
        parents: false,
        conditions: Conditions { matches: None, matches_not: Some(Contents::Any) },
    };
    let changes = [
        write(&at("a"), "YQ=="),
        only_new,
        write(&at("none/b"), "YQ=="),
        write(&at("c"), "no base64"),
        Change::MakeDirectory { path: at("d"), parents: false },
        Change::Move { path: at("a"), to: at("d/a"), overwrite: false },
        Change::SetAttributes { path: at("d/a"), mode: Some(0o600), owner: None },
        Change::Remove { path: at("missing"), recursive: false },
        write("/etc/not-mine", "YQ=="),
        write(&at("e"), "ZQ=="),
    ];
    let effect = host.next_effect();
    let results = made(&mut host, &changes, effect);
    let kinds: Vec<_> = results.iter().map(|result| result.as_ref().err().copied()).collect();
    use AgentErrorKind::*;
    assert_eq!(
        kinds,
        [None, Some(Condition), Some(NotFound), Some(Invalid), None, None, None, Some(NotFound), Some(Denied), None]
    );
    let written = results[0].as_ref().unwrap().as_ref().unwrap();
    let of_a = "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb";
    assert_eq!((written.size, written.digest.as_deref()), (1, Some(of_a)));
    assert_eq!(fs::read_to_string(at("d/a")).unwrap(), "a");
    assert_eq!(fs::read_to_string(at("e")).unwrap(), "e");
    assert_eq!(parts(std::path::Path::new(&home)), 0);
    // Asked for again it is told again, and nothing is done.
    fs::remove_file(at("e")).unwrap();
    assert_eq!(made(&mut host, &changes, effect), results);
    assert!(!fs::exists(at("e")).unwrap());
}

#[test]
fn more_than_fits_is_refused_and_the_rest_is_made() {
    let mut host = Host::bound();
    let home = home(&host);
    // Half of what one call may write, and a little.
    let half = "A".repeat((600 << 10) / 3 * 4);
    let changes =
        [write(&format!("{home}/a"), &half), write(&format!("{home}/b"), &half), write(&format!("{home}/c"), "YQ==")];
    let effect = host.next_effect();
    let results = made(&mut host, &changes, effect);
    assert_eq!(results[1], Err(AgentErrorKind::Invalid));
    assert!(results[0].is_ok() && results[2].is_ok());
    let call = host.next_call();
    let many = vec![write("/a", ""); CHANGES_MAX + 1];
    let effect = host.next_effect();
    host.request(call, &Request::Batch(Batch { user: "nobody".to_owned(), changes: many, effect }));
    assert_eq!(host.reply(call).unwrap_err().kind, AgentErrorKind::Invalid);
}
