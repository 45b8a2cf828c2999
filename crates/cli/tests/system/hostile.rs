//! Guests whose root writes into the control channel of its own agent. Such a guest may ruin itself; the server and
//! every other sandbox must not notice.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use remuda_client::Client;
use remuda_client::wire::StartExecution;
use remuda_types::{ErrorCode, SandboxId, SandboxState};

use crate::api::{Api, python, refused, script_of, traces};

/// Uses another sandbox all the while, and counts.
struct Witness {
    over: Arc<AtomicBool>,
    answers: Arc<AtomicU64>,
    task: tokio::task::JoinHandle<()>,
}

impl Witness {
    fn start(client: &Client, id: &SandboxId) -> Witness {
        let (over, answers) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let task = tokio::spawn({
            let (client, id, over, answers) = (client.clone(), id.clone(), over.clone(), answers.clone());
            async move {
                while !over.load(Ordering::Relaxed) {
                    let answer = client.execute(&id, &script_of("echo alive")).await.unwrap();
                    assert_eq!(answer.stdout.as_deref(), Some("alive\n"), "{answer:?}");
                    answers.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        Witness { over, answers, task }
    }

    /// Waits until it was answered so many times more.
    async fn answered(&self, times: u64) {
        let enough = self.answers.load(Ordering::Relaxed) + times;
        let waiting = async {
            while self.answers.load(Ordering::Relaxed) < enough {
                assert!(!self.task.is_finished(), "it was not answered");
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(crate::api::PATIENCE, waiting).await.unwrap();
    }

    async fn end(self) {
        self.answered(1).await;
        self.over.store(true, Ordering::Relaxed);
        self.task.await.unwrap();
    }
}

fn as_root(program: &str) -> StartExecution {
    StartExecution { user: Some("root".into()), ..python(program) }
}

/// What writes a frame: kind, channel, payload.
const FRAMES: &str = "import os,struct\nout = os.open('/proc/1/fd/1', os.O_WRONLY)\n\
    def frame(kind, channel, payload): return b'Rm' + struct.pack('<BBIII', 2, kind, channel, len(payload), 0) + payload + bytes([0xe7])\n";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nonsense_in_the_channel_ends_that_sandbox_alone() {
    let api = Api::own();
    let other = api.create().await;
    let witness = Witness::start(&api.client, &other.id);
    for (what, program) in [
        ("noise", "os.write(out, os.urandom(4096))"),
        ("a huge length", "os.write(out, b'Rm' + struct.pack('<BBIII', 2, 0x84, 1, 0xffffffff, 0))"),
        ("another version", "os.write(out, b'Rm' + struct.pack('<BBIII', 9, 0x81, 1, 0, 0))"),
        ("the host's own words", "os.write(out, frame(0x01, 1, b'{}'))"),
        ("half a frame", "os.write(out, frame(0x84, 1, bytes(8))[:-1] + bytes(30))"),
        ("a beginning", "os.write(out, frame(0x87, 0, bytes(16)))"),
        ("an answer that is none", "os.write(out, frame(0x81, 1, b'{\"Ok\":17}'))"),
        ("an event that is none", "os.write(out, frame(0x86, 0, b'[' * 100000))"),
        ("a credit that is none", "os.write(out, frame(0x84, 1, b'xyz'))"),
    ] {
        let sandbox = api.create().await;
        let id = &sandbox.id;
        let request = as_root(&format!("{FRAMES}{program}\nimport time\ntime.sleep(600)"));
        // It may be over before the start was answered.
        let _ = api.client.execute(id, &request).await;
        let dead = api.until(id, what, |seen| seen.state == SandboxState::Stopped).await;
        let reason = dead.reason.unwrap_or_default();
        assert!(reason.contains("control channel broke"), "{what}: {reason}");
        assert!(reason.len() < 1000, "{what}: {reason}");
        refused(api.client.execute(id, &script_of("true")).await, ErrorCode::WrongState);
        witness.answered(1).await;
        api.remove(id).await;
        assert_eq!(traces(sandbox.uid.as_str()), Vec::<String>::new(), "{what}");
    }
    witness.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_frames_drowns_nobody_else() {
    let api = Api::own();
    let other = api.create().await;
    let witness = Witness::start(&api.client, &other.id);
    // All of them are frames, and whole: answers nobody asked for, data and credits of channels nobody has, events of
    // executions that never were.
    let flood = "reply = frame(0x81, 4000000000, b'{\"Ok\":{\"reply\":\"done\"}}')\n\
        event = frame(0x86, 0, b'{\"event\":\"exited\",\"channel\":4000000000,\"code\":0,\"signal\":null,\"produced\":0,\"pipes_held\":false}')\n\
        data = frame(0x82, 4000000000, b'x' * 4000)\n\
        credit = frame(0x84, 4000000000, bytes(8))\n\
        print('ready', flush=True)\n\
        while True:\n for f in (reply, event, data, credit, frame(0x83, 4000000000, b''), frame(0x85, 0, b'')): os.write(out, f)\n";
    let sandbox = api.create().await;
    let id = &sandbox.id;
    let (_, _) = api.background(id, as_root(&format!("{FRAMES}{flood}"))).await;
    witness.answered(5).await;
    assert_eq!(api.client.sandbox(id).await.unwrap().state, SandboxState::Running, "nothing in it was wrong");
    let another = api.create().await;
    assert_eq!(api.sh(&another.id, "echo alive").await, "alive");
    api.remove(&another.id).await;
    api.remove(id).await;
    assert_eq!(traces(sandbox.uid.as_str()), Vec::<String>::new());
    witness.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn data_beyond_every_window_ends_that_sandbox_and_fills_no_memory() {
    let api = Api::own();
    let other = api.create().await;
    let witness = Witness::start(&api.client, &other.id);
    let sandbox = api.create().await;
    let id = &sandbox.id;
    api.sh(id, "head -c 30000000 /dev/zero > large").await;
    // A reader that does not read: what the guest pushes into the transfer's channel has nowhere to go.
    let download = api.client.read_file(id, "/workspace/large").await.unwrap();
    let pushing = "for channel in range(200):\n rest = frame(0x82, channel, b'x' * 1500000)\n \
        while rest: rest = rest[os.write(out, rest):]\n";
    let _ = api.client.execute(id, &as_root(&format!("{FRAMES}{pushing}"))).await;
    let dead = api.until(id, "stopped", |seen| seen.state == SandboxState::Stopped).await;
    assert!(dead.reason.as_ref().is_some_and(|reason| reason.contains("more data than was asked for")), "{dead:?}");
    let cut = download.body.collect(64 << 20).await;
    assert!(cut.is_err(), "half a file never looks whole");
    api.remove(id).await;
    witness.end().await;
}
