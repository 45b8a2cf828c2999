//! WebSockets through a preview that are open and say nothing, and what the server holds for them.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::Context as _;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// How many are open at once.
pub(super) const SOCKETS: usize = 1_000;
/// How long one may take to be open.
const OPEN_WITHIN: Duration = Duration::from_secs(30);

/// Opens them all, and gives how much more memory the server holds then, in MiB.
pub(super) fn memory(server: u32, at: SocketAddr, host: &str) -> anyhow::Result<f64> {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })
        .context("cannot raise the number of open files")?;
    // One that was open before, so that what is made once is not counted.
    drop(open(at, host)?);
    let before = resident(server)?;
    let sockets: Vec<TcpStream> = (0..SOCKETS).map(|_| open(at, host)).collect::<anyhow::Result<_>>()?;
    let more = resident(server)? - before;
    drop(sockets);
    Ok(more)
}

fn open(at: SocketAddr, host: &str) -> anyhow::Result<TcpStream> {
    let mut stream = TcpStream::connect(at)?;
    stream.set_read_timeout(Some(OPEN_WITHIN))?;
    write!(
        stream,
        "GET / HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    )?;
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).context("a WebSocket was not opened")?;
        head.extend(byte);
    }
    anyhow::ensure!(head.starts_with(b"HTTP/1.1 101 "), "no WebSocket: {}", String::from_utf8_lossy(&head));
    Ok(stream)
}

/// What a process holds in memory, in MiB.
fn resident(process: u32) -> anyhow::Result<f64> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).context("cannot look at the server")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("the server tells no VmRSS")?;
    let kibibytes: f64 = line.split_whitespace().next().unwrap_or_default().parse()?;
    Ok(kibibytes / 1024.0)
}
