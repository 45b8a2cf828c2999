//! A provider for tests that runs the real worker as processes of this machine: a machine is a folder and its
//! processes, a filesystem fork copies the folder. It can't fork memory; it imitates one, well or badly, so that the
//! harness can be seen to tell the difference. Says nothing about the product.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use remuda_rodeo::provider::*;
use remuda_types::SnapshotMode;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Child;
use tokio::sync::Notify;

/// How the provider behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Behaviour {
    /// As it should.
    #[default]
    Good,
    /// Its memory forks are new processes with the same queue.
    NewProcesses,
    /// Its branches share the files of the first.
    SharedFiles,
    /// Its second branch never comes up.
    LosesABranch,
    /// It says that it removed a machine, and didn't.
    NeverRemoves,
    /// Its machines take until `release_creations`.
    SlowCreations,
    /// It can't fork memory, and says so.
    NoMemory,
    /// It says at the end that the process is gone, whatever still answers.
    DiesAtTheEnd,
    /// Its ports answer with something else.
    ForbiddenPorts,
}

#[derive(Clone)]
pub struct Local {
    behaviour: Behaviour,
    shared: Arc<Shared>,
}

struct Shared {
    root: PathBuf,
    next: AtomicUsize,
    machines: Mutex<BTreeMap<String, Arc<Folder>>>,
    ended: Mutex<BTreeSet<String>>,
    http: reqwest::Client,
    creations: Notify,
    creations_begun: Notify,
    pub calls: Mutex<Vec<String>>,
}

struct Folder {
    run: String,
    files: PathBuf,
    port: Mutex<u16>,
    jobs: Mutex<Option<String>>,
    processes: Mutex<BTreeMap<String, Arc<tokio::sync::Mutex<Child>>>>,
}

/// Makes a new process answer as the one it imitates.
const IMITATE: &str = "data:text/javascript,import crypto from 'node:crypto';\
    import{syncBuiltinESMExports}from'node:module';\
    crypto.randomBytes=()=>Buffer.from(process.env.AS_NONCE,'hex');syncBuiltinESMExports();\
    Object.defineProperty(process,'pid',{value:Number(process.env.AS_PID)});";

fn failed(message: impl ToString) -> ProviderError {
    ProviderError { kind: Failure::Other, message: message.to_string() }
}

impl Local {
    pub fn new(root: &Path, behaviour: Behaviour) -> Local {
        let shared = Shared {
            root: root.to_owned(),
            next: AtomicUsize::new(1),
            machines: Mutex::default(),
            ended: Mutex::default(),
            http: reqwest::Client::builder().no_proxy().build().unwrap(),
            creations: Notify::new(),
            creations_begun: Notify::new(),
            calls: Mutex::default(),
        };
        Local { behaviour, shared: Arc::new(shared) }
    }

    pub fn living(&self) -> usize {
        self.shared.machines.lock().unwrap().len()
    }

    pub fn calls(&self, containing: &str) -> usize {
        self.shared.calls.lock().unwrap().iter().filter(|call| call.contains(containing)).count()
    }

    pub async fn creations_begun(&self) {
        self.shared.creations_begun.notified().await;
    }

    pub fn release_creations(&self) {
        self.shared.creations.notify_waiters();
    }

    fn folder(&self, machine: &Machine) -> Result<Arc<Folder>, ProviderError> {
        self.shared.machines.lock().unwrap().get(&machine.0).cloned().ok_or_else(|| failed(format!("no {}", machine.0)))
    }

    fn add(&self, run: &str, files: Option<PathBuf>) -> (Machine, Arc<Folder>) {
        let name = format!("m{}", self.shared.next.fetch_add(1, Ordering::Relaxed));
        let files = files.unwrap_or_else(|| self.shared.root.join(&name));
        std::fs::create_dir_all(files.join("workspace")).unwrap();
        let folder = Arc::new(Folder {
            run: run.to_owned(),
            files,
            port: Mutex::default(),
            jobs: Mutex::default(),
            processes: Mutex::default(),
        });
        self.shared.machines.lock().unwrap().insert(name.clone(), folder.clone());
        (Machine(name), folder)
    }

    async fn start(
        &self,
        folder: &Folder,
        argv: &[String],
        cwd: &str,
        env: &BTreeMap<String, String>,
    ) -> Result<String, ProviderError> {
        let mut child = tokio::process::Command::new(&argv[0])
            .args(&argv[1..])
            .current_dir(inside(folder, cwd))
            .envs(env)
            .env("PORT", "0")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .kill_on_drop(true)
            .spawn()
            .map_err(failed)?;
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let line = lines.next_line().await.map_err(failed)?.ok_or_else(|| failed("it said nothing"))?;
        *folder.port.lock().unwrap() = line.rsplit(' ').next().unwrap().parse().map_err(failed)?;
        let id = child.id().unwrap().to_string();
        folder.processes.lock().unwrap().insert(id.clone(), Arc::new(tokio::sync::Mutex::new(child)));
        Ok(id)
    }

    async fn request(
        &self,
        folder: &Folder,
        method: &str,
        path: &str,
        body: Option<String>,
    ) -> Result<HttpAnswer, ProviderError> {
        let port = *folder.port.lock().unwrap();
        let method = reqwest::Method::from_bytes(method.as_bytes()).map_err(failed)?;
        let request =
            self.shared.http.request(method, format!("http://127.0.0.1:{port}{path}")).body(body.unwrap_or_default());
        let answer =
            request.send().await.map_err(|e| ProviderError { kind: Failure::NotAnswering, message: e.to_string() })?;
        let cache_control = answer.headers().get("cache-control").map(|v| v.to_str().unwrap().to_owned());
        Ok(HttpAnswer { status: answer.status().as_u16(), cache_control, body: answer.bytes().await.map_err(failed)? })
    }

    /// What a memory fork looks like from outside, without being one.
    async fn imitate(&self, source: &Folder, branch: &Folder) -> Result<(), ProviderError> {
        let status = self.request(source, "GET", "/status", None).await?;
        let status: Value = serde_json::from_slice(&status.body).map_err(failed)?;
        let mut argv = vec!["node".to_owned()];
        let text = |member: &str| status[member].as_str().unwrap_or_default().to_owned();
        let mut env = BTreeMap::from([("PREPARATION".to_owned(), text("preparation"))]);
        if self.behaviour != Behaviour::NewProcesses {
            argv.extend(["--import".to_owned(), IMITATE.to_owned()]);
            env.extend([("AS_NONCE".into(), text("nonce")), ("AS_PID".into(), status["pid"].to_string())]);
        }
        argv.push("server.mjs".into());
        self.start(branch, &argv, "/workspace/worker", &env).await?;
        let jobs = source.jobs.lock().unwrap().clone();
        self.request(branch, "POST", "/jobs", jobs).await?;
        Ok(())
    }
}

fn inside(folder: &Folder, path: &str) -> PathBuf {
    folder.files.join(path.trim_start_matches('/'))
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

impl Provider for Local {
    fn name(&self) -> &'static str {
        "local"
    }

    fn abilities(&self) -> Abilities {
        Abilities {
            memory: self.behaviour != Behaviour::NoMemory,
            filesystem: true,
            needs_stopped_source: false,
            keyed_capture: false,
            narrow_access: self.behaviour != Behaviour::NoMemory,
            named_capture: false,
            launch_recipe: true,
            credentials: "none".into(),
        }
    }

    async fn check(&self) -> Result<Value, ProviderError> {
        Ok(json!({"version": "test"}))
    }

    async fn inventory(&self) -> Result<Inventory, ProviderError> {
        let machines = self.shared.machines.lock().unwrap().keys().cloned().map(Machine).collect();
        Ok(Inventory { machines, captures: Vec::new() })
    }

    async fn create(&self, run: &str, _role: &str) -> Result<Machine, ProviderError> {
        if self.behaviour == Behaviour::SlowCreations {
            let wait = self.shared.creations.notified();
            self.shared.creations_begun.notify_one();
            wait.await;
        }
        Ok(self.add(run, None).0)
    }

    async fn put(&self, machine: &Machine, path: &str, bytes: Bytes, _executable: bool) -> Result<(), ProviderError> {
        let path = inside(&*self.folder(machine)?, path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).map_err(failed)
    }

    async fn get(&self, machine: &Machine, path: &str, bytes_max: usize) -> Result<Bytes, ProviderError> {
        let bytes = std::fs::read(inside(&*self.folder(machine)?, path)).map_err(failed)?;
        if bytes.len() > bytes_max { Err(failed("it is too long")) } else { Ok(bytes.into()) }
    }

    async fn grant(&self, machine: &Machine, _label: &str, _time: Duration) -> Result<Grant, ProviderError> {
        self.shared.calls.lock().unwrap().push(format!("{} grant", machine.0));
        let files = self.folder(machine)?.files.display().to_string();
        Ok(Grant { id: machine.0.clone(), env: [("FILES".to_owned(), files)].into() })
    }

    async fn revoke(&self, grant: &Grant) -> Result<(), ProviderError> {
        self.shared.calls.lock().unwrap().push(format!("{} revoke", grant.id));
        Ok(())
    }

    async fn names(&self, machine: &Machine, folder: &str) -> Result<Vec<String>, ProviderError> {
        let entries = std::fs::read_dir(inside(&*self.folder(machine)?, folder)).map_err(failed)?;
        Ok(entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect())
    }

    async fn command(
        &self,
        machine: &Machine,
        command: &Command,
        time_limit: Duration,
    ) -> Result<Ended, ProviderError> {
        let cwd = inside(&*self.folder(machine)?, command.cwd.as_deref().unwrap_or("/workspace"));
        let run = tokio::process::Command::new(&command.argv[0]).args(&command.argv[1..]).current_dir(cwd).output();
        let output = tokio::time::timeout(time_limit, run).await.map_err(failed)?.map_err(failed)?;
        Ok(Ended { exit_code: output.status.code(), output: String::from_utf8_lossy(&output.stdout).into() })
    }

    async fn launch(&self, machine: &Machine, command: &Command) -> Result<Process, ProviderError> {
        let folder = self.folder(machine)?;
        self.start(&folder, &command.argv, command.cwd.as_deref().unwrap(), &command.env).await.map(Process)
    }

    async fn wait_end(
        &self,
        machine: &Machine,
        process: &Process,
        wait: Duration,
    ) -> Result<Option<Ended>, ProviderError> {
        let child = self.folder(machine)?.processes.lock().unwrap()[&process.0].clone();
        let mut child = child.lock().await;
        match tokio::time::timeout(wait, child.wait()).await {
            Err(_) => Ok(None),
            Ok(status) => Ok(Some(Ended { exit_code: status.map_err(failed)?.code(), output: String::new() })),
        }
    }

    async fn kill(&self, machine: &Machine, process: &Process) -> Result<(), ProviderError> {
        let child = self.folder(machine)?.processes.lock().unwrap()[&process.0].clone();
        child.lock().await.start_kill().map_err(failed)
    }

    async fn runs(&self, _machine: &Machine, _pid: u64) -> Result<Option<bool>, ProviderError> {
        // Its imitated forks have other pids than they say.
        Ok(self.behaviour.eq(&Behaviour::DiesAtTheEnd).then_some(false))
    }

    async fn http(&self, machine: &Machine, call: &HttpCall) -> Result<HttpAnswer, ProviderError> {
        let folder = self.folder(machine)?;
        self.shared.calls.lock().unwrap().push(format!("{} {} {}", machine.0, call.method, call.path));
        if call.path == "/jobs" {
            *folder.jobs.lock().unwrap() = call.body.clone();
        }
        if self.behaviour == Behaviour::ForbiddenPorts && call.path == "/results" {
            return Ok(HttpAnswer { status: 403, cache_control: None, body: "forbidden".into() });
        }
        self.request(&folder, call.method, &call.path, call.body.clone()).await
    }

    async fn fork(
        &self,
        source: &Machine,
        run: &str,
        count: u32,
        mode: SnapshotMode,
        launch: Option<&Launch>,
    ) -> Result<Forked, ProviderError> {
        let from = self.folder(source)?;
        let mut branches: Vec<Result<Machine, ProviderError>> = Vec::new();
        let mut first: Option<PathBuf> = None;
        for index in 0..count {
            if self.behaviour == Behaviour::LosesABranch && index == 1 {
                branches.push(Err(failed("the engine lost it")));
                continue;
            }
            let share = first.clone().filter(|_| self.behaviour == Behaviour::SharedFiles);
            let shares = share.is_some();
            let (machine, branch) = self.add(run, share);
            if !shares {
                copy(&from.files, &branch.files);
                first.get_or_insert(branch.files.clone());
            }
            match (mode, launch) {
                (SnapshotMode::Filesystem, Some(launch)) => {
                    let command = &launch.command;
                    self.start(&branch, &command.argv, command.cwd.as_deref().unwrap(), &command.env).await?;
                }
                (SnapshotMode::Filesystem, None) => return Err(failed("a filesystem fork without a launch recipe")),
                (SnapshotMode::Memory, _) => self.imitate(&from, &branch).await?,
            }
            branches.push(Ok(machine));
        }
        Ok(Forked { capture: None, branches, raw: json!({"count": count}) })
    }

    async fn machines_of(&self, run: &str) -> Result<Vec<Machine>, ProviderError> {
        let machines = self.shared.machines.lock().unwrap();
        Ok(machines.iter().filter(|(_, folder)| folder.run == run).map(|(name, _)| Machine(name.clone())).collect())
    }

    async fn captures_of(&self, _sources: &[Machine]) -> Result<Vec<Capture>, ProviderError> {
        Ok(Vec::new())
    }

    async fn remove(&self, machine: &Machine) -> Result<Value, ProviderError> {
        if self.behaviour == Behaviour::NeverRemoves {
            return Ok(json!({"result": "removed"}));
        }
        let folder = self.shared.machines.lock().unwrap().remove(&machine.0);
        let children = folder.map(|folder| std::mem::take(&mut *folder.processes.lock().unwrap())).unwrap_or_default();
        for child in children.into_values() {
            child.lock().await.kill().await.map_err(failed)?;
        }
        self.shared.ended.lock().unwrap().insert(machine.0.clone());
        Ok(json!({"result": "removed"}))
    }

    async fn remove_capture(&self, _capture: &Capture) -> Result<Value, ProviderError> {
        Err(failed("there are no captures here"))
    }

    async fn presence(&self, machine: &Machine) -> Presence {
        if self.shared.machines.lock().unwrap().contains_key(&machine.0) {
            Presence::There("running".into())
        } else if self.shared.ended.lock().unwrap().contains(&machine.0) {
            Presence::Gone
        } else {
            Presence::Unknown("never heard of it".into())
        }
    }
}
