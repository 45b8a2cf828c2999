//! TLS with certificates of one's own: by them alone, below a domain of one's own, for pages and sockets; and what is wrong
//! with files is told.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use super::world::{App, PORT, app, of_port};
use crate::api::Api;
use crate::world::{Server, remuda, text};

const DOMAIN: &str = "previews.example";

/// A certificate for the domain and all names below it, and its key.
fn certificate(directory: &Path, name: &str) -> (PathBuf, PathBuf) {
    let (certificate, key) = (directory.join(format!("{name}.pem")), directory.join(format!("{name}.key")));
    let mut openssl = Command::new("openssl");
    openssl.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]);
    openssl.args(["-subj", "/CN=of our own", "-addext", &format!("subjectAltName=DNS:{DOMAIN},DNS:*.{DOMAIN}")]);
    let output = openssl.arg("-keyout").arg(&key).arg("-out").arg(&certificate).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    (certificate, key)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_of_ones_own_are_shown_for_pages_and_sockets() {
    let directory = tempfile::Builder::new().prefix("remuda-test-").tempdir_in("/var/tmp").unwrap();
    let (certificate, key) = certificate(directory.path(), "own");
    let shown = |path: &PathBuf| path.to_str().unwrap().to_owned();
    let arguments =
        ["--tls-cert", &shown(&certificate), "--tls-key", &shown(&key), "--preview-domain", DOMAIN].map(str::to_owned);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let api = Api::of(Arc::new(Server::start_with_own_place(&arguments)));
    let App { id } = app(&api, PORT).await;
    let made = api.client.create_preview(&id, &of_port(PORT)).await.unwrap();
    let url = made.url.unwrap();
    let host = url.split('/').nth(2).unwrap().to_owned();
    let (name, port) = host.split_once(':').unwrap();
    assert_eq!(url, format!("https://{}.{DOMAIN}:{port}/", made.token));
    let curl = |arguments: &[&str]| {
        let mut command = Command::new("curl");
        command.args(["-sS", "--noproxy", "*", "--resolve", &format!("{name}:{port}:127.0.0.1")]).args(arguments);
        command.output().unwrap()
    };
    let page = curl(&["--cacert", &shown(&certificate), "-w", " %{http_version} %{http_code}", &url]);
    assert!(text(&page.stdout).ends_with(" 2 200"), "{} {}", text(&page.stdout), text(&page.stderr));
    assert_eq!(curl(&[&url]).status.code(), Some(60), "whoever does not trust it is not let down to plain HTTP");

    // A socket, spoken by hand within TLS.
    let mut speaking = Command::new("openssl");
    speaking.args(["s_client", "-quiet", "-verify_return_error", "-alpn", "http/1.1", "-servername", name, "-CAfile"]);
    speaking.arg(&certificate).args(["-connect", &format!("127.0.0.1:{port}")]);
    speaking.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut speaking = speaking.spawn().unwrap();
    let stream = Spoken { to: speaking.stdin.take().unwrap(), from: speaking.stdout.take().unwrap() };
    let (mut socket, _) = tungstenite::client(format!("ws://{host}/"), stream).unwrap();
    for word in ["one", "two"] {
        socket.send(tungstenite::Message::Text(word.into())).unwrap();
        assert_eq!(socket.read().unwrap(), tungstenite::Message::Text(word.into()));
    }
    api.client.revoke_preview(&id, &made.preview.id).await.unwrap();
    assert!(matches!(socket.read(), Ok(tungstenite::Message::Close(Some(frame))) if u16::from(frame.code) == 1008));
    drop(socket);
    speaking.wait().unwrap();
    api.remove(&id).await;
}

/// What a program says and is told.
struct Spoken {
    to: std::process::ChildStdin,
    from: std::process::ChildStdout,
}

impl std::io::Read for Spoken {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.from.read(buffer)
    }
}

impl std::io::Write for Spoken {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.to.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.to.flush()
    }
}

#[test]
fn what_is_wrong_with_a_certificate_is_told_before_anything_is_served() {
    crate::world::set_up();
    let directory = tempfile::Builder::new().prefix("remuda-test-").tempdir_in("/var/tmp").unwrap();
    let (certificate, _) = certificate(directory.path(), "own");
    let (_, other) = self::certificate(directory.path(), "other");
    let absent = directory.path().join("absent");
    let serve = |certificate: &Path, key: &Path| {
        let mut command = remuda();
        command
            .args(["serve", "--listen", "127.0.0.1:0", "--ephemeral", "--data-dir"])
            .arg(directory.path().join("data"));
        let output = command.arg("--tls-cert").arg(certificate).arg("--tls-key").arg(key).output().unwrap();
        assert!(!output.status.success() && !text(&output.stdout).contains("listening"));
        text(&output.stderr)
    };
    let said = serve(&certificate, &other);
    assert!(said.contains("don't belong together"), "{said}");
    let said = serve(&absent, &other);
    assert!(said.contains(absent.to_str().unwrap()), "{said}");
    let said = serve(&certificate, &certificate);
    assert!(said.contains("own.pem"), "{said}");
}
