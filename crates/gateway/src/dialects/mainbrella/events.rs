//! `/containers/events`: what a generation went through, from the account's events. Their numbers are the account's, and grow
//! with each; one of each kind is told. That it was starting is told by the generation itself, which is the time of that, and
//! stands right before the first event: numbers are twice the account's, so that there is room.

use remuda_control::Platform;
use remuda_types::wire::{Event, Sandbox};
use remuda_types::{Error, ErrorCode, SandboxId};
use serde_json::{Value, json};

use super::answer::{CONTAINERS, Refusal, Told, told};
use super::enter::Asked;
use super::ids::{self, Kind};
use super::status::{iso, size_of};

/// Events of a page at most, and unless it says otherwise.
const PAGE_MAX: u64 = 100;

/// Events that one generation can have: one of each kind.
pub(super) const KINDS_MAX: u64 = 4;

/// The dialect's word for an event, where it has one.
fn word(kind: &str) -> Option<&'static str> {
    Some(match kind {
        "sandbox.running" => "started",
        "sandbox.failed" => "failed",
        "sandbox.stopped" | "sandbox.gone" => "stopped",
        _ => return None,
    })
}

pub(super) async fn read(asked: Asked) -> Told {
    let id = asked.sandbox()?;
    let wrong_cursor = |_| Refusal::new(400, "invalid_cursor");
    let cursor = asked.query.number("cursor").map_err(wrong_cursor)?.unwrap_or(0);
    let limit = match asked.query.number("limit") {
        Ok(limit) => limit.unwrap_or(PAGE_MAX),
        Err(_) => 0,
    };
    if !(1..=PAGE_MAX).contains(&limit) {
        return Err(Refusal::new(400, "invalid_request"));
    }
    let sandbox = known(&asked, &id).await?;
    let (events, newest, missed) = of_generation(&asked.platform, &asked, &id).await.map_err(|e| CONTAINERS.of(&e))?;
    if cursor > 2 * newest {
        return Err(Refusal::new(400, "invalid_cursor"));
    }
    let kept_ms = asked.platform.journal().settings().retention.events_ms;
    let new: Vec<_> = told_in_order(events, &id).into_iter().filter(|event| event.sequence > cursor).collect();
    let page: Vec<Value> = new.iter().take(limit as usize).map(|event| event.show(&sandbox, kept_ms)).collect();
    let next = page.last().and_then(|event| event["sequence"].as_u64()).unwrap_or(cursor);
    Ok(told(
        200,
        &json!({
            "hasMore": new.len() > page.len(),
            "events": page,
            "nextCursor": next,
            "historyTruncated": missed,
            "retainForMs": kept_ms,
        }),
    ))
}

/// The generation, ended or not.
async fn known(asked: &Asked, id: &SandboxId) -> Result<Sandbox, Refusal> {
    match asked.platform.show(&asked.caller, id).await {
        Ok(sandbox) => return Ok(sandbox),
        Err(e) if e.code == ErrorCode::GenerationGone => {}
        Err(e) if e.code == ErrorCode::SandboxNotFound => return Err(Refusal::new(404, "generation_not_found")),
        Err(e) => return Err(CONTAINERS.of(&e)),
    }
    let all = asked.platform.list(&asked.caller, true).await.map_err(|e| CONTAINERS.of(&e))?;
    all.into_iter().find(|it| it.id == *id).ok_or_else(|| Refusal::new(404, "generation_not_found"))
}

/// The first event of each kind, the newest number of all, and whether some that are older are no longer kept.
async fn of_generation(
    platform: &Platform,
    asked: &Asked,
    id: &SandboxId,
) -> Result<(Vec<(&'static str, Event)>, u64, bool), Error> {
    let (mut found, mut after): (Vec<(&'static str, Event)>, u64) = (Vec::new(), 0);
    let mut truncated = false;
    loop {
        let page = platform.events(&asked.caller, after, 0).await?;
        truncated |= page.missed > 0;
        let Some(last) = page.events.last().map(|event| event.sequence) else {
            // What is gone is missing to this generation only where its own beginning is.
            truncated &= !found.iter().any(|(word, _)| matches!(*word, "started" | "failed"));
            return Ok((found, page.newest, truncated));
        };
        after = last;
        for event in page.events.into_iter().filter(|event| event.about.sandbox.as_ref() == Some(id)) {
            if let Some(word) = word(&event.kind)
                && !found.iter().any(|(known, _)| *known == word)
            {
                found.push((word, event));
            }
        }
    }
}

/// An event in the dialect's terms.
struct Shown {
    word: &'static str,
    sequence: u64,
    at_ms: i64,
    reason: Option<String>,
}

/// What is told of a generation, its beginning first.
fn told_in_order(events: Vec<(&'static str, Event)>, id: &SandboxId) -> Vec<Shown> {
    let first = events.first().map(|(_, event)| event.sequence);
    let at_ms = id.generation.unix_ms();
    let starting = first.map(|first| Shown { word: "starting", sequence: 2 * first - 1, at_ms, reason: None });
    let rest = events.into_iter().map(|(word, event)| Shown {
        word,
        sequence: 2 * event.sequence,
        at_ms: event.at_ms,
        reason: event.about.reason,
    });
    starting.into_iter().chain(rest).collect()
}

impl Shown {
    fn show(&self, sandbox: &Sandbox, kept_ms: i64) -> Value {
        let mut shown = json!({
            "id": ids::uuid_of(Kind::Event, u128::from(self.sequence)),
            "sequence": self.sequence,
            "createdAt": sandbox.id.generation,
            "occurredAt": iso(self.at_ms),
            "type": self.word,
            "size": size_of(&sandbox.labels, sandbox.memory_mib).id,
            "retainUntil": self.at_ms.saturating_add(kept_ms),
        });
        if let Some(reason) = &self.reason {
            shown["reason"] = reason.as_str().into();
        }
        shown
    }
}
