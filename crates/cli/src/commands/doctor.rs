//! `doctor`: whether the server's records, memory and machine agree, and what it stands on. Changes nothing unless it is
//! asked to repair.

use remuda_client::wire::{Checked, Doctor, Finding, Repaired};

use super::DONE;
use crate::args::{Doctor as Args, Global};
use crate::connection::connect;
use crate::failure::NEGATIVE;
use crate::print;

pub async fn run(global: &Global, args: &Args) -> anyhow::Result<u8> {
    let doctor = connect(global)?.doctor(args.repair).await?;
    if global.json {
        print::json(&doctor)?;
    } else {
        text(&doctor)?;
    }
    Ok(if doctor.well { DONE } else { NEGATIVE })
}

fn text(doctor: &Doctor) -> anyhow::Result<()> {
    doctor.environment.iter().try_for_each(checked)?;
    doctor.findings.iter().try_for_each(finding)?;
    doctor.repairs.iter().try_for_each(repaired)?;
    let (found, repairs) = (doctor.findings.len(), doctor.repaired);
    let since = print::moment(doctor.since_ms);
    print::line(format!("{found} findings; {repairs} repairs since the server started, {since}"))?;
    Ok(())
}

fn checked(checked: &Checked) -> std::io::Result<()> {
    let Checked { name, ok, detail, remedy } = checked;
    print::line(format!("{:<4} {name}: {detail}", if *ok { "ok" } else { "BAD" }))?;
    remedy.iter().try_for_each(|remedy| print::line(format!("     remedy: {remedy}")))
}

fn finding(finding: &Finding) -> std::io::Result<()> {
    let whose = finding.account.as_ref().map(|account| format!(" of {account}")).unwrap_or_default();
    let (thing, name, found) = (finding.thing.word(), print::plain(&finding.name), print::plain(&finding.found));
    print::line(format!("FIND {thing} {name}{whose}: {found}"))?;
    print::line(format!("     remedy: {}", print::plain(&finding.remedy)))
}

fn repaired(repaired: &Repaired) -> std::io::Result<()> {
    let told = &repaired.repair;
    let (thing, name, found) = (told.thing.word(), print::plain(&told.name), print::plain(&told.found));
    print::line(format!("done {} {thing} {name}: {found}; {}", print::moment(repaired.at_ms), told.done))
}
