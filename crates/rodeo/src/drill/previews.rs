//! `rotation` and `cleanup`: a credential that was exchanged, revoked or outlived by its machine lets nobody in, and what
//! is open through it ends; and a deletion does that to what was deleted and to nothing beside it.

use std::num::NonZeroU16;

use remuda_client::{Client, new_key, wire};
use remuda_types::SandboxId;

use super::copies::run;
use super::lost::{everything, small};
use super::server::Server;
use super::visit::Visitor;
use super::{DrillError, Log};

/// Where the application listens.
const PORT: NonZeroU16 = NonZeroU16::new(8080).unwrap();
/// Tells a number that it made at its start, and a stream that never ends.
const APPLICATION: &str = r#"
import http.server, time, uuid
mark = uuid.uuid4().hex.encode()
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(mark)
        while self.path == "/stream":
            self.wfile.write(b"more\n")
            time.sleep(0.1)
    def log_message(self, *_):
        pass
http.server.ThreadingHTTPServer(("0.0.0.0", 8080), Handler).serve_forever()
"#;

/// A sandbox in which the application runs.
async fn serving(client: &Client) -> Result<SandboxId, DrillError> {
    let id = client.create_sandbox(&small()).await?.id;
    let argv = Some(["python3", "-c", APPLICATION].map(String::from).to_vec());
    client.execute(&id, &wire::StartExecution { argv, ..Default::default() }).await?;
    run(client, &id, "until curl -sf localhost:8080/ > /dev/null; do sleep 0.05; done").await?;
    Ok(id)
}

fn to_port() -> wire::CreatePreview {
    wire::CreatePreview { port: PORT, ttl_ms: None, auth: None, host: None, label: Some("drill".into()) }
}

pub(super) async fn rotation(server: &Server, log: &mut Log) -> Result<(), DrillError> {
    let client = server.client()?;
    let id = serving(&client).await?;
    let made = client.create_preview(&id, &to_port()).await?;
    let first = Visitor::of(&made)?;
    log.did(format!("made {id} with an application in it, and a preview of that"));
    log.fact("who comes with the first credential is let in", 200, first.get("/").await?.0);
    let mut stream = first.open("/stream").await?;

    // As one does who has lost the answer: the same call again under its key.
    let key = new_key()?;
    let (mut tokens, mut rotated) = (Vec::new(), None);
    for name in ["rotate", "rotate-again"] {
        let answer = client.clone().with_key(key.clone()).rotate_preview(&id, &made.preview.id).await;
        // What is written down is without the credential.
        let shown = answer.map(|answer| {
            let preview = answer.preview.clone();
            tokens.push(answer.token.clone());
            rotated = Some(answer);
            preview
        });
        log.count(name, &shown)?;
        shown?;
    }
    log.did("exchanged its credential, twice under one key, while a stream was open");
    let rotated = rotated.ok_or_else(|| DrillError::Server("nothing was rotated".into()))?;
    log.fact("the same credential under the same key", true, tokens.windows(2).all(|pair| pair[0] == pair[1]));
    log.fact("exchanges on record", 1, client.preview(&id, &made.preview.id).await?.rotations);
    log.fact("the stream of the first credential is cut off", true, {
        stream.goes_on().await;
        stream.is_cut_off().await
    });
    log.fact("who comes with the first credential afterwards", 410, first.get("/").await?.0);
    let second = Visitor::of(&rotated)?;
    log.fact("who comes with the second one", 200, second.get("/").await?.0);

    // A copy answers to nobody by its source's credential.
    let fork = client.fork(&id, &wire::ForkSandbox { count: 1, ..wire::ForkSandbox::default() }).await?;
    let branch = fork.branches.into_iter().find_map(|branch| match branch {
        wire::Branch::Sandbox(sandbox) => Some(sandbox.id),
        wire::Branch::Error(_) => None,
    });
    let branch = branch.ok_or_else(|| DrillError::Server("a branch did not come up".into()))?;
    log.fact("previews of a copy", 0, client.previews(&branch).await?.len());

    let mut stream = second.open("/stream").await?;
    let revoked = client.revoke_preview(&id, &made.preview.id).await;
    log.count("revoke", &revoked)?;
    log.did("revoked it, while another stream was open");
    log.fact("that stream is cut off", true, stream.is_cut_off().await);
    log.fact("who comes with the second credential afterwards", 410, second.get("/").await?.0);
    let probe = client.probe_preview(&id, &made.preview.id).await?;
    log.saw("probe", &probe)?;
    log.fact(
        "the preview, and the application behind it",
        ["revoked", "answers"],
        [serde_json::json!(probe.state), serde_json::json!(probe.result)],
    );
    Ok(())
}

pub(super) async fn cleanup(server: &Server, log: &mut Log) -> Result<(), DrillError> {
    let client = server.client()?;
    let (gone, control) = (serving(&client).await?, serving(&client).await?);
    let mut visitors = Vec::new();
    for id in [&gone, &control] {
        visitors.push(Visitor::of(&client.create_preview(id, &to_port()).await?)?);
    }
    let [visitor, of_control] = &visitors[..] else { return Err(DrillError::Server("two previews".into())) };
    let mark = of_control.get("/").await?.1;
    let before = client.sandbox(&control).await?;
    let mut stream = visitor.open("/stream").await?;
    let mut stream_of_control = of_control.open("/stream").await?;
    log.did(format!(
        "made {gone} and, as a control, {control}, each with an application, a preview and an open stream"
    ));

    let removed = client.remove_sandbox(&gone).await;
    log.count("remove", &removed)?;
    let removed = removed?;
    log.did(format!("removed {gone}"));
    log.fact("what became of the removal", wire::RemovalResult::Removed, removed.result);
    log.fact("its stream is cut off", true, stream.is_cut_off().await);
    log.fact("who comes with its credential", 410, visitor.get("/").await?.0);
    let listed: Vec<_> = client.list_sandboxes(&Default::default()).await?.into_iter().map(|one| one.id).collect();
    log.fact("what is listed", [&control], listed);
    let receipts = client.receipts(Some(&gone), None).await?;
    log.saw("receipts", &receipts)?;
    let deletion = receipts.receipts.iter().find_map(|receipt| receipt.deletion.as_ref());
    let facts =
        deletion.map(|d| [&d.absent, &d.processes_gone, &d.credentials_refused, &d.bytes_gone].map(|f| f.holds));
    log.fact("the four facts of its deletion", [true; 4], facts);
    log.fact(
        "each with how it was looked at",
        true,
        deletion.is_some_and(|d| !d.credentials_refused.method.is_empty()),
    );
    let again = client.remove_sandbox(&gone).await;
    log.count("remove-again", &again)?;
    log.fact("a second removal", wire::RemovalResult::AlreadyAbsent, again?.result);

    // The control has noticed nothing.
    log.fact("the control's stream goes on", true, stream_of_control.goes_on().await);
    log.fact("its application is the same process", body(&mark), body(&of_control.get("/").await?.1));
    let after = client.sandbox(&control).await?;
    log.fact("its record is unchanged", (before.state, &before.id), (after.state, &after.id));
    log.fact("sandboxes ever made", 2, client.list_sandboxes(&everything()).await?.len());
    log.fact("its deletions on record", 0, {
        let receipts = client.receipts(Some(&control), None).await?;
        receipts.receipts.iter().filter(|receipt| receipt.deletion.is_some()).count()
    });
    Ok(())
}

/// What stands behind the head of an answer.
fn body(answer: &str) -> &str {
    answer.split_once("\r\n\r\n").map_or("", |(_, body)| body.trim())
}
