//! The OCI bundle that runsc's processes read.

use std::path::Path;

use serde_json::{Value, json};

use crate::parts::AGENT_PATH;

/// Most open files of a guest process.
const OPEN_FILES_MAX: u64 = 65_536;

/// What the agent, root in its sandbox, may do there. The host is protected by the sentry, not by these.
const CAPABILITIES: &[&str] = &[
    "CAP_AUDIT_WRITE",
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_MKNOD",
    "CAP_NET_BIND_SERVICE",
    "CAP_NET_RAW",
    "CAP_SETFCAP",
    "CAP_SETGID",
    "CAP_SETPCAP",
    "CAP_SETUID",
    "CAP_SYS_ADMIN",
    "CAP_SYS_CHROOT",
    "CAP_SYS_NICE",
    "CAP_SYS_PTRACE",
    "CAP_SYS_RESOURCE",
];

/// The bundle's `config.json`. It must be the same for a machine and for every restore of it, but for paths.
pub(crate) fn config(root: &Path) -> Value {
    let tmpfs = |destination: &str, mode: &str| {
        json!({
            "destination": destination,
            "type": "tmpfs",
            "source": "tmpfs",
            "options": ["nosuid", "nodev", format!("mode={mode}")],
        })
    };
    json!({
        "ociVersion": "1.0.0",
        "process": {
            "terminal": false,
            "user": { "uid": 0, "gid": 0 },
            "args": [AGENT_PATH],
            "env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
            "cwd": "/",
            "capabilities": {
                "bounding": CAPABILITIES,
                "effective": CAPABILITIES,
                "inheritable": [],
                "permitted": CAPABILITIES,
            },
            "rlimits": [{ "type": "RLIMIT_NOFILE", "hard": OPEN_FILES_MAX, "soft": OPEN_FILES_MAX }],
            "noNewPrivileges": false,
        },
        "root": { "path": root, "readonly": false },
        "hostname": "remuda",
        "mounts": [
            { "destination": "/proc", "type": "proc", "source": "proc" },
            { "destination": "/sys", "type": "sysfs", "source": "sysfs", "options": ["ro", "nosuid", "nodev", "noexec"] },
            { "destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"] },
            { "destination": "/dev/pts", "type": "devpts", "source": "devpts", "options": ["newinstance", "ptmxmode=0666"] },
            tmpfs("/dev/shm", "1777"),
            tmpfs("/tmp", "1777"),
            tmpfs("/run", "0755"),
        ],
        "linux": {
            "namespaces": [
                { "type": "pid" },
                { "type": "network" },
                { "type": "ipc" },
                { "type": "uts" },
                { "type": "mount" },
            ],
        },
    })
}
