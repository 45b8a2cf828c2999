//! Terminals as WebSockets: lost and joined again nothing is missing and nothing typed comes twice; who may, and how a
//! browser shows that it may.

use std::net::TcpStream;
use std::os::unix::net::UnixStream;

use remuda_client::wire::{Execution, StartExecution, TerminalSize};
use remuda_types::{ExecutionId, SandboxId};
use serde_json::Value;
use tungstenite::client::IntoClientRequest;
use tungstenite::handshake::client::Response;
use tungstenite::{Message, WebSocket};

use crate::api::{Api, PATIENCE, exited};
use crate::restart::Place;

fn path(id: &SandboxId, execution: &ExecutionId, query: &str) -> String {
    format!("/v1/sandboxes/{id}/executions/{execution}/terminal?{query}")
}

/// One look at a terminal.
struct Look {
    socket: WebSocket<UnixStream>,
    offset: u64,
    seen: String,
    taken: u64,
    ended: Option<Execution>,
}

impl Look {
    fn at(api: &Api, id: &SandboxId, execution: &ExecutionId, offset: u64, query: &str) -> Look {
        let stream = UnixStream::connect(api.server.data_dir.join("remuda.sock")).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let url = format!("ws://localhost{}", path(id, execution, &format!("offset={offset}&{query}")));
        let (mut socket, _) = tungstenite::client(url, stream).unwrap();
        let Message::Text(first) = socket.read().unwrap() else { panic!("no word first") };
        let first: Value = serde_json::from_str(&first).unwrap();
        assert_eq!((&first["type"], &first["offset"]), (&"begin".into(), &offset.into()));
        Look { socket, offset, seen: String::new(), taken: 0, ended: None }
    }

    fn types(&mut self, text: &str) {
        self.socket.send(Message::Binary(text.to_owned().into())).unwrap();
    }

    fn says(&mut self, word: Value) {
        self.socket.send(Message::Text(word.to_string().into())).unwrap();
    }

    /// Takes one message in; false when it is over.
    fn step(&mut self) -> bool {
        match self.socket.read().unwrap() {
            Message::Binary(bytes) => {
                self.offset += bytes.len() as u64;
                self.seen.push_str(&String::from_utf8_lossy(&bytes));
            }
            Message::Text(text) => {
                let mut word: Value = serde_json::from_str(&text).unwrap();
                match word["type"].as_str().unwrap() {
                    "taken" => self.taken = word["typed"].as_u64().unwrap(),
                    "end" => self.ended = Some(serde_json::from_value(word["execution"].take()).unwrap()),
                    _ => panic!("{word}"),
                }
            }
            Message::Close(_) => return false,
            _ => {}
        }
        true
    }

    fn sees(&mut self, what: &str) {
        while !self.seen.contains(what) {
            assert!(self.step(), "{what:?} did not come, only {:?}", self.seen);
        }
    }

    fn until_taken(&mut self, typed: u64) {
        while self.taken < typed {
            assert!(self.step());
        }
    }
}

fn shell() -> StartExecution {
    let argv = ["sh", "-i"].map(str::to_owned).to_vec();
    let env = [("PS1".to_owned(), "> ".to_owned())].into();
    StartExecution {
        argv: Some(argv),
        env,
        pty: Some(TerminalSize { cols: 80, rows: 24 }),
        ..StartExecution::default()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_terminal_that_was_lost_is_joined_again_where_it_was() {
    let place = Place::new();
    let api = place.start();
    let sandbox = api.create().await;
    let id = &sandbox.id;
    let execution = api.client.execute(id, &shell()).await.unwrap().id;
    let mut look = Look::at(&api, id, &execution, 0, "writer=me");
    look.sees("> ");
    look.says(serde_json::json!({ "type": "resize", "cols": 99, "rows": 44 }));
    look.types("stty size; echo $((40 + 2))\n");
    look.sees("44 99\r\n42\r\n");
    look.until_taken(28);
    let (offset, seen) = (look.offset, look.seen.clone());
    drop(look);
    let api = place.restart(api);
    // What was typed and may not have been taken is typed again, and comes once.
    let mut look = Look::at(&api, id, &execution, offset, "writer=me&typed=10");
    look.types("; echo $((40 + 2))\nexit 3\n");
    while look.step() {}
    let ended = look.ended.take().expect("its end is told");
    exited(&ended, 3);
    assert_eq!(look.offset, ended.output_bytes);
    assert!(!look.seen.contains("42"), "{:?}", look.seen);
    // From its beginning all of it comes, also when it is over.
    let mut again = Look::at(&api, id, &execution, 0, "");
    while again.step() {}
    assert_eq!(again.seen, seen + &look.seen);
    api.remove(id).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_browser_shows_its_key_as_a_protocol_and_only_to_a_terminal() {
    let api = Api::own();
    let sandbox = api.create().await;
    let id = &sandbox.id;
    let execution = api.client.execute(id, &shell()).await.unwrap().id;
    let key = |scope: &str| api.server.run(&["key", "create", "--scope", scope]).line();
    let join = |path: &str, protocols: &str| -> Result<Response, u16> {
        let address = api.server.url().trim_start_matches("http://").to_owned();
        let mut request = format!("ws://{address}{path}").into_client_request().unwrap();
        if !protocols.is_empty() {
            request.headers_mut().insert("Sec-WebSocket-Protocol", protocols.parse().unwrap());
        }
        match tungstenite::client(request, TcpStream::connect(address).unwrap()) {
            Ok((_, response)) => Ok(response),
            Err(tungstenite::HandshakeError::Failure(tungstenite::Error::Http(refused))) => {
                Err(refused.status().as_u16())
            }
            Err(e) => panic!("{e}"),
        }
    };
    let terminal = path(id, &execution, "offset=0");
    let (may, may_not) = (key("executions"), key("files"));
    let agreed = join(&terminal, &format!("remuda.terminal, remuda.key.{may}")).unwrap();
    assert_eq!(agreed.headers()["sec-websocket-protocol"], "remuda.terminal");
    assert_eq!(join(&terminal, "remuda.terminal").unwrap_err(), 401);
    assert_eq!(join(&terminal, "").unwrap_err(), 401);
    assert_eq!(join(&terminal, &format!("remuda.terminal, remuda.key.{may_not}")).unwrap_err(), 403);
    assert_eq!(join(&terminal, "remuda.terminal, remuda.key.rmd_0").unwrap_err(), 401);
    assert_eq!(join(&terminal, &format!("remuda.terminal, remuda.key.{may}, remuda.key.{may}")).unwrap_err(), 401);
    let port = format!("/v1/sandboxes/{id}/ports/8080/");
    assert_eq!(join(&port, &format!("remuda.terminal, remuda.key.{}", key("previews"))).unwrap_err(), 401);
    let without = StartExecution { pty: None, stdin_open: true, ..shell() };
    let without = api.client.execute(id, &without).await.unwrap().id;
    assert_eq!(join(&path(id, &without, "offset=0"), &format!("remuda.key.{may}")).unwrap_err(), 400);
    // What is no WebSocket is refused with a sentence.
    let (status, told) = api.raw("GET", &terminal, "", "");
    assert_eq!((status, &told["error"]["code"]), (400, &"invalid_request".into()));
}
