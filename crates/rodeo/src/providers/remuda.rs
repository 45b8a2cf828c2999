//! Remuda through its native API. Holds a client and no state; the API key stays in the client.

use std::time::Duration;

use bytes::Bytes;
use remuda_client::{Client, ClientError, HeaderMap, Method, OutputQuery, SandboxFilter, WriteFile, wire};
use remuda_types::{AccessScope, ErrorCode, ExecutionId, ExecutionState, Narrowing, SandboxId, SnapshotMode};

use crate::observe::ANSWER_BYTES_MAX;
use crate::provider::{
    Abilities, Capture, Command, Ended, Failure, Forked, Grant, HttpAnswer, HttpCall, Inventory, Launch, Machine,
    Presence, Process, Provider, ProviderError,
};

/// Label that names the run a sandbox belongs to.
const RUN_LABEL: &str = "rodeo-run";
/// Label that names its role in it.
const ROLE_LABEL: &str = "rodeo-role";
/// How much of a process's last output an error quotes, in characters.
const OUTPUT_CHARACTERS_MAX: usize = 2_000;

/// The adapter.
#[derive(Debug, Clone)]
pub struct Remuda {
    client: Client,
    url: Option<String>,
    /// How long machines live at most; as the server has it when absent.
    lifetime: Option<Duration>,
}

impl Remuda {
    /// An adapter to the server that this client talks to.
    pub fn new(client: Client) -> Self {
        Remuda { client, url: None, lifetime: None }
    }

    /// Agents reach the server at this URL. Without it no access can be granted.
    pub fn reached_at(self, url: String) -> Self {
        Remuda { url: Some(url), ..self }
    }

    /// Machines live for this long, whatever the server's default is.
    pub fn living(self, lifetime: Duration) -> Self {
        Remuda { lifetime: Some(lifetime), ..self }
    }

    async fn output_end(
        &self,
        sandbox: &SandboxId,
        execution: &ExecutionId,
        bytes: u64,
    ) -> Result<String, ProviderError> {
        let query =
            OutputQuery { offset: bytes.saturating_sub(OUTPUT_CHARACTERS_MAX as u64), ..OutputQuery::default() };
        let page = self.client.output(sandbox, execution, &query).await?;
        Ok(page.records.into_iter().map(|record| record.text).collect())
    }
}

impl From<ClientError> for ProviderError {
    fn from(error: ClientError) -> Self {
        let kind = match &error {
            error if error.no_server() => Failure::NoProvider,
            error => match error.code() {
                Some(ErrorCode::Unauthorized | ErrorCode::PermissionDenied) => Failure::Refused,
                Some(ErrorCode::PortUnreachable | ErrorCode::Unreachable) => Failure::NotAnswering,
                _ => Failure::Other,
            },
        };
        let mut message = error.to_string();
        if let Some(api) = error.api() {
            message = describe(api);
        }
        ProviderError { kind, message }
    }
}

fn describe(error: &remuda_types::Error) -> String {
    let mut text = format!("{} ({})", error.message, error.code);
    if let Some(cause) = &error.cause {
        text = format!("{text}: {cause}");
    }
    if let Some(remedy) = &error.remedy {
        text = format!("{text}; {remedy}");
    }
    text
}

fn other(message: impl Into<String>) -> ProviderError {
    ProviderError { kind: Failure::Other, message: message.into() }
}

fn sandbox(machine: &Machine) -> Result<SandboxId, ProviderError> {
    machine.0.parse().map_err(|error| other(format!("{error}")))
}

fn execution(process: &Process) -> Result<ExecutionId, ProviderError> {
    process.0.parse().map_err(|error| other(format!("{error}")))
}

fn machine(sandbox: &wire::Sandbox) -> Machine {
    Machine(sandbox.id.to_string())
}

fn raw(value: &impl serde::Serialize) -> Result<serde_json::Value, ProviderError> {
    serde_json::to_value(value).map_err(|error| other(format!("an answer can't be recorded: {error}")))
}

fn labels(run: &str, role: &str) -> wire::Labels {
    [(RUN_LABEL.to_owned(), run.to_owned()), (ROLE_LABEL.to_owned(), role.to_owned())].into()
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn start(command: &Command) -> wire::StartExecution {
    wire::StartExecution {
        argv: Some(command.argv.clone()),
        cwd: command.cwd.clone(),
        env: command.env.clone(),
        ..wire::StartExecution::default()
    }
}

fn tail(text: &str) -> String {
    let skip = text.chars().count().saturating_sub(OUTPUT_CHARACTERS_MAX);
    text.chars().skip(skip).collect()
}

impl Provider for Remuda {
    fn name(&self) -> &'static str {
        "remuda"
    }

    fn abilities(&self) -> Abilities {
        Abilities {
            memory: true,
            filesystem: true,
            needs_stopped_source: false,
            keyed_capture: true,
            narrow_access: self.url.is_some(),
            named_capture: true,
            launch_recipe: true,
            credentials: "Authorization: Bearer, or the local socket".into(),
        }
    }

    async fn check(&self) -> Result<serde_json::Value, ProviderError> {
        raw(&self.client.capabilities().await?)
    }

    async fn inventory(&self) -> Result<Inventory, ProviderError> {
        let filter = SandboxFilter::default();
        let (sandboxes, snapshots) = tokio::join!(self.client.list_sandboxes(&filter), self.client.snapshots(false));
        Ok(Inventory {
            machines: sandboxes?.iter().map(machine).collect(),
            captures: snapshots?.iter().map(|snapshot| Capture(snapshot.id.to_string())).collect(),
        })
    }

    async fn create(&self, run: &str, role: &str) -> Result<Machine, ProviderError> {
        let request = wire::CreateSandbox {
            labels: labels(run, role),
            timeout_ms: self.lifetime.map(milliseconds),
            ..wire::CreateSandbox::default()
        };
        Ok(machine(&self.client.create_sandbox(&request).await?))
    }

    async fn put(&self, machine: &Machine, path: &str, bytes: Bytes, executable: bool) -> Result<(), ProviderError> {
        let mode = Some(if executable { 0o755 } else { 0o644 });
        let options = WriteFile { mode, user: None, parents: true, ..WriteFile::default() };
        self.client.write_file(&sandbox(machine)?, path, &options, bytes).await?;
        Ok(())
    }

    async fn get(&self, machine: &Machine, path: &str, bytes_max: usize) -> Result<Bytes, ProviderError> {
        let file = self.client.read_file(&sandbox(machine)?, path).await?;
        Ok(file.body.collect(bytes_max).await?)
    }

    async fn grant(&self, machine: &Machine, label: &str, time: Duration) -> Result<Grant, ProviderError> {
        let Some(url) = &self.url else {
            return Err(other("the server has no URL that an agent could reach it at; name one with --url"));
        };
        let request = wire::CreateAccessKey {
            scopes: vec![
                AccessScope::SandboxesRead,
                AccessScope::Executions,
                AccessScope::Files,
                AccessScope::Previews,
            ],
            narrowing: Some(Narrowing::Sandbox(sandbox(machine)?)),
            label: Some(label.to_owned()),
            expires_in_ms: Some(milliseconds(time)),
            account: None,
        };
        let made = self.client.create_access_key(&request).await?;
        let env = [("REMUDA_URL", url.clone()), ("REMUDA_SANDBOX", machine.0.clone()), ("REMUDA_API_KEY", made.secret)];
        Ok(Grant {
            id: made.access_key.id.to_string(),
            env: env.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
        })
    }

    async fn revoke(&self, grant: &Grant) -> Result<(), ProviderError> {
        let id = grant.id.parse().map_err(|error| other(format!("{error}")))?;
        self.client.revoke_access_key(None, &id).await?;
        Ok(())
    }

    async fn names(&self, machine: &Machine, folder: &str) -> Result<Vec<String>, ProviderError> {
        let list = self.client.list_files(&sandbox(machine)?, folder).await?;
        if list.truncated {
            return Err(other(format!("{folder} has more entries than a listing shows")));
        }
        Ok(list.entries.into_iter().map(|entry| entry.path.rsplit('/').next().unwrap_or_default().to_owned()).collect())
    }

    async fn command(
        &self,
        machine: &Machine,
        command: &Command,
        time_limit: Duration,
    ) -> Result<Ended, ProviderError> {
        let time_limit_ms = milliseconds(time_limit);
        let request = wire::StartExecution {
            timeout_ms: Some(time_limit_ms),
            // A little more than the command has, so that its end is seen.
            wait_ms: Some(time_limit_ms.saturating_add(5_000).min(remuda_types::limits::WAIT_MS_MAX)),
            ..start(command)
        };
        let done = self.client.execute(&sandbox(machine)?, &request).await?;
        if done.state != ExecutionState::Exited {
            return Err(other(format!("{:?} did not come to its end: {}", command.argv, done.state)));
        }
        let output = format!("{}{}", done.stdout.unwrap_or_default(), done.stderr.unwrap_or_default());
        Ok(Ended { exit_code: done.exit_code, output: tail(&output) })
    }

    async fn launch(&self, machine: &Machine, command: &Command) -> Result<Process, ProviderError> {
        let started = self.client.execute(&sandbox(machine)?, &start(command)).await?;
        Ok(Process(started.id.to_string()))
    }

    async fn wait_end(
        &self,
        machine: &Machine,
        process: &Process,
        wait: Duration,
    ) -> Result<Option<Ended>, ProviderError> {
        let (sandbox, execution) = (sandbox(machine)?, execution(process)?);
        let now = self.client.execution(&sandbox, &execution, wait).await?;
        if !now.state.is_final() {
            return Ok(None);
        }
        let output = self.output_end(&sandbox, &execution, now.output_bytes).await?;
        Ok(Some(Ended { exit_code: now.exit_code, output: tail(&output) }))
    }

    async fn kill(&self, machine: &Machine, process: &Process) -> Result<(), ProviderError> {
        self.client.cancel(&sandbox(machine)?, &execution(process)?).await?;
        Ok(())
    }

    async fn runs(&self, machine: &Machine, pid: u64) -> Result<Option<bool>, ProviderError> {
        let executions = self.client.executions(&sandbox(machine)?).await?;
        let runs = |one: &wire::Execution| one.state == ExecutionState::Running && one.pid.map(u64::from) == Some(pid);
        Ok(Some(executions.iter().any(runs)))
    }

    async fn http(&self, machine: &Machine, call: &HttpCall) -> Result<HttpAnswer, ProviderError> {
        let method = Method::from_bytes(call.method.as_bytes()).map_err(|error| other(error.to_string()))?;
        let mut headers = HeaderMap::new();
        if call.body.is_some() {
            headers.insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static("application/json"));
        }
        let body = call.body.clone().unwrap_or_default();
        let answer = self.client.port_request(&sandbox(machine)?, call.port, method, &call.path, headers, body).await?;
        let status = answer.status().as_u16();
        let cache_control =
            answer.headers().get("cache-control").and_then(|value| value.to_str().ok()).map(str::to_owned);
        Ok(HttpAnswer { status, cache_control, body: answer.collect(ANSWER_BYTES_MAX).await? })
    }

    async fn fork(
        &self,
        source: &Machine,
        run: &str,
        count: u32,
        mode: SnapshotMode,
        launch: Option<&Launch>,
    ) -> Result<Forked, ProviderError> {
        let launch = launch.map(|launch| wire::LaunchRecipe {
            argv: launch.command.argv.clone(),
            cwd: launch.command.cwd.clone(),
            env: launch.command.env.clone(),
            port: launch.port,
            ready_path: Some(launch.ready_path.clone()),
            timeout_ms: Some(milliseconds(launch.timeout)),
            ..wire::LaunchRecipe::default()
        });
        let labels = labels(run, "branch");
        let timeout_ms = self.lifetime.map(milliseconds);
        let request =
            wire::ForkSandbox { count, mode: Some(mode), labels, launch, timeout_ms, ..wire::ForkSandbox::default() };
        let fork = self.client.fork(&sandbox(source)?, &request).await?;
        let branches = fork.branches.iter().map(|branch| match branch {
            wire::Branch::Sandbox(sandbox) => Ok(machine(sandbox)),
            wire::Branch::Error(error) => Err(other(describe(error))),
        });
        Ok(Forked {
            capture: Some(Capture(fork.snapshot.id.to_string())),
            branches: branches.collect(),
            raw: raw(&fork)?,
        })
    }

    async fn machines_of(&self, run: &str) -> Result<Vec<Machine>, ProviderError> {
        let filter = SandboxFilter { labels: vec![(RUN_LABEL.into(), run.into())], ..SandboxFilter::default() };
        Ok(self.client.list_sandboxes(&filter).await?.iter().map(machine).collect())
    }

    async fn captures_of(&self, sources: &[Machine]) -> Result<Vec<Capture>, ProviderError> {
        let snapshots = self.client.snapshots(false).await?;
        let ours = snapshots.iter().filter(|snapshot| {
            let source = snapshot.source.to_string();
            sources.iter().any(|machine| machine.0 == source)
        });
        Ok(ours.map(|snapshot| Capture(snapshot.id.to_string())).collect())
    }

    async fn remove(&self, machine: &Machine) -> Result<serde_json::Value, ProviderError> {
        raw(&self.client.remove_sandbox(&sandbox(machine)?).await?)
    }

    async fn remove_capture(&self, capture: &Capture) -> Result<serde_json::Value, ProviderError> {
        raw(&self.client.remove_snapshot(&capture.0).await?)
    }

    async fn presence(&self, machine: &Machine) -> Presence {
        let id = match sandbox(machine) {
            Ok(id) => id,
            Err(error) => return Presence::Unknown(error.to_string()),
        };
        match self.client.sandbox(&id).await {
            Ok(sandbox) => Presence::There(sandbox.state.to_string()),
            Err(error) if error.code() == Some(ErrorCode::GenerationGone) => Presence::Gone,
            Err(error) => Presence::Unknown(ProviderError::from(error).message),
        }
    }
}
