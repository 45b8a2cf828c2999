//! Access keys against real sandboxes: two accounts, narrowed keys, quotas, and the commands. What each call needs is
//! held against every route in the gateway's own tests.

use std::fs;
use std::net::TcpStream;

use remuda_client::wire::{
    Branch, CreateAccessKey, CreateSandbox, CreateSnapshot, ForkSandbox, Labels, RestoreSnapshot,
};
use remuda_client::{Client, SandboxFilter};
use remuda_types::{AccessScope, ErrorCode, Label, Narrowing, SandboxId, SnapshotMode};
use serde_json::{Value, json};

use crate::api::{Api, exchange, fork_of, refused, script_of};
use crate::world::{Answer, Server, remuda};

/// A client with a key of its own.
#[derive(Clone)]
struct Keyed {
    client: Client,
    address: String,
    secret: String,
}

impl std::ops::Deref for Keyed {
    type Target = Client;
    fn deref(&self) -> &Client {
        &self.client
    }
}

impl Keyed {
    /// With a key that the operator makes; it may do all but see the account's usage unless it is changed.
    async fn by(api: &Api, change: impl FnOnce(&mut CreateAccessKey)) -> Keyed {
        let scopes = AccessScope::ALL.iter().copied().filter(|scope| *scope != AccessScope::Usage).collect();
        let mut request = CreateAccessKey { scopes, narrowing: None, label: None, expires_in_ms: None, account: None };
        change(&mut request);
        let secret = api.client.create_access_key(&request).await.unwrap().secret;
        let url = api.server.url();
        let address = url.strip_prefix("http://").unwrap().to_owned();
        Keyed { client: Client::tcp(&url, &secret).unwrap(), address, secret }
    }

    /// One exchange written by hand.
    fn get(&self, path: &str) -> (u16, Value) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        exchange(&mut stream, "GET", path, &format!("Authorization: Bearer {}\r\n", self.secret), "")
    }

    /// Makes a sandbox under an idempotency key.
    fn create(&self, key: &str, request: &Value) -> (u16, Value) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let headers = format!("Authorization: Bearer {}\r\nIdempotency-Key: {key}\r\n", self.secret);
        exchange(&mut stream, "POST", "/v1/sandboxes", &headers, &request.to_string())
    }
}

fn small(slot: &str, labels: &[(&str, &str)]) -> CreateSandbox {
    let labels = labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    CreateSandbox { slot: Some(slot.parse().unwrap()), labels, memory_mib: Some(256), ..CreateSandbox::default() }
}

fn files_of(name: &str, labels: &Labels) -> CreateSnapshot {
    CreateSnapshot {
        name: Some(name.into()),
        mode: Some(SnapshotMode::Filesystem),
        labels: labels.clone(),
        ..CreateSnapshot::default()
    }
}

async fn ids(client: &Client, all: bool) -> Vec<SandboxId> {
    let filter = SandboxFilter { include_ended: all, ..SandboxFilter::default() };
    client.list_sandboxes(&filter).await.unwrap().into_iter().map(|sandbox| sandbox.id).collect()
}

/// Every call about a sandbox and what is in it says that there is none.
async fn unseen(client: &Client, id: &SandboxId) {
    let unseen = ErrorCode::SandboxNotFound;
    let error = refused(client.sandbox(id).await, unseen);
    assert_eq!(error.message, format!("there is no sandbox {id} here"));
    assert!(error.details.is_empty(), "{error:?}");
    refused(client.pause(id).await, unseen);
    refused(client.execute(id, &script_of("touch /workspace/was-here")).await, unseen);
    refused(client.executions(id).await, unseen);
    refused(client.read_file(id, "/etc/hostname").await.map(drop), unseen);
    refused(client.snapshot(id, &CreateSnapshot::default()).await, unseen);
    refused(client.fork(id, &fork_of(1)).await, unseen);
    refused(client.remove_sandbox(id).await, unseen);
}

/// An answer without the id that was asked for.
fn shape(answer: (u16, Value), id: &str) -> (u16, String) {
    (answer.0, answer.1.to_string().replace(id, "ID"))
}

#[tokio::test]
async fn two_accounts_cannot_see_guess_or_count_each_others_things() {
    let api = Api::own();
    let a = Keyed::by(&api, |request| request.account = Some("a".parse().unwrap())).await;
    let b = Keyed::by(&api, |request| request.account = Some("b".parse().unwrap())).await;
    let theirs = a.create_sandbox(&small("c1", &[])).await.unwrap();
    let execution = a.execute(&theirs.id, &script_of("echo secret")).await.unwrap();
    let snapshot = a.snapshot(&theirs.id, &files_of("kept", &Labels::new())).await.unwrap();

    // Not even that the slot or the name is taken.
    let own = b.create_sandbox(&small("c1", &[])).await.unwrap();
    b.snapshot(&own.id, &files_of("kept", &Labels::new())).await.unwrap();
    assert_eq!(ids(&b, true).await, std::slice::from_ref(&own.id));
    assert_eq!(b.snapshots(true).await.unwrap().len(), 1);
    unseen(&b, &theirs.id).await;
    refused(b.execution(&theirs.id, &execution.id, std::time::Duration::ZERO).await, ErrorCode::SandboxNotFound);
    refused(b.execution(&own.id, &execution.id, std::time::Duration::ZERO).await, ErrorCode::ExecutionNotFound);
    for call in
        [b.snapshot_info(snapshot.id.as_str()).await.map(drop), b.remove_snapshot(snapshot.id.as_str()).await.map(drop)]
    {
        refused(call, ErrorCode::SnapshotNotFound);
    }
    refused(b.restore(snapshot.id.as_str(), &RestoreSnapshot::default()).await, ErrorCode::SnapshotNotFound);

    // Operations neither by id nor by key, and the same key is another one.
    let created = a.create("shared-key", &json!({ "memory_mib": 256 })).1;
    let operations = a.get("/v1/operations?key=shared-key");
    let operation = operations.1["operations"][0]["id"].as_str().unwrap().to_owned();
    assert_eq!(a.get(&format!("/v1/operations/{operation}")).0, 200);
    let nobodys = "op-aaaaaaaaaaaaaaaaaaaa";
    let foreign = b.get(&format!("/v1/operations/{operation}"));
    assert_eq!(shape(foreign, &operation), shape(b.get(&format!("/v1/operations/{nobodys}")), nobodys));
    assert_eq!(b.get("/v1/operations?key=shared-key").1["operations"], json!([]));
    let other = b.create("shared-key", &json!({ "memory_mib": 128 })).1;
    assert_ne!(other["id"], created["id"]);

    // What had ended stays unseen, and nothing of theirs was touched.
    let second: SandboxId = created["id"].as_str().unwrap().parse().unwrap();
    a.remove_sandbox(&second).await.unwrap();
    unseen(&b, &second).await;
    refused(a.sandbox(&second).await, ErrorCode::GenerationGone);
    assert_eq!(api.client.list_sandboxes(&SandboxFilter::default()).await.unwrap(), [], "not even the operator's list");
    let here = a.execute(&theirs.id, &script_of("ls /workspace")).await.unwrap();
    assert_eq!(here.stdout.as_deref(), Some(""));
    assert_eq!(ids(&a, true).await, [theirs.id.clone(), second]);
    let used = |account: &str| {
        let account = account.parse().unwrap();
        let client = api.client.clone();
        async move { client.usage(Some(&account)).await.unwrap() }
    };
    let (of_a, of_b) = (used("a").await, used("b").await);
    let amount = |usage: &remuda_client::wire::Usage, name: &str| {
        usage.reserved.iter().find(|r| r.quota == name).unwrap().amount
    };
    assert_eq!((amount(&of_a, "sandboxes"), amount(&of_b, "sandboxes")), (1, 2));
    assert_eq!((amount(&of_a, "memory_mib"), amount(&of_b, "memory_mib")), (256, 384));
    assert_eq!((of_a.months[0].counters[0].amount, of_b.months[0].counters[0].amount), (2, 2));
}

#[tokio::test]
async fn a_narrowed_key_sees_its_own_and_makes_nothing_outside() {
    let api = Api::own();
    let team = Narrowing::Label(Label { name: "team".into(), value: "a".into() });
    let labels = Labels::from([("team".into(), "a".into())]);
    let inside = api.client.create_sandbox(&small("in", &[("team", "a")])).await.unwrap();
    let outside = api.client.create_sandbox(&small("out", &[("team", "b")])).await.unwrap();
    let in_snapshot = api.client.snapshot(&inside.id, &files_of("in", &labels)).await.unwrap();
    let out_snapshot = api.client.snapshot(&inside.id, &files_of("out", &Labels::new())).await.unwrap();

    let by_label = Keyed::by(&api, |request| request.narrowing = Some(team)).await;
    let slot = Narrowing::Slot("in".parse().unwrap());
    let by_slot = Keyed::by(&api, |request| request.narrowing = Some(slot)).await;
    let one = Narrowing::Sandbox(inside.id.clone());
    let by_id = Keyed::by(&api, |request| request.narrowing = Some(one)).await;
    for client in [&by_label, &by_slot, &by_id] {
        assert_eq!(ids(client, true).await, std::slice::from_ref(&inside.id));
        unseen(client, &outside.id).await;
        assert_eq!(client.execute(&inside.id, &script_of("echo here")).await.unwrap().stdout.unwrap(), "here\n");
    }
    let names = |client: &Client| {
        let client = client.clone();
        async move { client.snapshots(false).await.unwrap().into_iter().map(|s| s.name.unwrap()).collect::<Vec<_>>() }
    };
    assert_eq!(names(&by_label).await, ["in"], "a snapshot counts by its own labels");
    assert_eq!(names(&by_slot).await, ["in", "out"]);
    assert_eq!(names(&by_id).await, ["in", "out"]);
    refused(by_label.snapshot_info(out_snapshot.id.as_str()).await, ErrorCode::SnapshotNotFound);

    // What is made must be seen by its maker; each refusal says what to give.
    let remedy = |error: remuda_types::Error| error.remedy.unwrap();
    let forbidden = ErrorCode::Forbidden;
    let unlabelled = refused(by_label.create_sandbox(&small("new", &[("team", "b")])).await, forbidden);
    assert_eq!(remedy(unlabelled), "give the label team=a in the request");
    refused(by_label.snapshot(&inside.id, &files_of("x", &Labels::new())).await, forbidden);
    refused(by_label.fork(&inside.id, &fork_of(1)).await, forbidden);
    refused(by_label.restore("in", &RestoreSnapshot::default()).await, forbidden);
    assert_eq!(
        remedy(refused(by_slot.create_sandbox(&small("new", &[])).await, forbidden)),
        "give the slot in in the request"
    );
    refused(by_id.create_sandbox(&small("in", &[])).await, forbidden);
    refused(by_id.fork(&inside.id, &fork_of(1)).await, forbidden);
    assert_eq!(ids(&api.client, true).await.len(), 2, "what is refused makes nothing");

    let made = by_label.create_sandbox(&small("new", &[("team", "a")])).await.unwrap();
    let branches = ForkSandbox { labels: labels.clone(), ..fork_of(1) };
    let fork = by_label.fork(&made.id, &branches).await.unwrap();
    assert!(matches!(&fork.branches[0], Branch::Sandbox(branch) if branch.labels == labels), "{fork:?}");
    let restored = by_label.restore("in", &RestoreSnapshot { labels: labels.clone(), ..Default::default() }).await;
    assert_eq!(restored.unwrap().labels, labels);
    // A taken slot or name is said to be so, and not by whom.
    let error = refused(by_label.create_sandbox(&small("out", &[("team", "a")])).await, ErrorCode::SlotInUse);
    assert!(!serde_json::to_string(&error).unwrap().contains(&outside.id.to_string()), "{error:?}");
    let error = refused(by_label.snapshot(&inside.id, &files_of("out", &labels)).await, ErrorCode::SnapshotNameTaken);
    assert!(!serde_json::to_string(&error).unwrap().contains(out_snapshot.id.as_str()), "{error:?}");

    // One generation and no other: the next in the slot is another's.
    by_id.remove_sandbox(&inside.id).await.unwrap();
    let next = api.client.create_sandbox(&small("in", &[])).await.unwrap();
    unseen(&by_id, &next.id).await;
    let gone = refused(by_id.sandbox(&inside.id).await, ErrorCode::GenerationGone);
    assert_eq!(gone.details.get("slot_has_newer"), None, "{gone:?}");
    let gone = refused(by_label.sandbox(&inside.id).await, ErrorCode::GenerationGone);
    assert_eq!(gone.details["snapshots"], json!([in_snapshot.id]), "only what it sees");
    assert_eq!(refused(by_slot.sandbox(&inside.id).await, ErrorCode::GenerationGone).details["slot_has_newer"], true);
}

#[tokio::test]
async fn a_narrowed_key_learns_nothing_by_the_keys_of_others() {
    let api = Api::own();
    let body = json!({ "slot": "out", "memory_mib": 256 });
    let (status, created) = api.raw("POST", "/v1/sandboxes", "Idempotency-Key: k1\r\n", &body.to_string());
    assert_eq!(status, 201, "{created}");
    let id = created["id"].as_str().unwrap();
    let slot = Narrowing::Slot("in".parse().unwrap());
    let narrowed = Keyed::by(&api, |request| request.narrowing = Some(slot)).await;
    // Neither by the same request with the same key …
    let answer = narrowed.create("k1", &body);
    assert_eq!((answer.0, &answer.1["error"]["code"]), (422, &json!("idempotency_key_conflict")));
    assert!(!answer.1.to_string().contains(id) && !answer.1.to_string().contains("op-"), "{}", answer.1);
    // … nor by asking what became of it.
    let (_, all) = api.raw("GET", "/v1/operations?key=k1", "", "");
    let operation = all["operations"][0]["id"].as_str().unwrap();
    assert_eq!(narrowed.get(&format!("/v1/operations/{operation}")).0, 404);
    assert_eq!(narrowed.get("/v1/operations?key=k1").1["operations"], json!([]));
    let own = json!({ "slot": "in", "memory_mib": 256 });
    let first = narrowed.create("k2", &own);
    let again = narrowed.create("k2", &own);
    assert_eq!((first.0, &first.1["id"]), (201, &again.1["id"]), "its own it gets again: {again:?}");
    // Of what a key could not have done it is not told what became of it.
    let files = Keyed::by(&api, |request| request.scopes = vec![AccessScope::Files]).await;
    let (status, answer) = files.get(&format!("/v1/operations/{operation}"));
    assert_eq!((status, &answer["error"]["details"]["missing_scope"]), (403, &json!("sandboxes:write")));
    assert_eq!(files.get("/v1/operations?key=k1").1["operations"], json!([]));
}

#[tokio::test]
async fn at_a_quota_nothing_is_made_until_something_is_removed() {
    let directory = tempfile::Builder::new().prefix("remuda-test-").tempdir_in("/var/tmp").unwrap();
    let quotas = ["--quota", "sandboxes=2", "--quota", "starts_per_month=5", "--quota", "snapshots=1"];
    let api = Api::of(std::sync::Arc::new(Server::start_with(&directory.path().join("data"), &quotas)));
    let first = api.create().await;
    let fork = api.client.fork(&first.id, &fork_of(2)).await.unwrap();
    let (branch, error) = match &fork.branches[..] {
        [Branch::Sandbox(branch), Branch::Error(error)] | [Branch::Error(error), Branch::Sandbox(branch)] => {
            (branch, error)
        }
        other => panic!("one branch fits: {other:?}"),
    };
    let figures = |error: &remuda_types::Error| ["limit", "maximum", "current"].map(|name| error.details[name].clone());
    assert_eq!(json!(figures(error)), json!(["sandboxes", 2, 2]));
    let error = refused(api.client.create_sandbox(&CreateSandbox::default()).await, ErrorCode::LimitReached);
    assert_eq!(json!(figures(&error)), json!(["sandboxes", 2, 2]));
    assert!(error.remedy.unwrap().contains("remuda rm"));
    api.remove(&branch.id).await;
    let second = api.create().await;
    api.remove(&second.id).await;
    // One that never comes up gives its place back too, and has been a start.
    let failing = RestoreSnapshot {
        launch: Some(remuda_client::wire::LaunchRecipe {
            argv: vec!["false".into()],
            port: 80,
            timeout_ms: Some(1_000),
            ..Default::default()
        }),
        ..RestoreSnapshot::default()
    };
    let snapshot = api.client.snapshot(&first.id, &files_of("one", &Labels::new())).await.unwrap();
    refused(api.client.restore("one", &failing).await, ErrorCode::LaunchFailed);
    let error =
        refused(api.client.snapshot(&first.id, &files_of("two", &Labels::new())).await, ErrorCode::LimitReached);
    assert_eq!(json!(figures(&error)), json!(["snapshots", 1, 1]));
    api.create().await;
    let error = refused(api.client.create_sandbox(&CreateSandbox::default()).await, ErrorCode::LimitReached);
    assert!(["sandboxes", "starts_per_month"].contains(&error.details["limit"].as_str().unwrap()), "{error:?}");
    let usage = api.client.usage(None).await.unwrap();
    assert_eq!((usage.captured.snapshots, usage.captured.bytes), (1, snapshot.bytes));
    let counter = &usage.months[0].counters[0];
    assert_eq!((counter.quota.as_str(), counter.amount, counter.limit), ("starts_per_month", 5, Some(5)));

    // The operator lifts what the settings say, and that outlives the server.
    let lifted = api.server.run(&["account", "set", "default", "starts_per_month=none", "snapshots=2"]);
    assert!(lifted.line().contains("starts_per_month=none"), "{}", lifted.line());
    api.client.snapshot(&first.id, &files_of("two", &Labels::new())).await.unwrap();
    api.client.remove_snapshot("one").await.unwrap();
    api.client.remove_snapshot("two").await.unwrap();
    let reserved = api.client.usage(None).await.unwrap().reserved;
    let amounts: Vec<_> =
        reserved.iter().map(|r| (r.quota.as_str(), r.amount)).filter(|(name, _)| name.starts_with("snap")).collect();
    assert_eq!(amounts, [("snapshots", 0), ("snapshot_bytes", 0)]);
}

#[tokio::test]
async fn usage_tells_what_lies_on_the_disk() {
    let api = Api::own();
    let sandbox = api.create().await;
    api.sh(&sandbox.id, "head -c 20000000 /dev/urandom > /workspace/data; sync").await;
    let before = api.client.usage(None).await.unwrap();
    assert!(before.held.sandboxes >= 20_000_000 && before.held.layers == 0, "{before:?}");
    assert_eq!((before.captured.bytes, before.held.memory_images), (0, 0));
    let snapshot = api.client.snapshot(&sandbox.id, &files_of("one", &Labels::new())).await.unwrap();
    let after = api.client.usage(None).await.unwrap();
    assert_eq!(after.captured.bytes, snapshot.bytes);
    assert!(after.held.layers >= 20_000_000, "{after:?}");
    let bytes = after.reserved.iter().find(|r| r.quota == "snapshot_bytes").unwrap().amount;
    assert_eq!(bytes, snapshot.bytes, "what was expected gives way to what there is");
}

#[test]
fn a_secret_that_is_given_for_an_id_is_not_told_again() {
    for prefix in ["rmd_", "mb_"] {
        let secret = format!("{prefix}{}", "5ec2e7".repeat(8));
        let answer = Answer::of(remuda().args(["key", "revoke", &secret]).output().unwrap());
        answer.failed(2, "that is an access key's secret, not its id");
        assert!(!answer.stderr.contains("5ec2e7"), "{}", answer.stderr);
    }
}

#[test]
fn the_commands_make_show_and_revoke_keys() {
    let server = Server::start();
    let secret =
        server.run(&["key", "create", "--scope", "sandboxes:read,usage", "--name", "the CI", "--expires", "1h"]).line();
    assert_eq!((secret.len(), &secret[..4]), (68, "rmd_"));
    let with = |secret: &str, args: &[&str]| {
        let mut command = remuda();
        command.args(["--url", &server.url()]).args(args).env("REMUDA_API_KEY", secret);
        Answer::of(command.output().unwrap())
    };
    let me = with(&secret, &["whoami", "--json"]).json();
    assert_eq!((&me["account"], &me["scopes"]), (&json!("default"), &json!(["sandboxes:read", "usage"])));
    assert!(with(&secret, &["whoami"]).line().contains("sandboxes:read, usage"));
    let usage = with(&secret, &["usage"]).line();
    assert!(
        usage.contains("captured   0 B in 0 snapshots") && usage.contains("sandboxes          0 of 200"),
        "{usage}"
    );
    assert_eq!(with(&secret, &["ls"]).code, 0);
    with(&secret, &["create"]).failed(1, "the access key lacks the scope sandboxes:write (forbidden)");
    with(&secret, &["create"]).failed(1, "remuda key create --scope sandboxes:write");
    with(&secret, &["key", "ls"]).failed(1, "lacks the scope admin");
    with(&secret, &["account", "ls"]).failed(1, "only whoever runs the server");

    let keys = server.run(&["key", "ls"]).line();
    assert!(keys.contains("the CI") && keys.contains("the first key of this server"), "{keys}");
    assert!(!keys.contains(&secret[4..20]));
    let id = me["access_key"].as_str().unwrap();
    server.run(&["key", "revoke", "key-aaaaaaaaaaaaaaaaaaaa"]).failed(1, "access_key_not_found");
    assert_eq!(server.run(&["key", "revoke", id]).line(), format!("{id} opens nothing any more"));
    with(&secret, &["ls"]).failed(2, "this access key was revoked");
    assert!(!server.run(&["key", "ls"]).line().contains(id));
    assert!(server.run(&["key", "ls", "--all"]).line().contains(id));

    let other = server.run(&["key", "create", "--scope", "admin", "--slot", "c1", "--account", "other"]).line();
    assert_eq!(with(&other, &["whoami", "--json"]).json()["narrowing"], json!({ "slot": "c1" }));
    server
        .run(&["key", "create", "--scope", "files", "--slot", "c1", "--label", "a=b"])
        .failed(2, "cannot be used with");
    server.run(&["key", "create", "--scope", "file"]).failed(2, "is not a scope; there are sandboxes:read");
    let accounts = server.run(&["account", "ls"]).line();
    assert!(accounts.starts_with("ACCOUNT"), "{accounts}");
    server.run(&["usage", "--account", "othre"]).failed(1, "there is no account othre");
    assert!(accounts.contains("default  ") && accounts.contains("other  "), "{accounts}");
    server.run(&["account", "set", "other", "sandboxes=few"]).failed(2, "is not an amount");
}

#[test]
fn the_key_of_a_server_from_before_the_journal_goes_on_to_work() {
    let directory = tempfile::Builder::new().prefix("remuda-test-").tempdir_in("/var/tmp").unwrap();
    let data_dir = directory.path().join("data");
    // The digest of 32 zero bytes, as such a server kept it.
    let digest = "2ada83c1819a5372dae1238fc1ded123c8104fdaa15862aaee69428a1820fcda";
    fs::create_dir(&data_dir).unwrap();
    fs::set_permissions(&data_dir, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    fs::write(data_dir.join("access-key"), format!("blake3:{digest}\n")).unwrap();
    let server = Server::start_in(&data_dir);
    assert_eq!(server.key(), None, "no other key is made");
    assert!(!data_dir.join("access-key").exists(), "the journal has it now");
    let me = |server: &Server| {
        let mut command = remuda();
        command.args(["--url", &server.url(), "whoami", "--json"]);
        Answer::of(command.env("REMUDA_API_KEY", format!("rmd_{}", "0".repeat(64))).output().unwrap()).json()
    };
    let before = me(&server);
    assert_eq!(before["scopes"], json!(AccessScope::ALL));
    assert_eq!(server.end(), 0);
    let again = Server::start_in(&data_dir);
    assert_eq!((again.key(), me(&again)), (None, before));
}
