//! A server that can be killed: this test's own executable, started again as a process that raises one machine and does
//! what it is told. Never waits without a limit.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use remuda_engine::install::{Cache, Installed};
use remuda_engine::{
    AGENT_PATH, Adopted, ChannelEnds, Engine, Fingerprint, HostFacts, Life, Limits, Machine, MachineSpec, Parts,
    Survivor,
};
use remuda_types::{SnapshotId, Uid};
use tokio::io::AsyncWriteExt;

/// Longest wait for anything.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// Tells the executable that it is to be a server, and on which directory.
const DIRECTORY: &str = "REMUDA_TEST_SERVER_DIRECTORY";
const LIMITS: Limits = Limits { memory_bytes: 512 << 20, cpus: 2 };

/// The program inside: counts the lines it is sent, so that a count that goes on is memory that was kept. `fill` makes
/// an image that takes a while to write, `eat` takes more memory than there is.
const PROGRAM: &str = "#!/bin/sh\nn=0\nwhile read -r line; do\n  n=$((n+1))\n  case $line in\n    \
                       fill) head -c 150M /dev/urandom > /dev/shm/filled ;;\n    \
                       eat) head -c 900M /dev/zero | tail -c 900M > /dev/null ;;\n  esac\n  echo \"$n $line\"\ndone\n";

/// A data directory, and whatever the machine's cache has.
pub struct World {
    dir: tempfile::TempDir,
    pub uid: Uid,
}

impl World {
    pub fn new() -> World {
        let dir = tempfile::Builder::new().prefix("remuda-adoption-").tempdir().unwrap();
        let program = dir.path().join("program").join(AGENT_PATH.trim_start_matches('/'));
        fs::create_dir_all(program.parent().unwrap()).unwrap();
        fs::write(&program, PROGRAM).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        World { dir, uid: Uid::from_entropy([b'm'; 20]) }
    }

    /// An engine on the directory, as a server that was just started has it.
    pub fn engine(&self) -> Engine {
        engine(self.dir.path())
    }

    /// The data directory.
    #[allow(dead_code, reason = "not every test that has this module asks for it")]
    pub fn data(&self) -> std::path::PathBuf {
        self.dir.path().join("data")
    }

    /// Takes the machine over, which must live.
    pub async fn adopt(&self, engine: &Engine, facts: &HostFacts) -> Survivor {
        match tokio::time::timeout(PATIENCE, engine.adopt(&self.uid, facts)).await.unwrap().unwrap() {
            Adopted::Alive(survivor) => *survivor,
            other => panic!("{other:?}"),
        }
    }

    /// Removes the machine and sees that nothing is left of it.
    pub async fn clear(&self, engine: &Engine) {
        let torn = engine.tear_down(&self.uid).await.unwrap();
        assert!(torn.processes_gone && torn.files_gone, "{torn:?}");
        assert_eq!(engine.leftovers().unwrap(), remuda_engine::Leftovers::default());
        engine.close().unwrap();
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        assert!(!mounts.contains(self.dir.path().to_str().unwrap()), "{mounts}");
    }
}

/// What a failed test leaves goes all the same.
impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let dir = self.dir.path().to_owned();
            let clearing = std::thread::spawn(move || {
                tokio::runtime::Runtime::new().unwrap().block_on(async {
                    let engine = engine(&dir);
                    engine.sweep().await.unwrap();
                    engine.close().unwrap();
                });
            });
            drop(clearing.join());
        }
    }
}

fn engine(dir: &Path) -> Engine {
    let installed = Installed::load(&Cache::new(Path::new("/var/cache/remuda"))).unwrap();
    let installed = installed.expect("the cache is empty; run: cargo xtask test");
    let fingerprint = Fingerprint { runsc: "test".into(), agent: "test".into(), base: "test".into() };
    let parts = Parts {
        fingerprint,
        runsc_version: String::new(),
        runsc: installed.runsc,
        agent_dir: dir.join("program"),
        base_dir: installed.base_root,
    };
    Engine::open(&dir.join("data"), parts).unwrap()
}

/// A server process.
pub struct Server {
    process: Child,
    orders: ChildStdin,
    answers: mpsc::Receiver<String>,
}

impl Server {
    /// Starts a server that begins at once to raise the machine.
    pub fn start(world: &World) -> Server {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "server::serve", "--nocapture"])
            .env(DIRECTORY, world.dir.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let orders = process.stdin.take().unwrap();
        let answers = follow(process.stdout.take().unwrap());
        Server { process, orders, answers }
    }

    /// Starts a server and waits until its machine lives and has answered once.
    pub fn raised(world: &World) -> (Server, HostFacts) {
        let server = Server::start(world);
        let facts = serde_json::from_str(&server.answer("facts ")).unwrap();
        (server, facts)
    }

    /// Tells it to do something.
    pub fn order(&mut self, order: &str) {
        writeln!(self.orders, "{order}").unwrap();
    }

    /// What it says behind this word, which it must say next.
    pub fn answer(&self, word: &str) -> String {
        loop {
            let line = self.answers.recv_timeout(PATIENCE).expect("the server ended or said nothing");
            // The test harness around it says things of its own.
            if let Some(rest) = line.strip_prefix(word) {
                return rest.to_owned();
            }
        }
    }

    /// Kills it, as nobody can prepare for. Its machine becomes an orphan that is no child of this process.
    pub fn kill(mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

fn follow(stdout: ChildStdout) -> mpsc::Receiver<String> {
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            if tell.send(line).is_err() {
                return;
            }
        }
    });
    told
}

/// The server's side.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "it is the server that the other tests start and kill"]
async fn serve() {
    let dir = std::env::var_os(DIRECTORY).expect("started by the other tests only");
    let engine = engine(Path::new(&dir));
    let uid = Uid::from_entropy([b'm'; 20]);
    let parts = engine.parts().fingerprint.clone();
    let spec = MachineSpec { uid, layers: Vec::new(), parts, limits: LIMITS, internet: false };
    let site = engine.prepare(&spec).await.unwrap();
    let mut channel = site.open_channel().unwrap();
    println!("\nprepared ");
    let machine = site.raise(Life::Fresh).await.unwrap();
    expect(&mut channel, "hello", 1).await;
    println!("\nfacts {}", serde_json::to_string(&machine.host_facts().unwrap()).unwrap());
    let mut count = 1;
    for order in std::io::stdin().lines().map_while(Result::ok) {
        obey(&engine, &machine, &mut channel, &order, &mut count).await;
        println!("\ndone {order}");
    }
}

async fn obey(engine: &Engine, machine: &Machine, channel: &mut ChannelEnds, order: &str, count: &mut u32) {
    match order {
        "pause" => machine.pause().await.unwrap(),
        "capture" => {
            println!("\ncapturing ");
            machine.capture(engine.capture_places(&snapshot(), true), false).await.unwrap();
        }
        "capture files" => {
            machine.capture(engine.capture_places(&snapshot(), false), false).await.unwrap();
        }
        line => {
            *count += 1;
            expect(channel, line, *count).await;
        }
    }
}

/// The snapshot that servers capture.
pub fn snapshot() -> SnapshotId {
    SnapshotId::from_entropy([b's'; 20])
}

/// Says a line and waits for its echo with the right count.
pub async fn expect(channel: &mut ChannelEnds, line: &str, count: u32) {
    let conversation = async {
        channel.to_guest.write_all(format!("{line}\n").as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"\n") {
            channel.from_guest.readable().await.unwrap();
            match channel.from_guest.try_read_buf(&mut answer) {
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {}
                read => drop(read.unwrap()),
            }
        }
        String::from_utf8(answer).unwrap()
    };
    let answer = tokio::time::timeout(PATIENCE, conversation).await.expect("the program said nothing");
    assert_eq!(answer, format!("{count} {line}\n"));
}
