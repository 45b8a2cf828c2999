//! `setup`: makes the machine ready, or looks whether it is. All the work is the engine's.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use remuda_engine::Trial;
use remuda_engine::install::{Cache, Check, Progress, Setup, StepState};
use serde_json::json;

use super::DONE;
use crate::args;
use crate::args::Global;
use crate::failure::NOT_READY;
use crate::print;

pub async fn run(global: &Global, args: &args::Setup) -> anyhow::Result<u8> {
    let (cache, data_dir) = (Cache::new(&global.cache_dir), global.data_dir.clone());
    let setup = Setup { cache, data_dir, local_names: args.local_names };
    if args.check { check(global, &setup).await } else { install(global, &setup).await }
}

async fn install(global: &Global, setup: &Setup) -> anyhow::Result<u8> {
    // Drawn on a terminal only, and on standard error; the steps stay as lines.
    let spinner = ProgressBar::new_spinner();
    if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} ({elapsed})") {
        spinner.set_style(style);
    }
    spinner.enable_steady_tick(Duration::from_millis(120));
    let installed = setup.run(&|progress| tell(global, &spinner, &progress), &Trial).await;
    spinner.finish_and_clear();
    let installed = installed?;
    if global.json {
        print::json(&json!({
            "runsc": { "path": installed.runsc, "digest": installed.runsc_digest, "version": installed.runsc_version },
            "base": { "path": installed.base_root, "digest": installed.base_digest },
            "capabilities": installed.capabilities,
            "fetched": installed.fetched,
        }))?;
    } else if installed.fetched.is_empty() {
        print::line("ready; nothing was downloaded")?;
    } else {
        print::line(format!("ready; downloaded: {}", installed.fetched.join(", ")))?;
    }
    Ok(DONE)
}

fn tell(global: &Global, spinner: &ProgressBar, progress: &Progress) {
    let started = progress.state == StepState::Started;
    if started {
        spinner.set_message(progress.detail.clone());
    }
    // On a terminal the spinner shows what has begun.
    if global.json || (started && !spinner.is_hidden()) {
        return;
    }
    let mark = if started { "..." } else { "ok " };
    // A broken pipe is found by the last line, which says the result.
    spinner.suspend(|| drop(print::line(format!("{mark} {}", progress.detail))));
}

async fn check(global: &Global, setup: &Setup) -> anyhow::Result<u8> {
    let report = setup.check(&Trial).await?;
    let ready = report.checks.iter().all(|check| check.ok);
    if global.json {
        let checks: Vec<_> = report.checks.iter().map(as_json).collect();
        print::json(&json!({ "ready": ready, "checks": checks, "probe": report.probe }))?;
    } else {
        for check in &report.checks {
            print::line(format!("{} {}: {}", if check.ok { "ok " } else { "NO " }, check.name, check.detail))?;
            if let Some(remedy) = check.remedy.as_ref().filter(|_| !check.ok) {
                print::line(format!("    to do: {remedy}"))?;
            }
        }
        print::line(if ready { "the machine is ready" } else { "the machine is not ready" })?;
    }
    Ok(if ready { DONE } else { NOT_READY })
}

fn as_json(check: &Check) -> serde_json::Value {
    json!({ "name": check.name, "ok": check.ok, "detail": check.detail, "remedy": check.remedy })
}
