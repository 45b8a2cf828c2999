//! `rodeo verify`, `rodeo report`, `rodeo key`: what was left of a run, checked without any server. Judges nothing itself.

use std::path::{Path, PathBuf};

use comfy_table::{ContentArrangement, Table, presets};
use remuda_rodeo::evidence::key::Signer;
use remuda_rodeo::evidence::manifest::Parts;
use remuda_rodeo::evidence::verify::{Story, Verification};
use remuda_rodeo::page;

use crate::args::{EvidenceKey, Global, RodeoReport, RodeoVerify, TrustedKeys};
use crate::connection::state_dir;
use crate::failure::{Failure, USAGE};
use crate::print;

/// The key that signs this user's evidence.
pub(super) fn signer(_: &Global, key: &EvidenceKey) -> anyhow::Result<Signer> {
    let path = match &key.key_file {
        Some(path) => path.clone(),
        None => match state_dir() {
            Some(state) => state.join("evidence-key.pem"),
            None => {
                let message =
                    "there is no place for the key that signs evidence: neither XDG_STATE_HOME nor HOME is set";
                return Err(Failure::new(USAGE, message).remedy("name a file with --key-file").into());
            }
        },
    };
    Signer::open(&path).map_err(|error| Failure::new(USAGE, error.to_string()).into())
}

pub fn key(global: &Global, args: &EvidenceKey) -> anyhow::Result<u8> {
    let public = signer(global, args)?.public().to_string();
    if global.json {
        print::json(&serde_json::json!({ "public_key": public }))?;
    } else {
        print::line(&public)?;
    }
    Ok(0)
}

pub fn verify(global: &Global, args: &RodeoVerify) -> anyhow::Result<u8> {
    let (verification, _) = check(&args.bundle, &args.trusted)?;
    if global.json {
        print::json(&verification)?;
    } else {
        tell(&verification)?;
    }
    Ok(verification.exit_code())
}

fn check(bundle: &Path, trusted: &TrustedKeys) -> anyhow::Result<(Verification, Option<Story>)> {
    remuda_rodeo::evidence::verify::verify(bundle, &trusted.trusted)
        .map_err(|error| Failure::new(USAGE, error.to_string()).into())
}

fn tell(verification: &Verification) -> anyhow::Result<()> {
    if !verification.verdicts.is_empty() {
        let mut table = Table::new();
        table.load_style(presets::ASCII_MARKDOWN).set_content_arrangement(ContentArrangement::Disabled);
        table.set_header(["whose", "verdict", "known", "rule", "what was seen"]);
        for conclusion in &verification.verdicts {
            let known = match conclusion.known {
                None => "attempt".to_owned(),
                Some(known) if conclusion.verdict == known => "as known".to_owned(),
                Some(known) => format!("NOT AS KNOWN: {known}"),
            };
            table.add_row([
                conclusion.of.clone(),
                conclusion.verdict.to_string(),
                known,
                conclusion.rule.to_string(),
                print::plain(&conclusion.detail),
            ]);
        }
        print::line(table.to_string())?;
    }
    for problem in &verification.problems {
        print::line(format!("problem: {}", print::plain(&problem.to_string())))?;
    }
    let run = verification.run.as_deref().map_or("a run without a name".to_owned(), print::plain);
    let outcome = verification.outcome.map_or("unknown".to_owned(), |outcome| outcome.to_string());
    if let Some(compared) = &verification.compared {
        let built_in = match verification.built_in {
            Some(true) => ", the built-in workload",
            Some(false) => ", NOT the built-in workload of that name",
            None => "",
        };
        print::line(format!("{}{built_in}", print::plain(compared)))?;
    }
    if let Some(digests) = &verification.digests {
        let Parts { app, patches, checks, .. } = digests;
        print::line(format!("BLAKE3 of app {app}, patches {patches}, checks {checks}"))?;
    }
    print::line(format!("run {run}, outcome {outcome}: {} files as they were sealed", verification.files))?;
    match (&verification.signer, verification.trusted) {
        (None, _) => print::line("signed by nobody")?,
        (Some(key), Some(true)) => print::line(format!("signed by {key}, a trusted key"))?,
        (Some(key), Some(false)) => print::line(format!("signed by {key}, which is NOT a trusted key"))?,
        (Some(key), None) => {
            print::line(format!("signed by {key}; whether that is to be trusted, --trusted-key says"))?;
        }
    }
    print::line(match (verification.problems.is_empty(), verification.as_known) {
        (false, _) => "the evidence does NOT hold",
        (true, Some(true)) => "the evidence holds, and every control got its known verdict",
        (true, Some(false)) => "the evidence holds, and a control did NOT get its known verdict",
        (true, None) => "the evidence holds, of a run without controls or one that judged nothing",
    })?;
    Ok(())
}

pub fn report(global: &Global, args: &RodeoReport) -> anyhow::Result<u8> {
    let (verification, story) = check(&args.bundle, &args.trusted)?;
    let Some(story) = story else {
        let problems: Vec<String> =
            verification.problems.iter().map(|problem| print::plain(&problem.to_string())).collect();
        let message = format!("{} can't be reported on: {}", args.bundle.display(), problems.join("; "));
        return Err(Failure::new(1, message).into());
    };
    if let Some(folder) = place(args).as_ref().and_then(|path| path.parent()?.canonicalize().ok())
        && args.bundle.canonicalize().is_ok_and(|bundle| folder.starts_with(bundle))
    {
        let message = format!("a page in {} would change the bundle, which is sealed", args.bundle.display());
        return Err(Failure::new(USAGE, message).remedy("name a file outside of it with --out").into());
    }
    let text = if args.markdown { page::markdown(&verification, &story) } else { page::html(&verification, &story) };
    match place(args) {
        None => print::line(text.trim_end())?,
        Some(path) => {
            write(&path, &text).map_err(|cause| {
                Failure::new(USAGE, format!("failed to write {}: {cause}", path.display()))
                    .remedy("name another file with --out")
            })?;
            if global.json {
                print::json(&serde_json::json!({ "report": path, "problems": verification.problems }))?;
            } else {
                print::line(path.display().to_string())?;
            }
        }
    }
    // The page says so too.
    for problem in &verification.problems {
        eprintln!("problem: {}", print::plain(&problem.to_string()));
    }
    Ok(verification.exit_code())
}

/// Writes a file whole or not at all, in the place of whatever has its name: a link there is not followed.
fn write(path: &Path, text: &str) -> std::io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut partial = tempfile::NamedTempFile::new_in(folder)?;
    std::io::Write::write_all(&mut partial, text.as_bytes())?;
    std::fs::set_permissions(partial.path(), std::os::unix::fs::PermissionsExt::from_mode(0o644))?;
    partial.persist(path).map(drop).map_err(|error| error.error)
}

/// Never inside the bundle, which is sealed; `None` is standard output.
fn place(args: &RodeoReport) -> Option<PathBuf> {
    match &args.out {
        Some(out) if out.as_os_str() == "-" => None,
        Some(out) => Some(out.clone()),
        None => {
            let bundle = args.bundle.canonicalize().unwrap_or_else(|_| args.bundle.clone());
            let mut name = bundle.file_name().unwrap_or_default().to_owned();
            name.push(if args.markdown { ".md" } else { ".html" });
            Some(bundle.with_file_name(name))
        }
    }
}
