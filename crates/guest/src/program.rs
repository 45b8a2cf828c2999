//! From a `Spawn` to what the kernel wants: arguments, environment, paths to try, and the script's descriptor. Only
//! prepares; nothing is started here.

use std::collections::BTreeMap;
use std::ffi::CString;

use remuda_guest_proto::{AgentError, Program};
use rustix::fd::OwnedFd;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

use crate::clone::SCRIPT_FD;
use crate::errors::{failed, invalid, shown};
use crate::limits::PATH_BYTES_MAX;
use crate::small_file;
use crate::users::User;

/// Where programs are looked for unless the call says otherwise.
pub const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What to execute.
pub struct Prepared {
    /// What a person calls it.
    pub name: String,
    /// Paths to try in this order.
    pub candidates: Vec<CString>,
    /// Arguments.
    pub argv: Vec<CString>,
    /// Environment.
    pub env: Vec<CString>,
    /// The script, sealed.
    pub script: Option<OwnedFd>,
}

/// Prepares a program for a user.
pub fn prepare(program: &Program, env: &BTreeMap<String, String>, user: &User) -> Result<Prepared, AgentError> {
    // What the guest's image says about everybody's environment, as other systems have it too.
    let common = small_file::read("/etc/environment").unwrap_or_default();
    prepare_in(&String::from_utf8_lossy(&common), program, env, user)
}

fn prepare_in(
    common: &str,
    program: &Program,
    env: &BTreeMap<String, String>,
    user: &User,
) -> Result<Prepared, AgentError> {
    let env = environment(common, env, user)?;
    let path = env.get("PATH").copied().unwrap_or(PATH);
    let (name, candidates, argv, script) = match program {
        Program::Script(script) => {
            let argv = vec!["sh".to_owned(), "-c".to_owned(), format!(". /proc/self/fd/{SCRIPT_FD}")];
            ("/bin/sh".to_owned(), vec!["/bin/sh".to_owned()], argv, Some(sealed(script)?))
        }
        Program::Argv(argv) => {
            let name = argv.first().filter(|name| !name.is_empty());
            let name = name.ok_or_else(|| invalid("the program to start has no name"))?.clone();
            (name.clone(), candidates(&name, path), argv.clone(), None)
        }
    };
    Ok(Prepared {
        candidates: strings(candidates, "the program's name")?,
        argv: strings(argv, "an argument")?,
        env: strings(env.iter().map(|(name, value)| format!("{name}={value}")).collect(), "the environment")?,
        name,
        script,
    })
}

/// What every program gets: first what the agent knows, over it what `common` has in lines of `NAME=VALUE`, and over that
/// what the call asks for.
fn environment<'a>(
    common: &'a str,
    asked: &'a BTreeMap<String, String>,
    user: &'a User,
) -> Result<BTreeMap<&'a str, &'a str>, AgentError> {
    let mut env = BTreeMap::from([
        ("PATH", PATH),
        ("HOME", user.home.as_str()),
        ("USER", user.name.as_str()),
        ("LOGNAME", user.name.as_str()),
        ("SHELL", user.shell.as_str()),
        ("LANG", "C.UTF-8"),
    ]);
    let lines = common.lines().map(str::trim).filter(|line| !line.starts_with('#') && !line.contains('\0'));
    for (name, value) in lines.filter_map(|line| line.split_once('=')).filter(|(name, _)| !name.is_empty()) {
        let quoted = ['"', '\''].iter().find_map(|quote| value.strip_prefix(*quote)?.strip_suffix(*quote));
        env.insert(name, quoted.unwrap_or(value));
    }
    for (name, value) in asked {
        if name.is_empty() || name.contains('=') {
            return Err(invalid(format!("{:?} is no name for an environment variable", shown(name))));
        }
        env.insert(name, value);
    }
    Ok(env)
}

/// Where a program may be: a name with a slash is a path, another is looked for in each directory of `path`.
fn candidates(name: &str, path: &str) -> Vec<String> {
    if name.contains('/') || name.len() > PATH_BYTES_MAX {
        return vec![name.to_owned()];
    }
    path.split(':').map(|dir| if dir.is_empty() { format!("./{name}") } else { format!("{dir}/{name}") }).collect()
}

/// A script in memory that nobody can change any more.
fn sealed(script: &str) -> Result<OwnedFd, AgentError> {
    let refuse = |errno| failed("keep the script in memory", errno);
    let fd = memfd_create("script", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).map_err(refuse)?;
    // On the script's own first line, so that line numbers in messages are right: once the shell has opened the script,
    // nothing it starts needs this descriptor.
    let first = format!("exec {SCRIPT_FD}<&-; ");
    for mut bytes in [first.as_bytes(), script.as_bytes()] {
        while !bytes.is_empty() {
            let written = rustix::io::retry_on_intr(|| rustix::io::write(&fd, bytes)).map_err(refuse)?;
            bytes = bytes.get(written..).unwrap_or_default();
        }
    }
    fcntl_add_seals(&fd, SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE).map_err(refuse)?;
    Ok(fd)
}

fn strings(strings: Vec<String>, what: &str) -> Result<Vec<CString>, AgentError> {
    strings
        .into_iter()
        .map(|string| CString::new(string).map_err(|_| invalid(format!("{what} holds a NUL byte"))))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user() -> User {
        User {
            name: "u".to_owned(),
            uid: 1,
            gid: 1,
            groups: vec![1],
            home: "/h".to_owned(),
            shell: "/bin/s".to_owned(),
        }
    }

    const COMMON: &str = "# everybody's\n CA='/a b' \nLANG=fr\nnothing\n=x\nB=\"c\n";

    fn env_of(asked: &[(&str, &str)]) -> Result<Vec<String>, AgentError> {
        let asked = asked.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
        let prepared = prepare_in(COMMON, &Program::Argv(vec!["x".to_owned()]), &asked, &user())?;
        Ok(prepared.env.into_iter().map(|s| s.into_string().unwrap()).collect())
    }

    #[test]
    fn the_environment_is_sane_and_the_call_may_replace_it() {
        assert_eq!(
            env_of(&[("LANG", "de"), ("A", "b=c")]).unwrap(),
            [
                "A=b=c",
                "B=\"c",
                "CA=/a b",
                "HOME=/h",
                "LANG=de",
                "LOGNAME=u",
                &format!("PATH={PATH}"),
                "SHELL=/bin/s",
                "USER=u"
            ]
        );
        for bad in [("", "x"), ("A=B", "x"), ("A", "\0")] {
            assert!(env_of(&[bad]).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn the_path_of_the_call_counts() {
        assert_eq!(candidates("ls", "/a::/b/"), ["/a/ls", "./ls", "/b//ls"]);
        assert_eq!(candidates("./ls", "/a"), ["./ls"]);
    }

    #[test]
    fn a_program_without_a_name_is_refused() {
        for argv in [vec![], vec![String::new()]] {
            assert!(prepare(&Program::Argv(argv), &BTreeMap::new(), &user()).is_err());
        }
    }
}
