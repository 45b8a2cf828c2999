//! Users and groups of the guest, from `/etc/passwd` and `/etc/group`. A small parser of its own: a static binary can't
//! use the C library's. Both files are the guest's and may hold anything.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::sync::{Arc, Mutex};

use remuda_guest_proto::{AgentError, AgentErrorKind};

use crate::errors::{refusal, shown};
use crate::limits::GROUPS_MAX;
use crate::small_file;
use crate::sync::lock;

/// A user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// Name.
    pub name: String,
    /// Number.
    pub uid: u32,
    /// Primary group.
    pub gid: u32,
    /// All groups, the primary one too.
    pub groups: Vec<u32>,
    /// Home directory.
    pub home: String,
    /// Login shell.
    pub shell: String,
}

/// What a thread or child takes on to act as a user.
#[derive(Debug, Clone, Copy)]
pub struct Identity<'a> {
    /// Number of the user.
    pub uid: u32,
    /// Primary group.
    pub gid: u32,
    /// All groups.
    pub groups: &'a [u32],
}

/// What tells whether a file is the same as when it was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    changed: (i64, i64),
}

#[derive(Default)]
struct Known {
    stamps: [Option<Stamp>; 2],
    users: Vec<Arc<User>>,
}

/// Users looked up so far, good as long as both files are unchanged.
#[derive(Default)]
pub struct Users {
    known: Mutex<Known>,
}

const PASSWD: &str = "/etc/passwd";
const GROUP: &str = "/etc/group";
const KNOWN_MAX: usize = 64;

impl Users {
    /// The user of that name.
    pub fn find(&self, name: &str) -> Result<Arc<User>, AgentError> {
        let stamps = [stamp(PASSWD), stamp(GROUP)];
        let mut known = lock(&self.known);
        if known.stamps != stamps || known.users.len() > KNOWN_MAX {
            *known = Known { stamps, users: Vec::new() };
        }
        if let Some(user) = known.users.iter().find(|user| user.name == name) {
            return Ok(user.clone());
        }
        let user = Arc::new(look_up(name, &read(PASSWD), &read(GROUP)).ok_or_else(|| {
            refusal(AgentErrorKind::NotFound, format!("there is no user {} in {PASSWD}", shown(name)))
        })?);
        known.users.push(user.clone());
        Ok(user)
    }
}

fn stamp(path: &str) -> Option<Stamp> {
    let meta = fs::metadata(path).ok()?;
    Some(Stamp { device: meta.dev(), inode: meta.ino(), size: meta.size(), changed: (meta.ctime(), meta.ctime_nsec()) })
}

/// A file's text; nothing if it can't be read.
fn read(path: &str) -> String {
    String::from_utf8_lossy(&small_file::read(path).unwrap_or_default()).into_owned()
}

fn look_up(name: &str, passwd: &str, group: &str) -> Option<User> {
    let mut user = passwd.lines().find_map(|line| user_of(line).filter(|user| user.name == name)).or_else(|| {
        // An image without users has at least the one that everything runs as.
        (name == "root").then(|| User {
            name: "root".to_owned(),
            uid: 0,
            gid: 0,
            groups: vec![0],
            home: "/root".to_owned(),
            shell: "/bin/sh".to_owned(),
        })
    })?;
    for gid in group.lines().filter_map(|line| group_with(line, name)) {
        if user.groups.len() < GROUPS_MAX && !user.groups.contains(&gid) {
            user.groups.push(gid);
        }
    }
    Some(user)
}

/// `name:password:uid:gid:comment:home:shell`
fn user_of(line: &str) -> Option<User> {
    let mut fields = line.split(':');
    let name = fields.next().filter(|name| !name.is_empty())?.to_owned();
    let uid = fields.nth(1)?.parse().ok()?;
    let gid = fields.next()?.parse().ok()?;
    let home = fields.nth(1).filter(|home| !home.is_empty()).unwrap_or("/").to_owned();
    let shell = fields.next().filter(|shell| !shell.is_empty()).unwrap_or("/bin/sh").to_owned();
    // These numbers mean "leave it as it is" to the kernel, which would leave it root.
    (uid != u32::MAX && gid != u32::MAX).then(|| User { name, uid, gid, groups: vec![gid], home, shell })
}

/// `name:password:gid:member,member`: the gid, if `user` is a member.
fn group_with(line: &str, user: &str) -> Option<u32> {
    let mut fields = line.split(':').skip(2);
    let gid = fields.next()?.parse().ok().filter(|gid| *gid != u32::MAX)?;
    fields.next()?.split(',').any(|member| member == user).then_some(gid)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/bash\n#x\nbroken\nuser:x:1000:100:A, B:/home/user:\nbad:x:4294967295:1::/:\nodd:x:7:7";
    const GROUP: &str = "root:x:0:\ndocker:x:50:other,user\nusers:x:100:user\nbad:x:z:user\nuserx:x:51:user2";

    #[test]
    fn a_user_has_its_groups_and_defaults() {
        let user = look_up("user", PASSWD, GROUP).unwrap();
        assert_eq!((user.uid, user.gid, user.groups), (1000, 100, vec![100, 50]));
        assert_eq!((user.home.as_str(), user.shell.as_str()), ("/home/user", "/bin/sh"));
    }

    #[test]
    fn nonsense_is_no_user() {
        for name in ["", "nobody", "bad", "broken", "#x", "user:x", "us"] {
            assert_eq!(look_up(name, PASSWD, GROUP), None, "{name}");
        }
        assert_eq!(look_up("odd", PASSWD, GROUP).unwrap().home, "/");
    }

    #[test]
    fn root_is_always_there() {
        assert_eq!(look_up("root", "", "").unwrap().uid, 0);
    }
}
