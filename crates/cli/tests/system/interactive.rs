//! `exec -it` and `attach`, by somebody who sits at a terminal.

use std::fs::File;
use std::io::{Read, Write};
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, channel};

use rustix::fs::{Mode, OFlags, open};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

use crate::api::PATIENCE;
use crate::world::{Server, read_line};

/// A terminal with a command of ours on it.
struct Seat {
    keys: File,
    screen: Receiver<Vec<u8>>,
    seen: String,
    process: Child,
}

impl Seat {
    fn at(server: &Server, args: &[&str], rows: u16, cols: u16) -> Seat {
        let keys = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        unlockpt(&keys).unwrap();
        let keys = File::from(keys);
        let name = ptsname(&keys, Vec::new()).unwrap();
        let stdio = || {
            Stdio::from(open(name.as_c_str(), OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty()).unwrap())
        };
        let seat = Winsize { ws_row: rows, ws_col: cols, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&keys, seat).unwrap();
        let mut command = server.command(args);
        let process = command.stdin(stdio()).stdout(stdio()).stderr(stdio()).env("TERM", "vt100").spawn().unwrap();
        drop(command);
        let (tell, screen) = channel();
        let mut from = keys.try_clone().unwrap();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = from.read(&mut buffer) {
                if tell.send(buffer[..count].to_vec()).is_err() {
                    return;
                }
            }
        });
        Seat { keys, screen, seen: String::new(), process }
    }

    fn types(&mut self, text: &str) {
        self.keys.write_all(text.as_bytes()).unwrap();
    }

    /// Waits until something new stands on the screen.
    #[track_caller]
    fn sees(&mut self, what: &str) {
        while !self.seen.contains(what) {
            match self.screen.recv_timeout(PATIENCE) {
                Ok(bytes) => self.seen.push_str(&String::from_utf8_lossy(&bytes)),
                Err(e) => panic!("{what:?} does not come ({e}), only {:?}", self.seen),
            }
        }
        let end = self.seen.find(what).unwrap() + what.len();
        self.seen.drain(..end);
    }

    fn resized(&self, rows: u16, cols: u16) {
        tcsetwinsize(&self.keys, Winsize { ws_row: rows, ws_col: cols, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
        // It is not its controlling terminal, so that the kernel doesn't tell it.
        kill_process(Pid::from_child(&self.process), Signal::WINCH).unwrap();
    }

    /// Its exit code; the terminal is as it was.
    fn left(mut self) -> i32 {
        let code = self.process.wait().unwrap().code().unwrap();
        let modes = tcgetattr(&self.keys).unwrap().local_modes;
        assert!(modes.contains(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG), "{modes:?}");
        code
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn a_shell_is_worked_in_left_and_joined_again() {
    let server = Server::start();
    let id = server.create();
    let mut seat = Seat::at(&server, &["exec", "-it", "-e", "PS1=> ", &id, "--", "sh", "-i"], 33, 111);
    seat.sees("> ");
    seat.types("stty size; echo $TERM; mark=kept\r");
    seat.sees("33 111\r\nvt100\r\n");
    seat.resized(40, 90);
    // The size follows by a call of its own.
    seat.types("while [ \"$(stty size)\" != '40 90' ]; do :; done; echo as large\r");
    seat.sees("\r\nas large\r\n");
    seat.types("cat\r");
    seat.sees("cat\r\n");
    seat.types("echoed\r");
    seat.sees("echoed\r\nechoed\r\n");
    // It goes to the program, and ends that and nothing else.
    seat.types("\x03");
    seat.sees("> ");
    seat.types("echo $mark-one\r");
    seat.sees("kept-one\r\n");
    seat.types("\x10\x11");
    seat.sees("left; it goes on");
    assert_eq!(seat.left(), 0);

    let list = server.run(&["ps", "--json", &id]).json();
    let execution = list["executions"][0]["id"].as_str().unwrap().to_owned();
    assert_eq!(list["executions"][0]["state"], "running");
    let mut seat = Seat::at(&server, &["attach", &id, &execution], 20, 70);
    // What was on it is shown again.
    seat.sees("kept-one\r\n");
    seat.types("while [ \"$(stty size)\" != '20 70' ]; do :; done; echo $mark-two\r");
    seat.sees("kept-two\r\n");
    seat.types("exit 7\r");
    assert_eq!(seat.left(), 7);
    assert_eq!(server.run(&["attach", &id, &execution]).code, 7, "one that has ended is shown");
    server.run(&["exec", "-it", &id, "--", "true"]).failed(2, "here is none");
}

#[test]
fn one_without_a_terminal_is_followed_from_now_on() {
    let server = Server::start();
    let id = server.create();
    let script = "echo before; while [ ! -e /tmp/go ]; do echo tick; sleep 0.05; done; exit 5";
    let execution = server.run(&["exec", "-d", &id, "-c", script]).line();
    let mut log = server.command(&["logs", "-f", &id, &execution]).stdout(Stdio::piped()).spawn().unwrap();
    let stdout = log.stdout.as_mut().unwrap();
    assert_eq!((read_line(stdout), read_line(stdout)), ("before\n".to_owned(), "tick\n".to_owned()));
    log.kill().unwrap();
    log.wait().unwrap();
    let mut attached = server.command(&["attach", &id, &execution]).stdout(Stdio::piped()).spawn().unwrap();
    assert_eq!(read_line(attached.stdout.as_mut().unwrap()), "tick\n");
    assert_eq!(server.run(&["exec", &id, "--", "touch", "/tmp/go"]).code, 0);
    assert_eq!(attached.wait().unwrap().code(), Some(5));
}
