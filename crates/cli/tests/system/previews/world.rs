//! An application in a sandbox, and those who come to it by a preview.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::num::NonZeroU16;

use remuda_client::wire::{CreatePreview, MadePreview, StartExecution};
use remuda_types::SandboxId;
use serde_json::Value;

use crate::api::{Api, PATIENCE};

/// Where the application listens.
pub const PORT: u16 = 8080;

/// A sandbox with the application in it.
pub struct App {
    pub id: SandboxId,
}

/// Starts it, for everybody.
pub async fn app(api: &Api, port: u16) -> App {
    app_on(api, port, "0.0.0.0").await
}

/// Starts it on one of the guest's addresses.
pub async fn app_on(api: &Api, port: u16, address: &str) -> App {
    let id = api.create().await.id;
    api.client.write_file(&id, "/workspace/app.mjs", &Default::default(), include_str!("app.mjs")).await.unwrap();
    let argv = ["node", "/workspace/app.mjs", &port.to_string(), address].map(str::to_owned).to_vec();
    api.background(&id, StartExecution { argv: Some(argv), ..StartExecution::default() }).await;
    App { id }
}

pub fn of_port(port: u16) -> CreatePreview {
    CreatePreview { port: NonZeroU16::new(port).unwrap(), ttl_ms: None, auth: None, host: None, label: None }
}

/// Where the server listens.
pub fn port(api: &Api) -> u16 {
    api.server.url().rsplit(':').next().unwrap().trim_end_matches('/').parse().unwrap()
}

/// The host and port of a preview's URL.
pub fn host(made: &MadePreview) -> String {
    let url = made.url.as_ref().unwrap();
    url.split('/').nth(2).unwrap().to_owned()
}

/// An answer as it came.
pub struct Reply {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
    /// Whether a word came before it to go on with the request.
    pub informed: bool,
}

impl Reply {
    fn read(bytes: &[u8]) -> Reply {
        let (informed, bytes) = match bytes.strip_prefix(b"HTTP/1.1 100 Continue\r\n\r\n") {
            Some(rest) => (true, rest),
            None => (false, bytes),
        };
        let end = bytes.windows(4).position(|window| window == b"\r\n\r\n");
        let end = end.unwrap_or_else(|| panic!("no answer: {:?}", String::from_utf8_lossy(bytes)));
        let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let mut reply = Reply { status, head, body: bytes[end + 4..].to_vec(), informed };
        if reply.header("transfer-encoding").is_some() {
            reply.body = unchunked(&reply.body);
        }
        reply
    }

    pub fn all(&self, name: &str) -> Vec<String> {
        let lines = self.head.lines().skip(1).filter_map(|line| line.split_once(": "));
        lines.filter(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.to_owned()).collect()
    }

    pub fn header(&self, name: &str) -> Option<String> {
        self.all(name).into_iter().next()
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {} {}", self.head, self.text()))
    }

    /// Must be an error of the server's own, which says what is the case and what to do; gives it.
    #[track_caller]
    pub fn refused(&self, status: u16, code: &str) -> Value {
        assert_eq!((self.status, self.header("x-remuda-error").as_deref()), (status, Some(code)), "{}", self.text());
        let error = self.json()["error"].clone();
        assert!(error["message"].is_string() && error["remedy"].is_string(), "{error}");
        error
    }
}

fn unchunked(mut bytes: &[u8]) -> Vec<u8> {
    let mut whole = Vec::new();
    while let Some(end) = bytes.windows(2).position(|window| window == b"\r\n") {
        let length = usize::from_str_radix(std::str::from_utf8(&bytes[..end]).unwrap(), 16).unwrap();
        if length == 0 {
            break;
        }
        whole.extend(&bytes[end + 2..end + 2 + length]);
        bytes = &bytes[end + 4 + length..];
    }
    whole
}

/// A connection to the server's TCP port.
pub fn connect(api: &Api) -> TcpStream {
    let stream = TcpStream::connect(("127.0.0.1", port(api))).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Everything that comes back for these bytes, up to the connection's end.
pub fn exchange(api: &Api, bytes: &[u8]) -> Vec<u8> {
    let mut stream = connect(api);
    // Whoever refuses early may have closed already; what it said counts.
    let _ = stream.write_all(bytes);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    answer
}

/// One exchange; the request must say `Connection: close`.
#[track_caller]
pub fn ask(api: &Api, request: &str) -> Reply {
    Reply::read(&exchange(api, request.as_bytes()))
}

#[track_caller]
pub fn get(api: &Api, host: &str, path: &str) -> Reply {
    get_with(api, host, path, "")
}

#[track_caller]
pub fn get_with(api: &Api, host: &str, path: &str, headers: &str) -> Reply {
    ask(api, &format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n{headers}Connection: close\r\n\r\n"))
}
