//! `preview`: access to one port of a sandbox. A credential is printed to standard output where it is issued, and must go
//! nowhere else.

use remuda_types::wire::{CreatePreview, MadePreview, Preview, PreviewAuth, PreviewList, ProbeResult, RenewPreview};

use super::DONE;
use crate::args::{Global, PreviewCommand, milliseconds};
use crate::connection::{connect, connect_for};
use crate::failure::NEGATIVE;
use crate::print;

pub async fn run(global: &Global, command: PreviewCommand) -> anyhow::Result<u8> {
    match command {
        PreviewCommand::Create(args) => {
            let request = CreatePreview {
                port: args.port,
                ttl_ms: args.ttl.map(milliseconds),
                auth: args.auth.map(Into::into),
                host: args.host.map(Into::into),
                label: args.label,
            };
            let made = connect_for(global, args.key.key)?.create_preview(&args.sandbox.id, &request).await?;
            issued(global, &made)?;
        }
        PreviewCommand::Ls(args) => {
            let previews = connect(global)?.previews(&args.id).await?;
            if global.json { print::json(&PreviewList { previews })? } else { table(&previews)? }
        }
        PreviewCommand::Show(args) => {
            let preview = connect(global)?.preview(&args.sandbox.id, &args.preview).await?;
            if global.json { print::json(&preview)? } else { shown(&preview)? }
        }
        PreviewCommand::Rotate(args) => {
            let client = connect_for(global, args.key.key)?;
            issued(global, &client.rotate_preview(&args.of.sandbox.id, &args.of.preview).await?)?;
        }
        PreviewCommand::Renew(args) => {
            let (client, request) =
                (connect_for(global, args.key.key)?, RenewPreview { ttl_ms: args.ttl.map(milliseconds) });
            issued(global, &client.renew_preview(&args.of.sandbox.id, &args.of.preview, &request).await?)?;
        }
        PreviewCommand::Revoke(args) => {
            let client = connect_for(global, args.key.key)?;
            let preview = client.revoke_preview(&args.of.sandbox.id, &args.of.preview).await?;
            if global.json {
                print::json(&preview)?;
            } else {
                print::line(format!("{} is {}", preview.id, preview.state))?;
            }
        }
        PreviewCommand::Probe(args) => {
            let probe = connect(global)?.probe_preview(&args.sandbox.id, &args.preview).await?;
            if global.json {
                print::json(&probe)?;
            } else {
                print::line(format!("{}: {}", probe.result.as_str(), print::plain(&probe.words)))?;
            }
            if probe.result != ProbeResult::Answers {
                return Ok(NEGATIVE);
            }
        }
    }
    Ok(DONE)
}

/// The URL alone, where that is enough to get in; else what must come along on further lines.
fn issued(global: &Global, made: &MadePreview) -> anyhow::Result<()> {
    if global.json {
        return print::json(made);
    }
    let preview = &made.preview;
    match (&made.url, preview.auth) {
        (Some(url), PreviewAuth::Host | PreviewAuth::Cookie) => print::line(url)?,
        _ => {
            let url = made.header_url.as_ref().or(made.url.as_ref());
            print::line(url.map_or_else(|| format!("/previews/{}/", preview.id), Clone::clone))?;
            print::line(format!("X-Remuda-Preview-Token: {}", made.token))?;
        }
    }
    eprintln!("({} until {}; {})", preview.id, print::moment(preview.expires_at_ms), made.note);
    Ok(())
}

fn auth(preview: &Preview) -> &'static str {
    match preview.auth {
        PreviewAuth::Host => "host",
        PreviewAuth::Header => "header",
        PreviewAuth::Cookie => "cookie",
    }
}

fn table(previews: &[Preview]) -> std::io::Result<()> {
    print::table(
        ["ID", "PORT", "STATE", "AUTH", "UNTIL", "LABEL"],
        previews.iter().map(|preview| {
            let until = print::moment(preview.expires_at_ms);
            let label = preview.label.clone().unwrap_or_default();
            let (id, port, state) = (preview.id.to_string(), preview.port.to_string(), preview.state.to_string());
            [id, port, state, auth(preview).to_owned(), until, label]
        }),
    )
}

fn shown(preview: &Preview) -> std::io::Result<()> {
    let mut rows = vec![
        ("id", preview.id.to_string()),
        ("sandbox", preview.sandbox.to_string()),
        ("port", preview.port.to_string()),
        ("state", preview.state.to_string()),
        ("auth", auth(preview).to_owned()),
        ("until", print::moment(preview.expires_at_ms)),
        ("rotations", preview.rotations.to_string()),
    ];
    rows.extend(preview.revoked_at_ms.map(|at| ("revoked", print::moment(at))));
    rows.extend(preview.label.clone().map(|label| ("label", label)));
    print::pairs(&rows)
}
