//! The commands, one file a group. Each gives the exit code or the error that says why it did not succeed.

mod access;
mod cancel;
mod doctor;
mod drill;
mod evidence;
mod exec;
mod file;
mod files;
mod history;
mod operation;
mod previews;
mod rodeo;
mod sandboxes;
mod search;
mod serve;
mod setup;
mod snapshots;
mod transfers;
mod tree;
mod webhooks;

use crate::args::{Cli, Command, Rodeo};
use crate::print;

/// Everything was done.
pub const DONE: u8 = 0;

/// Runs the command that was given.
pub async fn run(cli: Cli) -> anyhow::Result<u8> {
    let global = &cli.global;
    match cli.command {
        Command::Setup(args) => setup::run(global, &args).await,
        Command::Serve(args) => serve::run(global, &args).await,
        Command::Create(args) => sandboxes::create(global, args).await,
        Command::Ls(args) => sandboxes::list(global, args).await,
        Command::Show(args) => sandboxes::show(global, &args.id).await,
        Command::Stop(args) => sandboxes::stop(global, args).await,
        Command::Start(args) => sandboxes::start(global, args).await,
        Command::Pause(args) => sandboxes::pause(global, args).await,
        Command::Preview(command) => previews::run(global, command).await,
        Command::Webhook(command) => webhooks::run(global, command).await,
        Command::Timeout(args) => sandboxes::timeout(global, args).await,
        Command::Resume(args) => sandboxes::resume(global, args).await,
        Command::Rm(args) => sandboxes::remove(global, args).await,
        Command::Exec(args) => exec::run(global, args).await,
        Command::Attach(args) => exec::attach(global, &args).await,
        Command::Ps(args) => exec::list(global, &args.id).await,
        Command::Logs(args) => exec::logs(global, &args).await,
        Command::Cancel(args) => cancel::run(global, args).await,
        Command::Cp(args) => files::copy(global, args).await,
        Command::File(command) => file::run(global, command).await,
        Command::Snapshot(command) => snapshots::run(global, command).await,
        Command::Fork(args) => snapshots::fork(global, args).await,
        Command::Restore(args) => snapshots::restore(global, args).await,
        Command::Tree(args) => tree::run(global, &args).await,
        Command::Key(command) => access::key(global, command).await,
        Command::Account(command) => access::account(global, command).await,
        Command::Usage(of) => access::usage(global, of.account.as_ref()).await,
        Command::Doctor(args) => doctor::run(global, &args).await,
        Command::Whoami => access::whoami(global).await,
        Command::Operation(args) => operation::run(global, args).await,
        Command::Receipt(args) => history::receipt(global, &args.of).await,
        Command::Events(args) => history::events(global, &args).await,
        Command::Rodeo(Rodeo::Run(args)) => rodeo::run(global, args).await,
        Command::Rodeo(Rodeo::Attempt(args)) => rodeo::attempt(global, args).await,
        Command::Rodeo(Rodeo::Verify(args)) => evidence::verify(global, &args),
        Command::Rodeo(Rodeo::Report(args)) => evidence::report(global, &args),
        Command::Rodeo(Rodeo::Key(args)) => evidence::key(global, &args),
        Command::Rodeo(Rodeo::Drill(args)) => drill::run(global, args).await,
        Command::Openapi => {
            print::line(remuda_gateway::document().to_pretty_json()?)?;
            Ok(DONE)
        }
    }
}
