//! Starts a program for an execution: user, descriptors, child, and a sentence when it can't be done, in which case
//! nothing ran. Never waits for the program.

use std::ffi::CString;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use remuda_guest_proto::{AgentError, AgentErrorKind, PtySize, Spawn};
use rustix::fd::{AsFd as _, OwnedFd};
use rustix::fs::{Mode, OFlags, fcntl_setfl, open};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};

use crate::agent::Agent;
use crate::clone::{Plan, Step, clone_and_exec};
use crate::errors::{failed, invalid, reason, refusal, shown};
use crate::execution::Execution;
use crate::limits::PIPE_BYTES;
use crate::program::{Prepared, prepare};
use crate::terminal;
use crate::users::User;

/// The agent's ends of a program's pipes, or of its terminal.
pub struct Ends {
    /// Standard output, or all output of a terminal.
    pub stdout: OwnedFd,
    /// Standard error, if it is a pipe of its own.
    pub stderr: Option<OwnedFd>,
    /// Standard input, if it is a pipe or a terminal.
    pub stdin: Option<OwnedFd>,
    /// Whether they are a terminal.
    pub terminal: bool,
}

/// The program's own ends.
struct Stdio {
    stdin: OwnedFd,
    stdout: OwnedFd,
    stderr: Option<OwnedFd>,
}

/// Starts the program; answers its pid and the pipes.
pub fn launch(agent: &Agent, spawn: &Spawn, execution: &Arc<Execution>) -> Result<(u32, Ends), AgentError> {
    let user = agent.users.find(&spawn.user)?;
    let identity = agent.inherited.identity_to_take(&user)?;
    if !spawn.cwd.starts_with('/') {
        return Err(invalid(format!("the working directory {:?} is no absolute path", shown(&spawn.cwd))));
    }
    let cwd = CString::new(spawn.cwd.as_str()).map_err(|_| invalid("the working directory holds a NUL byte"))?;
    let program = prepare(&spawn.program, &spawn.env, &user)?;

    let (ends, stdio) = match spawn.pty {
        Some(size) => terminal(size, &user, execution).map_err(|errno| failed("make a terminal", errno))?,
        None => pipes(execution.has_stdin)?,
    };
    let plan = Plan {
        candidates: &program.candidates,
        argv: &program.argv,
        env: &program.env,
        cwd: &cwd,
        stdio: [stdio.stdin.as_fd(), stdio.stdout.as_fd(), stdio.stderr.as_ref().unwrap_or(&stdio.stdout).as_fd()],
        terminal: ends.terminal,
        script: program.script.as_ref().map(|fd| fd.as_fd()),
        identity,
        open_files: agent.inherited.open_files,
        processes_max: (user.uid != 0).then(|| u64::from(agent.processes_max.load(Ordering::Relaxed))),
    };
    let slot = agent.children.expect(execution);
    match clone_and_exec(&plan, &slot.pid) {
        Ok(()) => {
            agent.children.made(&slot);
            Ok((slot.pid.load(Ordering::Acquire) as u32, ends))
        }
        Err((step, errno)) => {
            agent.children.abandon(&slot);
            Err(explain(step, errno, spawn, &program, &user))
        }
    }
}

/// Pipes, and `/dev/null` where it takes no input.
fn pipes(with_stdin: bool) -> Result<(Ends, Stdio), AgentError> {
    let failed_to_make = |errno| failed("make the pipes of a program", errno);
    let (stdout, child_stdout) = output_pipe().map_err(failed_to_make)?;
    let (stderr, child_stderr) = output_pipe().map_err(failed_to_make)?;
    let (child_stdin, stdin) = if with_stdin {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC).map_err(failed_to_make)?;
        fcntl_setfl(&write, OFlags::NONBLOCK).map_err(failed_to_make)?;
        (read, Some(write))
    } else {
        let null = open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        (null.map_err(|errno| failed("open /dev/null", errno))?, None)
    };
    let stdio = Stdio { stdin: child_stdin, stdout: child_stdout, stderr: Some(child_stderr) };
    Ok((Ends { stdout, stderr: Some(stderr), stdin, terminal: false }, stdio))
}

/// A terminal for all three, of which the execution has an end too, to give it another size by.
fn terminal(size: PtySize, user: &User, execution: &Execution) -> rustix::io::Result<(Ends, Stdio)> {
    let (agents, programs) = terminal::make(size, user)?;
    execution.has_terminal(rustix::io::fcntl_dupfd_cloexec(&agents, 3)?);
    let stdin = rustix::io::fcntl_dupfd_cloexec(&agents, 3)?;
    let stdio = Stdio { stdin: rustix::io::fcntl_dupfd_cloexec(&programs, 3)?, stdout: programs, stderr: None };
    Ok((Ends { stdout: agents, stderr: None, stdin: Some(stdin), terminal: true }, stdio))
}

/// A pipe for output: its own end doesn't block, and it is as large as the system allows.
fn output_pipe() -> rustix::io::Result<(OwnedFd, OwnedFd)> {
    let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
    fcntl_setfl(&read, OFlags::NONBLOCK)?;
    // A small one works as well, only slower.
    let _ = fcntl_setpipe_size(&read, PIPE_BYTES);
    Ok((read, write))
}

fn explain(step: Step, errno: Errno, spawn: &Spawn, program: &Prepared, user: &User) -> AgentError {
    let name = shown(&program.name);
    match step {
        Step::Clone => failed("make a process", errno),
        Step::Prepare => failed(format!("prepare a process for {name}"), errno),
        Step::Identity => failed(format!("become user {}", user.name), errno),
        Step::Cwd => {
            let mut error = failed(format!("go to the working directory {}", shown(&spawn.cwd)), errno);
            error.message += &format!(" (as user {})", user.name);
            error
        }
        Step::Exec => {
            let why = |kind, why: &str| refusal(kind, format!("cannot start {name} as user {}: {why}", user.name));
            match errno {
                Errno::NOENT => match existing(program, spawn) {
                    Some(path) => why(
                        AgentErrorKind::NotFound,
                        &format!("{path} is there, but not the interpreter or loader that it names"),
                    ),
                    None if program.name.contains('/') => why(AgentErrorKind::NotFound, "there is no such file"),
                    None => why(AgentErrorKind::NotFound, "there is no such program in PATH"),
                },
                Errno::ACCESS => why(AgentErrorKind::Denied, "it may not be executed"),
                Errno::NOEXEC => {
                    why(AgentErrorKind::Invalid, "it is neither a program for this machine nor a script with a #! line")
                }
                Errno::TOOBIG => why(AgentErrorKind::Invalid, "its arguments and environment are too long"),
                Errno::AGAIN => why(AgentErrorKind::Busy, "the user has too many processes"),
                errno => refusal(failed("", errno).kind, format!("cannot start {name}: {}", reason(errno))),
            }
        }
    }
}

/// A candidate that exists as an executable although executing it said that something does not.
fn existing(program: &Prepared, spawn: &Spawn) -> Option<String> {
    program.candidates.iter().find_map(|candidate| {
        let path = Path::new(&spawn.cwd).join(candidate.to_str().ok()?);
        let meta = path.metadata().ok()?;
        (meta.is_file() && meta.permissions().mode() & 0o111 != 0).then(|| shown(&path.to_string_lossy()))
    })
}
