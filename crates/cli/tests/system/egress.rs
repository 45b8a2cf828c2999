//! The way out: names and public addresses are reached, this machine and its neighbourhood are not, `internet: false`
//! means nothing at all, and copies are as their source is. Needs a network, as the setup of the machine does.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use remuda_client::wire::{Branch, CreateSandbox, CreateSnapshot, RestoreSnapshot};
use remuda_types::{SandboxId, SnapshotMode};

use crate::api::{Api, fork_of};
use crate::world::Server;

/// This machine's address on the way to the internet; nothing is sent to find it out.
fn own_address() -> Ipv4Addr {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    socket.connect((Ipv4Addr::new(9, 9, 9, 9), 53)).expect("this machine has no way out itself");
    match socket.local_addr().unwrap().ip() {
        IpAddr::V4(address) => address,
        IpAddr::V6(address) => panic!("{address}"),
    }
}

/// A service of this machine that says one word to whoever connects, and its address.
fn says_hello() -> SocketAddr {
    let listener = TcpListener::bind((own_address(), 0)).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            // Who hung up first wants no word.
            let _ = stream.unwrap().write_all(b"hello\n");
        }
    });
    address
}

/// What a guest hears from an address, or the error's name; `silence` when nothing comes in 5 s.
async fn hears(api: &Api, id: &SandboxId, address: SocketAddr) -> String {
    let program = format!(
        "import socket\ntry: print(socket.create_connection(('{}', {}), 5).recv(9).decode().strip())\n\
         except TimeoutError: print('silence')\nexcept OSError as e: print(e.strerror)",
        address.ip(),
        address.port()
    );
    api.sh(id, &format!("python3 -c \"{program}\"")).await
}

/// Whether the packages' registry answers a guest by name and over TLS: as its tools do it, with whatever they are
/// set to.
const ASKS_THE_REGISTRY: &str = "npm view --no-update-notifier is-number@7.0.0 version";

#[tokio::test]
async fn a_guest_reaches_the_world_by_name_and_nothing_of_its_neighbourhood() {
    let api = Api::shared();
    let service = says_hello();
    assert!(api.client.capabilities().await.unwrap().features["internet"]);
    let sandbox = api.create().await;
    let id = &sandbox.id;
    assert!(sandbox.internet);
    assert_eq!(api.sh(id, ASKS_THE_REGISTRY).await, "7.0.0");
    // A service on this machine that everybody in its network reaches, other private addresses, and its name server's
    // other ports: told at once, not by a time-out.
    for refused in [service, "10.0.0.1:80".parse().unwrap(), "169.254.169.254:80".parse().unwrap()] {
        let heard = hears(&api, id, refused).await;
        assert!(heard != "hello" && heard != "silence", "{refused}: {heard}");
    }
    // A neighbour, by the address that its way out has on this machine.
    let neighbour = api.create().await;
    let links = std::fs::read_to_string("/proc/net/route").unwrap();
    let ways_out = links.lines().filter(|line| line.starts_with("rmd")).count();
    assert!(ways_out >= 2, "{links}");
    for line in links.lines().filter(|line| line.starts_with("rmd")) {
        let address = u32::from_str_radix(line.split_ascii_whitespace().nth(1).unwrap(), 16).unwrap();
        let address = Ipv4Addr::from(address.to_ne_bytes());
        let heard = hears(&api, id, (address, 80).into()).await;
        assert!(heard != "silence" && heard != "hello", "{address}: {heard}");
    }
    api.remove(&neighbour.id).await;
    api.remove(id).await;
}

#[tokio::test]
async fn what_the_operator_allows_is_reached_although_it_is_private() {
    let service = says_hello();
    let server = Server::start_with_own_place(&["--egress-allow", &service.ip().to_string()]);
    let api = Api::of(server.into());
    let id = api.create().await.id;
    assert_eq!(hears(&api, &id, service).await, "hello");
    let refused = hears(&api, &id, "10.0.0.1:80".parse().unwrap()).await;
    assert!(refused != "silence", "{refused}");
    api.remove(&id).await;
}

#[tokio::test]
async fn without_internet_nothing_is_reached_by_it_nor_by_any_copy() {
    let service = says_hello();
    let server = Server::start_with_own_place(&["--egress-allow", &service.ip().to_string()]);
    let api = Api::of(server.into());
    let closed = CreateSandbox { internet: Some(false), ..CreateSandbox::default() };
    let source = api.create_with(&closed).await;
    assert!(!source.internet);
    let reaches_nothing = async |id: &SandboxId| {
        assert!(!api.client.sandbox(id).await.unwrap().internet);
        assert_eq!(hears(&api, id, service).await, "No route to host");
        assert_eq!(api.sh(id, "getent hosts localhost.example || echo none").await, "none");
    };
    reaches_nothing(&source.id).await;
    let forked = api.client.fork(&source.id, &fork_of(1)).await.unwrap();
    let [Branch::Sandbox(branch)] = forked.branches.as_slice() else { panic!("{forked:?}") };
    reaches_nothing(&branch.id).await;
    let capture = CreateSnapshot { mode: Some(SnapshotMode::Filesystem), ..CreateSnapshot::default() };
    let snapshot = api.client.snapshot(&source.id, &capture).await.unwrap();
    let restored = api.client.restore(snapshot.id.as_str(), &RestoreSnapshot::default()).await.unwrap();
    reaches_nothing(&restored.id).await;
    api.client.stop(&source.id).await.unwrap();
    let started = api.client.start(&source.id, &Default::default()).await.unwrap();
    reaches_nothing(&started.id).await;
    for id in [&started.id, &branch.id, &restored.id] {
        api.remove(id).await;
    }
}

#[tokio::test]
async fn copies_get_out_too_each_by_a_way_of_its_own() {
    let service = says_hello();
    let server = Server::start_with_own_place(&["--egress-allow", &service.ip().to_string()]);
    let api = Api::of(server.into());
    let source = api.create().await.id;
    assert_eq!(hears(&api, &source, service).await, "hello");
    let forked = api.client.fork(&source, &fork_of(2)).await.unwrap();
    for branch in &forked.branches {
        let Branch::Sandbox(branch) = branch else { panic!("{branch:?}") };
        assert!(branch.internet);
        assert_eq!(hears(&api, &branch.id, service).await, "hello");
        api.remove(&branch.id).await;
    }
    api.client.stop(&source).await.unwrap();
    let started = api.client.start(&source, &Default::default()).await.unwrap().id;
    assert_eq!(hears(&api, &started, service).await, "hello");
    api.remove(&started).await;
}

#[tokio::test]
async fn a_server_that_lets_nobody_out_says_so() {
    let api = Api::of(Server::start_with_own_place(&["--no-internet"]).into());
    assert!(!api.client.capabilities().await.unwrap().features["internet"]);
    let sandbox = api.create().await;
    assert!(!sandbox.internet);
    let asked = CreateSandbox { internet: Some(true), ..CreateSandbox::default() };
    let error = crate::api::refused(api.client.create_sandbox(&asked).await, remuda_types::ErrorCode::InvalidRequest);
    assert!(error.cause.as_ref().is_some_and(|cause| cause.contains("--no-internet")), "{error:?}");
    assert_eq!(hears(&api, &sandbox.id, "9.9.9.9:53".parse().unwrap()).await, "No route to host");
    api.remove(&sandbox.id).await;
}

/// Connects again and again, and says who it is after it has got out.
const SAYS_WHO_IT_IS: &str = "
import json, socket, sys, time
while True:
    try:
        out = socket.create_connection((sys.argv[1], int(sys.argv[2])), 5)
        out.sendall(json.load(open('/run/remuda/identity.json'))['sandbox'].encode())
        out.close()
    except OSError:
        pass
    time.sleep(0.01)
";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_says_nothing_to_the_world_before_it_knows_who_it_is() {
    let listener = TcpListener::bind((own_address(), 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let server = Server::start_with_own_place(&["--egress-allow", &address.ip().to_string()]);
    let api = Api::of(server.into());
    let source = api.create().await.id;
    api.client.write_file(&source, "/workspace/who.py", &Default::default(), SAYS_WHO_IT_IS).await.unwrap();
    let run = format!("exec python3 /workspace/who.py {} {}", address.ip(), address.port());
    api.client.execute(&source, &crate::api::detached(&run)).await.unwrap();
    // From which address on this machine who was heard: each sandbox's way out has one of its own.
    let heard: BTreeMap<IpAddr, BTreeSet<String>> = BTreeMap::new();
    let heard = Arc::new(Mutex::new(heard));
    let (tell, mut told) = tokio::sync::watch::channel(0);
    let hearing = heard.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, mut said) = (stream.unwrap(), String::new());
            let from = stream.peer_addr().unwrap().ip();
            // A capture resets what was being said.
            if stream.read_to_string(&mut said).is_ok() && !said.is_empty() {
                let mut heard = hearing.lock().unwrap();
                heard.entry(from).or_default().insert(said);
                // When the test is over nobody listens.
                let _ = tell.send(heard.len());
            }
        }
    });
    let mut until = async |count: usize| {
        let all = told.wait_for(|heard| *heard >= count);
        tokio::time::timeout(Duration::from_secs(60), all).await.expect("nobody more is heard").unwrap();
    };
    until(1).await;
    let forked = api.client.fork(&source, &fork_of(3)).await.unwrap();
    until(4).await;
    let mut sandboxes = BTreeSet::from([source.to_string()]);
    for branch in &forked.branches {
        let Branch::Sandbox(branch) = branch else { panic!("{branch:?}") };
        sandboxes.insert(branch.id.to_string());
    }
    let said = heard.lock().unwrap().clone();
    assert!(said.values().all(|who| who.len() == 1), "{said:?}");
    assert_eq!(said.into_values().flatten().collect::<BTreeSet<_>>(), sandboxes);
    for id in sandboxes {
        api.remove(&id.parse().unwrap()).await;
    }
}
