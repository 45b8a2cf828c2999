//! The commands about webhooks, as types.

use clap::{Args, Subcommand};
use remuda_types::WebhookId;

use super::KeyArg;

#[derive(Debug, Subcommand)]
pub enum WebhookCommand {
    /// Deliver events to a URL from now on; prints the webhook's id and its secret, which is shown this once
    Create(WebhookCreate),
    /// List webhooks
    Ls,
    /// Show a webhook and how far it has come
    Show {
        /// Webhook, by the id that `webhook ls` prints
        #[arg(value_name = "WEBHOOK")]
        id: WebhookId,
    },
    /// Remove a webhook
    Rm {
        /// Webhook, by the id that `webhook ls` prints
        #[arg(value_name = "WEBHOOK")]
        id: WebhookId,
        #[command(flatten)]
        key: KeyArg,
    },
    /// Give a webhook another secret and print it; it is shown this once
    Rotate {
        /// Webhook, by the id that `webhook ls` prints
        #[arg(value_name = "WEBHOOK")]
        id: WebhookId,
        #[command(flatten)]
        key: KeyArg,
    },
    /// List what was delivered and what was given up, newest first
    Deliveries {
        /// Webhook, by the id that `webhook ls` prints
        #[arg(value_name = "WEBHOOK")]
        id: WebhookId,
    },
    /// Deliver one event once more, now and in one attempt
    Redeliver {
        /// Webhook, by the id that `webhook ls` prints
        #[arg(value_name = "WEBHOOK")]
        id: WebhookId,
        /// Number of the event, as `events` prints it
        #[arg(value_name = "N")]
        sequence: u64,
        #[command(flatten)]
        key: KeyArg,
    },
}

#[derive(Debug, Args)]
pub struct WebhookCreate {
    /// Where to, https://… or http://…
    #[arg(value_name = "URL")]
    pub to: String,
    /// Kinds of events, such as snapshot.active or sandbox.*; separated by commas, may be repeated; every kind when not
    /// given
    #[arg(long = "event", value_name = "KIND,…", value_delimiter = ',')]
    pub events: Vec<String>,
    #[command(flatten)]
    pub key: KeyArg,
}
