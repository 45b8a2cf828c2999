//! `serve`: the server, until it is asked to end.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use remuda_gateway::{Dialects, Tls, TlsError};
use serde_json::json;
use tokio::net::TcpListener;

use super::DONE;
use crate::args::{Global, Serve};
use crate::data_dir::DataDir;
use crate::failure::{Failure, NOT_READY};
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
    let (tls, authority) = tls(args, data_dir.path())?;
    let encrypted = tls.is_some();
    let settings = Settings {
        quotas: args.quotas(),
        timeout_max: args.timeout_max,
        reconcile_every: args.reconcile_every,
        scrub_every: args.scrub_every,
        keys_live: args.keys_live,
        webhooks_to_private: args.webhooks_to_private,
        webhooks_trust: args.webhooks_trust.clone(),
        preview_domain: args.preview_domain.clone(),
        dialects: Dialects { mainbrella: !args.no_mainbrella },
        egress: args.egress.egress(),
        at_end,
    };
    let server = LocalServer::start(data_dir, parts, settings, Some((listener, tls))).await?;
    let key = match server.first_key().await {
        Ok(key) => key.map(|key| key.reveal()),
        Err(error) => {
            // Whatever runs is ended in order; the error that led here is the one to tell.
            let _ = server.end().await;
            return Err(error);
        }
    };

    let scheme = if encrypted { "https" } else { "http" };
    let (url, socket) = (format!("{scheme}://{address}"), server.socket().display().to_string());
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
        if let Some(file) = authority {
            let file = file.display();
            print::line(format!("certificate authority {file}"))?;
            print::line(format!(
                "(let clients trust it: curl --cacert {file}; in a browser, import it as an authority; on Debian, copy it to \
                 /usr/local/share/ca-certificates/remuda.crt and run update-ca-certificates)"
            ))?;
        }
        print::line(format!("listening on {socket}"))?;
        print::line(format!("listening on {url}"))?;
    }
    io::stdout().flush()?;
    if !address.ip().is_loopback() && !encrypted {
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

/// How connections are to be encrypted, and the file of the authority where that is our own.
fn tls(args: &Serve, data_dir: &Path) -> anyhow::Result<(Option<Tls>, Option<PathBuf>)> {
    let failed = |e: TlsError| {
        let remedy = "give a certificate and its key as PEM files with --tls-cert and --tls-key, or --tls-self-signed";
        Failure::new(NOT_READY, "this server can't speak TLS").cause(e).remedy(remedy)
    };
    if args.tls.tls_self_signed {
        let (tls, file) = Tls::self_signed(data_dir, &args.preview_domain).map_err(failed)?;
        return Ok((Some(tls), Some(file)));
    }
    match (&args.tls.tls_cert, &args.tls.tls_key) {
        (Some(certificate), Some(key)) => Ok((Some(Tls::of_files(certificate, key).map_err(failed)?), None)),
        _ => Ok((None, None)),
    }
}
