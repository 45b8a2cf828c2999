//! `quota` and `permissions`: what an account or an access key may not do is refused with the reason, does nothing, and
//! ends with what it was about.

use remuda_client::{Client, ClientError, wire};
use remuda_types::{AccessScope, Account, ErrorCode, Narrowing, Quota, QuotaSetting};

use super::lost::{everything, small};
use super::server::Server;
use super::{DrillError, Log};

/// How many sandboxes the drill's account may have.
const SANDBOXES: u64 = 2;

/// A client with a new access key.
async fn keyed(
    server: &Server,
    scopes: &[AccessScope],
    narrowing: Option<Narrowing>,
    account: Option<&Account>,
) -> Result<(Client, wire::AccessKey), DrillError> {
    let request = wire::CreateAccessKey {
        scopes: scopes.to_vec(),
        narrowing,
        label: Some("drill".into()),
        expires_in_ms: None,
        account: account.cloned(),
    };
    let made = server.client()?.create_access_key(&request).await?;
    // The secret stays in the client.
    Ok((Client::tcp(&server.url, &made.secret)?, made.access_key))
}

pub(super) async fn quota(server: &Server, log: &mut Log) -> Result<(), DrillError> {
    let operator = server.client()?;
    let account: Account =
        "drill".parse().map_err(|e| DrillError::Server(format!("an account's name is none: {e}")))?;
    let quotas = [QuotaSetting { quota: Quota::Sandboxes, limit: Some(SANDBOXES) }].into_iter().collect();
    operator.set_account(&account, &wire::SetAccount { quotas }).await?;
    let (client, _) = keyed(server, AccessScope::ALL, None, Some(&account)).await?;
    log.did(format!("made an account that may have {SANDBOXES} sandboxes, and a key of it"));

    let (mut made, mut words) = (Vec::new(), Vec::new());
    for number in 1..=SANDBOXES + 1 {
        let outcome = client.create_sandbox(&small()).await;
        words.push(log.count(&format!("create-{number}"), &outcome)?);
        match outcome {
            Ok(sandbox) => made.push(sandbox.id),
            Err(error) => {
                let details = error.api().map(|error| error.details.clone()).unwrap_or_default();
                log.fact("the limit that the refusal names", "sandboxes", details.get("limit"));
                log.fact("its maximum", SANDBOXES, details.get("maximum"));
                log.fact("what is used of it", SANDBOXES, details.get("current"));
            }
        }
    }
    log.did(format!("asked for {} sandboxes, one after another", SANDBOXES + 1));
    log.fact("what became of the requests", ["ok", "ok", ErrorCode::LimitReached.as_str()], words);
    log.fact("sandboxes ever made", SANDBOXES, client.list_sandboxes(&everything()).await?.len());
    let reserved = reserved(&client, log).await?;
    log.fact("sandboxes reserved", Some(SANDBOXES), reserved);

    // What ends gives back what it held, and the next request has room.
    if let Some(first) = made.first() {
        client.remove_sandbox(first).await?;
    }
    let outcome = client.create_sandbox(&small()).await;
    let word = log.count("create-after-removal", &outcome)?;
    log.did("removed one and asked once more");
    log.fact("a request after a removal", "ok", word);
    for sandbox in client.list_sandboxes(&Default::default()).await? {
        client.remove_sandbox(&sandbox.id).await?;
    }
    let reserved = self::reserved(&client, log).await?;
    log.fact("sandboxes reserved when all are removed", Some(0), reserved);
    Ok(())
}

/// How many sandboxes are reserved, as usage tells it.
async fn reserved(client: &Client, log: &mut Log) -> Result<Option<u64>, DrillError> {
    let usage = client.usage(None).await?;
    log.saw("usage", &usage)?;
    Ok(amount(&usage, Quota::Sandboxes))
}

/// What is reserved of a quota. One of which nothing is reserved may be left out.
pub(super) fn amount(usage: &wire::Usage, quota: Quota) -> Option<u64> {
    let of_quota = usage.reserved.iter().find(|reserved| reserved.quota == quota.as_str());
    Some(of_quota.map_or(0, |reserved| reserved.amount))
}

pub(super) async fn permissions(server: &Server, log: &mut Log) -> Result<(), DrillError> {
    let operator = server.client()?;
    let (mine, other) = (operator.create_sandbox(&small()).await?.id, operator.create_sandbox(&small()).await?.id);
    log.did(format!("made {mine} and {other}"));

    let (reader, reader_key) = keyed(server, &[AccessScope::SandboxesRead], None, None).await?;
    log.did("made a key that may only read sandboxes");
    let seen = reader.list_sandboxes(&Default::default()).await;
    let word = log.count("reader-lists", &seen)?;
    log.fact("it lists", "ok", word);
    log.fact("sandboxes that it sees", 2, seen.map(|seen| seen.len()).unwrap_or_default());
    refused(log, "reader-creates", "sandboxes:write", &reader.create_sandbox(&small()).await)?;
    refused(log, "reader-removes", "sandboxes:delete", &reader.remove_sandbox(&mine).await)?;
    let command = wire::StartExecution { command: Some("true".into()), ..Default::default() };
    refused(log, "reader-executes", "executions", &reader.execute(&mine, &command).await)?;
    let capture = wire::CreateSnapshot::default();
    refused(log, "reader-captures", "snapshots:write", &reader.snapshot(&mine, &capture).await)?;

    let narrowing = Narrowing::Sandbox(mine.clone());
    let scopes = [AccessScope::SandboxesRead, AccessScope::SandboxesWrite, AccessScope::SandboxesDelete];
    let (narrow, _) = keyed(server, &scopes, Some(narrowing), None).await?;
    log.did(format!("made a key for {mine} alone"));
    let seen = narrow.list_sandboxes(&Default::default()).await;
    log.count("narrow-lists", &seen)?;
    let seen: Vec<_> = seen?.into_iter().map(|sandbox| sandbox.id).collect();
    log.fact("sandboxes that it sees", [&mine], seen);
    let removed = narrow.remove_sandbox(&other).await;
    let word = log.count("narrow-removes-another", &removed)?;
    log.fact("another sandbox is for it", ErrorCode::SandboxNotFound.as_str(), word);

    operator.revoke_access_key(None, &reader_key.id).await?;
    log.did("revoked the first key");
    let after = reader.list_sandboxes(&Default::default()).await;
    let word = log.count("revoked-lists", &after)?;
    log.fact("a call with a revoked key", ErrorCode::Unauthorized.as_str(), word);

    let states: Vec<_> =
        operator.list_sandboxes(&everything()).await?.iter().map(|sandbox| sandbox.state.to_string()).collect();
    log.fact("both sandboxes, and no other", ["running", "running"], states);
    log.fact("snapshots", 0, operator.snapshots(true).await?.len());
    Ok(())
}

/// A call must have been refused for want of that scope.
fn refused<T: serde::Serialize>(
    log: &mut Log,
    name: &str,
    scope: &str,
    outcome: &Result<T, ClientError>,
) -> Result<(), DrillError> {
    let word = log.count(name, outcome)?;
    log.fact(&format!("{name} is"), ErrorCode::Forbidden.as_str(), word);
    let missing =
        outcome.as_ref().err().and_then(ClientError::api).and_then(|error| error.details.get("missing_scope"));
    log.fact("for want of", scope, missing);
    Ok(())
}
