//! `named-recovery` and `isolation`: a capture whose answer was lost is found by its name, and copies know nothing of each
//! other.

use std::collections::BTreeSet;

use remuda_client::{Client, ClientError, new_key, wire};
use remuda_types::{ErrorCode, Quota, SandboxId};

use super::access::amount;
use super::lost::{everything, small};
use super::proxy::{Loss, Proxy};
use super::server::Server;
use super::{DrillError, Log};

/// What a script prints, waited for.
pub(super) async fn run(client: &Client, sandbox: &SandboxId, script: &str) -> Result<String, ClientError> {
    let request = wire::StartExecution { command: Some(script.into()), wait_ms: Some(30_000), ..Default::default() };
    Ok(client.execute(sandbox, &request).await?.stdout.unwrap_or_default())
}

pub(super) async fn named_recovery(server: &Server, log: &mut Log) -> Result<(), DrillError> {
    const NAME: &str = "prepared";
    let client = server.client()?;
    let source = client.create_sandbox(&small()).await?.id;
    let work = run(&client, &source, "head -c 300000 /dev/urandom > work; sha256sum < work").await?;
    let sandboxes = client.list_sandboxes(&everything()).await?;
    log.did(format!("made {source}, with a file of random bytes in it"));

    let proxy = Proxy::start(server.directory().join("way.sock"), &server.socket, &[Loss::Whole])?;
    let request = wire::CreateSnapshot { name: Some(NAME.into()), ..wire::CreateSnapshot::default() };
    let key = new_key()?;
    let captured = Client::unix(proxy.socket())?.with_key(key).snapshot(&source, &request).await;
    let word = log.count("capture", &captured)?;
    log.fact("the capture's answer", "lost", word);
    log.did(format!("captured it under the name {NAME:?}, once, and lost the answer with the key"));

    // A new client, which knows the name and the source and nothing else.
    let other = server.client()?;
    let found = other.snapshot_info(NAME).await?;
    log.saw("found", &found)?;
    log.fact("the snapshot of that name is of this source", source.to_string(), found.source.to_string());
    log.fact("its state", "active", found.state.to_string());
    log.fact("snapshots ever taken", 1, other.snapshots(true).await?.len());
    log.fact("snapshots reserved", 1, amount(&other.usage(None).await?, Quota::Snapshots));
    let again = other.snapshot(&source, &request).await;
    let word = log.count("capture-again", &again)?;
    log.fact("a second capture under that name", ErrorCode::SnapshotNameTaken.as_str(), word);

    let restored = other.restore(NAME, &wire::RestoreSnapshot::default()).await?.id;
    log.did(format!("found it by its name, and restored {restored} from it"));
    log.fact("the file in the restored one", &work, run(&other, &restored, "sha256sum < work").await?);
    log.fact("the file in the source", &work, run(&other, &source, "sha256sum < work").await?);
    let before: Vec<_> = sandboxes.iter().map(|sandbox| (&sandbox.id, sandbox.state)).collect();
    let now = other.list_sandboxes(&everything()).await?;
    log.saw("sandboxes", &now)?;
    let now: Vec<_> =
        now.iter().filter(|sandbox| sandbox.id != restored).map(|sandbox| (&sandbox.id, sandbox.state)).collect();
    log.fact("what was there before", before, now);
    other.remove_snapshot(NAME).await?;
    Ok(())
}

/// Every place in which one copy could show in another.
const PLACES: [&str; 4] = ["/workspace/mark", "/tmp/mark", "/dev/shm/mark", "/run/mark"];

pub(super) async fn isolation(server: &Server, log: &mut Log) -> Result<(), DrillError> {
    let client = server.client()?;
    let source = client.create_sandbox(&small()).await?.id;
    let listen =
        wire::StartExecution { argv: Some(["python3", "-c", SERVER].map(String::from).to_vec()), ..Default::default() };
    client.execute(&source, &listen).await?;
    run(&client, &source, "until curl -sf localhost:8080/ > /dev/null; do sleep 0.05; done").await?;
    let forked = client.fork(&source, &wire::ForkSandbox { count: 3, ..wire::ForkSandbox::default() }).await?;
    log.saw("fork", &forked)?;
    let mut all = vec![source.clone()];
    for branch in forked.branches {
        match branch {
            wire::Branch::Sandbox(sandbox) => all.push(sandbox.id),
            wire::Branch::Error(error) => return Err(DrillError::Server(format!("a branch did not come up: {error}"))),
        }
    }
    log.did(format!("forked {source}, in which a server keeps a word in its memory, into three"));

    // Each of the four sets its own marks before anybody looks.
    for (index, id) in all.iter().enumerate() {
        let places = PLACES.map(|place| format!("echo mark-{index} > {place}")).join("; ");
        let script = format!("{places}; curl -s localhost:8080/ -d mark-{index}");
        let request = wire::StartExecution {
            command: Some(script),
            user: Some("root".into()),
            wait_ms: Some(30_000),
            ..Default::default()
        };
        client.execute(id, &request).await?;
    }
    log.did("set a mark in the files, in /tmp, in shared memory and in the server's memory of each of the four");
    let look = format!("cat {}; curl -s localhost:8080/; hostname; cat /etc/machine-id", PLACES.join(" "));
    let (mut own, mut strange) = (0, 0);
    let (mut hosts, mut drawn) = (BTreeSet::new(), BTreeSet::new());
    for (index, id) in all.iter().enumerate() {
        let seen = run(&client, id, &look).await?;
        log.saw("seen", &(id, &seen))?;
        own += seen.matches(&format!("mark-{index}")).count();
        strange += (0..all.len())
            .filter(|other| *other != index)
            .map(|other| seen.matches(&format!("mark-{other}")).count())
            .sum::<usize>();
        hosts.insert(seen.lines().rev().take(2).collect::<Vec<_>>().join(" "));
        drawn.insert(run(&client, id, "head -c 16 /dev/urandom | od -An -tx1").await?);
    }
    log.fact("marks that are seen where they were set", all.len() * (PLACES.len() + 1), own);
    log.fact("marks that are seen anywhere else", 0, strange);
    log.fact("names and machine ids, all different", all.len(), hosts.len());
    log.fact("random bytes, all different", all.len(), drawn.len());

    // From inside, nobody else is there: all of them have the same address.
    let neighbours = "for n in 1 2 3 4 5 6 7 8 9; do curl -s --max-time 0.3 10.254.254.$n:8080/; done; true";
    let request =
        wire::StartExecution { command: Some(neighbours.into()), wait_ms: Some(30_000), ..Default::default() };
    let first = all.get(1).unwrap_or(&source);
    let heard = client.execute(first, &request).await?.stdout.unwrap_or_default();
    log.saw("neighbours", &heard)?;
    let others =
        (0..all.len()).filter(|other| *other != 1).filter(|other| heard.contains(&format!("mark-{other}"))).count();
    log.fact("others that one reaches on its own network", 0, others);
    client.remove_sandbox(&source).await?;
    log.did("removed the source");
    for id in all.iter().skip(1) {
        let seen = run(&client, id, "curl -s localhost:8080/").await?;
        log.fact(&format!("{id} serves on"), true, seen.starts_with("mark-"));
    }
    Ok(())
}

/// Keeps the last word that it was sent.
const SERVER: &str = r#"
import http.server
word = b""
class Handler(http.server.BaseHTTPRequestHandler):
    def answer(self):
        self.send_response(200)
        self.send_header("Content-Length", str(len(word)))
        self.end_headers()
        self.wfile.write(word)
    do_GET = answer
    def do_POST(self):
        global word
        word = self.rfile.read(int(self.headers["Content-Length"]))
        self.answer()
    def log_message(self, *_):
        pass
http.server.ThreadingHTTPServer(("0.0.0.0", 8080), Handler).serve_forever()
"#;
