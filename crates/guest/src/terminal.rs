//! Terminals of executions. Makes them and gives them a size; moves no byte of what goes through them.

use remuda_guest_proto::PtySize;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Gid, Mode, OFlags, Uid, fchown, open};
use rustix::pty::{ptsname, unlockpt};
use rustix::termios::{LocalModes, SpecialCodeIndex, Winsize, tcgetattr, tcsetwinsize};

use crate::users::User;

/// A new terminal: the agent's end, which doesn't block, and the programs' end, which belongs to their user.
pub fn make(size: PtySize, user: &User) -> rustix::io::Result<(OwnedFd, OwnedFd)> {
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    // That of the mount itself: /dev/ptmx is a link that a guest may have replaced, or lost.
    let agents = open("/dev/pts/ptmx", flags | OFlags::NONBLOCK, Mode::empty())
        .or_else(|_| open("/dev/ptmx", flags | OFlags::NONBLOCK, Mode::empty()))?;
    unlockpt(&agents)?;
    set_size(&agents, size)?;
    let programs = open(ptsname(&agents, Vec::new())?, flags, Mode::empty())?;
    // A user whose terminal it is not can use it all the same, but can't open it by its name.
    let _ = fchown(&programs, Some(Uid::from_raw(user.uid)), Some(Gid::from_raw(user.gid)));
    Ok((agents, programs))
}

/// Gives a terminal a size.
pub fn set_size(terminal: impl AsFd, size: PtySize) -> rustix::io::Result<()> {
    tcsetwinsize(terminal, Winsize { ws_row: size.rows, ws_col: size.cols, ws_xpixel: 0, ws_ypixel: 0 })
}

/// What is to be written into a terminal for these typed characters. gVisor's kernel sends the signal that a character
/// stands for and leaves the character in the line, where the next program would read it: it is erased again. A kernel
/// that took it out has nothing there to erase.
pub fn typed(terminal: impl AsFd, bytes: Vec<u8>) -> Vec<u8> {
    let Ok(settings) = tcgetattr(terminal) else { return bytes };
    if !settings.local_modes.contains(LocalModes::ISIG | LocalModes::ICANON) {
        return bytes;
    }
    let of = |which| settings.special_codes[which];
    let signals = [of(SpecialCodeIndex::VINTR), of(SpecialCodeIndex::VQUIT), of(SpecialCodeIndex::VSUSP)];
    let erase = of(SpecialCodeIndex::VERASE);
    // A code of 0 means that there is no such character.
    let is_signal = |byte: &u8| *byte != 0 && signals.contains(byte);
    if erase == 0 || !bytes.iter().any(is_signal) {
        return bytes;
    }
    bytes.iter().flat_map(|byte| [Some(*byte), is_signal(byte).then_some(erase)]).flatten().collect()
}

/// Tells every process of a session that its terminal has another size. gVisor's kernel doesn't, and does not say which
/// group is in the foreground; whoever doesn't ask for the signal does not notice it.
pub fn tell_session(leader: u32) {
    let Ok(entries) = std::fs::read_dir("/proc") else { return };
    for entry in entries.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        if session_of(pid) == Some(leader)
            && let Some(pid) = rustix::process::Pid::from_raw(pid.cast_signed())
        {
            // One that ended meanwhile needs no word, and a number is not given to another process so soon.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::WINCH);
        }
    }
}

fn session_of(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name may hold anything, and is followed by: state, parent, group, session.
    stat.rsplit_once(')')?.1.split_whitespace().nth(3)?.parse().ok()
}
