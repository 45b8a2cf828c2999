//! `receipt` and `events`: what has been. They only read.

use std::io::{self, Write};

use remuda_client::wire::{DueTo, Event, EventList, ExpiryResult, Fact, Receipt};
use remuda_client::{Client, Told};

use super::DONE;
use crate::args::{Events, Global, OfReceipt};
use crate::connection::connect;
use crate::print;

/// Shows one receipt, or all of a sandbox.
pub async fn receipt(global: &Global, of: &OfReceipt) -> anyhow::Result<u8> {
    let client = connect(global)?;
    let receipts = match of {
        OfReceipt::Receipt(id) => vec![client.receipt(id).await?],
        // A generation has one of its life and one of its deletion: one page holds them.
        OfReceipt::Sandbox(id) => client.receipts(Some(id), None).await?.receipts,
    };
    match (of, receipts.as_slice()) {
        (OfReceipt::Receipt(_), [receipt]) if global.json => print::json(receipt)?,
        (_, receipts) if global.json => print::json(&receipts)?,
        (OfReceipt::Sandbox(id), []) => print::line(format!("there is no receipt of {id}"))?,
        (_, receipts) => {
            for (index, receipt) in receipts.iter().enumerate() {
                if index > 0 {
                    print::line("")?;
                }
                print_receipt(receipt)?;
            }
        }
    }
    Ok(DONE)
}

fn print_receipt(receipt: &Receipt) -> io::Result<()> {
    let mut rows = vec![("receipt", receipt.id.to_string()), ("sandbox", receipt.sandbox.to_string())];
    if let Some(machine) = &receipt.machine {
        rows.push(("made by", machine.made_by.to_string()));
        rows.extend(machine.create_key.as_ref().map(|key| ("with key", key.to_string())));
        rows.extend((!machine.labels.is_empty()).then(|| ("labels", print::labels(&machine.labels))));
        rows.extend(machine.continues.as_ref().map(|id| ("went on from", id.to_string())));
        let captured = machine.captured.iter();
        rows.extend(captured.map(|c| ("captured", format!("{} ({}) {}", c.snapshot, c.mode, time(c.at_ms)))));
        rows.extend(machine.died.as_ref().map(|d| ("died", format!("{}: {}", time(d.at_ms), d.reason))));
        if let Some(result) = machine.stop_result {
            let result = serde_json::to_value(result).ok().and_then(|v| v.as_str().map(str::to_owned));
            let at = machine.stopped_at_ms.map(time).unwrap_or_default();
            let why = machine.stop_reason.as_deref().unwrap_or_default();
            rows.push(("stop", format!("{} {at}: {why}", result.unwrap_or_default())));
        }
        rows.extend(machine.expiry.as_ref().map(|e| {
            let result = match e.result {
                ExpiryResult::Removed => "ended and removed",
                ExpiryResult::Kept => "ended, files kept",
            };
            let snapshot = e.snapshot.as_ref().map(|id| format!(", its work is in {id}")).unwrap_or_default();
            let failure = e.failure.as_ref().map(|why| format!(" ({why})")).unwrap_or_default();
            let due_to = match e.due_to {
                DueTo::Deadline => "its deadline passed",
                DueTo::Idle => "it was idle",
            };
            ("by itself", format!("{} {due_to}: {result}{snapshot}{failure}", time(e.at_ms)))
        }));
        rows.extend(machine.replacement.as_ref().map(|id| ("went on as", id.to_string())));
    }
    if let Some(deletion) = &receipt.deletion {
        rows.push(("absent", fact(&deletion.absent)));
        rows.push(("processes gone", fact(&deletion.processes_gone)));
        rows.push(("credentials refused", fact(&deletion.credentials_refused)));
        rows.push(("bytes gone", fact(&deletion.bytes_gone)));
        rows.push(("bytes reclaimed", print::bytes(deletion.bytes_reclaimed)));
        rows.extend(deletion.still_referenced.iter().map(|snapshot| ("still kept", snapshot.to_string())));
    }
    print::pairs(&rows)
}

fn fact(fact: &Fact) -> String {
    format!("{} {}: {}", if fact.holds { "yes" } else { "NO" }, time(fact.at_ms), fact.method)
}

/// Prints events: those that are kept, and with `--follow` all that come.
pub async fn events(global: &Global, args: &Events) -> anyhow::Result<u8> {
    let client = connect(global)?;
    if args.follow { follow(global, &client, args.after).await } else { list(global, &client, args.after).await }
}

async fn list(global: &Global, client: &Client, mut after: u64) -> anyhow::Result<u8> {
    let mut all: Option<EventList> = None;
    loop {
        let page = client.events(after).await?;
        let Some(last) = page.events.last() else {
            all.get_or_insert(page);
            break;
        };
        after = last.sequence;
        match &mut all {
            Some(all) => all.events.extend(page.events),
            None => all = Some(page),
        }
    }
    if global.json {
        print::json(&all)?;
        return Ok(DONE);
    }
    if let Some(list) = &all {
        if list.missed > 0 {
            eprintln!("({} older events are no longer kept)", list.missed);
        }
        list.events.iter().try_for_each(|event| print::line(print::plain(&line(event))))?;
    }
    Ok(DONE)
}

/// With `--json`, one object a line.
async fn follow(global: &Global, client: &Client, after: u64) -> anyhow::Result<u8> {
    let mut stream = client.follow_events(after).await?;
    while let Some(told) = stream.next().await? {
        match told {
            Told::Event(event) if global.json => print::line(serde_json::to_string(&event)?)?,
            Told::Event(event) => print::line(print::plain(&line(&event)))?,
            Told::Gap { missed } => eprintln!("({missed} events are no longer kept)"),
        }
        io::stdout().flush()?;
    }
    eprintln!("the server ended");
    Ok(DONE)
}

fn line(event: &Event) -> String {
    let about = &event.about;
    let mut words = vec![event.sequence.to_string(), time(event.at_ms), event.kind.clone()];
    words.extend(about.snapshot.as_ref().map(ToString::to_string));
    words.extend(about.sandbox.as_ref().map(ToString::to_string));
    words.extend(about.reason.as_ref().map(|reason| format!("({reason})")));
    words.join(" ")
}

fn time(unix_ms: i64) -> String {
    jiff::Timestamp::from_millisecond(unix_ms).map_or_else(|_| unix_ms.to_string(), |time| format!("{time:.3}"))
}
