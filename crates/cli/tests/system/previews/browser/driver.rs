//! A real Chromium, asked one thing after the other.

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};

const DRIVER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/system/previews/browser/driver.mjs");

/// Where `cargo xtask test` has installed what `package.json` names.
pub fn parts() -> PathBuf {
    let parts = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("browser");
    let whole = parts.join("node_modules").join("vite").is_dir();
    assert!(whole, "{} is missing: `cargo xtask test` installs it", parts.display());
    parts
}

/// Chromium gives up what it loads when it sees the machine's network change, and sandboxes that come and go beside it change
/// it all the time. It sees that by a netlink socket, and goes on where it gets none.
fn without_netlink(command: &mut Command) {
    let step = |code: u32, k: u32, otherwise: u8| libc::sock_filter { code: code as u16, jt: 0, jf: otherwise, k };
    let (load, equal) = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K);
    // Of a call, the number is at 0 and the first argument at 16.
    let filter = [
        step(load, 0, 0),
        step(equal, libc::SYS_socket as u32, 3),
        step(load, 16, 0),
        step(equal, libc::AF_NETLINK as u32, 1),
        step(libc::BPF_RET, libc::SECCOMP_RET_ERRNO | libc::EAFNOSUPPORT as u32, 0),
        step(libc::BPF_RET, libc::SECCOMP_RET_ALLOW, 0),
    ];
    let before = move || {
        let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
        // SAFETY: both calls read their arguments alone, and the filter lives in this closure for as long as they take.
        let set = unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
                && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0
        };
        if set { Ok(()) } else { Err(io::Error::last_os_error()) }
    };
    // SAFETY: between fork and exec there are two system calls, and nothing is allocated.
    unsafe { command.pre_exec(before) };
}

/// A browser with its tabs, by their names. They share their cookies, as a person's do.
pub struct Browser {
    process: Child,
    commands: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    _home: tempfile::TempDir,
}

impl Browser {
    /// Starts one that believes the machine's authorities, or any.
    pub fn start(any_authority: bool) -> Browser {
        let home = tempfile::Builder::new().prefix("remuda-test-").tempdir_in("/var/tmp").unwrap();
        let mut command = Command::new("node");
        command.arg(DRIVER).arg(parts()).arg("/usr/bin/chromium");
        if any_authority {
            command.arg("any-authority");
        }
        // All that it keeps is kept where it ends with the test.
        command.env("HOME", home.path()).env("TMPDIR", home.path()).env_remove("XDG_CONFIG_HOME");
        without_netlink(&mut command);
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (commands, answers) = (process.stdin.take(), BufReader::new(process.stdout.take().unwrap()));
        let mut browser = Browser { process, commands, answers, _home: home };
        browser.answer();
        browser
    }

    #[track_caller]
    fn answer(&mut self) -> Value {
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        let answer: Value = serde_json::from_str(&line).unwrap_or_else(|e| panic!("the driver said {line:?}: {e}"));
        assert!(answer["error"].is_null(), "{}", answer["error"].as_str().unwrap_or_default());
        answer["value"].clone()
    }

    #[track_caller]
    fn ask(&mut self, command: &Value) -> Value {
        writeln!(self.commands.as_mut().unwrap(), "{command}").unwrap();
        self.answer()
    }

    /// Goes there, and gives the status and where it led.
    #[track_caller]
    pub fn open(&mut self, tab: &str, url: &str) -> (u64, String) {
        let answer = self.ask(&json!({ "do": "open", "tab": tab, "url": url }));
        (answer["status"].as_u64().unwrap(), answer["url"].as_str().unwrap().to_owned())
    }

    /// What an expression comes to in the page.
    #[track_caller]
    pub fn evaluate(&mut self, tab: &str, script: &str) -> Value {
        self.ask(&json!({ "do": "evaluate", "tab": tab, "script": script }))
    }

    /// Waits until an expression is true in the page.
    #[track_caller]
    pub fn until(&mut self, tab: &str, script: &str) {
        self.ask(&json!({ "do": "until", "tab": tab, "script": script }));
    }

    #[track_caller]
    pub fn fill(&mut self, tab: &str, selector: &str, text: &str) {
        self.ask(&json!({ "do": "fill", "tab": tab, "selector": selector, "text": text }));
    }

    /// Clicks, and gives the address of the page that it leads to.
    #[track_caller]
    pub fn follow(&mut self, tab: &str, selector: &str) -> String {
        let answer = self.ask(&json!({ "do": "follow", "tab": tab, "selector": selector }));
        answer["url"].as_str().unwrap().to_owned()
    }

    /// Chooses a file of so many times the letter x.
    #[track_caller]
    pub fn choose(&mut self, tab: &str, selector: &str, bytes: usize) {
        self.ask(&json!({ "do": "choose", "tab": tab, "selector": selector, "bytes": bytes }));
    }

    /// The WebSockets that a tab has opened; nothing may have gone wrong in it.
    #[track_caller]
    pub fn sockets(&mut self, tab: &str) -> Vec<String> {
        let seen = self.ask(&json!({ "do": "seen", "tab": tab }));
        assert_eq!(seen["wrong"], json!([]), "{tab}");
        seen["sockets"].as_array().unwrap().iter().map(|url| url.as_str().unwrap().to_owned()).collect()
    }

    #[track_caller]
    pub fn close(&mut self, tab: &str) {
        self.ask(&json!({ "do": "close", "tab": tab }));
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The driver ends the browser when it hears nothing more.
        drop(self.commands.take());
        let _ = self.process.wait();
    }
}
