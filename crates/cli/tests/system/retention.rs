//! What was kept long enough goes, and that is told: events to a reader that comes late, keys to a caller that does. Time
//! is made to pass in the journal, while no server has it open.

use std::process::Command;
use std::time::{Duration, Instant};

use remuda_client::Told;
use serde_json::Value;

use crate::api::{Api, PATIENCE};
use crate::world::{Server, write_journal};

/// A server after the next one has let go of what it finds too old; the look comes at its start.
fn aged(
    data_dir: &std::path::Path,
    server: Server,
    sql: &str,
    args: &[&str],
    gone: impl Fn(&Server) -> bool,
) -> Server {
    server.kill();
    write_journal(data_dir, sql);
    let server = Server::start_with(data_dir, args);
    let begun = Instant::now();
    while !gone(&server) {
        assert!(begun.elapsed() < PATIENCE, "what is old is kept");
        std::thread::sleep(Duration::from_millis(20));
    }
    server
}

fn read(server: &Server, path: &str) -> Value {
    let mut command = Command::new("curl");
    command.args(["-s", "--unix-socket"]).arg(server.data_dir.join("remuda.sock"));
    let output = command.arg(format!("http://localhost{path}")).output().unwrap();
    serde_json::from_slice(&output.stdout).unwrap()
}

#[tokio::test]
async fn a_reader_that_comes_too_late_is_told_of_the_gap_once_and_goes_on_behind_it() {
    let directory = tempfile::Builder::new().prefix("remuda-test-").tempdir_in("/var/tmp").unwrap();
    let data_dir = directory.path().join("data");
    let server = Server::start_plain(&data_dir, &[]);
    for label in ["a", "b", "c"] {
        server.run(&["key", "create", "--scope", "files", "--name", label]).line();
    }
    let all = server.run(&["--json", "events"]).json();
    let (newest, missed) = (all["newest"].as_u64().unwrap(), 2);
    assert!(newest > missed + 1, "{all:#}");
    let eight_days_ago = format!("UPDATE events SET at = at - 8 * 86400000 WHERE sequence <= {missed}");
    let is_missed = |server: &Server| server.run(&["--json", "events"]).json()["missed"] == missed;
    let api = Api::of(std::sync::Arc::new(aged(&data_dir, server, &eight_days_ago, &[], is_missed)));

    let told = async |after| {
        let mut stream = api.client.follow_events(after).await.unwrap();
        tokio::time::timeout(PATIENCE, stream.next()).await.expect("no event comes").unwrap().unwrap()
    };
    assert_eq!(told(0).await, Told::Gap { missed });
    assert_eq!(told(1).await, Told::Gap { missed: missed - 1 });
    // Behind the gap nothing is missed: the next one comes.
    let Told::Event(next) = told(missed).await else { panic!("a second gap") };
    assert_eq!(next.sequence, missed + 1);
    // In one stream: the gap, and then each event that there is.
    let mut stream = api.client.follow_events(0).await.unwrap();
    assert_eq!(stream.next().await.unwrap(), Some(Told::Gap { missed }));
    for sequence in missed + 1..=newest {
        let Some(Told::Event(event)) = stream.next().await.unwrap() else { panic!("it ended, or a gap") };
        assert_eq!(event.sequence, sequence);
    }
    // As the wire has it: with an id, so that a reader that comes back is not told again.
    let raw = Command::new("curl")
        .args(["-sN", "--max-time", "1", "-H", "Accept: text/event-stream", "--unix-socket"])
        .arg(api.server.data_dir.join("remuda.sock"))
        .arg("http://localhost/v1/events?after=0")
        .output()
        .unwrap();
    let expected = format!("id: {missed}\nevent: gap\ndata: {{\"missed\":{missed},\"oldest\":{}}}\n\n", missed + 1);
    assert!(String::from_utf8_lossy(&raw.stdout).starts_with(&expected), "{raw:?}");
    assert!(api.server.run(&["events"]).stderr.contains("(2 older events are no longer kept)"));
}

#[test]
fn keys_live_as_long_as_the_server_is_set_to() {
    let directory = tempfile::Builder::new().prefix("remuda-test-").tempdir_in("/var/tmp").unwrap();
    let data_dir = directory.path().join("data");
    let server = Server::start_plain(&data_dir, &["--keys-live", "2h"]);
    let keyed = ["create", "--memory", "512", "--key", "k1"];
    let id = server.run(&keyed).line();
    assert_eq!(read(&server, "/v1/capabilities")["limits"]["keys_live_ms"], 7_200_000);
    // A key's life is set when its call comes, and the operation is whole for as long.
    let back = |ms: u64| {
        format!(
            "UPDATE operations SET admitted_at = admitted_at - {ms}, finished_at = finished_at - {ms}, keep_until = keep_until - {ms}"
        )
    };
    let evicted = |server: &Server| read(server, "/v1/operations?key=k1")["operations"][0]["evicted"] == true;
    let server = aged(&data_dir, server, &back(5_400_000), &[], |server| !evicted(server));
    assert_eq!(server.run(&keyed).line(), id);
    let server = aged(&data_dir, server, &back(2_000_000), &[], evicted);
    // The short outcome stays with the tombstone, so that a late retry is told it once more and makes nothing.
    assert_eq!(server.run(&keyed).line(), id);
    assert_eq!(read(&server, "/v1/sandboxes")["sandboxes"].as_array().unwrap().len(), 1);
}
