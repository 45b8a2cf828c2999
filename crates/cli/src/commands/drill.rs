//! `rodeo drill`: drills on servers of their own, which are this same binary. Judges nothing itself.

use std::env;
use std::path::PathBuf;

use anyhow::Context;
use remuda_rodeo::{Drill, DrillError, DrillOptions, DrillReport, drill};

use super::DONE;
use super::rodeo::EVIDENCE;
use crate::args::{Drills, Global, RodeoDrill};
use crate::embedded::directory_root;
use crate::failure::{self, Failure, NEGATIVE, USAGE};
use crate::print;

pub async fn run(global: &Global, args: RodeoDrill) -> anyhow::Result<u8> {
    if global.url.is_some() {
        let failure = Failure::new(USAGE, "a drill breaks a server on purpose, and so only ever one of its own");
        return Err(failure.remedy("leave out --url and REMUDA_URL").into());
    }
    let options = DrillOptions {
        program: env::current_exe().context("this program can't find itself, which it needs for a server")?,
        arguments: vec!["--cache-dir".into(), global.cache_dir.clone().into()],
        out: args.out.unwrap_or_else(|| PathBuf::from(EVIDENCE)),
        scratch: directory_root(),
    };
    match args.drills {
        Drills::One(name) => {
            let report = drill(name, &options).await.map_err(|error| explain(&error))?;
            if global.json {
                print::json(&report)?;
            } else {
                print::line(report.to_string().trim_end())?;
            }
            Ok(if report.passed { DONE } else { NEGATIVE })
        }
        Drills::All => all(global, &options).await,
    }
}

/// Each after the other; one that can't be carried out does not keep the others.
async fn all(global: &Global, options: &DrillOptions) -> anyhow::Result<u8> {
    let (mut reports, mut code) = (Vec::new(), DONE);
    for name in Drill::ALL {
        match drill(*name, options).await {
            Ok(report) => {
                if !report.passed {
                    code = NEGATIVE;
                    if !global.json {
                        print::line(report.to_string().trim_end())?;
                    }
                }
                reports.push(report);
            }
            Err(error) => code = failure::report(&explain(&error).into()),
        }
    }
    if global.json {
        print::json(&reports)?;
    } else {
        print::table(["DRILL", "RESULT", "FACTS", "REQUESTS", "LOST", "MS"], reports.iter().map(row))?;
    }
    Ok(code)
}

fn row(report: &DrillReport) -> [String; 6] {
    let holding = report.facts.iter().filter(|fact| fact.holds).count();
    [
        report.drill.to_string(),
        if report.passed { "passed" } else { "FAILED" }.to_owned(),
        format!("{holding} of {}", report.facts.len()),
        report.requests.sent.to_string(),
        report.requests.lost.to_string(),
        report.took_ms.to_string(),
    ]
}

fn explain(error: &DrillError) -> Failure {
    Failure::new(error.exit_code(), error.to_string())
}
