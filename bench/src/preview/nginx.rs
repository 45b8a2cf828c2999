//! The peer: nginx as a reverse proxy in front of the same guest server, with connections to it that are kept. All of it is
//! in a directory of this run.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use rustix::process::{Pid, Signal, kill_process};

use super::namespace::{GUEST, HOST, Outer};
use crate::harness::Side;

/// Where it listens in the sandbox's outer namespace.
pub(super) const PORT: u16 = 8_900;
/// How long it may take to answer.
const START_WITHIN: Duration = Duration::from_secs(10);

/// A running nginx; ended when dropped.
pub(super) struct Nginx {
    process: Child,
    side: Side,
}

impl Nginx {
    /// Starts it in front of a port of the guest.
    pub(super) fn start(outer: &Outer, port: u16, scratch: &Path) -> anyhow::Result<Nginx> {
        let place = scratch.join("nginx");
        fs::create_dir_all(&place).with_context(|| format!("cannot make {}", place.display()))?;
        let file = place.join("nginx.conf");
        fs::write(&file, configuration(&place, port))?;
        let mut command = outer.command("nginx");
        command.arg("-p").arg(&place).arg("-c").arg(&file).arg("-e").arg(place.join("error.log"));
        command.stdout(Stdio::null()).stderr(File::create(place.join("said.log"))?);
        let process = command.spawn().context("cannot start nginx")?;
        let mut nginx = Nginx { process, side: unknown() };
        nginx.side.version = version()?;
        nginx.answers(outer)?;
        Ok(nginx)
    }

    /// Waits until it answers.
    fn answers(&mut self, outer: &Outer) -> anyhow::Result<()> {
        let until = Instant::now() + START_WITHIN;
        loop {
            let mut ask = outer.command("curl");
            ask.args(["-s", "-o", "/dev/null", "--noproxy", "*", &format!("http://{HOST}:{PORT}/")]);
            if ask.status().context("cannot run curl")?.success() {
                return Ok(());
            }
            anyhow::ensure!(self.process.try_wait()?.is_none(), "nginx has ended; see what it said in its error.log");
            anyhow::ensure!(Instant::now() < until, "nginx did not answer within {START_WITHIN:?}");
        }
    }

    /// Its version and settings.
    pub(super) fn side(&self) -> Side {
        self.side.clone()
    }
}

/// What it is called where it can't run.
pub(super) fn unknown() -> Side {
    let flags = ["worker_processes auto", "keepalive 64", "proxy_http_version 1.1", "access_log off"];
    Side { name: "nginx".to_owned(), version: "unknown".to_owned(), flags: flags.map(str::to_owned).into() }
}

fn version() -> anyhow::Result<String> {
    let output = Command::new("nginx").arg("-v").stdin(Stdio::null()).output().context("cannot run nginx")?;
    Ok(String::from_utf8_lossy(&output.stderr).trim().to_owned())
}

fn configuration(place: &Path, port: u16) -> String {
    let place = place.display();
    format!(
        "daemon off;\nuser root;\nworker_processes auto;\npid {place}/pid;\nevents {{ worker_connections 4096; }}\n\
         http {{\n  access_log off;\n  client_body_temp_path {place}/body;\n  proxy_temp_path {place}/proxy;\n  \
         fastcgi_temp_path {place}/fastcgi;\n  uwsgi_temp_path {place}/uwsgi;\n  scgi_temp_path {place}/scgi;\n  \
         keepalive_requests 1000000;\n  upstream guest {{ server {GUEST}:{port}; keepalive 64; keepalive_requests 1000000; }}\n  \
         server {{\n    listen {HOST}:{PORT};\n    location / {{\n      proxy_pass http://guest;\n      \
         proxy_http_version 1.1;\n      proxy_set_header Connection \"\";\n      proxy_set_header Host localhost:{port};\n      \
         proxy_set_header X-Forwarded-For $remote_addr;\n      proxy_set_header X-Forwarded-Proto $scheme;\n      \
         proxy_set_header X-Forwarded-Host $host;\n    }}\n  }}\n}}\n"
    )
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // nsenter has become nginx itself. On this signal it ends with its workers.
        let pid = i32::try_from(self.process.id()).ok().and_then(Pid::from_raw);
        let asked = pid.map(|pid| kill_process(pid, Signal::TERM));
        if !matches!(asked, Some(Ok(()))) {
            let _ = self.process.kill();
        }
        let _ = self.process.wait();
    }
}
