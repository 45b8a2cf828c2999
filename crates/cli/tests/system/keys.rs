//! One key, one outcome: for every call that changes something, repeated, at once, with a lost answer, with another
//! request. Must speak HTTP by hand, since what is looked at is what a foreign client would see.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use remuda_client::SandboxFilter;
use remuda_types::SandboxId;
use serde_json::{Value, json};

use crate::api::{Api, PATIENCE};
use crate::world::Server;

/// What was answered to a keyed call.
#[derive(Debug, Clone, PartialEq)]
pub struct Told {
    pub status: u16,
    pub replayed: bool,
    pub body: Value,
}

impl Told {
    pub fn code(&self) -> &str {
        self.body["error"]["code"].as_str().unwrap_or("")
    }
}

pub fn begin(server: &Server, method: &str, path: &str, key: &str, body: &str) -> UnixStream {
    let mut socket = UnixStream::connect(server.data_dir.join("remuda.sock")).unwrap();
    write!(
        socket,
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Idempotency-Key: {key}\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    socket
}

pub fn keyed(server: &Server, method: &str, path: &str, key: &str, body: &str) -> Told {
    let mut answer = String::new();
    begin(server, method, path, key, body).read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{answer:?}"));
    let head = head.to_ascii_lowercase();
    Told {
        status: head.split(' ').nth(1).unwrap().parse().unwrap(),
        replayed: head.contains("\r\nidempotent-replay: true"),
        body: serde_json::from_str(body).unwrap_or(Value::Null),
    }
}

/// Sends a call and does not stay for the answer; then sends it until it has one.
fn lost_and_found(server: &Server, method: &str, path: &str, key: &str, body: &str) -> Told {
    drop(begin(server, method, path, key, body));
    let begun = std::time::Instant::now();
    loop {
        let told = keyed(server, method, path, key, body);
        if told.code() != "operation_in_progress" {
            // Which of both calls was served first, nobody can tell; what they are told is the same.
            return Told { replayed: true, ..told };
        }
        assert!(told.body["error"]["details"]["operation"].as_str().unwrap().starts_with("op-"));
        assert!(begun.elapsed() < PATIENCE, "{told:?}");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

fn operations(api: &Api, key: &str) -> Vec<Value> {
    let (status, body) = api.raw("GET", &format!("/v1/operations?key={key}"), "", "");
    assert_eq!(status, 200, "{body}");
    body["operations"].as_array().unwrap().clone()
}

const SMALL: &str = r#"{"memory_mib":512}"#;

#[tokio::test]
async fn a_create_whose_answer_is_lost_is_one_create() {
    let api = Api::own();
    let first = lost_and_found(&api.server, "POST", "/v1/sandboxes", "k", SMALL);
    assert_eq!((first.status, first.replayed), (201, true), "{first:?}");
    let again = keyed(&api.server, "POST", "/v1/sandboxes", "k", SMALL);
    assert_eq!(again, first);
    let all = SandboxFilter { include_ended: true, ..SandboxFilter::default() };
    let listed = api.client.list_sandboxes(&all).await.unwrap();
    assert_eq!(listed.len(), 1, "{listed:?}");
    assert_eq!(first.body["id"], listed[0].id.to_string());
    let other = keyed(&api.server, "POST", "/v1/sandboxes", "k", r#"{"memory_mib":513}"#);
    assert_eq!((other.status, other.code()), (422, "idempotency_key_conflict"));
    // Its outcome stands also when what it made is gone.
    api.remove(&listed[0].id).await;
    assert_eq!(keyed(&api.server, "POST", "/v1/sandboxes", "k", SMALL), first);
    assert_eq!(api.client.list_sandboxes(&SandboxFilter::default()).await.unwrap(), []);
}

#[tokio::test]
async fn many_at_once_with_one_key_are_one_create() {
    let api = Api::own();
    let calls: Vec<_> = (0..8)
        .map(|_| {
            let server = api.server.clone();
            std::thread::spawn(move || keyed(&server, "POST", "/v1/sandboxes", "k", SMALL))
        })
        .collect();
    let told: Vec<Told> = calls.into_iter().map(|call| call.join().unwrap()).collect();
    assert_eq!(told.iter().filter(|told| told.status == 201 && !told.replayed).count(), 1, "{told:?}");
    for other in told.iter().filter(|told| told.status != 201) {
        assert_eq!((other.status, other.code()), (409, "operation_in_progress"));
    }
    assert_eq!(api.client.list_sandboxes(&SandboxFilter::default()).await.unwrap().len(), 1);
    let found = operations(&api, "k");
    assert_eq!((found.len(), &found[0]["state"]), (1, &json!("done")));
}

#[tokio::test]
async fn a_command_with_a_key_runs_once_and_is_waited_for_by_each_call() {
    let api = Api::own();
    let id = api.create().await.id;
    let path = format!("/v1/sandboxes/{id}/executions");
    let body = json!({ "command": "echo run >> /workspace/runs; sleep 0.3; echo done", "wait_ms": 60_000 });
    let first = lost_and_found(&api.server, "POST", &path, "k", &body.to_string());
    assert_eq!((first.status, first.replayed, &first.body["stdout"]), (201, true, &json!("done\n")), "{first:?}");
    // How long is waited is no part of the request.
    let at_once = json!({ "command": body["command"] }).to_string();
    let again = keyed(&api.server, "POST", &path, "k", &at_once);
    assert_eq!((again.status, again.replayed, &again.body["id"]), (201, true, &first.body["id"]));
    assert_eq!(api.sh(&id, "cat /workspace/runs").await, "run");
    let refused = keyed(&api.server, "POST", &path, "bad", r#"{"argv":["/no/such"]}"#);
    assert_eq!((refused.status, refused.code(), refused.replayed), (422, "spawn_failed", false));
    let refused_again = keyed(&api.server, "POST", &path, "bad", r#"{"argv":["/no/such"]}"#);
    assert_eq!(refused_again, Told { replayed: true, ..refused });
    // The outcome outlives the sandbox.
    api.remove(&id).await;
    let gone = keyed(&api.server, "POST", &path, "k", &at_once);
    assert_eq!((gone.status, gone.replayed, &gone.body["id"]), (201, true, &first.body["id"]), "{gone:?}");
    assert_eq!(gone.body["state"], "exited");
    assert_eq!(keyed(&api.server, "POST", &path, "new", &at_once).code(), "generation_gone");
}

#[tokio::test]
async fn a_capture_whose_answer_is_lost_is_one_snapshot() {
    let api = Api::own();
    let id = api.create().await.id;
    let path = format!("/v1/sandboxes/{id}/snapshots");
    let told: Vec<Told> =
        (0..3).map(|_| lost_and_found(&api.server, "POST", &path, "k", r#"{"name":"one"}"#)).collect();
    for each in &told {
        assert_eq!((each.status, &each.body), (201, &told[0].body), "{told:?}");
    }
    let all = api.client.snapshots(true).await.unwrap();
    assert_eq!(all.len(), 1, "{all:?}");
    assert_eq!(api.sh(&id, "echo alive").await, "alive");
    // Removed with a key, and removed once.
    let place = format!("/v1/snapshots/{}", all[0].id);
    let removed = keyed(&api.server, "DELETE", &place, "r", "");
    assert_eq!((removed.status, &removed.body["result"]), (200, &json!("removed")), "{removed:?}");
    assert_eq!(keyed(&api.server, "DELETE", &place, "r", ""), Told { replayed: true, ..removed });
    assert_eq!(keyed(&api.server, "DELETE", &place, "s", "").body["result"], "already_absent");
    assert_eq!(api.captured(), Vec::<String>::new());
}

#[tokio::test]
async fn a_fork_whose_answer_is_lost_is_one_fork() {
    let api = Api::own();
    let id = api.create().await.id;
    let path = format!("/v1/sandboxes/{id}/forks");
    let first = lost_and_found(&api.server, "POST", &path, "k", r#"{"count":2}"#);
    assert_eq!((first.status, first.replayed), (201, true), "{first:?}");
    let again = keyed(&api.server, "POST", &path, "k", r#"{"count":2}"#);
    assert_eq!(again, first);
    let living = api.client.list_sandboxes(&SandboxFilter::default()).await.unwrap();
    assert_eq!(living.len(), 3, "{living:?}");
    // Each branch is an operation with a key of its own.
    let fork = &operations(&api, "k")[0];
    let whole = fork["id"].as_str().unwrap();
    for (number, branch) in first.body["branches"].as_array().unwrap().iter().enumerate() {
        let part = &operations(&api, &format!("{whole}-{}", number + 1))[0];
        assert_eq!((&part["parent"], &part["kind"]), (&fork["id"], &json!("branch")));
        assert_eq!(part["result"]["id"], branch["sandbox"]["id"]);
    }
}

#[tokio::test]
async fn a_removal_with_a_key_stays_the_one_that_removed() {
    let api = Api::own();
    let id = api.create().await.id;
    let path = format!("/v1/sandboxes/{id}");
    let first = lost_and_found(&api.server, "DELETE", &path, "k", "");
    assert_eq!((first.status, &first.body["result"]), (200, &json!("removed")), "{first:?}");
    assert_eq!(keyed(&api.server, "DELETE", &path, "k", ""), first);
    assert_eq!(keyed(&api.server, "DELETE", &path, "other", "").body["result"], "already_absent");
    // The same key for the slot's next generation is another key.
    let slot = id.slot.to_string();
    let next =
        keyed(&api.server, "POST", "/v1/sandboxes", "n", &json!({ "slot": slot, "memory_mib": 512 }).to_string());
    let next: SandboxId = serde_json::from_value(next.body["id"].clone()).unwrap();
    assert_eq!(keyed(&api.server, "DELETE", &path, "k", ""), first);
    assert_eq!(api.sh(&next, "echo alive").await, "alive");
    let removed = keyed(&api.server, "DELETE", &format!("/v1/sandboxes/{next}"), "k", "");
    assert_eq!((removed.replayed, &removed.body["result"]), (false, &json!("removed")), "{removed:?}");
}

#[tokio::test]
async fn files_are_written_made_and_removed_once() {
    let api = Api::own();
    let id = api.create().await.id;
    let files = format!("/v1/sandboxes/{id}/files");
    let at = |path: &str| format!("{files}?path={path}");
    let written = keyed(&api.server, "PUT", &at("/workspace/a"), "k", "first");
    assert_eq!((written.status, written.replayed), (201, false), "{written:?}");
    api.sh(&id, "echo -n mine > /workspace/a").await;
    // A repeated write is told from another by its body, and neither is written.
    assert_eq!(keyed(&api.server, "PUT", &at("/workspace/a"), "k", "first"), Told { replayed: true, ..written });
    assert_eq!(keyed(&api.server, "PUT", &at("/workspace/a"), "k", "other").code(), "idempotency_key_conflict");
    assert_eq!(keyed(&api.server, "PUT", &at("/workspace/b"), "k", "first").code(), "idempotency_key_conflict");
    assert_eq!(api.sh(&id, "cat /workspace/a; ls /workspace").await, "minea");

    let made = keyed(&api.server, "POST", &format!("{files}/mkdir?path=/workspace/d"), "k", "");
    assert_eq!((made.status, made.replayed), (201, false), "{made:?}");
    let again = keyed(&api.server, "POST", &format!("{files}/mkdir?path=/workspace/d"), "k", "");
    assert_eq!(again, Told { replayed: true, ..made });
    let removed = keyed(&api.server, "DELETE", &at("/workspace/a"), "k", "");
    assert_eq!((removed.status, removed.replayed), (204, false), "{removed:?}");
    api.sh(&id, "echo again > /workspace/a").await;
    assert_eq!(keyed(&api.server, "DELETE", &at("/workspace/a"), "k", ""), Told { replayed: true, ..removed });
    assert_eq!(api.sh(&id, "cat /workspace/a").await, "again");
}

#[tokio::test]
async fn pausing_resuming_and_signals_happen_once_for_a_key() {
    let api = Api::own();
    let id = api.create().await.id;
    let path = |call: &str| format!("/v1/sandboxes/{id}/{call}");
    let paused = keyed(&api.server, "POST", &path("pause"), "k", "");
    assert_eq!((paused.status, &paused.body["state"]), (200, &json!("paused")), "{paused:?}");
    api.client.resume(&id).await.unwrap();
    // What was asked once is not done again.
    assert_eq!(keyed(&api.server, "POST", &path("pause"), "k", ""), Told { replayed: true, ..paused });
    assert_eq!(api.sh(&id, "echo runs").await, "runs");
    let script = "trap 'echo got >> /workspace/got' USR1; echo ready; while :; do sleep 0.05; done";
    let (execution, _) = api.background(&id, crate::api::detached(script)).await;
    let signal = path(&format!("executions/{execution}/signal"));
    let sent = keyed(&api.server, "POST", &signal, "k", r#"{"signal":10}"#);
    assert_eq!(sent.status, 200, "{sent:?}");
    api.sh(&id, "while [ ! -s /workspace/got ]; do sleep 0.02; done").await;
    assert!(keyed(&api.server, "POST", &signal, "k", r#"{"signal":10}"#).replayed);
    let cancelled = keyed(&api.server, "DELETE", &path(&format!("executions/{execution}")), "k", "");
    assert_eq!((cancelled.status, &cancelled.body["exit_code"]), (200, &json!(137)), "{cancelled:?}");
    assert_eq!(api.sh(&id, "cat /workspace/got").await, "got");
}

#[tokio::test]
async fn a_refused_call_leaves_its_key_free() {
    let api = Api::own();
    let first = api.create().await;
    let body = json!({ "slot": first.id.slot, "memory_mib": 512 }).to_string();
    assert_eq!(keyed(&api.server, "POST", "/v1/sandboxes", "k", &body).code(), "slot_in_use");
    assert_eq!(operations(&api, "k"), Vec::<Value>::new());
    api.remove(&first.id).await;
    let made = keyed(&api.server, "POST", "/v1/sandboxes", "k", &body);
    assert_eq!((made.status, made.replayed), (201, false), "{made:?}");
}
