//! Webhooks: real deliveries to a real receiver, in order, signed, tried again, also across a kill of the server; and
//! none to where none may go.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, mpsc};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use remuda_client::wire::{CreateWebhook, DeliveryResult, Event, MadeWebhook};
use remuda_types::ErrorCode;
use sha2::Sha256;

use crate::api::{Api, PATIENCE, refused};
use crate::restart::Place;
use crate::world::Server;

/// One request as it arrived.
#[derive(Debug, Clone)]
struct Arrived {
    id: String,
    timestamp: String,
    signature: String,
    body: String,
}

impl Arrived {
    fn event(&self) -> Event {
        serde_json::from_str(&self.body).unwrap()
    }

    /// As a receiver does it, by the documents alone.
    fn is_signed_with(&self, secret: &str) -> bool {
        let key = STANDARD.decode(secret.strip_prefix("whsec_").unwrap()).unwrap();
        let mut mac = Hmac::<Sha256>::new_from_slice(&key).unwrap();
        mac.update(format!("{}.{}.{}", self.id, self.timestamp, self.body).as_bytes());
        self.signature == format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()))
    }
}

/// A receiver on loopback, which answers with what it is told to.
struct Receiver {
    url: String,
    arrived: mpsc::Receiver<Arrived>,
    /// Statuses of the next answers; then the last one for good.
    answers: Arc<Mutex<VecDeque<u16>>>,
}

impl Receiver {
    fn start(answers: &[u16]) -> Receiver {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/hook?a=b", listener.local_addr().unwrap());
        let (tell, arrived) = mpsc::channel();
        let answers = Arc::new(Mutex::new(VecDeque::from(answers.to_vec())));
        let answering = answers.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let Some(request) = read(&stream) else { continue };
                let status = {
                    let mut answers = answering.lock().unwrap();
                    if answers.len() > 1 { answers.pop_front().unwrap() } else { answers[0] }
                };
                if tell.send(request).is_err() {
                    return;
                }
                let _ = write!(
                    &stream,
                    "HTTP/1.1 {status} x\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"
                );
            }
        });
        Receiver { url, arrived, answers }
    }

    fn answer(&self, status: u16) {
        *self.answers.lock().unwrap() = [status].into();
    }

    fn next(&self) -> Arrived {
        self.arrived.recv_timeout(PATIENCE).expect("nothing is delivered")
    }
}

fn read(stream: &TcpStream) -> Option<Arrived> {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    assert_eq!(line, "POST /hook?a=b HTTP/1.1\r\n");
    let (mut length, mut arrived) = (0, [String::new(), String::new(), String::new()]);
    loop {
        line.clear();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(": ") else { break };
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = value.parse().unwrap(),
            "webhook-id" => arrived[0] = value.to_owned(),
            "webhook-timestamp" => arrived[1] = value.to_owned(),
            "webhook-signature" => arrived[2] = value.to_owned(),
            _ => {}
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let [id, timestamp, signature] = arrived;
    Some(Arrived { id, timestamp, signature, body: String::from_utf8(body).unwrap() })
}

fn to(url: &str, events: &[&str]) -> CreateWebhook {
    CreateWebhook { url: url.to_owned(), events: events.iter().map(|kind| (*kind).to_owned()).collect() }
}

fn secret_of(made: &MadeWebhook) -> String {
    made.secret.clone().expect("a first answer has the secret")
}

fn private() -> (Place, Api) {
    let place = Place::new();
    let api = Api::of(Arc::new(Server::start_plain(&place.data_dir, &["--webhooks-to-private"])));
    (place, api)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_are_delivered_in_order_signed_and_until_they_are_taken() {
    let (_place, api) = private();
    let receiver = Receiver::start(&[500, 302, 204]);
    let before = api.create().await.id;
    let made = api.client.create_webhook(&to(&receiver.url, &["sandbox.*"])).await.unwrap();
    let hook = &made.webhook.id;
    api.client.pause(&before).await.unwrap();
    api.client.resume(&before).await.unwrap();
    // Another kind, which this one is not for.
    api.client.snapshot(&before, &Default::default()).await.unwrap();
    api.remove(&before).await;

    // Neither an error nor a redirect is a delivery, and nothing overtakes what waits.
    let first = receiver.next();
    let (again, third) = (receiver.next(), receiver.next());
    assert!(first.id == again.id && again.id == third.id && first.body == third.body, "{first:?} {again:?} {third:?}");
    let all = [third, receiver.next(), receiver.next()];
    let kinds: Vec<_> = all.iter().map(|arrived| arrived.event().kind).collect();
    assert_eq!(kinds, ["sandbox.paused", "sandbox.running", "sandbox.gone"]);
    for arrived in &all {
        assert!(arrived.is_signed_with(&secret_of(&made)), "{arrived:?}");
        assert_eq!(arrived.id, format!("{hook}_{}", arrived.event().sequence));
    }
    let events = api.client.events(made.webhook.done_through).await.unwrap().events;
    let told = |sequence| events.iter().find(|event| event.sequence == sequence).unwrap();
    assert!(all.iter().all(|arrived| arrived.event() == *told(arrived.event().sequence)));

    let last = all[2].event().sequence;
    let shown = until_done(&api, hook, last).await;
    assert_eq!((shown.failing, shown.missed), (None, 0));
    let deliveries = api.client.webhook_deliveries(hook).await.unwrap();
    let attempts: Vec<_> = deliveries.iter().map(|d| (d.sequence, d.result, d.attempts, d.status)).collect();
    let delivered = |arrived: &Arrived, n| (arrived.event().sequence, DeliveryResult::Delivered, n, Some(204));
    assert_eq!(attempts, [delivered(&all[2], 1), delivered(&all[1], 1), delivered(&all[0], 3)]);

    // By hand once more, with another secret.
    let rotated = api.client.rotate_webhook(hook).await.unwrap();
    let again = api.client.redeliver_webhook(hook, last).await.unwrap();
    assert!(again.by_hand && again.result == DeliveryResult::Delivered, "{again:?}");
    let arrived = receiver.next();
    assert!(arrived.id == all[2].id && arrived.is_signed_with(&secret_of(&rotated)), "{arrived:?}");
    assert!(!arrived.is_signed_with(&secret_of(&made)));
    refused(api.client.redeliver_webhook(hook, 1_000_000).await, ErrorCode::InvalidRequest);

    let text = api.server.run(&["webhook", "show", hook.as_str()]).line();
    assert!(text.contains(&receiver.url) && !text.contains("whsec_"), "{text}");
    assert!(!serde_json::to_string(&api.client.webhooks().await.unwrap()).unwrap().contains("whsec_"));
    assert_eq!(api.server.run(&["webhook", "rm", hook.as_str()]).code, 0);
    refused(api.client.webhook(hook).await, ErrorCode::WebhookNotFound);
}

async fn until_done(api: &Api, hook: &remuda_types::WebhookId, sequence: u64) -> remuda_client::wire::Webhook {
    let done = async {
        loop {
            let shown = api.client.webhook(hook).await.unwrap();
            if shown.done_through >= sequence {
                return shown;
            }
            // It is answered first and written down after; nothing tells of that.
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, done).await.expect("it is never done")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deliveries_go_on_where_a_killed_server_was() {
    let (place, api) = private();
    let receiver = Receiver::start(&[503]);
    let made = api.client.create_webhook(&to(&receiver.url, &[])).await.unwrap();
    let id = api.create().await.id;
    let failed = receiver.next();
    assert_eq!(failed.event().kind, "sandbox.running");
    Arc::into_inner(api.server).unwrap().kill();
    receiver.answer(200);
    let api = Api::of(Arc::new(Server::start_plain(&place.data_dir, &["--webhooks-to-private"])));
    api.client.pause(&id).await.unwrap();
    let kinds = [receiver.next(), receiver.next()].map(|arrived| {
        assert!(arrived.is_signed_with(&secret_of(&made)));
        arrived.event().kind
    });
    // Nothing was lost, and nothing overtook.
    assert_eq!(kinds, ["sandbox.running", "sandbox.paused"]);
    api.remove(&id).await;
    assert_eq!(receiver.next().event().kind, "sandbox.gone");
}

#[tokio::test]
async fn nothing_goes_to_addresses_that_are_not_public() {
    let api = Api::own();
    let receiver = Receiver::start(&[200]);
    for url in [
        receiver.url.as_str(),
        "http://127.1.2.3/",
        "http://[::1]/",
        "http://[::ffff:127.0.0.1]/",
        "https://10.0.0.1/",
        "http://169.254.169.254/latest/meta-data",
        "http://[fe80::1]/",
        "ftp://a.example/",
        "https://user:secret@a.example/",
        "nonsense",
    ] {
        let error = refused(api.client.create_webhook(&to(url, &[])).await, ErrorCode::InvalidRequest);
        assert!(error.cause.is_some() && error.remedy.is_some(), "{error:?}");
    }
    // A name says nothing; where it leads is looked at when something is sent.
    let port = receiver.url.rsplit(':').next().unwrap().split('/').next().unwrap().to_owned();
    let made = api.client.create_webhook(&to(&format!("http://localhost:{port}/hook?a=b"), &[])).await.unwrap();
    let id = api.create().await.id;
    let newest = api.client.events(0).await.unwrap().newest;
    let delivery = api.client.redeliver_webhook(&made.webhook.id, newest).await.unwrap();
    assert_eq!((delivery.result, delivery.status), (DeliveryResult::Failed, None));
    assert!(delivery.error.unwrap().contains("has no public address"));
    api.remove(&id).await;
    assert!(receiver.arrived.try_recv().is_err(), "something was sent");

    refused(api.client.create_webhook(&to("https://a.example/", &["sandbox"])).await, ErrorCode::InvalidRequest);
    let narrowed = api.server.run(&["key", "create", "--scope", "admin,sandboxes:read", "--slot", "mine"]).line();
    let narrowed = remuda_client::Client::tcp(&api.server.url(), &narrowed).unwrap();
    refused(narrowed.create_webhook(&to("https://a.example/", &[])).await, ErrorCode::Forbidden);
    let text = api.server.run(&["webhook", "create", "https://a.example/x", "--event", "sandbox.*,snapshot.active"]);
    assert!(text.line().contains(" whsec_"));
    assert!(api.server.run(&["webhook", "ls"]).line().contains("sandbox.*,snapshot.active"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_makes_one_webhook_and_one_secret_and_tells_each_secret_once() {
    let (place, api) = private();
    let receiver = Receiver::start(&[200]);
    let create = ["--json", "webhook", "create", &receiver.url, "--event", "sandbox.*", "--key", "k1"];
    let made: MadeWebhook = serde_json::from_value(api.server.run(&create).json()).unwrap();
    let hook = made.webhook.id.clone();
    let again: MadeWebhook = serde_json::from_value(api.server.run(&create).json()).unwrap();
    assert_eq!((&again.webhook.id, &again.secret), (&hook, &None), "it is told again, and its secret is not");
    let said = api.server.run(&create[1..]);
    assert_eq!(said.line(), hook.as_str());
    assert!(said.stderr.contains(&format!("remuda webhook rotate {hook}")), "{}", said.stderr);
    let other = ["webhook", "create", &receiver.url, "--key", "k1"];
    api.server.run(&other).failed(1, "idempotency_key_conflict");

    let rotate = ["--json", "webhook", "rotate", hook.as_str(), "--key", "k2"];
    let rotated: MadeWebhook = serde_json::from_value(api.server.run(&rotate).json()).unwrap();
    assert_ne!(secret_of(&rotated), secret_of(&made));
    let again = api.server.run(&rotate);
    assert_eq!((again.code, again.json().get("secret")), (1, None), "there is nothing that could be used");
    // Nor does a later server, or anything that tells of the call.
    Arc::into_inner(api.server).unwrap().kill();
    let api = Api::of(Arc::new(Server::start_plain(&place.data_dir, &["--webhooks-to-private"])));
    assert_eq!(api.server.run(&create).json().get("secret"), None);
    for key in ["k1", "k2"] {
        let told = api.server.run(&["--json", "operation", "show", key]);
        assert!(told.line().contains(hook.as_str()) && !told.line().contains("whsec_"), "{}", told.line());
    }
    assert_eq!(api.client.webhooks().await.unwrap().len(), 1);
    let id = api.create().await.id;
    let arrived = receiver.next();
    assert!(arrived.is_signed_with(&secret_of(&rotated)), "the secret was made anew once: {arrived:?}");
    // Refused before anything is stored: the key is free.
    api.server.run(&["webhook", "create", "ftp://a.example/", "--key", "k3"]).failed(2, "nothing can be delivered");
    assert_eq!(api.server.run(&["webhook", "create", "https://a.example/", "--key", "k3"]).code, 0);
    api.remove(&id).await;
}

/// A receiver over TLS, with a certificate of an authority that nobody else knows.
struct TlsReceiver {
    process: std::process::Child,
    url: String,
    arrived: BufReader<std::process::ChildStdout>,
}

impl TlsReceiver {
    fn start(directory: &std::path::Path) -> TlsReceiver {
        let script = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=authority -keyout ca.key -out ca.pem \\
                        -addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign && \
                      openssl req -newkey rsa:2048 -nodes -subj /CN=localhost -keyout key.pem -out request.pem && \
                      printf 'subjectAltName=DNS:localhost\\nbasicConstraints=CA:FALSE\\n' > extensions && \
                      openssl x509 -req -in request.pem -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 \\
                        -extfile extensions -out cert.pem";
        let made = std::process::Command::new("sh").args(["-c", script]).current_dir(directory).output().unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let server = "import http.server, ssl\n\
            class Hook(http.server.BaseHTTPRequestHandler):\n\
            \x20   def do_POST(self):\n\
            \x20       print(self.rfile.read(int(self.headers['content-length'])).decode(), flush=True)\n\
            \x20       self.send_response(204)\n\
            \x20       self.end_headers()\n\
            \x20   def log_message(self, *words): pass\n\
            s = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Hook)\n\
            c = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)\n\
            c.load_cert_chain('cert.pem', 'key.pem')\n\
            s.socket = c.wrap_socket(s.socket, server_side=True)\n\
            print(s.server_port, flush=True)\n\
            s.serve_forever()";
        let mut process = std::process::Command::new("python3")
            .args(["-c", server])
            .current_dir(directory)
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let mut arrived = BufReader::new(process.stdout.take().unwrap());
        let mut port = String::new();
        arrived.read_line(&mut port).unwrap();
        TlsReceiver { process, url: format!("https://localhost:{}/hook", port.trim()), arrived }
    }
}

impl Drop for TlsReceiver {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receiver_over_tls_is_delivered_to_where_its_authority_is_trusted() {
    let directory = tempfile::tempdir().unwrap();
    let mut receiver = TlsReceiver::start(directory.path());
    let place = Place::new();
    for (trusts, result) in [(false, DeliveryResult::Failed), (true, DeliveryResult::Delivered)] {
        let authority = directory.path().join("ca.pem");
        let mut args = vec!["--webhooks-to-private"];
        if trusts {
            args.extend(["--webhooks-trust", authority.to_str().unwrap()]);
        }
        let api = Api::of(Arc::new(Server::start_with(&place.data_dir, &args)));
        let newest = api.client.events(0).await.unwrap().newest;
        let made = api.client.create_webhook(&to(&receiver.url, &[])).await.unwrap();
        let delivery = api.client.redeliver_webhook(&made.webhook.id, newest).await.unwrap();
        assert_eq!(delivery.result, result, "{delivery:?}");
        if trusts {
            let mut body = String::new();
            receiver.arrived.read_line(&mut body).unwrap();
            assert_eq!(serde_json::from_str::<Event>(&body).unwrap().sequence, newest);
        } else {
            assert!(delivery.error.unwrap().contains("no TLS with localhost"), "it says why");
        }
    }
}
