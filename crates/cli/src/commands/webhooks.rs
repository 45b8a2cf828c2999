//! `webhook`: where events are delivered to. A secret is printed once, to standard output, and must go nowhere else.

use remuda_types::wire::{CreateWebhook, Delivery, DeliveryList, DeliveryResult, MadeWebhook, Webhook, WebhookList};

use super::DONE;
use crate::args::{Global, WebhookCommand};
use crate::connection::{connect, connect_for};
use crate::failure::NEGATIVE;
use crate::print;

pub async fn run(global: &Global, command: WebhookCommand) -> anyhow::Result<u8> {
    match command {
        WebhookCommand::Create(args) => {
            let request = CreateWebhook { url: args.to, events: args.events };
            let made = connect_for(global, args.key.key)?.create_webhook(&request).await?;
            match &made.secret {
                _ if global.json => print::json(&made)?,
                Some(secret) => print::line(format!("{} {secret}", made.webhook.id))?,
                None => print::line(&made.webhook.id)?,
            }
            told_before(&made);
        }
        WebhookCommand::Ls => {
            let webhooks = connect(global)?.webhooks().await?;
            if global.json { print::json(&WebhookList { webhooks })? } else { table(&webhooks)? }
        }
        WebhookCommand::Show { id } => {
            let webhook = connect(global)?.webhook(&id).await?;
            if global.json { print::json(&webhook)? } else { shown(&webhook)? }
        }
        WebhookCommand::Rm { id, key } => {
            let removal = connect_for(global, key.key)?.remove_webhook(&id).await?;
            if global.json { print::json(&removal)? } else { print::line(format!("{id} delivers nothing any more"))? }
        }
        WebhookCommand::Rotate { id, key } => {
            let made = connect_for(global, key.key)?.rotate_webhook(&id).await?;
            match &made.secret {
                _ if global.json => print::json(&made)?,
                Some(secret) => print::line(secret)?,
                None => {}
            }
            told_before(&made);
            if made.secret.is_none() {
                return Ok(NEGATIVE);
            }
        }
        WebhookCommand::Deliveries { id } => {
            let deliveries = connect(global)?.webhook_deliveries(&id).await?;
            if global.json { print::json(&DeliveryList { deliveries })? } else { deliveries_table(&deliveries)? }
        }
        WebhookCommand::Redeliver { id, sequence, key } => {
            let delivery = connect_for(global, key.key)?.redeliver_webhook(&id, sequence).await?;
            if global.json {
                print::json(&delivery)?;
            } else {
                print::line(format!("{sequence} {}", outcome(&delivery)))?;
            }
            if delivery.result == DeliveryResult::Failed {
                return Ok(NEGATIVE);
            }
        }
    }
    Ok(DONE)
}

/// Where an answer is told again, it has no secret.
fn told_before(made: &MadeWebhook) {
    if made.secret.is_none() {
        let id = &made.webhook.id;
        eprintln!(
            "(its secret was in the first answer, and is not told again; for another one: remuda webhook rotate {id})"
        );
    }
}

fn kinds(webhook: &Webhook) -> String {
    if webhook.events.is_empty() { "all".to_owned() } else { webhook.events.join(",") }
}

fn table(webhooks: &[Webhook]) -> std::io::Result<()> {
    print::table(
        ["ID", "DONE", "STATE", "EVENTS", "URL"],
        webhooks.iter().map(|webhook| {
            let state = if webhook.failing.is_some() { "failing" } else { "fine" };
            let done = webhook.done_through.to_string();
            [webhook.id.to_string(), done, state.to_owned(), kinds(webhook), print::plain(&webhook.url)]
        }),
    )
}

fn shown(webhook: &Webhook) -> std::io::Result<()> {
    let mut rows = vec![
        ("id", webhook.id.to_string()),
        ("url", print::plain(&webhook.url)),
        ("events", kinds(webhook)),
        ("done through", webhook.done_through.to_string()),
        ("secret made", print::moment(webhook.secret_made_at_ms)),
    ];
    rows.extend(webhook.failing.as_ref().map(|failing| {
        let next = print::moment(failing.next_at_ms);
        let error = print::plain(&failing.error);
        ("failing", format!("event {}, {} attempts, next at {next}: {error}", failing.sequence, failing.attempts))
    }));
    rows.extend((webhook.missed > 0).then(|| ("missed", webhook.missed.to_string())));
    print::pairs(&rows)
}

fn outcome(delivery: &Delivery) -> String {
    match delivery.result {
        DeliveryResult::Delivered => "delivered".to_owned(),
        DeliveryResult::Failed => format!("failed: {}", print::plain(delivery.error.as_deref().unwrap_or("no answer"))),
    }
}

fn deliveries_table(deliveries: &[Delivery]) -> std::io::Result<()> {
    print::table(
        ["EVENT", "KIND", "WHEN", "ATTEMPTS", "RESULT"],
        deliveries.iter().map(|delivery| {
            let attempts = delivery.attempts.to_string();
            let when = print::moment(delivery.at_ms);
            [delivery.sequence.to_string(), delivery.kind.clone(), when, attempts, outcome(delivery)]
        }),
    )
}
