//! Starts a sandbox's two host processes: the gofer, which serves its files, and the sentry, which is its kernel.
//!
//! `runsc create` does the same by starting itself seven times, which is most of its time: itself, then gofer and sentry
//! twice each (once to build a root and drop capabilities, once more to work there), and for each of these two a helper
//! that unmounts `/proc`. Here each of the two is started once, by a child that has already gone where runsc would have
//! gone: the same namespaces, the same empty roots, the same capabilities or fewer. The commands `gofer` and `boot` and
//! their options are inner interfaces of runsc, as the control socket is: only builds that `remuda setup` has tried on
//! this machine are spoken to in this way.
//!
//! What must hold for whatever is started here, and is looked at by `crates/engine/tests/confinement.rs`: a user
//! namespace of its own, so that root in it has no power over anything outside; a root with nothing in it (sentry) or
//! with nothing but the sandbox's files (gofer); no capability beyond the few that files need, and that to trace one's
//! own processes; no descriptor but those that are named below.

mod child;
mod spawn;

use std::ffi::CString;
use std::fs::{self, File};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::Path;

use remuda_types::Uid;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::pipe::{PipeFlags, pipe_with};

use crate::bundle;
use crate::cgroup::Cgroup;
use crate::dirs::SandboxDirs;
use crate::error::{EngineError, Result, Tried};
use crate::process::HostProcess;
use child::Confinement;
use spawn::Spawn;

/// How much of what runsc said before it failed goes into an error, in characters.
const COMPLAINT_CHARS_MAX: usize = 600;
/// The first descriptor of those that are handed over; 0 to 2 are the process's own.
const FIRST_FD: usize = 3;

/// What the two processes are started from.
#[derive(Debug)]
pub(crate) struct Launch<'a> {
    /// The runsc binary.
    pub(crate) runsc: &'a Path,
    /// The sandbox's uid, which is runsc's id of it.
    pub(crate) uid: &'a Uid,
    /// Its places; the root is mounted, the FIFOs are made.
    pub(crate) dirs: &'a SandboxDirs,
    /// The group that both join before anything else.
    pub(crate) cgroup: &'a Cgroup,
    /// The network namespace with its `eth0`.
    pub(crate) network: BorrowedFd<'a>,
    /// What the guest is told it has, in bytes; as on any Linux, a tmpfs in it holds half of that.
    pub(crate) memory_bytes: u64,
}

/// Both processes, and the listening end of the sentry's birth.
#[derive(Debug)]
pub(crate) struct Launched {
    pub(crate) sentry: HostProcess,
    pub(crate) gofer: HostProcess,
    /// The sentry writes one byte when its control server is up; it is closed without one when it failed.
    pub(crate) up: OwnedFd,
}

impl Launch<'_> {
    /// Starts both. They are children of this process, and end with nobody: whoever has them must kill them. Blocks for
    /// a few milliseconds. Must be called within a tokio runtime.
    pub(crate) fn start(&self) -> Result<Launched> {
        let trying = || format!("start the sandbox {}", self.uid);
        let config = bundle::config(&self.dirs.mount);
        let config = serde_json::to_vec(&config).map_err(std::io::Error::from).tried(trying)?;
        let spec = self.dirs.bundle.join("config.json");
        fs::write(&spec, config).tried(trying)?;
        // Each reads it from its own place: a shared description would have one place for both.
        let open_spec = || File::open(&spec).tried(trying);
        // Listened on before there is anybody to answer: whoever connects early waits in the queue.
        let control = UnixListener::bind(self.dirs.control_socket()).tried(trying)?;
        let (files_of_sentry, files_of_gofer) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).tried(trying)?;
        let (mounts_read, mounts_write) = pipe_with(PipeFlags::CLOEXEC).tried(trying)?;
        let (up, tell_up) = pipe_with(PipeFlags::CLOEXEC).tried(trying)?;
        let runsc = File::open(self.runsc).tried(|| format!("open {}", self.runsc.display()))?;
        let entrances = self.cgroup.entrances()?;
        let said = |name: &str| {
            let path = self.dirs.log.join(name);
            File::options().create(true).append(true).open(&path).tried(|| format!("open {}", path.display()))
        };
        let (log_of_gofer, log_of_sentry) = (said("runsc.log")?, said("runsc.log")?);

        let (spec_fd, (unmount, tell_unmount)) = (open_spec()?, pipe_with(PipeFlags::CLOEXEC).tried(trying)?);
        let mut gofer = {
            let mut handed = Handed::default();
            let mut argv = self.common("runsc-gofer", handed.next(&log_of_gofer));
            argv.extend([
                "gofer".to_owned(),
                format!("--bundle={}", self.dirs.bundle.display()),
                "--gofer-mount-confs=lisafs:none".into(),
                format!("--spec-fd={}", handed.next(&spec_fd)),
                format!("--mounts-fd={}", handed.next(&mounts_write)),
                format!("--io-fds={}", handed.next(&files_of_gofer)),
                format!("--proc-mount-sync-fd={}", handed.next(&tell_unmount)),
                "--setup-root=false".into(),
                "--apply-caps=false".into(),
            ]);
            let root = c_string(self.dirs.mount.as_os_str().as_encoded_bytes())?;
            let complaints = said("gofer.err")?;
            Spawn {
                binary: &runsc,
                argv: c_strings(argv)?,
                entrances: &entrances,
                complaints: &complaints,
                handed: handed.descriptors,
                unmount_proc: unmount.as_fd(),
                confinement: Confinement::Gofer { network: self.network, root },
            }
            .bear()
            .tried(|| format!("start the gofer of {}", self.uid))?
        };
        // It has its own copies, and is on its way while the other one is made.
        drop((files_of_gofer, mounts_write, tell_unmount, unmount));

        // Whoever opens a FIFO for reading and writing never sees its end, whatever the server does.
        let fifo = |path: &Path| {
            let opened = File::options().read(true).write(true).open(path);
            opened.tried(|| format!("open {}", path.display()))
        };
        let (into, out) = (fifo(&self.dirs.fifo_in())?, fifo(&self.dirs.fifo_out())?);
        let nothing = File::options().read(true).write(true).open("/dev/null").tried(trying)?;
        let (spec_fd, (unmount, tell_unmount)) = (open_spec()?, pipe_with(PipeFlags::CLOEXEC).tried(trying)?);
        let mut sentry = {
            let mut handed = Handed::default();
            let mut argv = self.common("runsc-sandbox", handed.next(&log_of_sentry));
            argv.extend([
                "boot".to_owned(),
                format!("--bundle={}", self.dirs.bundle.display()),
                "--gofer-mount-confs=lisafs:none".into(),
                format!("--total-host-memory={}", self.memory_bytes),
                format!("--total-memory={}", self.memory_bytes),
                format!("--host-shmem-huge={}", shared_huge_pages()),
                format!("--io-fds={}", handed.next(&files_of_sentry)),
                "--dev-io-fd=-1".into(),
                format!("--mounts-fd={}", handed.next(&mounts_read)),
                format!("--start-sync-fd={}", handed.next(&tell_up)),
                format!("--controller-fd={}", handed.next(&control)),
                format!("--spec-fd={}", handed.next(&spec_fd)),
                format!("--stdio-fds={}", handed.next(&into)),
                format!("--stdio-fds={}", handed.next(&out)),
                format!("--stdio-fds={}", handed.next(&nothing)),
                format!("--proc-mount-sync-fd={}", handed.next(&tell_unmount)),
                "--setup-root=false".into(),
                "--apply-caps=false".into(),
                self.uid.to_string(),
            ]);
            let complaints = said("sentry.err")?;
            let spawn = Spawn {
                binary: &runsc,
                argv: c_strings(argv)?,
                entrances: &entrances,
                complaints: &complaints,
                handed: handed.descriptors,
                unmount_proc: unmount.as_fd(),
                confinement: Confinement::Sentry { network: self.network },
            };
            spawn.bear().tried(|| format!("start the sentry of {}", self.uid))?
        };
        let (of_gofer, of_sentry) =
            (|| format!("start the gofer of {}", self.uid), || format!("start the sentry of {}", self.uid));
        // The sentry has the longer way.
        sentry.identify().tried(of_sentry)?;
        gofer.identify().tried(of_gofer)?;
        let gofer = gofer.become_program().tried(of_gofer)?;
        let sentry = match sentry.become_program() {
            Ok(sentry) => sentry,
            Err(e) => {
                gofer.kill()?;
                // Waited for, since it is a child of this process and nobody else would.
                tokio::runtime::Handle::current().block_on(gofer.ended());
                return Err(e).tried(of_sentry);
            }
        };
        Ok(Launched { sentry, gofer, up })
    }

    /// The program's name as lists of processes show it, and the options that both commands take.
    fn common(&self, name: &str, log: usize) -> Vec<String> {
        vec![
            name.into(),
            format!("--root={}", self.dirs.runsc_root().display()),
            "--platform=systrap".into(),
            "--network=sandbox".into(),
            "--net-disconnect-ok=true".into(),
            "--overlay2=none".into(),
            "--ignore-cgroups=true".into(),
            format!("--log-fd={log}"),
        ]
    }

    /// The last that either process said, when one of them has failed.
    pub(crate) fn complaint(dirs: &SandboxDirs) -> EngineError {
        let read = |name: &str| fs::read_to_string(dirs.log.join(name)).unwrap_or_default();
        let said = format!("{}{}{}", read("gofer.err"), read("sentry.err"), read("runsc.log"));
        let start = said.char_indices().rev().nth(COMPLAINT_CHARS_MAX).map_or(0, |(i, _)| i);
        EngineError::Create { why: said[start..].trim().to_owned() }
    }
}

/// Descriptors in the order of their numbers in the child.
#[derive(Default)]
struct Handed<'a> {
    descriptors: Vec<BorrowedFd<'a>>,
}

impl<'a> Handed<'a> {
    /// Hands over one more, and tells its number over there.
    fn next(&mut self, descriptor: &'a impl AsFd) -> usize {
        self.descriptors.push(descriptor.as_fd());
        FIRST_FD + self.descriptors.len() - 1
    }
}

fn c_string(bytes: &[u8]) -> Result<CString> {
    CString::new(bytes).map_err(std::io::Error::from).tried(|| "name a path without a NUL character".into())
}

fn c_strings(texts: Vec<String>) -> Result<Vec<CString>> {
    texts.iter().map(|text| c_string(text.as_bytes())).collect()
}

/// The host's policy for huge pages of shared memory, which the sentry could not read from its empty root.
fn shared_huge_pages() -> String {
    let text = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/shmem_enabled").unwrap_or_default();
    let chosen = text.split_ascii_whitespace().find_map(|word| word.strip_prefix('[')?.strip_suffix(']'));
    chosen.unwrap_or("never").to_owned()
}
