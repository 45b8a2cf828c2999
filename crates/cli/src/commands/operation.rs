//! `operation`: what became of calls, from what is kept here and what the server knows. A kept call is forgotten as
//! soon as its outcome has been shown.

use remuda_client::{Client, ClientError, FoundCall, Pending, PendingCall};
use remuda_types::wire::{CancelOperation, CancelResult, Operation as Known};
use remuda_types::{ErrorCode, Key, OperationId, OperationState};
use serde_json::{Value, json};

use super::DONE;
use crate::args::{Global, Operation, OperationAction};
use crate::connection::{connect, pending};
use crate::failure::{Failure, NEGATIVE};
use crate::print;

pub async fn run(global: &Global, args: Operation) -> anyhow::Result<u8> {
    match (args.action, args.key) {
        (Some(OperationAction::Ls), _) => list(global).await,
        (Some(OperationAction::Show { key }), _) | (None, Some(key)) => show(global, &key).await,
        (Some(OperationAction::Retry { key }), _) => retry(global, &key).await,
        (Some(OperationAction::Cancel { key }), _) => cancel(global, &key).await,
        // The command line is not accepted so.
        (None, None) => Ok(DONE),
    }
}

async fn list(global: &Global) -> anyhow::Result<u8> {
    let client = connect(global)?;
    let mut rows = Vec::new();
    for found in kept(global)? {
        let row = match &found.call {
            Ok(call) => {
                let known = match call.target == client.target() {
                    true => known_of(&client, call).await,
                    false => Ok(None),
                };
                let stand = match known {
                    Ok(Some(known)) => known.state.to_string(),
                    Ok(None) if call.target != client.target() => "of another server".to_owned(),
                    Ok(None) => "not admitted".to_owned(),
                    Err(_) => "not known".to_owned(),
                };
                (Some(call.clone()), stand)
            }
            Err(cause) => (None, format!("never sent: {} is damaged: {cause}", found.path.display())),
        };
        rows.push(row);
    }
    if global.json {
        let rows: Vec<Value> = rows.iter().map(|(call, stand)| json!({ "call": call, "state": stand })).collect();
        print::json(&json!({ "kept": rows }))?;
        return Ok(DONE);
    }
    print::table(
        ["KEY", "KIND", "SANDBOX", "SINCE", "STATE"],
        rows.into_iter().map(|(call, stand)| match call {
            Some(call) => {
                let sandbox = call.sandbox.map_or_else(|| "-".to_owned(), |id| id.to_string());
                [call.key.to_string(), call.kind, sandbox, print::moment(call.kept_at_ms), stand]
            }
            None => ["-".to_owned(), "-".to_owned(), "-".to_owned(), "-".to_owned(), stand],
        }),
    )?;
    Ok(DONE)
}

async fn show(global: &Global, key: &Key) -> anyhow::Result<u8> {
    let client = connect(global)?;
    let kept = kept_with(global, key)?;
    let operations = match operations(&client, key).await {
        Ok(operations) => operations,
        Err(error) if kept.is_empty() => return Err(error.into()),
        Err(error) => {
            eprintln!("kept here: {}", described(&kept));
            return Err(error.into());
        }
    };
    if operations.is_empty() && kept.is_empty() {
        let message = format!("no call with the key {key} was admitted by {}", client.target());
        return Err(Failure::new(NEGATIVE, message).cause("nothing was done for it, and none is kept here").into());
    }
    if global.json {
        let calls: Vec<&PendingCall> = kept.iter().filter_map(|found| found.call.as_ref().ok()).collect();
        print::json(&json!({ "operations": operations, "kept": calls }))?;
    } else {
        for (index, operation) in operations.iter().enumerate() {
            if index > 0 {
                print::line("")?;
            }
            print::operation(operation)?;
        }
    }
    let mut code = DONE;
    for found in &kept {
        let Ok(call) = &found.call else { continue };
        match operations.iter().find(|operation| is_of(operation, call)) {
            Some(operation) if operation.state != OperationState::Pending => found.forget()?,
            Some(_) => {}
            None => {
                eprintln!(
                    "{} {} was not admitted by the server: `remuda operation retry {key}` sends it again, `remuda \
                     operation cancel {key}` makes sure that it never runs",
                    call.method, call.path
                );
                code = NEGATIVE;
            }
        }
    }
    Ok(code)
}

async fn retry(global: &Global, key: &Key) -> anyhow::Result<u8> {
    let client = connect(global)?;
    let mut answers = Vec::new();
    for found in only_kept(global, key)? {
        let Ok(call) = &found.call else { continue };
        match client.send_again(call).await {
            Ok(answer) => {
                found.forget()?;
                answers.push(answer);
            }
            Err(error) => {
                let never_sent = error.no_server() || matches!(error, ClientError::Input(_));
                if !error.outcome_unknown() && !never_sent {
                    found.forget()?;
                }
                return Err(error.into());
            }
        }
    }
    for answer in answers {
        print::json(&answer)?;
    }
    Ok(DONE)
}

async fn cancel(global: &Global, key: &Key) -> anyhow::Result<u8> {
    let client = connect(global)?;
    let (mut code, mut told) = (DONE, Vec::new());
    for found in only_kept(global, key)? {
        let Ok(call) = &found.call else { continue };
        let request = CancelOperation { kind: call.kind.clone(), sandbox: call.sandbox.clone(), key: key.clone() };
        let cancellation = client.cancel_operation(&request).await?;
        match cancellation.result {
            CancelResult::Cancelled => {
                found.forget()?;
                if !global.json {
                    print::line(format!("the {} with the key {key} never ran, and never will", call.kind))?;
                }
            }
            CancelResult::Admitted => {
                code = NEGATIVE;
                if !global.json {
                    print::line(format!("too late: the {} with the key {key} was admitted", call.kind))?;
                    if let Some(operation) = &cancellation.operation {
                        print::operation(operation)?;
                    }
                }
                if cancellation.operation.as_ref().is_some_and(|known| known.state != OperationState::Pending) {
                    found.forget()?;
                }
            }
        }
        told.push(cancellation);
    }
    if global.json {
        print::json(&told)?;
    }
    Ok(code)
}

/// By key; what looks like an operation's id is asked for as one too.
async fn operations(client: &Client, key: &Key) -> Result<Vec<Known>, ClientError> {
    let mut found = client.operations(key).await?;
    if let Ok(id) = key.as_str().parse::<OperationId>() {
        match client.operation(&id).await {
            Ok(operation) => found.push(operation),
            Err(error) if error.code() == Some(ErrorCode::OperationNotFound) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

async fn known_of(client: &Client, call: &PendingCall) -> Result<Option<Known>, ClientError> {
    Ok(client.operations(&call.key).await?.into_iter().find(|operation| is_of(operation, call)))
}

fn is_of(operation: &Known, call: &PendingCall) -> bool {
    operation.kind == call.kind && operation.sandbox == call.sandbox
}

fn kept(global: &Global) -> anyhow::Result<Vec<FoundCall>> {
    read(global, Pending::list)
}

fn kept_with(global: &Global, key: &Key) -> anyhow::Result<Vec<FoundCall>> {
    read(global, |pending| pending.of_key(key))
}

fn read(
    global: &Global,
    list: impl FnOnce(&Pending) -> std::io::Result<Vec<FoundCall>>,
) -> anyhow::Result<Vec<FoundCall>> {
    let Some(pending) = pending(global) else { return Ok(Vec::new()) };
    list(&pending).map_err(|e| {
        let message = format!("the kept calls in {} can't be read", pending.directory().display());
        Failure::new(NEGATIVE, message).cause(e).into()
    })
}

/// The kept calls with that key, of which there must be one.
fn only_kept(global: &Global, key: &Key) -> anyhow::Result<Vec<FoundCall>> {
    let found = kept_with(global, key)?;
    if found.is_empty() {
        let failure = Failure::new(NEGATIVE, format!("no call with the key {key} is kept here"));
        let remedy = format!("see `remuda operation ls`, or ask the server with `remuda operation {key}`");
        return Err(failure
            .cause("its outcome became known, or another machine or user made it")
            .remedy(remedy)
            .into());
    }
    Ok(found)
}

fn described(kept: &[FoundCall]) -> String {
    let calls = kept.iter().filter_map(|found| found.call.as_ref().ok());
    let lines = calls.map(|call| format!("{} {} since {}", call.method, call.path, print::moment(call.kept_at_ms)));
    lines.collect::<Vec<_>>().join(", ")
}
