//! Previews as those use them who have one: what goes through, what is refused and how that is told, and that what is
//! closed is closed at once.

mod accounts;
mod browser;
mod closing;
mod limits;
mod local_names;
mod loopback;
mod raw;
mod tls;
mod world;

use remuda_client::wire::{Branch, CreatePreview, PreviewAuth, PreviewHost, PreviewState, ProbeResult, RenewPreview};
use remuda_types::ErrorCode;
use serde_json::{Value, json};

use crate::api::{Api, fork_of, refused};
use crate::keys::keyed;
use crate::restart::Place;
use world::{App, PORT, Reply, app, ask, get, get_with, of_port};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_answer_is_told_the_same_url_and_nothing_else_tells_a_credential() {
    let api = Api::own();
    let id = api.create().await.id;
    let path = format!("/v1/sandboxes/{id}/previews");
    let body = json!({ "port": PORT, "label": "for me" }).to_string();
    let first = keyed(&api.server, "POST", &path, "the-key", &body);
    let again = keyed(&api.server, "POST", &path, "the-key", &body);
    assert_eq!((first.status, again.status, again.replayed), (201, 201, true));
    assert_eq!(first.body, again.body);
    let token = first.body["token"].as_str().unwrap().to_owned();
    assert_eq!(first.body["url"], format!("http://{token}.localhost:{}/", world::port(&api)));
    assert_eq!(api.client.previews(&id).await.unwrap().len(), 1);

    // Rotated, the answer of the rotation is told again too, and the first one is still the first one.
    let preview = first.body["preview"]["id"].as_str().unwrap().to_owned();
    let rotate = format!("{path}/{preview}/rotate");
    let rotated = keyed(&api.server, "POST", &rotate, "other-key", "");
    assert_eq!(keyed(&api.server, "POST", &rotate, "other-key", "").body, rotated.body);
    assert_ne!(rotated.body["token"], first.body["token"]);
    assert_eq!(keyed(&api.server, "POST", &path, "the-key", &body).body, first.body);
    let conflict = keyed(&api.server, "POST", &path, "the-key", &json!({ "port": 1 }).to_string());
    assert_eq!(conflict.status, 422);

    for told in ["", &format!("/{preview}")] {
        let (_, shown) = api.raw("GET", &format!("{path}{told}"), "", "");
        assert!(!shown.to_string().contains(&token), "{shown}");
    }
    let (_, operation) = api.raw("GET", "/v1/operations?key=the-key", "", "");
    let (_, events) = api.raw("GET", "/v1/events", "", "");
    assert!(events.to_string().contains("preview.rotated"), "{events}");
    assert!(!format!("{operation}{events}").contains(&token));
    let bytes: Vec<u8> = (0..24).map(|at| u8::from_str_radix(&token[2 * at..2 * at + 2], 16).unwrap()).collect();
    for entry in ["journal.db", "journal.db-wal"] {
        let stored = std::fs::read(api.server.data_dir.join(entry)).unwrap();
        assert!(!stored.windows(24).any(|window| window == bytes), "{entry} holds the credential");
        assert!(!stored.windows(48).any(|window| window == token.as_bytes()), "{entry} holds the credential");
    }
    api.remove(&id).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_wrong_with_a_preview_is_told() {
    let api = Api::shared();
    let id = api.create().await.id;
    let refuse = |request: Value| {
        let (status, body) = api.raw("POST", &format!("/v1/sandboxes/{id}/previews"), "", &request.to_string());
        (status, body["error"]["details"]["member"].as_str().unwrap_or_default().to_owned())
    };
    assert_eq!(refuse(json!({ "port": 0 })), (400, "port".into()));
    assert_eq!(refuse(json!({ "port": 65_536 })), (400, "port".into()));
    assert_eq!(refuse(json!({ "port": 80, "ttl_ms": 1 })), (400, "ttl_ms".into()));
    assert_eq!(refuse(json!({ "port": 80, "label": "a\nb" })), (400, "label".into()));
    assert_eq!(refuse(json!({ "port": 80, "auth": "basic" })), (400, "auth".into()));
    assert_eq!(refuse(json!({ "port": 80, "token": "x" })).0, 400);
    let unknown = "prev-aaaaaaaaaaaaaaaaaaaa".parse().unwrap();
    refused(api.client.preview(&id, &unknown).await, ErrorCode::PreviewNotFound);
    refused(api.client.revoke_preview(&id, &unknown).await, ErrorCode::PreviewNotFound);
    // Those of one sandbox are none of another's.
    let other = api.create().await.id;
    let made = api.client.create_preview(&other, &of_port(PORT)).await.unwrap();
    refused(api.client.preview(&id, &made.preview.id).await, ErrorCode::PreviewNotFound);
    api.client.stop(&other).await.unwrap();
    refused(api.client.create_preview(&other, &of_port(PORT)).await, ErrorCode::WrongState);
    assert_eq!(api.client.preview(&other, &made.preview.id).await.unwrap().state, PreviewState::Ended);
    api.remove(&other).await;
    let after = api.client.previews(&other).await.unwrap();
    assert_eq!((after.len(), after[0].state), (1, PreviewState::Ended), "also when its sandbox is gone");
    api.remove(&id).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_application_gets_all_that_is_its_own_and_no_credential() {
    let api = Api::shared();
    let App { id, .. } = app(&api, PORT).await;
    let made = api.client.create_preview(&id, &of_port(PORT)).await.unwrap();
    let host = world::host(&made);
    let own = format!(
        "Cookie: session=7; remuda_preview={}\r\nAuthorization: Basic dXNlcjpwYXNz\r\nOrigin: http://{host}\r\n\
         Referer: http://{host}/from\r\nX-Forwarded-For: 6.6.6.6\r\nX-Forwarded-Host: evil\r\nForwarded: for=6.6.6.6\r\n\
         X-Remuda-Preview-Token: {}\r\n",
        "0".repeat(48),
        made.token
    );
    let seen = get_with(&api, &host, "/a%2Fb/..//c?x=1&x=2", &own).json();
    assert_eq!(seen["url"], "/a%2Fb/..//c?x=1&x=2");
    let headers = &seen["headers"];
    for (name, value) in [
        ("host", format!("localhost:{PORT}")),
        ("cookie", "session=7".into()),
        ("authorization", "Basic dXNlcjpwYXNz".into()),
        ("origin", format!("http://localhost:{PORT}")),
        ("referer", format!("http://localhost:{PORT}/from")),
        ("x-forwarded-for", "127.0.0.1".into()),
        ("x-forwarded-proto", "http".into()),
        ("x-forwarded-host", format!("{}.localhost:{}", made.preview.id, world::port(&api))),
    ] {
        assert_eq!(headers[name], value, "{name}");
    }
    let text = seen.to_string().to_lowercase();
    for secret in [made.token.as_str(), "x-remuda", "6.6.6.6", "evil"] {
        assert!(!text.contains(secret), "{secret} in {text}");
    }
    let key = api.server.key().unwrap();
    let seen = get_with(&api, &host, "/", &format!("Authorization: Bearer {key}\r\n")).json();
    assert_eq!(seen["headers"]["authorization"], Value::Null, "our own keys are not its business");

    // Preserved, it sees the preview's name, with the id where the credential is.
    let preserve = CreatePreview { host: Some(PreviewHost::Preserve), ..of_port(PORT) };
    let preserved = api.client.create_preview(&id, &preserve).await.unwrap();
    let seen = get(&api, &world::host(&preserved), "/").json();
    assert_eq!(seen["headers"]["host"], format!("{}.localhost:{}", preserved.preview.id, world::port(&api)));
    assert!(!seen.to_string().contains(&preserved.token));

    let redirect = get(&api, &host, "/redirect");
    assert_eq!((redirect.status, redirect.header("location")), (302, Some(format!("http://{host}/there?a=b"))));
    assert_eq!(redirect.header("referrer-policy").as_deref(), Some("same-origin"));
    let login = get(&api, &host, "/login");
    assert_eq!(login.all("set-cookie"), ["session=7; Path=/; HttpOnly", "wide=1"]);
    assert_eq!(login.header("x-remuda-error"), None);
    let packed = get_with(&api, &host, "/gzip", "Accept-Encoding: gzip\r\n");
    assert_eq!(packed.header("content-encoding").as_deref(), Some("gzip"));
    assert_eq!(&packed.body[..2], [0x1f, 0x8b]);
    let part = get_with(&api, &host, "/range", "Range: bytes=2-4\r\n");
    assert_eq!((part.status, part.text()), (206, "234".into()));
    let head = ask(&api, &format!("HEAD /range HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"));
    assert_eq!((head.status, head.body.len()), (200, 0));

    // Whole, chunked, and asked for first.
    let body = "x".repeat(300_000);
    let upload = ask(
        &api,
        &format!(
            "POST /upload HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Length: {}\r\nExpect: 100-continue\r\n\r\n{body}",
            body.len()
        ),
    );
    assert!(upload.informed, "it was told to go on");
    assert_eq!(
        (upload.json()["bytes"].clone(), &upload.json()["headers"]["expect"]),
        (json!(body.len()), &Value::Null)
    );
    let chunked = ask(
        &api,
        &format!(
            "PUT /upload HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n\
         3\r\nabc\r\n4;ext=1\r\ndefg\r\n0\r\n\r\n"
        ),
    );
    assert_eq!((&chunked.json()["method"], &chunked.json()["bytes"]), (&json!("PUT"), &json!(7)));
    api.remove(&id).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_credential_travels_in_a_header_or_by_a_link_that_works_once() {
    let api = Api::shared();
    let App { id, .. } = app(&api, PORT).await;
    let of = |auth| CreatePreview { auth: Some(auth), ..of_port(PORT) };
    let by_header = api.client.create_preview(&id, &of(PreviewAuth::Header)).await.unwrap();
    let own = format!("{}.localhost:{}", by_header.preview.id, world::port(&api));
    let header = format!("X-Remuda-Preview-Token: {}\r\n", by_header.token);
    let below = format!("/previews/{}", by_header.preview.id);
    assert_eq!(get_with(&api, &own, "/x", &header).json()["url"], "/x");
    let seen = get_with(&api, "127.0.0.1", &format!("{below}/x?y"), &header).json();
    assert_eq!((&seen["url"], &seen["headers"]["x-forwarded-prefix"]), (&json!("/x?y"), &json!(below)));
    assert_eq!(get_with(&api, "127.0.0.1", &below, &header).json()["url"], "/");
    let hop = get_with(&api, "127.0.0.1", &format!("{below}/hop"), &header);
    assert_eq!(hop.header("location"), Some(format!("{below}/ok")));
    for (host, path) in [(own.as_str(), "/"), ("127.0.0.1", below.as_str())] {
        get(&api, host, path).refused(401, "unauthorized");
        get_with(&api, host, path, "X-Remuda-Preview-Token: nonsense\r\n").refused(401, "unauthorized");
        let wrong = format!("X-Remuda-Preview-Token: {}\r\n", "0".repeat(48));
        get_with(&api, host, path, &wrong).refused(401, "unauthorized");
        get_with(&api, host, path, &format!("{header}{header}")).refused(401, "unauthorized");
    }
    // Its credential as a host name was never given out.
    get(&api, &format!("{}.localhost", by_header.token), "/").refused(404, "preview_not_found");

    let by_cookie = api.client.create_preview(&id, &of(PreviewAuth::Cookie)).await.unwrap();
    let url = by_cookie.url.clone().unwrap();
    let (host, link) = url.trim_start_matches("http://").split_once('/').unwrap();
    let link = format!("/{link}");
    let head = ask(&api, &format!("HEAD {link} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"));
    assert_eq!(head.status, 405, "looking does not use it up");
    let entered = get(&api, host, &link);
    assert_eq!((entered.status, entered.header("location").as_deref()), (303, Some("/")));
    let set = entered.header("set-cookie").unwrap();
    assert!(set.contains("HttpOnly") && set.contains("SameSite=Lax") && !set.contains("Domain"), "{set}");
    let cookie = format!("Cookie: {}; own=1\r\n", set.split(';').next().unwrap());
    assert_eq!(get_with(&api, host, "/", &cookie).json()["headers"]["cookie"], "own=1");
    get(&api, host, &link).refused(410, "preview_gone");
    assert_eq!(get(&api, host, &link).json()["error"]["details"]["reason"], "link_used");
    // Only what its own pages ask for, and what a person goes to.
    for (origin, status) in [
        (format!("Origin: http://{host}\r\n"), 200),
        ("Origin: http://elsewhere\r\n".into(), 403),
        ("Origin: null\r\n".into(), 403),
        ("Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: no-cors\r\n".into(), 403),
        ("Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\n".into(), 200),
    ] {
        assert_eq!(get_with(&api, host, "/", &format!("{cookie}{origin}")).status, status, "{origin}");
    }
    // A cookie is for one preview, and under a path none is taken.
    get_with(&api, &own, "/", &cookie).refused(401, "unauthorized");
    let path = format!("/previews/{}/", by_cookie.preview.id);
    get_with(&api, "127.0.0.1", &path, &cookie).refused(401, "unauthorized");
    // The right credential of another preview is another thing than a wrong one.
    get_with(&api, host, "/", &header).refused(403, "forbidden");
    // A renewal makes another link, once.
    let renewed = api.client.renew_preview(&id, &by_cookie.preview.id, &RenewPreview::default()).await.unwrap();
    assert_ne!(renewed.url, by_cookie.url);
    assert_eq!(get_with(&api, host, "/", &cookie).status, 200, "who is in stays in");
    let link = renewed.url.unwrap().split_once(&format!("{host}/")).unwrap().1.to_owned();
    assert_eq!(get(&api, host, &format!("/{link}")).status, 303);
    // A rotation puts everybody out.
    api.client.rotate_preview(&id, &by_cookie.preview.id).await.unwrap();
    let out = get_with(&api, host, "/", &cookie);
    assert_eq!((out.status, &out.json()["error"]["details"]["reason"]), (410, &json!("rotated")));
    api.remove(&id).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_answer_of_the_servers_own_names_its_case() {
    let api = Api::shared();
    let App { id, .. } = app(&api, PORT).await;
    let made = api.client.create_preview(&id, &of_port(PORT)).await.unwrap();
    let (host, preview) = (world::host(&made), &made.preview.id);
    assert_eq!(get(&api, &host, "/").status, 200);
    get(&api, &host, "/hangup").refused(502, "port_unreachable");
    let nobody = api.client.create_preview(&id, &of_port(9)).await.unwrap();
    get(&api, &world::host(&nobody), "/").refused(502, "port_unreachable");
    // One text for every name that was never given out.
    let never: Vec<Value> = [format!("{}.localhost", "0".repeat(48)), "www.localhost".into(), format!("a.{host}")]
        .iter()
        .map(|host| get(&api, host, "/").refused(404, "preview_not_found"))
        .collect();
    assert!(never.windows(2).all(|two| two[0] == two[1]), "{never:?}");
    let page = get_with(&api, "www.localhost", "/", "Accept: text/html,*/*;q=0.8\r\n");
    assert!(page.header("content-type").unwrap().starts_with("text/html") && page.text().contains("no preview"));
    assert_eq!(page.header("x-remuda-error").as_deref(), Some("preview_not_found"));

    api.client.pause(&id).await.unwrap();
    let paused = get(&api, &host, "/").refused(503, "preview_not_ready");
    assert_eq!(paused["details"]["state"], "paused");
    let probe = api.client.probe_preview(&id, preview).await.unwrap();
    assert_eq!(probe.result, ProbeResult::Paused);
    api.client.resume(&id).await.unwrap();
    assert_eq!(get(&api, &host, "/").status, 200);

    let reason = |reply: Reply| reply.refused(410, "preview_gone")["details"]["reason"].clone();
    let rotated = api.client.rotate_preview(&id, preview).await.unwrap();
    assert_eq!(reason(get(&api, &host, "/")), "rotated");
    let host = world::host(&rotated);
    assert_eq!(get(&api, &host, "/").status, 200);
    api.client.revoke_preview(&id, preview).await.unwrap();
    assert_eq!(reason(get(&api, &host, "/")), "revoked");
    refused(api.client.rotate_preview(&id, preview).await, ErrorCode::PreviewGone);
    let last = api.client.create_preview(&id, &of_port(PORT)).await.unwrap();
    let removal = api.client.remove_sandbox(&id).await.unwrap();
    assert_eq!(reason(get(&api, &world::host(&last), "/")), "ended");
    assert_eq!(reason(get(&api, &host, "/")), "revoked", "that it was revoked stays a fact of its own");
    assert_eq!(api.client.probe_preview(&id, &last.preview.id).await.unwrap().result, ProbeResult::Gone);
    let deletion = api.client.receipt(&removal.receipt.unwrap()).await.unwrap().deletion.unwrap();
    assert!(deletion.credentials_refused.holds && deletion.absent.holds);
    assert!(deletion.credentials_refused.method.contains("each of its 3 previews"), "{deletion:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_look_through_tells_ready_from_reachable() {
    let api = Api::shared();
    let App { id, .. } = app(&api, PORT).await;
    let look = async |port: u16, host: PreviewHost| {
        let request = CreatePreview { host: Some(host), ..of_port(port) };
        let made = api.client.create_preview(&id, &request).await.unwrap();
        api.client.probe_preview(&id, &made.preview.id).await.unwrap()
    };
    let found = look(PORT, PreviewHost::Rewrite).await;
    assert_eq!((found.result, found.status, found.redirects), (ProbeResult::Answers, Some(200), 0));
    assert_eq!(look(9, PreviewHost::Rewrite).await.result, ProbeResult::NothingListens);
    let python = |code: &str| crate::api::python(code);
    let picky = "import http.server\nclass H(http.server.BaseHTTPRequestHandler):\n def do_GET(s):\n  \
                 own = s.headers['Host'] == 'localhost:8001'\n  \
                 s.send_response((302 if s.path == '/' else 204) if own else 403)\n  \
                 s.send_header('Location', 'http://localhost:8001/in')\n  s.end_headers()\n\
                 print('up', flush=True)\nhttp.server.HTTPServer(('', 8001), H).serve_forever()";
    // It is up when it listens, which comes after the word.
    let picky = picky.replace(
        "print('up', flush=True)\nhttp.server.HTTPServer(('', 8001), H)",
        "S = http.server.HTTPServer(('', 8001), H)\nprint('up', flush=True)\nS",
    );
    api.background(&id, python(&picky)).await;
    let found = look(8001, PreviewHost::Rewrite).await;
    assert_eq!((found.result, found.status, found.redirects), (ProbeResult::Answers, Some(204), 1), "{found:?}");
    let found = look(8001, PreviewHost::Preserve).await;
    assert_eq!((found.result, found.status), (ProbeResult::RefusesHost, Some(403)), "{found:?}");
    let mute = "import socket\ns = socket.create_server(('', 8002))\nprint('up', flush=True)\n\
                while True:\n c, _ = s.accept()\n c.sendall(b'220 ready\\r\\n')\n c.close()";
    api.background(&id, python(mute)).await;
    assert_eq!(look(8002, PreviewHost::Rewrite).await.result, ProbeResult::Listening);
    let shown = api.server.run(&["preview", "create", &id.to_string(), "9"]);
    assert!(shown.line().starts_with("http://") && shown.stderr.contains("libnss-myhostname"), "{}", shown.stderr);
    let preview = &api.client.previews(&id).await.unwrap().pop().unwrap().id;
    let probed = api.server.run(&["preview", "probe", &id.to_string(), preview.as_str()]);
    assert_eq!(probed.code, 1, "{}", probed.stderr);
    api.remove(&id).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn branches_answer_at_once_and_each_under_its_own_credential() {
    let api = Api::shared();
    let App { id, .. } = app(&api, PORT).await;
    let source = api.client.create_preview(&id, &of_port(PORT)).await.unwrap();
    let pid = get(&api, &world::host(&source), "/").json()["pid"].clone();
    let forked = api.client.fork(&id, &fork_of(2)).await.unwrap();
    for branch in &forked.branches {
        let Branch::Sandbox(branch) = branch else { panic!("{branch:?}") };
        assert_eq!(api.client.previews(&branch.id).await.unwrap(), [], "none comes along");
        let made = api.client.create_preview(&branch.id, &of_port(PORT)).await.unwrap();
        assert_ne!(made.token, source.token);
        let answered = get(&api, &world::host(&made), "/");
        assert_eq!(answered.json()["pid"], pid, "the source's process, as it was");
        // With the branch gone its credential leads nowhere, and the source's to the source.
        api.remove(&branch.id).await;
        get(&api, &world::host(&made), "/").refused(410, "preview_gone");
        assert_eq!(get(&api, &world::host(&source), "/").status, 200);
    }
    api.remove(&id).await;
    get(&api, &world::host(&source), "/").refused(410, "preview_gone");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn previews_outlive_a_killed_server() {
    let place = Place::new();
    let api = place.start();
    let App { id, .. } = app(&api, PORT).await;
    let kept = api.client.create_preview(&id, &of_port(PORT)).await.unwrap();
    let before = api.client.create_preview(&id, &of_port(PORT)).await.unwrap();
    let after = api.client.rotate_preview(&id, &before.preview.id).await.unwrap();
    let revoked = api.client.create_preview(&id, &of_port(PORT)).await.unwrap();
    api.client.revoke_preview(&id, &revoked.preview.id).await.unwrap();
    let shown = api.client.previews(&id).await.unwrap();
    let api = place.restart(api);
    assert_eq!(api.client.previews(&id).await.unwrap(), shown);
    for (made, status) in [(&kept, 200), (&before, 410), (&after, 200), (&revoked, 410)] {
        assert_eq!(get(&api, &world::host(made), "/").status, status);
    }
    api.remove(&id).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_with_an_authority_of_our_own_is_believed_and_http_leads_there() {
    let server = crate::world::Server::start_with_own_place(&["--tls-self-signed"]);
    let api = Api::of(server.into());
    let App { id, .. } = app(&api, PORT).await;
    let made = api.client.create_preview(&id, &of_port(PORT)).await.unwrap();
    let url = made.url.clone().unwrap();
    assert!(url.starts_with("https://"), "{url}");
    let line = api.server.lines.iter().find_map(|line| line.strip_prefix("certificate authority "));
    let authority = line.expect("it is told how to trust it").to_owned();
    let curl = |args: &[&str]| {
        let mut command = std::process::Command::new("curl");
        command.args(["-s", "--noproxy", "*", "-w", "\n%{http_version} %{http_code} %{redirect_url}"]).args(args);
        let output = command.output().unwrap();
        (output.status.code(), crate::world::text(&output.stdout))
    };
    let (code, said) = curl(&["--cacert", &authority, &url]);
    assert_eq!(code, Some(0), "{said}");
    let (body, told) = said.rsplit_once('\n').unwrap();
    assert!(told.starts_with("2 200"), "{told}");
    let seen: Value = serde_json::from_str(body).unwrap();
    assert_eq!(seen["headers"]["x-forwarded-proto"], "https");
    let (_, old) = curl(&["--cacert", &authority, "--http1.1", made.header_url.as_ref().unwrap()]);
    assert!(old.ends_with("\n1.1 401 "), "{old}");
    assert_eq!(curl(&[&url]).0, Some(60), "nobody else believes it");
    let (_, led) = curl(&[&url.replace("https://", "http://")]);
    assert!(led.ends_with(&format!("308 {url}")), "{led}");
    let mode = std::os::unix::fs::MetadataExt::mode;
    let key = std::path::Path::new(&authority).with_file_name("localhost.key.pem");
    assert_eq!(mode(&std::fs::metadata(key).unwrap()) & 0o777, 0o600);
    api.remove(&id).await;
}
