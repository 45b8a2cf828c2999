//! Every limit of previews that can be reached is said when it is, and leaves what was there before as it was.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use remuda_client::wire::MadePreview;
use remuda_types::limits::{
    PREVIEW_CONNECTIONS_ALL_MAX, PREVIEW_CONNECTIONS_MAX, PREVIEW_ROTATIONS_MAX, PREVIEWS_ACTIVE_MAX, PREVIEWS_MAX,
};
use remuda_types::{Error, ErrorCode};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::json;

use super::world::{self, App, PORT, app, connect, get, of_port};
use crate::api::{Api, PATIENCE, refused};

/// How long it is waited for the refusal of a request; one that is let in is never answered.
const LET_IN_AFTER: Duration = Duration::from_secs(5);
/// Of so many requests, how many the application may hang up on.
const HUNG_UP_MAX: usize = 10;

#[track_caller]
fn says(error: &Error, limit: &str, maximum: u64) {
    assert_eq!((&error.details["limit"], &error.details["maximum"]), (&json!(limit), &json!(maximum)), "{error:?}");
    assert!(error.remedy.is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn how_many_previews_a_sandbox_may_have_is_said() {
    let api = Api::own();
    let id = api.create().await.id;
    let mut active = Vec::new();
    for _ in 0..PREVIEWS_ACTIVE_MAX {
        active.push(api.client.create_preview(&id, &of_port(PORT)).await.unwrap().preview.id);
    }
    let full = refused(api.client.create_preview(&id, &of_port(PORT)).await, ErrorCode::LimitReached);
    says(&full, "previews_active_max", PREVIEWS_ACTIVE_MAX as u64);
    for preview in &active {
        api.client.revoke_preview(&id, preview).await.unwrap();
    }
    // Many at once, since each of them waits for the disk.
    let mut making = tokio::task::JoinSet::new();
    for _ in PREVIEWS_ACTIVE_MAX..PREVIEWS_MAX - 1 {
        if making.len() >= PREVIEWS_ACTIVE_MAX / 2 {
            making.join_next().await.unwrap().unwrap();
        }
        let (client, id) = (api.client.clone(), id.clone());
        making.spawn(async move {
            let made = client.create_preview(&id, &of_port(PORT)).await.unwrap();
            client.revoke_preview(&id, &made.preview.id).await.unwrap();
        });
    }
    making.join_all().await;
    let last = api.client.create_preview(&id, &of_port(PORT)).await.unwrap().preview.id;
    let full = refused(api.client.create_preview(&id, &of_port(PORT)).await, ErrorCode::LimitReached);
    says(&full, "previews_max", PREVIEWS_MAX as u64);
    for _ in 0..PREVIEW_ROTATIONS_MAX {
        api.client.rotate_preview(&id, &last).await.unwrap();
    }
    let full = refused(api.client.rotate_preview(&id, &last).await, ErrorCode::LimitReached);
    says(&full, "preview_rotations_max", u64::from(PREVIEW_ROTATIONS_MAX));
    api.remove(&id).await;
}

/// A request that is never answered, where it is let in.
fn hangs(api: &Api, made: &MadePreview) -> TcpStream {
    let mut stream = connect(api);
    write!(stream, "GET /hang HTTP/1.1\r\nHost: {}\r\n\r\n", world::host(made)).unwrap();
    stream
}

/// What a request was answered with.
fn status(stream: &mut TcpStream) -> Option<u16> {
    let mut line = [0; 12];
    stream.read_exact(&mut line).ok()?;
    std::str::from_utf8(&line[9..]).ok()?.parse().ok()
}

/// Opens requests until one is refused by the limit of this name, which has to be when so many are under way.
#[track_caller]
fn fill(api: &Api, made: &MadePreview, open: &mut Vec<TcpStream>, count: usize, limit: &str, maximum: usize) {
    open.extend((0..count).map(|_| hangs(api, made)));
    // One of so many may have been hung up on; then there is room for another one.
    for _ in 0..HUNG_UP_MAX {
        let mut one_more = hangs(api, made);
        one_more.set_read_timeout(Some(LET_IN_AFTER)).unwrap();
        let refused = status(&mut one_more);
        one_more.set_read_timeout(Some(PATIENCE)).unwrap();
        if refused == Some(429) {
            let error = get(api, &world::host(made), "/").refused(429, "limit_reached");
            let details = (&error["details"]["limit"], &error["details"]["maximum"]);
            assert_eq!(details, (&json!(limit), &json!(maximum)), "{error}");
            return;
        }
        open.push(one_more);
    }
    panic!("more than {maximum} were let in");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn how_many_requests_may_be_under_way_is_said_and_room_comes_back() {
    let allowed = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: allowed, maximum: allowed }).unwrap();
    let api = Api::own();
    let App { id } = app(&api, PORT).await;
    let one = api.client.create_preview(&id, &of_port(PORT)).await.unwrap();
    let other = api.client.create_preview(&id, &of_port(PORT)).await.unwrap();
    let (mut through_one, mut through_other) = (Vec::new(), Vec::new());
    let (own, all) = (PREVIEW_CONNECTIONS_MAX, PREVIEW_CONNECTIONS_ALL_MAX);
    fill(&api, &one, &mut through_one, own, "preview_connections_max", own);
    assert_eq!(get(&api, &world::host(&other), "/").status, 200, "another has room of its own");
    fill(&api, &other, &mut through_other, all - own, "preview_connections_all_max", all);
    // A revocation ends what is under way, and so makes room.
    api.client.revoke_preview(&id, &one.preview.id).await.unwrap();
    let ended = through_one.iter_mut().filter_map(status).filter(|status| *status == 410).count();
    assert_eq!(ended, own, "exactly so many were under way");
    assert_eq!(get(&api, &world::host(&other), "/").status, 200);
    drop(through_other);
    api.remove(&id).await;
}
