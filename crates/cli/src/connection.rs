//! Which server a command talks to: a remote one by URL and key, else the local one by its socket.
//! Must never take the key from the command line, where other users of the machine can read it.

use std::path::{Path, PathBuf};

use remuda_client::Client;
use tokio::net::UnixStream;

use crate::args::Global;
use crate::data_dir::socket_of;
use crate::failure::{Failure, USAGE};

/// Where the key of a remote server is taken from.
const KEY_VARIABLE: &str = "REMUDA_API_KEY";

/// A client of the server that the options name. Nothing is connected yet.
pub fn connect(global: &Global) -> anyhow::Result<Client> {
    match &global.url {
        Some(url) => remote(url),
        None => Ok(Client::unix(socket_of(&global.data_dir))?),
    }
}

/// As [`connect`], but `None` where no URL is given and no local server answers.
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
    let key = std::env::var(KEY_VARIABLE).map_err(|_| {
        Failure::new(USAGE, format!("a remote server needs its key in {KEY_VARIABLE}"))
            .remedy("set it to the key that `remuda serve` printed there on its first start")
    })?;
    Ok(Client::tcp(url, &key)?)
}
