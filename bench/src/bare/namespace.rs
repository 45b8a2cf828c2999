//! Pairs of network namespaces for bare sandboxes, made ahead and never timed. They have no names: they are held by
//! descriptors and end with this process, so that nothing is left behind even after a kill.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

use super::launch;

/// The guest's address in every sandbox.
const GUEST: Ipv4Addr = Ipv4Addr::new(10, 254, 0, 2);
/// The guest's hardware address in every sandbox; a restore needs the one that was captured.
const MAC: &str = "02:ac:10:00:00:02";
/// How long one attempt to connect may take before the next: a SYN that the guest was too early for is never answered.
const ATTEMPT: Duration = Duration::from_millis(5);

/// An inner namespace with `eth0` for the sandbox, and an outer one that reaches it.
pub(crate) struct Network {
    inner: OwnedFd,
    outer: OwnedFd,
}

impl Network {
    /// Makes both and the veth pair between them. `ip` must be installed.
    pub(crate) fn new() -> anyhow::Result<Network> {
        let network = Network { inner: fresh()?, outer: fresh()? };
        let inner = network.inner_path();
        ip(
            network.outer.as_fd(),
            &format!(
                "link add veth0 type veth peer name eth0 address {MAC} netns {inner}\n\
                 addr add 10.254.0.1/30 dev veth0\nlink set lo up\nlink set veth0 addrgenmode none up\n\
                 neigh add {GUEST} lladdr {MAC} dev veth0 nud permanent\n"
            ),
        )?;
        ip(
            network.inner.as_fd(),
            &format!(
                "addr add {GUEST}/30 dev eth0\nlink set lo up\nlink set eth0 addrgenmode none up\n\
                 route add default via 10.254.0.1\n"
            ),
        )?;
        Ok(network)
    }

    /// A path by which another process of this machine can open the inner namespace while this one lives.
    pub(crate) fn inner_path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.inner.as_raw_fd())
    }

    /// The inner namespace.
    pub(crate) fn inner(&self) -> BorrowedFd<'_> {
        self.inner.as_fd()
    }

    /// Asks the guest over HTTP again and again, each time on a fresh connection, until it answers with status 200;
    /// gives the body.
    pub(crate) fn first_answer(&self, port: u16, path: &str, patience: Duration) -> anyhow::Result<String> {
        let request = format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n");
        self.outside(|| {
            let deadline = Instant::now() + patience;
            loop {
                let last = match exchange(port, request.as_bytes(), ATTEMPT) {
                    Ok((200, body)) => return Ok(body),
                    Ok((status, body)) => format!("status {status}: {body}"),
                    Err(e) => format!("{e:#}"),
                };
                anyhow::ensure!(Instant::now() < deadline, "the guest's port {port} gave no 200 in time; last: {last}");
            }
        })
    }

    /// Posts JSON to the guest once.
    pub(crate) fn post(&self, port: u16, path: &str, json: &str) -> anyhow::Result<(u16, String)> {
        let request = format!(
            "POST {path} HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{json}",
            json.len()
        );
        self.outside(|| exchange(port, request.as_bytes(), Duration::from_secs(2)))
    }

    /// Runs the work on a thread of its own inside the outer namespace.
    fn outside<T: Send>(&self, work: impl FnOnce() -> anyhow::Result<T> + Send) -> anyhow::Result<T> {
        let outer = self.outer.as_fd();
        std::thread::scope(|scope| {
            let thread = scope.spawn(move || {
                move_into_link_name_space(outer, Some(LinkNameSpaceType::Network))
                    .context("cannot enter the outer namespace")?;
                work()
            });
            thread.join().unwrap_or_else(|_| Err(anyhow::anyhow!("the thread in the outer namespace panicked")))
        })
    }
}

fn exchange(port: u16, request: &[u8], connect: Duration) -> anyhow::Result<(u16, String)> {
    let mut stream = TcpStream::connect_timeout(&SocketAddr::from((GUEST, port)), connect)?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    stream.set_write_timeout(Some(Duration::from_secs(5)))?;
    stream.write_all(request)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").context("the answer has no head")?;
    let status = head.split(' ').nth(1).and_then(|s| s.parse().ok()).context("the answer has no status")?;
    Ok((status, body.to_owned()))
}

fn fresh() -> anyhow::Result<OwnedFd> {
    let thread = std::thread::spawn(|| -> anyhow::Result<OwnedFd> {
        // SAFETY: only the network namespace of this short-lived thread changes; no descriptor table is unshared.
        unsafe { unshare_unsafe(UnshareFlags::NEWNET) }.context("cannot make a network namespace (are you root?)")?;
        Ok(File::open("/proc/thread-self/ns/net")?.into())
    });
    thread.join().unwrap_or_else(|_| Err(anyhow::anyhow!("the thread that makes a namespace panicked")))
}

fn ip(namespace: BorrowedFd<'_>, batch: &str) -> anyhow::Result<()> {
    let mut command = Command::new("ip");
    command.args(["-batch", "-"]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    launch::enter_network(&mut command, namespace);
    let mut child = command.spawn().context("cannot run `ip` (install iproute2)")?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(batch.as_bytes())?;
    }
    let output = child.wait_with_output()?;
    anyhow::ensure!(output.status.success(), "`ip -batch` failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(())
}
