//! Opens TCP connections into sandboxes, from the outer namespace of each.
//!
//! One thread moves between namespaces and does nothing but open sockets there; a socket keeps its namespace, so that
//! connecting and everything after happens wherever the caller likes.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, mpsc};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tokio::net::TcpSocket;
use tokio::sync::oneshot;

use crate::error::{EngineError, Result, Tried};

struct Order {
    namespace: Arc<OwnedFd>,
    errand: Errand,
}

enum Errand {
    /// Open a socket.
    Open(oneshot::Sender<std::io::Result<OwnedFd>>),
    /// Count the established TCP connections.
    Count(oneshot::Sender<std::io::Result<u32>>),
}

/// The dialling thread. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Dialer {
    orders: mpsc::Sender<Order>,
}

impl Dialer {
    /// Starts the thread; it ends when the last clone is dropped.
    pub fn start() -> Result<Self> {
        let (orders, inbox) = mpsc::channel::<Order>();
        std::thread::Builder::new()
            .name("remuda-dialer".into())
            .spawn(move || {
                for order in inbox {
                    // Whoever asked may have gone away.
                    match order.errand {
                        Errand::Open(done) => drop(done.send(open_in(&order.namespace))),
                        Errand::Count(done) => drop(done.send(count_in(&order.namespace))),
                    }
                }
            })
            .tried(|| "start the dialling thread".into())?;
        Ok(Dialer { orders })
    }

    /// Connects to a port of the guest whose outer namespace this is, from an address of that namespace. The error's
    /// source tells a refusal from a
    /// time-out.
    pub async fn dial(
        &self,
        namespace: &Arc<OwnedFd>,
        from: Ipv4Addr,
        to: Ipv4Addr,
        port: u16,
    ) -> Result<tokio::net::TcpStream> {
        let socket = self.send(namespace, Errand::Open).await?.tried(|| "open a socket towards the sandbox".into())?;
        let socket = TcpSocket::from_std_stream(TcpStream::from(socket));
        socket.bind(SocketAddr::from((from, 0))).tried(|| format!("dial from {from}"))?;
        let stream = socket.connect(SocketAddr::from((to, port))).await;
        let stream = stream.tried(|| format!("connect to port {port} of the sandbox"))?;
        stream.set_nodelay(true).tried(|| "turn off Nagle's algorithm".into())?;
        Ok(stream)
    }

    /// How many TCP connections into the guest are established.
    pub async fn count(&self, namespace: &Arc<OwnedFd>) -> Result<u32> {
        self.send(namespace, Errand::Count).await?.tried(|| "count the connections of a sandbox".into())
    }

    async fn send<T>(&self, namespace: &Arc<OwnedFd>, errand: impl FnOnce(oneshot::Sender<T>) -> Errand) -> Result<T> {
        let ended = || EngineError::NotReady { what: "the dialling thread has ended; restart the server".into() };
        let (done, answer) = oneshot::channel();
        let order = Order { namespace: namespace.clone(), errand: errand(done) };
        self.orders.send(order).map_err(|_| ended())?;
        answer.await.map_err(|_| ended())
    }
}

/// The fourth column of `/proc/net/tcp` is the state; 01 is ESTABLISHED.
fn count_in(namespace: &OwnedFd) -> std::io::Result<u32> {
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
    let table = std::fs::read_to_string("/proc/thread-self/net/tcp")?;
    let established = |line: &&str| line.split_ascii_whitespace().nth(3) == Some("01");
    Ok(table.lines().skip(1).filter(established).count() as u32)
}

fn open_in(namespace: &OwnedFd) -> std::io::Result<OwnedFd> {
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?)
}
