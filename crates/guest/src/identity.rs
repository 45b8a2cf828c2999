//! Writes down who the sandbox is. An item that can't be written is said on stderr and doesn't keep the others from
//! being written.
//!
//! All of it lies in `/run/remuda`, in memory: an identity is no file change of the sandbox and must not come along with
//! its files. `/etc/hostname`, `/etc/hosts` and `/etc/machine-id` are links to there, which come with the agent.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use remuda_guest_proto::Bind;
use serde::Serialize;

use crate::errors::say;
use crate::process::Inherited;
use crate::small_file;

/// What a program finds in `/run/remuda/identity.json`.
#[derive(Serialize)]
struct Identity<'a> {
    sandbox: &'a str,
    uid: &'a str,
    snapshot: Option<&'a str>,
    bound_at_unix_ms: i64,
}

/// Ends the line of `/etc/hosts` that is the agent's.
const HOSTS_MARK: &str = "# remuda";

/// Takes the identity. One that it has already, told once more by a server that was restarted, changes nothing:
/// whoever watches these files is to hear of copies alone.
pub fn take(inherited: &Inherited, bind: &Bind) {
    let place = &inherited.root.join("run/remuda");
    if has(place, bind) {
        return;
    }
    tell("/run/remuda", make(place));
    if is_host_name(&bind.hostname) {
        if inherited.is_init {
            tell("the host name", rustix::system::sethostname(bind.hostname.as_bytes()).map_err(io::Error::from));
        }
        tell("/etc/hostname", replace(&place.join("hostname"), format!("{}\n", bind.hostname).as_bytes()));
        tell("/etc/hosts", write_hosts(&place.join("hosts"), &bind.hostname));
    } else {
        say(format_args!("{:?} is no host name", bind.hostname));
    }
    if bind.machine_id.len() == 32 && bind.machine_id.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        let line = format!("{}\n", bind.machine_id.to_ascii_lowercase());
        tell("/etc/machine-id", replace(&place.join("machine-id"), line.as_bytes()));
    } else {
        say(format_args!("the machine id is not sixteen bytes in hex"));
    }
    tell("/run/remuda/identity.json", write_identity(place, bind));
}

fn has(place: &Path, bind: &Bind) -> bool {
    let written = small_file::read(place.join("identity.json")).unwrap_or_default();
    serde_json::from_slice::<serde_json::Value>(&written).is_ok_and(|identity| {
        (&identity["uid"], &identity["sandbox"]) == (&bind.uid.as_str().into(), &bind.sandbox.as_str().into())
    })
}

fn tell(item: &str, result: io::Result<()>) {
    if let Err(error) = result {
        say(format_args!("cannot write {item}: {error}"));
    }
}

fn is_host_name(name: &str) -> bool {
    const HOST_NAME_BYTES_MAX: usize = 64;
    let sound = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'.';
    !name.is_empty() && name.len() <= HOST_NAME_BYTES_MAX && name.bytes().all(sound)
}

fn make(dir: &Path) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    fs::set_permissions(dir, fs::Permissions::from_mode(0o755))
}

fn write_identity(dir: &Path, bind: &Bind) -> io::Result<()> {
    let identity = Identity {
        sandbox: &bind.sandbox,
        uid: &bind.uid,
        snapshot: bind.snapshot.as_deref(),
        bound_at_unix_ms: bind.now_unix_ms,
    };
    let mut json = serde_json::to_vec(&identity)?;
    json.push(b'\n');
    replace(&dir.join("identity.json"), &json)
}

fn write_hosts(path: &Path, hostname: &str) -> io::Result<()> {
    let before = match small_file::read(path) {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(error),
    };
    replace(path, hosts(&before, hostname).as_bytes())
}

fn hosts(before: &str, hostname: &str) -> String {
    let mut after = String::new();
    for line in before.lines().filter(|line| !line.trim_end().ends_with(HOSTS_MARK)) {
        after += line;
        after.push('\n');
    }
    if !before.lines().any(|line| line.starts_with("127.0.0.1") && line.contains("localhost")) {
        after.insert_str(0, "127.0.0.1\tlocalhost\n::1\tlocalhost\n");
    }
    after + &format!("127.0.1.1\t{hostname}\t{HOSTS_MARK}\n")
}

/// Replaces a file whole, so that no reader sees half of it, for everyone to read. Does nothing if it is the same
/// already.
fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    if small_file::read(path).is_ok_and(|before| before == content) {
        return Ok(());
    }
    let mut name = path.as_os_str().to_owned();
    name.push(".remuda");
    let temporary = Path::new(&name);
    let written = write_new(temporary, content).and_then(|()| fs::rename(temporary, path));
    if written.is_err() {
        let _ = fs::remove_file(temporary);
    }
    written
}

fn write_new(path: &Path, content: &[u8]) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o644).open(path)?;
    file.write_all(content)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_own_line_of_hosts_changes() {
        let first = hosts("127.0.0.1 localhost\n10.0.0.1 db\n", "a");
        assert_eq!(first, "127.0.0.1 localhost\n10.0.0.1 db\n127.0.1.1\ta\t# remuda\n");
        assert_eq!(hosts(&first, "b"), "127.0.0.1 localhost\n10.0.0.1 db\n127.0.1.1\tb\t# remuda\n");
        assert_eq!(hosts("", "a"), "127.0.0.1\tlocalhost\n::1\tlocalhost\n127.0.1.1\ta\t# remuda\n");
    }

    #[test]
    fn a_host_name_holds_nothing_else() {
        assert!(is_host_name("c1-x.local"));
        for bad in ["", "a b", "a\nb", "ä", &"a".repeat(65)] {
            assert!(!is_host_name(bad), "{bad:?}");
        }
    }
}
