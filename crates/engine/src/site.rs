//! The place a machine will stand in, and how it is raised there.
//!
//! A site has everything but processes: directories, cgroup, namespaces, the mounted root, the channel's FIFOs. Raising
//! runs `runsc create` and, beside it, gives the sandbox its network and its life through the control socket as soon as
//! that exists: three quarters of the time is runsc starting itself, and nothing waits for its end that need not.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

use remuda_types::Uid;
use tokio::net::unix::pipe;

use crate::alarm::OomAlarm;
use crate::bundle;
use crate::cgroup::Cgroup;
use crate::control_socket::ControlSocket;
use crate::dialer::Dialer;
use crate::dirs::SandboxDirs;
use crate::error::{EngineError, Result, Tried};
use crate::halt::Halt;
use crate::image::ImageFiles;
use crate::machine::Machine;
use crate::network::{self, Namespaces, NetworkBuilder};
use crate::process::HostProcess;

/// How much of runsc's complaint goes into an error, in characters.
const COMPLAINT_CHARS_MAX: usize = 600;
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

/// A site. Whoever drops one without raising it, or fails to, has [`crate::Engine::tear_down`] remove it.
#[derive(Debug)]
pub struct Site {
    pub(crate) uid: Uid,
    pub(crate) dirs: SandboxDirs,
    pub(crate) runsc: PathBuf,
    pub(crate) cgroup: Cgroup,
    pub(crate) oom: OomAlarm,
    pub(crate) namespaces: Namespaces,
    pub(crate) networks: NetworkBuilder,
    pub(crate) dialer: Dialer,
}

impl Site {
    /// Opens the host's ends of the channel. They are opened for reading and writing both, so that neither side ever
    /// sees an end of file, and by descriptions of their own: the sentry makes its ones non-blocking. What is written
    /// before the machine is raised is the first thing its agent reads.
    pub fn open_channel(&self) -> Result<ChannelEnds> {
        open_channel(&self.uid, &self.dirs, self.oom.clone())
    }

    /// Raises the machine and gives it life.
    pub async fn raise(self, life: Life) -> Result<Machine> {
        let control = ControlSocket::new(&self.dirs.control_socket());
        let (pids, outer) = {
            let mut creating = std::pin::pin!(create(&self.runsc, &self.uid, &self.dirs, &self.cgroup));
            let mut enlivening = std::pin::pin!(async {
                // The interfaces are set up while runsc starts its processes.
                let (served, connected) = tokio::join!(
                    control.served(),
                    self.networks.connect(self.namespaces, network::dial_address(&self.uid))
                );
                served?;
                let (outer, packet_socket) = connected?;
                let uid = self.uid.to_string();
                control.with(move |control| enliven(control, &uid, packet_socket, life)).await?;
                Ok(outer)
            });
            tokio::select! {
                // Once runsc has failed, its socket may never be served.
                pids = &mut creating => (pids?, enlivening.await?),
                outer = &mut enlivening => match outer {
                    Ok(outer) => (creating.await?, outer),
                    // What runsc says of its own failure tells more than a socket that hung up.
                    Err(e) => return Err(creating.await.err().unwrap_or(e)),
                },
            }
        };
        let (sentry, gofer) = (HostProcess::open(pids.sentry)?, HostProcess::open(pids.gofer)?);
        let halt = Halt::fresh(self.dirs.halt_mark());
        Ok(Machine::new(self.uid, self.dirs, control, halt, sentry, gofer, self.cgroup, self.oom, outer, self.dialer))
    }
}

/// Opens the host's ends of a machine's channel, as often as there is a new server.
pub(crate) fn open_channel(uid: &Uid, dirs: &SandboxDirs, oom: OomAlarm) -> Result<ChannelEnds> {
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

fn enliven(control: &ControlSocket, uid: &str, packet_socket: OwnedFd, life: Life) -> Result<()> {
    control.create_links(&network::links(), packet_socket.as_fd())?;
    match life {
        Life::Fresh => control.start(uid),
        Life::Restored(files) => control.restore(files.descriptors()),
    }
}

struct Pids {
    sentry: i32,
    gofer: i32,
}

/// Runs `runsc create` to its end; it forks sentry and gofer and leaves them.
async fn create(runsc: &Path, uid: &Uid, dirs: &SandboxDirs, cgroup: &Cgroup) -> Result<Pids> {
    let trying = || format!("create the sandbox {uid}");
    let config = bundle::config(&dirs.mount, &dirs.net_inner());
    let text = serde_json::to_vec(&config).map_err(std::io::Error::from).tried(trying)?;
    fs::write(dirs.bundle.join("config.json"), text).tried(trying)?;
    let open = |fifo: PathBuf| {
        let opened = fs::File::options().read(true).write(true).open(&fifo);
        opened.tried(|| format!("open {}", fifo.display()))
    };
    let (into, out) = (open(dirs.fifo_in())?, open(dirs.fifo_out())?);
    let complaints = fs::File::create(dirs.log.join("create.err")).tried(trying)?;
    let entrances = cgroup.entrances()?;
    let pid_file = dirs.state.join("pid");
    let mut command = tokio::process::Command::new(runsc);
    command
        .arg("--root")
        .arg(dirs.runsc_root())
        .args(["--platform=systrap", "--network=sandbox", "--net-disconnect-ok", "--overlay2=none"])
        .arg("--ignore-cgroups")
        .arg("--log")
        .arg(dirs.log.join("runsc.log"))
        .arg("create")
        .arg("--bundle")
        .arg(&dirs.bundle)
        .arg("--pid-file")
        .arg(&pid_file)
        .arg(uid.as_str())
        .stdin(into)
        .stdout(out)
        .stderr(complaints)
        .env_clear()
        .current_dir("/");
    // SAFETY: between fork and exec only `write` is called, on descriptors that were opened before.
    unsafe {
        command.pre_exec(move || {
            entrances.iter().try_for_each(|mut entrance| std::io::Write::write_all(&mut entrance, b"0"))
        });
    }
    let status = command.status().await.tried(|| format!("run {}", runsc.display()))?;
    if !status.success() {
        return Err(complaint(dirs, status));
    }
    let read = |path: PathBuf| fs::read_to_string(&path).tried(|| format!("read {}", path.display()));
    let bad = |what: &str| EngineError::Create { why: format!("it left no {what}") };
    let sentry = read(pid_file)?.trim().parse().map_err(|_| bad("pid file"))?;
    let state = read(dirs.runsc_root().join(format!("{uid}_sandbox:{uid}.state")))?;
    let gofer = serde_json::from_str::<serde_json::Value>(&state)
        .ok()
        .and_then(|state| i32::try_from(state.get("goferPid")?.as_i64()?).ok())
        .ok_or_else(|| bad("gofer pid in its state file"))?;
    Ok(Pids { sentry, gofer })
}

/// The last that runsc said before it failed.
fn complaint(dirs: &SandboxDirs, status: ExitStatus) -> EngineError {
    let read = |name: &str| fs::read_to_string(dirs.log.join(name)).unwrap_or_default();
    let said = format!("{}{}", read("create.err"), read("runsc.log"));
    let start = said.char_indices().rev().nth(COMPLAINT_CHARS_MAX).map_or(0, |(i, _)| i);
    EngineError::Create { why: format!("{status}: {}", said[start..].trim()) }
}
