//! Previews of two accounts: neither finds, changes or enters the other's, and a name that somebody else leads here opens
//! nothing.

use remuda_client::wire::{CreateAccessKey, CreateSandbox};
use remuda_client::{Client, Method};
use remuda_types::{AccessScope, ErrorCode};

use super::world::{self, App, PORT, app, ask, get, get_with, of_port};
use crate::api::{Api, refused};

async fn account(api: &Api, name: &str) -> Client {
    let scopes = AccessScope::ALL.iter().copied().filter(|scope| *scope != AccessScope::Usage).collect();
    let account = Some(name.parse().unwrap());
    let request = CreateAccessKey { scopes, narrowing: None, label: None, expires_in_ms: None, account };
    let secret = api.client.create_access_key(&request).await.unwrap().secret;
    Client::tcp(&api.server.url(), &secret).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn neither_of_two_accounts_enters_or_changes_the_others_previews() {
    let api = Api::own();
    let App { id } = app(&api, PORT).await;
    let made = api.client.create_preview(&id, &of_port(PORT)).await.unwrap();
    let stranger = account(&api, "stranger").await;
    let small = CreateSandbox { memory_mib: Some(256), ..CreateSandbox::default() };
    let theirs = stranger.create_sandbox(&small).await.unwrap().id;
    let their_preview = stranger.create_preview(&theirs, &of_port(PORT)).await.unwrap();

    // By the API what is another account's is not there.
    refused(stranger.previews(&id).await, ErrorCode::SandboxNotFound);
    refused(stranger.create_preview(&id, &of_port(PORT)).await, ErrorCode::SandboxNotFound);
    for target in [&id, &theirs] {
        let preview = &made.preview.id;
        let code = if target == &id { ErrorCode::SandboxNotFound } else { ErrorCode::PreviewNotFound };
        refused(stranger.preview(target, preview).await, code);
        refused(stranger.probe_preview(target, preview).await, code);
        refused(stranger.rotate_preview(target, preview).await, code);
        refused(stranger.renew_preview(target, preview, &Default::default()).await, code);
        refused(stranger.revoke_preview(target, preview).await, code);
    }
    refused(
        stranger.port_request(&id, PORT, Method::GET, "/", Default::default(), "").await,
        ErrorCode::SandboxNotFound,
    );
    // Nor by the other's credential, which is a right one for something else.
    let own = format!("{}.localhost", made.preview.id);
    let token = format!("X-Remuda-Preview-Token: {}\r\n", their_preview.token);
    get_with(&api, &own, "/", &token).refused(403, "forbidden");
    let path = format!("/previews/{}/", made.preview.id);
    get_with(&api, "127.0.0.1", &path, &token).refused(403, "forbidden");
    get_with(&api, &own, "/", &format!("Authorization: Bearer {}\r\n", api.server.key().unwrap_or_default()))
        .refused(401, "unauthorized");
    assert_eq!(get(&api, &world::host(&made), "/").status, 200);
    stranger.remove_sandbox(&theirs).await.unwrap();
    api.remove(&id).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_that_somebody_else_leads_here_opens_nothing() {
    let api = Api::own();
    let App { id } = app(&api, PORT).await;
    let made = api.client.create_preview(&id, &of_port(PORT)).await.unwrap();
    let key = api.server.key().unwrap();
    // A page of theirs that asks its own name, which now leads here: no cookie of ours goes to that name, and without an
    // access key there is no answer. Nothing allows the page to read one with it either.
    for host in ["rebound.example", "rebound.example:80", "localhost.rebound.example", "127.0.0.1.rebound.example"] {
        let page = format!("Origin: http://{host}\r\nReferer: http://{host}/\r\n");
        get_with(&api, host, "/v1/sandboxes", &page).refused(401, "unauthorized");
        let path = format!("/previews/{}/", made.preview.id);
        get_with(&api, host, &path, &page).refused(401, "unauthorized");
        assert_eq!(get_with(&api, host, "/", &page).status, 404);
        // The credential counts for no name but those below the domain.
        assert_eq!(get_with(&api, &format!("{}.{host}", made.token), "/", &page).status, 404);
        let answered = get_with(&api, host, "/v1/sandboxes", &format!("{page}Authorization: Bearer {key}\r\n"));
        assert_eq!((answered.status, answered.header("access-control-allow-origin")), (200, None));
        let asked = ask(
            &api,
            &format!(
                "OPTIONS /v1/sandboxes HTTP/1.1\r\nHost: {host}\r\n{page}Access-Control-Request-Method: POST\r\n\
                 Access-Control-Request-Headers: authorization\r\nConnection: close\r\n\r\n"
            ),
        );
        assert!(asked.header("access-control-allow-origin").is_none(), "{}", asked.head);
        assert!(asked.header("access-control-allow-headers").is_none(), "{}", asked.head);
    }
    let seen = get(&api, &world::host(&made), "/");
    assert!(seen.header("access-control-allow-origin").is_none() && seen.header("set-cookie").is_none());
    api.remove(&id).await;
}
