//! Calls with keys against a server that hangs up, answers late, or answers half: what is on disk, what is sent again,
//! and what the caller is told. The server here speaks HTTP by hand, since it must break it.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use remuda_client::{Client, ClientError, OnlyIf, Pending, PendingCall, WriteFile, wire};
use remuda_types::{ErrorCode, SandboxId};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const API_KEY: &str = "rmd_0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
const ID: &str = "c1@2026-10-08T12:00:00.000Z";
/// How long a lost server is looked for here; long enough that a busy machine does not reach it where it must not.
const LOST: Duration = Duration::from_secs(20);

/// What the server does with a request that it has read.
#[derive(Clone)]
enum Act {
    HangUp,
    HalfAnswer,
    Answer { status: u16, replayed: bool, body: String },
}

const STAT: &str = r#"{"path":"/f","kind":"file","size":9,"mode":420,"uid":1000,"gid":1000,"modified_at_ms":0}"#;

fn written(replayed: bool) -> Act {
    Act::Answer { status: 201, replayed, body: STAT.into() }
}

fn error(code: ErrorCode) -> Act {
    let body = format!(r#"{{"error":{{"code":"{code}","message":"m"}}}}"#);
    Act::Answer { status: code.http_status(), replayed: false, body }
}

/// One request as it was read, and the calls that were on disk at that moment.
#[derive(Debug)]
struct Seen {
    head: String,
    body: String,
    kept: Vec<PendingCall>,
}

impl Seen {
    fn key(&self) -> Option<&str> {
        self.head.lines().find_map(|line| line.strip_prefix("idempotency-key: "))
    }
}

struct Flaky {
    url: String,
    seen: Arc<Mutex<Vec<Seen>>>,
    pending: Pending,
    _directory: tempfile::TempDir,
}

impl Flaky {
    /// One connection for each act; none is listened to after the last one.
    async fn start(acts: Vec<Act>) -> Flaky {
        let directory = tempfile::tempdir().unwrap();
        let pending = Pending::at(directory.path().join("pending"));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (record, disk) = (seen.clone(), pending.clone());
        tokio::spawn(async move {
            for act in acts {
                let (mut stream, _) = listener.accept().await.unwrap();
                let (head, body) = read_request(&mut stream).await;
                let kept = disk.list().unwrap().into_iter().map(|found| found.call.unwrap()).collect();
                record.lock().unwrap().push(Seen { head, body, kept });
                answer(&mut stream, act).await;
            }
        });
        Flaky { url, seen, pending, _directory: directory }
    }

    fn client(&self) -> Client {
        Client::tcp(&self.url, API_KEY).unwrap().keeping(self.pending.clone()).looking_for(LOST)
    }

    fn seen(&self) -> Vec<Seen> {
        std::mem::take(&mut self.seen.lock().unwrap())
    }

    fn kept(&self) -> Vec<PendingCall> {
        self.pending.list().unwrap().into_iter().map(|found| found.call.unwrap()).collect()
    }
}

async fn read_request(stream: &mut TcpStream) -> (String, String) {
    let mut bytes = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let head = head.to_ascii_lowercase();
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
            let whole = match length {
                Some(length) => body.len() >= length,
                None if head.contains("transfer-encoding: chunked") => body.ends_with("0\r\n\r\n"),
                None => true,
            };
            if whole {
                return (head, body.to_owned());
            }
        }
        assert_ne!(stream.read_buf(&mut bytes).await.unwrap(), 0, "the client hung up in its request");
    }
}

async fn answer(stream: &mut TcpStream, act: Act) {
    let text = match act {
        Act::HangUp => return,
        Act::HalfAnswer => "HTTP/1.1 201 Created\r\ncontent-length: 1000\r\n\r\n{\"id\":".to_owned(),
        Act::Answer { status, replayed, body } => {
            let replay = if replayed { "idempotent-replay: true\r\n" } else { "" };
            let length = body.len();
            format!("HTTP/1.1 {status} X\r\nconnection: close\r\ncontent-length: {length}\r\n{replay}\r\n{body}")
        }
    };
    stream.write_all(text.as_bytes()).await.unwrap();
}

fn id() -> SandboxId {
    ID.parse().unwrap()
}

/// A call that changes something, with a body.
async fn change(client: &Client) -> Result<wire::FileStat, ClientError> {
    client.write_file(&id(), "/f", &WriteFile::default(), "some text").await
}

#[tokio::test]
async fn key_and_body_are_on_disk_before_a_call_is_sent_and_gone_when_it_is_answered() {
    let server = Flaky::start(vec![written(false)]).await;
    change(&server.client()).await.unwrap();
    let seen = server.seen();
    assert_eq!(seen.len(), 1);
    let kept = &seen[0].kept;
    assert_eq!(kept.len(), 1, "it must be kept before it is sent");
    assert_eq!(Some(kept[0].key.as_str()), seen[0].key());
    assert_eq!(kept[0].body, remuda_client::KeptBody::Text(seen[0].body.clone()));
    assert_eq!((kept[0].kind.as_str(), &kept[0].sandbox), ("write_file", &Some(id())));
    assert_eq!(kept[0].path, format!("/v1/sandboxes/{ID}/files?path=%2Ff"));
    assert!(!format!("{kept:?}").contains(&API_KEY[4..20]));
    assert_eq!(server.kept(), []);
}

#[tokio::test]
async fn a_lost_answer_is_asked_for_again_with_the_same_key_and_body() {
    let acts = vec![
        Act::HangUp,
        Act::HalfAnswer,
        error(ErrorCode::OperationInProgress),
        error(ErrorCode::ShuttingDown),
        Act::Answer { status: 502, replayed: false, body: "<html>Bad gateway".into() },
        written(true),
    ];
    let count = acts.len();
    let server = Flaky::start(acts).await;
    assert_eq!(change(&server.client()).await.unwrap().size, 9);
    let seen = server.seen();
    assert_eq!(seen.len(), count);
    assert!(seen[0].key().is_some());
    for each in &seen {
        assert_eq!((each.key(), &each.body), (seen[0].key(), &seen[0].body));
        assert_eq!(each.kept.len(), 1);
    }
    assert_eq!(server.kept(), []);
}

#[tokio::test]
async fn an_outcome_that_stays_unknown_names_its_key_and_stays_on_disk() {
    let server = Flaky::start(vec![Act::HangUp]).await;
    let client = server.client().looking_for(Duration::from_millis(300));
    let request = wire::CreateSandbox { memory_mib: Some(512), ..wire::CreateSandbox::default() };
    let unknown = client.create_sandbox(&request).await.unwrap_err();
    let ClientError::OutcomeUnknown { key, kept: Some(path), .. } = &unknown else { panic!("{unknown:?}") };
    assert!(unknown.outcome_unknown() && unknown.to_string().contains(key.as_str()), "{unknown}");
    let kept = server.kept();
    assert_eq!((kept.len(), &kept[0].key), (1, key));
    assert_eq!((kept[0].kind.as_str(), kept[0].content_type.as_deref()), ("create", Some("application/json")));
    assert_eq!(kept[0].body, remuda_client::KeptBody::Text(server.seen()[0].body.clone()));
    assert!(path.is_file());
}

#[tokio::test]
async fn a_kept_call_is_never_sent_again_without_its_conditions() {
    let server = Flaky::start(vec![Act::HangUp, written(true)]).await;
    let kept = {
        let once = Client::tcp(&server.url, API_KEY).unwrap().keeping(server.pending.clone());
        let new = WriteFile { only_if: OnlyIf::New, ..WriteFile::default() };
        once.looking_for(Duration::ZERO).write_file(&id(), "/f", &new, "some text").await.unwrap_err();
        server.kept().remove(0)
    };
    assert_eq!(kept.version, 2, "a program that knows nothing of conditions must not send it");
    Client::tcp(&server.url, API_KEY).unwrap().send_again(&kept).await.unwrap();
    assert!(server.seen().iter().all(|seen| seen.head.to_ascii_lowercase().contains("if-none-match: *")));
}

#[tokio::test]
async fn a_kept_call_is_sent_again_as_it_was() {
    let server = Flaky::start(vec![Act::HangUp, written(true)]).await;
    let kept = {
        let once = Client::tcp(&server.url, API_KEY).unwrap().keeping(server.pending.clone());
        change(&once.looking_for(Duration::ZERO)).await.unwrap_err();
        server.kept().remove(0)
    };
    // Another process, which knows nothing but what is on the disk.
    let other = Client::tcp("http://127.0.0.1:1", API_KEY).unwrap();
    assert!(matches!(other.send_again(&kept).await, Err(ClientError::Input(_))), "it was for another server");
    let answer = Client::tcp(&server.url, API_KEY).unwrap().send_again(&kept).await.unwrap();
    assert_eq!(answer["size"], 9);
    let seen = server.seen();
    assert_eq!((seen[0].key(), &seen[0].body), (seen[1].key(), &seen[1].body));
    let head = |seen: &Seen, name: &str| seen.head.lines().find(|line| line.starts_with(name)).map(str::to_owned);
    for name in ["put ", "content-length:"] {
        assert_eq!(head(&seen[0], name), head(&seen[1], name));
    }
}

#[tokio::test]
async fn a_refusal_is_an_outcome_and_is_not_repeated() {
    for code in [ErrorCode::SlotInUse, ErrorCode::LimitReached, ErrorCode::IdempotencyKeyConflict] {
        let server = Flaky::start(vec![error(code), written(false)]).await;
        let refused = change(&server.client()).await.unwrap_err();
        assert_eq!(refused.code(), Some(code));
        assert!(!refused.outcome_unknown(), "{refused:?}");
        assert_eq!((server.seen().len(), server.kept().len()), (1, 0));
    }
}

#[tokio::test]
async fn a_server_that_is_not_there_is_told_at_once_and_nothing_stays() {
    let server = Flaky::start(Vec::new()).await;
    // The listener is gone with its acts; then nothing listens there.
    while TcpStream::connect(server.url.trim_start_matches("http://")).await.is_ok() {
        tokio::task::yield_now().await;
    }
    let client = server.client().looking_for(Duration::from_secs(600));
    let error = tokio::time::timeout(LOST, change(&client)).await.unwrap().unwrap_err();
    assert!(error.no_server(), "{error:?}");
    assert_eq!(server.kept(), []);
}

#[tokio::test]
async fn a_call_that_cannot_be_kept_is_not_sent_but_a_removal_is() {
    let gone = Act::Answer { status: 204, replayed: false, body: String::new() };
    let server = Flaky::start(vec![gone]).await;
    let in_the_way = tempfile::NamedTempFile::new().unwrap();
    let client = server.client().keeping(Pending::at(in_the_way.path().join("pending")));
    let refused = change(&client).await.unwrap_err();
    assert!(matches!(refused, ClientError::NotKept { .. }) && !refused.outcome_unknown(), "{refused:?}");
    assert_eq!(server.seen().len(), 0);
    client.remove_file(&id(), "/f", false).await.unwrap();
    assert!(server.seen()[0].key().is_some());
}

#[tokio::test]
async fn the_callers_own_key_is_used_and_kept() {
    let server = Flaky::start(vec![written(false), written(false)]).await;
    let key: remuda_types::Key = "mine".parse().unwrap();
    change(&server.client().with_key(key.clone())).await.unwrap();
    // A client that repeats nothing sends it too.
    change(&Client::tcp(&server.url, API_KEY).unwrap().with_key(key)).await.unwrap();
    let seen = server.seen();
    assert_eq!((seen[0].key(), seen[0].kept.len()), (Some("mine"), 1));
    assert_eq!((seen[1].key(), seen[1].kept.len()), (Some("mine"), 0));
}

#[tokio::test]
async fn a_file_is_read_again_for_each_sending_and_known_by_its_digest() {
    let server = Flaky::start(vec![Act::HangUp, written(true)]).await;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    std::fs::write(&file, "some text").unwrap();
    server.client().write_file_from(&id(), "/f", &WriteFile::default(), &file).await.unwrap();
    let seen = server.seen();
    for each in &seen {
        assert!(each.body.contains("some text"), "{each:?}");
        assert!(each.head.contains("content-digest: sha-256=:"), "{each:?}");
        assert_eq!(each.key(), seen[0].key());
        assert!(is_of_file(&each.kept[0], &file), "the file is named and not copied: {:?}", each.kept);
    }
    assert_eq!(seen.len(), 2);
}

fn is_of_file(call: &PendingCall, file: &Path) -> bool {
    matches!(&call.body, remuda_client::KeptBody::File { path, .. } if path == file)
}

#[tokio::test]
async fn a_stream_is_sent_once_and_its_error_has_the_key() {
    let server = Flaky::start(vec![Act::HangUp]).await;
    let pieces = futures_util::stream::iter([Ok::<_, std::io::Error>("piece")]);
    let body = remuda_client::Body::wrap_stream(pieces);
    let error = server.client().write_file(&id(), "/f", &WriteFile::default(), body).await.unwrap_err();
    assert!(matches!(error, ClientError::OutcomeUnknown { .. }), "{error:?}");
    assert_eq!((server.seen().len(), server.kept().len()), (1, 1));
}

#[tokio::test]
async fn a_read_is_repeated_without_a_key() {
    let health = Act::Answer { status: 200, replayed: false, body: r#"{"status":"ok"}"#.into() };
    let server = Flaky::start(vec![Act::HangUp, Act::HalfAnswer, health]).await;
    assert_eq!(server.client().health().await.unwrap().status, "ok");
    let seen = server.seen();
    assert!(seen.len() == 3 && seen.iter().all(|each| each.key().is_none() && each.kept.is_empty()), "{seen:?}");
}
