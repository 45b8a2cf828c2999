//! `lost-create` and `lost-capture`: three requests with one key, of which two lose their answers; one thing is made.

use remuda_client::{Client, ClientError, SandboxFilter, new_key, wire};
use remuda_types::Quota;
use serde::Serialize;

use super::access::amount;
use super::proxy::{Loss, Proxy};
use super::server::Server;
use super::{DrillError, Log};

/// Memory of the drill's sandboxes, in MiB.
pub(super) const MEMORY_MIB: u32 = 512;

/// What happens to the answers of the three requests: the last one arrives.
const LOSSES: [Loss; 2] = [Loss::Whole, Loss::InBody];

pub(super) fn small() -> wire::CreateSandbox {
    wire::CreateSandbox { memory_mib: Some(MEMORY_MIB), ..wire::CreateSandbox::default() }
}

/// Everything that an account has on record, ended or not.
pub(super) fn everything() -> SandboxFilter {
    SandboxFilter { include_ended: true, ..SandboxFilter::default() }
}

/// Sends one call three times with one key, through a way that loses the first two answers. Each request is sent by a
/// client of its own, which knows nothing of the others.
async fn three_times<T: Serialize>(
    server: &Server,
    log: &mut Log,
    call: impl AsyncFn(&Client) -> Result<T, ClientError>,
) -> Result<Option<T>, DrillError> {
    let proxy = Proxy::start(server.directory().join("way.sock"), &server.socket, &LOSSES)?;
    let key = new_key()?;
    let (mut words, mut last) = (Vec::new(), None);
    for number in 1..=LOSSES.len() + 1 {
        let client = Client::unix(proxy.socket())?.with_key(key.clone());
        let outcome = call(&client).await;
        words.push(log.count(&format!("request-{number}"), &outcome)?);
        last = outcome.ok();
    }
    log.did(format!(
        "sent one request three times with the key {key}; the first answer was cut off whole, the second in its body"
    ));
    log.fact("what became of the three requests", ["lost", "lost", "ok"], words);
    let operations = server.client()?.operations(&key).await?;
    log.saw("operations", &operations)?;
    log.fact("operations with that key", 1, operations.len());
    Ok(last)
}

pub(super) async fn create(server: &Server, log: &mut Log) -> Result<(), DrillError> {
    let made = three_times(server, log, async |client: &Client| client.create_sandbox(&small()).await).await?;
    let client = server.client()?;
    let sandboxes = client.list_sandboxes(&everything()).await?;
    log.saw("sandboxes", &sandboxes)?;
    log.fact("sandboxes ever made", 1, sandboxes.len());
    log.fact("the answer names it", sandboxes.first().map(|sandbox| &sandbox.id), made.map(|made| made.id));
    let usage = client.usage(None).await?;
    log.saw("usage", &usage)?;
    log.fact("sandboxes reserved", 1, amount(&usage, Quota::Sandboxes));
    log.fact("memory reserved, in MiB", MEMORY_MIB, amount(&usage, Quota::MemoryMib));
    Ok(())
}

pub(super) async fn capture(server: &Server, log: &mut Log) -> Result<(), DrillError> {
    let client = server.client()?;
    let source = client.create_sandbox(&small()).await?.id;
    log.did(format!("made {source}"));
    let request = wire::CreateSnapshot::default();
    let taken = three_times(server, log, async |client: &Client| client.snapshot(&source, &request).await).await?;
    let snapshots = client.snapshots(true).await?;
    log.saw("snapshots", &snapshots)?;
    log.fact("snapshots ever taken", 1, snapshots.len());
    log.fact("the answer names it", snapshots.first().map(|snapshot| &snapshot.id), taken.map(|taken| taken.id));
    log.fact("its state", "active", snapshots.first().map(|snapshot| snapshot.state.to_string()));
    let usage = client.usage(None).await?;
    log.saw("usage", &usage)?;
    log.fact("snapshots reserved", 1, amount(&usage, Quota::Snapshots));
    log.fact("the source", "running", client.sandbox(&source).await?.state.to_string());
    for snapshot in snapshots {
        client.remove_snapshot(snapshot.id.as_str()).await?;
    }
    Ok(())
}
