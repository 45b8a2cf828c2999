//! `serve`: the server, until it is asked to end.

use std::io::{self, Write};

use anyhow::Context;
use serde_json::json;
use tokio::net::TcpListener;

use super::DONE;
use crate::args::{Global, Serve};
use crate::data_dir::DataDir;
use crate::local_server::{AtEnd, LocalServer, Settings};
use crate::signals::Signals;
use crate::{parts, print};

pub async fn run(global: &Global, args: &Serve) -> anyhow::Result<u8> {
    // First of all: from here on a signal ends the server in order.
    let mut signals = Signals::take()?;
    let parts = parts::find(&global.cache_dir, &global.data_dir).await?;
    let data_dir = DataDir::claim(&global.data_dir)?;
    let listener =
        TcpListener::bind(args.listen).await.with_context(|| format!("failed to listen on {}", args.listen))?;
    let address = listener.local_addr()?;
    let place = data_dir.path().display().to_string();
    let at_end = if args.ephemeral { AtEnd::Remove } else { AtEnd::Keep };
    let settings = Settings {
        quotas: args.quotas(),
        timeout_max: args.timeout_max,
        reconcile_every: args.reconcile_every,
        keys_live: args.keys_live,
        webhooks_to_private: args.webhooks_to_private,
        webhooks_trust: args.webhooks_trust.clone(),
        egress: args.egress.egress(),
        at_end,
    };
    let server = LocalServer::start(data_dir, parts, settings, Some(listener)).await?;
    let key = match server.first_key().await {
        Ok(key) => key.map(|key| key.reveal()),
        Err(error) => {
            // Whatever runs is ended in order; the error that led here is the one to tell.
            let _ = server.end().await;
            return Err(error);
        }
    };

    let (url, socket) = (format!("http://{address}"), server.socket().display().to_string());
    if global.json {
        let started = json!({ "url": url, "socket": socket, "data_dir": place, "access_key": key });
        print::line(started)?;
    } else {
        print::line(format!("data directory {place}"))?;
        if let Some(key) = key {
            print::line(format!("access key {key}"))?;
            print::line(
                "(shown this once: only its digest is kept; local commands need none, and `remuda key create` makes others)",
            )?;
        }
        print::line(format!("listening on {socket}"))?;
        print::line(format!("listening on {url}"))?;
    }
    io::stdout().flush()?;
    if !address.ip().is_loopback() {
        tracing::warn!(%address, "reachable from other machines without encryption: whoever reads the traffic has the key");
    }

    signals.next().await;
    match at_end {
        AtEnd::Keep => tracing::info!("asked to end: sandboxes go on, and the next server takes them over"),
        AtEnd::Remove => tracing::info!("asked to end: sandboxes are ended and removed"),
    }
    server.end().await?;
    Ok(DONE)
}
