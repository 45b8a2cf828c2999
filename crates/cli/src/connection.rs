//! Which server a command talks to: a remote one by URL and key, else the local one by its socket. And where the calls
//! are kept that change something, until their outcome is known.
//! Must never take the API key from the command line, where other users of the machine can read it.

use std::env;
use std::path::{Path, PathBuf};

use remuda_client::{Client, Pending};
use remuda_types::Key;
use tokio::net::UnixStream;

use crate::args::Global;
use crate::data_dir::socket_of;
use crate::failure::{Failure, USAGE};

/// Where the key of a remote server is taken from.
pub const KEY_VARIABLE: &str = "REMUDA_API_KEY";

/// A client of the server that the options name, which loses no call. Nothing is connected yet.
pub fn connect(global: &Global) -> anyhow::Result<Client> {
    let client = plain(global)?;
    Ok(match pending(global) {
        Some(pending) => client.keeping(pending),
        None => client.repeating(),
    })
}

/// As [`connect`], for one call with this key where the user gives one.
pub fn connect_for(global: &Global, key: Option<Key>) -> anyhow::Result<Client> {
    let client = connect(global)?;
    Ok(match key {
        Some(key) => client.with_key(key),
        None => client,
    })
}

/// The directory in which this user's calls are kept; `None` where there is no place for it.
pub fn pending(global: &Global) -> Option<Pending> {
    if let Some(state) = directory_in("XDG_STATE_HOME") {
        return Some(Pending::at(state.join("remuda/pending")));
    }
    // Beside the server's own records; where there is no directory, there is no server that a call could reach.
    if global.url.is_none() && rustix::process::geteuid().is_root() && global.data_dir.is_dir() {
        return std::path::absolute(&global.data_dir).ok().map(|dir| Pending::at(dir.join("pending")));
    }
    state_dir().map(|state| Pending::at(state.join("pending")))
}

/// This user's own directory for what outlives a command; `None` where the environment names no place for it.
pub fn state_dir() -> Option<PathBuf> {
    let state = directory_in("XDG_STATE_HOME").or_else(|| directory_in("HOME").map(|home| home.join(".local/state")));
    state.map(|state| state.join("remuda"))
}

fn directory_in(variable: &str) -> Option<PathBuf> {
    env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute())
}

fn plain(global: &Global) -> anyhow::Result<Client> {
    match &global.url {
        Some(url) => remote(url),
        // Absolute, since a kept call must say where it was to go.
        None => Ok(Client::unix(std::path::absolute(socket_of(&global.data_dir))?)?),
    }
}

/// A client of the server that the options name, or `None` where no URL is given and no local server answers. It sends
/// each call once.
pub async fn connect_if_any(global: &Global) -> anyhow::Result<Option<Client>> {
    if let Some(url) = &global.url {
        return Ok(Some(remote(url)?));
    }
    let socket = socket_of(&global.data_dir);
    Ok(if answers(&socket).await { Some(Client::unix(&socket)?) } else { None })
}

async fn answers(socket: &Path) -> bool {
    UnixStream::connect(PathBuf::from(socket)).await.is_ok()
}

fn remote(url: &str) -> anyhow::Result<Client> {
    let key = env::var(KEY_VARIABLE).map_err(|_| {
        Failure::new(USAGE, format!("a remote server needs its key in {KEY_VARIABLE}"))
            .remedy("set it to a key that `remuda key create` or the first start of `remuda serve` printed there")
    })?;
    Ok(Client::tcp(url, &key)?)
}
