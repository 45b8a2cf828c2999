//! Where everything lies. All places derive from ids, so that recovery finds them without a record.

use std::fs;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use remuda_types::{SnapshotId, Uid};

use crate::error::{EngineError, Result, Tried};
use crate::install::state_tmpfs;
use crate::machine::CapturePlaces;

/// The places of one server.
#[derive(Debug, Clone)]
pub struct Dirs {
    data: PathBuf,
    state: PathBuf,
}

/// The places of one sandbox.
#[derive(Debug, Clone)]
pub struct SandboxDirs {
    /// Everything of it that is on disk.
    pub root: PathBuf,
    /// Its private file changes.
    pub upper: PathBuf,
    /// Overlayfs's own working directory.
    pub work: PathBuf,
    /// Where its root file system is mounted.
    pub mount: PathBuf,
    /// The OCI bundle.
    pub bundle: PathBuf,
    /// The control channel's FIFOs.
    pub fifo: PathBuf,
    /// What runsc writes.
    pub log: PathBuf,
    /// On tmpfs: runsc's state and the pinned namespaces.
    pub state: PathBuf,
}

impl SandboxDirs {
    /// runsc's `--root`.
    pub fn runsc_root(&self) -> PathBuf {
        self.state.join("runsc")
    }
    /// Where the inner network namespace is pinned.
    pub fn net_inner(&self) -> PathBuf {
        self.state.join("net-inner")
    }
    /// Where the outer network namespace is pinned.
    pub fn net_outer(&self) -> PathBuf {
        self.state.join("net-outer")
    }
    /// runsc's control socket.
    pub fn control_socket(&self) -> PathBuf {
        // The state directory is named by the uid, and the sandbox has that name with runsc too.
        let uid = self.state.file_name().unwrap_or_default().to_string_lossy();
        self.runsc_root().join(format!("runsc-{uid}.sock"))
    }
    /// There from before a pause until after its resume.
    pub(crate) fn halt_mark(&self) -> PathBuf {
        self.state.join("halted")
    }
    /// Host to guest.
    pub fn fifo_in(&self) -> PathBuf {
        self.fifo.join("in")
    }
    /// Guest to host.
    pub fn fifo_out(&self) -> PathBuf {
        self.fifo.join("out")
    }
    /// All directories a new sandbox needs.
    pub(crate) fn all(&self) -> Vec<PathBuf> {
        [&self.root, &self.upper, &self.work, &self.mount, &self.bundle, &self.fifo, &self.log, &self.state]
            .into_iter()
            .cloned()
            .chain([self.runsc_root()])
            .collect()
    }
}

impl Dirs {
    /// The places under `data_dir`, which is made when absent, with mode 0700.
    pub fn open(data_dir: &Path) -> Result<Dirs> {
        make(data_dir)?;
        let data = fs::canonicalize(data_dir).tried(|| format!("find {}", data_dir.display()))?;
        let meta = fs::metadata(&data).tried(|| format!("look at {}", data.display()))?;
        if meta.mode() & 0o077 != 0 {
            let path = data.display();
            return Err(EngineError::NotReady {
                what: format!("the data directory {path} can be entered by others; run: chmod 0700 {path}"),
            });
        }
        for sub in ["sandboxes", "layers", "memory"] {
            make(&data.join(sub))?;
        }
        let name = format!("remuda-{}", instance(&data));
        let state = tmpfs()?.join(name);
        make(&state)?;
        Ok(Dirs { data, state })
    }

    /// The same with all of it under `data_dir`, for machines whose state may outlive a boot.
    pub fn on_disk_alone(data_dir: &Path) -> Result<Dirs> {
        for sub in ["sandboxes", "layers", "memory", "state"] {
            make(&data_dir.join(sub))?;
        }
        Ok(Dirs { data: data_dir.to_owned(), state: data_dir.join("state") })
    }

    /// Where a capture of that snapshot goes.
    pub fn capture(&self, snapshot: &SnapshotId, with_memory: bool) -> CapturePlaces {
        let tmp = |path: &Path| path.with_extension("tmp");
        let (layer, memory) = (self.layer(snapshot), self.memory(snapshot));
        CapturePlaces {
            layer_tmp: tmp(&layer),
            layer,
            memory: with_memory.then(|| {
                let memory_tmp = tmp(&memory);
                (memory, memory_tmp)
            }),
        }
    }

    /// The data directory.
    pub fn data(&self) -> &Path {
        &self.data
    }

    /// The directory of this server on tmpfs.
    pub fn state(&self) -> &Path {
        &self.state
    }

    /// A name for this server's cgroups, the same for every start on this data directory.
    pub fn instance(&self) -> String {
        instance(&self.data)
    }

    /// Where all sandboxes lie.
    pub fn sandboxes(&self) -> PathBuf {
        self.data.join("sandboxes")
    }

    /// Where frozen layers lie; a layer has its snapshot's id.
    pub fn layers(&self) -> PathBuf {
        self.data.join("layers")
    }

    /// The layer of a snapshot.
    pub fn layer(&self, snapshot: &SnapshotId) -> PathBuf {
        self.layers().join(snapshot.as_str())
    }

    /// Where memory images lie.
    pub fn memories(&self) -> PathBuf {
        self.data.join("memory")
    }

    /// The memory image of a snapshot.
    pub fn memory(&self, snapshot: &SnapshotId) -> PathBuf {
        self.memories().join(snapshot.as_str())
    }

    /// The places of a sandbox.
    pub fn sandbox(&self, uid: &Uid) -> SandboxDirs {
        let root = self.sandboxes().join(uid.as_str());
        SandboxDirs {
            upper: root.join("upper"),
            work: root.join("work"),
            mount: root.join("root"),
            bundle: root.join("bundle"),
            fifo: root.join("fifo"),
            log: root.join("log"),
            state: self.state.join(uid.as_str()),
            root,
        }
    }
}

/// Makes a directory and its parents with mode 0700.
pub(crate) fn make(path: &Path) -> Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path).tried(|| format!("make {}", path.display()))
}

/// Twelve hex digits that stand for a data directory.
fn instance(data: &Path) -> String {
    let digest = blake3::hash(data.as_os_str().as_encoded_bytes());
    digest.to_hex()[..12].to_owned()
}

/// runsc's state must not outlive a boot: after one, its pids belong to strangers.
fn tmpfs() -> Result<PathBuf> {
    state_tmpfs().ok_or_else(|| EngineError::NotReady {
        what: "neither /run nor /dev/shm is a tmpfs; run: mount -t tmpfs tmpfs /dev/shm".into(),
    })
}

/// Free bytes that root may still write at `path`.
pub fn free_bytes(path: &Path) -> Result<u64> {
    let s = rustix::fs::statvfs(path).tried(|| format!("ask how full the disk under {} is", path.display()))?;
    Ok(s.f_bavail * s.f_frsize)
}
