//! The benchmark `preview`: requests through a preview against nginx as a reverse proxy to the same server in the same
//! guest, what the way through adds to a connection of one's own, a long download, and what open WebSockets cost. What
//! listens on the guest's loopback address alone has rows of its own.

mod load;
mod namespace;
mod nginx;
mod sockets;

use std::num::NonZeroU16;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::Context as _;
use remuda_client::OutputQuery;
use remuda_client::wire::{CreatePreview, CreateSandbox, StartExecution};
use remuda_types::SandboxId;

use crate::harness::{Contender, Contest, Figure, Goal, Side, Turn};
use crate::ours::{self, Server};
use crate::world::World;
use load::Target;
use namespace::{GUEST, HOST, Outer};
use nginx::Nginx;

/// Where the guest's server listens for everybody, and for the guest alone.
const PORTS: [u16; 2] = [8_080, 8_081];
/// Connections of wrk.
const CONNECTIONS: usize = 32;
/// How long the guest's server may take to listen.
const START_WITHIN: Duration = Duration::from_secs(30);

/// Everything that takes part. What stands first ends first.
struct Stage {
    nginx: Result<Nginx, String>,
    outer: Outer,
    /// Host names of both previews.
    hosts: [String; 2],
    server: Server,
}

/// Takes all figures.
pub(crate) fn figures(world: &World, rounds: usize) -> anyhow::Result<Vec<Figure>> {
    let stage = set(world).map_err(|e| format!("{e:#}"));
    // First of all, when the server has done nothing yet that it could keep memory of.
    let memory = stage.as_ref().map_err(Clone::clone).and_then(|stage| {
        sockets::memory(stage.server.pid(), stage.server.address(), &stage.hosts[0]).map_err(|e| format!("{e:#}"))
    });
    let name = format!("memory of the server for {} WebSockets that say nothing, MiB", sockets::SOCKETS);
    let mut figures = vec![Figure::of_value(&name, side(world), memory, Goal::MebibytesAtMost(50.0))];
    for (at, what) in [(0, ""), (1, ", of a listener on 127.0.0.1 alone")] {
        let judged = |goal| if at == 0 { goal } else { Goal::None };
        let through = turns(&stage, |stage| through(world, stage, at));
        let direct = turns(&stage, |stage| direct(world, stage));
        let name = format!("1,000 requests, {CONNECTIONS} at once, against nginx{what}");
        let contest = Contest { name: &name, rounds, warm_ups: 1, goal: judged(Goal::RatioAtMost(1.0 / 0.8)) };
        let (peer, theirs) = match &stage {
            Ok(stage) => match &stage.nginx {
                Ok(nginx) => (nginx.side(), by_nginx(world, stage).map_err(|e| format!("{e:#}"))),
                Err(reason) => (nginx::unknown(), Err(reason.clone())),
            },
            Err(reason) => (nginx::unknown(), Err(reason.clone())),
        };
        let asks = |target: &Target<'_>| Ok(load::requests(target, CONNECTIONS)?.thousand());
        figures.push(contest.run(of(side(world), &through, asks), Some(of(peer, &theirs, asks))));

        let name = format!("latency of a request, median, against a connection of one's own{what}");
        let contest = Contest { name: &name, rounds, warm_ups: 1, goal: judged(Goal::MillisecondsMoreAtMost(0.5)) };
        let asks = |target: &Target<'_>| Ok(load::requests(target, 1)?.median());
        figures.push(contest.run(of(side(world), &through, asks), Some(of(itself(), &direct, asks))));

        let name = format!("a download of 1 GiB, against a connection of one's own{what}");
        let goal = judged(Goal::RatioAtMost(1.0 / 0.8));
        let contest = Contest { name: &name, rounds: rounds.div_ceil(2), warm_ups: 1, goal };
        figures
            .push(contest.run(of(side(world), &through, load::download), Some(of(itself(), &direct, load::download))));
    }
    Ok(figures)
}

fn side(world: &World) -> Side {
    Side { flags: vec!["preview by host name, TCP, no TLS".to_owned()], ..ours::side(&world.remuda) }
}

fn itself() -> Side {
    let flags = vec!["from the sandbox's outer network namespace, to the guest's own address".to_owned()];
    Side { name: "direct".to_owned(), version: "the same client".to_owned(), flags }
}

fn turns<'a>(
    stage: &'a Result<Stage, String>,
    make: impl FnOnce(&'a Stage) -> anyhow::Result<Target<'a>>,
) -> Result<Target<'a>, String> {
    stage.as_ref().map_err(Clone::clone).and_then(|stage| make(stage).map_err(|e| format!("{e:#}")))
}

fn of<'a>(
    side: Side,
    target: &'a Result<Target<'a>, String>,
    work: impl Fn(&Target<'a>) -> anyhow::Result<Duration> + 'a,
) -> Contender<'a> {
    let turn = target.as_ref().map_err(Clone::clone).map(|target| Box::new(move || work(target)) as Turn<'a>);
    Contender { side, turn }
}

/// Ours: by the preview's host name.
fn through<'a>(world: &World, stage: &'a Stage, at: usize) -> anyhow::Result<Target<'a>> {
    let here = |program: &str| {
        let mut command = Command::new(program);
        command.stdin(Stdio::null());
        command
    };
    let url = format!("http://{}", stage.server.address());
    Target::new(here, url, &stage.hosts[at], &world.scratch, &format!("through-{at}"))
}

fn by_nginx<'a>(world: &World, stage: &'a Stage) -> anyhow::Result<Target<'a>> {
    let url = format!("http://{HOST}:{}", nginx::PORT);
    Target::new(|program| stage.outer.command(program), url, "localhost", &world.scratch, "nginx")
}

/// The guest's server, as nobody stands between. Who listens on loopback alone can't be reached so; the listener for
/// everybody is the same program.
fn direct<'a>(world: &World, stage: &'a Stage) -> anyhow::Result<Target<'a>> {
    let url = format!("http://{GUEST}:{}", PORTS[0]);
    Target::new(|program| stage.outer.command(program), url, "localhost", &world.scratch, "direct")
}

fn set(world: &World) -> anyhow::Result<Stage> {
    let server = Server::start(&world.remuda, &world.scratch)?;
    let client = server.client();
    let (hosts, uid) = world.runtime.block_on(async {
        let made =
            client.create_sandbox(&CreateSandbox { memory_mib: Some(1_024), ..CreateSandbox::default() }).await?;
        let id = made.id;
        client.write_file(&id, "/workspace/guest.mjs", &Default::default(), include_str!("guest.mjs")).await?;
        let ports = PORTS.map(|port| port.to_string());
        let argv = ["node", "/workspace/guest.mjs", &ports[0], &ports[1]].map(str::to_owned).to_vec();
        let started = client.execute(&id, &StartExecution { argv: Some(argv), ..StartExecution::default() }).await?;
        let query = OutputQuery { wait: START_WITHIN, ..OutputQuery::default() };
        let said = client.output(&id, &started.id, &query).await?;
        let said: String = said.records.iter().map(|record| record.text.as_str()).collect();
        anyhow::ensure!(said.contains("listening"), "the guest's server does not listen: {said}");
        let hosts = [host(&client, &id, PORTS[0]).await?, host(&client, &id, PORTS[1]).await?];
        anyhow::Ok((hosts, made.uid))
    })?;
    let outer = Outer::of(&uid)?;
    let nginx = Nginx::start(&outer, PORTS[0], &world.scratch).map_err(|e| format!("{e:#}"));
    Ok(Stage { nginx, outer, hosts, server })
}

async fn host(client: &remuda_client::Client, id: &SandboxId, port: u16) -> anyhow::Result<String> {
    let port = NonZeroU16::new(port).context("no port is 0")?;
    let request = CreatePreview { port, ttl_ms: None, auth: None, host: None, label: None };
    let made = client.create_preview(id, &request).await?;
    let url = made.url.context("the preview has no URL")?;
    Ok(url.split('/').nth(2).context("the URL has no host")?.to_owned())
}
