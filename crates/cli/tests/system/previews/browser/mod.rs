//! Previews in a real Chromium, on a real development server in a sandbox: what a person who works on a site does, in the
//! source, in three branches of it at once, and with TLS.

mod driver;

use std::process::Command;

use remuda_client::WriteTree;
use remuda_client::wire::{Branch, CreatePreview, CreateSandbox, MadePreview, PreviewAuth, StartExecution};
use remuda_types::SandboxId;
use sha2::{Digest as _, Sha256};

use super::world::{self, get, get_with, of_port};
use crate::api::{Api, fork_of};
use crate::world::Server;
use driver::Browser;

/// Where the development server listens.
const PORT: u16 = 5173;
const UPLOAD_BYTES: usize = 3 << 20;
/// The site's files.
const SITE: [(&str, &str); 6] = [
    ("index.html", include_str!("site/index.html")),
    ("main.js", include_str!("site/main.js")),
    ("message.js", include_str!("site/message.js")),
    ("picture.svg", include_str!("site/picture.svg")),
    ("style.css", include_str!("site/style.css")),
    ("vite.config.mjs", include_str!("site/vite.config.mjs")),
];

/// A sandbox with the site in it, and its development server running.
async fn site(api: &Api) -> SandboxId {
    let id = api.create_with(&CreateSandbox { memory_mib: Some(1_024), ..CreateSandbox::default() }).await.id;
    let mut tar = Command::new("tar");
    tar.arg("-C").arg(driver::parts()).args(["--exclude=node_modules/playwright-core", "-cf", "-", "node_modules"]);
    let archive = tar.output().unwrap();
    assert!(archive.status.success(), "{}", crate::world::text(&archive.stderr));
    let options = WriteTree { parents: true, ..WriteTree::default() };
    api.client.write_tree(&id, "/workspace", &options, archive.stdout).await.unwrap();
    for (name, text) in SITE {
        write(api, &id, name, text).await;
    }
    let argv = ["node", "node_modules/vite/bin/vite.js"].map(str::to_owned).to_vec();
    let (_, said) = api.background(&id, StartExecution { argv: Some(argv), ..StartExecution::default() }).await;
    assert!(!said.to_lowercase().contains("error"), "{said}");
    id
}

async fn write(api: &Api, id: &SandboxId, name: &str, text: &str) {
    api.client.write_file(id, &format!("/workspace/{name}"), &Default::default(), text.to_owned()).await.unwrap();
}

async fn message(api: &Api, id: &SandboxId, text: &str) {
    write(api, id, "message.js", &format!("export const message = '{text}';\n")).await;
}

async fn preview(api: &Api, id: &SandboxId, auth: PreviewAuth) -> MadePreview {
    let request = CreatePreview { auth: Some(auth), ..of_port(PORT) };
    api.client.create_preview(id, &request).await.unwrap()
}

/// Opens the site in a tab, which must be whole; gives its origin.
#[track_caller]
fn opens(browser: &mut Browser, tab: &str, made: &MadePreview, message: &str) -> String {
    let origin = format!("{}//{}", made.url.as_ref().unwrap().split("//").next().unwrap(), world::host(made));
    assert_eq!(browser.open(tab, made.url.as_ref().unwrap()), (200, format!("{origin}/")), "{tab}");
    shows(browser, tab, message);
    browser.until(tab, "document.querySelector('#picture').naturalWidth === 40");
    let color = "getComputedStyle(document.querySelector('h1')).color";
    browser.until(tab, &format!("{color} === 'rgb(1, 2, 3)'"));
    origin
}

#[track_caller]
fn shows(browser: &mut Browser, tab: &str, message: &str) {
    browser.until(tab, &format!("document.querySelector('#message').textContent === {message:?}"));
}

/// Changes a module and a style in the guest; the page must show both, and be the same page.
async fn changes(api: &Api, id: &SandboxId, browser: &mut Browser, tab: &str, text: &str) {
    let born = browser.evaluate(tab, "window.born");
    message(api, id, text).await;
    shows(browser, tab, text);
    write(api, id, "style.css", "h1 {\n  color: rgb(9, 8, 7);\n}\n").await;
    browser.until(tab, "getComputedStyle(document.querySelector('h1')).color === 'rgb(9, 8, 7)'");
    assert_eq!(browser.evaluate(tab, "window.born"), born, "{tab}: it was not loaded again");
}

/// Logs in, which leads to another page, and sees on that page who it is.
#[track_caller]
fn logs_in(browser: &mut Browser, tab: &str, origin: &str, name: &str) {
    browser.fill(tab, "#name", name);
    assert_eq!(browser.follow(tab, "#enter"), format!("{origin}/who"), "{tab}");
    is(browser, tab, name);
}

#[track_caller]
fn is(browser: &mut Browser, tab: &str, name: &str) {
    assert_eq!(browser.evaluate(tab, "document.querySelector('#who').textContent"), name, "{tab}");
}

/// Sends a file, and hears events while it is sent.
#[track_caller]
fn uploads_and_listens(browser: &mut Browser, tab: &str) {
    browser.evaluate(tab, "listen()");
    browser.until(tab, "heard.length >= 3");
    browser.choose(tab, "#file", UPLOAD_BYTES);
    let send =
        "fetch('/upload', { method: 'POST', body: document.querySelector('#file').files[0] }).then((r) => r.text())";
    let digest: String = Sha256::digest(vec![b'x'; UPLOAD_BYTES]).iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(browser.evaluate(tab, send), digest);
    let before = browser.evaluate(tab, "heard.length");
    browser.until(tab, &format!("heard.length > {before}"));
    assert_eq!(browser.evaluate(tab, "heard.every((number, at) => number === at)"), true, "{tab}: none is missing");
}

/// Every WebSocket of the tab went to the preview's own name.
#[track_caller]
fn sockets_went_there(browser: &mut Browser, tab: &str, origin: &str) {
    let sockets = browser.sockets(tab);
    let own = format!("{}/", origin.replacen("http", "ws", 1));
    assert!(!sockets.is_empty() && sockets.iter().all(|url| url.starts_with(&own)), "{tab}: {sockets:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_site_is_developed_through_previews_in_the_source_and_in_three_branches_at_once() {
    let api = Api::own();
    let id = site(&api).await;
    let source = preview(&api, &id, PreviewAuth::Host).await;
    let mut browser = Browser::start(false);
    let origin = opens(&mut browser, "source", &source, "as it was prepared");
    changes(&api, &id, &mut browser, "source", "changed in the source").await;
    uploads_and_listens(&mut browser, "source");
    logs_in(&mut browser, "source", &origin, "sue");
    sockets_went_there(&mut browser, "source", &origin);
    write(&api, &id, "style.css", SITE[4].1).await;
    browser.close("source");

    let forked = api.client.fork(&id, &fork_of(3)).await.unwrap();
    let ids = forked.branches.into_iter().map(|branch| match branch {
        Branch::Sandbox(branch) => branch.id,
        failed => panic!("{failed:?}"),
    });
    let mut branches = Vec::new();
    for (id, (tab, auth)) in
        ids.zip([("one", PreviewAuth::Host), ("two", PreviewAuth::Cookie), ("three", PreviewAuth::Cookie)])
    {
        let made = preview(&api, &id, auth).await;
        let origin = opens(&mut browser, tab, &made, "changed in the source");
        branches.push((id, tab, made, origin));
    }
    // All of them are open; each is worked on beside the others.
    for (id, tab, ..) in &branches {
        changes(&api, id, &mut browser, tab, &format!("changed in {tab}")).await;
    }
    for (_, tab, ..) in &branches {
        shows(&mut browser, tab, &format!("changed in {tab}"));
        uploads_and_listens(&mut browser, tab);
    }
    for (_, tab, _, origin) in &branches {
        logs_in(&mut browser, tab, origin, &format!("user-{tab}"));
        sockets_went_there(&mut browser, tab, origin);
    }
    for (_, tab, _, origin) in &branches {
        browser.open(tab, &format!("{origin}/who"));
        is(&mut browser, tab, &format!("user-{tab}"));
    }
    browser.open("source", &format!("{origin}/who"));
    is(&mut browser, "source", "sue");
    browser.open("source", &origin);
    shows(&mut browser, "source", "changed in the source");

    // None is let in by what lets in to another.
    for (_, tab, made, _) in &branches {
        let own = format!("{}.localhost", made.preview.id);
        for (_, other, theirs, _) in branches.iter().filter(|(_, other, ..)| other != tab) {
            let header = format!("X-Remuda-Preview-Token: {}\r\n", theirs.token);
            get_with(&api, &own, "/", &header).refused(403, "forbidden");
            let cookie = format!("Cookie: remuda_preview={}\r\n", theirs.token);
            get_with(&api, &own, "/", &cookie).refused(401, "unauthorized");
            let named = get(&api, &format!("{}.localhost", theirs.token), "/message.js");
            match theirs.preview.auth {
                PreviewAuth::Host => assert!(named.text().contains(&format!("changed in {other}"))),
                _ => drop(named.refused(404, "preview_not_found")),
            }
        }
        let sources = format!("X-Remuda-Preview-Token: {}\r\n", source.token);
        get_with(&api, &own, "/", &sources).refused(403, "forbidden");
    }
    drop(browser);
    for id in branches.iter().map(|(id, ..)| id).chain([&id]) {
        api.remove(id).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_site_is_developed_over_tls() {
    let api = Api::of(std::sync::Arc::new(Server::start_with_own_place(&["--tls-self-signed"])));
    let id = site(&api).await;
    let made = preview(&api, &id, PreviewAuth::Cookie).await;
    let mut browser = Browser::start(true);
    let origin = opens(&mut browser, "tab", &made, "as it was prepared");
    assert!(origin.starts_with("https://"), "{origin}");
    changes(&api, &id, &mut browser, "tab", "changed over TLS").await;
    uploads_and_listens(&mut browser, "tab");
    logs_in(&mut browser, "tab", &origin, "tim");
    sockets_went_there(&mut browser, "tab", &origin);
    drop(browser);
    api.remove(&id).await;
}
