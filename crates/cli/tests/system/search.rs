//! Looking through files, watching them, and several changes at once, by the API and on the command line; and what becomes
//! of a batch whose server is killed.

use std::io::Write;
use std::process::Stdio;

use remuda_client::{FileWatch, FindFiles, FindText, WatchFiles, Watched, WriteFile};
use remuda_types::ErrorCode;
use remuda_types::wire::{ChangeFiles, FileChange, FileEventKind};

use crate::api::{Api, PATIENCE, refused};
use crate::restart::{KILL_AFTER_MS, Place, killed_after, settled};
use crate::world::{Answer, Server, text};

fn write(path: &str, contents: &str) -> FileChange {
    FileChange::Write {
        path: path.into(),
        text: Some(contents.into()),
        base64: None,
        mode: None,
        parents: true,
        if_match: None,
        new: false,
    }
}

#[tokio::test]
async fn files_are_found_by_name_and_text_page_after_page() {
    let api = Api::shared();
    let sandbox = api.create().await;
    let (id, client) = (&sandbox.id, &api.client);
    api.sh(id, "mkdir -p a/b && for i in $(seq 30); do echo \"line $i\" > a/b/f$i.txt; done; ln -s /etc a/etc; printf 'x\\0line 7' > a/bin").await;
    let (mut find, mut paths) =
        (FindFiles { pattern: "**/*.txt".into(), limit: Some(7), ..FindFiles::default() }, Vec::new());
    loop {
        let page = client.find_files(id, "/workspace", &find).await.unwrap();
        assert!(page.entries.len() <= 7);
        paths.extend(page.entries.into_iter().map(|entry| entry.path));
        match page.next_cursor {
            Some(cursor) => find.cursor = Some(cursor),
            None => break,
        }
    }
    let mut sorted = paths.clone();
    sorted.sort();
    sorted.dedup();
    assert_eq!((paths.len(), &paths), (30, &sorted));
    let grep = FindText { pattern: "line [17]$".into(), ..FindText::default() };
    let found = client.find_text(id, "/workspace", &grep).await.unwrap();
    let told: Vec<_> = found.matches.iter().map(|one| (one.path.as_str(), one.line, one.text.as_deref())).collect();
    assert_eq!(
        told,
        [
            ("/workspace/a/b/f1.txt", 1, Some("line 1")),
            ("/workspace/a/b/f7.txt", 1, Some("line 7")),
            ("/workspace/a/bin", 1, None)
        ]
    );
    assert_eq!((found.files_searched, found.next_cursor), (31, None));
    // As who it is: root's own files are root's.
    api.root(id, "mkdir -m 700 /workspace/mine; echo hers > /workspace/mine/f").await;
    let hers = FindText { pattern: "hers".into(), literal: true, ..FindText::default() };
    let found = client.find_text(id, "/workspace", &hers).await.unwrap();
    assert_eq!((found.matches.len(), found.skipped.len()), (0, 1), "{:?}", found.skipped);
    let as_root = FindText { user: Some("root".into()), ..hers };
    assert_eq!(client.find_text(id, "/workspace", &as_root).await.unwrap().matches.len(), 1);
    // All of a machine, where /proc and /sys would have no end.
    let all = FindFiles { pattern: "etc/passwd".into(), ..FindFiles::default() };
    let found = client.find_files(id, "/", &all).await.unwrap();
    assert_eq!(found.entries.iter().map(|entry| entry.path.as_str()).collect::<Vec<_>>(), ["/etc/passwd"]);
    for wrong in [FindText { pattern: "(".into(), ..FindText::default() }, FindText::default()] {
        refused(client.find_text(id, "/workspace", &wrong).await, ErrorCode::InvalidRequest);
    }
    let made_up = FindFiles { pattern: "*".into(), cursor: Some("x".repeat(9_000)), ..FindFiles::default() };
    refused(client.find_files(id, "/workspace", &made_up).await, ErrorCode::InvalidRequest);
    api.remove(id).await;
}

#[tokio::test]
async fn a_batch_has_a_result_for_each_change_and_is_made_once() {
    let api = Api::shared();
    let sandbox = api.create().await;
    let id = &sandbox.id;
    let changes = ChangeFiles {
        user: None,
        changes: vec![
            write("/workspace/src/a", "one"),
            FileChange::Mkdir { path: "/workspace/none/b".into(), parents: false },
            FileChange::Move { path: "/workspace/src/a".into(), to: "/workspace/src/b".into(), overwrite: false },
            write("/workspace/src/c", "three"),
        ],
    };
    let client = api.client.clone().repeating().with_key("batch-1".parse().unwrap());
    let made = client.change_files(id, &changes).await.unwrap();
    let codes: Vec<_> = made.results.iter().map(|one| one.error.as_ref().map(|error| error.code)).collect();
    assert_eq!(codes, [None, Some(ErrorCode::FileNotFound), None, None]);
    assert_eq!(made.results[0].digest, Some(format!("sha256:{}", api.sh(id, "sha256sum src/b | cut -c 1-64").await)));
    api.sh(id, "rm src/c").await;
    assert_eq!(client.change_files(id, &changes).await.unwrap(), made);
    assert_eq!(api.sh(id, "ls src").await, "b", "the second call makes nothing");
    let other = ChangeFiles { changes: vec![write("/workspace/src/a", "two")], ..ChangeFiles::default() };
    refused(client.change_files(id, &other).await, ErrorCode::IdempotencyKeyConflict);
    let huge =
        ChangeFiles { changes: vec![write("/workspace/h", &"a".repeat((1 << 20) + 1))], ..ChangeFiles::default() };
    refused(api.client.change_files(id, &huge).await, ErrorCode::TooLarge);
    refused(api.client.change_files(id, &ChangeFiles::default()).await, ErrorCode::InvalidRequest);
    api.remove(id).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_that_is_cut_off_anywhere_is_made_once_or_not_at_all() {
    let place = Place::new();
    let mut api = place.start();
    let id = api.create().await.id;
    for (n, after_ms) in KILL_AFTER_MS.into_iter().enumerate() {
        let path = format!("/v1/sandboxes/{id}/files/batch");
        let key = format!("batch-{n}");
        let changes = (0..20).map(|file| write(&format!("/workspace/d{n}/f{file}"), "x")).collect();
        let body = serde_json::to_string(&ChangeFiles { user: None, changes }).unwrap();
        api = killed_after(api, &place, after_ms, "POST", &path, &key, &body);
        let told = settled(&api, "POST", &path, &key, &body);
        let there = api.sh(&id, &format!("ls d{n} 2>/dev/null | wc -l")).await;
        match told.status {
            200 => assert_eq!(there, "20", "{after_ms}: {told:?}"),
            _ => assert_eq!((told.code(), there.as_str()), ("interrupted", "0"), "{after_ms}: {told:?}"),
        }
    }
}

#[test]
fn the_command_line_finds_and_changes_and_tells_by_its_exit_code() {
    let server = Server::start();
    let id = server.create();
    let batch = |input: &str| {
        let mut command = server.command(&["file", "batch", &id]);
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        process.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        Answer::of(process.wait_with_output().unwrap())
    };
    let made = batch(
        r#"{"changes":[{"op":"write","path":"/workspace/a/x.py","text":"import os\n","parents":true},
        {"op":"remove","path":"/workspace/none"}]}"#,
    );
    assert_eq!(made.code, 1, "one of them was not made");
    assert!(
        text(&made.stdout).starts_with("done    /workspace/a/x.py\nfailed  /workspace/none: "),
        "{}",
        text(&made.stdout)
    );
    batch(r#"{"changes":[{"op":"wirte","path":"/a"}]}"#).failed(2, "holds no changes");
    let at = format!("{id}:/workspace");
    let found = server.run(&["file", "glob", &at, "**/*.py"]);
    assert_eq!((found.code, text(&found.stdout).as_str()), (0, "/workspace/a/x.py\n"));
    let found = server.run(&["file", "grep", &at, "^import"]);
    assert_eq!((found.code, text(&found.stdout).as_str()), (0, "/workspace/a/x.py:1:import os\n"));
    assert_eq!(server.run(&["file", "grep", "--json", &at, "import"]).json()["matches"][0]["line"], 1);
    for none in [&["file", "grep", &at, "nothing like it"], &["file", "glob", &at, "*.rs"]] {
        let answer = server.run(none);
        assert_eq!((answer.code, answer.stdout.as_slice()), (1, &b""[..]));
    }
    server.run(&["file", "grep", &at, "("]).failed(2, "the pattern is none");
}

/// The next change that is not of a temporary kind.
async fn next(watch: &mut FileWatch) -> Watched {
    tokio::time::timeout(PATIENCE, watch.next()).await.expect("a change in time").unwrap().expect("the watch goes on")
}

fn event(kind: FileEventKind, path: &str) -> impl Fn(&Watched) -> bool + '_ {
    move |told| matches!(told, Watched::Event(event) if event.kind == kind && event.path == path)
}

async fn until(watch: &mut FileWatch, is: impl Fn(&Watched) -> bool) {
    while !is(&next(watch).await) {}
}

#[tokio::test]
async fn changes_are_told_as_they_happen_and_a_reader_goes_on_where_it_was() {
    use FileEventKind::{Changed, Created, Gone, Moved, Removed};
    let api = Api::shared();
    let sandbox = api.create().await;
    let (id, client) = (&sandbox.id, &api.client);
    api.sh(id, "mkdir -p /workspace/w/old").await;
    let asked = WatchFiles { recursive: true, ..WatchFiles::default() };
    let mut watch = client.watch_files(id, "/workspace/w", &asked).await.unwrap();
    api.sh(id, "cd w; echo a > f; mkdir -p new/deep; echo b > old/g").await;
    until(&mut watch, event(Created, "/workspace/w/f")).await;
    until(&mut watch, event(Created, "/workspace/w/new")).await;
    until(&mut watch, event(Changed, "/workspace/w/old/g")).await;
    api.sh(id, "cd w; echo c > new/deep/h").await;
    until(&mut watch, event(Created, "/workspace/w/new/deep/h")).await;
    // By the API it is the same: a file is written beside its place and moved there.
    client.write_file(id, "/workspace/w/f", &WriteFile::default(), "by the api").await.unwrap();
    until(&mut watch, event(Moved, "/workspace/w/f")).await;
    // While nobody reads, everything is kept.
    let place = watch.last().map(str::to_owned);
    drop(watch);
    api.sh(id, "cd w; mv new newer; echo d > newer/deep/i; rm f").await;
    let back = WatchFiles { after: place, ..asked.clone() };
    let mut watch = client.watch_files(id, "/workspace/w", &back).await.unwrap();
    let moved = loop {
        match next(&mut watch).await {
            Watched::Event(event) if event.kind == Moved => break event,
            Watched::Event(_) => {}
            Watched::Missed => panic!("nothing was missed"),
        }
    };
    assert_eq!(
        (moved.path.as_str(), moved.from.as_deref(), moved.directory),
        ("/workspace/w/newer", Some("/workspace/w/new"), true)
    );
    until(&mut watch, event(Created, "/workspace/w/newer/deep/i")).await;
    until(&mut watch, event(Removed, "/workspace/w/f")).await;
    // A place that nobody knows: what was missed can't be told, and so that is.
    let lost = WatchFiles { after: Some("0123456789abcdef-7".into()), ..asked };
    let mut other = client.watch_files(id, "/workspace/w", &lost).await.unwrap();
    assert_eq!(next(&mut other).await, Watched::Missed);
    api.sh(id, "rm -r w").await;
    until(&mut watch, event(Gone, "/workspace/w")).await;
    assert_eq!(tokio::time::timeout(PATIENCE, watch.next()).await.unwrap().unwrap(), None);
    refused(client.watch_files(id, "/workspace/w", &WatchFiles::default()).await, ErrorCode::FileNotFound);
    api.remove(id).await;
}

#[tokio::test]
async fn watches_are_limited_and_end_with_their_machine() {
    let api = Api::own();
    let id = &api.create().await.id;
    let mut watches = Vec::new();
    for _ in 0..16 {
        watches.push(api.client.watch_files(id, "/workspace", &WatchFiles::default()).await.unwrap());
    }
    refused(api.client.watch_files(id, "/workspace", &WatchFiles::default()).await, ErrorCode::LimitReached);
    // Others of the sandbox's calls have their places still.
    api.client.write_file(id, "/workspace/f", &WriteFile::default(), "x").await.unwrap();
    for watch in &mut watches {
        until(watch, |told| matches!(told, Watched::Event(event) if event.path == "/workspace/f")).await;
    }
    api.remove(id).await;
    for watch in &mut watches {
        while tokio::time::timeout(PATIENCE, watch.next()).await.unwrap().unwrap().is_some() {}
    }
}
