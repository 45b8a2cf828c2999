//! The place a machine will stand in, and how it is raised there.
//!
//! A site has everything but processes: directories, cgroup, namespaces, the mounted root, the channel's FIFOs. Raising
//! starts them, and gives the sandbox its network and its life through the control socket, which is there before them:
//! the first calls wait in its queue until the sentry serves it.

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use remuda_types::Uid;
use tokio::net::unix::pipe;

use crate::alarm::OomAlarm;
use crate::cgroup::Cgroup;
use crate::control_socket::ControlSocket;
use crate::dialer::Dialer;
use crate::dirs::SandboxDirs;
use crate::error::{EngineError, Result, Tried};
use crate::halt::Halt;
use crate::image::ImageFiles;
use crate::launch::{Launch, Launched};
use crate::machine::GvisorMachine;
use crate::network::{self, Namespaces, NetworkBuilder, Wanted};

/// Size of the FIFOs' buffers, in bytes: a frame of data fits whole.
const FIFO_BYTES: usize = 1 << 20;

/// What a machine is filled with.
#[derive(Debug)]
pub enum Life {
    /// A fresh agent.
    Fresh,
    /// A captured machine.
    Restored(ImageFiles),
}

/// The host's ends of a machine's control channel.
#[derive(Debug)]
pub struct ChannelEnds {
    /// Host to guest.
    pub to_guest: pipe::Sender,
    /// Guest to host.
    pub from_guest: pipe::Receiver,
    /// Tells what a guest process that ended may have died of.
    pub oom: OomAlarm,
}

impl ChannelEnds {
    /// Makes a new machine's FIFOs; their directory is there.
    pub fn make(dirs: &SandboxDirs) -> Result<()> {
        for fifo in [dirs.fifo_in(), dirs.fifo_out()] {
            let mode = rustix::fs::Mode::from_raw_mode(0o600);
            rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, mode).tried(|| format!("make {}", fifo.display()))?;
        }
        Ok(())
    }

    /// Opens the host's ends of a machine's channel, as often as there is a new server.
    pub fn open(uid: &Uid, dirs: &SandboxDirs, oom: OomAlarm) -> Result<ChannelEnds> {
        let options = || {
            let mut options = pipe::OpenOptions::new();
            options.read_write(true);
            options
        };
        let trying = || format!("open the control channel of {uid}");
        let to_guest = options().open_sender(dirs.fifo_in()).tried(trying)?;
        let from_guest = options().open_receiver(dirs.fifo_out()).tried(trying)?;
        // Larger buffers are a matter of speed; a refusal (the pipe quota of a user) is fine.
        let _ = rustix::pipe::fcntl_setpipe_size(&to_guest, FIFO_BYTES);
        let _ = rustix::pipe::fcntl_setpipe_size(&from_guest, FIFO_BYTES);
        Ok(ChannelEnds { to_guest, from_guest, oom })
    }
}

/// A site. Whoever drops one without raising it, or fails to, has [`crate::Engine::tear_down`] remove it.
#[derive(Debug)]
pub(crate) struct GvisorSite {
    pub(crate) uid: Uid,
    pub(crate) dirs: SandboxDirs,
    pub(crate) runsc: PathBuf,
    pub(crate) cgroup: Cgroup,
    /// What the guest may use and is told it has, in bytes.
    pub(crate) memory_bytes: u64,
    pub(crate) oom: OomAlarm,
    pub(crate) namespaces: Namespaces,
    pub(crate) networks: NetworkBuilder,
    pub(crate) wanted: Wanted,
    pub(crate) dialer: Dialer,
}

impl GvisorSite {
    /// Opens the host's ends of the channel. They are opened for reading and writing both, so that neither side ever
    /// sees an end of file, and by descriptions of their own: the sentry makes its ones non-blocking. What is written
    /// before the machine is raised is the first thing its agent reads.
    pub(crate) fn open_channel(&self) -> Result<ChannelEnds> {
        ChannelEnds::open(&self.uid, &self.dirs, self.oom.clone())
    }

    /// Raises the machine and gives it life.
    pub(crate) async fn raise(self, life: Life) -> Result<GvisorMachine> {
        let trying = || format!("start the sandbox {}", self.uid);
        let control = ControlSocket::new(&self.dirs.control_socket());
        let network = self.namespaces.inner().try_clone().tried(trying)?;
        let (runsc, uid, dirs, memory_bytes) = (self.runsc, self.uid.clone(), self.dirs.clone(), self.memory_bytes);
        let launching = tokio::task::spawn_blocking(move || {
            let network = network.as_fd();
            let launch = Launch { runsc: &runsc, uid: &uid, dirs: &dirs, cgroup: &self.cgroup, network, memory_bytes };
            launch.start().map(|launched| (launched, self.cgroup))
        });
        let egress = self.wanted.egress;
        // The interfaces are set up while runsc starts.
        let (launched, connected) = tokio::join!(launching, self.networks.connect(self.namespaces, self.wanted));
        let (launched, cgroup) = launched.map_err(std::io::Error::other).tried(trying)??;
        let Launched { sentry, gofer, up } = launched;
        let uid = self.uid.to_string();
        let enlivened = match connected {
            Ok((outer, packet_socket)) => {
                let enlivened = control.with(move |control| enliven(control, &uid, egress, packet_socket, life)).await;
                enlivened.map(|()| outer)
            }
            Err(e) => Err(e),
        };
        // The sentry would take a closed pipe for the end of whoever wants it.
        drop(up);
        let outer = match enlivened {
            Ok(outer) => outer,
            Err(e) => {
                // Both are children of this process: whoever is not waited for stays as a zombie.
                sentry.kill()?;
                gofer.kill()?;
                sentry.ended().await;
                gofer.ended().await;
                // What runsc says of its own failure tells more than a socket that hung up.
                return Err(if matches!(e, EngineError::Ended) { Launch::complaint(&self.dirs) } else { e });
            }
        };
        let halt = Halt::fresh(self.dirs.halt_mark());
        let (dialer, networks) = (self.dialer, self.networks);
        let machine = GvisorMachine::new(
            self.uid, self.dirs, control, halt, sentry, gofer, cgroup, self.oom, outer, dialer, networks,
        );
        Ok(machine)
    }
}

fn enliven(control: &ControlSocket, uid: &str, egress: bool, packet_socket: OwnedFd, life: Life) -> Result<()> {
    control.create_links(&network::links(egress), packet_socket.as_fd())?;
    match life {
        Life::Fresh => control.start(uid),
        Life::Restored(files) => control.restore(files.descriptors()),
    }
}
