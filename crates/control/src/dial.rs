//! Connections to programs in a guest: to the guest's own address directly, and by the agent to those that listen on
//! 127.0.0.1 alone.
//!
//! For the latter the agent listens on a port of its own, once and for this host, and what goes through is carried by TCP
//! like everything else of applications: through the control channel it would stand in the way of executions, and be
//! broken off by every server that takes the machine over.

use std::io::ErrorKind;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use remuda_engine::{EngineError, Machine};
use remuda_guest_proto::{Reply, Request};
use remuda_types::{Error, ErrorCode};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

use crate::channel::ChannelError;
use crate::driver::Live;
use crate::errors::chain;
use crate::registry::SandboxCell;
use crate::stream::GuestStream;

/// How long the agent may take to connect to a program.
const AGENT_WAIT_MAX: Duration = Duration::from_secs(10);

/// Until when connections to a guest may stand idle: a capture of its memory would take them along, into copies where
/// nobody is at their other end.
#[derive(Debug, Default)]
pub(crate) struct MayIdle(Mutex<CancellationToken>);

impl MayIdle {
    /// Cancelled when a capture of memory begins.
    pub(crate) fn token(&self) -> CancellationToken {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A capture of memory begins: what stands idle is to be closed. What is opened from here on is another matter.
    pub(crate) fn end(&self) {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner)).cancel();
    }
}

/// Connects to a port of a guest that runs.
///
/// # Errors
/// `port_unreachable` when nothing listens there, neither for everybody nor for the guest alone.
pub(crate) async fn dial(cell: &Arc<SandboxCell>, live: &Live, port: u16) -> Result<GuestStream, Error> {
    let working = cell.life.work().begin();
    let stream = match live.machine.dial(port).await {
        Ok(stream) => stream,
        Err(e) if is_refusal(&e) => by_the_agent(cell, live, port).await?,
        Err(e) => return Err(unreachable(cell, port).cause(chain(&e))),
    };
    // From here on what counts is what goes through it, and not that it is open.
    drop(working);
    Ok(GuestStream::new(stream, cell.life.work().clone()))
}

fn is_refusal(e: &EngineError) -> bool {
    matches!(e, EngineError::Io { source, .. } if source.kind() == ErrorKind::ConnectionRefused)
}

fn unreachable(cell: &SandboxCell, port: u16) -> Error {
    Error::new(ErrorCode::PortUnreachable, format!("nothing answers on port {port} of {}", cell.id))
        .remedy("start the application, or look whether it listens on another port")
}

async fn by_the_agent(cell: &SandboxCell, live: &Live, port: u16) -> Result<TcpStream, Error> {
    let request = Request::Connect { port, from: Machine::dials_from(&cell.uid) };
    match live.channel.call_within(request, AGENT_WAIT_MAX).await {
        Ok(Reply::Listening { port: at }) => {
            live.machine.dial(at).await.map_err(|e| unreachable(cell, port).cause(chain(&e)))
        }
        Ok(_) => Err(unreachable(cell, port).cause("its agent answered something else")),
        Err(ChannelError::Outdated) => Err(unreachable(cell, port)
            .cause("nothing listens on the sandbox's own address, and its agent is too old to look at 127.0.0.1")
            .remedy("let the application listen on 0.0.0.0")),
        Err(e) => Err(unreachable(cell, port).cause(e)),
    }
}
